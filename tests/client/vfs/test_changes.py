# ruff: noqa: ARG001 - pytest-trio finds the virtual clock among a test's own arguments
"""What the kernel is handed is not from before what was done through this mount,
or was seen since.
"""

import math
import os

import pytest
import trio

from fs.client.fuse.direct import protocol as p
from fs.client.fuse.direct.device import Request
from fs.client.fuse.direct.directory_requests import DirectoryRequests
from fs.client.fuse.direct.protocol import Opcode
from fs.client.vfs.changes import COUNT_MAX, Changes
from fs.client.vfs.changing_attributes import AttrChange
from fs.client.vfs.handles import TakesTaskError
from fs.client.vfs.shown_names import ShownNames
from fs.schema.ids import InodeId
from fs.schema.proto import meta_pb2
from fs.schema.services import META_GET_ATTR, META_LINK, META_LIST, META_LOOKUP, META_SET_ATTR
from fs.schema.status import FsError, Status

from .conftest import ROOT, RW


def test_what_changed_since_a_mark_is_found():
    told = []
    changes = Changes(told.append)
    before = changes.mark()
    changes.note_inode(7)
    changes.note_name(1, b"f")
    assert changes.is_since(before, 7) and changes.is_name_since(before, 1, b"f")
    assert not changes.is_since(before, 8) and not changes.is_name_since(before, 1, b"g")
    after = changes.mark()
    assert not changes.is_since(after, 7) and not changes.is_name_since(after, 1, b"f")
    assert told == [7, 1], "a name changes its directory"


def test_what_is_forgotten_counts_as_changed():
    changes = Changes([].append)
    before = changes.mark()
    for inode_id in range(COUNT_MAX + 5):
        changes.note_inode(inode_id)
    after = changes.mark()
    changes.note_inode(1)
    assert changes.is_since(before, COUNT_MAX * 9), "nobody knows any more"
    assert not changes.is_since(after, COUNT_MAX * 9)


async def listed(mount, handle_id, cookie):
    entries = await mount.vfs.directories.readdir(handle_id, cookie, 2)
    return [(e.name, e.inode.length) for e in entries], entries[-1].cookie if entries else 0


async def test_a_listing_goes_on_with_what_is_there_then(mounts, autojump_clock):
    async with mounts() as mount:
        for name in (b"a", b"b", b"c", b"d", b"e", b"f"):
            await mount.write_file(name, b"old")
        handle_id = mount.vfs.directories.opendir(1, ROOT)
        found, cookie = await listed(mount, handle_id, 0)
        assert found == [(b"a", 3), (b"b", 3)]
        await mount.names.unlink(1, b"c", ROOT)
        await mount.write_file(b"d", b"newer")
        await mount.names.rename((1, b"e"), (1, b"g"), ROOT)
        found, cookie = await listed(mount, handle_id, cookie)
        assert found == [(b"d", 5), (b"f", 3)]
        still_open = await mount.create(b"g")
        await mount.files.write(still_open, 0, b"longer than before")
        found, cookie = await listed(mount, handle_id, cookie)
        assert found == [(b"g", 18)]
        assert await listed(mount, handle_id, cookie) == ([], 0)
        await mount.close(still_open)
        mount.vfs.directories.releasedir(handle_id)


async def test_each_open_of_a_listed_name_says_which_it_means(mounts, autojump_clock):
    """Also the second one: the kernel looks up what a listing showed only
    when a second has passed.
    """
    async with mounts(2) as (one, other):
        await one.write_file(b"f", b"old")
        inode = await other.names.lookup(1, b"f", ROOT)
        other.names.give_listed(1, b"f", inode)
        held = await other.files.open(inode.inode_id, os.O_RDONLY, ROOT)
        await one.write_file(b"g", b"new")
        await one.names.rename((1, b"g"), (1, b"f"), ROOT)
        for _ in range(2):
            with pytest.raises(FsError) as caught:
                await other.files.open(inode.inode_id, os.O_RDONLY, ROOT)
            assert caught.value.status is Status.STALE
        assert await other.read_file(b"f") == b"new"
        await other.close(held.handle_id)


async def test_a_file_with_two_names_is_looked_up_by_each(mounts, autojump_clock):
    async with mounts() as mount:
        await mount.write_file(b"f", b"old")
        inode = await mount.stat(b"f")
        assert mount.names.listed.may_use(1, b"f", inode)
        inode = await mount.names.link(inode.inode_id, 1, b"g", ROOT)
        assert not mount.names.listed.may_use(1, b"f", inode)


async def test_a_listed_name_that_leads_elsewhere_is_not_opened_for_the_new_one(
    autojump_clock, mounts
):
    """The kernel may still take the inode by the old name, with O_TRUNC, say:
    nobody gets it by another one until it does not.
    """
    async with mounts(2) as (one, other):
        await one.write_file(b"f", b"old")
        inode = await other.stat(b"f")
        other.names.give_listed(1, b"f", inode)
        await one.names.rename((1, b"f"), (1, b"g"), ROOT)
        assert not other.names.listed.may_use(1, b"g", inode)
        began_s = trio.current_time()
        found = await other.names.lookup(1, b"g", ROOT)
        assert found.inode_id == inode.inode_id
        assert trio.current_time() - began_s >= 1.0
        opened = await other.files.open(inode.inode_id, os.O_RDONLY, ROOT)
        await other.close(opened.handle_id)


async def test_a_listing_from_before_a_look_up_by_another_name_does_not_have_its_open_refused(
    autojump_clock, mounts, monkeypatch
):
    """Seed 1100017 of the simulation through the caches of Linux:
    that open was the kernel's last try.
    """
    async with mounts(2) as (one, other):
        core, answers = other.vfs._core, []
        usual = core.meta.call

        async def slow(method, request, **others):
            reply = await usual(method, request, **others)
            if method is META_LIST:
                await trio.sleep(0.2)
            return reply

        async def list_all():
            body = p.READ_IN.pack(
                other.vfs.directories.opendir(InodeId(1), ROOT), 0, 4096, *[0] * 4
            )
            request = Request(2, Opcode.READDIRPLUS, 1, 0, 0, 0, body)
            parts = await DirectoryRequests(other.vfs, core.runtime)._readdirplus(request)
            *_, last = parts
            answers.append((last[-8:].rstrip(b"\0"), p.ENTRY_OUT.unpack_from(last)[2]))

        monkeypatch.setattr(core.meta, "call", slow)
        await one.write_file(b"f.part", b"new")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(list_all)
            await trio.sleep(0.1)
            await one.names.rename((1, b"f.part"), (1, b"f"), ROOT)
            inode = await other.stat(b"f")
        opened = await other.files.open(inode.inode_id, os.O_RDONLY, ROOT)
        await other.close(opened.handle_id)
        await list_all()
        assert answers == [(b"f.part", 0), (b"f", 1)], "and how long the kernel may use it, s"


async def test_a_listed_name_is_still_good_beside_another_one(autojump_clock, mounts):
    async with mounts(2) as (one, other):
        await one.write_file(b"f", b"old")
        inode = await other.stat(b"f")
        other.names.give_listed(1, b"f", inode)
        await one.names.link(inode.inode_id, 1, b"g", ROOT)
        began_s = trio.current_time()
        await other.names.lookup(1, b"g", ROOT)
        assert trio.current_time() - began_s < 0.5
        await one.names.unlink(1, b"f", ROOT)
        with pytest.raises(FsError) as caught:
            await other.files.open(inode.inode_id, os.O_RDWR | os.O_TRUNC, ROOT)
        assert caught.value.status is Status.STALE
        assert await other.read_file(b"g") == b"old"


async def test_a_listed_name_that_was_removed_here_keeps_nobody_waiting(autojump_clock, mounts):
    async with mounts() as mount:
        await mount.write_file(b"f", b"old")
        inode = await mount.stat(b"f")
        mount.names.give_listed(1, b"f", inode)
        await mount.names.link(inode.inode_id, 1, b"g", ROOT)
        await mount.names.unlink(1, b"f", ROOT)
        began_s = trio.current_time()
        assert await mount.read_file(b"g") == b"old"
        assert trio.current_time() - began_s < 0.5


async def test_of_two_replies_at_once_the_kernel_may_have_taken_the_older_one(
    mounts, autojump_clock
):
    """Whose request it sent first: it takes nothing then from the other one."""
    async with mounts(2) as (one, other):
        await one.write_file(b"f", b"old")
        inode = await other.stat(b"f")
        await one.write_file(b"f", b"newer")
        await other.stat(b"f")
        opened = await other.files.open(inode.inode_id, os.O_RDONLY, ROOT)
        assert other.kernel.attributes == [inode.inode_id]
        again = await other.files.open(inode.inode_id, os.O_RDONLY, ROOT)
        assert other.kernel.attributes == [inode.inode_id], "forgotten once is enough"
        for handle_id in (opened.handle_id, again.handle_id):
            await other.close(handle_id)


@pytest.mark.parametrize(
    "change", [AttrChange(length=2), AttrChange(mode=0o600)], ids=["cut", "mode"]
)
async def test_what_another_mount_changes_after_an_own_change_is_not_taken_for_that(
    mounts, autojump_clock, change
):
    """A listing tells of it that was under way beside the own change:
    the kernel takes nothing from it.
    """
    async with mounts(2) as (here, there):
        await there.write_file(b"f", b"old")
        inode_id = (await here.stat(b"f")).inode_id
        await here.names.setattr(inode_id, change, None, ROOT)
        await there.write_file(b"f", b"newer")
        here.names.give_listed(InodeId(1), b"f", await there.stat(b"f"))
        here.kernel.attributes.clear()
        await here.files.open(inode_id, os.O_RDONLY, ROOT)
        assert here.kernel.attributes == [inode_id]
        await here.files.release_all()


async def test_what_another_mount_has_cut_is_not_taken_for_what_was_written_here_since(
    mounts, autojump_clock
):
    """Seed 180141 of the simulation through the caches of Linux:
    the kernel had sent the request for a listing before it wrote, and took nothing from it.
    """
    async with mounts(2) as (here, there):
        await here.write_file(b"f", b"x" * 100)
        handle_id = (await here.open(b"f", RW)).handle_id
        await here.stat(b"f")
        await there.close((await there.open(b"f", RW | os.O_TRUNC)).handle_id)
        await here.files.write(handle_id, 0, b"y" * 10)
        inode, _ = here.names.told(here.files.handle(handle_id).state.inode_id)
        assert inode.length == 100, "of the other mount's truncation nothing is known"
        await here.files.fsync(handle_id, is_data_only=False)
        here.names.give_listed(InodeId(1), b"f", await there.stat(b"f"))
        await here.close(handle_id)
        here.kernel.attributes.clear()
        handle_id = (await here.open(b"f", os.O_RDONLY)).handle_id
        assert here.kernel.attributes == [inode.inode_id]
        assert here.files.handle(handle_id).state.local_length() == 10
        await here.close(handle_id)


@pytest.mark.parametrize("is_closed", [True, False])
async def test_what_another_mount_writes_behind_own_bytes_is_not_taken_for_them(
    mounts, autojump_clock, is_closed
):
    """The kernel may take nothing from the listing that tells of both,
    since it has written meanwhile itself.
    """
    async with mounts(2) as (here, there):
        await there.write_file(b"f", b"old")
        h = (await here.open(b"f")).handle_id
        inode_id = here.files.open_state(h).inode_id
        await here.files.write(h, 0, b"own bytes")
        if is_closed:
            await here.close(h)
        else:
            await here.files.fsync(h, is_data_only=False)
        theirs = (await there.open(b"f")).handle_id
        await there.files.write(theirs, 20, b"theirs")
        await there.close(theirs)
        here.names.give_listed(InodeId(1), b"f", await there.stat(b"f"))
        here.kernel.attributes.clear()
        await here.files.open(inode_id, os.O_RDONLY, ROOT)
        assert here.kernel.attributes == [inode_id]
        await here.files.release_all()


@pytest.mark.parametrize("is_overtaken", [True, False])
async def test_what_was_told_after_the_kernel_had_asked_for_a_listing_counts_in_its_place(
    mounts, autojump_clock, is_overtaken
):
    """Seed 1000030 of the simulation through the caches of Linux:
    another mount had written to the file, whose length was the same, as this one had.
    """
    async with mounts(2) as (here, there):
        await there.write_file(b"f", b"old")
        h = (await here.open(b"f")).handle_id
        inode_id = here.files.open_state(h).inode_id
        await here.files.write(h, 0, b"own")
        asked_s = trio.current_time()
        await trio.sleep(0.1)
        await here.names.getattr(inode_id, ROOT)
        await here.close(h)
        await trio.sleep(0.1)
        if not is_overtaken:
            asked_s = trio.current_time()
        h = (await there.open(b"f")).handle_id
        await there.files.write(h, 0, b"new")
        await there.close(h)
        inode = await there.stat(b"f")
        shown = ShownNames(trio.current_time(), 1.0, asked_s)
        here.names.give_listed(InodeId(1), b"f", inode, shown=shown)
        here.kernel.attributes.clear()
        await here.files.open(inode_id, os.O_RDONLY, ROOT)
        assert here.kernel.attributes == [inode_id] * is_overtaken
        await here.files.release_all()


@pytest.mark.parametrize("flags", [os.O_RDWR, os.O_RDWR | os.O_TRUNC])
async def test_who_writes_a_file_alone_has_nothing_to_forget(mounts, autojump_clock, flags):
    async with mounts() as mount:
        await mount.write_file(b"f", bytes(100))
        inode_id = (await mount.stat(b"f")).inode_id
        whole = 100
        for length in (50, 150, 20):
            whole = length if flags & os.O_TRUNC else max(length, whole)
            h = (await mount.open(b"f", flags)).handle_id
            await mount.files.write(h, 0, bytes(length))
            mount.kernel.attributes.clear()
            await mount.close(h)
            assert (await mount.stat(b"f")).length == whole
            await mount.files.open(inode_id, os.O_RDONLY, ROOT)
            assert not mount.kernel.attributes
        await mount.files.release_all()


async def test_the_kernel_knows_of_changes_through_its_own_mount(mounts, autojump_clock):
    async with mounts() as mount:
        await mount.write_file(b"f", b"old")
        await mount.stat(b"f")
        await mount.write_file(b"f", b"newer")
        mount.kernel.attributes.clear()  # it was emptied by its open, which the kernel is told
        await mount.stat(b"f")
        handle_id = (await mount.open(b"f", os.O_RDONLY)).handle_id
        assert mount.kernel.attributes == []
        await mount.close(handle_id)


async def test_a_look_up_that_was_under_way_during_a_write_is_done_again(
    mounts, cluster, autojump_clock
):
    async with mounts() as mount:
        await mount.write_file(b"f", b"old")
        mark = mount.names.mark_now()
        request = meta_pb2.LookupReq(caller=ROOT.to_pb(), parent_inode_id=1, name=b"f")
        late = await cluster.meta().call(META_LOOKUP, request)
        await mount.write_file(b"f", b"newer")
        with pytest.raises(TakesTaskError):
            mount.names.looked_up(1, b"f", late, mark)
        assert (await mount.stat(b"f")).length == 5


async def test_no_open_goes_by_what_the_kernel_is_still_to_forget(mounts, autojump_clock):
    """Two at once: the second one has to wait as well."""
    async with mounts(2) as (one, other):
        await one.write_file(b"f", b"old")
        inode = await other.stat(b"f")
        await one.write_file(b"f", b"newer")
        asked, may_forget, opened = [], trio.Event(), []

        async def forget(inode_id):
            asked.append(inode_id)
            await may_forget.wait()

        async def open_it():
            opened.append(await other.files.open(inode.inode_id, os.O_RDONLY, ROOT))

        other.kernel.invalidate_attributes = forget
        async with trio.open_nursery() as nursery:
            nursery.start_soon(open_it)
            nursery.start_soon(open_it)
            await trio.sleep(1)
            assert len(asked) == 2 and not opened
            may_forget.set()
        for found in opened:
            await other.close(found.handle_id)


async def test_an_open_has_the_kernel_forget_a_time_of_change_that_another_mount_has_replaced(
    autojump_clock, mounts
):
    """As it does with a length: who opens a file sees when it was changed last."""
    async with mounts(2) as (here, there):
        await there.write_file(b"f", b"old")
        inode_id = (await here.stat(b"f")).inode_id
        assert (await here.names.getattr(inode_id, ROOT)).length == 3
        await there.write_file(b"f", b"new")
        assert here.kernel.attributes == []
        await here.files.open(inode_id, os.O_RDONLY, ROOT)
        assert here.kernel.attributes == [inode_id]
        await here.files.open(inode_id, os.O_RDONLY, ROOT)
        assert here.kernel.attributes == [inode_id]  # it has forgotten it
        await here.names.getattr(inode_id, ROOT)
        await there.names.setattr(inode_id, AttrChange(mtime_ns=5), None, ROOT)
        await here.files.open(inode_id, os.O_RDONLY, ROOT)
        assert here.kernel.attributes == [inode_id] * 2
        await here.names.getattr(inode_id, ROOT)
        await there.names.setattr(inode_id, AttrChange(mtime_ns=6), None, ROOT)
        await trio.sleep(1.1)  # the kernel may have taken the reply in a little after it was sent
        await here.files.open(inode_id, os.O_RDONLY, ROOT)
        assert here.kernel.attributes == [inode_id] * 3
        await here.files.release_all()


async def test_an_open_after_own_writes_costs_nothing_more(autojump_clock, mounts):
    """The kernel has forgotten the time itself, when it wrote."""
    async with mounts() as here:
        await here.write_file(b"f", b"old")
        inode_id = (await here.stat(b"f")).inode_id
        here.kernel.attributes.clear()
        handle_id = (await here.files.open(inode_id, os.O_RDWR, ROOT)).handle_id
        await here.files.write(handle_id, 0, b"new")
        await here.close(handle_id)
        await here.files.open(inode_id, os.O_RDONLY, ROOT)
        assert here.kernel.attributes == []
        await here.files.release_all()


def look_up_after(monkeypatch, mount, act):
    """Have something done before each look-up is answered that a listing makes
    of what has changed meanwhile.
    """
    usual, is_listed = mount.vfs._core.call, []

    async def call(method, request):
        if method is META_LOOKUP and is_listed:
            await act(request.name)
        reply = await usual(method, request)
        if method is META_LIST and not is_listed:
            is_listed.append(True)
            await act(b"")
        return reply

    monkeypatch.setattr(mount.vfs._core, "call", call)


async def test_a_listing_shows_what_changes_while_it_asks_for_something_else_that_did(
    mounts, autojump_clock, monkeypatch
):
    async with mounts() as mount:
        await mount.write_file(b"b", b"old")
        first = await mount.create(b"a")
        await mount.files.write(first, 0, b"written before")

        async def act(name):
            if not name:
                await mount.write_file(b"b", b"newer")
            elif mount.files._handles:
                await mount.close(first)

        look_up_after(monkeypatch, mount, act)
        handle_id = mount.vfs.directories.opendir(1, ROOT)
        assert await listed(mount, handle_id, 0) == ([(b"a", 14), (b"b", 5)], 2)
        mount.vfs.directories.releasedir(handle_id)


async def test_a_listing_ends_though_what_it_lists_changes_all_the_time(
    mounts, autojump_clock, monkeypatch
):
    """The kernel then asks at once."""
    async with mounts() as mount:
        names = {b"a": b"b", b"b": b"a"}
        for name in names:
            await mount.write_file(name, b"old")
        lengths = iter(range(1, 1000))

        async def act(name):
            for changed in [names[name]] if name else names:
                inode_id = (await mount.cluster.meta().call(META_LOOKUP, look_up(changed))).inode
                length = AttrChange(length=next(lengths))
                await mount.names.setattr(InodeId(inode_id.inode_id), length, None, ROOT)

        look_up_after(monkeypatch, mount, act)
        handle_id = mount.vfs.directories.opendir(1, ROOT)
        with trio.fail_after(60):
            entries = await mount.vfs.directories.readdir(handle_id, 0)
        assert [entry.name for entry in entries] == [b"a", b"b"]
        ages = [mount.vfs.directories.age_s(entry) for entry in entries]
        assert max(ages) == math.inf
        mount.vfs.directories.releasedir(handle_id)


def look_up(name):
    return meta_pb2.LookupReq(caller=ROOT.to_pb(), parent_inode_id=1, name=name)


@pytest.mark.parametrize("how", ["lookup", "getattr"])
async def test_a_late_answer_does_not_set_back_the_times_of_an_open_file(
    mounts, autojump_clock, monkeypatch, how
):
    """It is from before the report of what was written, and comes after it."""
    async with mounts() as mount:
        handle_id = await mount.create(b"f")
        before = await mount.stat(b"f")
        await trio.sleep(1)
        await mount.files.write(handle_id, 0, b"content")
        usual, asked = mount.vfs._core.call, {"lookup": META_LOOKUP, "getattr": META_GET_ATTR}[how]

        async def call(method, request):
            reply = await usual(method, request)
            if method is asked:
                await mount.files.fsync(handle_id, is_data_only=False)
            return reply

        with monkeypatch.context() as patched:
            patched.setattr(mount.vfs._core, "call", call)
            if how == "lookup":
                found = await mount.stat(b"f")
            else:
                found = await mount.names.getattr(before.inode_id, ROOT)
        assert (found.length, found.mtime_ns) == (7, (await mount.stat(b"f")).mtime_ns)
        assert found.mtime_ns > before.mtime_ns
        await mount.close(handle_id)


async def _chmod(mount, inode_id):
    return await mount.names.setattr(inode_id, AttrChange(mode=0o600), None, ROOT)


async def _link(mount, inode_id):
    return await mount.names.link(inode_id, 1, b"g", ROOT)


@pytest.mark.parametrize(("act", "method"), [(_chmod, META_SET_ATTR), (_link, META_LINK)])
async def test_who_changes_a_file_is_told_what_a_close_has_reported_meanwhile(
    mounts, autojump_clock, monkeypatch, act, method
):
    """The kernel takes what a change of its own tells for the newest, whenever it is told."""
    async with mounts() as mount:
        handle_id = await mount.create(b"f")
        inode_id = (await mount.stat(b"f")).inode_id
        await trio.sleep(1)
        await mount.files.write(handle_id, 0, b"content")
        usual = mount.vfs._core.call

        async def call(asked, request):
            reply = await usual(asked, request)
            if asked is method:
                await mount.close(handle_id)
            return reply

        with monkeypatch.context() as patched:
            patched.setattr(mount.vfs._core, "call", call)
            found = await act(mount, inode_id)
        newest = await mount.stat(b"f")
        assert (found.length, found.mtime_ns) == (newest.length, newest.mtime_ns)
        assert (found.length, found.mode, found.nlink) == (7, newest.mode, newest.nlink)
