"""The deciding parts: what an entry may do, when entries become a batch, whose batch is next."""

import errno
from collections import Counter
from contextlib import asynccontextmanager
from dataclasses import dataclass
from unittest.mock import patch

import pytest
import trio
from emberfs.protocol import (
    COMPLETION,
    ENTRY,
    LENGTH_MAX,
    Op,
    Priority,
    completion_offset,
    entry_offset,
    ring_bytes,
)
from hypothesis import given
from hypothesis import strategies as st

from fs.client.batchio import by_rows
from fs.client.batchio.by_rows import plain_reads
from fs.client.batchio.checks import Share, sort_out
from fs.client.batchio.gathering import batch_count
from fs.client.batchio.jobs import RELAXED
from fs.client.batchio.turns import TURNS_FOR_OTHERS, Turns
from fs.kernels import batches, batches_twin
from fs.schema.layout import MAX_FILE_LENGTH_BYTES

U64 = st.one_of(st.integers(0, 300), st.integers(0, 2**64 - 1))
U32 = st.one_of(st.integers(0, 4), st.integers(0, 2**32 - 1))
ENTRIES = st.tuples(U64, U64, U64, U64, U32, U32, U32, U32)
SOME = st.lists(st.one_of(ENTRIES, st.sampled_from([
    (1, 0, 90, 10, 3, 1, Op.READ, 0),
    (2, 5, 0, 10, 3, 1, Op.READ, 0),
    (3, 0, 64, 64, 3, 2, Op.WRITE, 2),
    (4, 0, 1, 0, 1, 1, Op.READ, 1),
])), max_size=8)  # fmt: skip


@dataclass
class Memory:
    size: int
    block_size: int = 0
    mapped_bytes: int = 1

    def window(self, offset: int, length: int) -> memoryview:
        return memoryview(bytes(self.size))[offset:][:length]


FILES = {1: Share(11, True, False), 2: Share(12, False, True), 3: Share(13, True, True)}
MEMORIES = {1: Memory(100), 2: Memory(256, 64)}


def sorted_out(entries):
    return sort_out(b"".join(ENTRY.pack(*entry) for entry in entries), FILES, MEMORIES)


@pytest.mark.thorough
@given(SOME)
def test_what_is_let_through_reaches_only_what_is_the_programs_own(entries):
    groups, ended = sorted_out(entries)
    done = Counter()
    for group in groups:
        shares = [share for share in FILES.values() if share.handle_id == group.handle_id]
        assert all(s.can_read if group.op == Op.READ else s.can_write for s in shares)
        assert shares
        assert group.op in (Op.READ, Op.WRITE)
        assert group.rows
        for user_data, offset, place, length in group.rows:
            file_id = group.handle_id - 10
            memory_id = next(n for n, memory in MEMORIES.items() if memory is group.memory)
            rest = (file_id, memory_id, group.op, group.flags)
            wanted = (
                {  # a read that ends behind what any file has is cut there
                    entry[3]
                    for entry in entries
                    if entry == (user_data, offset, place, entry[3], *rest)
                }
                if group.op == Op.READ and offset + length == MAX_FILE_LENGTH_BYTES
                else {length}
            )
            key = (user_data, offset, place, max(wanted), *rest)
            done[key] += 1
            assert 0 < length <= max(wanted)
            assert place + length <= group.memory.size
            assert offset + length <= MAX_FILE_LENGTH_BYTES
            block = group.memory.block_size
            if block:
                assert place // block == (place + length - 1) // block
    assert done <= Counter(entries)
    rest = Counter(entry[0] for entry in (Counter(entries) - done).elements())
    assert Counter(user_data for user_data, _ in ended) == rest
    faults = {0, errno.EINVAL, errno.EBADF, errno.EFAULT, errno.EFBIG}
    assert {-result for _, result in ended} <= faults


@pytest.mark.parametrize("kernel", [batches, batches_twin], ids=["serving", "twin"])
@given(SOME)
def test_what_is_done_by_rows_is_what_is_let_through(kernel, entries):
    with patch.multiple(by_rows, kinds_of=kernel.kinds_of, completions_of=kernel.completions_of):
        check_plain_reads(entries)


def check_plain_reads(entries):
    groups, ended = sorted_out(entries)
    copied = b"".join(ENTRY.pack(*entry) for entry in entries)
    work = plain_reads(copied, FILES, MEMORIES) if entries else None
    is_plain = (
        bool(groups)
        and not ended
        and all(group.op == Op.READ and group.memory is groups[0].memory for group in groups)
        and len({group.flags & RELAXED for group in groups}) == 1
    )
    assert (work is not None) == is_plain
    if work is not None:
        done = [COMPLETION.pack(entry[0], entry[3]) for entry in entries]
        assert work.results() == b"".join(done)
        failed = [COMPLETION.pack(entry[0], -errno.EIO) for entry in entries]
        assert work.failures(errno.EIO) == b"".join(failed)


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({}, None),
        ({"length": 0}, 0),
        ({"op": 0}, errno.EINVAL),
        ({"op": 3}, errno.EINVAL),
        ({"flags": 4}, errno.EINVAL),
        ({"length": LENGTH_MAX + 1}, errno.EINVAL),
        ({"file_id": 9}, errno.EBADF),
        ({"file_id": 1, "op": Op.WRITE}, errno.EBADF),
        ({"file_id": 2}, errno.EBADF),
        ({"memory_id": 9}, errno.EFAULT),
        ({"memory_offset": 91}, errno.EFAULT),
        ({"memory_offset": 2**64 - 5}, errno.EFAULT),
        ({"memory_id": 2, "memory_offset": 60}, errno.EINVAL),
        ({"offset": 2**64 - 1}, 0),
        ({"offset": MAX_FILE_LENGTH_BYTES}, 0),
        ({"offset": MAX_FILE_LENGTH_BYTES - 1}, None),
        ({"offset": MAX_FILE_LENGTH_BYTES - 10}, None),
        ({"offset": MAX_FILE_LENGTH_BYTES - 9, "op": Op.WRITE}, errno.EFBIG),
        ({"offset": 2**64 - 1, "op": Op.WRITE}, errno.EFBIG),
    ],
)
def test_each_number_of_an_entry_is_looked_at(change, fault):
    good = {
        "user_data": 7, "offset": 0, "memory_offset": 90, "length": 10,
        "file_id": 3, "memory_id": 1, "op": Op.READ, "flags": 0,
    }  # fmt: skip
    neighbour = tuple(good.values())
    groups, ended = sorted_out([tuple((good | change).values()), neighbour])
    assert [result for _, result in ended] == ([] if fault is None else [-fault])
    assert sum(len(group.rows) for group in groups) == 2 - len(ended)


def test_entries_of_one_kind_stay_in_order():
    entries = [(n, n * 10, n, 5, 3, 1, Op.READ, n % 2) for n in range(6)]
    groups, ended = sorted_out(entries)
    assert not ended
    assert [[row[0] for row in group.rows] for group in groups] == [[0, 2, 4], [1, 3, 5]]


@given(st.integers(1, 100), st.integers(0, 1000))
def test_entries_and_completions_lie_apart_within_the_ring(entry_count, index):
    entry_end = entry_offset(index, entry_count) + ENTRY.size
    assert entry_end <= completion_offset(0, entry_count)
    assert completion_offset(index, entry_count) + COMPLETION.size <= ring_bytes(entry_count)


@given(st.integers(0, 50), st.integers(-20, 20), st.booleans())
def test_depth(pending, depth, is_overdue):
    count = batch_count(pending, depth, is_overdue=is_overdue)
    assert 0 <= count <= pending
    if depth == 0:
        assert count == pending
    elif depth > 0:
        assert count == (depth if pending >= depth else 0)
    else:
        assert count <= -depth
        assert (count > 0) == (pending >= -depth or (is_overdue and pending > 0))


@asynccontextmanager
async def turn(turns, priority, uid):
    if not turns.begin_now(uid):
        await turns.begin(priority, uid)
    try:
        yield
    finally:
        turns.end(uid)


async def test_high_goes_before_low_but_not_for_ever(autojump_clock):  # noqa: ARG001 - see conftest
    turns, order = Turns(1), []

    async def work(priority):
        async with turn(turns, priority, 0):
            order.append(priority)
            await trio.sleep(1)

    async with trio.open_nursery() as nursery, turn(turns, Priority.NORMAL, 0):
        for priority in (Priority.LOW, Priority.NORMAL, *[Priority.HIGH] * 20):
            nursery.start_soon(work, priority)
            await trio.testing.wait_all_tasks_blocked()
    assert order[0] is Priority.HIGH
    assert order.index(Priority.NORMAL) == TURNS_FOR_OTHERS - 1
    assert order.index(Priority.LOW) == 2 * TURNS_FOR_OTHERS - 1
    assert len(order) == 22


async def test_who_gives_up_waiting_keeps_no_turn(autojump_clock):  # noqa: ARG001
    turns = Turns(1)

    async def wait_and_give_up():
        with trio.move_on_after(1):
            async with turn(turns, Priority.HIGH, 0):
                pass

    async with trio.open_nursery() as nursery, turn(turns, Priority.LOW, 0):
        nursery.start_soon(wait_and_give_up)
        await trio.sleep(1)  # the turn may come at the very moment of giving up
    with trio.fail_after(1):
        async with turn(turns, Priority.LOW, 0):
            pass


async def test_low_has_its_turns_below_two_that_never_rest(autojump_clock):  # noqa: ARG001
    turns, order = Turns(1), []

    async def work(priority):
        async with turn(turns, priority, 0):
            order.append(priority)
            await trio.sleep(1)

    async with trio.open_nursery() as nursery, turn(turns, Priority.NORMAL, 0):
        for priority in [Priority.LOW, *[Priority.HIGH, Priority.NORMAL] * 100]:
            nursery.start_soon(work, priority)
            await trio.testing.wait_all_tasks_blocked()
    assert order.index(Priority.LOW) == TURNS_FOR_OTHERS**2 - 1


async def test_no_user_has_all_turns(autojump_clock):  # noqa: ARG001
    """Batches that wait for a service that is away leave room for those of others."""
    turns, began = Turns(4), []

    async def work(uid, time_s):
        async with turn(turns, Priority.NORMAL, uid):
            began.append((trio.current_time(), uid))
            await trio.sleep(time_s)

    start_s = trio.current_time()
    async with trio.open_nursery() as nursery:
        for _ in range(8):
            nursery.start_soon(work, 1, 1000)
            await trio.testing.wait_all_tasks_blocked()
        for uid in (2, 2, 2, 3):
            nursery.start_soon(work, uid, 1)
            await trio.testing.wait_all_tasks_blocked()
    others = [(round(at_s - start_s), uid) for at_s, uid in began if uid != 1]
    assert others == [(0, 2), (1, 2), (2, 3), (3, 2)]
