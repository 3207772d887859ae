# ruff: noqa: ARG001 - pytest-trio finds the virtual clock among a test's own arguments
"""What storage calls a hole in a file that has none, says its metadata, is named in the log."""

import trio

from tests.client.fake_chunks import CHUNK


def words(caplog):
    return [r.getMessage() for r in caplog.records if "never written" in r.getMessage()]


async def test_a_chunk_that_is_missing_is_named(autojump_clock, mounts, cluster, caplog):
    async with mounts(readahead_bytes_max=0) as m:
        await m.write_file(b"f", b"x" * 3 * CHUNK)
        h = (await m.open(b"f")).handle_id
        await m.files.read(h, 0, 100)
        assert words(caplog) == []
        ((inode_id, _), *_) = cluster.chunks.chunks
        del cluster.chunks.chunks[inode_id, 1]
        assert bytes(await m.files.read(h, CHUNK - 10, 30)) == b"x" * 10 + bytes(20)
        await m.files.read(h, CHUNK, 100)  # at once: not told again
        (told,) = words(caplog)
        where = f"inode {inode_id}: storage has 20 of the bytes {CHUNK - 10} to {CHUNK + 20}"
        assert told.startswith(where) and f"none of the {3 * CHUNK}" in told
        await trio.sleep(2)
        await m.files.read(h, CHUNK, 100)
        assert len(words(caplog)) == 2
        await m.close(h)


async def test_holes_that_were_left_are_not(autojump_clock, mounts, cluster, caplog):
    async with mounts(readahead_bytes_max=0) as m:
        h = await m.create(b"f")
        await m.files.write(h, 2 * CHUNK, b"x")
        assert bytes(await m.files.read(h, 0, 100)) == bytes(100)
        await m.files.fsync(h, is_data_only=False)
        assert bytes(await m.files.read(h, 0, 100)) == bytes(100)
        await m.close(h)
        h = (await m.open(b"f")).handle_id
        assert bytes(await m.files.read(h, 0, 100)) == bytes(100)
        await m.close(h)
        assert words(caplog) == []
