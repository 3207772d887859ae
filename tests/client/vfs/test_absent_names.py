"""Look-ups of names that a mount knows, to be absent or to lead to a file, by the vfs:
no call, and right whatever other mounts do.
"""
# ruff: noqa: ARG001 - pytest-trio finds the virtual clock among a test's own arguments

import os

import pytest
import trio

from fs.client.vfs.ports import Caller
from fs.schema.name_lease import LEASE_S, WAIT_S
from fs.schema.status import FsError, Status

from .conftest import ROOT, fault

BOB = Caller(7, 7)


async def make(mount, name=b"d", parent=1):
    return (await mount.names.mkdir(parent, name, 0o777, ROOT)).inode_id


async def create(mount, parent, name, caller=ROOT):
    opened, inode = await mount.files.create(parent, name, 0o644, os.O_WRONLY | os.O_CREAT, caller)
    await mount.close(opened.handle_id)
    return inode


async def is_there(mount, parent, name, caller=ROOT):
    try:
        await mount.names.lookup(parent, name, caller)
    except FsError as error:
        if error.status is not Status.NOT_FOUND:
            raise
        return False
    return True


class Calls:
    """How many look-ups meta is asked for."""

    def __init__(self, cluster):
        self._cluster = cluster

    async def of(self, awaitable):
        before = self._cluster.calls.count("Lookup")
        found = await awaitable
        return found, self._cluster.calls.count("Lookup") - before


@pytest.fixture
def calls(cluster):
    return Calls(cluster)


async def test_absent_names_of_own_directories_cost_no_call(mounts, calls, autojump_clock):
    async with mounts() as m:
        d = await make(m)
        assert await calls.of(is_there(m, d, b"f")) == (False, 0)
        await create(m, d, b"f")
        assert await calls.of(is_there(m, d, b"f")) == (True, 1)
        assert await calls.of(is_there(m, d, b"g")) == (False, 0)
        assert await calls.of(is_there(m, 1, b"g")) == (False, 1)
        await trio.sleep(LEASE_S)
        assert await calls.of(is_there(m, d, b"g")) == (False, 1)
        await m.names.symlink(d, b"s", b"there", ROOT)
        assert await calls.of(is_there(m, d, b"g")) == (False, 0)
        assert m.vfs._core.leased.hit_count == 3


async def test_names_that_were_given_are_asked_for(mounts, calls, autojump_clock):
    async with mounts() as m:
        d, e = await make(m), await make(m, b"e")
        f = await create(m, d, b"f")
        await m.names.link(f.inode_id, e, b"l", ROOT)
        await m.names.rename((d, b"f"), (e, b"moved"), ROOT)
        await m.names.mkdir(e, b"sub", 0o755, ROOT)
        await m.names.mknod(e, b"node", 0o010644, ROOT)
        await m.names.unlink(e, b"l", ROOT)
        for name in (b"moved", b"sub", b"node"):
            assert await calls.of(is_there(m, e, name)) == (True, 1)


async def test_names_that_were_removed_are_absent_again(mounts, calls, autojump_clock):
    async with mounts() as m:
        d, e = await make(m), await make(m, b"e")
        f = await create(m, d, b"f")
        await m.names.link(f.inode_id, e, b"l", ROOT)
        await m.names.rename((d, b"f"), (e, b"moved"), ROOT)
        assert await calls.of(is_there(m, d, b"f")) == (False, 1), "two names of one file both stay"
        await m.names.unlink(e, b"l", ROOT)
        await m.names.rename((e, b"moved"), (e, b"again"), ROOT)
        await m.names.mkdir(e, b"sub", 0o755, ROOT)
        await m.names.rmdir(e, b"sub", ROOT)
        for name in (b"l", b"moved", b"sub"):
            assert await calls.of(is_there(m, e, name)) == (False, 0)
        await create(m, e, b"l")
        assert await calls.of(is_there(m, e, b"l")) == (True, 1)
        assert await calls.of(is_there(m, d, b"moved")) == (False, 0)
        assert await calls.of(is_there(m, e, b"f")) == (False, 0)


async def test_what_another_mount_makes_is_there_when_it_has_made_it(mounts, calls, autojump_clock):
    async with mounts(2) as (m, other):
        d = await make(m)
        began_s = trio.current_time()
        await create(other, d, b"f")
        assert trio.current_time() == pytest.approx(began_s + WAIT_S)
        assert await is_there(m, d, b"f")
        await create(m, d, b"g")
        assert await calls.of(is_there(m, d, b"h")) == (False, 1)
        assert await is_there(m, d, b"f")


async def test_what_may_have_been_made_after_all_is_asked_for(
    mounts, cluster, calls, autojump_clock
):
    async with mounts() as m:
        d = await make(m)
        cluster.meta_faults["Mkdir"] = [fault(Status.RPC_TIMEOUT)]
        with pytest.raises(FsError):
            await m.names.mkdir(d, b"sub", 0o755, ROOT)
        assert await calls.of(is_there(m, d, b"sub")) == (False, 1)
        assert await calls.of(is_there(m, d, b"other")) == (False, 0)


async def test_others_are_told_by_meta(mounts, calls, autojump_clock):
    async with mounts() as m:
        d = await make(m)
        assert await calls.of(is_there(m, d, b"f", BOB)) == (False, 1)
        await create(m, d, b"g", BOB)
        assert await calls.of(is_there(m, d, b"f", BOB)) == (False, 0)


async def test_it_can_be_turned_off(mounts, cluster, calls, autojump_clock):
    async with mounts(leased_names_max=0) as m:
        d = await make(m)
        await create(m, d, b"f")
        assert await calls.of(is_there(m, d, b"g")) == (False, 1)
        assert not cluster.leases


# ---- what is there -------------------------------------------------------------------------------


def at_hand(mount, parent, name, caller=ROOT):
    """Return what the kernel may be told of a name without a call, to remove or move it."""
    return mount.names.entry_at_hand(parent, name, caller)


async def test_a_file_of_an_own_directory_is_at_hand_while_the_lease_lasts(mounts, autojump_clock):
    async with mounts() as m:
        d = await make(m)
        f = await made(m, d, b"f")
        shown = at_hand(m, d, b"f")
        assert shown.inode_id == f.inode_id
        assert (shown.st_mode, shown.uid, shown.gid, shown.length) == (0o100644, 0, 0, 0)
        assert m.vfs._core.known[f.inode_id].lookup_count == 2
        assert at_hand(m, d, b"g") is None
        assert at_hand(m, 1, b"d") is None
        await trio.sleep(LEASE_S)
        assert at_hand(m, d, b"f") is None
        await m.names.rename((d, b"f"), (d, b"g"), ROOT)
        assert at_hand(m, d, b"f") is None
        assert at_hand(m, d, b"g").inode_id == f.inode_id
        await m.names.unlink(d, b"g", ROOT)
        assert at_hand(m, d, b"g") is None


async def made(mount, parent, name, data=b"", caller=ROOT):
    """Return a new file, whose entry the kernel holds."""
    flags = os.O_WRONLY | os.O_CREAT
    opened, inode = await mount.files.create(parent, name, 0o644, flags, caller)
    mount.names.give(inode, lookup_count=1)
    if data:
        await mount.files.write(opened.handle_id, 0, data)
    await mount.close(opened.handle_id)
    return inode


async def test_it_is_as_long_as_the_kernel_shows_it(mounts, autojump_clock):
    async with mounts() as m:
        d = await make(m)
        await made(m, d, b"f", b"five5")
        assert at_hand(m, d, b"f").length == 5


async def test_what_is_open_or_not_held_or_somebody_elses_is_not_at_hand(mounts, autojump_clock):
    async with mounts() as m:
        d = await make(m)
        f = await made(m, d, b"f")
        opened = await m.files.open(f.inode_id, os.O_RDONLY, ROOT)
        assert at_hand(m, d, b"f") is None
        await m.close(opened.handle_id)
        assert at_hand(m, d, b"f")
        m.names.forget(f.inode_id, 5)
        assert at_hand(m, d, b"f") is None
        bobs = await made(m, d, b"bobs", caller=BOB)
        assert at_hand(m, d, b"bobs", BOB).inode_id == bobs.inode_id
        await create(m, d, b"g")
        assert at_hand(m, d, b"bobs") is None
        await m.names.mkdir(d, b"sub", 0o755, ROOT)
        await m.names.symlink(d, b"link", b"there", ROOT)
        assert at_hand(m, d, b"sub") is None
        assert at_hand(m, d, b"link") is None


async def test_of_what_another_mount_has_written_the_length_is_asked_for(mounts, autojump_clock):
    async with mounts(2) as (m, other):
        d = await make(m)
        f = await made(m, d, b"f", b"five5")
        opened = await other.files.open(f.inode_id, os.O_WRONLY, ROOT)
        await other.files.write(opened.handle_id, 5, b"more")
        await other.close(opened.handle_id)
        assert at_hand(m, d, b"f").length == 5, "nobody here was told of more"
        await m.names.lookup(d, b"f", ROOT)
        await create(m, d, b"g")
        assert at_hand(m, d, b"f") is None


@pytest.mark.parametrize("kind", ["unlink", "rename", "replace"])
async def test_what_another_mount_takes_away_is_not_at_hand_when_it_has(
    mounts, kind, autojump_clock
):
    async with mounts(2) as (m, other):
        d = await make(m)
        await made(m, d, b"f")
        await create(other, 1, b"other")
        began_s = trio.current_time()
        if kind == "unlink":
            await other.names.unlink(d, b"f", ROOT)
        elif kind == "rename":
            await other.names.rename((d, b"f"), (1, b"moved"), ROOT)
        else:
            await other.names.rename((1, b"other"), (d, b"f"), ROOT)
        assert trio.current_time() == pytest.approx(began_s + WAIT_S)
        assert at_hand(m, d, b"f") is None
        await create(m, d, b"g")
        assert at_hand(m, d, b"f") is None


async def test_what_was_told_before_is_not_told_again_after_it(mounts, autojump_clock):
    """The kernel may use none of the attributes that come so:
    who wants the time of making is not told those of before either.
    """
    async with mounts() as m:
        d = await make(m)
        f = await made(m, d, b"f")
        await m.names.lookup(d, b"f", ROOT)
        assert m.names.told_with_birth(f.inode_id)
        m.vfs._core.known[f.inode_id].is_birth_told = False
        await m.names.lookup(d, b"f", ROOT)
        assert at_hand(m, d, b"f")
        assert m.names.told_with_birth(f.inode_id) is None
