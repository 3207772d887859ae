"""Counts the updates inside one target by the chain version they came in under: the resync barrier.

An update that came in before its chain had a syncing successor may end without
having been forwarded to it. Resync therefore waits until all such updates have left
before it lists chunks (resync.py).
"""

import trio


class InFlight:
    """The updates inside one target."""

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}
        self._changed: trio.Event | None = None
        """There only while somebody waits: it is set with nearly every update."""

    def enter(self, chain_version: int) -> None:
        """Count an update in."""
        self._counts[chain_version] = self._counts.get(chain_version, 0) + 1

    def leave(self, chain_version: int) -> None:
        """Count it out."""
        left = self._counts[chain_version] - 1
        if left:
            self._counts[chain_version] = left
            return
        del self._counts[chain_version]
        if self._changed is not None:
            self._changed.set()
            self._changed = None

    @property
    def count(self) -> int:
        """Updates inside now."""
        return sum(self._counts.values())

    async def wait_older_left(self, chain_version: int) -> None:
        """Wait until no update is inside that came in under a version below `chain_version`."""
        while any(version < chain_version for version in self._counts):
            if self._changed is None:
                self._changed = trio.Event()
            await self._changed.wait()
