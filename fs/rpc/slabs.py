"""Slabs of a few huge pages, which large buffers are cut out of,
and a shelf of those that are idle.

Pools of one process share a shelf: what one of them has touched serves the others, too.  Where
a host takes back what its guests do not use, touching memory for the first time costs more than
all else of a read or a write.

Invariants:
    - What is kept idle, slabs on the shelf and small buffers of all its pools, never sums
      to more than `idle_bytes_max`.
    - Of idle slabs the oldest is taken first, so no more memory is ever touched than about
      what is in use at the same time.
    - A slab is on the shelf or in one pool, never both.

Does not: cut slabs, nor count what is in use; fs/rpc/buffer_pool.py does.
Concurrency: of one event loop; nothing here waits, but for `warm`.
"""

import logging
import mmap
from bisect import insort
from collections.abc import Awaitable, Callable
from contextlib import suppress
from itertools import count
from operator import attrgetter
from typing import Final

from ..runtime.plain_memory import PlainMemory, touch

log = logging.getLogger(__name__)

IDLE_BYTES_MAX: Final = 96 * 1024 * 1024
"""Two full groups of writes to each of six chains,
which a busy storage process receives again and again.
"""

HUGE_BYTES: Final = 2 * 1024 * 1024
"""A huge page."""

UNIT_BYTES: Final = 1024 * 1024
"""Slabs are cut into these."""

SLAB_UNITS: Final = 8
SLAB_BYTES: Final = SLAB_UNITS * UNIT_BYTES
"""A full group of writes."""


class Slab:
    """Memory that large buffers are cut out of."""

    __slots__ = ("memory", "number", "used")

    def __init__(self, number: int) -> None:
        self.memory = fresh_memory(SLAB_BYTES)
        self.number = number
        """Of two the lower one is older."""
        self.used = 0
        """Bit n: unit n is in use."""


age_of: Final = attrgetter("number")


class SlabShelf:
    """Idle slabs, and what else its pools keep idle."""

    def __init__(self, idle_bytes_max: int = IDLE_BYTES_MAX) -> None:
        self.idle_bytes_max = idle_bytes_max
        self.idle_bytes = 0
        """Of slabs here, and of the small buffers that pools keep: they count them in and out."""
        self._slabs: list[Slab] = []
        """Oldest first."""
        self._numbers = count()

    @property
    def slab_bytes(self) -> int:
        """Of the slabs here."""
        return len(self._slabs) * SLAB_BYTES

    def take(self) -> Slab:
        """Return a slab that nobody has, a new one if there is none;
        raises OSError or MemoryError.
        """
        if not self._slabs:
            return Slab(next(self._numbers))
        self.idle_bytes -= SLAB_BYTES
        return self._slabs.pop(0)

    def put(self, slab: Slab) -> None:
        """Take a slab of which nothing is used; the youngest goes if they are too many."""
        insort(self._slabs, slab, key=age_of)
        self.idle_bytes += SLAB_BYTES
        if self.idle_bytes > self.idle_bytes_max:
            self.drop()

    def drop(self) -> bool:
        """Unmap the youngest slab; False: there is none."""
        if not self._slabs:
            return False
        del self._slabs[-1]
        self.idle_bytes -= SLAB_BYTES
        return True

    async def warm(
        self, byte_count: int, run_blocking: Callable[[Callable[[], Slab]], Awaitable[Slab]]
    ) -> None:
        """Have so much memory here, and touched, before anybody asks for it.

        Args:
            byte_count: what would not be kept idle is left out.
            run_blocking: calls a function in a thread.
        """
        for _ in range(byte_count // SLAB_BYTES):
            try:
                slab = await run_blocking(self._touched)
            except (OSError, MemoryError, RuntimeError) as error:  # no memory, or no thread
                log.info("no memory is touched beforehand: %r", error)
                return
            if self.idle_bytes + SLAB_BYTES > self.idle_bytes_max:
                return
            self.put(slab)

    def _touched(self) -> Slab:
        slab = Slab(next(self._numbers))
        touch(slab.memory)
        return slab


def fresh_memory(size: int) -> memoryview:
    """Return new memory, in huge pages if it is large; unmapped when nobody has it any more."""
    memory = PlainMemory(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if size >= HUGE_BYTES:
        with suppress(OSError):  # a kernel without huge pages
            memory.madvise(mmap.MADV_HUGEPAGE)
    return memoryview(memory)
