"""How much memory programs get of a mount's, and of one another's."""

import errno
import os

import pytest

from fs.client.batchio.memory import new_memory
from fs.client.batchio.program import Refusal
from fs.client.batchio.server import MemoryRoom
from tests.client.user.pieces import HAS_HUGE_PAGES, kinds_of_pages

MIB = 1 << 20


def refused(room, count):
    with pytest.raises(Refusal, match=r"client\.batch_memory_bytes_max.*raised") as said:
        room.take(count)
    assert said.value.errno == errno.ENOMEM


def test_a_user_who_takes_all_he_gets_leaves_some_to_each_that_comes():
    """He had all of it, and for as long as he liked nobody else could have a ring."""
    room, got = MemoryRoom(32 * MIB), []
    for uid in range(1, 6):
        mine, count = room.of_user(uid), 0
        while count < 64 * MIB:
            try:
                mine.take(MIB)
            except Refusal:
                break
            count += MIB
        got.append(count // MIB)
    assert got == [32, 16, 8, 4, 2]
    assert room.used_bytes == sum(got) * MIB


def test_programs_of_a_user_share_what_he_gets_and_what_is_given_back_is_there_again():
    room = MemoryRoom(32 * MIB)
    first, second, other = room.of_user(1), room.of_user(1), room.of_user(2)
    first.take(20 * MIB)
    refused(second, 13 * MIB)
    second.take(12 * MIB)
    other.take(16 * MIB)
    refused(other, 1)
    first.give_back(20 * MIB)
    other.take(MIB)
    second.give_back(12 * MIB)
    other.give_back(17 * MIB)
    assert room.used_bytes == 0
    room.of_user(3).take(32 * MIB)


def test_who_is_alone_gets_all_that_is_set():
    """It was half of it, also for who had set it before that was so."""
    for uid in (0, 1000):
        room = MemoryRoom(64 * MIB)
        room.of_user(uid).take(64 * MIB)
        refused(room.of_user(uid), 1)


def test_root_gets_what_is_left_and_no_more_than_one_user():
    room = MemoryRoom(32 * MIB)
    room.of_user(1).take(32 * MIB)
    room.of_user(2).take(10 * MIB)
    room.of_user(0).take(22 * MIB)
    refused(room.of_user(0), 1)
    room.of_user(1).give_back(32 * MIB)
    room.of_user(0).take(10 * MIB)
    refused(room.of_user(0), 1)


def test_large_memory_asks_for_huge_pages_and_goes_with_its_last_view():
    """What touches a page first decides of which kind it is: that may be us."""
    size = (10 << 20) + 12288  # as nobody else has
    memory, fd = new_memory(size)
    os.close(fd)
    assert kinds_of_pages(size) == {HAS_HUGE_PAGES}
    window = memory.window(0, 4096)
    memory.close()
    assert kinds_of_pages(size) == {HAS_HUGE_PAGES}
    del window
    assert kinds_of_pages(size) == set()
