"""Waiting in whatever the caller runs: a plain thread, asyncio or trio.  Imports neither library of others."""

import asyncio
import sys
import threading
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


Wake = Callable[[], object]


class Permits:
    """A semaphore that threads, asyncio and trio may wait for at the same time, first come first served."""

    def __init__(self, count: int) -> None:
        self._lock = threading.Lock()
        self._free = count
        self._waiting: deque[Wake] = deque()

    def take(self) -> None:
        """Return with a permit; for threads."""
        if self._has_taken(None):
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
