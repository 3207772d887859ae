# ruff: noqa: ARG001 - pytest-trio finds the virtual clock among a test's own arguments
import os
import random

import pytest
import trio
import trio.testing

from fs.client.direct_threads import LeftBehindError
from fs.client.file_read import ReadAhead
from fs.client.vfs.changing_attributes import AttrChange
from fs.client.vfs.creating import DROPS_LATER_S
from fs.client.vfs.open_file import FetchedBlock
from fs.client.vfs.readahead import Block
from fs.schema.status import FsError, Status
from tests.client.fake_chunks import CHUNK

from .conftest import ROOT, RW, set_length


async def test_read_your_writes_before_any_flush(autojump_clock, mounts):
    async with mounts() as m:
        h = await m.create(b"f")
        await m.files.write(h, 10, b"hello")
        assert bytes(await m.files.read(h, 0, 100)) == bytes(10) + b"hello"
        await m.files.write(h, 12, b"XY")
        assert bytes(await m.files.read(h, 10, 5)) == b"heXYo"
        await m.close(h)


async def test_close_to_open_between_two_mounts(autojump_clock, mounts):
    async with mounts(2) as (a, b):
        await a.write_file(b"f", b"first")
        assert await b.read_file(b"f") == b"first"
        await a.write_file(b"f", b"second, longer")
        assert await b.read_file(b"f") == b"second, longer"
        await b.write_file(b"f", b"3")
        assert await a.read_file(b"f") == b"3"


async def test_keep_cache_only_when_nobody_else_wrote(autojump_clock, mounts):
    async with mounts(2) as (a, b):
        await a.write_file(b"f", b"one")

        async def reopen(m):
            opened = await m.open(b"f", os.O_RDONLY)
            await m.close(opened.handle_id)
            return opened.keep_cache

        assert await reopen(a)  # its own write, seen to the end
        assert not await reopen(b)
        assert await reopen(b)
        await b.write_file(b"f", b"two")
        assert not await reopen(a)
        assert await reopen(a)
        # Both write at once: neither may trust its pages.
        ha, hb = (await a.open(b"f")).handle_id, (await b.open(b"f")).handle_id
        await a.files.write(ha, 0, b"A")
        await b.files.write(hb, 1, b"B")
        await a.close(ha)
        await b.close(hb)
        assert not await reopen(a)
        assert not await reopen(b)


@pytest.mark.parametrize("does", ["closed", "late"])
async def test_pages_are_kept_once_another_open_has_dropped_them(autojump_clock, mounts, does):
    """Its program may be slow to go on, and drops them then."""
    async with mounts(2) as (a, b):
        await b.write_file(b"f", b"one")
        await a.write_file(b"f", b"two")
        first = await b.open(b"f", os.O_RDONLY)
        second = await b.open(b"f", os.O_RDONLY)
        assert not first.keep_cache
        assert not second.keep_cache
        for handle_id in (first.handle_id, second.handle_id):
            if does == "closed":
                await b.close(handle_id)
        if does == "late":
            await trio.sleep(DROPS_LATER_S)
        assert (await b.open(b"f", os.O_RDONLY)).keep_cache


async def test_stale_attributes_are_invalidated_at_open(autojump_clock, mounts):
    async with mounts(2) as (a, b):
        await a.write_file(b"f", b"one")
        inode = await b.stat(b"f")
        await a.write_file(b"f", b"longer")
        h = (await b.files.open(inode.inode_id, os.O_RDONLY, ROOT)).handle_id
        assert b.kernel.attributes == [inode.inode_id]
        await b.close(h)


async def test_truncate_comes_after_earlier_writes(autojump_clock, mounts, cluster):
    cluster.chunks.delay_s = 0.5
    async with mounts(2) as (a, b):
        h = await a.create(b"f")
        await a.files.write(h, 0, b"x" * 5000)
        await set_length(a, h, b"f", 1000)
        assert (await a.stat(b"f")).length == 1000
        await set_length(a, h, b"f", 3000)
        assert bytes(await a.files.read(h, 0, 9999)) == b"x" * 1000 + bytes(2000)
        await a.close(h)
        assert await b.read_file(b"f") == b"x" * 1000 + bytes(2000)
        opened = await b.open(b"f", RW | os.O_TRUNC)
        await b.files.write(opened.handle_id, 0, b"new")
        await b.close(opened.handle_id)
        assert await a.read_file(b"f") == b"new"


async def test_a_running_program_is_not_cut_by_an_open_for_reading(mounts, autojump_clock):
    async with mounts() as m:
        h = await m.create(b"f")
        await m.files.write(h, 0, b"text")
        await m.close(h)
        run = await m.open(b"f", os.O_RDONLY | 0x20)  # FMODE_EXEC, as the kernel opens what it runs
        with pytest.raises(FsError) as refused:
            await m.open(b"f", os.O_RDONLY | os.O_TRUNC)
        assert refused.value.status is Status.BEING_RUN
        assert await m.read_file(b"f") == b"text"
        await m.close(run.handle_id)
        cut = await m.open(b"f", os.O_RDONLY | os.O_TRUNC)
        await m.close(cut.handle_id)
        assert await m.read_file(b"f") == b""


async def test_remote_truncation_voids_the_length_hint(autojump_clock, mounts, cluster):
    async with mounts(2) as (a, b):
        h = await a.create(b"f")
        await a.files.write(h, 0, b"x" * 5000)
        await a.files.fsync(h, is_data_only=False)
        await set_length(b, None, b"f", 10)
        await a.files.write(h, 0, b"y")
        await a.close(h)
        assert await b.read_file(b"f") == b"y" + b"x" * 9


async def test_explicit_mtime_survives_the_close_after_it(autojump_clock, mounts):
    async with mounts() as m:
        h = await m.create(b"f")
        await m.files.write(h, 0, b"x")
        inode_id = (await m.stat(b"f")).inode_id
        await m.names.setattr(inode_id, AttrChange(mtime_ns=1234, atime_ns=99), h, ROOT)
        await m.close(h)
        assert (await m.stat(b"f")).mtime_ns == 1234


async def test_dyn_stripe_is_extended_before_writing(autojump_clock, mounts, cluster):
    async with mounts() as m:
        h = await m.create(b"f")
        await m.files.write(h, 0, b"small")
        await m.files.fsync(h, is_data_only=False)
        assert "ExtendStripe" not in cluster.calls
        await m.files.write(h, 9 * CHUNK, b"far")
        assert bytes(await m.files.read(h, 9 * CHUNK, 10)) == b"far"
        await m.files.fsync(h, is_data_only=False)
        assert cluster.child(1, b"f").file.dyn_stripe == 4
        await m.close(h)


async def test_open_modes_are_enforced(autojump_clock, mounts):
    async with mounts() as m:
        h = await m.create(b"f", os.O_WRONLY)
        with pytest.raises(FsError) as e:
            await m.files.read(h, 0, 1)
        assert e.value.status is Status.BAD_FILE
        await m.close(h)
        h = (await m.open(b"f", os.O_RDONLY)).handle_id
        with pytest.raises(FsError) as e:
            await m.files.write(h, 0, b"x")
        assert e.value.status is Status.BAD_FILE
        await m.close(h)
        with pytest.raises(FsError) as e:
            await m.files.read(h, 0, 1)
        assert e.value.status is Status.BAD_FILE


async def test_sequential_read_is_prefetched_and_invalidated_by_writes(
    autojump_clock, mounts, cluster
):
    data = random.Random(1).randbytes(2_000_000)
    async with mounts() as m:
        await m.write_file(b"f", data)
        cluster.chunks.reads.clear()
        h = (await m.open(b"f")).handle_id
        got = [bytes(await m.files.read(h, o, 50_000)) for o in range(0, 1_000_000, 50_000)]
        assert b"".join(got) == data[:1_000_000]
        assert len(cluster.chunks.reads) < 12
        assert max(r[2] for r in cluster.chunks.reads) > 100_000
        await m.files.write(h, 1_010_000, b"NEW")
        expected = data[1_000_000:1_010_000] + b"NEW" + data[1_010_003:1_050_000]
        assert bytes(await m.files.read(h, 1_000_000, 50_000)) == expected
        await m.close(h)


async def test_readahead_failure_falls_back_to_a_direct_read(autojump_clock, mounts, cluster):
    data = bytes(1_000_000)
    async with mounts() as m:
        await m.write_file(b"f", data)
        original = cluster.chunks.read
        failed = []

        async def failing_prefetch(reads, *, is_relaxed=False):
            if len(reads[0].buffer) > 60_000:
                failed.append(reads[0].offset)
                raise FsError(Status.IO_ERROR, "injected")
            await original(reads)

        cluster.chunks.read = failing_prefetch
        h = (await m.open(b"f", os.O_RDONLY)).handle_id
        assert await m.read_all(h, 50_000) == data
        assert failed
        await m.close(h)


async def test_what_comes_late_into_memory_that_was_left_behind_is_read_by_nobody(
    autojump_clock, mounts, cluster
):
    """A thread waits for a disk with it, and what that brings may be anything by then."""
    data, left = os.urandom(1_000_000), []
    async with mounts() as m:
        await m.write_file(b"f", data)
        original = cluster.chunks.read

        async def read(reads, *, is_relaxed=False):
            for buffer in left:
                buffer[:] = b"!" * len(buffer)
            if isinstance(reads[0], ReadAhead):
                left.extend(one.buffer for one in reads)
                raise LeftBehindError(Status.IO_ERROR, "a disk does not answer")
            await original(reads)

        cluster.chunks.read = read
        h = (await m.open(b"f", os.O_RDONLY)).handle_id
        assert await m.read_all(h, 50_000) == data
        assert left and all(bytes(buffer[:1]) == b"!" for buffer in left[:-1])
        await m.close(h)


async def test_a_block_whose_fetch_was_cut_off_is_none(autojump_clock, mounts, cluster):
    """Its memory is zeros, which nobody may take for the content."""

    async def never(reads, *, is_relaxed=False):
        await trio.sleep_forever()

    async with mounts() as m:
        await m.write_file(b"f", b"1" * 10)
        original, cluster.chunks.read = cluster.chunks.read, never
        h = (await m.open(b"f", os.O_RDONLY)).handle_id
        block = Block(0, 10, FetchedBlock(memoryview(bytearray(10))))
        with trio.move_on_after(1) as cut_off:
            await m.files._fetch(m.files.handle(h).state, block)
        assert cut_off.cancelled_caught and block.content.done.is_set()
        assert not block.content.is_fetched
        cluster.chunks.read = original
        await m.close(h)


async def test_a_truncating_open_cuts_what_meta_does_not_know_yet(autojump_clock, mounts):
    async with mounts() as m:
        old = await m.create(b"f")
        await m.files.write(old, 0, b"old old old")
        new = (await m.open(b"f", os.O_WRONLY | os.O_TRUNC)).handle_id
        assert (await m.stat(b"f")).length == 0
        await m.files.write(new, 0, b"new")
        await m.close(new)
        await m.close(old)
        assert await m.read_file(b"f") == b"new"


async def test_an_open_voids_what_other_open_files_had_read_ahead(autojump_clock, mounts):
    async with mounts(2) as (a, b):
        size, step = 600_000, 50_000
        await a.write_file(b"f", b"1" * size)
        early = (await b.open(b"f", os.O_RDONLY)).handle_id
        for offset in range(0, 4 * step, step):
            assert bytes(await b.files.read(early, offset, step)) == b"1" * step
        writer = (await a.open(b"f")).handle_id
        await a.files.write(writer, 0, b"2" * size)
        await a.close(writer)
        late = await b.open(b"f", os.O_RDONLY)
        assert not late.keep_cache
        # The kernel keeps one set of pages per file, whoever fills it.
        assert bytes(await b.files.read(early, 4 * step, step)) == b"2" * step
        await b.close(early)
        await b.close(late.handle_id)


async def test_a_write_ends_a_time_in_the_future(autojump_clock, mounts, cluster):
    async with mounts() as m:
        handle_id = await m.create(b"f")
        inode_id = m.files.handle(handle_id).state.inode_id
        future = cluster.clock.wall_ns() + 10**18
        await m.names.setattr(inode_id, AttrChange(mtime_ns=future), None, ROOT)
        assert (await m.stat(b"f")).mtime_ns == future
        await m.files.write(handle_id, 0, b"x")
        assert (await m.stat(b"f")).mtime_ns < future
        await m.close(handle_id)
        assert (await m.stat(b"f")).mtime_ns < future


async def test_a_read_that_waits_for_its_turn_goes_by_what_is_known_then(
    autojump_clock, nursery, mounts
):
    """Where a file has chunks by then that were not there before, they are no holes."""
    async with mounts() as m:
        h, turns, found = await m.create(b"f"), m.vfs._core.large_reads, []
        await set_length(m, h, b"f", 4 * CHUNK)
        count = turns.value
        assert all(turns.take_now() for _ in range(count)) and not turns.take_now()

        async def read():
            found.append(bytes(await m.files.read(h, 0, 4 * CHUNK)))

        nursery.start_soon(read)
        await trio.testing.wait_all_tasks_blocked()
        await m.files.write(h, 3 * CHUNK, b"x" * CHUNK)
        await m.files.flush(h)
        assert not found
        for _ in range(count):
            turns.give_back()
        await trio.testing.wait_all_tasks_blocked()
        await m.close(h)
    assert found == [bytes(3 * CHUNK) + b"x" * CHUNK]
