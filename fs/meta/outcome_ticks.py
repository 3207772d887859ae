"""Time by which remembered outcomes are forgotten:
ticks that all services count together, by no wall clock.

Why no wall clock: that of one service may be set an hour ahead of another's.  By it,
what the other has just remembered is old at once, and the repeat of a removal that was
done is told that nothing is there.

So the store holds a number.  Whoever has seen it stand for TICK_S by his own monotonic clock raises
it by one.  However many services there are and whenever they start, two ticks are never less than
TICK_S apart.  They are further apart while all services stand still, which keeps outcomes longer.

Invariants:
    - What is remembered bears a tick that was the newest at most KNOWN_S before, or none.
    - `is_over` says so no earlier than `expiry_s` after an outcome was remembered.

Concurrency: any number of services; in each, one task calls `look`.
"""

import math
from typing import Final

from ..kv.api import KvEngine, Transaction
from ..kv.transact import snapshot_read, transact
from ..runtime.ports import Runtime
from . import records
from .damage import tick as tick_in

TICK_S: Final = 60.0
KNOWN_S: Final = 2 * TICK_S
"""For so long after a look its tick may be given to what is remembered."""

LONG_AGO: Final = -(1 << 63)
"""Before all ticks."""


def is_over(made: int, now: int, expiry_s: float) -> bool:
    """Return whether what was remembered in one tick is older than `expiry_s` in another."""
    # The tick after `made` may have begun KNOWN_S before; from there on they are counted.
    return now - made - 1 >= math.ceil((expiry_s + KNOWN_S) / TICK_S)


class OutcomeTicks:
    """The newest tick, as one service knows it."""

    def __init__(self, engine: KvEngine, runtime: Runtime, retry_time_s_max: float) -> None:
        self._engine = engine
        self._runtime = runtime
        self._retry_time_s_max = retry_time_s_max
        self._tick = 0
        self._since_s = 0.0
        """When `_tick` was seen first."""
        self._looked_s = 0.0
        """When the last look began."""

    def known(self) -> int:
        """Return the newest tick; 0 if the last look was too long ago."""
        if not self._tick or self._runtime.clock.monotonic_s() - self._looked_s > KNOWN_S:
            return 0
        return self._tick

    async def look(self) -> None:
        """Take in the newest tick, or begin it if it is time;
        raises FsError when the store stays away.
        """
        began_s = self._runtime.clock.monotonic_s()
        key = records.OUTCOME_TICK_KEY
        stored = await snapshot_read(self._engine, lambda tr: tr.get(key, snapshot=True))
        tick = tick_in(key, stored)
        if not tick or (tick == self._tick and began_s - self._since_s >= TICK_S):
            tick = await transact(
                self._engine,
                lambda tr: _begin_after(tr, tick),
                runtime=self._runtime,
                retry_time_s_max=self._retry_time_s_max,
            )
        self._looked_s = began_s
        if tick != self._tick:
            self._tick, self._since_s = tick, self._runtime.clock.monotonic_s()


async def _begin_after(tr: Transaction, seen: int) -> int:
    """Begin the tick after `seen`, unless somebody has; return the newest."""
    tr.mark_freeing()  # no collection begins without it
    key = records.OUTCOME_TICK_KEY
    tick = tick_in(key, await tr.get(key))
    if tick != seen:
        return tick
    tr.set(key, records.pack_u64(tick + 1))
    return tick + 1
