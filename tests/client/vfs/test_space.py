# ruff: noqa: ARG001 - pytest-trio finds the virtual clock among a test's own arguments
"""When meta is told to find out what a file takes: never for a file without holes."""

import os
from functools import partial

import pytest
import trio
import trio.testing

from fs.client.vfs.allocation import FallocateMode
from fs.client.vfs.closing import SPACE_COUNT_INTERVAL_S
from fs.schema.status import FsError, Status
from tests.client.fake_chunks import CHUNK
from tests.client.vfs.conftest import RW, fault, set_length

PUNCH = FallocateMode.KEEP_SIZE | FallocateMode.PUNCH_HOLE


async def test_a_file_without_holes_is_never_counted(autojump_clock, mounts, cluster):
    async with mounts() as m:
        h = await m.create(b"f")
        for i in range(5):
            await m.files.write(h, i * CHUNK, b"x" * CHUNK)
        await m.files.fsync(h, is_data_only=False)
        await m.files.write(h, 7, b"y")
        await m.close(h)
        assert cluster.counted == []
        assert not (await m.stat(b"f")).file.has_holes


async def test_what_is_left_out_cleared_and_filled_in_is_counted_at_close(
    autojump_clock, mounts, cluster
):
    async with mounts() as m:
        h = await m.create(b"f")
        await m.files.write(h, 5 * CHUNK, b"x" * 10)
        await trio.sleep(20)  # reported, but not counted, by the write-back
        assert cluster.counted == []
        await m.files.flush(h)
        found = await m.stat(b"f")
        assert found.file.has_holes and found.used_bytes == 10
        await m.files.write(h, 0, b"y" * CHUNK)
        await m.files.flush(h)
        assert (await m.stat(b"f")).used_bytes == CHUNK + 10
        for i in range(1, 5):
            await m.files.write(h, i * CHUNK, b"z" * CHUNK)
        await m.files.flush(h)
        assert not (await m.stat(b"f")).file.has_holes
        await m.vfs.allocation.fallocate(h, PUNCH, CHUNK, 2 * CHUNK)
        await m.files.flush(h)
        assert (await m.stat(b"f")).used_bytes == 3 * CHUNK + 10
        counted = len(cluster.counted)
        await m.close(h)
        assert len(cluster.counted) == counted  # nothing was written since
        assert m.kernel.attributes


async def test_fsync_counts_now_and_then(autojump_clock, mounts, cluster):
    async with mounts() as m:
        h = await m.create(b"f")
        for i in range(10):
            await m.files.write(h, (10 - i) * 2 * CHUNK, b"x")
            await m.files.fsync(h, is_data_only=True)
        assert len(cluster.counted) == 1
        await trio.sleep(SPACE_COUNT_INTERVAL_S)
        await m.files.fsync(h, is_data_only=True)
        assert len(cluster.counted) == 2
        await m.close(h)
        assert (await m.stat(b"f")).used_bytes == 10


async def test_a_close_after_an_fsync_counts_what_that_has_not(autojump_clock, mounts, cluster):
    """As a database does that maps its file: an fsync after each change,
    and nothing left for the close.
    """
    async with mounts() as m:
        h = await m.create(b"f")
        await set_length(m, h, b"f", 100 * CHUNK)
        for i in range(10):
            await m.files.write(h, 2 * i * CHUNK, b"x" * CHUNK)
            await m.files.fsync(h, is_data_only=False)
        assert not m.files.flush_now(h)
        await m.close(h)
        assert (await m.stat(b"f")).used_bytes == 10 * CHUNK
        assert len(cluster.counted) == 2


async def test_pages_of_a_map_that_outlived_its_descriptor_are_counted(
    autojump_clock, mounts, cluster
):
    async with mounts() as m:
        h = await m.create(b"f")
        await set_length(m, h, b"f", 100 * CHUNK)
        await m.files.write(h, 0, b"x")
        await m.files.flush(h)
        await m.files.write(h, 2 * CHUNK, b"y" * CHUNK)
        m.kernel.attributes.clear()
        assert not m.files.release_now(h)
        await m.files.release(h)
        assert (await m.stat(b"f")).used_bytes == CHUNK + 1
        assert m.kernel.attributes


async def test_pages_that_came_by_another_handle_are_counted_at_the_close(
    autojump_clock, mounts, cluster
):
    async with mounts() as m:
        first = await m.create(b"f")
        await set_length(m, first, b"f", 100 * CHUNK)
        second = (await m.open(b"f")).handle_id
        await m.files.write(first, CHUNK, b"x" * CHUNK)
        await m.close(second)
        assert (await m.stat(b"f")).used_bytes == CHUNK
        await m.close(first)


async def test_what_comes_while_others_are_counted_is_counted_later(
    autojump_clock, mounts, cluster
):
    async with mounts() as m:
        h = await m.create(b"f")
        await set_length(m, h, b"f", 100 * CHUNK)
        await m.files.write(h, CHUNK, b"x" * CHUNK)
        cluster.chunks.gate = trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(m.files.fsync, h, is_data_only=False))
            await trio.testing.wait_all_tasks_blocked()
            await m.files.write(h, 5 * CHUNK, b"y" * 10)  # after what the fsync waits for
            cluster.chunks.gate.set()
        assert cluster.counted and (await m.stat(b"f")).used_bytes == CHUNK
        assert m.vfs._core.states[(await m.stat(b"f")).inode_id].is_dirty
        await m.close(h)
        assert (await m.stat(b"f")).used_bytes == CHUNK + 10


async def test_holes_of_another_mount_are_counted_by_who_fills_them(
    autojump_clock, mounts, cluster
):
    async with mounts(2) as (one, other):
        mine = await one.create(b"f")
        await one.files.write(mine, 0, b"x" * CHUNK)
        await one.files.flush(mine)
        theirs = (await other.open(b"f")).handle_id
        await other.files.write(theirs, 5 * CHUNK, b"y" * 10)
        await other.close(theirs)
        assert (await other.stat(b"f")).used_bytes == CHUNK + 10
        await one.files.write(mine, CHUNK, b"z" * CHUNK)  # behind the end that this mount knows of
        await one.close(mine)
        assert (await other.stat(b"f")).used_bytes == 2 * CHUNK + 10


async def test_records_behind_holes_are_counted(autojump_clock, mounts, cluster):
    async with mounts() as m:
        h = await m.create(b"f", RW | os.O_APPEND)
        await set_length(m, h, b"f", 5 * CHUNK)
        await m.files.write(h, 0, b"r" * 10)
        await m.close(h)
        assert (await m.stat(b"f")).used_bytes == 10


async def test_a_count_that_failed_is_made_up_for_at_the_release(autojump_clock, mounts, cluster):
    async with mounts() as m:
        h = await m.create(b"f")
        await set_length(m, h, b"f", 5 * CHUNK)
        await m.files.write(h, 0, b"r" * 10)
        cluster.meta_faults["Sync"] = [fault(Status.ACCESS_DENIED)]
        with pytest.raises(FsError):
            await m.files.flush(h)
        await m.files.release(h)
        assert (await m.stat(b"f")).used_bytes == 10
