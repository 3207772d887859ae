"""Memory comes back when its last view goes, and not before."""

import ctypes
import mmap
import threading

import pytest

from fs.runtime.recycled import RECYCLED_BYTES_MIN, RecycledMemory

MIB = 1 << 20


def address(view: memoryview) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(view))


@pytest.fixture
def memory() -> RecycledMemory:
    return RecycledMemory(4 * MIB)


def test_memory_is_used_again_when_the_last_view_of_it_is_gone(memory):
    first = memory.take(MIB)
    first[:3] = b"old"
    place, part = address(first), first[10:20]
    del first
    assert memory.idle_bytes == 0
    assert address(memory.take(MIB)) != place
    del part
    again = memory.take(MIB)
    assert address(again) == place
    assert again[:3] == b"old"


def test_a_view_under_way_keeps_its_memory(memory):
    view = memory.take(MIB)
    number = ctypes.c_int64.from_buffer(view[:8])
    del view
    other = memory.take(MIB)
    other[:] = b"\xff" * MIB
    assert number.value == 0


@pytest.mark.parametrize(
    "length", [1, RECYCLED_BYTES_MIN, RECYCLED_BYTES_MIN + 1, MIB - 1, 3 * MIB]
)
def test_lengths_are_as_asked(memory, length):
    view = memory.take(length)
    assert len(view) == view.nbytes == length
    assert view.format == "B"
    view[:] = bytes(length)
    if length >= RECYCLED_BYTES_MIN:
        assert address(view) % mmap.PAGESIZE == 0


def test_no_more_is_kept_than_was_allowed(memory):
    views = [memory.take(MIB) for _ in range(7)]
    assert memory.idle_bytes == 0
    del views
    assert memory.idle_bytes == 4 * MIB


def test_what_is_kept_of_one_size_gives_way_to_another(memory):
    """Else who writes much once would have all later reads of another size done in fresh memory."""
    views = [memory.take(MIB) for _ in range(4)]
    del views
    assert memory.idle_bytes == 4 * MIB
    large = memory.take(2 * MIB)
    large[:3] = b"old"
    del large
    assert memory.idle_bytes == 4 * MIB
    large = memory.take(2 * MIB)
    assert large[:3] == b"old"
    too_large = memory.take(8 * MIB)
    del too_large
    assert memory.idle_bytes == 2 * MIB


def test_views_may_go_in_any_thread(memory):
    def use() -> None:
        for number in range(300):
            view = memory.take(256 * 1024)
            view[:8] = mine = number.to_bytes(8, "big")
            assert view[:8] == mine
            del view

    threads = [threading.Thread(target=use) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert 0 < memory.idle_bytes <= MIB
