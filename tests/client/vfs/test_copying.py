# ruff: noqa: ARG001 - pytest-trio finds the virtual clock among a test's own arguments
import os
import random
import sys

import pytest

from fs.client.holes import CutMeanwhileError
from fs.client.vfs import copying
from fs.client.vfs.changing_attributes import AttrChange
from fs.schema.status import FsError, Status
from tests.client.fake_chunks import CHUNK
from tests.examples import first_quick

from .conftest import ROOT
from .test_seeking import extents


async def sparse(m, name, rng, length):
    """Make a file with bytes at a few places; return its handle and content."""
    h = await m.create(name)
    await m.names.setattr((await m.stat(name)).inode_id, AttrChange(length=length), h, ROOT)
    content = bytearray(length)
    for _ in range(rng.randrange(5)):
        offset = rng.randrange(length)
        data = rng.randbytes(min(rng.randint(1, 2 * CHUNK), length - offset))
        await m.files.write(h, offset, data)
        content[offset : offset + len(data)] = data
    return h, content


@pytest.mark.parametrize("seed", first_quick(range(12), 4))
async def test_copies_are_exact(autojump_clock, mounts, monkeypatch, seed):
    monkeypatch.setattr(copying, "_BATCH_BYTES", 3 * CHUNK)
    rng = random.Random(seed)
    async with mounts() as m:
        a, content = await sparse(m, b"a", rng, 20 * CHUNK + rng.randrange(CHUNK))
        b, expected = await sparse(m, b"b", rng, rng.randint(1, 20 * CHUNK))
        for _ in range(4):
            offset, place = rng.randrange(len(content) + 10), rng.randrange(20 * CHUNK)
            count = rng.randint(1, 12 * CHUNK)
            copied = await m.vfs.copying.copy(a, offset, b, place, count)
            piece = content[offset : offset + count]
            assert copied == len(piece)
            if piece:
                expected.extend(bytes(max(place + copied - len(expected), 0)))
                expected[place : place + copied] = piece
            assert await m.read_all(b) == expected
        await m.close(a)
        await m.close(b)
        assert await m.read_file(b"b") == expected


async def test_holes_stay_holes(autojump_clock, mounts):
    async with mounts() as m:
        a = await m.create(b"a")
        await m.files.write(a, 3 * CHUNK + 5, b"x" * 100)
        inode_id = (await m.stat(b"a")).inode_id
        await m.names.setattr(inode_id, AttrChange(length=9 * CHUNK), a, ROOT)
        b = await m.create(b"b")
        await m.files.write(b, 6 * CHUNK, b"y" * CHUNK)
        assert await m.vfs.copying.copy(a, 0, b, 0, 9 * CHUNK) == 9 * CHUNK
        assert await extents(m, b, 9 * CHUNK) == [(3 * CHUNK, 4 * CHUNK)]
        await m.close(a)
        await m.close(b)


async def test_a_hole_onto_a_hole_moves_times(autojump_clock, mounts):
    async with mounts() as m:
        a, b = await m.create(b"a"), await m.create(b"b")
        for h in a, b:
            inode_id = m.files.handle(h).state.inode_id
            await m.names.setattr(inode_id, AttrChange(length=2 * CHUNK), h, ROOT)
        before = await m.stat(b"b")
        assert await m.vfs.copying.copy(a, CHUNK + 5, b, CHUNK + 5, CHUNK) == CHUNK - 5
        await m.close(a)
        await m.close(b)
        after = await m.stat(b"b")
        assert after.mtime_ns > before.mtime_ns
        assert after.ctime_ns > before.ctime_ns


async def test_refusals(autojump_clock, mounts):
    async with mounts() as m:
        await m.write_file(b"a", b"0123456789")
        a, reader = await m.create(b"a"), (await m.open(b"a", os.O_RDONLY)).handle_id
        maker = await m.create(b"b")
        writer = (await m.open(b"b", os.O_WRONLY)).handle_id
        for source, target, status in (
            (a, reader, Status.BAD_FILE),
            (writer, a, Status.BAD_FILE),
            (reader, a, Status.INVALID_ARGUMENT),
        ):
            with pytest.raises(FsError) as e:
                await m.vfs.copying.copy(source, 0, target, 3, 5)
            assert e.value.status is status
        assert await m.vfs.copying.copy(reader, 0, a, 5, 5) == 5
        assert await m.read_all(a) == b"0123401234"
        for handle_id in (a, reader, maker, writer):
            await m.close(handle_id)


async def test_a_source_that_is_cut_again_and_again_is_begun_anew_each_time(
    autojump_clock, mounts, monkeypatch
):
    cuts, real = iter(range(2 * sys.getrecursionlimit())), copying.Copying._read

    async def read(self, state, *arguments):
        if next(cuts, None) is not None:
            raise CutMeanwhileError(state.inode_id)
        return await real(self, state, *arguments)

    monkeypatch.setattr(copying.Copying, "_read", read)
    async with mounts() as m:
        a, b = await m.create(b"a"), await m.create(b"b")
        await m.files.write(a, 0, b"x" * 100)
        assert await m.vfs.copying.copy(a, 0, b, 0, 100) == 100
        assert await m.read_all(b) == b"x" * 100
