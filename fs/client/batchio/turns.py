"""Whose batch is next when more are there than are done at once:
rings of high priority before normal before low.

Nobody waits for ever: every TURNS_FOR_OTHERS-th turn goes to the priority below the one that
would have it, and every so manieth of these to the one below that.  Users have turns one after
the other, and no user has more than three quarters at once: whose batches wait for a service that
is away does not stop all others.  No I/O.
"""

from collections import deque
from typing import Final

import trio
from emberfs.protocol import Priority

TURNS_FOR_OTHERS: Final = 8
ORDER: Final = (Priority.HIGH, Priority.NORMAL, Priority.LOW)

Queues = dict[int, deque[trio.Event]]
"""By user, who is next first; none is empty."""


class Turns:
    """See module head."""

    def __init__(self, at_once: int) -> None:
        """`at_once`: so many may have their turn at the same time."""
        self._free = at_once
        self._of_one_max = max(1, at_once * 3 // 4)
        self._held: dict[int, int] = {}
        self._waiting: dict[Priority, Queues] = {p: {} for p in ORDER}
        self._wait_count = 0
        self._given = 0

    def begin_now(self, uid: int) -> bool:
        """Take a turn if there is one, until `end`."""
        held = self._held.get(uid, 0)
        if not self._free or held >= self._of_one_max:
            return False
        self._free -= 1
        self._held[uid] = held + 1
        return True

    async def begin(self, priority: Priority, uid: int) -> None:
        """Wait for a turn, where `begin_now` has found none, which lasts until `end`;
        cancelled, there is none.
        """
        called = trio.Event()
        queues = self._waiting[priority]
        queues.setdefault(uid, deque()).append(called)
        self._wait_count += 1
        try:
            await called.wait()
        except trio.Cancelled:
            if called.is_set():
                self.end(uid)
            else:
                queues[uid].remove(called)
                self._wait_count -= 1
                if not queues[uid]:
                    del queues[uid]
            raise

    def end(self, uid: int) -> None:
        """Give a turn back."""
        self._free += 1
        held = self._held.pop(uid) - 1
        if held:
            self._held[uid] = held
        while self._wait_count and self._free and (found := self._next_ones()):
            self._given += 1
            queues, chosen = found[min(_level(self._given), len(found) - 1)]
            queue = queues.pop(chosen)
            self.begin_now(chosen)
            self._wait_count -= 1
            queue.popleft().set()
            if queue:
                queues[chosen] = queue  # behind all others

    def _next_ones(self) -> list[tuple[Queues, int]]:
        """Return who is next of each priority of which one may be."""
        found = []
        for queues in self._waiting.values():
            for uid in queues:
                if self._held.get(uid, 0) < self._of_one_max:
                    found.append((queues, uid))
                    break
        return found


def _level(given: int) -> int:
    """Return how far below the highest priority this turn goes."""
    if given % TURNS_FOR_OTHERS:
        return 0
    return 1 if given % TURNS_FOR_OTHERS**2 else 2
