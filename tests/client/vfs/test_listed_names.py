# ruff: noqa: ARG001 - pytest-trio finds the virtual clock among a test's own arguments
"""Names that a listing has shown, used without a look-up:
no change by one of them meets what another mount has put elsewhere since.
"""

import os

import pytest
import trio

from fs.client.vfs.changing_attributes import AttrChange
from fs.schema.status import FsError, Status

from .conftest import ROOT

CHANGES = {
    "truncate": lambda names, inode_id: names.setattr(inode_id, AttrChange(length=0), None, ROOT),
    "chmod": lambda names, inode_id: names.setattr(inode_id, AttrChange(mode=0o600), None, ROOT),
    "utimes": lambda names, inode_id: names.setattr(inode_id, AttrChange(mtime_ns=1), None, ROOT),
    "setxattr": lambda names, inode_id: names.setxattr(inode_id, b"user.x", b"1", ROOT),
    "removexattr": lambda names, inode_id: names.removexattr(inode_id, b"user.x", ROOT),
    "link": lambda names, inode_id: names.link(inode_id, 1, b"other", ROOT),
}


@pytest.mark.parametrize("what", [*CHANGES])
@pytest.mark.parametrize("how", ["replaced", "moved", "removed"])
async def test_a_change_by_a_name_that_leads_elsewhere_by_now_is_refused(
    autojump_clock, mounts, cluster, what, how
):
    async with mounts(2) as (here, there):
        await here.write_file(b"f", b"old")
        await there.write_file(b"g", b"new")
        inode = await here.stat(b"f")
        here.names.forget(inode.inode_id, 99)
        here.names.give_listed(1, b"f", inode)
        if how == "replaced":
            await there.names.rename((1, b"g"), (1, b"f"), ROOT)
        elif how == "moved":
            await there.names.rename((1, b"f"), (1, b"h"), ROOT)
        else:
            await there.names.unlink(1, b"f", ROOT)
        before = cluster.inodes.get(inode.inode_id)
        with pytest.raises(FsError) as caught:
            await CHANGES[what](here.names, inode.inode_id)
        assert caught.value.status is Status.STALE  # the kernel looks the name up and tries again
        assert cluster.inodes.get(inode.inode_id) == before
        assert b"other" not in cluster.names[1]


@pytest.mark.parametrize("kind", ["link", "pipe"])
async def test_a_change_of_what_is_no_file_is_refused_too(autojump_clock, mounts, cluster, kind):
    async with mounts(2) as (here, there):
        if kind == "link":
            inode = await here.names.symlink(1, b"f", b"there", ROOT)
        else:
            inode = await here.names.mknod(1, b"f", 0o010644, ROOT)
        assert here.names.listed.may_use(1, b"f", inode) == (kind != "link")
        here.names.give_listed(1, b"f", inode)
        if kind == "link":  # the kernel looks it up: what it leads to may be another thing by now
            assert here.vfs._core.known[inode.inode_id].listed_as is None
            return
        await there.write_file(b"g", b"new")
        await there.names.rename((1, b"g"), (1, b"f"), ROOT)
        with pytest.raises(FsError) as caught:
            await here.names.setattr(inode.inode_id, AttrChange(uid=7), None, ROOT)
        assert caught.value.status is Status.STALE


async def test_who_has_the_file_open_means_it_whatever_it_is_called(autojump_clock, mounts):
    async with mounts(2) as (here, there):
        await here.write_file(b"f", b"old")
        handle_id = (await here.open(b"f", os.O_RDONLY)).handle_id
        inode = await here.stat(b"f")
        here.names.give_listed(1, b"f", inode)
        await there.names.rename((1, b"f"), (1, b"h"), ROOT)
        changed = await here.names.setattr(inode.inode_id, AttrChange(mode=0o600), None, ROOT)
        assert changed.mode == 0o600
        await here.close(handle_id)


async def test_once_the_kernel_has_looked_a_name_up_again_nothing_is_expected_of_it(
    autojump_clock, mounts
):
    """Not before: a request may have waited for long, where the mount daemon was stopped."""
    async with mounts(2) as (here, there):
        await here.write_file(b"f", b"old")
        inode = await here.stat(b"f")
        here.names.give_listed(1, b"f", inode)
        await there.names.rename((1, b"f"), (1, b"h"), ROOT)
        await trio.sleep(1.5)
        with pytest.raises(FsError) as caught:
            await here.names.setattr(inode.inode_id, AttrChange(mode=0o600), None, ROOT)
        assert caught.value.status is Status.STALE
        assert (await here.stat(b"h")).inode_id == inode.inode_id
        changed = await here.names.setattr(inode.inode_id, AttrChange(mode=0o600), None, ROOT)
        assert changed.mode == 0o600


async def test_names_that_are_exchanged_here_keep_nobody_waiting(autojump_clock, mounts):
    """The kernel takes what it knows of both names along."""
    async with mounts() as here:
        await here.write_file(b"a", b"1")
        await here.write_file(b"b", b"22")
        for name in (b"a", b"b"):
            here.names.give_listed(1, name, await here.stat(name))
        await here.names.rename((1, b"a"), (1, b"b"), ROOT, exchange=True)
        began_s = trio.current_time()
        assert await here.read_file(b"a") == b"22"
        assert await here.read_file(b"b") == b"1"
        assert trio.current_time() - began_s < 0.5


async def test_a_name_that_is_replaced_here_keeps_nobody_waiting_who_comes_by_another(
    autojump_clock, mounts
):
    """The kernel has forgotten what it knew of the name."""
    async with mounts() as here:
        for name in (b"a", b"b"):
            await here.write_file(name, name)
        inode = await here.stat(b"a")
        here.names.give_listed(1, b"a", inode)
        await here.names.link(inode.inode_id, 1, b"other", ROOT)
        await here.names.rename((1, b"b"), (1, b"a"), ROOT)
        began_s = trio.current_time()
        changed = await here.names.setattr(inode.inode_id, AttrChange(mode=0o600), None, ROOT)
        assert changed.mode == 0o600
        assert await here.read_file(b"other") == b"a"
        assert trio.current_time() - began_s < 0.5


async def test_a_file_is_cut_by_name_only_as_what_the_name_means(autojump_clock, mounts, cluster):
    """The kernel names the open file where a program cuts it by its descriptor."""
    async with mounts(2) as (here, there):
        await here.write_file(b"f", b"old")
        await there.write_file(b"g", b"new")
        inode = await here.stat(b"f")
        handle_id = (await here.open(b"f")).handle_id
        here.names.give_listed(1, b"f", inode)
        await there.names.rename((1, b"g"), (1, b"f"), ROOT)
        with pytest.raises(FsError) as caught:
            await here.names.setattr(inode.inode_id, AttrChange(length=1), None, ROOT)
        assert caught.value.status is Status.STALE
        assert await here.read_all(handle_id) == b"old"
        await here.names.setattr(inode.inode_id, AttrChange(length=1), handle_id, ROOT)
        assert await here.read_all(handle_id) == b"o"
        await here.close(handle_id)


async def shown_to(here, name):
    """Have a listing show all names, whose reply the kernel has not taken in yet;
    return the open directory and what `name` led to.
    """
    directories = here.vfs.directories
    handle_id = directories.opendir(1, ROOT)
    entries = await directories.readdir(handle_id, 0)
    for entry in entries:
        shown = directories.shown_by(handle_id)
        here.names.give_listed(1, entry.name, entry.inode, shown=shown)
    return handle_id, next(e.inode.inode_id for e in entries if e.name == name)


@pytest.mark.parametrize("is_over", ["asked on", "closed"])
async def test_a_name_counts_from_when_the_kernel_has_taken_the_listing_in(
    autojump_clock, mounts, is_over
):
    """It may wait long for pages of what it takes in first:
    names that it comes to by then may be as old as the reply.
    """
    async with mounts(2) as (here, there):
        await here.write_file(b"f.part", b"content")
        handle_id, inode_id = await shown_to(here, b"f.part")
        await there.names.rename((1, b"f.part"), (1, b"f"), ROOT)
        found = list[float]()

        async def look() -> None:
            assert (await here.stat(b"f")).inode_id == inode_id
            found.append(trio.current_time())

        async with trio.open_nursery() as nursery:
            await trio.sleep(1.5)
            nursery.start_soon(look)
            await trio.sleep(1.5)
            with pytest.raises(FsError) as caught:  # by the name that was listed
                await here.files.open(inode_id, os.O_WRONLY | os.O_TRUNC, ROOT)
            assert caught.value.status is Status.STALE
            taken_in_s = trio.current_time()
            if is_over == "closed":
                here.vfs.directories.releasedir(handle_id)
            else:
                assert await here.vfs.directories.readdir(handle_id, 1) == []
        assert 1.0 <= found[0] - taken_in_s < 2.0
        assert await here.read_file(b"f") == b"content"


async def test_a_program_that_asks_for_no_more_of_a_directory_keeps_others_waiting_for_seconds_only(
    autojump_clock, mounts
):
    async with mounts(2) as (here, there):
        await here.write_file(b"f.part", b"content")
        await shown_to(here, b"f.part")
        await there.names.rename((1, b"f.part"), (1, b"f"), ROOT)
        await trio.sleep(5)
        assert await here.read_file(b"f") == b"content"
        assert 10 <= trio.current_time() < 13


async def test_a_listing_that_is_over_does_not_speak_for_one_that_still_waits(
    autojump_clock, mounts
):
    async with mounts(2) as (here, there):
        await here.write_file(b"f.part", b"content")
        first, inode_id = await shown_to(here, b"f.part")
        second, _ = await shown_to(here, b"f.part")
        here.vfs.directories.releasedir(second)
        await there.names.rename((1, b"f.part"), (1, b"f"), ROOT)
        await trio.sleep(3)
        with trio.move_on_after(1) as scope:
            await here.stat(b"f")
        assert scope.cancelled_caught
        with pytest.raises(FsError) as caught:
            await here.files.open(inode_id, os.O_WRONLY | os.O_TRUNC, ROOT)
        assert caught.value.status is Status.STALE
        here.vfs.directories.releasedir(first)
        assert await here.read_file(b"f") == b"content"


@pytest.mark.parametrize("how", ["replaced", "moved"])
async def test_a_further_name_goes_to_what_the_name_means_also_while_the_old_file_is_open(
    autojump_clock, mounts, how
):
    async with mounts(2) as (here, there):
        await here.write_file(b"f", b"old")
        await there.write_file(b"g", b"new")
        handle_id = (await here.open(b"f", os.O_RDONLY)).handle_id
        inode = await here.stat(b"f")
        here.names.give_listed(1, b"f", inode)
        if how == "moved":
            await there.names.rename((1, b"f"), (1, b"h"), ROOT)
        await there.names.rename((1, b"g"), (1, b"f"), ROOT)
        with pytest.raises(FsError) as caught:
            await here.names.link(inode.inode_id, 1, b"other", ROOT)
        assert caught.value.status is Status.STALE
        await here.names.link((await here.stat(b"f")).inode_id, 1, b"other", ROOT)
        assert await there.read_file(b"other") == b"new"
        await here.close(handle_id)


async def test_a_further_name_by_a_descriptor_goes_to_the_open_file(autojump_clock, mounts):
    """The kernel asks a second time with the same file where it came by no name."""
    async with mounts(2) as (here, there):
        await here.write_file(b"f", b"old")
        handle_id = (await here.open(b"f", os.O_RDONLY)).handle_id
        inode = await here.stat(b"f")
        here.names.give_listed(1, b"f", inode)
        await there.names.rename((1, b"f"), (1, b"h"), ROOT)
        for name in (b"one", b"two"):
            with pytest.raises(FsError) as caught:
                await here.names.link(inode.inode_id, 1, name, ROOT)
            assert caught.value.status is Status.STALE
            await here.names.link(inode.inode_id, 1, name, ROOT)
        assert await there.read_file(b"two") == b"old"
        await here.close(handle_id)
