# ruff: noqa: ARG001 - pytest-trio finds the virtual clock among a test's own arguments
"""When meta is told to find out what a file takes: never for a file without holes."""

import trio

from fs.client.vfs.allocation import FallocateMode
from fs.client.vfs.closing import SPACE_COUNT_INTERVAL_S
from tests.client.fake_chunks import CHUNK

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
