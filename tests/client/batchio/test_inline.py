# ruff: noqa: ARG001 - pytest-trio finds the virtual clock among a test's own arguments
"""Rings and inline files: their bytes go into the program's memory, as meta has them now."""

import errno
from contextlib import asynccontextmanager

import pytest
import trio
from emberfs.protocol import Op

from fs.client.batchio.checks import Share
from fs.client.holes import CutMeanwhileError
from fs.client.vfs.batches import NO_FILE, BatchIo
from tests.client.fake_chunks import CHUNK

from .conftest import running_program

MAX = 32 * 1024
SMALL = bytes(range(256)) * 4


@pytest.fixture(autouse=True, params=["many at once", "each alone"])
def _keeps_small_files(request, cluster):
    """In metadata services of this release, or of one that knows of no payloads."""
    cluster.inline.bytes_max = MAX
    cluster.inline.gives_many = request.param == "many at once"


@pytest.fixture
def beside(mounts):
    """A ring on a small file of one mount, and another mount."""

    @asynccontextmanager
    async def start(content=SMALL, pause_s=0.0):
        async with mounts(2) as (mount, other):
            await mount.write_file(b"file", content)
            assert bool(mount.cluster.inline.data) == (0 < len(content) <= MAX)
            async with running_program(mount) as model:
                await trio.sleep(pause_s)
                yield model, other

    return start


async def test_what_an_open_brought_is_read_without_asking(autojump_clock, beside, cluster):
    async with beside() as (it, _):
        asked = cluster.inline.asked_count
        assert await it.do(
            {"length": 100},
            {"offset": 1000, "place": 200, "length": 100},
            {"offset": 1024, "place": 400, "length": 100},
            {"offset": 0, "place": 600, "length": 0},
        ) == [100, 24, 0, 0]
        assert it.memory.view[:100] == SMALL[:100]
        assert it.memory.view[200:224] == SMALL[1000:]
        assert not any(it.memory.view[224:600])
        assert cluster.inline.asked_count == asked
        assert not cluster.chunks.reads


async def test_each_batch_asks_meta_once_for_each_file(autojump_clock, beside, cluster):
    async with beside(pause_s=1.0) as (it, other):
        names = [b"g%d" % n for n in range(80)]
        for n, name in enumerate(names):
            await other.write_file(name, b"%d" % n * 50)
        bases = [(await it.mount.open(name)).handle_id for name in names]
        batches = it.mount.vfs.batches
        handles = [batches.open(batches.ticket(base)) for base in bases]
        it.files.update({n + 2: Share(h, True, True) for n, h in enumerate(handles)})
        await trio.sleep(1.0)
        for first in range(0, 80, 8):
            asked = cluster.inline.asked_count
            cluster.calls.clear()
            files = range(first, first + 8)
            results = await it.do(
                *({"file": n + 2, "place": n * 1000, "length": 40} for n in files),
                *({"file": n + 2, "place": n * 1000 + 40, "offset": 40} for n in files),
            )
            assert results == [40] * 8 + [len(b"%d" % n * 50) - 40 for n in files]
            assert cluster.inline.asked_count == asked + 8
            alone = 0 if cluster.inline.gives_many else 8
            assert cluster.calls == ["BatchGetAttr", *["GetAttr"] * alone]
            for n in files:
                length = len(b"%d" % n * 50)
                assert it.memory.view[n * 1000 : n * 1000 + length] == b"%d" % n * 50
        for base, handle in zip(bases, handles, strict=True):
            await batches.close(handle)
            await it.mount.close(base)


async def test_what_another_mount_made_of_the_file_is_seen_at_once(autojump_clock, beside, cluster):
    async with beside(pause_s=1.0) as (it, other):
        assert await it.do({"length": 100}) == [100]
        for content in (SMALL[::-1], b"short", SMALL * 2, SMALL * 100, SMALL):
            is_small = len(content) <= MAX
            await other.write_file(b"file", content)
            if is_small and not cluster.inline.data:  # as it is once its chunks are gone
                inode = cluster.put_file(cluster.child(1, b"file"), dyn_stripe=0, length=0)
                await cluster.chunks.remove_files([cluster.ref(inode)])
                await other.write_file(b"file", content)
            # Its length is what the mount knows, as ever.
            await it.mount.files.revalidate(cluster.child(1, b"file").inode_id)
            (count,) = await it.do({"length": 100_000})
            assert it.memory.view[:count] == content[:100_000]
            assert count == min(len(content), 100_000)


async def test_a_shorter_or_moved_file_is_read_again(autojump_clock, beside, cluster):
    """The mount has not heard of it."""
    async with beside(pause_s=1.0) as (it, other):
        await other.write_file(b"file", b"short")
        assert await it.do({"length": 1000}) == [5]
        assert it.memory.view[:5] == b"short"
        h = (await other.open(b"file")).handle_id
        await other.files.write(h, 5, b" and long" * 5000)
        await other.close(h)
        assert not cluster.inline.data
        assert await it.do({"offset": 1, "length": 4}) == [4]
        assert it.memory.view[:4] == b"hort"


async def test_writes_move_the_file_and_are_read_back(autojump_clock, beside, cluster):
    async with beside(pause_s=1.0) as (it, other):
        it.memory.view[5000:5010] = b"0123456789"
        assert await it.do({"op": Op.WRITE, "offset": 3, "place": 5000, "length": 10}) == [10]
        assert await it.do({"length": 20}) == [20]
        assert it.memory.view[:20] == SMALL[:3] + b"0123456789" + SMALL[13:20]
        await it.mount.files.fsync(it.base, is_data_only=False)
        assert await other.read_file(b"file") == SMALL[:3] + b"0123456789" + SMALL[13:]


async def test_own_buffered_writes_are_seen(autojump_clock, beside, cluster):
    async with beside(pause_s=1.0) as (it, _):
        await it.mount.files.write(it.base, 0, b"buffered")
        assert await it.do({"length": 10}) == [10]
        assert it.memory.view[:10] == b"buffered" + SMALL[8:10]
        await it.mount.files.write(it.base, 1000, b"behind the end of it all...")
        assert await it.do({"offset": 990, "length": 100}) == [37]
        assert it.memory.view[:37] == SMALL[990:1000] + b"behind the end of it all..."


async def test_a_file_that_cannot_be_read_says_so_and_others_are_read(
    autojump_clock, beside, cluster
):
    async with beside(pause_s=1.0) as (it, other):
        await other.write_file(b"large", b"x" * (CHUNK + 5))
        base = (await it.mount.open(b"large")).handle_id
        batches = it.mount.vfs.batches
        it.files[2] = Share(batches.open(batches.ticket(base)), True, True)
        checksum = cluster.inline.checksum_of
        cluster.inline.checksum_of = lambda data: checksum(data) ^ 1
        assert await it.do({"length": 10}, {"file": 2, "place": 100, "length": 10}) == [
            -errno.EIO,
            10,
        ]
        assert bytes(it.memory.view[:10]) == bytes(10)
        cluster.inline.checksum_of = checksum
        assert await it.do({"length": 10}) == [10]
        await batches.close(it.files[2].handle_id)
        await it.mount.close(base)


async def test_a_removed_file_is_none(autojump_clock, beside, cluster):
    async with beside(pause_s=1.0) as (it, _):
        inode = cluster.child(1, b"file")
        del cluster.inodes[inode.inode_id]
        assert await it.do({"length": 10}) == [-errno.ESTALE]
        cluster.inodes[inode.inode_id] = inode


async def test_a_single_read_of_what_is_cut_meanwhile_is_done_again(
    autojump_clock, beside, cluster
):
    """Of a file in chunks, which its program is not told to be busy."""
    content = SMALL * (MAX // len(SMALL) + 1)
    async with beside(content, pause_s=1.0) as (it, _):
        core = it.mount.vfs._core
        read_stored = core.read_stored

        async def cut_once(reads, **options):
            core.read_stored = read_stored
            raise CutMeanwhileError(reads[0].file.inode_id)

        core.read_stored = cut_once
        memory = memoryview(bytearray(100))
        io = BatchIo(NO_FILE, 5, memory, 0, it.files[1].handle_id)
        await it.mount.vfs.batches.read([io])
        assert (io.error, io.count, bytes(memory)) == (None, 100, content[5:105])
