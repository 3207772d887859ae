"""Whose batch is next when more are there than are done at once: rings of high priority before normal before low.

Nobody waits for ever: every TURNS_FOR_OTHERS-th turn goes to the priority below the one that would have it.
No I/O.
"""

from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import trio
from emberfs.protocol import Priority

TURNS_FOR_OTHERS: Final = 8
ORDER: Final = (Priority.HIGH, Priority.NORMAL, Priority.LOW)


class Turns:
    """See module head."""

    def __init__(self, at_once: int) -> None:
        """`at_once`: so many may have their turn at the same time."""
        self._free = at_once
        self._waiting: dict[Priority, deque[trio.Event]] = {p: deque() for p in ORDER}
        self._given = 0

    @asynccontextmanager
    async def turn(self, priority: Priority) -> AsyncIterator[None]:
        """Wait for a turn, have it for the time of the block."""
        if self._free:
            self._free -= 1
        else:
            await self._wait(priority)
        try:
            yield
        finally:
            self._pass_on()

    async def _wait(self, priority: Priority) -> None:
        called = trio.Event()
        queue = self._waiting[priority]
        queue.append(called)
        try:
            await called.wait()
        except trio.Cancelled:
            if called.is_set():
                self._pass_on()
            else:
                queue.remove(called)
            raise

    def _pass_on(self) -> None:
        queues = [queue for queue in self._waiting.values() if queue]
        if not queues:
            self._free += 1
            return
        self._given += 1
        is_for_others = len(queues) > 1 and self._given % TURNS_FOR_OTHERS == 0
        queues[1 if is_for_others else 0].popleft().set()
