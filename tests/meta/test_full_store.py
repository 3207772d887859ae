"""A store whose disk is full: nothing is made, what is there is removed, and collected."""
# ruff: noqa: ARG001 - a test that sleeps names the clock it wants

import errno

import pytest
import trio

from fs.kv import log_room
from fs.kv.faulty import FaultyEngine
from fs.kv.rocksdb import RocksDbEngine
from fs.meta.check import check
from fs.mgmtd.store import KEY_BEGINNINGS
from fs.schema.config import KvSection
from fs.schema.status import Status
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
