"""The transactions of garbage collection: what they read, what they leave alone,
whom they conflict with.
"""
# ruff: noqa: ARG001 - a test that sleeps names the clock it wants

import pytest
import trio

from fs.kv.transaction import BufferedTransaction
from fs.meta import records
from fs.meta.ops.retire import SESSIONS_MAX
from fs.schema.inode import is_bare
from fs.schema.proto import meta_pb2 as meta
from tests.meta.harness import ROOT, session
from tests.meta.test_gc import collect_all, keys


async def test_no_range_is_cleared(world, root, autojump_clock, monkeypatch):
    """The embedded store would forget all rows that it remembers,
    and whoever works meanwhile read his anew.
    """
    f = await root.create(ROOT, b"f")
    plain = await root.create(ROOT, b"plain")
    d = await root.mkdir(ROOT, b"d")
    for inode in (f, d):
        request = meta.SetXattrReq(inode_id=inode.inode_id, name=b"user.x", value=b"v")
        await root.call("set_xattr", request)
    assert is_bare(plain) and not is_bare(await root.attr(f.inode_id))
    await root.open(d.inode_id, wants_read=True, session=session(1, is_write=False))
    await root.mkdir(d.inode_id, b"below")
    for name in (b"f", b"plain"):
        await root.unlink(ROOT, name)
    await root.remove_tree(ROOT, b"d")
    ranges = []
    monkeypatch.setattr(
        BufferedTransaction, "clear_range", lambda _, *bounds: ranges.append(bounds)
    )
    await trio.sleep(61)
    await collect_all(world)
    assert ranges == []
    for prefix in (b"GC", b"XATR", b"INOS"):
        assert not await keys(world, prefix)


@pytest.mark.parametrize("other_count", [3, SESSIONS_MAX + 1])
async def test_what_lies_between_removed_files_is_told_apart(
    world, root, autojump_clock, other_count
):
    names = [b"%d" % number for number in range(6)]
    made = [await root.create(ROOT, name) for name in names]
    held = await root.create(ROOT, b"held", wants_write=True, session=session(0))
    busy = await root.create(ROOT, b"busy")
    for number in range(other_count):
        await root.open(busy.inode_id, wants_read=True, session=session(1 + number, is_write=False))
    last = await root.create(ROOT, b"last")
    for name in (*names, b"held", b"last"):
        await root.unlink(ROOT, name)
    await trio.sleep(61)
    await collect_all(world)
    assert set(world.chunks.removed) == {inode.inode_id for inode in (*made, last)}
    assert (await root.attr(held.inode_id)).nlink == 0
    assert len(await keys(world, b"INOS")) == other_count + 1
    await root.close(held.inode_id, session(0).session_id)
    await trio.sleep(30)
    await collect_all(world)
    assert held.inode_id in world.chunks.removed


async def test_who_opens_a_file_while_it_is_deleted_keeps_it(
    world, root, autojump_clock, monkeypatch
):
    """He has it since its name was there, and his session comes after the look at those of it."""
    f, g = [await root.create(ROOT, name) for name in (b"f", b"g")]
    for name in (b"f", b"g"):
        await root.unlink(ROOT, name)
    await trio.sleep(61)
    commit, is_opened = BufferedTransaction.commit, False

    async def opened_before(self):
        nonlocal is_opened
        if not is_opened and records.inode_key(g.inode_id) in self._buffer.points:
            is_opened = True
            await root.open(g.inode_id, wants_read=True, session=session(1, is_write=False))
        return await commit(self)

    monkeypatch.setattr(BufferedTransaction, "commit", opened_before)
    await collect_all(world)
    assert is_opened and world.chunks.removed == [f.inode_id]
    assert (await root.attr(g.inode_id)).nlink == 0
