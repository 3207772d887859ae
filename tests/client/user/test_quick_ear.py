"""A program that asks one thing after the other looks for answers before it sleeps,
and no other program does.
"""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from emberfs.waiting import LOOK_S, QuickEar

MOST = 64


class Bell(socket.socket):
    """A socket whose answers come after so many looks, or only to who sleeps."""

    looks: int
    sleeps: int
    after_looks: int | None
    took_s: float
    now_s: float

    @classmethod
    def new(cls) -> "Bell":
        bell = cls(socket.AF_UNIX, socket.SOCK_STREAM)
        bell.looks = bell.sleeps = 0
        bell.after_looks, bell.took_s, bell.now_s = None, LOOK_S / 10, 100.0
        return bell

    def recv(self, most: int, flags: int = 0) -> bytes:  # type: ignore[override]
        assert most == MOST
        if flags == socket.MSG_DONTWAIT:
            self.looks += 1
            self.now_s += LOOK_S / 20
            if self.after_looks is None or self.looks < self.after_looks:
                raise BlockingIOError
            return b"looked"
        assert flags == 0
        self.sleeps += 1
        self.now_s += self.took_s
        return b"slept"

    def clock(self) -> float:
        return self.now_s


@pytest.fixture
def bell() -> Iterator[Bell]:
    with Bell.new() as bell:
        yield bell


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the threads that other tests left behind not count."""
    monkeypatch.setattr(threading, "active_count", lambda: 1)


@contextmanager
def another_thread() -> Iterator[None]:
    done = threading.Event()
    thread = threading.Thread(target=done.wait)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


@pytest.mark.usefixtures("alone")
def test_first_answer_is_slept_for_and_the_next_is_looked_for(bell: Bell) -> None:
    ear = QuickEar(bell, bell.clock)
    assert ear.receive(MOST) == b"slept"
    assert bell.looks == 0
    bell.after_looks = 3
    assert ear.receive(MOST) == b"looked"
    assert (bell.looks, bell.sleeps) == (3, 1)
    bell.looks = 0
    assert ear.receive(MOST) == b"looked"
    assert (bell.looks, bell.sleeps) == (3, 1)


@pytest.mark.usefixtures("alone")
def test_who_pauses_sleeps_at_once(bell: Bell) -> None:
    ear = QuickEar(bell, bell.clock)
    ear.receive(MOST)
    bell.now_s += LOOK_S
    assert ear.receive(MOST) == b"slept"
    assert bell.looks == 0


@pytest.mark.usefixtures("alone")
def test_looking_ends_in_sleep_and_a_slow_answer_is_not_looked_for_again(bell: Bell) -> None:
    ear = QuickEar(bell, bell.clock)
    ear.receive(MOST)
    before_s = bell.now_s
    assert ear.receive(MOST) == b"slept"
    assert 0 < bell.looks <= 21
    assert bell.now_s - before_s < 2 * LOOK_S
    bell.looks = 0
    assert ear.receive(MOST) == b"slept"
    assert bell.looks == 0
    bell.after_looks = 1  # this one came at once, so the next one may again
    assert ear.receive(MOST) == b"looked"


def test_one_of_several_threads_sleeps_at_once(bell: Bell) -> None:
    ear = QuickEar(bell, bell.clock)
    ear.receive(MOST)
    with another_thread():
        assert ear.receive(MOST) == b"slept"
    assert bell.looks == 0


def test_the_end_is_heard_while_looking() -> None:
    ours, theirs = socket.socketpair()
    with ours:
        ear = QuickEar(ours, lambda: 1.0)
        with theirs:
            theirs.send(b"a")
            assert ear.receive(MOST) == b"a"
        assert not ear.receive(MOST)
