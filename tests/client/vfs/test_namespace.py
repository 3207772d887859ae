# ruff: noqa: ARG001 - pytest-trio finds the virtual clock among a test's own arguments
import os

import pytest
import trio

from fs.client.ending import PAUSE_S
from fs.client.vfs.changing_attributes import AttrChange
from fs.client.vfs.ports import Caller
from fs.schema.status import FsError, Status
from tests.posix.acl import FULL

from .conftest import ROOT


async def sessions_ended():
    """Sessions that have nothing to report are ended a moment after the release."""
    await trio.sleep(2 * PAUSE_S)


async def test_unlinked_open_file_stays_readable_until_the_last_release(
    autojump_clock, mounts, cluster
):
    async with mounts() as a:
        await a.write_file(b"f", b"content")
        h1 = (await a.open(b"f", os.O_RDONLY)).handle_id
        h2 = (await a.open(b"f", os.O_RDONLY)).handle_id
        inode_id = (await a.stat(b"f")).inode_id
        await a.names.unlink(1, b"f", ROOT)
        with pytest.raises(FsError):
            await a.stat(b"f")
        await a.close(h1)
        assert await a.read_all(h2) == b"content"
        await sessions_ended()
        assert len(cluster.sessions[inode_id]) == 1
        await a.close(h2)
        await sessions_ended()
        assert inode_id not in cluster.inodes
        assert not cluster.chunks.chunks


async def test_rename_over_an_open_file_keeps_it(autojump_clock, mounts, cluster):
    async with mounts() as m:
        await m.write_file(b"old", b"old content")
        await m.write_file(b"new", b"new content")
        h = (await m.open(b"old", os.O_RDONLY)).handle_id
        await m.names.rename((1, b"new"), (1, b"old"), ROOT)
        assert await m.read_all(h) == b"old content"
        assert await m.read_file(b"old") == b"new content"
        await m.close(h)
        await sessions_ended()
        assert len(cluster.inodes) == 2


async def test_a_name_that_moved_meanwhile_gets_its_session_afterwards(
    autojump_clock, mounts, cluster
):
    async with mounts(2) as (a, b):
        await a.write_file(b"f", b"one")
        await a.write_file(b"g", b"two")
        h = (await a.open(b"g", os.O_RDONLY)).handle_id
        await a.stat(b"f")
        inode_id = (await a.stat(b"g")).inode_id
        await b.names.link(inode_id, 1, b"spare", ROOT)
        await b.names.rename((1, b"g"), (1, b"f"), ROOT)
        await b.names.unlink(1, b"spare", ROOT)
        original = cluster.collect
        cluster.collect = _no_collection
        await a.names.unlink(1, b"f", ROOT)
        cluster.collect = original
        assert cluster.sessions[inode_id]
        assert await a.read_all(h) == b"two"
        await a.close(h)
        await sessions_ended()
        assert inode_id not in cluster.inodes


async def test_a_removal_succeeds_that_is_told_of_when_the_content_is_gone(
    autojump_clock, mounts, cluster
):
    async with mounts(2) as (a, b):
        await a.write_file(b"f", b"one")
        await a.write_file(b"g", b"two")
        await sessions_ended()
        h = (await a.open(b"g", os.O_RDONLY)).handle_id
        await a.stat(b"f")
        inode_id = (await a.stat(b"g")).inode_id
        await b.names.rename((1, b"g"), (1, b"f"), ROOT)
        await a.names.unlink(1, b"f", ROOT)
        assert inode_id not in cluster.inodes
        with pytest.raises(FsError) as e:
            await a.read_all(h)
        assert e.value.status is Status.STALE
        await a.close(h)


async def _no_collection(_inode):
    return None


async def test_what_another_mount_removed_is_told_of_for_ever_once_that_was_seen(
    autojump_clock, mounts, cluster
):
    async with mounts() as a, mounts() as b:
        for name in (b"seen", b"unseen"):
            await a.write_file(name, b"x")
        seen, unseen = [(await a.stat(name)).inode_id for name in (b"seen", b"unseen")]
        await sessions_ended()
        collect, cluster.collect = cluster.collect, _no_collection
        for name in (b"seen", b"unseen"):
            await b.names.unlink(1, name, ROOT)
        found = await a.names.getattr(seen, ROOT)
        assert found.nlink == 0
        cluster.collect = collect
        for inode_id in (seen, unseen):
            await cluster.collect(cluster.get(inode_id))
            assert inode_id not in cluster.inodes
        assert await a.names.getattr(seen, ROOT) == found
        a.names.forget(seen, 1000)
        for inode_id in (seen, unseen):
            with pytest.raises(FsError) as e:
                await a.names.getattr(inode_id, ROOT)
            assert e.value.status is Status.STALE


async def test_a_late_reply_from_before_a_removal_does_not_undo_it(autojump_clock, mounts):
    async with mounts() as a:
        await a.write_file(b"f", b"x")
        before = await a.stat(b"f")
        await a.names.unlink(1, b"f", ROOT)
        a.names.give(before)
        assert (await a.names.getattr(before.inode_id, ROOT)).nlink == 0


async def test_rename_flags(autojump_clock, mounts):
    async with mounts() as m:
        await m.write_file(b"a", b"A")
        await m.write_file(b"b", b"B")
        with pytest.raises(FsError) as e:
            await m.names.rename((1, b"a"), (1, b"b"), ROOT, no_replace=True)
        assert e.value.status is Status.EXISTS
        await m.names.rename((1, b"a"), (1, b"b"), ROOT, exchange=True)
        assert (await m.read_file(b"a"), await m.read_file(b"b")) == (b"B", b"A")


async def test_touch_by_a_writer_who_does_not_own(autojump_clock, mounts):
    async with mounts() as m:
        await m.write_file(b"f", b"")
        inode = await m.stat(b"f")
        other = Caller(1000, 1000)
        change = AttrChange(atime_ns=5, mtime_ns=5)
        changed = await m.names.setattr(inode.inode_id, change, None, other)
        assert changed.mtime_ns > inode.mtime_ns
        with pytest.raises(FsError) as e:
            await m.names.setattr(inode.inode_id, AttrChange(mode=0o777), None, other)
        assert e.value.status is Status.NOT_PERMITTED


async def test_forget_never_raises_and_balances(autojump_clock, mounts):
    async with mounts() as m:
        await m.write_file(b"f", b"")
        inode_id = (await m.stat(b"f")).inode_id
        known = m.vfs._core.known
        assert known[inode_id].lookup_count == 2
        m.names.forget(inode_id, 1)
        assert inode_id in known
        m.names.forget(inode_id, 5)
        assert inode_id not in known
        m.names.forget(inode_id, 1)
        m.names.forget(424242, 1)


async def test_an_attribute_that_must_be_new_and_exist_is_never_set(autojump_clock, mounts):
    async with mounts() as m:
        inode_id = (await m.names.mkdir(1, b"d", 0o755, ROOT)).inode_id
        for status in (Status.NO_ATTRIBUTE, Status.EXISTS):
            with pytest.raises(FsError) as e:
                await m.names.setxattr(
                    inode_id, b"user.a", b"2", ROOT, must_be_new=True, must_exist=True
                )
            assert e.value.status is status
            await m.names.setxattr(inode_id, b"user.a", b"1", ROOT)
        assert await m.names.getxattr(inode_id, b"user.a", ROOT) == b"1"


async def test_xattrs_and_the_remembered_absence_of_capabilities(autojump_clock, mounts, cluster):
    async with mounts() as m:
        h = await m.create(b"f")
        inode_id = (await m.stat(b"f")).inode_id
        cluster.calls.clear()
        for calls in ([], ["GetXattr"]):  # known of a new file; later asked for and remembered
            for _ in range(3):
                with pytest.raises(FsError) as e:
                    await m.names.getxattr(inode_id, b"security.capability", ROOT)
                assert e.value.status is Status.NO_ATTRIBUTE
            assert cluster.calls == calls
            await trio.sleep(1.1)
        await m.names.setxattr(inode_id, b"security.capability", b"x", ROOT)
        assert await m.names.getxattr(inode_id, b"security.capability", ROOT) == b"x"
        assert list(await m.names.listxattr(inode_id, ROOT)) == [b"security.capability"]
        await m.names.removexattr(inode_id, b"security.capability", ROOT)
        await m.close(h)


async def test_attributes_tell_that_there_is_no_access_control_list(
    autojump_clock, mounts, cluster
):
    name = b"system.posix_acl_access"

    async def is_missing(m, inode_id):
        cluster.calls.clear()
        with pytest.raises(FsError) as e:
            await m.names.getxattr(inode_id, name, ROOT)
        assert e.value.status is Status.NO_ATTRIBUTE
        return cluster.calls == ["GetXattr"]

    async with mounts() as m:
        inode_id = (await m.names.mkdir(1, b"d", 0o755, ROOT)).inode_id
        assert not await is_missing(m, inode_id)
        await trio.sleep(1.1)
        assert await is_missing(m, inode_id)
        await m.names.getattr(inode_id, ROOT)
        assert not await is_missing(m, inode_id)
        await m.names.setxattr(inode_id, name, FULL, ROOT)
        assert await m.names.getxattr(inode_id, name, ROOT) == FULL
        await m.names.getattr(inode_id, ROOT)  # of this model, it might have been under way before
        assert await m.names.getxattr(inode_id, name, ROOT) == FULL


async def test_attributes_tell_that_there_are_no_extended_ones(autojump_clock, mounts, cluster):
    label, mine = b"security.selinux", b"user.mine"

    async def calls_for(m, inode_id, name):
        cluster.calls.clear()
        with pytest.raises(FsError) as e:
            await m.names.getxattr(inode_id, name, ROOT)
        assert e.value.status is Status.NO_ATTRIBUTE
        return cluster.calls

    async def listed(m, inode_id):
        cluster.calls.clear()
        return list(await m.names.listxattr(inode_id, ROOT)), list(cluster.calls)

    async with mounts() as m, mounts() as other:
        inode_id = (await m.names.mkdir(1, b"d", 0o755, ROOT)).inode_id
        assert await calls_for(m, inode_id, label) == []
        assert await listed(m, inode_id) == ([], [])
        assert await calls_for(m, inode_id, mine) == [
            "GetXattr"
        ]  # what programs set is never a second old
        await other.names.setxattr(inode_id, label, b"x", ROOT)
        await trio.sleep(1.1)
        assert await m.names.getxattr(inode_id, label, ROOT) == b"x"
        assert await listed(m, inode_id) == ([label], ["ListXattrs"])
        await m.names.getattr(inode_id, ROOT)
        assert await m.names.getxattr(inode_id, label, ROOT) == b"x"
        await other.names.removexattr(inode_id, label, ROOT)
        await m.names.getattr(inode_id, ROOT)
        assert await calls_for(m, inode_id, label) == []
        await m.names.setxattr(inode_id, label, b"y", ROOT)
        assert await m.names.getxattr(inode_id, label, ROOT) == b"y"
        await m.names.removexattr(inode_id, label, ROOT)
        await m.names.getattr(inode_id, ROOT)  # for all this mount knows, from before the removal
        assert await calls_for(m, inode_id, label) == ["GetXattr"]


async def test_services_of_earlier_releases_are_asked_for_extended_attributes(
    mounts, cluster, autojump_clock
):
    cluster.knows_bare = False
    async with mounts() as m:
        inode_id = (await m.names.mkdir(1, b"d", 0o755, ROOT)).inode_id
        cluster.calls.clear()
        with pytest.raises(FsError):
            await m.names.getxattr(inode_id, b"security.selinux", ROOT)
        assert list(await m.names.listxattr(inode_id, ROOT)) == []
        assert cluster.calls == ["GetXattr", "ListXattrs"]


async def test_special_files(autojump_clock, mounts):
    async with mounts() as m:
        fifo = await m.names.mknod(1, b"p", 0o010644, ROOT)
        assert fifo.st_mode == 0o010644
        plain = await m.names.mknod(1, b"r", 0o100600, ROOT)
        assert plain.st_mode == 0o100600
        with pytest.raises(FsError) as e:
            await m.names.mknod(1, b"x", 0o170000, ROOT)
        assert e.value.status is Status.INVALID_ARGUMENT
        link = await m.names.symlink(1, b"s", b"target", ROOT)
        assert await m.names.readlink(link.inode_id, ROOT) == b"target"
        with pytest.raises(FsError) as e:
            await m.names.readlink(fifo.inode_id, ROOT)
        assert e.value.status is Status.INVALID_ARGUMENT
        with pytest.raises(FsError) as e:
            await m.files.open(fifo.inode_id, os.O_RDONLY, ROOT)
        assert e.value.status is Status.NOT_REGULAR
