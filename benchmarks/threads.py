"""Threads that do the same work side by side, and how long they take.

Invariants:
    - A rate counts only what was done: an error in one thread ends all, and is raised.
    - Whoever interrupts the benchmark waits for one step of each thread, no longer, and nothing
      that the threads use is taken away before they have ended.

Does not: share the steps out.  Each thread's steps are its own.
"""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor


def in_threads(steps: Callable[[int], Iterator[None]], count: int) -> float:
    """Return the seconds until `count` threads have gone through `steps(number)`.

    Args:
        steps: called in each thread with its number, from 0 on; every item is one step done.
        count: of threads, at least 1.

    Raises:
        Exception: what the first thread that failed raised.
    """
    is_over = threading.Event()

    def work(number: int) -> None:
        try:
            for _ in steps(number):
                if is_over.is_set():
                    return
        except BaseException:
            is_over.set()
            raise

    began = time.perf_counter()
    with ThreadPoolExecutor(count) as pool:
        try:
            ends = [pool.submit(work, number) for number in range(count)]
            for end in ends:
                end.result()
        except BaseException:
            is_over.set()
            raise
    return time.perf_counter() - began
