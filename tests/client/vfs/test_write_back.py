# ruff: noqa: ARG001 - pytest-trio finds the virtual clock among a test's own arguments
"""What waits to be written: how it is cut, bounded, sent, and whom its failure is told to."""

import os
from itertools import pairwise

import pytest
import trio
import trio.testing

from fs.schema.status import FsError, Status
from tests.client.fake_chunks import CHUNK

from .conftest import ROOT, RW, A, fault, set_length


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


async def test_what_was_just_written_is_read_back_without_sending_it(
    autojump_clock, mounts, cluster
):
    """It waited for storage each time, a program that checks what it writes some ms for each."""
    async with mounts() as m:
        h = await m.create(b"f", os.O_RDWR)
        for number in range(60):
            await m.files.write(h, 1000 * number, bytes([number]) * 1000)
            assert await m.files.read(h, 1000 * number, 4096) == bytes([number]) * 1000
            if number:
                found = m.files.read_now(h, 1000 * number - 1, 2)
                assert found == bytes([number - 1, number])
        assert not cluster.chunks.writes
        await m.files.write(h, 500, b"over")
        assert bytes(await m.files.read(h, 498, 8)) == b"\0\0over\0\0"
        await m.files.fsync(h, is_data_only=False)
        sent = len(cluster.chunks.writes)
        for number in range(20):  # what follows is there already, and the kernel reads on
            await m.files.write(h, 1000 * number, b"n" * 1000)
            found = bytes(await m.files.read(h, 1000 * number, 3000))
            assert found == b"n" * 1000 + bytes([number + 1]) * 1000 + bytes([number + 2]) * 1000
            assert m.files.read_now(h, 1000 * number, 1001) is None
        assert len(cluster.chunks.writes) == sent
        await m.close(h)
        assert len(await m.read_file(b"f")) == 60_000


@pytest.mark.parametrize("how", ["a longer part", "past the cache", "appended", "cut"])
async def test_what_is_not_all_of_what_is_asked_for_is_sent_first(
    autojump_clock, mounts, cluster, how
):
    async with mounts() as m:
        h = await m.create(b"f", os.O_RDWR | (os.O_APPEND if how == "appended" else 0))
        await m.files.write(h, 0, b"first")
        await m.files.fsync(h, is_data_only=False)
        await m.files.write(h, 5, b"second")
        sent = len(cluster.chunks.writes)
        other = h
        if how == "past the cache":
            other = (await m.open(b"f", os.O_RDONLY | os.O_DIRECT)).handle_id
        if how == "cut":
            await set_length(m, h, b"f", 8)
        found = bytes(await m.files.read(other, 0 if how == "a longer part" else 5, 100))
        wanted = {"a longer part": b"firstsecond", "cut": b"sec"}.get(how, b"second")
        assert found == wanted and len(cluster.chunks.writes) > sent
        if other != h:
            await m.close(other)
        await m.close(h)


async def test_what_is_cut_while_the_rest_is_read_is_read_anew(autojump_clock, mounts, cluster):
    async with mounts() as m:
        await m.write_file(b"f", b"o" * 3000)
        h = (await m.open(b"f", os.O_RDWR)).handle_id
        await m.files.write(h, 0, b"n" * 1000)
        found = []

        async def read():
            found.append(bytes(await m.files.read(h, 0, 3000)))

        async with trio.open_nursery() as nursery:
            cluster.chunks.delay_s = 60.0
            nursery.start_soon(read)
            await trio.testing.wait_all_tasks_blocked()
            cluster.chunks.delay_s = 0.0
            await set_length(m, h, b"f", 500)
            await m.files.write(h, 500, b"z" * 2500)
            await m.files.fsync(h, is_data_only=False)
            assert not found
        assert found == [b"n" * 500 + b"z" * 2500]
        await m.close(h)


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


async def test_space_that_nobody_tells_is_not_tight(autojump_clock, mounts, cluster):
    """As a metadata service that has just been started, and knows of no storage yet."""
    async with mounts() as m:
        await trio.sleep(1)
        cluster.chunks.capacity_bytes = cluster.chunks.free_bytes = 0
        await trio.sleep(6)  # it is asked again
        handle_id = await m.create(b"f")
        await m.files.write(handle_id, 0, b"buffered")
        assert cluster.chunks.writes == []
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


async def test_a_file_whose_chain_does_not_answer_keeps_no_other_from_being_reported(
    autojump_clock, mounts, cluster
):
    async with mounts() as m:
        stuck, other = await m.create(b"stuck"), await m.create(b"other")
        stuck_id, other_id = cluster.names[1][b"stuck"], cluster.names[1][b"other"]
        write, answers = m.vfs._core.store.write, trio.Event()

        async def write_late(file, *args, **options):
            if file.inode_id == stuck_id:
                await answers.wait()
            return await write(file, *args, **options)

        m.vfs._core.store.write = write_late
        await m.files.write(stuck, 0, b"x")
        await trio.sleep(1.5 * m.vfs.section.write_back_interval_s)
        await m.files.write(other, 0, b"x")
        await trio.sleep(1.5 * m.vfs.section.write_back_interval_s)
        assert (cluster.inodes[other_id].length, cluster.inodes[stuck_id].length) == (1, 0)
        answers.set()
        await trio.testing.wait_all_tasks_blocked(0.01)
        assert cluster.inodes[stuck_id].length == 1
        await m.close(stuck)
        await m.close(other)


@pytest.mark.parametrize("length", [3, 1])
async def test_a_report_that_is_under_way_does_not_set_the_time_of_a_truncation_back(
    autojump_clock, mounts, cluster, length
):
    async with mounts() as m:
        h = await m.create(b"f")
        core, answers = m.vfs._core, trio.Event()
        call = core.call

        async def call_late(method, request):
            if method.name == "Sync":
                await answers.wait()
            return await call(method, request)

        core.call = call_late
        await m.files.write(h, 0, b"one")
        await trio.sleep(1.5 * m.vfs.section.write_back_interval_s)  # so it is being reported
        async with trio.open_nursery() as nursery:
            nursery.start_soon(set_length, m, h, b"f", length)
            await trio.sleep(1.0)
            answers.set()
        found = await m.stat(b"f")
        assert found.mtime_ns > cluster.clock.wall_ns() - 10**9 and found.length == length
        await m.close(h)
        assert (await m.stat(b"f")).mtime_ns == found.mtime_ns
