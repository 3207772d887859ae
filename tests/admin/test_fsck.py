"""Every kind of defect of a namespace is found, and put right where that is possible;
nothing else is said.
"""

import random

import pytest
import trio

from fs.admin.fsck import Check
from fs.kv.lasting import open_snapshot
from fs.kv.memory import MemoryEngine
from fs.kv.pause import PausableEngine
from fs.meta import records
from fs.meta.check import check
from fs.meta.fsck_facts import BY_INODE, Kind
from fs.meta.fsck_scan import Scan
from fs.meta.inode_ids import SHARD_COUNT
from fs.runtime.real import RealClock
from fs.runtime.simulated import SimulatedClock, simulated_runtime
from fs.runtime.sorter import Sorter
from fs.schema.proto import common_pb2 as pb
from tests.admin.namespace import DEFECTS, dentry, furnish
from tests.admin.stores import dump, prefixes
from tests.admin.test_backup import churn
from tests.kv.harness import inline_runtime
from tests.meta.harness import ROOT, World

WITHOUT_CLUSTER = {
    Kind.DEAD_SESSION,
    Kind.ORPHAN_CHUNK,
    Kind.CHUNK_BEYOND_END,
    Kind.MISPLACED_CHUNK,
    Kind.NO_CHAIN,
    Kind.NO_CHUNKS,
    Kind.WRONG_SPACE,
    Kind.NOT_LOOKED_AT,
}
"""Found in running clusters only: tests/admin/test_fsck_chunks.py."""


@pytest.fixture
async def place():
    world = World(MemoryEngine(SimulatedClock()))
    await world.initialise()
    return await furnish(world)


def checker(engine) -> Check:
    return Check(engine, simulated_runtime(None, 1), is_paced=False)


def test_every_kind_has_a_defect():
    assert {kind for kind, _, _ in DEFECTS.values()} == set(Kind) - WITHOUT_CLUSTER


def test_no_kind_of_record_is_forgotten():
    others = {b"DENT", b"GCFI", b"GCDI", b"CLCK", b"DLCK", b"QUOT", b"TRSH", b"SING"}
    judged_nowhere = {
        b"IDEM",
        b"LWAI",
    }  # what was answered, and expires; what a client waits for, and goes with it
    managers = {p for p in prefixes() if p.startswith(b"MG")} | {b"RTEV"}
    known = set(prefixes()) - managers
    assert known == set(BY_INODE) | others | judged_nowhere


async def test_nothing_is_found_where_nothing_is_wrong(place):
    before = await place.world.dump()
    report = await checker(place.world.engine).run(is_repair=True)
    assert (report.findings, report.left, report.repaired_count) == ([], [], 0)
    assert report.inode_count == 13
    assert await place.world.dump() == before


@pytest.mark.thorough
@pytest.mark.parametrize("name", DEFECTS)
async def test_a_defect_is_found_and_repaired(place, name):
    kind, is_repairable, plant = DEFECTS[name]
    await plant(place)
    planted = await place.world.dump()
    engine = place.world.engine
    report = await checker(engine).run(is_repair=False)
    assert kind in {finding.kind for finding in report.findings}, report.findings
    assert report.left == report.findings
    assert await place.world.dump() == planted
    assert all(str(kind) in finding.line() for finding in report.findings if finding.kind is kind)
    report = await checker(engine).run(is_repair=True)
    if is_repairable:
        assert report.left == []
        assert report.repaired_count
        assert await check(engine) == []
    else:
        assert kind in {finding.kind for finding in report.left}


async def test_what_lost_its_name_is_in_lost_and_found(place):
    await DEFECTS["directory_lost"][2](place)
    await checker(place.world.engine).run(is_repair=True)
    root = place.world.user(0)
    folder = (await root.lookup(ROOT, b"lost+found")).inode_id
    found = {int(name, 16) for name in await root.names(folder)}
    assert found >= {place.file, place.symlink, place.open, place.locked}
    assert (await root.attr(place.file)).file.length == 5000
    assert (await root.attr(place.linked)).nlink == 2
    await root.rename(folder, b"%x" % place.file, ROOT, b"rescued")
    await root.set_attr(place.linked, length=9)
    assert await check(place.world.engine) == []
    assert (await place.world.user(1000).attr(folder)).mode == 0o700


async def test_services_that_remember_where_a_directory_was_count_where_it_is(place):
    root = place.world.user(0)
    other = (await root.mkdir(ROOT, b"other")).inode_id
    await root.create(place.deep, b"seen")  # the service now knows what lies above
    inode = await place.inode(place.deep)
    inode.directory.parent_inode_id = other
    rows = {
        records.dentry_key(place.directory, b"deep"): None,
        records.dentry_key(other, b"deep"): dentry(place.deep, pb.DIRECTORY),
        records.inode_key(place.deep): inode.SerializeToString(),
    }
    await place.change(rows)
    await checker(place.world.engine).run(is_repair=True)
    await root.create(place.deep, b"counted")
    assert await check(place.world.engine) == []


async def test_many_defects_at_once_are_all_repaired(place):
    chosen = [name for name, (_, is_repairable, _) in DEFECTS.items() if is_repairable]
    draw = random.Random(1)
    engine, root = place.world.engine, place.world.user(0)
    for _ in range(10):
        for name in draw.sample(chosen, 5):
            try:
                await DEFECTS[name][2](place)
            except (ValueError, StopIteration, RuntimeError):
                continue  # an earlier one took away what it changes
        report = await checker(engine).run(is_repair=True)
        assert report.left == [], report.left
        assert await check(engine) == []
        assert await root.names(ROOT)


async def test_a_repair_that_came_too_late_changes_nothing(place):
    """Whatever changed since the check, the finding is judged anew by the next one."""
    await DEFECTS["too_many_links"][2](place)
    check_ = checker(place.world.engine)
    report = await check_.run(is_repair=False)
    await place.set_inode(place.linked, nlink=3)
    before = await place.world.dump()
    assert not await check_._repair(report.findings[0], None)
    assert await place.world.dump() == before


@pytest.mark.slow
async def test_repairs_are_idempotent():
    for name, (_, is_repairable, plant) in DEFECTS.items():
        if (
            not is_repairable
            or "counted" in name
            or name in {"usage_forgotten", "length_changed_behind"}
        ):
            continue
        world = World(MemoryEngine(SimulatedClock()))
        await world.initialise()
        other = await furnish(world)
        await plant(other)
        check_ = checker(world.engine)
        report = await check_.run(is_repair=False)
        for finding in report.findings:
            if finding.adds:
                continue
            await check_._repair(finding, None)
            once = await world.dump()
            if await check_._repair(finding, None):
                twice = await world.dump() | {
                    records.USAGE_EPOCH_KEY: once[records.USAGE_EPOCH_KEY]
                }
                assert twice == once, finding


@pytest.mark.parametrize("run_count", [1, 3, 400_000])
async def test_sorting_on_disk_and_in_memory_find_the_same(place, run_count):
    await DEFECTS["one_name_of_three_lost"][2](place)
    sorter = Sorter(run_count)
    async with open_snapshot(place.world.engine, inline_runtime()) as snapshot:
        found = [f async for f in Scan(snapshot, sorter).findings()]
    sorter.close()
    assert [f.kind for f in found] == [Kind.WRONG_NLINK]


@pytest.mark.slow
async def test_a_check_while_others_write_finds_nothing(lab):
    """On every engine: names, links, lengths and directories change all the time."""
    world = World(PausableEngine(lab.engine, RealClock()))
    await world.initialise()
    async with trio.open_nursery() as nursery:
        for number in range(3):
            nursery.start_soon(churn, world, number)
        while len(await dump(lab.engine)) < SHARD_COUNT + 100:  # noqa: ASYNC110 - nobody tells
            await trio.sleep(0.01)
        for _ in range(2):
            check_ = Check(lab.engine, inline_runtime(), may_pause=True)
            report = await check_.run(is_repair=False)
            assert report.findings == []
            assert report.row_count > 50
        nursery.cancel_scope.cancel()


async def test_counters_are_repaired_while_others_change_them():
    """Repairs add what was missing: what others add meanwhile stays counted."""
    engine = MemoryEngine(SimulatedClock())
    world = World(engine)
    await world.initialise()
    async with trio.open_nursery() as nursery:
        for number in range(3):
            nursery.start_soon(churn, world, number)
        await trio.sleep(0.05)
        tr = engine.transaction()
        tr.atomic_add(records.INODE_COUNT_KEY, 11)
        tr.atomic_add(records.usage_key(ROOT, records.KIND_BYTES), -12345)
        tr.atomic_add(records.subdirectory_count_key(ROOT), 3)
        await tr.commit()
        report = await Check(engine, inline_runtime(), is_paced=False).run(is_repair=True)
        kinds = {finding.kind for finding in report.findings}
        nursery.cancel_scope.cancel()
    assert kinds == {Kind.WRONG_INODE_COUNT, Kind.WRONG_USAGE, Kind.WRONG_SUBDIRECTORIES}
    assert report.left == []
    assert await check(engine) == []
