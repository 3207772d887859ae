# ruff: noqa: ARG001 - pytest-trio finds the virtual clock among a test's own arguments
import os
import random
from functools import partial
from itertools import pairwise

import pytest
import trio
import trio.testing

from fs.client.vfs.changing_attributes import AttrChange
from fs.client.vfs.open_file import FetchedBlock
from fs.client.vfs.ports import Caller
from fs.client.vfs.readahead import Block
from fs.schema import services
from fs.schema.status import FsError, Status
from tests.client.fake_chunks import CHUNK

from .conftest import ROOT, RW

A = os.O_WRONLY | os.O_APPEND


def fault(status=Status.NO_SPACE):
    return FsError(status, "injected")


async def test_sequential_writer_produces_whole_chunk_writes(autojump_clock, mounts, cluster):
    async with mounts() as m:
        h = await m.create(b"f")
        for i in range(64):
            await m.files.write(h, i * 4096, bytes([i]) * 4096)
        await m.close(h)
        assert sorted(w[1:] for w in cluster.chunks.writes) == [
            (i * CHUNK, CHUNK) for i in range(4)
        ]


async def test_a_long_stream_sends_its_chunks_in_bursts(autojump_clock, mounts, cluster):
    async with mounts() as m:
        h = await m.create(b"f")
        sent = []
        for i in range(40):
            await m.files.write(h, i * CHUNK, bytes([i]) * CHUNK)
            await trio.testing.wait_all_tasks_blocked()
            sent.append(len(cluster.chunks.writes))
        assert sent[:4] == [1, 2, 3, 4], "what is short waits for nothing"
        assert all(count >= (i + 1) * 3 // 4 for i, count in enumerate(sent)), sent
        bursts = [b - a for a, b in pairwise(sent)]
        assert max(bursts) >= 2, sent
        assert bytes(await m.files.read(h, 39 * CHUNK, 10)) == bytes([39]) * 10
        await m.files.write(h, 50 * CHUNK, b"x" * CHUNK)
        await trio.testing.wait_all_tasks_blocked()
        assert len(cluster.chunks.writes) == 41, "it is none any more"
        await m.close(h)
        wanted = [(i * CHUNK, CHUNK) for i in (*range(40), 50)]
        assert sorted(w[1:] for w in cluster.chunks.writes) == wanted


async def test_what_a_stream_holds_back_is_sent_by_fsync(autojump_clock, mounts, cluster):
    async with mounts() as m:
        h = await m.create(b"f")
        for i in range(9):
            await m.files.write(h, i * CHUNK, bytes([i]) * CHUNK)
            await trio.testing.wait_all_tasks_blocked()
        await m.files.write(h, 9 * CHUNK, b"end")
        await trio.testing.wait_all_tasks_blocked()
        assert len(cluster.chunks.writes) < 9
        await m.files.fsync(h, is_data_only=False)
        assert sorted(w[1:] for w in cluster.chunks.writes) == [
            *((i * CHUNK, CHUNK) for i in range(9)),
            (9 * CHUNK, 3),
        ]
        await m.close(h)


async def test_misaligned_writer_is_cut_at_chunk_boundaries(autojump_clock, mounts, cluster):
    async with mounts() as m:
        h = await m.create(b"f")
        await m.files.write(h, 1000, bytes(2 * CHUNK))
        await m.close(h)
        writes = sorted(w[1:] for w in cluster.chunks.writes)
        assert writes == [(1000, CHUNK - 1000), (CHUNK, CHUNK), (2 * CHUNK, 1000)]


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


async def test_stale_attributes_are_invalidated_at_open(autojump_clock, mounts):
    async with mounts(2) as (a, b):
        await a.write_file(b"f", b"one")
        inode = await b.stat(b"f")
        await a.write_file(b"f", b"longer")
        h = (await b.files.open(inode.inode_id, os.O_RDONLY, ROOT)).handle_id
        assert b.kernel.attributes == [inode.inode_id]
        await b.close(h)


async def test_close_is_durable_once_and_only_when_written(autojump_clock, mounts, cluster):
    async with mounts() as m:
        h = await m.create(b"f")
        await m.files.write(h, 0, b"x")
        await m.files.flush(h)
        assert (cluster.chunks.sync_count, cluster.durable_calls) == (1, 1)
        await m.files.flush(h)  # close of a duplicate
        await m.files.release(h)
        assert (cluster.chunks.sync_count, cluster.durable_calls) == (1, 1)
        await m.read_file(b"f")
        assert (cluster.chunks.sync_count, cluster.durable_calls) == (1, 1)


async def test_a_close_makes_nothing_durable_that_has_no_name_until_it_has_one(
    autojump_clock, mounts, cluster
):
    async with mounts() as m:
        h = await m.create(b"f")
        inode_id = cluster.names[1][b"f"]
        await m.files.write(h, 0, b"x")
        await m.names.unlink(1, b"f", ROOT)
        for _ in range(2):  # closes of duplicates
            await m.files.flush(h)
            chunks = cluster.chunks
            assert (chunks.durable_writes, chunks.sync_count, cluster.durable_calls) == (0, 0, 0)
        assert cluster.inodes[inode_id].length == 1, "it is reported all the same"
        await m.names.link(inode_id, 1, b"g", ROOT)
        await m.files.flush(h)
        assert (chunks.sync_count, cluster.durable_calls) == (1, 1)
        await m.files.flush(h)
        await m.files.release(h)
        assert (chunks.sync_count, cluster.durable_calls) == (1, 1)


@pytest.mark.parametrize("flags", [RW, os.O_RDONLY])
@pytest.mark.parametrize("is_released", [True, False])
async def test_a_name_makes_durable_what_was_closed_without_one(
    autojump_clock, mounts, cluster, flags, is_released
):
    async with mounts() as m:
        h = await m.create(b"f")
        inode_id, chunks = cluster.names[1][b"f"], cluster.chunks
        other = (await m.files.open(inode_id, flags, ROOT)).handle_id
        await m.names.unlink(1, b"f", ROOT)
        await m.files.write(h, 0, b"x")
        await m.files.flush(h)
        if is_released:  # which the kernel asks for at any time after the close
            await m.files.release(h)
        assert (chunks.durable_writes, chunks.sync_count, cluster.durable_calls) == (0, 0, 0)
        await m.names.link(inode_id, 1, b"g", ROOT)
        assert (chunks.sync_count, cluster.durable_calls) == (1, 1)
        await m.close(other)
        if not is_released:
            await m.files.release(h)
        assert (chunks.sync_count, cluster.durable_calls) == (1, 1)


async def test_a_name_that_comes_while_it_is_closed_makes_it_durable(
    autojump_clock, mounts, cluster
):
    async with mounts() as m:
        h = await m.create(b"f")
        inode_id = cluster.names[1][b"f"]
        other = (await m.files.open(inode_id, os.O_RDONLY, ROOT)).handle_id
        await m.names.unlink(1, b"f", ROOT)
        await m.files.write(h, 0, b"x")
        call = m.vfs._core.meta.call

        async def call_late(method, request):
            reply = await call(method, request)
            if method is services.META_LINK:  # and the mount does not know of it yet
                await m.close(h)
            return reply

        m.vfs._core.meta.call = call_late
        await m.names.link(inode_id, 1, b"g", ROOT)
        assert (cluster.chunks.sync_count, cluster.durable_calls) == (1, 1)
        await m.close(other)


@pytest.mark.parametrize("step", ["fsync", "flush"])
async def test_bytes_of_a_close_become_durable_on_their_way(autojump_clock, mounts, cluster, step):
    async def act(h):
        await (m.files.fsync(h, is_data_only=False) if step == "fsync" else m.files.flush(h))

    chunks, chunks.can_flush = cluster.chunks, True
    async with mounts() as m:
        h = await m.create(b"f")
        for number in (1, 2):
            await m.files.write(h, 100 * number, b"x")
            await act(h)
            await act(h)
        assert (chunks.durable_writes, chunks.sync_count) == (2, 0)
        # What went before, and was not durable, takes a sync.
        await m.files.write(h, 0, b"y")
        assert bytes(await m.files.read(h, 0, 1)) == b"y"
        await m.files.write(h, 1, b"z")
        await act(h)
        assert (chunks.durable_writes, chunks.sync_count) == (2, 1)
        await m.files.write(h, 2, b"z")
        await act(h)
        assert (chunks.durable_writes, chunks.sync_count) == (3, 1)
        # So does what a truncation has cut, on whatever chain.
        await set_length(m, h, b"f", 1)
        await m.files.write(h, 1, b"z")
        await act(h)
        assert (chunks.durable_writes, chunks.sync_count) == (3, 2)
        chunks.can_flush = False
        await m.files.write(h, 1, b"z")
        await act(h)
        assert (chunks.durable_writes, chunks.sync_count) == (4, 3)
        await m.close(h)


async def test_appended_records_become_durable_on_their_way(autojump_clock, mounts, cluster):
    chunks, chunks.can_flush = cluster.chunks, True
    async with mounts() as m:
        h = await m.create(b"log", A)
        for number in range(3):
            await m.files.write(h, 0, b"record %d" % number)
            await m.files.write(h, 0, b" and more")
            await m.files.fsync(h, is_data_only=False)
        assert (chunks.durable_writes, chunks.sync_count) == (3, 0)
        await m.close(h)


async def test_a_write_beside_a_durable_one_is_not_taken_for_durable(
    autojump_clock, mounts, cluster
):
    chunks, chunks.can_flush = cluster.chunks, True
    async with mounts() as m:
        h1 = await m.create(b"f")
        h2 = (await m.open(b"f", RW)).handle_id
        await m.files.write(h1, 0, b"x")
        chunks.gate = trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(m.files.flush, h1)
            await trio.testing.wait_all_tasks_blocked()
            await m.files.write(h2, 2 * CHUNK, b"y")
            state = m.files.handle(h2).state
            m.vfs._core.start_flush(state)  # as when room is needed
            await trio.testing.wait_all_tasks_blocked()
            chunks.gate.set()
        assert chunks.durable_writes == 1
        await m.files.flush(h2)
        assert chunks.sync_count >= 1
        await m.close(h1)
        await m.close(h2)


async def test_what_a_truncation_cut_during_a_report_is_not_taken_for_durable(
    autojump_clock, mounts, cluster, monkeypatch
):
    cluster.chunks.can_flush = True
    apply_sync, answer = cluster.apply_sync, trio.Event()

    async def answer_late(request):
        inode = await apply_sync(request)
        await answer.wait()
        return inode

    async with mounts() as m:
        h = await m.create(b"f")
        await m.files.write(h, 0, b"x" * 100)
        with monkeypatch.context() as slow:
            slow.setattr(cluster, "apply_sync", answer_late)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(partial(m.files.fsync, h, is_data_only=False))
                await trio.testing.wait_all_tasks_blocked()
                await set_length(m, h, b"f", 1)
                answer.set()
        assert cluster.chunks.sync_count == 0
        await m.files.fsync(h, is_data_only=False)
        assert cluster.chunks.sync_count == 1
        await m.close(h)


async def test_a_refused_chunk_sync_fails_the_fsync_and_is_done_again(
    autojump_clock, mounts, cluster, monkeypatch
):
    async def refuse(_files):
        raise FsError(Status.IO_ERROR, "the disk is gone")

    async with mounts() as m:
        h = await m.create(b"f")
        await m.files.write(h, 0, b"x")
        with monkeypatch.context() as broken:
            broken.setattr(cluster.chunks, "sync", refuse)
            with pytest.raises(FsError) as caught:
                await m.files.fsync(h, is_data_only=False)
        assert caught.value.status is Status.IO_ERROR
        await m.files.fsync(h, is_data_only=False)
        assert cluster.chunks.sync_count == 1
        await m.close(h)


async def test_chunks_and_metadata_become_durable_side_by_side(
    autojump_clock, mounts, cluster, monkeypatch
):
    sync = cluster.chunks.sync

    async def slow_sync(files):
        await trio.sleep(3)
        assert cluster.durable_calls == 1  # meta did not wait for the chunks
        await sync(files)

    monkeypatch.setattr(cluster.chunks, "sync", slow_sync)
    async with mounts() as m:
        h = await m.create(b"f")
        await m.files.write(h, 0, b"x")
        began_s = trio.current_time()
        await m.files.fsync(h, is_data_only=False)
        assert trio.current_time() - began_s >= 3  # but fsync did
        await m.close(h)


async def test_creating_without_writing_costs_no_sync(autojump_clock, mounts, cluster):
    async with mounts() as m:
        h = await m.create(b"f")
        await m.close(h)
        assert (cluster.chunks.sync_count, cluster.durable_calls) == (0, 0)
        h = await m.create(b"g")
        await m.files.fsync(h, is_data_only=False)
        assert (cluster.chunks.sync_count, cluster.durable_calls) == (0, 1)
        await m.close(h)


async def test_durable_close_can_be_turned_off_but_fsync_cannot(autojump_clock, mounts, cluster):
    async with mounts(durable_close=False) as m:
        await m.write_file(b"f", b"x")
        assert (cluster.chunks.sync_count, cluster.durable_calls) == (0, 0)
        assert cluster.get((await m.stat(b"f")).inode_id).length == 1
        h = (await m.open(b"f", os.O_RDONLY)).handle_id
        await m.files.fsync(h, is_data_only=True)  # another open file's bytes as well
        assert (cluster.chunks.sync_count, cluster.durable_calls) == (1, 1)
        await m.close(h)


async def test_fsync_reports_length_while_open(autojump_clock, mounts):
    async with mounts(2) as (a, b):
        h = await a.create(b"f")
        await a.files.write(h, 0, b"12345")
        assert (await b.stat(b"f")).length == 0
        assert (await a.stat(b"f")).length == 5
        await a.files.fsync(h, is_data_only=False)
        assert (await b.stat(b"f")).length == 5
        await a.close(h)


@pytest.mark.parametrize("step", ["write", "fsync", "flush"])
async def test_a_flush_error_is_raised_once_at_every_writer(autojump_clock, mounts, cluster, step):
    async with mounts() as m:
        h1 = await m.create(b"f")
        h2 = (await m.open(b"f")).handle_id
        cluster.chunks.write_faults.append(fault())
        await m.files.write(h1, 0, bytes(CHUNK))
        await trio.sleep(1)

        async def act(h):
            if step == "write":
                await m.files.write(h, 0, b"y")
            elif step == "fsync":
                await m.files.fsync(h, is_data_only=False)
            else:
                await m.files.flush(h)

        for h in (h1, h2):
            with pytest.raises(FsError) as e:
                await act(h)
            assert e.value.status is Status.NO_SPACE
            await act(h)
            await m.close(h)
        assert m.kernel.content  # the kernel must not show what was lost
        length = (await m.stat(b"f")).length
        assert length == (1 if step == "write" else 0)


@pytest.mark.parametrize("step", ["fsync", "flush"])
async def test_lost_writes_are_told_once_to_every_writer(
    autojump_clock, mounts, cluster, monkeypatch, step
):
    real, losses = cluster.chunks.sync, [FsError(Status.WRITES_LOST, "no power")]

    async def sync(files):
        await real(files)
        if losses:
            raise losses.pop()

    monkeypatch.setattr(cluster.chunks, "sync", sync)
    async with mounts() as m:
        h1 = await m.create(b"f")
        h2 = (await m.open(b"f")).handle_id
        await m.files.write(h1, 0, b"x")

        async def act(h):
            await (m.files.fsync(h, is_data_only=False) if step == "fsync" else m.files.flush(h))

        for h in (h1, h2):
            with pytest.raises(FsError) as e:
                await act(h)
            assert e.value.status is Status.WRITES_LOST
            await act(h)
        assert m.kernel.content  # the kernel must not show what was lost
        await m.close(h1)
        await m.close(h2)


async def test_flushes_overlap_but_never_on_one_chunk(autojump_clock, mounts, cluster):
    cluster.chunks.delay_s = 1.0
    async with mounts() as m:
        h = await m.create(b"f")
        started = trio.current_time()
        for i in range(16):
            await m.files.write(h, i * CHUNK, bytes([i]) * CHUNK)
        for i in range(16):  # the fake asserts that these do not overtake
            await m.files.write(h, i * CHUNK + 100, b"second")
        await m.files.fsync(h, is_data_only=False)
        assert trio.current_time() - started < 6
        for i in range(16):
            found = bytes(await m.files.read(h, i * CHUNK, CHUNK))
            assert found == bytes([i]) * 100 + b"second" + bytes([i]) * (CHUNK - 106)
        await m.close(h)


async def test_dirty_bytes_are_bounded_over_the_mount(autojump_clock, mounts, cluster):
    cluster.chunks.gate = trio.Event()
    async with mounts() as m:
        handles = [await m.create(b"f%d" % i) for i in range(4)]
        written = 0

        async def writer(h):
            nonlocal written
            for i in range(32):
                await m.files.write(h, i * 16384, bytes(16384))
                written += 16384

        async with trio.open_nursery() as nursery:
            for h in handles:
                nursery.start_soon(writer, h)
            await trio.sleep(1)
            assert written == m.vfs._core.budget.used_bytes == 1024 * 1024
            cluster.chunks.gate.set()
        for i, h in enumerate(handles):
            await m.close(h)
            assert await m.read_file(b"f%d" % i) == bytes(32 * 16384)


async def test_write_back_after_the_interval(autojump_clock, mounts, cluster):
    async with mounts() as m:
        h = await m.create(b"f")
        await m.files.write(h, 0, b"old")
        a = await m.create(b"log", A)
        await m.files.write(a, 0, b"record")
        await trio.sleep(6)
        assert len(cluster.chunks.writes) == 2
        assert cluster.child(1, b"f").length == 3
        assert cluster.child(1, b"log").length == 6
        assert cluster.chunks.sync_count == 0
        await m.close(h)
        await m.close(a)


async def test_two_appenders_lose_and_tear_nothing(autojump_clock, mounts, cluster):
    cluster.chunks.delay_s = 0.2
    async with mounts(2, write_buffer_bytes=4096) as both:
        await both[0].write_file(b"log", b"")
        rng = random.Random(3)

        async def appender(m, tag):
            h = (await m.open(b"log", A)).handle_id
            for i in range(60):
                body = b"%s%04d" % (tag, i) + b"." * rng.randrange(300)
                await m.files.write(h, 0, b"<" + body + b">\n")
                if rng.random() < 0.2:
                    await m.files.fsync(h, is_data_only=False)
                await trio.sleep(rng.random() / 50)
            await m.close(h)

        async with trio.open_nursery() as nursery:
            for m, tag in zip((*both, both[0]), (b"a", b"b", b"c"), strict=True):
                nursery.start_soon(appender, m, tag)
        lines = (await both[1].read_file(b"log")).splitlines()
        assert all(line.startswith(b"<") and line.endswith(b">") for line in lines)
        for tag in (b"a", b"b", b"c"):
            mine = [line[2:6] for line in lines if line[1:2] == tag]
            assert mine == [b"%04d" % i for i in range(60)]
        assert both[0].kernel.content  # the kernel's guess of the offset was wrong at times


async def test_append_handles_see_their_own_records(autojump_clock, mounts):
    async with mounts() as m:
        h = await m.create(b"log", os.O_RDWR | os.O_APPEND)
        await m.files.write(h, 0, b"one")
        assert (await m.stat(b"log")).length == 3
        await m.files.write(h, 3, b"two")
        assert bytes(await m.files.read(h, 0, 100)) == b"onetwo"
        await m.close(h)


async def test_a_failed_reservation_is_an_error_at_close(autojump_clock, mounts, cluster):
    async with mounts() as m:
        h = await m.create(b"log", A)
        await m.files.write(h, 0, b"one")
        cluster.meta_faults["ReserveAppend"] = [fault(Status.QUOTA_EXCEEDED)]
        with pytest.raises(FsError) as e:
            await m.files.flush(h)
        assert e.value.status is Status.QUOTA_EXCEEDED
        await m.close(h)


async def test_an_interrupted_append_is_an_error_at_close(autojump_clock, mounts, cluster):
    async with mounts() as m:
        h = await m.create(b"log", A)
        await m.files.write(h, 0, b"one")
        meta = m.vfs._core.meta
        meta.reserve_append = lambda _request: trio.sleep_forever()  # noqa: ASYNC105 - the fake awaits it
        with trio.move_on_after(1) as scope:
            await m.files.flush(h)
        assert scope.cancelled_caught
        del meta.reserve_append
        with pytest.raises(FsError) as e:
            await m.files.flush(h)
        assert e.value.status is Status.IO_ERROR
        await m.files.write(h, 0, b"two")
        await m.close(h)
        assert await m.read_file(b"log") == b"two"


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


async def test_a_running_program_is_not_cut_by_an_open_for_reading(mounts):
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


async def set_length(m, handle_id, name, length):
    inode_id = (await m.stat(name)).inode_id
    await m.names.setattr(inode_id, AttrChange(length=length), handle_id, ROOT)


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


async def test_a_write_comes_after_the_records_appended_before_it(autojump_clock, mounts):
    async with mounts() as m:
        appender = await m.create(b"f", RW | os.O_APPEND)
        writer = (await m.open(b"f")).handle_id
        await m.files.write(appender, 0, b"one")
        await m.files.write(writer, 0, b"ONE-and-more")
        await m.files.write(appender, 12, b"two")
        assert await m.read_all(writer) == b"ONE-and-moretwo"
        await m.close(appender)
        await m.close(writer)


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


async def test_while_space_is_tight_the_write_itself_fails(autojump_clock, mounts, cluster):
    full = FsError(Status.NO_SPACE, "disk full")
    async with mounts() as m:
        first = await m.create(b"first")
        await m.files.write(first, 0, b"lost")  # nobody knew yet
        cluster.chunks.write_faults = [full]
        with pytest.raises(FsError, match="disk full"):
            await m.files.flush(first)
        for flags in (RW, RW | os.O_APPEND):
            second = await m.create(b"second", flags)
            cluster.chunks.write_faults = [full]
            with pytest.raises(FsError, match="disk full"):
                await m.files.write(second, 0, b"lost")
            await m.files.write(second, 0, b"room again")
            await m.close(second)
            gap = bytes(4) if flags & os.O_APPEND else b""  # room that was reserved and not filled
            assert await m.read_file(b"second") == gap + b"room again"
            await m.names.unlink(1, b"second", ROOT)
        await m.close(first)
        await trio.sleep(31)
        await m.files.write(third := await m.create(b"third"), 0, b"buffered")
        assert cluster.chunks.writes[-1][2] != len(b"buffered")
        await m.close(third)


async def test_space_is_tight_before_it_is_used_up(autojump_clock, mounts, cluster):
    cluster.chunks.free_bytes = (2 << 20) + 4
    async with mounts() as m:
        await trio.sleep(1)
        handle_id = await m.create(b"f")
        await m.files.write(handle_id, 0, bytes(4))
        assert cluster.chunks.writes == []
        for i in range(1, 17):
            await m.files.write(handle_id, i * 65_536, bytes(65_536))
        assert sum(w[2] for w in cluster.chunks.writes) < 16 * 65_536 + 4
        await m.files.write(handle_id, 17 * 65_536, bytes(1))
        assert (17 * 65_536, 1) in [w[1:] for w in cluster.chunks.writes]
        await m.close(handle_id)


class StepCount(trio.abc.Instrument):
    """How often any task went on."""

    def __init__(self):
        self.value = 0

    def before_task_step(self, _task):
        self.value += 1


async def test_small_writes_to_one_chunk_wake_each_other_once(autojump_clock, mounts, cluster):
    """Each waits for all before it: woken by every one of those, a thousand would take minutes."""
    count = 400
    async with mounts() as m:
        handle_id = await m.create(b"f")
        cluster.chunks.gate = trio.Event()
        steps = StepCount()
        async with trio.open_nursery() as nursery:
            for number in range(count):
                data = b"%03d" % number
                nursery.start_soon(m.files.write_unbuffered, handle_id, 3 * number, data)
            await trio.testing.wait_all_tasks_blocked()
            trio.lowlevel.add_instrument(steps)
            cluster.chunks.gate.set()
        trio.lowlevel.remove_instrument(steps)
        assert steps.value < 20 * count
        expected = b"".join(b"%03d" % number for number in range(count))
        assert await m.read_file(b"f") == expected
        await m.close(handle_id)


async def test_the_kernel_forgets_the_mode_when_set_id_bits_went(autojump_clock, mounts):
    async with mounts() as m:
        own = await m.create(b"f", mode=0o6777)
        inode_id = m.files.handle(own).state.inode_id
        theirs = (await m.files.open(inode_id, RW, Caller(1000, 1000))).handle_id
        for handle_id, forgotten in ((own, []), (theirs, [inode_id])):
            await m.files.write(handle_id, 0, b"1")
            await m.files.flush(handle_id)
            assert m.kernel.attributes == forgotten
        await m.close(own)
        await m.close(theirs)


async def test_set_id_bits_go_before_what_passes_the_page_cache(autojump_clock, mounts):
    async with mounts() as m:
        handle = m.files.handle(await m.create(b"f", RW | os.O_APPEND, mode=0o2644))
        inode_id = handle.state.inode_id
        for mode, after in ((0o2644, 0o2644), (0o6755, 0o755)):
            await m.names.setattr(inode_id, AttrChange(mode=mode), None, ROOT)
            assert m.names.keeps_set_id(handle) == (mode != after)
            await m.names.drop_set_id(handle)
            assert (await m.names.getattr(inode_id, ROOT)).mode == after
        assert m.kernel.attributes == [inode_id]
        await m.close(handle.handle_id)


async def test_a_mode_that_another_mount_has_set_stays_when_set_id_bits_go(autojump_clock, mounts):
    """What this mount knows of the mode may be as old as its open; what was closed to others must not open again."""
    async with mounts(2) as (one, two):
        handle = one.files.handle(await one.create(b"f", RW | os.O_APPEND, mode=0o4755))
        inode_id = handle.state.inode_id
        await two.names.setattr(inode_id, AttrChange(mode=0o4600), None, ROOT)
        await one.names.drop_set_id(handle)
        assert (await two.names.getattr(inode_id, ROOT)).mode == 0o600
        assert not one.names.keeps_set_id(handle)
        await one.close(handle.handle_id)


@pytest.mark.parametrize("flags", [os.O_APPEND, os.O_DIRECT])
async def test_a_program_changed_past_the_page_cache_loses_its_capabilities(
    autojump_clock, mounts, flags
):
    """Elsewhere the kernel asks for them before it writes."""
    capability = b"security.capability"
    async with mounts() as m:
        plain = await m.create(b"f")
        inode_id = m.files.handle(plain).state.inode_id
        past = (await m.files.open(inode_id, RW | flags, ROOT)).handle_id
        for _ in range(2):
            await m.names.setxattr(inode_id, capability, b"much", ROOT)
            assert m.files.write_now(past, 0, b"x") is None
            await m.files.write(past, 0, b"x")
            assert (inode_id, capability) not in m.cluster.xattrs
        # What is known to be absent is not asked for again.
        await m.files.write(past, 0, b"x")
        asked_count = m.cluster.calls.count("GetXattr")
        await m.files.write(past, 0, b"x")
        assert m.cluster.calls.count("GetXattr") == asked_count
        await m.close(plain)
        await m.close(past)


async def test_set_id_bits_go_by_who_wrote(autojump_clock, mounts):
    """Not by who opened last: root's writing leaves them, that of somebody else who met them does not."""
    async with mounts() as m:
        own = await m.create(b"f", mode=0o777)
        state = m.files.handle(own).state
        theirs = (await m.files.open(state.inode_id, RW, Caller(1000, 1000))).handle_id
        await m.names.setattr(state.inode_id, AttrChange(mode=0o6777), None, ROOT)
        await m.files.write(own, 0, b"root")
        assert not m.vfs._core.sync_request(state).clears_suid
        await m.files.write(theirs, 0, b"user")
        await m.files.write(own, 0, b"root")
        await m.vfs._core.drain(state)
        assert m.vfs._core.sync_request(state).clears_suid
        # A mode that is set now comes after what was written.
        await m.names.setattr(state.inode_id, AttrChange(mode=0o6777), None, ROOT)
        await m.files.write(own, 0, b"root")
        await m.vfs._core.drain(state)
        request = m.vfs._core.sync_request(state)
        assert request.has_new_data
        assert not request.clears_suid
        await m.close(own)
        await m.close(theirs)


async def test_set_id_bits_that_another_mount_has_set_since_the_open_go(autojump_clock, mounts):
    """Or who may write a file would wait with it until it is a program that runs as somebody else."""
    async with mounts(2) as (one, two):
        inode_id = one.files.handle(own := await one.create(b"f", mode=0o777)).state.inode_id
        theirs = (await one.files.open(inode_id, RW, Caller(1000, 1000))).handle_id
        await two.names.setattr(inode_id, AttrChange(mode=0o6777), None, ROOT)
        await one.files.write(theirs, 0, b"user")
        await one.close(theirs)
        assert (await two.names.getattr(inode_id, ROOT)).mode == 0o777
        await one.close(own)


async def test_a_mode_without_set_id_bits_waits_for_no_report(autojump_clock, mounts):
    async with mounts() as m:
        own = await m.create(b"f", mode=0o777)
        inode_id = m.files.handle(own).state.inode_id
        theirs = (await m.files.open(inode_id, RW, Caller(1000, 1000))).handle_id
        for mode, count in ((0o644, 0), (0o4755, 1)):
            await m.files.write(theirs, 0, b"user")
            await m.names.setattr(inode_id, AttrChange(mode=mode), None, ROOT)
            assert m.cluster.calls.count("Sync") == count
        await m.close(own)
        await m.close(theirs)
        assert (await m.names.getattr(inode_id, ROOT)).mode == 0o4755


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


async def test_an_append_has_the_time_at_which_it_was_written(autojump_clock, mounts):
    async with mounts() as m:
        handle_id = await m.create(b"f", RW | os.O_APPEND)
        await m.files.write(handle_id, 0, b"x")
        seen = (await m.stat(b"f")).mtime_ns
        await trio.sleep(0.001)
        await m.files.fsync(handle_id, is_data_only=False)
        assert (await m.stat(b"f")).mtime_ns == seen
        await trio.sleep(1)
        await m.close(handle_id)
        assert (await m.stat(b"f")).mtime_ns == seen
