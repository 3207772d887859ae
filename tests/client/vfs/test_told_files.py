# ruff: noqa: ARG001 - pytest-trio finds the virtual clock among a test's own arguments
"""Attributes of open files that are told without asking meta,
and files that are known to be durable.
"""

import os
from functools import partial

import pytest
import trio

from fs.client.vfs.changing_attributes import AttrChange
from fs.schema import services
from fs.schema.status import FsError

from .conftest import ROOT, RW, A


async def opened(mount):
    handle_id = await mount.create(b"f")
    return handle_id, mount.files.handle(handle_id).state.inode_id


def told(mount, inode_id):
    found = mount.names.told(inode_id)
    return None if found is None else found[0]


async def test_what_was_written_is_told_without_a_call(autojump_clock, mounts, cluster):
    async with mounts() as m:
        handle_id, inode_id = await opened(m)
        created = told(m, inode_id)
        await m.files.write(handle_id, 0, b"abc")
        cluster.calls.clear()
        inode = told(m, inode_id)
        assert (inode.length, cluster.calls) == (3, [])
        assert inode.mtime_ns > created.mtime_ns
        assert await m.names.getattr(inode_id, ROOT) == inode
        await m.names.setattr(inode_id, AttrChange(mode=0o600), handle_id, ROOT)
        assert told(m, inode_id).mode == 0o600
        await m.files.fsync(handle_id, is_data_only=False)
        assert await m.names.getattr(inode_id, ROOT) == told(m, inode_id)
        await m.close(handle_id)
        assert told(m, inode_id) is None


async def test_it_is_told_for_as_long_as_the_kernel_may_keep_it(autojump_clock, mounts):
    async with mounts(2) as (a, b):
        handle_id, inode_id = await opened(a)
        await trio.sleep(0.6)
        _, left_s = a.names.told(inode_id)
        assert left_s == pytest.approx(0.4)
        await b.names.setattr(inode_id, AttrChange(mode=0o600), None, ROOT)
        await trio.sleep(0.5)
        await a.files.write(handle_id, 0, b"abc")
        assert a.names.told(inode_id) is None
        await a.names.getattr(inode_id, ROOT)
        assert told(a, inode_id).mode == 0o600
        await a.close(handle_id)


@pytest.mark.parametrize("is_late", [False, True])
async def test_a_change_whose_outcome_was_not_told_is_asked_for(autojump_clock, mounts, is_late):
    async with mounts() as m:
        handle_id, inode_id = await opened(m)
        before = m.files.handle(handle_id).state.inode
        await m.names.setxattr(inode_id, b"user.a", b"1", ROOT)
        assert told(m, inode_id) is None
        if is_late:  # a reply from before the change
            m.vfs._core.note_inode(m.files.handle(handle_id).state, before)
            assert told(m, inode_id) is None
        inode = await m.names.getattr(inode_id, ROOT)
        assert told(m, inode_id) == inode
        await m.close(handle_id)


async def test_that_there_was_no_capability_is_not_kept_over_one_that_was_set_meanwhile(
    autojump_clock, mounts, monkeypatch
):
    name = b"security.capability"
    async with mounts() as m:
        handle_id, inode_id = await opened(m)
        await trio.sleep(1.5)
        call, may_end = m.vfs._core.call, trio.Event()

        async def slow(method, request):
            try:
                return await call(method, request)
            finally:
                if method is services.META_GET_XATTR:
                    await may_end.wait()

        monkeypatch.setattr(m.vfs._core, "call", slow)
        async with trio.open_nursery() as nursery:
            state = m.files.handle(handle_id).state
            nursery.start_soon(m.names.drop_capability, state, ROOT)
            await trio.sleep(0.1)
            await m.names.setxattr(inode_id, name, b"1", ROOT)
            may_end.set()
        assert await m.names.getxattr(inode_id, name, ROOT) == b"1"
        await m.close(handle_id)


async def test_after_a_change_that_failed_meta_is_asked(autojump_clock, mounts):
    async with mounts() as m:
        handle_id, inode_id = await opened(m)
        with pytest.raises(FsError):
            await m.names.setattr(inode_id, AttrChange(length=1 << 60), handle_id, ROOT)
        assert told(m, inode_id) is None
        await m.close(handle_id)


async def test_names_of_an_open_file_change_what_is_told(autojump_clock, mounts):
    async with mounts() as m:
        handle_id, inode_id = await opened(m)
        await m.names.link(inode_id, 1, b"g", ROOT)
        assert told(m, inode_id).nlink == 2
        await m.names.rename((1, b"g"), (1, b"h"), ROOT)
        assert told(m, inode_id) == await m.names.getattr(inode_id, ROOT)
        await m.names.unlink(1, b"f", ROOT)
        assert told(m, inode_id).nlink == 1
        await m.close(handle_id)


async def test_a_file_that_was_closed_durably_needs_no_sync_of_chunks(
    autojump_clock, mounts, cluster
):
    chunks, chunks.can_flush = cluster.chunks, True
    async with mounts(2) as (a, b):
        await a.write_file(b"f", b"x")
        opened = await a.open(b"f", os.O_RDWR)
        count = chunks.sync_count
        await a.files.fsync(opened.handle_id, is_data_only=False)
        assert chunks.sync_count == count
        await a.files.write(opened.handle_id, 1, b"y")
        await a.close(opened.handle_id)  # nor does what is added to it
        assert chunks.sync_count == count
        await b.write_file(b"f", b"z")  # elsewhere, so nothing is known of it here
        opened = await a.open(b"f", os.O_RDWR)
        count = chunks.sync_count
        await a.files.fsync(opened.handle_id, is_data_only=False)
        assert chunks.sync_count == count + 1
        await a.close(opened.handle_id)


async def test_what_others_wrote_meanwhile_takes_a_sync(autojump_clock, mounts, cluster):
    async with mounts(2) as (a, b):
        await a.write_file(b"f", b"x")
        first = await a.open(b"f", os.O_RDWR)
        await b.write_file(b"f", b"z")
        second = await a.open(b"f", os.O_RDWR)
        count = cluster.chunks.sync_count
        await a.files.fsync(second.handle_id, is_data_only=False)
        assert cluster.chunks.sync_count == count + 1
        await a.close(first.handle_id)
        await a.close(second.handle_id)


async def test_a_close_that_is_not_durable_is_not_taken_for_it(autojump_clock, mounts, cluster):
    async with mounts(durable_close=False) as m:
        await m.write_file(b"f", b"x")
        opened = await m.open(b"f", os.O_RDWR)
        await m.files.fsync(opened.handle_id, is_data_only=False)
        assert cluster.chunks.sync_count == 1
        await m.close(opened.handle_id)


async def test_what_others_wrote_while_a_report_was_under_way_takes_a_sync(
    autojump_clock, mounts, cluster, monkeypatch
):
    async with mounts(2) as (a, b):
        await a.write_file(b"f", b"x")
        first = await a.open(b"f", os.O_RDWR)
        core, has_begun, may_end = a.vfs._core, trio.Event(), trio.Event()
        call = core.call

        async def slow(method, request):
            reply = await call(method, request)
            if method is services.META_SYNC:
                has_begun.set()
                await may_end.wait()
            return reply

        monkeypatch.setattr(core, "call", slow)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(a.files.fsync, first.handle_id, is_data_only=False))
            await has_begun.wait()
            other = await b.open(b"f", os.O_RDWR)
            await b.files.write(other.handle_id, 0, b"z")
            await b.close(other.handle_id)
            second = await a.open(b"f", os.O_RDWR)
            may_end.set()
        count = cluster.chunks.sync_count
        await a.files.fsync(second.handle_id, is_data_only=False)
        assert cluster.chunks.sync_count == count + 1
        await a.close(first.handle_id)
        await a.close(second.handle_id)


@pytest.mark.parametrize("is_append", [False, True])
async def test_what_another_mount_has_made_longer_is_not_taken_for_own_while_this_one_writes(
    autojump_clock, mounts, is_append
):
    """Of two replies that were under way at once the kernel may have kept the older one."""
    async with mounts(2) as (here, there):
        await here.write_file(b"f", b"12345")
        ours = (await here.open(b"f", A if is_append else RW)).handle_id
        theirs = (await there.open(b"f")).handle_id
        await here.files.write(ours, 0, b"own")
        if not is_append:  # else it has no place yet
            await here.vfs._core.drain(here.files.handle(ours).state)
        inode_id = (await here.stat(b"f")).inode_id
        await there.files.write(theirs, 5, b"more")
        await there.close(theirs)
        assert (await here.names.getattr(inode_id, ROOT)).length == 9 + 3 * is_append
        here.kernel.attributes.clear()
        await here.close((await here.open(b"f", os.O_RDONLY)).handle_id)
        assert here.kernel.attributes == [inode_id]
        await here.close(ours)


async def test_what_is_handed_out_while_the_kernel_forgets_the_same_is_not_forgotten(
    autojump_clock, mounts
):
    async with mounts(2) as (one, two):
        await one.close(await one.create(b"f"))
        inode = two.names.give(await two.stat(b"f"), lookup_count=1)
        core, kernel = two.vfs._core, two.kernel
        core.known[inode.inode_id].unsure_until_s = core.now_s() + 1.0  # so that it has to forget
        forget = kernel.invalidate_attributes

        async def forget_and_be_asked(inode_id):
            await forget(inode_id)
            kernel.invalidate_attributes = forget
            await two.names.getattr(inode_id, ROOT)

        kernel.invalidate_attributes = forget_and_be_asked
        first = (await two.open(b"f", os.O_RDONLY)).handle_id
        assert kernel.attributes == [inode.inode_id]
        handle_id = (await one.open(b"f")).handle_id
        await one.files.write(handle_id, 0, b"longer")
        await one.close(handle_id)
        second = (await two.open(b"f", os.O_RDONLY)).handle_id
        assert kernel.attributes == [inode.inode_id] * 2
        for handle_id in (first, second):
            await two.close(handle_id)
