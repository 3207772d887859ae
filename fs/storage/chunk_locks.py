"""Serialises the updates of one chunk on one target;
locks exist only while somebody holds or awaits one.

Taking a free lock gives no turn of the event loop away: an update passes here on every replica.

Invariants:
    - A key is in the table exactly while its lock is held; whoever leaves
      hands it to the first who waits.

Concurrency: trio; first come, first served.  Reads do not take it
(read_path says when they wait for it).
"""

from collections.abc import Hashable

import trio


class ChunkLocks:
    """The chunk locks of one target."""

    def __init__(self) -> None:
        self._held: dict[Hashable, trio.lowlevel.ParkingLot | None] = {}
        """Who waits for each; None: nobody ever did."""

    def __len__(self) -> int:
        return len(self._held)

    def hold(self, key: Hashable) -> "_Hold":
        """Return what holds the lock of `key` for the body of an `async with`;
        it cannot be taken twice.
        """
        return _Hold(self._held, key)

    def is_held(self, key: Hashable) -> bool:
        """Return whether somebody has the lock."""
        return key in self._held

    def take(self, key: Hashable) -> bool:
        """Take a lock if it is free, until `release`; return whether it was."""
        if key in self._held:
            return False
        self._held[key] = None
        return True

    def release(self, key: Hashable) -> None:
        """End of `take`: hand the lock to the first who waits."""
        _release(self._held, key)


class _Hold:
    """One use of a lock."""

    __slots__ = ("_held", "_key")

    def __init__(
        self, held: dict[Hashable, trio.lowlevel.ParkingLot | None], key: Hashable
    ) -> None:
        self._held = held
        self._key = key

    async def __aenter__(self) -> None:
        held, key = self._held, self._key
        if key not in held:
            held[key] = None
            return
        waiting = held[key]
        if waiting is None:
            waiting = held[key] = trio.lowlevel.ParkingLot()
        await waiting.park()  # whoever leaves hands the lock to us

    async def __aexit__(self, *_error: object) -> None:
        _release(self._held, self._key)


def _release(held: dict[Hashable, trio.lowlevel.ParkingLot | None], key: Hashable) -> None:
    waiting = held[key]
    if waiting:
        waiting.unpark()
    else:
        del held[key]
