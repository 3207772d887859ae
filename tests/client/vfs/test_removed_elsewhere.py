# ruff: noqa: ARG001 - pytest-trio finds the virtual clock among a test's own arguments
"""A file that another mount has removed is STALE for readers that no session keeps it for;
it is never shown as a hole.
"""

import os
import struct
from contextlib import asynccontextmanager

import pytest
import trio

from fs.client.read_table import ReadTable
from fs.client.vfs.batches import BatchIo
from fs.kernels.batches import ENTRY
from fs.schema.status import FsError, Status
from tests.client.fake_chunks import CHUNK

from .conftest import ROOT, RW

DATA = os.urandom(3 * CHUNK)


@asynccontextmanager
async def removed(mounts, flags=os.O_RDONLY, **settings):
    """Yield a mount and its handle of a file that another mount has removed meanwhile."""
    async with mounts(2, **settings) as (a, b):
        await a.write_file(b"f", DATA)
        handle_id = (await b.open(b"f", flags)).handle_id
        await a.names.unlink(1, b"f", ROOT)
        await trio.sleep(1.0)  # the session of who wrote it ends
        yield b, handle_id
        await b.close(handle_id)


@pytest.mark.parametrize("readahead_bytes_max", [0, 512 * 1024])
async def test_a_reader_is_told(autojump_clock, mounts, readahead_bytes_max):
    async with removed(mounts, readahead_bytes_max=readahead_bytes_max) as (b, handle_id):
        for offset in (0, CHUNK, 2 * CHUNK):
            with pytest.raises(FsError) as e:
                await b.files.read(handle_id, offset, 4096)
            assert e.value.status is Status.STALE


async def test_reads_together_and_in_batches_are_told(autojump_clock, mounts):
    async with removed(mounts, readahead_bytes_max=0) as (b, handle_id):
        file, count = b.files.begin_read(handle_id, 0, 4096)
        table = table_of(2, count)
        table.files[KEY] = file
        with pytest.raises(FsError, match="inode"):
            await b.files.read_together(table)
        ios = [BatchIo(None, 0, memoryview(bytearray(100)), handle_id=handle_id) for _ in range(2)]
        await b.vfs.batches.read(ios)
        assert [io.error.status for io in ios] == [Status.STALE] * 2


KEY = struct.pack("<IIII", 1, 1, 1, 0)


def table_of(count, size=100):
    entries = b"".join(ENTRY.pack(n, size * n, size * n, size, KEY) for n in range(count))
    return ReadTable(entries, memoryview(bytearray(size * count)))


@pytest.mark.parametrize("count", [1, 2])
async def test_begun_reads_are_left_to_the_ordinary_way(autojump_clock, mounts, count):
    async with removed(mounts, readahead_bytes_max=0) as (b, handle_id):
        table, ended = table_of(count), []
        assert b.vfs.batches.begin_table(table, {KEY: handle_id}, ended.append, is_relaxed=False)
        await trio.testing.wait_all_tasks_blocked()
        assert ended == [None]
        assert not table.made  # what was noted of holes counts for nothing


@pytest.mark.parametrize("count", [1, 2])
async def test_reads_by_rows_are_told(autojump_clock, mounts, count):
    async with removed(mounts) as (b, handle_id):
        key, table = KEY, table_of(count)
        others = await b.vfs.batches.read_table(table, {key: handle_id}, is_relaxed=False)
        assert [io.error.status for _, io in others] == [Status.STALE] * count


async def test_neither_seeks_nor_copies_take_it_for_a_hole(autojump_clock, mounts):
    async with removed(mounts) as (b, handle_id):
        for whence in (os.SEEK_DATA, os.SEEK_HOLE):
            with pytest.raises(FsError) as e:
                await b.vfs.seeking.seek(handle_id, 0, whence)
            assert e.value.status is Status.STALE
        target = await b.create(b"copy")
        with pytest.raises(FsError) as e:
            await b.vfs.copying.copy(handle_id, 0, target, 0, len(DATA))
        assert e.value.status is Status.STALE
        await b.close(target)


async def test_a_session_keeps_it(autojump_clock, mounts, cluster):
    async with removed(mounts, flags=RW) as (b, handle_id):
        assert await b.read_all(handle_id) == DATA


async def test_holes_are_still_holes(autojump_clock, mounts, cluster):
    async with mounts(2) as (a, b):
        handle_id = await a.create(b"f")
        await a.files.write(handle_id, 2 * CHUNK, b"end")
        await a.close(handle_id)
        assert await b.read_file(b"f") == bytes(2 * CHUNK) + b"end"


class Slow:
    """A meta service whose replies of one method wait."""

    def __init__(self, inner, name):
        self.inner, self.name = inner, name
        self.gate, self.answered = trio.Event(), trio.Event()
        self.client_id = inner.client_id

    async def call(self, method, request, *, timeout_s=None):
        reply = await self.inner.call(method, request, timeout_s=timeout_s)
        if method.name == self.name and not self.gate.is_set():
            self.answered.set()
            await self.gate.wait()
        return reply


@pytest.mark.parametrize("is_dirty", [False, True])
async def test_what_is_opened_while_its_last_name_goes_is_kept(
    autojump_clock, mounts, cluster, is_dirty
):
    """Through one mount: the reply to the open comes behind that to the removal."""
    async with mounts() as m:
        await m.write_file(b"f", DATA)
        await trio.sleep(1.0)  # its session ends
        inode = await m.stat(b"f")
        m.names.give(inode, lookup_count=1)
        core, opened = m.vfs._core, []
        if is_dirty:  # what nobody has open any more, but is still known
            core.states[inode.inode_id] = core.state_of(inode, ROOT)
        slow = core.meta = Slow(core.meta, "Open")
        async with trio.open_nursery() as nursery:

            async def begin():
                opened.append(await m.files.open(inode.inode_id, os.O_RDONLY, ROOT))

            nursery.start_soon(begin)
            await slow.answered.wait()
            assert not cluster.sessions.get(inode.inode_id)
            cluster.sessions[inode.inode_id] = {"other"}  # a delay keeps it for a while
            await m.names.unlink(1, b"f", ROOT)
            slow.gate.set()
        assert core.states[inode.inode_id].keep_session in cluster.sessions[inode.inode_id]
        assert await m.read_all(opened[0].handle_id) == DATA
        await m.close(opened[0].handle_id)
        await trio.sleep(1.0)
        assert cluster.sessions[inode.inode_id] == {"other"}


@pytest.mark.parametrize("is_sparse", [False, True])
@pytest.mark.parametrize("is_own", [False, True])
async def test_who_was_stopped_for_longer_than_its_sessions_last_is_told(
    autojump_clock, mounts, is_sparse, is_own
):
    """Found by the simulation (seed 515): a file without a name was read as zeros,
    for its mount still had it for kept.
    """
    async with mounts(2, readahead_bytes_max=0) as (a, b):
        await a.write_file(b"f", DATA)
        handle_id = (await b.open(b"f", RW)).handle_id
        inode_id = b.files.handle(handle_id).state.inode_id
        if is_sparse:
            await b.files.write(handle_id, 20 * CHUNK, b"behind a hole")
            await b.files.fsync(handle_id, is_data_only=False)
            assert bytes(await b.files.read(handle_id, 10 * CHUNK, 100)) == bytes(100)
        assert bytes(await b.files.read(handle_id, 0, 100)) == DATA[:100]
        await (b if is_own else a).names.unlink(1, b"f", ROOT)
        assert bytes(await b.files.read(handle_id, 0, 100)) == DATA[:100]
        await trio.sleep(2.0)
        inode = b.cluster.get(inode_id)  # meta takes b for dead
        b.cluster.sessions[inode_id].clear()
        await b.cluster.collect(inode)
        with pytest.raises(FsError) as e:
            await b.files.read(handle_id, 0, 100)
        assert e.value.status is Status.STALE
        await b.files.release(handle_id)
