# ruff: noqa: ARG001 - pytest-trio finds the virtual clock among a test's own arguments
"""Times that are set on a file while what was written to it is not reported:
they go with the report.
"""

import os

import pytest
import trio

from fs.client.vfs.changing_attributes import AttrChange
from fs.client.vfs.ports import Caller
from fs.schema import services

from .conftest import ROOT, RW

OLD = AttrChange(atime_ns=99, mtime_ns=1234)


@pytest.fixture
def file(mounts, cluster):
    """Return a context of two mounts and a file that one of them has written to."""

    class File:
        async def __aenter__(self):
            self.mounts = mounts(2)
            self.here, self.there = await self.mounts.__aenter__()
            self.handle_id = await self.here.create(b"f")
            self.inode_id = self.here.files.handle(self.handle_id).state.inode_id
            await self.write(0, b"x")
            return self

        async def __aexit__(self, *why):
            return await self.mounts.__aexit__(*why)

        async def write(self, offset, data):
            await self.here.files.write(self.handle_id, offset, data)

        async def set(self, change, caller=ROOT):
            """Set times; return them, and the calls of meta that this took."""
            cluster.calls.clear()
            inode = await self.here.names.setattr(self.inode_id, change, self.handle_id, caller)
            return (inode.atime_ns, inode.mtime_ns), list(cluster.calls)

        async def times(self, mount):
            inode = await mount.stat(b"f")
            return inode.atime_ns, inode.mtime_ns

    return File()


async def test_they_cost_no_call_and_all_see_them_after_the_close(autojump_clock, file, cluster):
    cluster.chunks.can_flush = True
    async with file as f:
        before = await f.here.stat(b"f")
        assert await f.set(OLD) == ((99, 1234), [])
        seen = await f.here.stat(b"f")
        assert (seen.atime_ns, seen.mtime_ns, seen.length) == (99, 1234, 1)
        assert seen.ctime_ns > before.ctime_ns
        cluster.calls.clear()
        await f.here.close(f.handle_id)
        assert cluster.calls == ["Sync"]
        assert (cluster.chunks.durable_writes, cluster.chunks.sync_count) == (1, 0)
        assert await f.times(f.there) == await f.times(f.here) == (99, 1234)
        assert (await f.there.stat(b"f")).length == 1


async def test_of_two_that_are_set_one_after_the_other_both_stay(autojump_clock, file):
    async with file as f:
        assert await f.set(AttrChange(atime_ns=7)) != ((7, 1234), [])
        assert await f.set(AttrChange(mtime_ns=1234)) == ((7, 1234), [])
        await f.here.names.setattr(f.inode_id, AttrChange(mode=0o600), f.handle_id, ROOT)
        await f.here.close(f.handle_id)
        assert await f.times(f.there) == (7, 1234)


async def test_a_later_write_is_the_last_modification(autojump_clock, file):
    async with file as f:
        await f.set(OLD)
        await f.write(1, b"y")
        await f.here.close(f.handle_id)
        atime_ns, mtime_ns = await f.times(f.there)
        assert atime_ns == 99
        assert mtime_ns > 10**18


async def test_a_report_of_a_part_does_not_end_them(autojump_clock, file, cluster):
    async with file as f:
        state = f.here.files.handle(f.handle_id).state
        await f.here.vfs._core.drain(state)  # the first byte is on its way, the second one waits
        await f.write(1, b"y")
        await f.set(OLD)
        assert state.is_dirty
        await f.here.vfs._core.report(state, is_durable=False)
        await f.here.close(f.handle_id)
        assert await f.times(f.there) == (99, 1234)


async def test_a_truncation_takes_the_one_and_keeps_the_other(autojump_clock, file):
    async with file as f:
        await f.set(OLD)
        await f.here.names.setattr(f.inode_id, AttrChange(length=0), f.handle_id, ROOT)
        await f.here.close(f.handle_id)
        atime_ns, mtime_ns = await f.times(f.there)
        assert atime_ns == 99
        assert mtime_ns > 10**18


async def test_the_write_back_loop_tells_of_them(autojump_clock, file):
    async with file as f:
        await f.set(OLD)
        await trio.sleep(6)
        assert await f.times(f.there) == (99, 1234)
        await f.here.close(f.handle_id)
        assert await f.times(f.there) == (99, 1234)


async def test_what_another_mount_sets_after_the_report_stays(autojump_clock, file):
    async with file as f:
        await f.set(OLD)
        await f.here.files.fsync(f.handle_id, is_data_only=False)
        await f.there.names.setattr(f.inode_id, AttrChange(mtime_ns=55), None, ROOT)
        await f.here.close(f.handle_id)
        assert await f.times(f.here) == (99, 55)


@pytest.mark.parametrize("there_s", [0.0, 0.1])
async def test_what_another_mount_sets_before_the_report_stays_too(autojump_clock, file, there_s):
    """It was set later; what the other mount has not set is as this one said."""
    async with file as f:
        await f.set(OLD)
        await trio.sleep(there_s)
        await f.there.names.setattr(f.inode_id, AttrChange(mtime_ns=55), None, ROOT)
        assert f.here.kernel.attributes == []
        await f.here.close(f.handle_id)
        assert f.here.kernel.attributes == [f.inode_id]  # it was shown the others
        assert await f.times(f.here) == await f.times(f.there) == (99, 55)


async def test_what_another_mount_has_set_just_before_is_replaced(autojump_clock, file):
    """Though this mount had not heard of it."""
    async with file as f:
        await f.here.stat(b"f")
        await f.there.names.setattr(f.inode_id, AttrChange(atime_ns=4, mtime_ns=55), None, ROOT)
        await trio.sleep(0.01)
        assert await f.set(OLD) == ((99, 1234), [])
        await f.here.close(f.handle_id)
        assert await f.times(f.here) == await f.times(f.there) == (99, 1234)


async def test_they_wait_for_a_fifth_of_a_second_at_most(autojump_clock, file, cluster):
    """The file may stay open for long, with whoever else writes it."""
    async with file as f:
        assert await f.set(OLD) == ((99, 1234), [])
        await trio.sleep(0.1)
        assert cluster.calls == []
        await trio.sleep(0.2)
        assert await f.times(f.there) == (99, 1234)
        await f.write(1, b"y")
        assert await f.set(OLD) != ((99, 1234), ["Sync", "SetAttr"])
        await trio.sleep(0.3)
        assert await f.times(f.there) == (99, 1234)
        await f.here.close(f.handle_id)
        assert await f.times(f.there) == (99, 1234)


@pytest.mark.parametrize(
    "change", [AttrChange(mtime_now=True), AttrChange(mtime_ns=9 * 10**18)], ids=["now", "future"]
)
async def test_meta_is_told_at_once_of_what_it_has_to_judge(autojump_clock, file, change):
    async with file as f:
        _, calls = await f.set(change)
        assert calls == ["Sync", "SetAttr"]
        await f.here.close(f.handle_id)


async def test_who_does_not_own_the_file_is_judged_by_meta(autojump_clock, file):
    async with file as f:
        (_, mtime_ns), calls = await f.set(AttrChange(mtime_ns=5), Caller(1000, 1000))
        assert mtime_ns > 10**18
        assert calls == ["Sync", "SetAttr", "GetAttr", "SetAttr"]  # the second one asks for now
        await f.here.close(f.handle_id)


async def test_a_reader_alone_has_meta_told(autojump_clock, mounts, cluster):
    async with mounts() as m:
        await m.write_file(b"f", b"x")
        handle_id = (await m.open(b"f", os.O_RDONLY)).handle_id
        inode_id = m.files.handle(handle_id).state.inode_id
        cluster.calls.clear()
        await m.names.setattr(inode_id, OLD, handle_id, ROOT)
        assert cluster.calls == ["SetAttr"]
        await m.close(handle_id)


async def test_records_without_a_place_come_first(autojump_clock, mounts, cluster):
    async with mounts() as m:
        handle_id = await m.create(b"f", RW | os.O_APPEND)
        await m.files.write(handle_id, 0, b"x")
        inode_id = m.files.handle(handle_id).state.inode_id
        await m.names.setattr(inode_id, OLD, handle_id, ROOT)
        await m.close(handle_id)
        assert (await m.stat(b"f")).mtime_ns == 1234


async def test_attributes_that_may_be_old_are_asked_for(autojump_clock, file):
    async with file as f:
        await f.there.names.setattr(f.inode_id, AttrChange(mode=0o600), None, ROOT)
        await trio.sleep(1.5)
        inode = await f.here.names.setattr(f.inode_id, OLD, f.handle_id, ROOT)
        assert (inode.mode & 0o777, inode.mtime_ns) == (0o600, 1234)
        await f.here.close(f.handle_id)


async def test_who_owns_it_no_more_is_judged_by_meta(autojump_clock, file):
    owner = Caller(1000, 1000)
    async with file as f:
        await f.here.names.setattr(f.inode_id, AttrChange(uid=1000), f.handle_id, ROOT)
        await f.there.names.setattr(f.inode_id, AttrChange(uid=1001, mode=0o600), None, ROOT)
        await trio.sleep(1.5)
        (_, mtime_ns), calls = await f.set(OLD, owner)
        assert mtime_ns > 10**18
        assert calls == ["Sync", "SetAttr", "GetAttr", "SetAttr"]  # the second one asks for now
        await f.here.close(f.handle_id)
        assert 1234 not in await f.times(f.there)


async def test_they_say_nothing_new_of_what_may_have_been_set(autojump_clock, file):
    """The kernel asks for capabilities before a write, to take them away."""
    name = b"security.capability"
    async with file as f:
        for change in (OLD, AttrChange(atime_ns=5)):
            await trio.sleep(0.4)
            await f.write(0, b"y")
            await f.here.names.setattr(f.inode_id, change, f.handle_id, ROOT)
            if change is OLD:
                await f.there.names.setxattr(f.inode_id, name, b"1", ROOT)
        await trio.sleep(0.7)
        assert await f.here.names.getxattr(f.inode_id, name, ROOT) == b"1"
        await f.here.close(f.handle_id)


async def test_while_a_truncation_is_under_way_they_come_after_it(
    autojump_clock, file, monkeypatch
):
    async with file as f:
        core, has_begun = f.here.vfs._core, trio.Event()
        call = core.call

        async def slow(method, request):
            reply = await call(method, request)
            if method is services.META_SET_ATTR and request.HasField("length"):
                has_begun.set()
                await trio.sleep(0.1)
            return reply

        monkeypatch.setattr(core, "call", slow)
        async with trio.open_nursery() as nursery:
            shorter = AttrChange(length=0)
            nursery.start_soon(f.here.names.setattr, f.inode_id, shorter, f.handle_id, ROOT)
            await has_begun.wait()
            await f.here.names.setattr(f.inode_id, OLD, f.handle_id, ROOT)
        await f.here.close(f.handle_id)
        assert await f.times(f.there) == (99, 1234)


async def test_the_reply_may_be_used_for_as_long_as_what_meta_told(autojump_clock, file):
    async with file as f:
        assert f.here.names.usable_s(f.inode_id) == 1.0
        await trio.sleep(0.6)
        assert (await f.set(OLD))[1] == []
        assert f.here.names.usable_s(f.inode_id) == pytest.approx(0.4)
        await f.here.names.setattr(f.inode_id, AttrChange(mode=0o600), f.handle_id, ROOT)
        assert f.here.names.usable_s(f.inode_id) == 1.0
        await f.here.close(f.handle_id)
