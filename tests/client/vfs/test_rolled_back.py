# ruff: noqa: ARG001 - pytest-trio finds the virtual clock among a test's own arguments
"""What meta says after a power loss that has taken from it what this mount was told before."""

import os
from dataclasses import replace

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from fs.client.vfs.changing_attributes import AttrChange
from fs.client.vfs.handles import TakesTaskError

from .conftest import ROOT, set_length


class Begins:
    """Calls without a task, as of the client of a real service."""

    def __init__(self, meta, nursery):
        self._meta, self._nursery = meta, nursery

    def begin_change(self, method, request, ended):
        async def run():
            ended(await self._meta.call(method, request), None)

        self._nursery.start_soon(run)
        return True


async def test_a_file_goes_on_to_more_chains_though_meta_has_lost_its_last_change(
    autojump_clock, mounts, cluster
):
    async with mounts() as here:
        handle_id = await here.create(b"f", os.O_RDWR)
        state = here.files.handle(handle_id).state
        before = cluster.inodes[state.inode_id]
        newer = replace(before, ctime_ns=before.ctime_ns + 1_000_000_000)
        assert state.absorb(newer)
        wider = replace(before, file=replace(before.file, dyn_stripe=before.file.dyn_stripe + 4))
        assert not state.absorb(wider)
        assert state.ref.dyn_stripe == wider.file.dyn_stripe
        assert state.inode.ctime_ns == newer.ctime_ns
        await here.close(handle_id)


@pytest.mark.parametrize("has_more", [False, True])
@pytest.mark.parametrize("ends", ["flush", "fsync"])
async def test_a_length_that_meta_has_lost_is_told_again(
    autojump_clock, mounts, cluster, ends, has_more
):
    async with mounts() as here:
        handle_id = await here.create(b"f", os.O_RDWR)
        inode_id = here.files.handle(handle_id).state.inode_id
        await here.files.write(handle_id, 0, b"begin")
        await here.files.fsync(handle_id, is_data_only=False)
        before = cluster.inodes[inode_id]
        await set_length(here, handle_id, b"f", 1_000_000)
        shown_ns = (await here.stat(b"f")).mtime_ns
        if has_more:
            await here.files.write(handle_id, 0, b"BEGIN")
        cluster.inodes[inode_id] = before
        if ends == "flush":
            await here.files.flush(handle_id)
        else:
            await here.files.fsync(handle_id, is_data_only=False)
        found = cluster.inodes[inode_id]
        assert found.length == 1_000_000
        assert found.mtime_ns >= shown_ns
        assert cluster.durable_inodes[inode_id].length == 1_000_000
        await here.close(handle_id)
        assert len(await here.read_file(b"f")) == 1_000_000


async def test_a_length_that_others_have_cut_meanwhile_is_not_told_again(
    autojump_clock, mounts, cluster
):
    async with mounts(2) as (here, there):
        handle_id = await here.create(b"f", os.O_RDWR)
        await set_length(here, handle_id, b"f", 1_000_000)
        await there.names.setattr(
            (await there.stat(b"f")).inode_id, AttrChange(length=10), None, ROOT
        )
        await here.close(handle_id)
        assert (await there.stat(b"f")).length == 10


@pytest.mark.parametrize("ends", ["flush", "fsync", "begin_flush", "begin_fsync"])
async def test_what_was_reported_and_lost_by_meta_alone_is_reported_again(
    autojump_clock, mounts, cluster, ends
):
    async with mounts() as here, trio.open_nursery() as nursery:
        handle_id = await here.create(b"f", os.O_RDWR)
        state, core = here.files.handle(handle_id).state, here.vfs._core
        before = cluster.inodes[state.inode_id]
        await here.files.write(handle_id, 0, b"x" * 5000)
        await core.drain(state, is_durable=True)
        await here.files.settle(state.inode_id)
        if ends.startswith("begin"):
            state.durable_seq = state.acked_seq  # as where the write itself was durable
        assert cluster.inodes[state.inode_id].length == 5000
        cluster.inodes[state.inode_id] = before
        if ends.startswith("begin"):
            core.begins_changes, outcomes = Begins(core.meta, nursery), []
            assert getattr(here.files, ends)(handle_id, outcomes.append)
            await wait_all_tasks_blocked()
            core.begins_changes = None
            assert isinstance(outcomes[0], TakesTaskError)
        if ends.endswith("flush"):
            await here.files.flush(handle_id)
        else:
            await here.files.fsync(handle_id, is_data_only=False)
        assert cluster.durable_inodes[state.inode_id].length == 5000
        await here.close(handle_id)
