# ruff: noqa: ARG001 - pytest-trio finds the virtual clock among a test's own arguments
"""Which memory of programs is to be of huge pages,
and that having it so changes nothing but that.
"""

import ctypes
import errno
import mmap
import os
import random
import re
import resource
import threading
from pathlib import Path

import pytest
import trio
from emberfs.protocol import Op

from fs.client.batchio import huge_pages
from fs.client.batchio.huge_pages import (
    HUGE_BYTES,
    LOOKED_AT_MAX,
    TIMES_MIN,
    WornPages,
    aligned_mapping,
    begin_exchange,
    exchange,
)
from fs.client.batchio.memory import new_memory
from fs.runtime.control_groups import GroupMemory

SIZE = 3 * HUGE_BYTES + 5000
KIB = 1024


@pytest.fixture(autouse=True)
def no_limits(monkeypatch):
    """Whatever the control group of the tests may have."""
    monkeypatch.setattr(huge_pages, "memory_limits", list)


def times(pages, count, *pieces):
    """Return what is told of the last of so many batches, each of these pieces,
    and that nothing was of the others.
    """
    for _ in range(count - 1):
        assert pages.note(pieces) == []
    return pages.note(pieces)


def test_what_is_written_out_of_some_times_is_to_be_exchanged():
    pages = WornPages(SIZE)
    half = HUGE_BYTES // 2
    assert times(pages, TIMES_MIN, (0, half), (half, half)) == [(0, HUGE_BYTES)]


def test_neighbours_are_exchanged_together():
    pages = WornPages(8 * HUGE_BYTES)
    apart = (5 * HUGE_BYTES, HUGE_BYTES)
    assert times(pages, TIMES_MIN, (HUGE_BYTES, 2 * HUGE_BYTES), apart) == [
        (HUGE_BYTES, 2 * HUGE_BYTES),
        apart,
    ]


def test_a_piece_counts_for_each_page_as_far_as_it_lies_there():
    pages = WornPages(SIZE)
    until = -(-TIMES_MIN * HUGE_BYTES // (97 * KIB))
    at = HUGE_BYTES - 3 * KIB  # nearly all of it lies in the second
    assert times(pages, until, (at, 100 * KIB)) == [(HUGE_BYTES, HUGE_BYTES)]


def test_what_is_no_whole_huge_page_or_written_in_small_pieces_stays():
    pages = WornPages(SIZE)
    small = [(place, 60 * KIB) for place in range(0, HUGE_BYTES - 60 * KIB, 60 * KIB)]
    assert times(pages, 10 * TIMES_MIN, *small, (3 * HUGE_BYTES, 5000)) == []
    assert times(WornPages(HUGE_BYTES + 70 * KIB), 100, (HUGE_BYTES, 70 * KIB)) == []


def test_it_is_asked_for_again_after_four_times_as_much():
    pages, whole = WornPages(HUGE_BYTES), (0, HUGE_BYTES)
    assert times(pages, TIMES_MIN, whole)
    assert times(pages, TIMES_MIN * (TIMES_MIN - 1), whole)


def test_a_batch_is_looked_at_for_a_bounded_time():
    """It may name the same gigabytes time and again."""
    pages = WornPages(LOOKED_AT_MAX * HUGE_BYTES)
    looked = []

    def pieces():
        for number in range(1000):
            looked.append(number)
            yield 0, LOOKED_AT_MAX * HUGE_BYTES

    assert pages.note(pieces()) == []
    assert len(looked) == 2


def test_it_is_mapped_where_a_huge_page_could_begin():
    fd = os.memfd_create("test")
    os.ftruncate(fd, SIZE)
    mapping = aligned_mapping(fd, SIZE)
    assert len(mapping) == SIZE
    assert ctypes.addressof(ctypes.c_char.from_buffer(mapping)) % HUGE_BYTES == 0
    mapping[-3:] = b"end"
    assert os.pread(fd, 10, SIZE - 3) == b"end"
    with mmap.mmap(fd, SIZE) as other:
        other[:5] = b"begin"
    assert mapping[:5] == b"begin"
    os.close(fd)


def test_what_cannot_be_mapped_is_told():
    fd = os.open("/dev/null", os.O_RDONLY)
    with pytest.raises(OSError, match="cannot be mapped") as failed:
        aligned_mapping(fd, SIZE)
    assert failed.value.errno in {errno.EACCES, errno.ENODEV}
    os.close(fd)


def test_an_exchange_changes_no_byte_nor_what_others_have_mapped():
    memory, fd = new_memory(SIZE)
    # One whole, one with a page only, one with none.
    content = random.Random(1).randbytes(HUGE_BYTES + 4096)
    with mmap.mmap(fd, SIZE) as other:
        other[: len(content)] = content
        pages = memory.window(0, 3 * HUGE_BYTES)
        exchange(pages)
        assert other[: len(content)] == content == memory.view[: len(content)]
        other[7:10] = memory.view[-3:] = b"new"
        assert memory.view[7:10] == b"new"
        assert other[-3:] == b"new"
        assert not any(memory.view[len(content) : -3])
    os.close(fd)
    pages.release()
    memory.close()


async def test_pages_are_exchanged_behind_the_batches_that_were_written_out_of_them(
    autojump_clock, program, monkeypatch
):
    exchanged, has_come = [], threading.Event()

    def note(pages):
        exchanged.append(len(pages))
        has_come.set()

    monkeypatch.setattr(huge_pages, "exchange", note)
    async with program() as it:
        memory, fd = new_memory(SIZE)
        os.close(fd)
        it.memories[2] = memory
        piece = {"op": Op.WRITE, "memory": 2, "length": HUGE_BYTES}
        for _ in range(TIMES_MIN):
            assert not exchanged
            assert await it.do(piece) == [HUGE_BYTES]
        assert await it.do(piece | {"op": Op.READ}) == [HUGE_BYTES]
        await trio.to_thread.run_sync(has_come.wait, 60)
        assert exchanged == [HUGE_BYTES]
        it.memories.pop(2).close()


async def test_one_thread_exchanges_all_pages_of_a_batch(autojump_clock, program, monkeypatch):
    """Written in any order they are in hundreds of parts,
    and the mount daemon needs threads for others.
    """
    threads, exchanged = set(), threading.Semaphore(0)

    def note(_pages):
        threads.add(threading.get_ident())
        exchanged.release()

    monkeypatch.setattr(huge_pages, "exchange", note)
    begun, start = [], trio.lowlevel.start_thread_soon

    def count(*args):
        begun.append(args)
        start(*args)

    async with program() as it:
        memory, fd = new_memory(SIZE)
        os.close(fd)
        it.memories[2] = memory
        apart = [
            {"op": Op.WRITE, "memory": 2, "place": place, "length": HUGE_BYTES}
            for place in (2 * HUGE_BYTES, 0)
        ]
        for _ in range(TIMES_MIN - 1):
            assert await it.do(*apart) == [HUGE_BYTES] * 2
        monkeypatch.setattr(trio.lowlevel, "start_thread_soon", count)
        assert await it.do(*apart) == [HUGE_BYTES] * 2
        assert len(begun) == 1
        for _ in apart:
            await trio.to_thread.run_sync(exchanged.acquire)
        assert len(threads) == 1
        it.memories.pop(2).close()


async def test_the_group_that_is_charged_keeps_half_of_what_it_may_have(monkeypatch):
    """The kernel fills it up to its limit, and then kills the daemon for whatever
    that needs itself.
    """
    group, steps = [GroupMemory(1 << 30, 400 << 20)], []

    def note(pages):
        steps.append(len(pages))
        group[:] = [GroupMemory(one.limit, one.used + len(pages)) for one in group]

    monkeypatch.setattr(huge_pages, "exchange", note)
    monkeypatch.setattr(huge_pages, "memory_limits", lambda: group)
    parts = [memoryview(bytearray(50 << 20)), memoryview(bytearray(100 << 20))]
    await trio.to_thread.run_sync(huge_pages._exchange_all, parts)
    assert steps == [32 << 20, 18 << 20, 32 << 20]
    assert group[0].used == 482 << 20
    group[:] = []
    await trio.to_thread.run_sync(huge_pages._exchange_all, parts)
    assert sum(steps[3:]) == 150 << 20, "without a limit all of them"


def test_where_there_is_no_room_to_look_for_such_a_place_memory_is_had_all_the_same():
    """As on a machine without overcommitment, where the addresses that are set aside count
    until the memory lies there.
    """
    before = resource.getrlimit(resource.RLIMIT_DATA)
    try:
        resource.setrlimit(resource.RLIMIT_DATA, (used_data_bytes() + SIZE // 2, before[1]))
        memory, fd = new_memory(SIZE)
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)
    memory.view[-3:] = b"end"
    assert os.pread(fd, 3, SIZE - 3) == b"end"
    os.close(fd)
    memory.close()


def used_data_bytes():
    status = Path("/proc/self/status").read_text()
    return int(re.search(r"^VmData:\s*(\d+) kB$", status, re.MULTILINE)[1]) * KIB


async def test_a_batch_is_written_also_where_no_thread_is_to_be_had(monkeypatch):
    def fail(*_):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(trio.lowlevel, "start_thread_soon", fail)
    begin_exchange([memoryview(bytearray(10))])
