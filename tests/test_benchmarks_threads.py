"""Threads of benchmarks: an error in one is told, and no thread outlives the measurement."""

import threading
from collections.abc import Iterator

import pytest

from benchmarks.threads import in_threads


def test_every_thread_does_all_its_steps() -> None:
    done: list[tuple[int, int]] = []

    def steps(number: int) -> Iterator[None]:
        for step in range(5):
            done.append((number, step))
            yield

    assert in_threads(steps, 3) > 0
    assert sorted(done) == [(number, step) for number in range(3) for step in range(5)]


def test_an_error_in_one_thread_ends_all_and_is_raised() -> None:
    """Without that a benchmark whose threads fail tells a rate of what was never done."""
    has_failed = threading.Event()

    def steps(number: int) -> Iterator[None]:
        if number == 1:
            has_failed.set()
            raise OSError("the other side is gone")
        while True:
            has_failed.wait()
            yield

    with pytest.raises(OSError, match="the other side is gone"):
        in_threads(steps, 3)


def test_an_interrupt_waits_for_the_step_under_way() -> None:
    """What the threads use may be closed when it has come back."""
    under_way: set[int] = set()

    def steps(number: int) -> Iterator[None]:
        while True:
            under_way.add(number)
            if number == 0:
                under_way.discard(number)
                raise KeyboardInterrupt
            under_way.discard(number)
            yield

    with pytest.raises(KeyboardInterrupt):
        in_threads(steps, 2)
    assert not under_way
