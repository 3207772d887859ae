# ruff: noqa: ARG001 - pytest-trio finds the virtual clock among a test's own arguments
"""Mode and owner that are set on a file while what was written to it is not reported:
they go with the report.
"""

import os
import struct
from functools import partial

import pytest
import trio
import trio.testing

from fs.client.vfs.changing_attributes import AttrChange
from fs.client.vfs.handles import TakesTaskError
from fs.client.vfs.kept import KEPT_S
from fs.client.vfs.ports import Caller
from fs.client.vfs.set_owner import AskedOwner, mode_of_list, takes_nothing
from fs.schema.status import FsError, Status

from .conftest import ROOT, RW

TAR, OTHER_THREAD = 71, 72
WIDER = AttrChange(mode=0o644)
GIVEN = AttrChange(uid=1000, gid=1001)
USER = Caller(1000, 1001)
BOTH = pytest.mark.parametrize("inline_bytes_max", [0, 65_536], ids=["in chunks", "inline"])


class File:
    """A file that one of two mounts has made, by a thread of number TAR, and written to."""

    def __init__(self, mounts, cluster):
        self._mounts, self._cluster = mounts, cluster

    async def __aenter__(self):
        self.mounts = self._mounts(2)
        self.here, self.there = await self.mounts.__aenter__()
        self.core = self.here.vfs._core
        self.handle_id = await self.here.create(b"f", mode=0o600)
        self.here.files.note_maker(self.handle_id, TAR)
        self.state = self.here.files.handle(self.handle_id).state
        self.inode_id = self.state.inode_id
        await self.write(b"x")
        self._cluster.calls.clear()
        return self

    async def __aexit__(self, *why):
        return await self.mounts.__aexit__(*why)

    async def write(self, data):
        await self.here.files.write(self.handle_id, 0, data)

    def keep(self, change, caller=ROOT, thread=TAR):
        """Have a change go with the report; return what is shown then, or None."""
        return self.here.names.set_now(self.inode_id, change, caller, thread)

    async def set(self, change, caller=ROOT, thread=TAR):
        """Do what the kernel's request does; return mode and owner,
        and the calls of meta that this took.
        """
        self._cluster.calls.clear()
        inode = self.keep(change, caller, thread)
        if inode is None:
            inode = await self.here.names.setattr(self.inode_id, change, None, caller)
        return shown(inode), list(self._cluster.calls)

    async def close(self):
        """Close it as the kernel does; return the calls of meta that this took."""
        self._cluster.calls.clear()
        await self.here.close(self.handle_id)
        return [name for name in self._cluster.calls if name != "PruneSessions"]

    async def seen(self, mount):
        return shown(await mount.stat(b"f"))


def shown(inode):
    return oct(inode.mode), inode.uid, inode.gid


@pytest.fixture
def file(mounts, cluster):
    return File(mounts, cluster)


@BOTH
async def test_they_cost_no_call_and_all_see_them_after_the_close(autojump_clock, file, cluster):
    async with file as f:
        before = await f.here.stat(b"f")
        await f.set(AttrChange(mtime_ns=1234))
        assert await f.set(GIVEN) == (("0o600", 1000, 1001), [])
        assert await f.set(AttrChange(mode=0o755)) == (("0o755", 1000, 1001), [])
        assert await f.seen(f.here) == ("0o755", 1000, 1001)
        assert await f.seen(f.there) == ("0o600", 0, 0)
        assert (await f.here.stat(b"f")).ctime_ns > before.ctime_ns
        assert await f.close() == ["Sync"]
        assert await f.seen(f.there) == await f.seen(f.here) == ("0o755", 1000, 1001)
        assert (await f.there.stat(b"f")).mtime_ns == 1234
        assert not f.core.owned


@BOTH
async def test_a_close_that_no_task_does_takes_them_along(autojump_clock, file, cluster):
    async with file as f:
        f.keep(WIDER)
        ended = []
        is_begun = f.here.files.begin_flush(f.handle_id, ended.append)
        await trio.sleep(0.05)
        assert ended == ([None] if is_begun else [])
        await f.close()
        assert await f.seen(f.there) == ("0o644", 0, 0)


@BOTH
async def test_fsync_takes_them_along(autojump_clock, file, cluster):
    async with file as f:
        f.keep(WIDER)
        await f.here.files.fsync(f.handle_id, is_data_only=False)
        assert cluster.calls == ["Sync"]
        assert shown(cluster.durable_inodes[f.inode_id]) == ("0o644", 0, 0)
        await f.close()


@BOTH
async def test_they_wait_for_a_fifth_of_a_second_at_most(autojump_clock, file, cluster):
    async with file as f:
        f.keep(WIDER)
        await trio.sleep(KEPT_S / 2)
        assert cluster.calls == []
        await trio.sleep(KEPT_S)
        assert await f.seen(f.there) == ("0o644", 0, 0)
        await f.write(b"y")
        await trio.sleep(0.3)
        assert await f.set(AttrChange(mode=0o755)) == (("0o755", 0, 0), [])
        await trio.sleep(KEPT_S * 2)
        assert await f.seen(f.there) == ("0o755", 0, 0)
        await f.close()


@BOTH
async def test_a_service_that_does_not_know_of_them_is_asked_as_before(
    autojump_clock, file, cluster
):
    cluster.knows_owners = False
    async with file as f:
        f.keep(GIVEN)
        f.keep(WIDER)
        assert await f.close() == ["Sync", "SetAttr", "Sync"]  # the last one makes it durable
        assert shown(cluster.durable_inodes[f.inode_id]) == ("0o644", 1000, 1001)
        assert await f.seen(f.there) == await f.seen(f.here) == ("0o644", 1000, 1001)


@BOTH
async def test_of_such_a_service_the_close_without_a_task_leaves_the_rest_to_one(
    autojump_clock, file, cluster
):
    cluster.knows_owners = False
    async with file as f:
        f.keep(WIDER)
        ended = []
        if f.here.files.begin_flush(f.handle_id, ended.append):
            await trio.sleep(0.1)
            assert isinstance(ended[0], TakesTaskError)
        await f.close()
        assert await f.seen(f.there) == ("0o644", 0, 0)


@pytest.mark.parametrize(
    ("change", "thread"),
    [
        (AttrChange(mode=0o400), TAR),
        (AttrChange(mode=0o4755), TAR),
        (AttrChange(mode=0o1600), TAR),
        (AttrChange(mode=0o644, length=0), TAR),
        (WIDER, OTHER_THREAD),
        (WIDER, 0),
    ],
    ids=["narrower", "set-id", "sticky", "with a length", "another thread", "nobody knows"],
)
async def test_what_may_not_wait_is_set_at_once(autojump_clock, file, cluster, change, thread):
    async with file as f:
        _, calls = await f.set(change, ROOT, thread)
        assert "SetAttr" in calls
        assert await f.seen(f.there) == (oct(change.mode), 0, 0)
        await f.close()


async def test_who_does_not_own_it_is_judged_at_once(autojump_clock, file, cluster):
    async with file as f:
        with pytest.raises(FsError) as raised:
            await f.set(WIDER, USER)
        assert raised.value.status is Status.NOT_PERMITTED
        await f.close()
        assert await f.seen(f.there) == ("0o600", 0, 0)


async def test_what_comes_after_them_and_may_not_wait_has_them_settled_first(
    autojump_clock, file, cluster
):
    async with file as f:
        f.keep(GIVEN)
        f.keep(WIDER)
        assert await f.set(AttrChange(mode=0o600)) == (("0o600", 1000, 1001), ["Sync", "SetAttr"])
        assert await f.close() == ["Sync"]
        assert await f.seen(f.there) == await f.seen(f.here) == ("0o600", 1000, 1001)


async def test_the_new_owner_may_use_what_he_is_shown(autojump_clock, file, cluster):
    """He is another program of this mount, which shows him the file as his."""
    async with file as f:
        f.keep(GIVEN)
        assert await f.set(AttrChange(mode=0o640), USER, OTHER_THREAD) == (
            ("0o640", 1000, 1001),
            ["Sync", "SetAttr"],
        )
        await f.close()


async def test_an_open_is_judged_by_what_this_mount_shows(autojump_clock, file, cluster):
    async with file as f:
        f.keep(WIDER)
        cluster.calls.clear()
        assert f.here.files.begin_open(f.inode_id, os.O_RDONLY, USER, lambda *_: None) is None
        opened = await f.here.files.open(f.inode_id, os.O_RDONLY, USER)
        assert cluster.calls == ["Sync", "Open"]
        await f.here.files.release(opened.handle_id)
        await f.close()


async def test_a_name_is_removed_by_the_owner_that_this_mount_shows(autojump_clock, file, cluster):
    async with file as f:
        f.keep(GIVEN)
        await f.here.names.unlink(1, b"f", USER)
        assert cluster.calls[:2] == ["Sync", "Unlink"]
        await f.close()


async def test_root_removes_it_without_asking(autojump_clock, file, cluster):
    async with file as f:
        f.keep(GIVEN)
        await f.here.names.unlink(1, b"f", ROOT)
        assert cluster.calls == ["Unlink"]
        await f.close()
        await trio.sleep(3)  # sessions end together with others
        assert f.inode_id not in cluster.inodes
        assert not f.core.owned


async def test_attributes_and_lists_come_after_them(autojump_clock, file, cluster):
    async with file as f:
        f.keep(GIVEN)
        assert not f.here.names.begin_setxattr(f.inode_id, b"user.a", b"1", USER, lambda *_: None)
        await f.here.names.setxattr(f.inode_id, b"user.a", b"1", USER)
        assert cluster.calls == ["Sync", "SetXattr"]
        await f.close()


async def test_a_truncation_comes_after_them(autojump_clock, file, cluster):
    async with file as f:
        f.keep(WIDER)
        await f.here.names.setattr(f.inode_id, AttrChange(length=0), f.handle_id, ROOT)
        assert await f.seen(f.there) == ("0o644", 0, 0)
        await f.close()


async def test_what_another_mount_sets_later_stays(autojump_clock, file, cluster):
    async with file as f:
        f.keep(WIDER)
        await trio.sleep(0.01)
        await f.there.names.setattr(f.inode_id, AttrChange(mode=0o400), None, ROOT)
        f.here.kernel.attributes.clear()
        assert await f.close() == ["Sync"]
        assert f.inode_id in f.here.kernel.attributes  # it was shown the other one
        assert await f.seen(f.here) == await f.seen(f.there) == ("0o400", 0, 0)


async def test_what_another_mount_has_set_just_before_is_replaced(autojump_clock, file, cluster):
    """Though this mount had not heard of it."""
    async with file as f:
        await f.there.names.setattr(f.inode_id, AttrChange(mode=0o640), None, ROOT)
        await trio.sleep(0.01)
        f.keep(WIDER)
        await f.close()
        assert await f.seen(f.here) == await f.seen(f.there) == ("0o644", 0, 0)


async def test_attributes_that_may_be_old_are_no_ground(autojump_clock, file, cluster):
    async with file as f:
        await trio.sleep(1.5)
        assert f.keep(WIDER) is None
        await f.close()


def refuse_changes(core, monkeypatch):
    """Have metadata services refuse to set attributes from now on."""
    call = core.call

    async def refuse(method, request):
        if method.name == "SetAttr":
            raise FsError(Status.NOT_PERMITTED, "no more")
        return await call(method, request)

    monkeypatch.setattr(core, "call", refuse)


async def test_a_refusal_is_told_by_the_close_once(autojump_clock, file, cluster, monkeypatch):
    """Another mount has made it immutable, or given it away, meanwhile."""
    async with file as f:
        f.keep(WIDER)
        cluster.knows_owners = False
        refuse_changes(f.core, monkeypatch)
        with pytest.raises(FsError, match="no more"):
            await f.here.files.flush(f.handle_id)
        assert f.inode_id in f.here.kernel.attributes
        assert shown(f.state.present(f.state.inode)) == ("0o600", 0, 0)
        await f.here.files.flush(f.handle_id)
        await f.here.files.release(f.handle_id)


@pytest.mark.parametrize("end", ["flush", "fsync", "flush_now"])
async def test_a_refusal_is_told_to_who_set_them_whoever_closes_first(
    autojump_clock, file, cluster, monkeypatch, end
):
    """It was told to the first descriptor that was closed,
    and the one that had set them heard nothing.
    """
    async with file as f:
        files, other = f.here.files, (await f.here.open(b"f")).handle_id
        f.keep(WIDER)
        cluster.knows_owners = False
        refuse_changes(f.core, monkeypatch)
        await files.flush(other)
        assert not f.core.owned

        async def flush_now(handle_id):
            files.handle(handle_id).is_dirty = False
            files.flush_now(handle_id)

        ends = {
            "flush": files.flush,
            "fsync": partial(files.fsync, is_data_only=False),
            "flush_now": flush_now,
        }
        with pytest.raises(FsError, match="no more") as said:
            await ends[end](f.handle_id)
        assert said.value.status is Status.NOT_PERMITTED
        for handle_id in (f.handle_id, other):
            await files.flush(handle_id)
            await files.release(handle_id)


async def test_a_refusal_is_told_to_who_closes_where_who_set_them_is_being_released(
    autojump_clock, file, cluster, monkeypatch
):
    """Its RELEASE has begun, and waits for bytes:
    nobody asks it again, and the refusal was lost.
    """
    async with file as f, trio.open_nursery() as nursery:
        files, other = f.here.files, (await f.here.open(b"f")).handle_id
        drain, is_drained = f.core.drain, trio.Event()

        async def drain_late(*args, **options):
            await is_drained.wait()
            return await drain(*args, **options)

        f.keep(WIDER)
        cluster.knows_owners = False
        refuse_changes(f.core, monkeypatch)
        with monkeypatch.context() as patch:
            patch.setattr(f.core, "drain", drain_late)
            nursery.start_soon(files.release, f.handle_id)
            await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(FsError, match="no more"):
            await files.flush(other)
        is_drained.set()
        await trio.testing.wait_all_tasks_blocked()
        await files.flush(other)
        await files.release(other)


async def test_bytes_that_are_refused_take_nothing_else_along(
    autojump_clock, file, cluster, monkeypatch
):
    """The close fails, and the mode is there: a chmod of its own would have been."""
    async with file as f:
        f.keep(WIDER)
        call = f.core.call

        async def refuse(method, request):
            if method.name == "Sync" and request.has_new_data:
                raise FsError(Status.QUOTA_EXCEEDED, "full")
            return await call(method, request)

        monkeypatch.setattr(f.core, "call", refuse)
        with pytest.raises(FsError, match="full"):
            await f.here.files.flush(f.handle_id)
        await f.here.files.release(f.handle_id)
        assert await f.seen(f.there) == ("0o644", 0, 0)
        assert not f.core.owned


async def test_another_writer_does_not_speak_for_who_set_them(autojump_clock, file, cluster):
    """The kernel took the name for absent, so this open is a creation."""
    async with file as f:
        f.keep(WIDER)
        opened, _ = await f.here.files.create(1, b"f", 0o600, RW | os.O_CREAT, USER)
        assert f.state.writer == USER
        assert await f.close() == ["Sync", "Sync"]
        assert await f.seen(f.there) == ("0o644", 0, 0)
        await f.here.close(opened.handle_id)


async def test_a_change_at_once_waits_for_no_byte(autojump_clock, file, cluster):
    async with file as f:
        f.keep(WIDER)
        await f.set(AttrChange(mode=0o400))
        assert await f.seen(f.there) == ("0o400", 0, 0)
        assert f.state.is_dirty
        await f.close()


async def test_one_while_the_close_is_under_way_comes_after_it(
    autojump_clock, file, cluster, monkeypatch
):
    """Else the report, come late, would undo it."""
    async with file as f:
        f.keep(WIDER)
        call, has_begun = f.core.call, trio.Event()

        async def slow(method, request):
            if method.name == "Sync" and not has_begun.is_set():
                has_begun.set()
                await trio.sleep(1)
            return await call(method, request)

        monkeypatch.setattr(f.core, "call", slow)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(f.here.files.flush, f.handle_id)
            await has_begun.wait()
            await f.here.names.setattr(f.inode_id, AttrChange(mode=0o600), None, ROOT)
        assert await f.seen(f.there) == await f.seen(f.here) == ("0o600", 0, 0)
        await f.here.files.release(f.handle_id)


async def test_a_second_descriptor_that_wrote_nothing_makes_them_durable_too(
    autojump_clock, file, cluster
):
    async with file as f:
        second = (await f.here.open(b"f", RW)).handle_id
        f.keep(WIDER)
        assert not f.here.files.flush_now(second)
        await f.here.close(second)
        assert await f.seen(f.there) == ("0o644", 0, 0)
        await f.close()


async def test_the_reply_may_be_used_for_as_long_as_what_meta_told(autojump_clock, file):
    async with file as f:
        await trio.sleep(0.6)
        assert f.keep(WIDER) is not None
        assert f.here.names.usable_s(f.inode_id) == pytest.approx(0.4)
        await f.close()


def access_list(owner, group, other, *more):
    head = struct.pack("<I", 2)
    entries = [(1, owner), (4, group), *more, (32, other)]
    return head + b"".join(struct.pack("<HHI", *entry, 0xFFFFFFFF) for entry in entries)


async def test_a_list_that_says_what_a_mode_says_is_a_mode(autojump_clock, file, cluster):
    """cp sets such a list."""
    name = b"system.posix_acl_access"
    async with file as f:
        names, value = f.here.names, access_list(6, 4, 4)
        assert names.set_list_now(f.inode_id, name, value, ROOT, TAR)
        assert await f.seen(f.here) == ("0o644", 0, 0)
        assert not names.set_list_now(f.inode_id, name, access_list(6, 4, 0), ROOT, TAR)
        assert not names.set_list_now(f.inode_id, b"user.a", value, ROOT, TAR)
        assert await f.close() == ["Sync"]
        assert await f.seen(f.there) == ("0o644", 0, 0)


@pytest.mark.parametrize(
    "value",
    [
        b"",
        access_list(6, 4, 4)[:-1],
        access_list(6, 4, 4, (16, 7)),
        access_list(8, 4, 4),
        struct.pack("<I", 1) + access_list(6, 4, 4)[4:],
        access_list(6, 4, 4)[:-4] + bytes(4),
    ],
    ids=["empty", "cut", "mask", "rights", "version", "somebody"],
)
def test_another_list_is_none(value):
    assert mode_of_list(value) is None


@pytest.mark.parametrize(
    ("mode", "uid", "asked", "may_wait"),
    [
        (0o600, 0, AskedOwner(mode=0o644), True),
        (0o600, 0, AskedOwner(mode=0o600), True),
        (0o644, 0, AskedOwner(mode=0o640), False),
        (0o644, 0, AskedOwner(mode=0o4755), False),
        (0o4644, 0, AskedOwner(mode=0o4755), False),
        (0o4600, 0, AskedOwner(uid=5), False),
        (0o600, 0, AskedOwner(uid=5, gid=6), True),
        (0o600, 4, AskedOwner(uid=5), False),
        (0o600, 4, AskedOwner(uid=4), True),
        (0o066, 0, AskedOwner(uid=5), False),
        (0o640, 0, AskedOwner(gid=6), False),
        (0o604, 0, AskedOwner(gid=6), False),
        (0o644, 0, AskedOwner(gid=6), True),
        (0o640, 0, AskedOwner(gid=3), True),
        (0o640, 0, AskedOwner(mode=0o644, gid=6), False),
    ],
)
def test_what_takes_a_right_from_somebody_does_not_wait(mode, uid, asked, may_wait):
    """The group is 3."""

    assert takes_nothing((mode, uid, 3), asked) is may_wait
