# ruff: noqa: ARG001 - pytest-trio finds the virtual clock among a test's own arguments
"""A file that becomes immutable while programs have it open for writing."""

import pytest

from fs.client.vfs.allocation import FallocateMode
from fs.client.vfs.changing_attributes import AttrChange
from fs.schema.status import FsError, Status

from .conftest import ROOT, A

IMMUTABLE = 0x10
PUNCH = FallocateMode.PUNCH_HOLE | FallocateMode.KEEP_SIZE


async def refused(call, *args):
    with pytest.raises(FsError) as raised:
        await call(*args)
    assert raised.value.status is Status.NOT_PERMITTED


async def test_who_had_it_open_writes_no_more(autojump_clock, mounts):
    """As with ext4 and XFS; what was written before is not lost."""
    async with mounts() as m:
        handle_id = await m.create(b"f")
        appending = (await m.open(b"f", A)).handle_id
        other = await m.create(b"other")
        await m.files.write(other, 0, b"o" * 10)
        await m.files.write(handle_id, 0, b"before")
        inode_id = m.files.handle(handle_id).state.inode_id
        await m.names.setattr(inode_id, AttrChange(iflags=IMMUTABLE), None, ROOT)
        for one in (handle_id, appending):
            await refused(m.files.write, one, 0, b"later")
            await refused(m.files.write_unbuffered, one, 0, b"later")
            with pytest.raises(FsError, match="immutable"):
                m.files.write_now(one, 0, b"later")
            await refused(m.vfs.allocation.fallocate, one, PUNCH, 0, 3)
        await refused(m.vfs.copying.copy, other, 0, handle_id, 0, 5)
        for one in (appending, handle_id, other):
            await m.close(one)
        assert await m.read_file(b"f") == b"before"


async def test_it_can_be_written_again_once_it_may_be_changed(autojump_clock, mounts):
    async with mounts() as m:
        handle_id = await m.create(b"f")
        inode_id = m.files.handle(handle_id).state.inode_id
        await m.names.setattr(inode_id, AttrChange(iflags=IMMUTABLE), None, ROOT)
        await refused(m.files.write, handle_id, 0, b"1")
        await m.names.setattr(inode_id, AttrChange(iflags=0), None, ROOT)
        await m.files.write(handle_id, 0, b"2")
        await m.close(handle_id)
        assert await m.read_file(b"f") == b"2"


async def test_what_was_changed_through_a_map_before_is_taken(autojump_clock, mounts):
    """The kernel may send it only now."""
    async with mounts() as m:
        handle_id = await m.create(b"f")
        await m.files.write(handle_id, 0, b"text")
        inode_id = m.files.handle(handle_id).state.inode_id
        await m.names.setattr(inode_id, AttrChange(iflags=IMMUTABLE), None, ROOT)
        await m.files.write_mapped(handle_id, 0, b"TE")
        await m.close(handle_id)
        assert await m.read_file(b"f") == b"TExt"


async def test_another_mount_refuses_once_it_has_looked(autojump_clock, mounts):
    async with mounts(2) as (one, two):
        handle_id = await one.create(b"f")
        inode_id = one.files.handle(handle_id).state.inode_id
        await two.names.setattr(inode_id, AttrChange(iflags=IMMUTABLE), None, ROOT)
        await one.names.getattr(inode_id, ROOT)
        await refused(one.files.write, handle_id, 0, b"later")
        await one.close(handle_id)
