"""The deciding parts: what an entry may do, when entries become a batch, whose batch is next."""

import errno
from dataclasses import dataclass

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

from fs.client.batchio.checks import Entry, Share, fault_of, unpack
from fs.client.batchio.gathering import batch_count
from fs.client.batchio.turns import TURNS_FOR_OTHERS, Turns
from fs.schema.layout import MAX_FILE_LENGTH_BYTES

U64 = st.one_of(st.integers(0, 300), st.integers(0, 2**64 - 1))
U32 = st.one_of(st.integers(0, 4), st.integers(0, 2**32 - 1))
ENTRIES = st.builds(Entry, U64, U64, U64, U64, U32, U32, U32, U32)


@dataclass
class Memory:
    size: int
    block_size: int = 0


FILES = {1: Share(11, True, False), 2: Share(12, False, True), 3: Share(13, True, True)}
MEMORIES = {1: Memory(100), 2: Memory(256, 64)}


@given(ENTRIES)
def test_what_is_let_through_reaches_only_what_is_the_programs_own(entry):
    fault = fault_of(entry, FILES, MEMORIES)
    assert fault in {0, errno.EINVAL, errno.EBADF, errno.EFAULT, errno.EFBIG}
    if fault:
        return
    share, memory = FILES[entry.file_id], MEMORIES[entry.memory_id]
    assert share.can_read if entry.op == Op.READ else share.can_write
    assert entry.op in (Op.READ, Op.WRITE)
    assert entry.memory_offset + entry.length <= memory.size
    assert entry.offset + entry.length <= MAX_FILE_LENGTH_BYTES
    if memory.block_size and entry.length:
        last = entry.memory_offset + entry.length - 1
        assert entry.memory_offset // memory.block_size == last // memory.block_size


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({}, 0),
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
        ({"offset": 2**64 - 1}, errno.EINVAL),
        ({"offset": 2**64 - 1, "op": Op.WRITE}, errno.EFBIG),
    ],
)
def test_each_number_of_an_entry_is_looked_at(change, fault):
    good = Entry(7, 0, 90, 10, 3, 1, Op.READ, 0)
    assert fault_of(good._replace(**change), FILES, MEMORIES) == fault


@given(st.lists(ENTRIES, max_size=5))
def test_entries_survive_the_ring(entries):
    packed = b"".join(ENTRY.pack(*entry) for entry in entries)
    assert unpack(packed) == entries


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


async def test_high_goes_before_low_but_not_for_ever(autojump_clock):  # noqa: ARG001 - see conftest
    turns, order = Turns(1), []

    async def work(priority):
        async with turns.turn(priority, 0):
            order.append(priority)
            await trio.sleep(1)

    async with trio.open_nursery() as nursery, turns.turn(Priority.NORMAL, 0):
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
            async with turns.turn(Priority.HIGH, 0):
                pass

    async with trio.open_nursery() as nursery, turns.turn(Priority.LOW, 0):
        nursery.start_soon(wait_and_give_up)
        await trio.sleep(1)  # the turn may come at the very moment of giving up
    with trio.fail_after(1):
        async with turns.turn(Priority.LOW, 0):
            pass


async def test_low_has_its_turns_below_two_that_never_rest(autojump_clock):  # noqa: ARG001
    turns, order = Turns(1), []

    async def work(priority):
        async with turns.turn(priority, 0):
            order.append(priority)
            await trio.sleep(1)

    async with trio.open_nursery() as nursery, turns.turn(Priority.NORMAL, 0):
        for priority in [Priority.LOW, *[Priority.HIGH, Priority.NORMAL] * 100]:
            nursery.start_soon(work, priority)
            await trio.testing.wait_all_tasks_blocked()
    assert order.index(Priority.LOW) == TURNS_FOR_OTHERS**2 - 1


async def test_no_user_has_all_turns(autojump_clock):  # noqa: ARG001
    """Batches that wait for a service that is away leave room for those of others."""
    turns, began = Turns(4), []

    async def work(uid, time_s):
        async with turns.turn(Priority.NORMAL, uid):
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
