"""Look-ups of names that a mount knows to be absent, by the vfs: no call, and right whatever other mounts do."""
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
        for name, there in ((b"l", False), (b"moved", True), (b"sub", True), (b"node", True)):
            assert await calls.of(is_there(m, e, name)) == (there, 1)
        assert await calls.of(is_there(m, d, b"f")) == (False, 1)
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
