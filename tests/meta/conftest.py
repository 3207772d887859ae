"""Fixtures: a metadata service on each engine."""

import pytest
import trio.testing

from fs.kv.faulty import FaultyEngine
from fs.kv.memory import MemoryEngine
from fs.meta.check import check
from fs.runtime.simulated import SimulatedClock
from tests.kv.harness import CHOSEN_KIND, Lab
from tests.meta.harness import World

KIND = CHOSEN_KIND or "memory"


@pytest.fixture
async def open_lab(tmp_path, nursery):
    """Return a function that opens a new, empty engine of a kind, with `faults` that a test may set."""
    labs = []

    async def open_one(kind: str = KIND):
        if kind == "memory":
            return MemoryEngine(SimulatedClock())
        lab = Lab(kind, tmp_path / f"kv-{len(labs)}", nursery)
        labs.append(lab)
        return FaultyEngine(await lab.open(), None)

    yield open_one
    for lab in labs:
        await lab.clean()
        await lab.close()


@pytest.fixture
async def world(open_lab):
    """A service on the engine in memory, or the chosen one; the namespace must be sound when the test ends."""
    made = World(await open_lab(), new_engine=open_lab)
    await made.initialise()
    yield made
    if made.engine.faults is None:
        assert await check(made.engine) == []


@pytest.fixture
def memory_world(world):
    """As `world`, for tests that ask of an engine what only the one in memory can do."""
    if not isinstance(world.engine, MemoryEngine):
        pytest.skip("needs the engine in memory: others lose nothing on demand")
    return world


ANY_KIND = ["memory", "rocksdb", pytest.param("foundationdb", marks=pytest.mark.slow)]


@pytest.fixture(params=[CHOSEN_KIND] if CHOSEN_KIND else ANY_KIND)
async def any_world(request, open_lab):
    """As `world`, on each engine."""
    made = World(await open_lab(request.param), new_engine=open_lab)
    await made.initialise()
    yield made
    assert await check(made.engine) == []


@pytest.fixture
def autojump_clock(request):
    """Virtual time; on FoundationDB, which answers from elsewhere, the harness steps it."""
    callspec = getattr(request.node, "callspec", None)
    kind = callspec.params.get("any_world", KIND) if callspec is not None else KIND
    return trio.testing.MockClock(autojump_threshold=float("inf") if kind == "foundationdb" else 0)


@pytest.fixture
def root(world):
    return world.user(0)


@pytest.fixture
def alice(world):
    return world.user(1000, 1000, (2000,))


@pytest.fixture
def bob(world):
    return world.user(1001, 1001)
