# ruff: noqa: ARG001 - pytest-trio finds the virtual clock among a test's own arguments
"""Set-id bits and capabilities go with what is written, and nobody sees them for longer."""

import os

import pytest
import trio

from fs.client.vfs.batches import NO_FILE, BatchIo
from fs.client.vfs.changing_attributes import AttrChange
from fs.client.vfs.ports import Caller

from .conftest import ROOT, RW


async def test_the_kernel_forgets_the_mode_when_set_id_bits_went(autojump_clock, mounts):
    async with mounts() as m:
        own = await m.create(b"f", mode=0o6777)
        inode_id = m.files.handle(own).state.inode_id
        theirs = (await m.files.open(inode_id, RW, Caller(1000, 1000))).handle_id
        for handle_id, forgotten in ((own, []), (theirs, [inode_id])):
            await m.files.write(handle_id, 0, b"1")
            await m.files.flush(handle_id)
            assert m.kernel.attributes == forgotten
        await m.close(own)
        await m.close(theirs)


async def test_set_id_bits_go_before_what_passes_the_page_cache(autojump_clock, mounts):
    async with mounts() as m:
        handle = m.files.handle(await m.create(b"f", RW | os.O_APPEND, mode=0o2644))
        inode_id = handle.state.inode_id
        for mode, after in ((0o2644, 0o2644), (0o6755, 0o755)):
            await m.names.setattr(inode_id, AttrChange(mode=mode), None, ROOT)
            assert m.names.keeps_set_id(handle) == (mode != after)
            await m.names.drop_set_id(handle)
            assert (await m.names.getattr(inode_id, ROOT)).mode == after
        assert m.kernel.attributes == [inode_id]
        await m.close(handle.handle_id)


async def test_a_mode_that_another_mount_has_set_stays_when_set_id_bits_go(autojump_clock, mounts):
    """What this mount knows of the mode may be as old as its open;
    what was closed to others must not open again.
    """
    async with mounts(2) as (one, two):
        handle = one.files.handle(await one.create(b"f", RW | os.O_APPEND, mode=0o4755))
        inode_id = handle.state.inode_id
        await two.names.setattr(inode_id, AttrChange(mode=0o4600), None, ROOT)
        await one.names.drop_set_id(handle)
        assert (await two.names.getattr(inode_id, ROOT)).mode == 0o600
        assert not one.names.keeps_set_id(handle)
        await one.close(handle.handle_id)


@pytest.mark.parametrize("flags", [os.O_APPEND, os.O_DIRECT])
async def test_a_program_changed_past_the_page_cache_loses_its_capabilities(
    autojump_clock, mounts, flags
):
    """Elsewhere the kernel asks for them before it writes."""
    capability = b"security.capability"
    async with mounts() as m:
        plain = await m.create(b"f")
        inode_id = m.files.handle(plain).state.inode_id
        past = (await m.files.open(inode_id, RW | flags, ROOT)).handle_id
        for _ in range(2):
            await m.names.setxattr(inode_id, capability, b"much", ROOT)
            assert m.files.write_now(past, 0, b"x") is None
            await m.files.write(past, 0, b"x")
            assert (inode_id, capability) not in m.cluster.xattrs
        # What is known to be absent is not asked for again.
        await m.files.write(past, 0, b"x")
        asked_count = m.cluster.calls.count("GetXattr")
        await m.files.write(past, 0, b"x")
        assert m.cluster.calls.count("GetXattr") == asked_count
        await m.close(plain)
        await m.close(past)


async def test_set_id_bits_go_by_who_wrote(autojump_clock, mounts):
    """Not by who opened last: root's writing leaves them,
    that of somebody else who met them does not.
    """
    async with mounts() as m:
        own = await m.create(b"f", mode=0o777)
        state = m.files.handle(own).state
        theirs = (await m.files.open(state.inode_id, RW, Caller(1000, 1000))).handle_id
        await m.names.setattr(state.inode_id, AttrChange(mode=0o6777), None, ROOT)
        await m.files.write(own, 0, b"root")
        assert not m.vfs._core.sync_request(state).clears_suid
        await m.files.write(theirs, 0, b"user")
        await m.files.write(own, 0, b"root")
        await m.vfs._core.drain(state)
        assert m.vfs._core.sync_request(state).clears_suid
        # A mode that is set now comes after what was written.
        await m.names.setattr(state.inode_id, AttrChange(mode=0o6777), None, ROOT)
        await m.files.write(own, 0, b"root")
        await m.vfs._core.drain(state)
        request = m.vfs._core.sync_request(state)
        assert request.has_new_data
        assert not request.clears_suid
        await m.close(own)
        await m.close(theirs)


async def test_set_id_bits_that_another_mount_has_set_since_the_open_go(autojump_clock, mounts):
    """Or who may write a file would wait with it until it is a program that runs
    as somebody else.
    """
    async with mounts(2) as (one, two):
        inode_id = one.files.handle(own := await one.create(b"f", mode=0o777)).state.inode_id
        theirs = (await one.files.open(inode_id, RW, Caller(1000, 1000))).handle_id
        await two.names.setattr(inode_id, AttrChange(mode=0o6777), None, ROOT)
        await one.files.write(theirs, 0, b"user")
        await one.close(theirs)
        assert (await two.names.getattr(inode_id, ROOT)).mode == 0o777
        await one.close(own)


async def test_a_mode_without_set_id_bits_waits_for_no_report(autojump_clock, mounts):
    async with mounts() as m:
        own = await m.create(b"f", mode=0o777)
        inode_id = m.files.handle(own).state.inode_id
        theirs = (await m.files.open(inode_id, RW, Caller(1000, 1000))).handle_id
        for mode, count in ((0o644, 0), (0o4755, 1)):
            await m.files.write(theirs, 0, b"user")
            await m.names.setattr(inode_id, AttrChange(mode=mode), None, ROOT)
            assert m.cluster.calls.count("Sync") == count
        await m.close(own)
        await m.close(theirs)
        assert (await m.names.getattr(inode_id, ROOT)).mode == 0o4755


@pytest.mark.parametrize(
    ("uid", "is_by_root", "left"),
    [(0, True, 0o6777), (0, False, 0o777), (1000, True, 0o777), (1000, False, 0o777)],
)
async def test_set_id_bits_go_by_who_writes_through_a_ring(
    autojump_clock, mounts, uid, is_by_root, left
):
    """Root's programs leave them in what root has opened; capabilities go whoever writes."""
    async with mounts() as m:
        own = await m.create(b"f", mode=0o777)
        inode_id = m.files.handle(own).state.inode_id
        theirs = (await m.files.open(inode_id, RW, Caller(uid, uid))).handle_id
        await m.names.setattr(inode_id, AttrChange(mode=0o6777), None, ROOT)
        await m.names.setxattr(inode_id, b"security.capability", b"much", ROOT)
        shared = m.vfs.batches.open(m.vfs.batches.ticket(theirs), is_by_root=is_by_root)
        io = BatchIo(NO_FILE, 0, memoryview(b"new"), handle_id=shared)
        await m.vfs.batches.write([io])
        assert io.error is None
        assert (await m.names.getattr(inode_id, ROOT)).mode == left
        assert (inode_id, b"security.capability") not in m.cluster.xattrs
        await m.vfs.batches.close(shared)
        await m.close(own)
        await m.close(theirs)
        assert (await m.names.getattr(inode_id, ROOT)).mode == left


async def test_two_writers_at_once_both_write_to_a_program_that_loses_its_capabilities(
    autojump_clock, mounts
):
    """Both find them there, and one of them finds them gone when it takes them away."""
    async with mounts() as m:
        handles = [await m.create(b"f", RW | os.O_DIRECT) for _ in range(2)]
        inode_id = m.files.handle(handles[0]).state.inode_id
        await m.names.setxattr(inode_id, b"security.capability", b"much", ROOT)
        async with trio.open_nursery() as nursery:
            for number, handle_id in enumerate(handles):
                nursery.start_soon(m.files.write, handle_id, number, b"x")
        assert (inode_id, b"security.capability") not in m.cluster.xattrs
        assert await m.read_all(handles[0]) == b"xx"
        for handle_id in handles:
            await m.close(handle_id)
