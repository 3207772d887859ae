"""Bytes that are kept since they may be wanted again, bounded in sum: the oldest go first.

No I/O.
"""

from typing import Protocol


class Keeper(Protocol):
    """Keeps bytes that it can do without."""

    def forget_kept(self) -> None:
        """Let go of them, now."""
        ...


class KeptBytes:
    """Who keeps how many; see module head."""

    def __init__(self) -> None:
        self.total = 0
        self._kept: dict[Keeper, int] = {}

    def keep(self, keeper: Keeper, count: int) -> None:
        """Count `count` bytes that somebody keeps from now on, instead of others."""
        self.give_up(keeper)
        self._kept[keeper] = count
        self.total += count

    def give_up(self, keeper: Keeper) -> None:
        """Count what somebody has kept no more."""
        self.total -= self._kept.pop(keeper, 0)

    def shrink_to(self, bytes_max: int) -> None:
        """Have the oldest forgotten until no more than so many are left."""
        while self.total > bytes_max and self._kept:
            keeper = next(iter(self._kept))
            self.give_up(keeper)
            keeper.forget_kept()
