"""Attributes of directories that replies to changes of names bring along:
used, and never wrong for this mount.
"""

# ruff: noqa: ARG001 - pytest-trio finds the virtual clock among a test's own arguments
from dataclasses import replace

import pytest
import trio

from fs.client.vfs.changing_attributes import AttrChange
from fs.schema.inode import inode_to_pb
from fs.schema.services import META_LIST
from tests.client.vfs.conftest import ROOT

D = b"d"


@pytest.fixture
async def vfs(mounts):
    async with mounts() as mount:
        yield mount.vfs


@pytest.fixture
async def directory(vfs):
    return (await vfs.namespace.mkdir(1, D, 0o755, ROOT)).inode_id


def told(vfs, inode_id):
    found = vfs.namespace.told(inode_id)
    return None if found is None else found[0]


async def changes(vfs, d):
    """Do each change of names once; yield what it was."""
    names = vfs.namespace
    inode = await names.mknod(d, b"file", 0o100644, ROOT)
    yield "mknod"
    await names.mkdir(d, b"sub", 0o755, ROOT)
    yield "mkdir"
    await names.symlink(d, b"to", b"there", ROOT)
    yield "symlink"
    await names.link(inode.inode_id, d, b"second", ROOT)
    yield "link"
    await names.rename((d, b"second"), (d, b"third"), ROOT)
    yield "rename"
    await names.unlink(d, b"third", ROOT)
    yield "unlink"
    await names.rmdir(d, b"sub", ROOT)
    yield "rmdir"
    opened, _ = await vfs.files.create(d, b"open", 0o644, 2, ROOT)
    yield "create"
    await vfs.files.release(opened.handle_id)


async def test_each_change_tells_what_its_directory_is_then(
    autojump_clock, vfs, cluster, directory
):
    async for what in changes(vfs, directory):
        assert told(vfs, directory) == cluster.get(directory), what


async def test_it_is_used_for_as_long_as_attributes_and_no_longer(autojump_clock, vfs, directory):
    await vfs.namespace.mkdir(directory, b"sub", 0o755, ROOT)
    _, left_s = vfs.namespace.told(directory)
    assert left_s == pytest.approx(vfs.section.attr_timeout_s)
    autojump_clock.jump(vfs.section.attr_timeout_s / 2)
    _, left_s = vfs.namespace.told(directory)
    assert left_s == pytest.approx(vfs.section.attr_timeout_s / 2)
    autojump_clock.jump(vfs.section.attr_timeout_s / 2)
    assert vfs.namespace.told(directory) is None


async def test_newer_attributes_take_its_place(autojump_clock, vfs, directory):
    await vfs.namespace.mkdir(directory, b"sub", 0o755, ROOT)
    await vfs.namespace.getattr(directory, ROOT)
    assert vfs.namespace.told(directory) is None


@pytest.mark.parametrize("is_late", [False, True])
async def test_a_change_of_the_directory_itself_is_seen(
    autojump_clock, vfs, cluster, directory, is_late
):
    """Also when a reply from before it comes after it (late)."""
    core = vfs.namespace._core
    await vfs.namespace.mkdir(directory, b"sub", 0o755, ROOT)
    mark, before = core.told.mark(), inode_to_pb(cluster.get(directory))
    await vfs.namespace.setattr(directory, AttrChange(mode=0o700), None, ROOT)
    if is_late:
        core.note_told([before], mark)
    assert told(vfs, directory) is None
    mark, before = core.told.mark(), inode_to_pb(cluster.get(directory))
    await vfs.namespace.setxattr(directory, b"user.x", b"1", ROOT)
    if is_late:
        core.note_told([before], mark)
    assert told(vfs, directory) is None


async def test_a_change_whose_reply_is_not_taken_is_seen_too(
    autojump_clock, vfs, cluster, directory
):
    """Somebody changes another one's attributes meanwhile;
    what was told before the change does not show it.
    """
    inode = await vfs.namespace.mknod(directory, b"f", 0o100644, ROOT)
    change = vfs.namespace.making_directory(directory, b"sub", 0o755, ROOT)
    await vfs.namespace.setattr(inode.inode_id, AttrChange(mode=0o600), None, ROOT)
    await vfs.namespace.make(change)
    assert told(vfs, directory) in (None, cluster.get(directory))


async def test_a_removed_directory_is_not_told(autojump_clock, vfs, directory):
    await vfs.namespace.mkdir(directory, b"sub", 0o755, ROOT)
    await vfs.namespace.rmdir(directory, b"sub", ROOT)
    assert told(vfs, directory) is not None
    await vfs.namespace.rmdir(1, D, ROOT)
    assert told(vfs, directory) is None


async def test_replies_that_pass_each_other_do_not_show_the_older(
    autojump_clock, vfs, cluster, directory
):
    core = vfs.namespace._core
    mark, before = core.told.mark(), inode_to_pb(cluster.get(directory))
    opened, _ = await vfs.files.create(directory, b"f", 0o644, 2, ROOT)
    core.note_told([before], mark)
    assert told(vfs, directory) == cluster.get(directory), "only times differed: the newer ones"
    await vfs.namespace.mkdir(directory, b"sub", 0o755, ROOT)
    core.note_told([before], mark)
    assert told(vfs, directory) is None, "they differ in links: nobody knows"
    await vfs.files.release(opened.handle_id)


async def test_what_a_late_reply_confirms_does_not_live_longer(
    autojump_clock, vfs, cluster, directory
):
    core, age_s = vfs.namespace._core, vfs.section.attr_timeout_s
    mark, before = core.told.mark(), inode_to_pb(cluster.get(directory))
    opened, _ = await vfs.files.create(directory, b"f", 0o644, 2, ROOT)
    autojump_clock.jump(age_s * 0.75)
    core.note_told([before], mark)
    _, left_s = vfs.namespace.told(directory)
    assert left_s == pytest.approx(age_s * 0.25)
    await vfs.files.release(opened.handle_id)


async def test_what_is_found_and_what_is_not_is_counted(autojump_clock, vfs, directory):
    counted = vfs._core.told
    assert told(vfs, 12345) is None
    assert (counted.hit_count, counted.miss_count) == (0, 1)
    await vfs.namespace.mkdir(directory, b"sub", 0o755, ROOT)
    assert told(vfs, directory) is not None
    assert (counted.hit_count, counted.miss_count) == (1, 1)


async def listed(vfs, inode_id, meanwhile=None):
    """List a directory; `meanwhile` is done when meta has read it and its reply is on its way."""
    meta, handle_id = vfs.namespace._core.meta, vfs.directories.opendir(inode_id, ROOT)
    call = meta.call

    async def late(method, request, **options):
        reply = await call(method, request, **options)
        if method is META_LIST and meanwhile is not None:
            await meanwhile()
        return reply

    meta.call = late
    entries = await vfs.directories.readdir(handle_id, 0)
    meta.call = call
    vfs.directories.releasedir(handle_id)
    return [entry.name for entry in entries]


async def test_a_listing_tells_what_its_directory_is(autojump_clock, vfs, cluster, directory):
    """The kernel takes what it has read for accessed, and asks."""
    await vfs.namespace.mkdir(directory, b"sub", 0o755, ROOT)
    await vfs.namespace.getattr(directory, ROOT)
    assert told(vfs, directory) is None
    cluster.calls.clear()
    assert await listed(vfs, directory) == [b"sub"]
    assert told(vfs, directory) == cluster.get(directory)
    assert cluster.calls == ["List"]


async def test_a_listing_of_a_removed_directory_or_an_earlier_service_tells_nothing(
    autojump_clock, vfs, cluster, directory
):
    handle_id = vfs.directories.opendir(directory, ROOT)
    await vfs.namespace.rmdir(1, D, ROOT)
    cluster.inodes[directory] = replace(cluster.get(1), inode_id=directory, nlink=0)
    cluster.names[directory] = {}
    assert await vfs.directories.readdir(handle_id, 0) == []
    assert told(vfs, directory) is None


@pytest.mark.parametrize("what", ["name", "other name", "attributes", "kernel is told"])
async def test_what_a_listing_told_before_something_newer_is_not_told(
    autojump_clock, vfs, cluster, directory, what
):
    names = vfs.namespace
    await names.mkdir(directory, b"sub", 0o755, ROOT)
    autojump_clock.jump(2)

    async def meanwhile():
        if what == "name":
            await names.mkdir(directory, b"second", 0o755, ROOT)
            autojump_clock.jump(vfs.section.attr_timeout_s)
        elif what == "other name":
            await names.rmdir(directory, b"sub", ROOT)
            await names.getattr(directory, ROOT)
        elif what == "attributes":
            await names.setattr(directory, AttrChange(mode=0o700), None, ROOT)
        else:  # of what another mount has done
            cluster.inodes[directory] = replace(
                cluster.get(directory), mode=0o711, ctime_ns=1 << 62
            )
            await names.getattr(directory, ROOT)

    await listed(vfs, directory, meanwhile)
    assert told(vfs, directory) is None


async def test_what_a_listing_told_grows_older_while_more_is_asked_for(
    autojump_clock, vfs, cluster, directory
):
    await vfs.namespace.mkdir(directory, b"sub", 0o755, ROOT)
    autojump_clock.jump(10)
    meta, handle_id = vfs.namespace._core.meta, vfs.directories.opendir(directory, ROOT)
    call = meta.call

    async def slow(method, request, **options):
        reply = await call(method, request, **options)
        if method is META_LIST:  # as to who may not search it
            for entry in reply.entries:
                entry.ClearField("inode")
        else:
            await trio.sleep(vfs.section.attr_timeout_s * 0.75)
        return reply

    meta.call = slow
    assert [entry.name for entry in await vfs.directories.readdir(handle_id, 0)] == [b"sub"]
    _, left_s = vfs.namespace.told(directory)
    assert left_s == pytest.approx(vfs.section.attr_timeout_s * 0.25)
