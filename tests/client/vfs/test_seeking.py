# ruff: noqa: ARG001 - pytest-trio finds the virtual clock among a test's own arguments
import os
import random

import pytest

from fs.client.vfs import seeking
from fs.client.vfs.allocation import FallocateMode
from fs.client.vfs.changing_attributes import AttrChange
from fs.schema.status import FsError, Status
from tests.client.fake_chunks import CHUNK

from .conftest import ROOT

DATA, HOLE = os.SEEK_DATA, os.SEEK_HOLE


async def extents(m, handle_id, length):
    """(start, end) of all data, as `cp --sparse` finds it."""
    found, offset = [], 0
    while offset < length:
        try:
            start = await m.vfs.seeking.seek(handle_id, offset, DATA)
        except FsError as error:
            if error.status is not Status.BEYOND_END:
                raise
            break
        offset = await m.vfs.seeking.seek(handle_id, start, HOLE)
        assert start < offset <= length
        found.append((start, offset))
    return found


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(8))
async def test_all_data_is_found(autojump_clock, mounts, monkeypatch, seed):
    monkeypatch.setattr(seeking, "PROBE_COUNT", 3)
    rng = random.Random(seed)
    async with mounts() as m:
        h, length = await m.create(b"f"), 40 * CHUNK + rng.randrange(CHUNK)
        inode_id = (await m.stat(b"f")).inode_id
        await m.names.setattr(inode_id, AttrChange(length=length), h, ROOT)
        for _ in range(rng.randrange(6)):
            offset = rng.randrange(length)
            data = b"x" * min(rng.randint(1, 2 * CHUNK), length - offset)
            await m.files.write(h, offset, data)
        content = await m.read_all(h)
        found = await extents(m, h, length)
        for i, byte in enumerate(content):
            if byte and not any(start <= i < end for start, end in found):
                pytest.fail(f"byte {i} of {found}")
        # Chunks without a byte of data are in no extent.
        for index in range(41):
            start, end = index * CHUNK, (index + 1) * CHUNK
            if not any(content[start:end]):
                assert not any(a < end and start < b for a, b in found), index
        await m.close(h)


async def test_what_follows_a_hole_is_asked_for_at_once(autojump_clock, mounts, monkeypatch):
    monkeypatch.setattr(seeking, "PROBE_COUNT", 4)
    async with mounts() as m:
        h, length = await m.create(b"f"), 1_000_000 * CHUNK
        inode_id = (await m.stat(b"f")).inode_id
        await m.names.setattr(inode_id, AttrChange(length=length), h, ROOT)
        with pytest.raises(FsError) as e:
            await m.vfs.seeking.seek(h, 5, DATA)
        assert e.value.status is Status.BEYOND_END
        await m.files.write(h, 700_000 * CHUNK + 9, b"x")
        assert await m.vfs.seeking.seek(h, 5, DATA) == 700_000 * CHUNK
        assert await m.vfs.seeking.seek(h, 700_000 * CHUNK, HOLE) <= 700_001 * CHUNK
        chunks = m.cluster.chunks
        assert chunks.next_data_count == 2
        assert len(chunks.reads) < 40
        await m.close(h)


async def test_behind_the_end_nobody_is_asked(autojump_clock, mounts):
    """The index of a chunk behind the last that a file can have is no number of the protocol."""
    async with mounts() as m:
        h = await m.create(b"f")
        inode_id = (await m.stat(b"f")).inode_id
        await m.names.setattr(inode_id, AttrChange(length=9 * CHUNK), h, ROOT)
        with pytest.raises(FsError) as e:
            await m.vfs.seeking.seek(h, 5, DATA)
        assert e.value.status is Status.BEYOND_END
        assert m.cluster.chunks.next_data_count == 0
        await m.close(h)


async def test_punched_chunks_are_holes(autojump_clock, mounts):
    async with mounts() as m:
        await m.write_file(b"f", b"x" * (6 * CHUNK))
        h = (await m.open(b"f")).handle_id
        mode = FallocateMode.PUNCH_HOLE | FallocateMode.KEEP_SIZE
        await m.vfs.allocation.fallocate(h, mode, 2 * CHUNK, 2 * CHUNK)
        assert await extents(m, h, 6 * CHUNK) == [(0, 2 * CHUNK), (4 * CHUNK, 6 * CHUNK)]
        for offset, whence in ((6 * CHUNK, HOLE), (7 * CHUNK, DATA)):
            with pytest.raises(FsError) as e:
                await m.vfs.seeking.seek(h, offset, whence)
            assert e.value.status is Status.BEYOND_END
        with pytest.raises(FsError) as e:
            await m.vfs.seeking.seek(h, 0, os.SEEK_SET)
        assert e.value.status is Status.INVALID_ARGUMENT
        await m.close(h)


async def test_what_a_map_holds_is_found_as_data(autojump_clock, mounts):
    """The kernel does not write what a program has changed through a map before it asks
    where there is data.
    """
    async with mounts() as m:
        h, length = await m.create(b"f"), 9 * CHUNK
        inode_id = (await m.stat(b"f")).inode_id
        await m.names.setattr(inode_id, AttrChange(length=length), h, ROOT)
        await m.files.write(h, 7 * CHUNK, b"x")

        async def write_maps():
            m.kernel.write_maps = None
            await m.files.write_mapped(h, 4 * CHUNK, b"mapped")

        m.kernel.write_maps = write_maps
        assert await m.vfs.seeking.seek(h, CHUNK, DATA) == 4 * CHUNK
        assert m.kernel.ranges == [(CHUNK, 6 * CHUNK)], "of the hole, no more"
        with pytest.raises(FsError):
            await m.vfs.seeking.seek(h, 8 * CHUNK, DATA)
        assert m.kernel.ranges[1:] == [(8 * CHUNK, CHUNK)]
        await m.close(h)


async def test_nothing_is_forgotten_where_nobody_can_write_through_a_map(autojump_clock, mounts):
    async with mounts() as m:
        h = await m.create(b"f", os.O_WRONLY)
        await m.files.write(h, 3 * CHUNK, b"x")
        reader = (await m.open(b"f", os.O_RDONLY)).handle_id
        assert await m.vfs.seeking.seek(reader, 0, DATA) == 3 * CHUNK
        assert m.kernel.ranges == []
        await m.close(reader)
        await m.close(h)
