"""Serialises the updates of one chunk on one target; locks exist only while somebody holds or awaits one.

Concurrency: trio; first come, first served.  Reads do not take it (read_path says when they wait for it).
"""

from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager

import trio


class ChunkLocks:
    """The chunk locks of one target."""

    def __init__(self) -> None:
        self._locks: dict[Hashable, trio.Lock] = {}

    def __len__(self) -> int:
        return len(self._locks)

    @asynccontextmanager
    async def hold(self, key: Hashable) -> AsyncIterator[None]:
        """Hold the lock of `key` for the body."""
        lock = self._locks.get(key)
        if lock is None:
            lock = self._locks[key] = trio.Lock()
        try:
            async with lock:
                yield
        finally:
            statistics = lock.statistics()
            if not statistics.locked and not statistics.tasks_waiting:
                self._locks.pop(key, None)
