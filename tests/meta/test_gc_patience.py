"""What was removed waits to be collected while users ask for something:
not for long, and not where space is short.
"""
# ruff: noqa: ARG001 - a test that sleeps names the clock it wants

import pytest
import trio

from fs.admin.gc_pause import pause_until
from fs.meta import records
from fs.meta.gc import FULL_DELAY_S
from fs.schema.status import FsError, Status
from tests.meta.harness import ROOT, session

pytestmark = pytest.mark.thorough

DUE_S = 60.0
"""After a removal."""
WAITS_S = 30.0
"""And so much longer, at most."""


async def ask_on(root):
    """Ask for something all the time."""
    while True:
        await root.attr(ROOT)
        await trio.sleep(0.04)


async def remove_one(world, root, nursery):
    """Have the collector run, and a file removed; return what tells whether it has gone."""
    nursery.start_soon(world.meta.gc.run)
    f = await root.create(ROOT, b"f")
    await root.unlink(ROOT, b"f")
    return lambda: f.inode_id in world.chunks.removed


async def test_what_is_due_waits_for_users_and_not_for_long(world, root, autojump_clock, nursery):
    is_gone = await remove_one(world, root, nursery)
    nursery.start_soon(ask_on, root)
    await trio.sleep(DUE_S + WAITS_S - 1)
    assert not is_gone()
    assert (
        world.meta.gc.lanes[1].due[b"GCFI"].count == 1
        and world.meta.gc.lanes[1].due[b"GCFI"].lag_s > 20
    )
    await trio.sleep(4)
    assert is_gone()


async def test_it_goes_as_soon_as_users_do(world, root, autojump_clock, nursery):
    is_gone = await remove_one(world, root, nursery)
    with trio.move_on_after(DUE_S + 5):
        await ask_on(root)
    assert not is_gone()
    await trio.sleep(3)
    assert is_gone()


async def test_a_few_requests_keep_nothing(world, root, autojump_clock, nursery):
    is_gone = await remove_one(world, root, nursery)
    with trio.move_on_after(DUE_S + 3):
        while True:
            await root.attr(ROOT)
            await trio.sleep(0.2)
    assert is_gone()


@pytest.mark.parametrize("space", ["short", "of no node", "unknown"])
async def test_nothing_waits_where_space_is_short(world, root, autojump_clock, nursery, space):
    async def unknown():
        raise FsError(Status.CHAIN_UNAVAILABLE, "all dead")

    async def short():
        return (1000, 90) if space == "short" else (0, 0)

    world.chunks.space = unknown if space == "unknown" else short
    is_gone = await remove_one(world, root, nursery)
    nursery.start_soon(ask_on, root)
    await trio.sleep(DUE_S + 3)
    assert is_gone()


async def few_free():
    return 1000, 90


async def test_where_space_is_short_who_makes_room_soon_has_it(
    world, root, autojump_clock, nursery
):
    """A full disk stayed full for a minute after files had been removed from it."""
    world.meta.adopt(world.config.meta.__class__(gc_batch_count=2))
    world.chunks.space = few_free
    nursery.start_soon(world.meta.gc.run)
    made = [(await root.create(ROOT, b"%d" % number)).inode_id for number in range(9)]
    for number in range(9):
        await root.unlink(ROOT, b"%d" % number)
    await trio.sleep(FULL_DELAY_S - 1)
    assert not world.chunks.removed  # somebody may be at the end of it
    await trio.sleep(3)
    assert sorted(world.chunks.removed) == sorted(made)


async def test_what_is_open_stays_where_space_is_short_and_holds_nothing_up(
    world, root, autojump_clock, nursery
):
    world.meta.adopt(world.config.meta.__class__(gc_batch_count=2))
    world.chunks.space = few_free
    nursery.start_soon(world.meta.gc.run)
    opened = []
    for number in range(5):
        f = await root.create(ROOT, b"%d" % number, session=session(number))
        opened.append(f.inode_id)
        await root.unlink(ROOT, b"%d" % number)
    other = await root.create(ROOT, b"other")
    await root.unlink(ROOT, b"other")
    await trio.sleep(FULL_DELAY_S + 2)
    assert world.chunks.removed == [other.inode_id]
    await root.close(opened[0], session(0).session_id)
    await trio.sleep(world.config.meta.session_scan_interval_s + 3)
    assert world.chunks.removed == [other.inode_id, opened[0]]


@pytest.mark.parametrize("space", [(1000, 110), (0, 0), None])
async def test_nothing_goes_before_its_time_where_space_is_not_known_to_be_short(
    world, root, autojump_clock, nursery, space
):
    async def told():
        if space is None:
            raise FsError(Status.CHAIN_UNAVAILABLE, "all dead")
        return space

    world.chunks.space = told
    is_gone = await remove_one(world, root, nursery)
    await trio.sleep(DUE_S - 2)
    assert not is_gone()
    await trio.sleep(4)
    assert is_gone()


async def test_a_pause_holds_where_space_is_short(world, root, autojump_clock, nursery):
    world.chunks.space = few_free
    await pause_until(world.engine, world.runtime, world.runtime.clock.wall_ns() + 20 * 10**9)
    is_gone = await remove_one(world, root, nursery)
    await trio.sleep(18)
    assert not is_gone()
    await trio.sleep(4)
    assert is_gone()


async def test_what_was_due_for_long_goes_at_once_however_much_it_is(
    world, root, autojump_clock, nursery
):
    world.meta.adopt(world.config.meta.__class__(gc_batch_count=2))
    for number in range(9):
        await root.create(ROOT, b"%d" % number)
        await root.unlink(ROOT, b"%d" % number)
    await trio.sleep(DUE_S + WAITS_S + 1)
    nursery.start_soon(ask_on, root)
    nursery.start_soon(world.meta.gc.run)
    await trio.sleep(0.5)
    assert len(world.chunks.removed) == 9


async def test_each_batch_is_looked_for_behind_the_one_before_and_what_comes_late_is_found(
    world, root, autojump_clock, nursery, monkeypatch
):
    """A store passes over all that was deleted in between,
    and that is the more the more has been collected.
    """
    gc = world.meta.gc
    world.meta.adopt(world.config.meta.__class__(gc_batch_count=2))
    made = []
    for number in range(9):
        made.append((await root.create(ROOT, b"%d" % number)).inode_id)
        await root.unlink(ROOT, b"%d" % number)
    late_key, *due_keys = await files_due(world)
    late = await taken_out(world, late_key)
    await trio.sleep(DUE_S + 1)
    begins, look = [], gc._range

    async def looked(begin, end, limit):
        is_batch = limit == 2  # what waits is counted besides
        if is_batch and begin.startswith(records.GC_FILE) and begin < due_keys[-1] + b"\xff":
            begins.append(begin)
        return await look(begin, end, limit)

    monkeypatch.setattr(gc, "_range", looked)
    nursery.start_soon(gc.run)
    await trio.sleep(0.5)
    assert begins == [records.GC_FILE, *(key + b"\x00" for key in due_keys[1::2])]
    # As of a service whose clock is behind.
    tr = world.engine.transaction()
    tr.set(late_key, late)
    await tr.commit()
    await trio.sleep(1)
    assert sorted(world.chunks.removed) == sorted(made)


async def files_due(world):
    tr = world.engine.transaction()
    return [key for key, _ in await tr.get_range(records.GC_FILE, records.GC_FILE + b"\xff")]


async def taken_out(world, key):
    """Remove a record for a while; return what it says."""
    tr = world.engine.transaction()
    value = await tr.get(key)
    tr.clear(key)
    await tr.commit()
    return value


async def remove_deep(root, level_count: int) -> None:
    directory_id = (await root.mkdir(ROOT, b"deep")).inode_id
    for _ in range(level_count):
        directory_id = (await root.mkdir(directory_id, b"d")).inode_id
    await root.remove_tree(ROOT, b"deep")


@pytest.mark.parametrize("is_asked", [False, True])
async def test_a_deep_tree_waits_once(world, root, autojump_clock, nursery, is_asked):
    """Each of its levels waited for an interval of the collector, or as long as it waits for
    users: a thousand of them for hours.
    """
    await remove_deep(root, 200)
    nursery.start_soon(world.meta.gc.run)
    if is_asked:
        nursery.start_soon(ask_on, root)
    await trio.sleep(2 * WAITS_S if is_asked else 5)
    assert not [key for key in await world.dump() if key.startswith(records.GC_DIRECTORY)]


async def test_a_deep_tree_keeps_no_other_waiting(world, root, autojump_clock):
    """What another one removes meanwhile comes in between its levels."""
    await remove_deep(root, 50)
    await trio.sleep(100)
    other = (await root.mkdir(ROOT, b"other")).inode_id
    await root.create(other, b"f")
    await root.remove_tree(ROOT, b"other")
    await trio.sleep(WAITS_S + 1)
    collector = world.meta.gc
    for _ in range(2):
        await collector._empty_trees(collector.lanes[1])
    left = [key for key in await world.dump() if key.startswith(records.GC_DIRECTORY)]
    assert other not in [records.gc_inode_id(key) for key in left] and left
