"""Fixtures: a metadata service on each engine."""

import pytest

from fs.kv.memory import MemoryEngine
from fs.meta.check import check
from tests.kv import fixtures
from tests.kv.harness import CHOSEN_KIND
from tests.meta.harness import INLINE_BYTES_MAX, INLINE_TOTAL_BYTES_MAX, World

open_lab = fixtures.open_lab


@pytest.fixture
async def world(open_lab):
    """A service on the engine in memory, or the chosen one;
    the namespace must be sound when the test ends.
    """
    made = World(await open_lab(), new_engine=open_lab)
    await made.initialise()
    yield made
    if made.engine.faults is None:
        assert await check(made.engine) == []


@pytest.fixture
async def inline_world(open_lab):
    """As `world`, where small files are inline."""
    made = World(
        await open_lab(),
        inline_bytes_max=INLINE_BYTES_MAX,
        inline_total_bytes_max=INLINE_TOTAL_BYTES_MAX,
    )
    await made.initialise()
    yield made
    assert await check(made.engine) == []


@pytest.fixture
def memory_world(world):
    """As `world`, for tests that ask of an engine what only the one in memory can do."""
    if not isinstance(world.engine, MemoryEngine):
        pytest.skip("needs the engine in memory: others lose nothing on demand")
    return world


ANY_KIND = ["memory", "rocksdb"]


@pytest.fixture(params=[CHOSEN_KIND] if CHOSEN_KIND else ANY_KIND)
async def any_world(request, open_lab):
    """As `world`, on each engine."""
    made = World(await open_lab(request.param), new_engine=open_lab)
    await made.initialise()
    yield made
    assert await check(made.engine) == []


@pytest.fixture
def root(world):
    return world.user(0)


@pytest.fixture
def alice(world):
    return world.user(1000, 1000, (2000,))


@pytest.fixture
def bob(world):
    return world.user(1001, 1001)
