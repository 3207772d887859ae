"""A store whose disk is full: nothing is made, what is there is removed, and collected."""
# ruff: noqa: ARG001 - a test that sleeps names the clock it wants

import errno

import pytest
import trio

from fs.kv import log_room
from fs.kv.faulty import FaultyEngine
from fs.kv.rocksdb import RocksDbEngine
from fs.meta import records
from fs.meta.check import check
from fs.mgmtd.store import KEY_BEGINNINGS
from fs.schema.config import KvSection
from fs.schema.proto import meta_pb2 as meta
from fs.schema.proto.common_pb2 import FileLockPb, LockKindPb
from fs.schema.status import FsError, Status
from tests.kv.harness import CLUSTER_ID, inline_runtime
from tests.meta.harness import ROOT, World, refused, session


class Full:
    """What answers where blocks are to be set aside."""

    @staticmethod
    def fallocate(*_: int) -> int:
        log_room.ctypes.set_errno(errno.ENOSPC)
        return -1


@pytest.fixture
async def world(tmp_path):
    store = await RocksDbEngine.open(
        str(tmp_path / "kv"),
        KvSection(),
        inline_runtime(),
        cluster_id=CLUSTER_ID,
        spared=KEY_BEGINNINGS,
    )
    made = World(FaultyEngine(store, None))
    await made.initialise()
    yield made
    assert await check(made.engine) == []
    await store.aclose()


@pytest.fixture
def fill(monkeypatch):
    """Return what takes all room, but what is set aside."""

    def fill():
        monkeypatch.setattr(log_room, "_libc", Full)
        monkeypatch.setattr(log_room, "AHEAD_BYTES_MIN", 1 << 40)

    return fill


async def test_what_is_removed_is_gone_and_collected(world, autojump_clock, fill):
    root = world.user(0)
    directory = (await root.mkdir(ROOT, b"d")).inode_id
    files = [(await root.create(ROOT, name)).inode_id for name in (b"a", b"b", b"cut")]
    opened, cut = files[1:]
    await root.open(opened, wants_write=True, session=session(1))
    tree = (await root.mkdir(ROOT, b"tree")).inode_id
    below = (await root.create(tree, b"below")).inode_id
    for inode_id in (*files, below):
        world.chunks.lengths[inode_id] = 10
        await root.set_attr(inode_id, length=10)

    fill()
    with refused(Status.NO_SPACE, "ENOSPC"):
        await root.create(ROOT, b"new")
    with refused(Status.NO_SPACE, "ENOSPC"):
        await root.set_attr(cut, length=20)
    assert "names are removed, but not made" in world.engine.trouble

    await root.set_attr(cut, length=0)
    await root.unlink(ROOT, b"a")
    await root.unlink(ROOT, b"b")
    await root.close(opened, session_id=session(1).session_id)
    await root.remove_tree(ROOT, b"tree")
    await root.rmdir(ROOT, b"d")
    for _ in range(2):  # what was below the tree is due later
        await trio.sleep(100)
        while await world.meta.gc.step():
            assert await check(world.engine) == []
    assert sorted(world.chunks.removed) == sorted([*files[:2], below])
    assert (await root.attr(cut)).file.length == 0
    for inode_id in (directory, tree):
        with refused(Status.STALE, "ESTALE"):
            await root.attr(inode_id)
    with refused(Status.NO_SPACE, "ENOSPC"):
        await root.create(ROOT, b"new")


async def test_a_name_that_another_client_may_take_for_there_is_removed(
    world, autojump_clock, fill
):
    root, other = world.user(0), world.user(0, client="d" * 32)
    directory = (await root.mkdir(ROOT, b"d", 0o777, wants_name_lease=True)).inode_id
    await root.create(directory, b"a")
    fill()
    await other.unlink(directory, b"a")
    assert world.meta.service.name_leases.ended_count == 1


async def files_due(world) -> list[bytes]:
    tr = world.engine.transaction()
    return [key for key, _ in await tr.get_range(records.GC_FILE, records.GC_FILE + b"\xff")]


async def collect_for(world, seconds: float) -> None:
    for _ in range(int(seconds)):
        await trio.sleep(1)
        while await world.meta.gc.step():
            assert await check(world.engine) == []


@pytest.mark.parametrize("batch_count", [2, 128])
async def test_what_is_open_takes_no_room_from_what_frees_some(
    world, autojump_clock, fill, monkeypatch, batch_count
):
    """Their time was set anew every ten seconds:
    some hundred took all that is for removals within hours.
    """
    world.meta.adopt(world.config.meta.__class__(gc_batch_count=batch_count))
    root = world.user(0)
    opened = []
    for number in range(5):
        f = await root.create(ROOT, b"%d" % number, session=session(number))
        opened.append(f.inode_id)
        await root.unlink(ROOT, b"%d" % number)
    for name in (b"a", b"b"):
        await root.create(ROOT, name)
    fill()
    for name in (b"a", b"b"):
        await root.unlink(ROOT, name)
    *of_opened, _, _ = await files_due(world)
    await collect_for(world, 100)
    assert len(world.chunks.removed) == 2 and not set(opened) & set(world.chunks.removed)
    assert await files_due(world) == of_opened

    await root.close(opened[0], session(0).session_id)
    await collect_for(world, 12)
    assert opened[0] in world.chunks.removed
    assert await files_due(world) == of_opened[1:]

    monkeypatch.undo()  # there is room again
    await trio.sleep(1)
    await collect_for(world, 12)
    left = await files_due(world)
    assert len(left) == 4 and not set(left) & set(of_opened)


async def test_chunks_that_cannot_be_removed_take_no_room_from_what_frees_some(
    world, autojump_clock, fill
):
    root = world.user(0)
    stuck = (await root.create(ROOT, b"stuck")).inode_id
    fill()
    await root.unlink(ROOT, b"stuck")
    (key,) = await files_due(world)
    await trio.sleep(61)
    world.chunks.error = FsError(Status.CHAIN_UNAVAILABLE, "dead")
    await collect_for(world, 30)
    assert await files_due(world) == [key]
    world.chunks.error = None
    await collect_for(world, 12)
    assert world.chunks.removed == [stuck] and not await files_due(world)


async def test_chunks_whose_removal_fails_slowly_have_turns_with_all_others(
    world, autojump_clock, fill, nursery
):
    """The first ones were tried again and again:
    by the time that the next had failed, they were not passed over any more.
    """
    world.meta.adopt(world.config.meta.__class__(gc_batch_count=2))
    root = world.user(0)
    made = [(await root.create(ROOT, b"%d" % number)).inode_id for number in range(7)]
    fill()
    for number in range(7):
        await root.unlink(ROOT, b"%d" % number)
    remove = world.chunks.remove_files

    async def remove_late(files):
        if any(file.inode_id in made[:6] for file in files):
            await trio.sleep(15)
            raise FsError(Status.CHAIN_UNAVAILABLE, "dead")
        await remove(files)

    world.chunks.remove_files = remove_late
    await trio.sleep(61)
    nursery.start_soon(world.meta.gc.run)
    await trio.sleep(60)
    assert world.chunks.removed == [made[6]]
    world.chunks.remove_files = remove
    await trio.sleep(60)
    assert sorted(world.chunks.removed) == made


async def test_a_damaged_record_holds_nothing_up_where_it_cannot_be_put_off(
    world, autojump_clock, fill
):
    root = world.user(0)
    removed = (await root.create(ROOT, b"f")).inode_id
    tree = (await root.mkdir(ROOT, b"tree")).inode_id
    await root.create(tree, b"below")
    tr = world.engine.transaction()
    damaged = [records.gc_key(prefix, 1, 77) for prefix in (records.GC_FILE, records.GC_DIRECTORY)]
    for key in damaged:
        tr.set(key, b"\xff\xff")
    await tr.commit()
    fill()
    await root.unlink(ROOT, b"f")
    await root.remove_tree(ROOT, b"tree")
    for _ in range(130):
        await trio.sleep(1)
        while await world.meta.gc.step():
            pass
    assert removed in world.chunks.removed and len(world.chunks.removed) == 2
    tr = world.engine.transaction()
    for key in damaged:
        assert await tr.get(key) is not None
        tr.clear(key)
    tr.mark_freeing()
    await tr.commit()


def lock(inode_id, number=1, **fields):
    taken = FileLockPb(kind=LockKindPb.POSIX_LOCK, owner=number, last=2**63 - 1, is_write=True)
    return meta.SetLockReq(inode_id=inode_id, lock=taken, **fields)


async def test_locks_are_freed_and_none_is_taken(world, autojump_clock, fill):
    """Who waits for one would wait until there is room."""
    root, gone = world.user(0), world.user(0, client="d" * 32)
    inode_id = (await root.create(ROOT, b"f")).inode_id
    other = (await root.create(ROOT, b"g")).inode_id
    third = (await root.create(ROOT, b"h")).inode_id
    directory = (await root.mkdir(ROOT, b"d")).inode_id
    for user, file_id in ((root, inode_id), (gone, other)):
        assert (await user.call("set_lock", lock(file_id))).is_done
    own = (await root.mkdir(ROOT, b"own")).inode_id
    for user, directory_id in ((root, own), (gone, directory)):
        request = meta.LockDirectoryReq(inode_id=directory_id, action=meta.LOCK_TAKE)
        await user.call("lock_directory", request)
    waiting = lock(inode_id, 2, wait_id=7)
    assert not (await root.call("set_lock", waiting)).is_done
    fill()
    with refused(Status.NO_SPACE, "ENOSPC"):
        await root.call("set_lock", lock(third))
    await root.call("end_lock_wait", meta.EndLockWaitReq(owner=2, wait_id=7))
    assert (await root.call("set_lock", lock(inode_id, is_unlock=True))).is_done
    freeing = meta.LockDirectoryReq(inode_id=own, action=meta.LOCK_FREE)
    await root.call("lock_directory", freeing)
    await trio.sleep(100)
    world.mgmtd.client_ids = [root.client]
    await world.pruner(world.meta.service.now_ns).step()
    found = await world.dump()
    for prefix in (b"FLCK", b"CLCK", b"DLCK", b"LWAI"):
        assert not [key for key in found if key.startswith(prefix)]


async def test_what_was_refused_for_want_of_room_is_so_for_its_earlier_tries(
    world, autojump_clock, fill, monkeypatch
):
    """They may lie at another service until there is room;
    the client has been told that nothing was made.
    """
    root = world.user(0)
    await root.create(ROOT, b"before")
    fill()
    root.request_id, root.is_repeat = b"R" * 16, True
    with refused(Status.NO_SPACE, "ENOSPC"):
        await root.create(ROOT, b"f")
    monkeypatch.undo()
    await trio.sleep(1)
    root.is_repeat = False
    with refused(Status.NO_SPACE, "ENOSPC"):
        await root.create(ROOT, b"f")
    root.request_id = None
    await root.create(ROOT, b"f")
