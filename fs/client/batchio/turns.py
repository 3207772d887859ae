"""Whose batch is next when more are there than are done at once: rings of high priority before normal before low.

Nobody waits for ever: every TURNS_FOR_OTHERS-th turn goes to the priority below the one that would have it, and every so
manieth of these to the one below that.  Users have turns one after the other, and no user has more than three quarters at once:
whose batches wait for a service that is away does not stop all others.
No I/O.
"""

from collections import Counter, deque
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
        self._held: Counter[int] = Counter()
        self._waiting: dict[Priority, Queues] = {p: {} for p in ORDER}
        self._given = 0

    def begin_now(self, uid: int) -> bool:
        """Take a turn if there is one, until `end`."""
        if self._free and self._held[uid] < self._of_one_max:
            self._begin(uid)
            return True
        return False

    async def begin(self, priority: Priority, uid: int) -> None:
        """Wait for a turn, where `begin_now` has found none, which lasts until `end`; cancelled, there is none."""
        called = trio.Event()
        queues = self._waiting[priority]
        queues.setdefault(uid, deque()).append(called)
        try:
            await called.wait()
        except trio.Cancelled:
            if called.is_set():
                self.end(uid)
            else:
                queues[uid].remove(called)
                if not queues[uid]:
                    del queues[uid]
            raise

    def _begin(self, uid: int) -> None:
        self._free -= 1
        self._held[uid] += 1

    def end(self, uid: int) -> None:
        """Give a turn back."""
        self._free += 1
        self._held[uid] -= 1
        if not self._held[uid]:
            del self._held[uid]
        while self._free and (found := self._next_ones()):
            self._given += 1
            queues, chosen = found[min(_level(self._given), len(found) - 1)]
            queue = queues.pop(chosen)
            self._begin(chosen)
            queue.popleft().set()
            if queue:
                queues[chosen] = queue  # behind all others

    def _next_ones(self) -> list[tuple[Queues, int]]:
        """Return who is next of each priority of which one may be."""
        found = []
        for queues in self._waiting.values():
            for uid in queues:
                if self._held[uid] < self._of_one_max:
                    found.append((queues, uid))
                    break
        return found


def _level(given: int) -> int:
    """Return how far below the highest priority this turn goes."""
    if given % TURNS_FOR_OTHERS:
        return 0
    return 1 if given % TURNS_FOR_OTHERS**2 else 2
