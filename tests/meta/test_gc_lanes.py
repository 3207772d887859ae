"""What is large is collected beside what is not: neither waits for the other."""
# ruff: noqa: ARG001 - a test that sleeps names the clock it wants

import pytest
import trio

from fs.meta import gc, records
from fs.meta.check import check
from fs.meta.ops.retire import pull_in
from fs.runtime.figures import Figures
from fs.schema import metrics
from fs.schema.layout import MIB
from fs.schema.proto.record_pb2 import GcRecordPb
from tests.meta.harness import ROOT, hint, session
from tests.meta.test_gc import collect_all, keys

LARGE = 64 * MIB
SMALL_COUNT = 24
BATCH_S = 10.0
"""What the chunks of one batch of files take to remove."""


@pytest.fixture
def slow_trees(monkeypatch):
    """What is emptied, in order: each batch of names takes its time."""
    emptied, empty = [], gc.empty_tree

    async def slowly(tr, ctx, key, count, after):
        await trio.sleep(BATCH_S)
        emptied.append(records.gc_inode_id(key))
        return await empty(tr, ctx, key, count, after)

    monkeypatch.setattr(gc, "empty_tree", slowly)
    return emptied


@pytest.fixture
def slow(world, monkeypatch):
    """Batches of two, each of which takes its time."""
    remove = world.chunks.remove_files

    async def slowly(files):
        await trio.sleep(BATCH_S)
        await remove(files)

    monkeypatch.setattr(world.chunks, "remove_files", slowly)
    world.meta.adopt(world.config.meta.__class__(gc_batch_count=2))


async def make_file(root, parent, name, length):
    inode_id = (await root.create(parent, name)).inode_id
    await root.sync(inode_id, has_new_data=True, length_hint=hint(length))
    return inode_id


async def remove_small(root, count=SMALL_COUNT):
    made = [await make_file(root, ROOT, b"%d" % number, LARGE - 1) for number in range(count)]
    for number in range(count):
        await root.unlink(ROOT, b"%d" % number)
    return made


async def remove_large(root, name=b"large", length=LARGE):
    inode_id = await make_file(root, ROOT, name, length)
    await root.unlink(ROOT, name)
    return inode_id


async def test_a_large_file_does_not_wait_for_small_ones(
    world, root, autojump_clock, nursery, slow
):
    """It waited for all that had been removed before it, and gave back more than all of them."""
    small, large = await remove_small(root), await remove_large(root)
    nursery.start_soon(world.meta.gc.run)
    await trio.sleep(60 + BATCH_S + 3)
    assert large in world.chunks.removed and len(world.chunks.removed) < 10
    await trio.sleep(SMALL_COUNT / 2 * (BATCH_S + 1))
    assert sorted(world.chunks.removed) == sorted([*small, large])
    assert not await keys(world, b"GC")


async def test_small_files_do_not_wait_for_large_ones(world, root, autojump_clock, nursery, slow):
    large = [await remove_large(root, b"large-%d" % number) for number in range(SMALL_COUNT)]
    small = await remove_small(root, 2)
    nursery.start_soon(world.meta.gc.run)
    await trio.sleep(60 + BATCH_S + 3)
    assert set(small) <= set(world.chunks.removed) and len(world.chunks.removed) < 10
    await trio.sleep(SMALL_COUNT / 2 * (BATCH_S + 1))
    assert sorted(world.chunks.removed) == sorted([*small, *large])


async def remove_tree(root, name, length):
    """Remove a directory with two directories with a file each."""
    top = (await root.mkdir(ROOT, name)).inode_id
    made = []
    for number in range(2):
        inner = (await root.mkdir(top, b"%d" % number)).inode_id
        made.append(await make_file(root, inner, b"f", length))
    await root.remove_tree(ROOT, name)
    return made


async def test_a_tree_of_large_files_does_not_wait_for_other_trees(
    world, root, autojump_clock, nursery, slow_trees
):
    world.meta.adopt(world.config.meta.__class__(gc_batch_count=2))
    for number in range(12):
        await remove_tree(root, b"%d" % number, 1)
    large = await remove_tree(root, b"large", 3 * LARGE)
    nursery.start_soon(world.meta.gc.run)
    await trio.sleep(4 * BATCH_S + 3)
    assert len(await keys(world, b"DENT")) > 15 and len(slow_trees) < 10
    below = [key for key in await keys(world, records.GC_FILE) if records.is_gc_large(key)]
    assert [records.gc_inode_id(key) for key in below] == large
    await trio.sleep(60 + 2 * BATCH_S)
    assert set(large) <= set(world.chunks.removed)
    await trio.sleep(70 * BATCH_S)
    assert not await keys(world, b"GC") and not await keys(world, b"DENT")
    assert len(world.chunks.removed) == 26


@pytest.mark.parametrize(
    ("length", "is_in_lane"), [(0, False), (LARGE - 1, False), (LARGE, True), (1 << 45, True)]
)
async def test_the_lane_of_a_file(world, root, length, is_in_lane):
    await remove_large(root, length=length)
    (key,) = await keys(world, records.GC_FILE)
    assert records.is_gc_large(key) is is_in_lane
    tr = world.engine.transaction()
    record = GcRecordPb.FromString(await tr.get(key))
    assert record.byte_count == length
    assert record.removed_ns == records.gc_due_ns(key) - 60 * 10**9


async def test_holes_are_not_what_makes_a_file_large(world, root):
    inode_id = (await root.create(ROOT, b"f")).inode_id
    await root.set_attr(inode_id, length=1 << 40)
    await root.unlink(ROOT, b"f")
    (key,) = await keys(world, records.GC_FILE)
    assert not records.is_gc_large(key)


async def test_what_grows_while_it_is_open_changes_its_lane(world, root, autojump_clock):
    """Also of a file that may get a name: a name finds its record wherever that is."""
    f = await root.create(ROOT, b"f", wants_write=True, session=session(1))
    await root.unlink(ROOT, b"f")
    made = await root.create(ROOT, b"", wants_write=True, session=session(2), is_unnamed=True)
    for inode_id in (f.inode_id, made.inode_id):
        await root.sync(inode_id, has_new_data=True, length_hint=hint(LARGE))
    assert not any(map(records.is_gc_large, await keys(world, records.GC_FILE)))
    await trio.sleep(61)
    await collect_all(world)
    assert all(map(records.is_gc_large, await keys(world, records.GC_FILE)))
    assert (await root.link(made.inode_id, ROOT, b"g")).nlink == 1
    assert len(await keys(world, records.GC_FILE)) == 1
    await root.close(f.inode_id, session(1).session_id)
    await trio.sleep(11)
    await collect_all(world)
    assert world.chunks.removed == [f.inode_id]


async def test_an_earlier_release_collects_what_is_large_a_while_later(world, root, autojump_clock):
    """To it the record seems to be due in a hundred years:
    it has it be due after the usual delay, in the one lane it knows.
    """
    made = await root.create(ROOT, b"", wants_write=True, session=session(2), is_unnamed=True)
    await root.sync(made.inode_id, has_new_data=True, length_hint=hint(LARGE))
    await trio.sleep(61)
    await collect_all(world)
    large = await remove_large(root)
    found = await keys(world, records.GC_FILE)
    assert all(map(records.is_gc_large, found))
    now_ns = world.meta.service.own_context().now_ns
    assert all(records.gc_turn_of(key) > now_ns + 10**18 for key in found)
    in_order = records.gc_key(records.GC_FILE, now_ns + 60 * 10**9, 0)
    assert in_order < min(found)  # it looks from there on for clocks that were ahead
    tr = world.engine.transaction()
    for key in found:  # as it does
        value = await tr.get(key)
        tr.clear(key)
        inode_id = records.gc_inode_id(key)
        tr.set(records.gc_key(records.GC_FILE, now_ns + 60 * 10**9, inode_id), value)
    await tr.commit()
    await trio.sleep(61)
    await collect_all(world)
    assert world.chunks.removed == [large]


async def test_a_clock_that_was_ahead_is_put_right_in_each_lane(world, root, autojump_clock):
    await remove_small(root, 1)
    await remove_large(root)
    found = await keys(world, records.GC_FILE)
    tr = world.engine.transaction()
    await pull_in(tr, found, world.meta.service.own_context().now_ns + 10**18)
    await tr.commit()
    await collect_all(world)
    left = await keys(world, records.GC_FILE)
    assert [records.is_gc_large(key) for key in left] == [False, True]
    assert not world.chunks.removed
    await trio.sleep(61)
    await collect_all(world)
    assert len(world.chunks.removed) == 2


async def test_where_space_is_short_a_large_file_goes_soon(
    world, root, autojump_clock, nursery, slow
):
    async def short():
        return 1000, 90

    world.chunks.space = short
    nursery.start_soon(world.meta.gc.run)
    await remove_small(root)
    large = await remove_large(root)
    await trio.sleep(gc.FULL_DELAY_S + BATCH_S + 3)
    assert large in world.chunks.removed and len(world.chunks.removed) < 10


async def test_a_key_that_can_be_none_hurts_nobody_where_space_is_short(
    world, root, autojump_clock
):
    """Looking for its time ended the collector."""
    world.meta.gc._is_space_low = True

    async def short():
        return 1000, 90

    world.chunks.space = short
    now_ns = world.meta.service.own_context().now_ns
    key = records.gc_key(records.GC_FILE, now_ns + 30 * 10**9, 1)[:-1]
    tr = world.engine.transaction()
    tr.set(key, b"")
    await tr.commit()
    await world.meta.gc.step()
    tr = world.engine.transaction()
    tr.clear(key)
    await tr.commit()


async def test_services_share_both_lanes(world, root, autojump_clock):
    small, large = await remove_small(root, 20), await remove_large(root)
    await trio.sleep(61)
    other = world.new_meta()
    async with trio.open_nursery() as both:
        both.start_soon(world.meta.gc.step)
        both.start_soon(other.gc.step)
    await collect_all(world)
    assert set(world.chunks.removed) == {*small, large}
    assert not await keys(world, b"GC") and await check(world.engine) == []


async def test_how_much_waits_is_counted(world, root, autojump_clock, monkeypatch):
    monkeypatch.setattr(gc, "WAITING_COUNT", 4)
    await remove_small(root, 9)
    await remove_large(root)
    await root.mkdir(ROOT, b"d")
    await root.remove_tree(ROOT, b"d")
    monkeypatch.setattr(gc, "WAITING_PAGES_MAX", 3)
    for _ in range(2):  # a page of directories, three of files
        await world.meta.gc._count_waiting()
    known = world.meta.gc._waiting.known
    assert known[records.GC_FILE, False] == gc.Waiting(9, 9 * (LARGE - 1))
    assert known[records.GC_FILE, True] == gc.Waiting(1, LARGE)
    assert known[records.GC_DIRECTORY, False] == gc.Waiting(1, 0)
    figures = Figures()
    world.meta.gc.say(figures)
    assert figures.numbers[metrics.GC_WAITING]["file",] == 9
    assert figures.numbers[metrics.GC_WAITING_BYTES] == {
        ("file",): 9 * (LARGE - 1),
        ("large file",): LARGE,
    }
    await trio.sleep(61)
    await collect_all(world)
    await world.meta.gc._count_waiting()
    assert set(map(repr, world.meta.gc._waiting.known.values())) == {repr(gc.Waiting())}
