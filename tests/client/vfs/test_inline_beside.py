# ruff: noqa: ARG001 - pytest-trio finds the virtual clock among a test's own arguments
"""Inline files and what else is done with a file that is open: copies, seeks, allocation."""

import os
import random
from itertools import product

import pytest
import trio

from fs.client.read_table import ReadTable
from fs.client.vfs.allocation import FallocateMode
from fs.client.vfs.batches import NO_FILE, BatchIo
from fs.kernels.batches import ENTRY
from fs.schema.status import FsError, Status
from tests.client.fake_chunks import CHUNK

from .conftest import set_length
from .test_seeking import DATA, HOLE, extents

MAX = CHUNK
BUFFER = 4 * CHUNK
PUNCH = FallocateMode.PUNCH_HOLE | FallocateMode.KEEP_SIZE


@pytest.fixture(autouse=True)
def _keeps_small_files(cluster):
    cluster.inline.bytes_max = MAX


def kept(cluster):
    """What the model's metadata holds of each file, by name."""
    return {
        name: cluster.inline.data[inode_id]
        for name, inode_id in cluster.names[1].items()
        if inode_id in cluster.inline
    }


@pytest.mark.parametrize("lengths", [*product([0, 10, MAX, MAX + 1], [0, 7, MAX, 3 * CHUNK])])
async def test_copies_between_small_and_large_files(autojump_clock, mounts, cluster, lengths):
    rng = random.Random(str(lengths))
    contents = [rng.randbytes(length) for length in lengths]
    async with mounts(2, write_buffer_bytes=BUFFER) as (m, other):
        await m.write_file(b"a", contents[0])
        await m.write_file(b"b", contents[1])
        assert set(kept(cluster)) == {
            name for name, data in zip((b"a", b"b"), contents, strict=True) if 0 < len(data) <= MAX
        }
        for offset, place, count in [(0, 0, MAX), (3, 5, MAX), (5, 2 * CHUNK, 2), (0, 1, CHUNK)]:
            a, b = (await m.open(b"a", os.O_RDONLY)).handle_id, (await m.open(b"b")).handle_id
            copied = await m.vfs.copying.copy(a, offset, b, place, count)
            piece = contents[0][offset : offset + count]
            assert copied == len(piece)
            if piece:
                before = contents[1].ljust(place, b"\0")
                contents[1] = before[:place] + piece + before[place + len(piece) :]
            assert await m.read_all(b) == contents[1]
            await m.close(a)
            await m.close(b)
            assert await other.read_file(b"b") == contents[1]
        assert await other.read_file(b"a") == contents[0]


async def test_a_source_that_is_moved_or_emptied_meanwhile_is_read_where_it_is(
    autojump_clock, mounts, cluster
):
    async with mounts(2, write_buffer_bytes=BUFFER) as (m, other):
        await m.write_file(b"a", b"small enough")
        a, b = (await m.open(b"a", os.O_RDONLY)).handle_id, await m.create(b"b")
        await trio.sleep(2.0)
        there = (await other.open(b"a")).handle_id
        await other.files.write(there, 12, b", and more of it" * CHUNK)
        await other.close(there)
        assert not kept(cluster).get(b"a")
        assert await m.vfs.copying.copy(a, 0, b, 0, 12) == 12
        await other.write_file(b"a", b"small")
        await trio.sleep(2.0)
        assert await m.vfs.copying.copy(a, 0, b, 0, 5) == 5
        await m.close(a)
        await m.close(b)
        assert await other.read_file(b"b") == b"small enough"[:12]


async def test_an_inline_file_is_all_data(autojump_clock, mounts, cluster):
    async with mounts(write_buffer_bytes=BUFFER) as m:
        await m.write_file(b"f", b"0123456789")
        h = (await m.open(b"f")).handle_id
        seek = m.vfs.seeking.seek
        assert await extents(m, h, 10) == [(0, 10)]
        assert (await seek(h, 3, DATA), await seek(h, 3, HOLE)) == (3, 10)
        for whence in (DATA, HOLE):
            with pytest.raises(FsError) as e:
                await seek(h, 10, whence)
            assert e.value.status is Status.BEYOND_END
        assert not cluster.chunks.reads
        await set_length(m, h, b"f", 3 * CHUNK)
        assert await extents(m, h, 3 * CHUNK) == [(0, 4096)]
        await m.close(h)


async def test_who_takes_a_file_for_one_in_chunks_finds_no_hole(autojump_clock, mounts, cluster):
    async with mounts(2, write_buffer_bytes=BUFFER) as (m, other):
        await m.write_file(b"f", b"x" * (CHUNK + 1))
        h = (await m.open(b"f", os.O_RDONLY)).handle_id
        there = (await other.open(b"f", os.O_RDWR | os.O_TRUNC)).handle_id
        await other.close(there)
        cluster.put_file(cluster.child(1, b"f"), dyn_stripe=0)
        await trio.sleep(1.0)  # the session of who wrote it ends a moment later
        await other.write_file(b"f", b"small")
        assert kept(cluster)
        assert await m.vfs.seeking.seek(h, 0, DATA) == 0
        assert await m.vfs.seeking.seek(h, 0, HOLE) == 5
        await m.close(h)


@pytest.mark.parametrize("way", ["direct", "batch", "table", "begun"])
async def test_who_reads_past_the_page_cache_takes_no_hole_of_a_moment_ago_for_one(
    autojump_clock, mounts, cluster, way
):
    """Another mount has emptied the file since, and made it inline."""
    async with mounts(2, write_buffer_bytes=BUFFER, readahead_bytes_max=0) as (m, other):
        h = await other.create(b"f")
        await set_length(other, h, b"f", 4096)
        await other.close(h)
        await trio.sleep(2.0)
        flags = os.O_DIRECT if way == "direct" else 0
        opened = (await m.open(b"f", os.O_RDONLY | flags)).handle_id
        batches = m.vfs.batches
        h = opened if way == "direct" else batches.open(batches.ticket(opened))
        assert await read_past(m, way, h) == bytes(4096)
        assert m.files.handle(h).state.holes._begins, "known for a second"
        await other.write_file(b"f", b"small")
        assert kept(cluster)
        assert (await read_past(m, way, h))[:5] == b"small"
        if way != "direct":
            await batches.close(h)
        await m.close(opened)


async def read_past(m, way, h):
    """Read a file's 4096 bytes, or fewer, past the page cache."""
    if way == "direct":
        return bytes(await m.files.read(h, 0, 4096))
    io = BatchIo(NO_FILE, 0, memoryview(bytearray(4096)), 0, h)
    if way == "batch":
        await m.vfs.batches.read([io])
        return bytes(io.buffer[: io.count])
    key, view = bytes(16), memoryview(bytearray(4096))
    table, handles = ReadTable(ENTRY.pack(0, 0, 0, 4096, key), view), {key: h}
    if way == "begun":
        ended, told = trio.Event(), []

        def end(rows):
            told.append(rows)
            ended.set()

        if m.vfs.batches.begin_table(table, handles, end, is_relaxed=False) is not None:
            await ended.wait()
            if told[0] is not None:
                return bytes(view)
            table = ReadTable(table.entries, view)
    rows = await m.vfs.batches.read_table(table, handles, is_relaxed=False)
    return next((bytes(io.buffer[: io.count]) for _, io in rows), bytes(view))


@pytest.mark.parametrize("length", [10, 4096, MAX])
@pytest.mark.parametrize("is_buffered", [True, False])
async def test_holes_are_punched_and_ranges_zeroed(
    autojump_clock, mounts, cluster, length, is_buffered
):
    rng = random.Random(length)
    async with mounts(2, write_buffer_bytes=BUFFER) as (m, other):
        for n, (mode, offset, count) in enumerate(
            [
                (PUNCH, 0, MAX),
                (PUNCH, 3, 4),
                (FallocateMode.ZERO_RANGE, 0, MAX),
                (PUNCH, 5, 2 * MAX),
            ]
        ):
            name, data = b"f%d" % n, rng.randbytes(length)
            if is_buffered:
                h = await m.create(name)
                await m.files.write(h, 0, data)
            else:
                await m.write_file(name, data)
                h = (await m.open(name)).handle_id
            end = min(offset + count, length)
            expected = data[:offset] + bytes(max(end - offset, 0)) + data[max(end, offset) :]
            if mode is FallocateMode.ZERO_RANGE:
                expected = expected.ljust(offset + count, b"\0")
            await m.vfs.allocation.fallocate(h, mode, offset, count)
            assert await m.read_all(h) == expected
            await m.close(h)
            assert await other.read_file(name) == expected
            assert (await other.stat(name)).length == len(expected)


async def test_what_goes_inline_before_its_chunks_are_emptied_is_overwritten(
    autojump_clock, mounts, cluster
):
    """What lies in the buffer is sent as a report of an fsync that another program makes."""
    async with mounts(write_buffer_bytes=BUFFER) as m:
        h = await m.create(b"f")
        await m.files.write(h, 0, b"x" * MAX)
        drain = m.vfs._core.drain

        async def drain_late(state, **options):
            m.vfs._core.drain = drain
            if not kept(cluster):
                await m.files.fsync(h, is_data_only=False)
                assert kept(cluster)
            await drain(state, **options)

        m.vfs._core.drain = drain_late
        await m.vfs.allocation.fallocate(h, PUNCH, 0, MAX)
        await m.files.write(h, 5, b"end")
        await m.close(h)
        assert await m.read_file(b"f") == bytes(5) + b"end" + bytes(MAX - 8)


async def test_a_hole_far_behind_inline_bytes_is_not_written(autojump_clock, mounts, cluster):
    """What lies in the buffer makes the file long,
    and its bytes leave the metadata service before they are cleared.
    """
    async with mounts(write_buffer_bytes=BUFFER) as m:
        await m.write_file(b"f", b"small")
        assert kept(cluster)
        h = (await m.open(b"f")).handle_id
        await m.files.write(h, 500 * CHUNK + 3, b"end")
        await m.vfs.allocation.fallocate(h, PUNCH, 0, 500 * CHUNK + 5)
        await m.close(h)
        assert not kept(cluster)
        assert sum(length for _, _, length in cluster.chunks.writes) < 4 * CHUNK
        assert (await m.stat(b"f")).length == 500 * CHUNK + 6
        h = (await m.open(b"f", os.O_RDONLY)).handle_id
        assert await m.files.read(h, 0, 5) == bytes(5)
        assert await m.files.read(h, 500 * CHUNK, 9) == bytes(5) + b"d"
        await m.close(h)


async def test_clearing_makes_no_file_longer_that_is_made_small_meanwhile(
    autojump_clock, mounts, cluster
):
    async with mounts(2, write_buffer_bytes=BUFFER) as (m, other):
        h, allocation = await m.create(b"f"), m.vfs.allocation
        await m.files.write(h, 0, b"x" * 2 * MAX)
        await m.files.fsync(h, is_data_only=False)
        empty_chunks = allocation._empty_chunks

        async def empty_late(*arguments):
            await set_length(m, h, b"f", 0)
            await m.files.write(h, 0, b"small")
            await m.files.fsync(h, is_data_only=False)
            assert kept(cluster)
            return await empty_chunks(*arguments)

        allocation._empty_chunks = empty_late
        await allocation.fallocate(h, PUNCH, 0, 2 * MAX)
        await m.close(h)
        assert await other.read_file(b"f") == bytes(5)


@pytest.mark.parametrize("mode", [0, FallocateMode.KEEP_SIZE])
async def test_allocating_lengthens_a_small_file(autojump_clock, mounts, cluster, mode):
    async with mounts(2, write_buffer_bytes=BUFFER) as (m, other):
        await m.write_file(b"f", b"0123456789")
        h = (await m.open(b"f")).handle_id
        await m.vfs.allocation.fallocate(h, mode, 5, 100)
        length = 10 if mode else 105
        assert await m.read_all(h) == b"0123456789".ljust(length, b"\0")
        await m.files.write(h, 3, b"###")
        await m.close(h)
        assert await other.read_file(b"f") == b"012###6789".ljust(length, b"\0")
