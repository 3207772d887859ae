"""Serialises the updates of one chunk on one target; locks exist only while somebody holds or awaits one.

Concurrency: trio; first come, first served.  Reads do not take it (read_path says when they wait for it).
"""

from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import trio


@dataclass(slots=True)
class _Entry:
    lock: trio.Lock = field(default_factory=trio.Lock)
    user_count: int = 0


class ChunkLocks:
    """The chunk locks of one target."""

    def __init__(self) -> None:
        self._entries: dict[Hashable, _Entry] = {}

    def __len__(self) -> int:
        return len(self._entries)

    @asynccontextmanager
    async def hold(self, key: Hashable) -> AsyncIterator[None]:
        """Hold the lock of `key` for the body."""
        entry = self._entries.get(key)
        if entry is None:
            entry = self._entries[key] = _Entry()
        entry.user_count += 1
        try:
            async with entry.lock:
                yield
        finally:
            entry.user_count -= 1
            if not entry.user_count:
                del self._entries[key]
