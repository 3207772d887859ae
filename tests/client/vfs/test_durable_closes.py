# ruff: noqa: ARG001 - pytest-trio finds the virtual clock among a test's own arguments
"""What a close and an fsync make durable, when, and at what cost."""

import os
from functools import partial

import pytest
import trio
import trio.testing

from fs.schema import services
from fs.schema.status import FsError, Status
from tests.client.fake_chunks import CHUNK

from .conftest import ROOT, RW, A, set_length


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
        await m.files.write(h, 1, b"y")
        assert bytes(await m.files.read(h, 0, 2)) == b"\0y"
        await m.files.write(h, 2, b"z")
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

    async with mounts(2) as (m, other):
        h = await m.create(b"f")
        await m.files.write(h, 0, b"x" * 100)
        with monkeypatch.context() as slow:
            slow.setattr(cluster, "apply_sync", answer_late)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(partial(m.files.fsync, h, is_data_only=False))
                await trio.testing.wait_all_tasks_blocked()
                await set_length(other, None, b"f", 1)
                nursery.start_soon(m.stat, b"f")  # tells this mount of it
                await trio.testing.wait_all_tasks_blocked()
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


@pytest.mark.parametrize("step", ["fsync", "flush"])
async def test_what_is_written_during_a_report_is_left_to_the_next_close(
    autojump_clock, mounts, cluster, step
):
    async def act(h):
        await (m.files.fsync(h, is_data_only=False) if step == "fsync" else m.files.flush(h))

    cluster.chunks.can_flush = True
    async with mounts() as m:
        h = await m.create(b"f")
        await m.files.write(h, 0, b"x")
        cluster.meta_gate = trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(act, h)
            await trio.testing.wait_all_tasks_blocked(0.01)
            assert await m.files.write_unbuffered(h, 1, b"yz") == 2  # by another thread, and stored
            cluster.meta_gate.set()
        cluster.meta_gate = None
        await m.files.flush(h)
        assert cluster.inodes[cluster.names[1][b"f"]].length == 3
        assert (cluster.durable_calls, cluster.chunks.sync_count) == (2, 1)
        await m.files.flush(h)
        assert (cluster.durable_calls, cluster.chunks.sync_count) == (2, 1)
        await m.files.release(h)


async def test_the_end_of_a_begun_report_is_told_once_though_who_is_told_fails(
    autojump_clock, mounts, monkeypatch
):
    async with mounts() as m:
        h = await m.create(b"f")
        await m.files.write(h, 0, b"x")
        await m.files.flush(h)
        state, core, ends, told = m.files.handle(h).state, m.files._core, [], []

        class Begins:
            def begin_change(self, _method, _request, on_end):
                ends.append(on_end)
                return True

        def fail(failure):
            told.append(failure)
            raise RuntimeError

        reply = await core.call(services.META_SYNC, core.sync_request(state))
        with monkeypatch.context() as patch:
            patch.setattr(core, "begins_changes", Begins())
            assert core.begin_report(state, fail)
        with pytest.raises(RuntimeError):
            ends[0](reply, None)
        assert told == [None]
        assert state.report_lock.take_now()  # given back, and that once
        state.report_lock.give_back()
        await m.files.release(h)
