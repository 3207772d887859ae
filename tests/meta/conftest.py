"""Fixtures: a metadata service on each engine."""

import pytest

from fs.kv.memory import MemoryEngine
from fs.kv.rocksdb import RocksDbEngine
from fs.meta.check import check
from fs.runtime.simulated import SimulatedClock, simulated_runtime
from fs.schema.config import KvSection
from tests.meta.harness import World


@pytest.fixture
async def world():
    """A service on the engine in memory; the namespace must be sound when the test ends."""
    made = World(MemoryEngine(SimulatedClock()))
    await made.initialise()
    yield made
    if made.engine.faults is None:
        assert await check(made.engine) == []


@pytest.fixture(params=["memory", "rocksdb"])
async def any_world(request, tmp_path):
    """As `world`, on each engine."""
    if request.param == "memory":
        engine = MemoryEngine(SimulatedClock())
    else:
        engine = await RocksDbEngine.open(
            str(tmp_path / "kv"), KvSection(), simulated_runtime(None, 1), cluster_id="emberfs"
        )
    made = World(engine)
    await made.initialise()
    yield made
    assert await check(made.engine) == []
    await engine.aclose()


@pytest.fixture
def root(world):
    return world.user(0)


@pytest.fixture
def alice(world):
    return world.user(1000, 1000, (2000,))


@pytest.fixture
def bob(world):
    return world.user(1001, 1001)
