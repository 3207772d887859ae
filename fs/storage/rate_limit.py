"""How many bytes resync may send in a second.

Concurrency: trio; any number wait, and have their turns in the order in which they came.
"""

from collections.abc import Callable
from typing import Final

import trio

from .resync_groups import GROUP_BYTES_MAX

LOOK_INTERVAL_S: Final = 1.0
"""Who waits for the rate limit looks so often whether that is still of use."""


class RateLimit:
    """Spreads bytes over time; shared by all resyncs of a process."""

    def __init__(self, bytes_per_s_max: int) -> None:
        self._bytes_per_s_max = bytes_per_s_max
        self._free_at_s = 0.0
        """For whoever comes now: behind all who wait."""
        self._taken_until_s = 0.0
        """By those who wait no more."""
        self._changed = trio.Event()

    def adopt(self, bytes_per_s_max: int) -> None:
        """Spread bytes otherwise from now on, also those that wait:
        a limit that was far too low holds nothing up once it is raised.
        """
        self._bytes_per_s_max = bytes_per_s_max
        self._taken_until_s = 0.0
        self._divide_anew(0.0)

    @property
    def group_bytes_max(self) -> int:
        """How much may be sent at once: no more than an eighth of a second allows."""
        limit = self._bytes_per_s_max
        return min(GROUP_BYTES_MAX, limit // 8) if limit else GROUP_BYTES_MAX

    async def take(self, byte_count: int, is_wanted: Callable[[], bool] = lambda: True) -> bool:
        """Wait until `byte_count` more bytes are allowed:
        none are at once, as are any where the limit is 0.

        Args:
            byte_count: how many.
            is_wanted: asked while it waits; who is not wanted any more gives
                its turn to those behind it.

        Returns:
            Whether they are allowed; False if they are not wanted any more.
        """
        while self._bytes_per_s_max and byte_count:
            start_s = max(trio.current_time(), self._free_at_s)
            self._free_at_s = end_s = start_s + byte_count / self._bytes_per_s_max
            changed = self._changed
            await trio.lowlevel.checkpoint()
            while not changed.is_set() and trio.current_time() < start_s:
                if not is_wanted():
                    self._divide_anew(self._taken_until_s)
                    return False
                with trio.move_on_at(min(start_s, trio.current_time() + LOOK_INTERVAL_S)):
                    await changed.wait()
            if not changed.is_set():  # otherwise again, by what is so now
                self._taken_until_s = max(self._taken_until_s, end_s)
                break
        return True

    def _divide_anew(self, free_at_s: float) -> None:
        """Have all who wait take their turns again, from `free_at_s` on."""
        self._free_at_s = free_at_s
        self._changed.set()
        self._changed = trio.Event()
