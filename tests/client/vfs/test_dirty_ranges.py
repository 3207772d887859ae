# ruff: noqa: ARG001 - pytest-trio finds the virtual clock among a test's own arguments
"""What waits for an earlier write of its chunk goes with others that wait:
in one update, in the order of offsets.
"""

from itertools import pairwise

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from fs.client.vfs.dirty_ranges import RANGE_COUNT_MAX, RUN_BYTES_MAX, DirtyRanges
from fs.client.vfs.write_back import HELD_CHUNKS_MAX, HELD_RANGES_MAX
from fs.client.vfs.write_run import FLUSH_BYTES_MAX, WriteRun
from fs.schema.status import FsError, Status
from tests.client.fake_chunks import CHUNK

from .conftest import fault

PAGE = 4096


def run_of(offset, data):
    run = WriteRun(offset)
    run.append(data)
    return run


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(1, 8)), min_size=1, max_size=30))
def test_runs_are_kept_apart_and_in_order(writes):
    ranges, taken = None, {}
    for number, (offset, length) in enumerate(writes):
        run = run_of(offset, bytes([number]) * length)
        places = range(offset, offset + length)
        is_free = not any(place in taken for place in places)
        if ranges is None:
            ranges = DirtyRanges(run)
        else:
            assert ranges.overlaps(offset, offset + length) is not is_free
            assert ranges.add(run) is is_free
        if is_free:
            taken |= dict.fromkeys(places, number)
    made = ranges.joined()
    assert {
        run.offset + n: byte for run in made for n, byte in enumerate(b"".join(run.pieces))
    } == taken
    assert all(a.end < b.offset for a, b in pairwise(made))
    assert (ranges.offset, ranges.end) == (min(taken), max(taken) + 1)
    assert ranges.length == len(taken)


def test_there_are_no_more_than_an_update_takes():
    ranges = DirtyRanges(run_of(0, b"x"))
    for number in range(1, RANGE_COUNT_MAX):
        assert ranges.add(run_of(2 * number, b"x"))
    assert not ranges.add(run_of(2 * RANGE_COUNT_MAX, b"x"))


@pytest.mark.parametrize("is_first_large", [True, False])
def test_a_large_one_is_alone(is_first_large):
    large, small = run_of(0, bytes(RUN_BYTES_MAX + 1)), run_of(RUN_BYTES_MAX + 5, b"x")
    one, other = (large, small) if is_first_large else (small, large)
    assert not DirtyRanges(one).add(other)


def test_their_bytes_are_no_more_than_those_of_a_flush():
    ranges, at = DirtyRanges(run_of(0, bytes(RUN_BYTES_MAX))), 0
    for _ in range(FLUSH_BYTES_MAX // RUN_BYTES_MAX - 1):
        at += 2 * RUN_BYTES_MAX
        assert ranges.add(run_of(at, bytes(RUN_BYTES_MAX)))
    assert not ranges.add(run_of(at + RUN_BYTES_MAX + 1, b"x"))
    assert ranges.length == FLUSH_BYTES_MAX


async def write_pages(m, h, pages, mark=1):
    for page in pages:
        await m.files.write(h, page * PAGE, bytes([page + mark]) * PAGE)
        await trio.testing.wait_all_tasks_blocked()


async def test_what_is_written_here_and_there_goes_together(autojump_clock, mounts, cluster):
    async with mounts() as m:
        h = await m.create(b"f")
        await write_pages(m, h, [9, 3, 1, 7, 5, 4, 0, 13])
        assert not cluster.chunks.writes
        await m.files.fsync(h, is_data_only=False)
        inode_id = cluster.names[1][b"f"]
        runs = [(0, 2), (3, 3), (7, 1), (9, 1), (13, 1)]
        ranges = [(page * PAGE, count * PAGE) for page, count in runs]
        assert cluster.chunks.writes == [(inode_id, ranges)]
        assert cluster.chunks.durable_writes == 1
        await m.close(h)
        content = await m.read_file(b"f")
        assert len(content) == 14 * PAGE
        assert [content[page * PAGE] for page in range(14)] == [
            1, 2, 0, 4, 5, 6, 0, 8, 0, 10, 0, 0, 0, 14,
        ]  # fmt: skip


async def test_what_is_written_while_a_write_is_under_way_goes_together(
    autojump_clock, mounts, cluster
):
    async with mounts() as m:
        h = await m.create(b"f")
        cluster.chunks.gate = trio.Event()
        async with trio.open_nursery() as nursery:
            for page in (9, 3, 1, 2):
                nursery.start_soon(m.files.write_unbuffered, h, page * PAGE, bytes(PAGE))
                await trio.testing.wait_all_tasks_blocked()
            assert not cluster.chunks.writes
            cluster.chunks.gate.set()
        assert [rest for _, *rest in cluster.chunks.writes] == [
            [9 * PAGE, PAGE],
            [PAGE, 3 * PAGE],
        ]
        await m.close(h)


async def test_a_single_write_is_sent_by_who_waits_for_it(autojump_clock, mounts, cluster):
    async with mounts() as m:
        h = await m.create(b"f")
        await write_pages(m, h, [5])
        await m.files.fsync(h, is_data_only=False)
        assert [offset for _, offset, _ in cluster.chunks.writes] == [5 * PAGE]
        assert cluster.chunks.durable_writes == 1
        await m.close(h)


async def test_nothing_is_held_for_longer_than_what_is_buffered(autojump_clock, mounts, cluster):
    async with mounts() as m:
        h = await m.create(b"f")
        await write_pages(m, h, [5, 2, 8])
        await trio.sleep(1.5 * m.vfs.section.write_back_interval_s)
        assert len(cluster.chunks.writes) == 1
        assert not m.vfs._core.states[cluster.names[1][b"f"]].held
        await m.close(h)


async def test_of_a_chunk_no_more_is_held_than_pays(autojump_clock, mounts, cluster):
    async with mounts() as m:
        h = await m.create(b"f")
        for number in range(HELD_RANGES_MAX):
            await m.files.write(h, 10 * number, b"x")
        await trio.testing.wait_all_tasks_blocked()
        assert not cluster.chunks.writes
        await m.files.write(h, 5, b"x")
        await m.files.write(h, 15, b"x")
        await trio.testing.wait_all_tasks_blocked()
        ((_, ranges),) = cluster.chunks.writes
        assert len(ranges) == HELD_RANGES_MAX + 1
        await m.close(h)


async def test_of_a_file_no_more_chunks_are_held_than_go_at_a_time(autojump_clock, mounts, cluster):
    async with mounts() as m:
        h = await m.create(b"f")
        for number in range(HELD_CHUNKS_MAX + 3):
            await m.files.write(h, CHUNK * number + 5, b"x")
        await trio.testing.wait_all_tasks_blocked()
        assert [offset for _, offset, _ in cluster.chunks.writes] == [5, CHUNK + 5]
        await m.close(h)
        assert len(cluster.chunks.writes) == HELD_CHUNKS_MAX + 3


async def test_what_lies_over_what_is_held_goes_behind_it(autojump_clock, mounts, cluster):
    async with mounts() as m:
        h = await m.create(b"f")
        cluster.chunks.gate = trio.Event()
        await write_pages(m, h, [9, 3, 1])
        await write_pages(m, h, [3, 6, 1], mark=100)
        cluster.chunks.gate.set()
        await m.close(h)
        content = await m.read_file(b"f")
        assert [content[page * PAGE] for page in (1, 3, 6, 9)] == [101, 103, 106, 10]
        assert len(cluster.chunks.writes) == 2


async def test_each_chunk_has_its_own(autojump_clock, mounts, cluster):
    async with mounts() as m:
        h = await m.create(b"f")
        of_chunk = CHUNK // PAGE
        await write_pages(m, h, [1, of_chunk + 1, 3, of_chunk + 3, 5, of_chunk + 5])
        await m.files.write(h, CHUNK - 5, b"over both")
        await m.close(h)
        assert sorted(ranges for _, ranges in cluster.chunks.writes) == [
            [(PAGE, PAGE), (3 * PAGE, PAGE), (5 * PAGE, PAGE), (CHUNK - 5, 5)],
            [(CHUNK, 4), *((CHUNK + n * PAGE, PAGE) for n in (1, 3, 5))],
        ]
        content = await m.read_file(b"f")
        assert content[CHUNK - 5 : CHUNK + 4] == b"over both"
        assert content[CHUNK + 3 * PAGE] == of_chunk + 4


async def test_reading_between_them_waits_for_none_of_them(autojump_clock, mounts, cluster):
    async with mounts() as m:
        h = await m.create(b"f")
        await m.files.write(h, 0, b"x" * CHUNK)
        await m.files.fsync(h, is_data_only=False)
        cluster.chunks.gate = trio.Event()
        await write_pages(m, h, [9, 3, 1, 7])
        with trio.fail_after(1):
            assert bytes(await m.files.read(h, 2 * PAGE, PAGE)) == b"x" * PAGE
        with trio.move_on_after(1) as scope:
            await m.files.read(h, 3 * PAGE, PAGE)
        assert scope.cancelled_caught
        cluster.chunks.gate.set()
        assert bytes(await m.files.read(h, 3 * PAGE, PAGE)) == bytes([4]) * PAGE
        await m.close(h)


async def test_a_failure_is_told_to_each_who_wrote(autojump_clock, mounts, cluster):
    async with mounts() as m:
        h = await m.create(b"f")
        other = (await m.open(b"f")).handle_id
        cluster.chunks.write_faults += [None, fault()]
        cluster.chunks.gate = trio.Event()
        told = []

        async def write(page):
            try:
                await m.files.write_unbuffered(h, page * PAGE, bytes(PAGE))
            except FsError as error:
                told.append((page, error))

        async with trio.open_nursery() as nursery:
            for page in (9, 3, 1, 7):
                nursery.start_soon(write, page)
                await trio.testing.wait_all_tasks_blocked()
            cluster.chunks.gate.set()
        assert sorted(page for page, _ in told) == [1, 3, 7]
        assert {error.status for _, error in told} == {Status.NO_SPACE}
        assert len({id(error) for _, error in told}) == 3
        assert m.vfs._core.budget.used_bytes == 0
        await m.files.fsync(h, is_data_only=False)  # this handle knows it
        with pytest.raises(FsError):
            await m.files.fsync(other, is_data_only=False)
        await m.close(other)
        await m.close(h)
