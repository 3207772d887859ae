# ruff: noqa: ARG001 - pytest-trio finds the virtual clock among a test's own arguments
"""What the mount itself refuses of append-only files, since nobody else sees it."""

import os

import pytest
import trio

from fs.client.vfs.allocation import FallocateMode
from fs.client.vfs.changing_attributes import AttrChange
from fs.schema.inode import APPEND_ONLY

from .conftest import ROOT, A
from .test_immutable import PUNCH, refused


async def flagged(m, name=b"f"):
    """Make an append-only file of four bytes; return its inode."""
    handle_id = await m.create(name)
    await m.files.write(handle_id, 0, b"text")
    await m.close(handle_id)
    inode_id = (await m.stat(name)).inode_id
    await m.names.setattr(inode_id, AttrChange(iflags=APPEND_ONLY), None, ROOT)
    return inode_id


async def test_a_descriptor_that_gave_up_its_flag_writes_no_more(autojump_clock, mounts):
    """Linux lets fcntl(F_SETFL) take O_APPEND from a descriptor of FUSE,
    which ext4 does not have it do.
    """
    async with mounts() as m:
        await flagged(m)
        handle_id = (await m.open(b"f", A)).handle_id
        await m.files.write(handle_id, 0, b"+1")
        await refused(lambda: m.files.write(handle_id, 0, b"NEW", appends=False))
        assert m.files.write_now(handle_id, 0, b"NEW") is None  # so `write` judges it
        await m.files.write(handle_id, 0, b"+2")
        await m.close(handle_id)
        assert await m.read_file(b"f") == b"text+1+2"


async def test_what_is_changed_by_a_map_is_refused_and_not_shown(autojump_clock, mounts):
    async with mounts() as m:
        inode_id = await flagged(m)
        handle_id = (await m.open(b"f", os.O_RDWR | os.O_APPEND)).handle_id
        m.kernel.content.clear()
        await refused(m.files.write_mapped, handle_id, 0, b"TE")
        await trio.testing.wait_all_tasks_blocked()
        assert m.kernel.content == [inode_id]
        await m.close(handle_id)
        assert await m.read_file(b"f") == b"text"


async def test_what_was_mapped_before_is_taken(autojump_clock, mounts):
    """As by ext4: the kernel may send it by a descriptor from before, or by one from after."""
    async with mounts() as m:
        before = await m.create(b"f")
        await m.files.write(before, 0, b"text")
        inode_id = m.files.handle(before).state.inode_id
        await m.names.setattr(inode_id, AttrChange(iflags=APPEND_ONLY), None, ROOT)
        after = (await m.open(b"f", os.O_RDWR | os.O_APPEND)).handle_id
        await m.files.write_mapped(after, 0, b"TE")
        await m.files.write_mapped(before, 2, b"XT")
        await m.close(before)
        await refused(m.files.write_mapped, after, 0, b"no")
        await m.close(after)
        assert await m.read_file(b"f") == b"TEXT"


@pytest.mark.parametrize("mode", [PUNCH, FallocateMode.ZERO_RANGE])
async def test_nothing_is_cleared_in_it(autojump_clock, mounts, mode):
    async with mounts() as m:
        await flagged(m)
        handle_id = (await m.open(b"f", A)).handle_id
        await refused(m.vfs.allocation.fallocate, handle_id, mode, 0, 3)
        await m.vfs.allocation.fallocate(handle_id, FallocateMode(0), 0, 6)
        await m.close(handle_id)
        assert await m.read_file(b"f") == b"text\0\0"
