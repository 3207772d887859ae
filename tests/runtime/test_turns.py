"""Whose large read is at the disk: how many at once, in which order,
and that nobody is forgotten.
"""

import threading
from contextlib import ExitStack

import pytest

from fs.runtime.turns import Turns

PATIENCE_S = 60.0
"""Of a test that would hang otherwise."""


class Reader:
    """A thread that waits for a turn, and has it until it is told to end."""

    def __init__(self, turns, byte_count, order):
        self._may_end = threading.Event()
        self.has_begun = threading.Event()
        self._thread = threading.Thread(target=self._work, args=(turns, byte_count, order))
        self._thread.start()

    def _work(self, turns, byte_count, order):
        with turns.of(byte_count):
            order.append(byte_count)
            self.has_begun.set()
            assert self._may_end.wait(PATIENCE_S)

    def end(self):
        """Have it end, and wait for that."""
        self._may_end.set()
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()


@pytest.fixture
def lab():
    """Return turns of ten bytes, what starts a reader, and who has begun in which order."""
    turns, order = Turns(10), []
    with ExitStack() as readers:

        def start(byte_count):
            queued = len(turns._waiting)
            one = Reader(turns, byte_count, order)
            readers.callback(one.end)
            while not one.has_begun.wait(0.001) and len(turns._waiting) == queued:
                pass  # until it reads, or waits
            return one

        yield turns, start, order


def test_as_many_read_as_there_is_room_for_and_the_next_when_one_ends(lab):
    turns, start, order = lab
    first, second, third = start(4), start(6), start(1)
    assert order == [4, 6] and len(turns._waiting) == 1
    second.end()
    assert third.has_begun.wait(PATIENCE_S)
    first.end()
    third.end()
    assert turns._under_way == 0


def test_one_that_is_larger_than_all_room_reads_alone(lab):
    _, start, order = lab
    small, large, behind = start(1), start(11), start(1)
    assert order == [1], "who came first has his turn first, though there is room for the other"
    small.end()
    assert large.has_begun.wait(PATIENCE_S)
    assert order == [1, 11]
    large.end()
    assert behind.has_begun.wait(PATIENCE_S)


def test_those_who_wait_are_called_in_the_order_in_which_they_came(lab):
    _, start, order = lab
    first = start(10)
    others = [start(byte_count) for byte_count in (9, 8, 7, 6)]
    first.end()
    for one in others:
        assert one.has_begun.wait(PATIENCE_S)
        one.end()
    assert order == [10, 9, 8, 7, 6]


def test_who_fails_gives_the_turn_back():
    turns = Turns(10)
    with pytest.raises(OSError, match="no"), turns.of(10):
        raise OSError("no")
    with turns.of(10):
        assert turns._under_way == 10
