"""Recounting usage: planted errors are found and put right, all of them and nothing else,
also while others work.
"""

import random

import pytest
import trio

from fs.admin.recount import find_directory, recount
from fs.kv.memory import MemoryEngine
from fs.meta import records
from fs.meta.check import check
from fs.runtime.simulated import SimulatedClock, simulated_runtime
from fs.schema.status import Status
from tests.admin.namespace import DEFECTS, furnish
from tests.admin.test_backup import churn
from tests.meta.harness import ROOT, World, refused

KINDS = (records.KIND_BYTES, records.KIND_FILES, records.KIND_DIRECTORIES)
WORDS = ("bytes", "files", "directories")


@pytest.fixture
async def place():
    world = World(MemoryEngine(SimulatedClock()))
    await world.initialise()
    return await furnish(world)


async def count(place, top_id=ROOT, *, is_repair=True):
    runtime = simulated_runtime(None, 1)
    return await recount(place.world.engine, runtime, top_id, is_repair=is_repair)


async def plant(place, errors):
    """`errors`: (directory, index of kind) -> what is added to its counter."""
    tr = place.world.engine.transaction()
    for (directory_id, kind), error in errors.items():
        tr.atomic_add(records.usage_key(directory_id, KINDS[kind]), error)
    await tr.commit()


async def test_where_nothing_is_wrong(place, autojump_clock):  # noqa: ARG001
    before = await place.world.dump()
    report = await count(place)
    assert (report.wrong, report.left, report.repaired_count) == ([], [], 0)
    assert report.inode_count == 13
    assert await place.world.dump() == before


@pytest.mark.parametrize("seed", range(10))
async def test_planted_errors(place, autojump_clock, seed):  # noqa: ARG001
    draw = random.Random(seed)
    places = [(d, kind) for d in (ROOT, place.directory, place.deep) for kind in range(3)]
    errors = {at: draw.choice([-(10**12), -1, 1, 7]) for at in draw.sample(places, 4)}
    await plant(place, errors)
    planted = await place.world.dump()
    report = await count(place, is_repair=False)
    assert await place.world.dump() == planted
    paths = {ROOT: "/", place.directory: "/d", place.deep: "/d/deep"}
    found = {(w.inode_id, w.path, word): n for w in report.left for word, n in w.missing.items()}
    assert found == {(d, paths[d], WORDS[kind]): -error for (d, kind), error in errors.items()}
    report = await count(place)
    assert report.left == [] and report.repaired_count == len(report.wrong)
    assert await check(place.world.engine) == []


async def test_a_tree_alone(place, autojump_clock):  # noqa: ARG001
    await plant(place, {(ROOT, 0): 5, (place.directory, 1): 6, (place.deep, 2): 7})
    top = await find_directory(place.world.engine, [b"d", b"deep"])
    assert top == place.deep
    report = await count(place, top)
    assert [w.path for w in report.wrong] == ["/d/deep"]
    report = await count(place, await find_directory(place.world.engine, [b"d"]))
    assert [w.path for w in report.wrong] == ["/d"]
    assert [w.path for w in (await count(place, is_repair=False)).left] == ["/"]
    with refused(Status.NOT_FOUND):
        await find_directory(place.world.engine, [b"nowhere"])
    with refused(Status.NOT_DIRECTORY):
        await find_directory(place.world.engine, [b"d", b"linked"])


@pytest.mark.parametrize("name", ["home_that_is_none", "directories_in_a_loop", "unreadable_inode"])
async def test_what_is_unsure_is_not_repaired(place, autojump_clock, name):  # noqa: ARG001
    await DEFECTS[name][2](place)
    await plant(place, {(ROOT, 0): 5})
    planted = await place.world.dump()
    report = await count(place)
    assert report.uncertain and not report.repaired_count
    assert await place.world.dump() == planted


@pytest.mark.slow
async def test_while_others_change_what_is_counted():
    """Repairs add what was missing: what others add meanwhile stays counted."""
    engine = MemoryEngine(SimulatedClock())
    world = World(engine)
    await world.initialise()
    async with trio.open_nursery() as nursery:
        for number in range(3):
            nursery.start_soon(churn, world, number)
        await trio.sleep(0.05)
        for _ in range(3):
            tr = engine.transaction()
            tr.atomic_add(records.usage_key(ROOT, records.KIND_BYTES), -12345)
            tr.atomic_add(records.usage_key(ROOT, records.KIND_FILES), 99)
            await tr.commit()
            report = await recount(engine, simulated_runtime(None, 1), ROOT, is_repair=True)
            assert report.left == []
            assert report.wrong[0].missing == {"bytes": 12345, "files": -99}
        nursery.cancel_scope.cancel()
    assert await check(engine) == []
