"""What may be buffered: bytes over the whole mount, and the space that the cluster has for them.

No I/O.
"""

import trio

from ..kept_bytes import Keeper, KeptBytes

TIGHT_S = 30.0
"""How long space counts as tight after a write met NO_SPACE."""


class SpaceWatch:
    """Whether the bytes that may be buffered could meet a full disk.  No I/O."""

    def __init__(self, margin_bytes: int) -> None:
        self._margin_bytes = margin_bytes
        self._free_bytes = 0
        self._is_known = False
        self._tight_until_s = 0.0

    def adopt(self, margin_bytes: int) -> None:
        """Keep another margin; never a smaller one, for as many bytes may be buffered already."""
        self._margin_bytes = max(self._margin_bytes, margin_bytes)

    def note_free(self, free_bytes: int) -> None:
        """Take in what the cluster says; what is written afterwards is counted down from it."""
        self._free_bytes = free_bytes
        self._is_known = True

    def note_written(self, count: int) -> None:
        """Count bytes that this mount writes."""
        self._free_bytes -= count

    def note_full(self, now_s: float) -> None:
        """A write met NO_SPACE."""
        self._tight_until_s = now_s + TIGHT_S

    def may_lack(self, count: int) -> bool:
        """Return whether the cluster has, for all that is known here, less space than this."""
        return not self._is_known or count > self._free_bytes

    def is_tight(self, now_s: float, *, more_bytes: int = 0) -> bool:
        """True when writes, now or after `more_bytes`,
        must not be acknowledged before storage has them.
        """
        return now_s < self._tight_until_s or (
            self._is_known and self._free_bytes - more_bytes < self._margin_bytes
        )


class DirtyBudget:
    """Bytes that may be buffered or on their way over the whole mount,
    with those that are kept for what will be written.

    What is kept makes way for what is written, the oldest first.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self.used_bytes = 0
        """Without what is kept."""
        self._kept = KeptBytes()
        self._released = trio.Event()

    def adopt(self, bytes_max: int) -> None:
        """Allow another number of bytes; when it is fewer than are taken, the next have to wait."""
        self._bytes_max = bytes_max

    def try_acquire(self, count: int) -> bool:
        """Take `count` bytes; False when there is no room.  A lone large write always fits."""
        if self.used_bytes and self.used_bytes + count > self._bytes_max:
            return False
        self.used_bytes += count
        if self._kept.total:
            self._make_way()
        return True

    def release(self, count: int) -> None:
        """Give bytes back."""
        assert count <= self.used_bytes, (count, self.used_bytes)
        self.used_bytes -= count
        self._released.set()
        self._released = trio.Event()

    async def wait_released(self) -> None:
        """Wait until somebody gives bytes back."""
        await self._released.wait()

    def try_keep(self, keeper: Keeper, count: int) -> bool:
        """Count `count` bytes, at least one, that somebody keeps from now on instead of others;
        False: there is no room for them.
        """
        self._kept.give_up(keeper)
        if self.used_bytes + count > self._bytes_max:
            return False
        self._kept.keep(keeper, count)
        self._make_way()
        return True

    def give_up(self, keeper: Keeper) -> None:
        """Count what somebody has kept no more."""
        self._kept.give_up(keeper)

    @property
    def kept_bytes(self) -> int:
        """How many are kept."""
        return self._kept.total

    def _make_way(self) -> None:
        self._kept.shrink_to(max(0, self._bytes_max - self.used_bytes))
