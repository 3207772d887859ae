"""Waiting in whatever the caller runs: a plain thread, asyncio or trio.

Imports neither library of others.
"""

import asyncio
import os
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any


def _trio() -> Any:
    """Return trio if the caller runs in it."""
    trio = sys.modules.get("trio")  # who runs in trio has imported it
    return trio if trio is not None and trio.lowlevel.in_trio_run() else None


async def readable(fd: int) -> None:
    """Return when `fd` can be read; cancellable."""
    trio = _trio()
    if trio is not None:
        await trio.lowlevel.wait_readable(fd)
        return
    loop = asyncio.get_running_loop()
    is_readable: asyncio.Future[None] = loop.create_future()

    def note() -> None:
        if not is_readable.done():
            is_readable.set_result(None)

    loop.add_reader(fd, note)
    try:
        await is_readable
    finally:
        loop.remove_reader(fd)


LOOK_S = 0.0005
"""For how long a program that asks one thing after the other looks for an answer before it sleeps.

A small read that need not wait for a disk takes half of that.
"""


class QuickEar:
    """Receives the answer to one question, without sleeping where question follows answer at once.

    To sleep and be woken takes longer than much of what is asked for, above all since a core that
    ran something else meanwhile has to fetch the interpreter's code again.  So who has asked
    within `LOOK_S` of the answer before, which took no longer than that either, looks for the
    next one for as long, and lets whoever wants the core have it after each look.  A program that
    pauses, or waits for disks, sleeps at once, and so does one with several threads: each look
    would ask for the interpreter's lock anew.
    """

    def __init__(self, bell: socket.socket, clock: Callable[[], float] = time.perf_counter) -> None:
        """Hear `bell`, which stays the caller's.

        Args:
            bell: a blocking stream socket.
            clock: seconds.
        """
        self._bell = bell
        self._clock = clock
        self._quick_until_s = 0.0

    def receive(self, most: int) -> bytes:
        """Return what has come, of at most that many bytes; nothing: the other side has gone.

        Raises:
            OSError: as `socket.recv`.
        """
        asked_s = self._clock()
        heard = None
        if asked_s < self._quick_until_s and threading.active_count() == 1:
            heard = self._look(most, asked_s + LOOK_S)
        if heard is None:
            heard = self._bell.recv(most)
        now_s = self._clock()
        self._quick_until_s = now_s + LOOK_S if now_s - asked_s < LOOK_S else 0.0
        return heard

    def _look(self, most: int, until_s: float) -> bytes | None:
        receive, clock = self._bell.recv, self._clock
        while clock() < until_s:
            try:
                return receive(most, socket.MSG_DONTWAIT)
            except BlockingIOError:
                os.sched_yield()
        return None


Wake = Callable[[], object]


class Permits:
    """A semaphore that threads, asyncio and trio may wait for at the same time,
    first come first served.
    """

    def __init__(self, count: int) -> None:
        self._lock = threading.Lock()
        self._free = count
        self._waiting: deque[Wake] = deque()

    def take(self) -> None:
        """Return with a permit; for threads."""
        with self._lock:  # as `_has_taken`, without a call
            if self._free:
                self._free -= 1
                return
        called = threading.Event()
        if self._has_taken(called.set):
            return
        try:
            called.wait()
        except BaseException:
            self._withdraw(called.set)
            raise

    async def take_async(self) -> None:
        """Return with a permit; in asyncio or trio."""
        if self._has_taken(None):
            return
        wake, wait = _alarm()
        if self._has_taken(wake):
            return
        try:
            await wait()
        except BaseException:
            self._withdraw(wake)
            raise

    def give_back(self) -> None:
        """Pass a permit on to who waits longest."""
        with self._lock:
            while self._waiting:
                try:
                    self._waiting.popleft()()
                except RuntimeError:  # the loop that it waited in has ended
                    continue
                return
            self._free += 1

    def _has_taken(self, wake: Wake | None) -> bool:
        with self._lock:
            if self._free:
                self._free -= 1
                return True
            if wake is not None:
                self._waiting.append(wake)
            return False

    def _withdraw(self, wake: Wake) -> None:
        with self._lock:
            if wake in self._waiting:
                self._waiting.remove(wake)
                return
        self.give_back()  # it was given meanwhile


def _alarm() -> tuple[Wake, Callable[[], Awaitable[Any]]]:
    """Return what any thread may call once, and what waits for that in the caller's loop."""
    trio = _trio()
    if trio is not None:
        event, token = trio.Event(), trio.lowlevel.current_trio_token()
        return lambda: token.run_sync_soon(event.set), event.wait
    loop = asyncio.get_running_loop()
    future: asyncio.Future[None] = loop.create_future()

    def note() -> None:
        if not future.done():
            future.set_result(None)

    return lambda: loop.call_soon_threadsafe(note), lambda: future
