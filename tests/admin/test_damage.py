"""Services that meet a damaged record: they name it, leave it alone, and go on with the others."""

import pytest
import trio

from fs.admin.fsck import Check
from fs.kv.memory import MemoryEngine
from fs.meta import records
from fs.meta.check import check
from fs.runtime.simulated import SimulatedClock, simulated_runtime
from fs.schema.status import FsError
from tests.admin.namespace import DEFECTS, furnish
from tests.meta.harness import ROOT, World

pytestmark = pytest.mark.thorough


async def collect(world, seconds: float) -> None:
    """Let background work come round, as long as it takes."""
    for _ in range(int(seconds / 10)):
        await trio.sleep(10)
        await world.meta.gc.step()
        await world.meta.trash.step()
        await world.meta.sessions.step()


@pytest.mark.parametrize("name", DEFECTS)
async def test_background_work_goes_on_beside_damage(name, autojump_clock):  # noqa: ARG001
    world = World(MemoryEngine(SimulatedClock()), gc_batch_count=4)
    await world.initialise()
    place = await furnish(world)
    root = world.user(0)
    other = (await root.create(ROOT, b"other")).inode_id
    await root.unlink(ROOT, b"other")
    tree = (await root.mkdir(ROOT, b"other")).inode_id
    await root.mkdir(tree, b"below")
    await root.remove_tree(ROOT, b"other")
    await DEFECTS[name][2](place)
    await collect(world, 100)
    rows = await world.dump()
    assert records.inode_key(other) not in rows
    assert records.inode_key(tree) not in rows
    assert records.inode_key(place.deep) in rows or name == "directory_lost"
    _, is_repairable, _ = DEFECTS[name]
    report = await Check(world.engine, simulated_runtime(None, 1), is_paced=False).run(
        is_repair=True
    )
    if is_repairable:
        assert report.left == []
        await collect(world, 200)
        assert await check(world.engine) == []
        assert not await place.rows(b"GC"), "what was put off is done after the repair"


async def test_a_request_that_meets_damage_is_refused_and_names_it(caplog):
    world = World(MemoryEngine(SimulatedClock()))
    await world.initialise()
    place = await furnish(world)
    await DEFECTS["unreadable_inode"][2](place)
    with pytest.raises(FsError, match=r"METADATA_DAMAGED.*ember fsck.*INOD"):
        await world.user(0).attr(place.file)
    await place.change(dict.fromkeys(await place.rows(records.LINK)))
    with pytest.raises(FsError, match=r"METADATA_DAMAGED.*3 names, and no LINK record"):
        await world.user(0).unlink(place.directory, b"linked")
    await DEFECTS["directories_in_a_loop"][2](place)
    world.meta = world.new_meta()
    with pytest.raises(FsError, match=r"METADATA_DAMAGED.*below itself"):
        await world.user(0).create(place.deep, b"new")
    assert not caplog.records
