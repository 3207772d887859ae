"""Page-aligned buffers for payloads, received or to be sent; reused and bounded.

A buffer is anonymous memory from `mmap`, so it may be handed to O_DIRECT writes.  Small ones have
sizes that are powers of two, from one page up, so that a buffer serves many payload sizes; the view
handed out has the exact length.

Large buffers, of whole MiB, are cut out of slabs of a few huge pages (fs/rpc/slabs.py), where the
kernel has some: touching these first takes a sixth of the time, and a disk takes 4 MiB of them in
one request instead of four.  Whatever its size, a buffer lies as far in front as it fits, in the
oldest slab.  What is larger than a slab has memory of its own.

Invariants:
    - Buffers in use never sum to more than `bytes_max`, except that one buffer alone may be larger.
    - A buffer in use at a `disown` is never used again, nor is its slab: somebody may write
      into it who cannot be stopped.
    - What is kept idle, small buffers here and slabs on the shelf, is bounded together with what
      other pools of the shelf keep.
    - Slabs of which something is used never sum to more than `bytes_max`, or one: what would need
      another one has memory of its own.

Concurrency: trio; `acquire` waits in line, `release` never waits.
"""

import mmap
from bisect import insort
from collections import deque
from typing import Final

import trio

from .slabs import SLAB_BYTES, SLAB_UNITS, UNIT_BYTES, Slab, SlabShelf, age_of, fresh_memory

SIZE_MIN: Final = mmap.PAGESIZE

_NOWHERE: Final = 255


def _first_run(used: int, count: int) -> int:
    """Return the first of `count` neighbouring units
    that are not among those used (bits), or _NOWHERE.
    """
    run = (1 << count) - 1
    places = range(SLAB_UNITS - count + 1)
    return next((place for place in places if not used >> place & run), _NOWHERE)


_FIRST_RUNS: Final = [
    bytes(_first_run(used, count) for used in range(1 << SLAB_UNITS))
    for count in range(SLAB_UNITS + 1)
]
"""By how many units are wanted, and which are used."""


class Lease:
    """One buffer in use: `view` has the asked length;
    give it back once, by `BufferPool.release`.
    """

    __slots__ = ("generation", "memory", "size", "slab", "units", "view")

    def __init__(
        self,
        memory: memoryview,
        length: int,
        generation: int,
        slab: Slab | None = None,
        units: int = 0,
    ) -> None:
        self.memory = memory
        self.size = len(memory)
        self.generation = generation
        self.view = memory[:length]
        self.slab = slab
        """Which it was cut out of; None: it has memory of its own."""
        self.units = units
        """Its bits there."""


class BufferPool:
    """Hands out page-aligned buffers."""

    def __init__(self, bytes_max: int, shelf: SlabShelf | None = None) -> None:
        """Take where idle slabs are kept; without, on a shelf that no other pool has."""
        self._bytes_max = bytes_max
        self.shelf = shelf or SlabShelf()
        self._slab_count_max = (
            max(1, bytes_max // SLAB_BYTES) if self.shelf.idle_bytes_max >= SLAB_BYTES else 0
        )
        self._slabs: list[Slab] = []
        """Of which something is used, oldest first."""
        self._idle: dict[int, list[memoryview]] = {}
        self._idle_bytes = 0
        self._used_bytes = 0
        self._line: deque[tuple[int, trio.Event]] = deque()
        self._generation = 0

    @property
    def used_bytes(self) -> int:
        """Bytes of the buffers in use."""
        return self._used_bytes

    @property
    def idle_bytes(self) -> int:
        """Bytes of the small buffers that are kept for reuse; whole slabs are the shelf's."""
        return self._idle_bytes

    async def acquire(self, length: int) -> Lease:
        """Return a buffer for `length` > 0 bytes, after those who asked before."""
        lease = self.acquire_now(length)
        if lease is None:
            size = _size_for(length)
            await self._wait(size)
            lease = self._take(size, length)
        return lease

    def acquire_now(self, length: int) -> Lease | None:
        """As `acquire`; None if that would take waiting."""
        size = _size_for(length)
        if self._line or not self._fits(size):
            return None
        self._used_bytes += size
        return self._take(size, length)

    def _take(self, size: int, length: int) -> Lease:
        """Return a buffer that has been counted as used."""
        try:
            if UNIT_BYTES <= size <= SLAB_BYTES and self._slab_count_max:
                found = self._cut(size, length)
                if found is not None:
                    return found
            idle = self._idle.pop(size, None)
            if idle:
                self._idle[size] = idle  # behind the sizes that nobody has asked for since
                self._count_idle(-size)
                return Lease(idle.pop(), length, self._generation)
            return Lease(fresh_memory(size), length, self._generation)
        except BaseException:  # no memory: nobody has it, and others may wait for room
            self._used_bytes -= size
            self._admit()
            raise

    def _cut(self, size: int, length: int) -> Lease | None:
        """Return a buffer of whole units out of the oldest slab in use that has room;
        None: there may be no further slab.
        """
        count = size // UNIT_BYTES
        first_runs, place = _FIRST_RUNS[count], _NOWHERE
        for slab in self._slabs:
            place = first_runs[slab.used]
            if place != _NOWHERE:
                break
        else:
            if len(self._slabs) >= self._slab_count_max:
                return None
            slab, place = self.shelf.take(), 0
            insort(self._slabs, slab, key=age_of)
        units = (1 << count) - 1 << place
        slab.used |= units
        start = place * UNIT_BYTES
        return Lease(slab.memory[start : start + size], length, self._generation, slab, units)

    def _keep(self, size: int, memory: memoryview) -> None:
        """Keep a small buffer for reuse, rather than those of sizes that were last asked
        for longer ago, or a slab.
        """
        shelf = self.shelf
        while shelf.idle_bytes + size > shelf.idle_bytes_max:
            other = next((other for other, idle in self._idle.items() if idle), size)
            if other != size and size <= shelf.idle_bytes_max:
                self._idle[other].pop()
                self._count_idle(-other)
            elif size > shelf.idle_bytes_max or not shelf.drop():
                return
        self._idle.setdefault(size, []).append(memory)
        self._count_idle(size)

    def _count_idle(self, size: int) -> None:
        self._idle_bytes += size
        self.shelf.idle_bytes += size

    def release(self, lease: Lease) -> None:
        """Take a buffer back; its contents may be overwritten at once."""
        self._used_bytes -= lease.size
        if lease.generation == self._generation:
            lease.view.release()
            slab = lease.slab
            if slab is None:
                self._keep(lease.size, lease.memory)
            else:
                slab.used &= ~lease.units
                if not slab.used:
                    self._slabs.remove(slab)
                    self.shelf.put(slab)
        self._admit()

    def disown(self) -> None:
        """Use no buffer again that is in use now; each is unmapped when nobody has it any more."""
        self._generation += 1
        self._slabs.clear()

    def _fits(self, size: int) -> bool:
        return self._used_bytes == 0 or self._used_bytes + size <= self._bytes_max

    async def _wait(self, size: int) -> None:
        entry = (size, trio.Event())
        self._line.append(entry)
        try:
            await entry[1].wait()
        except trio.Cancelled:
            if entry[1].is_set():
                self._used_bytes -= size
            else:
                self._line.remove(entry)
            self._admit()
            raise

    def _admit(self) -> None:
        """Let in those at the head of the line for whom there is room now."""
        while self._line and self._fits(self._line[0][0]):
            size, event = self._line.popleft()
            self._used_bytes += size
            event.set()


def _size_for(length: int) -> int:
    if UNIT_BYTES // 2 < length <= SLAB_BYTES:
        return -(-length // UNIT_BYTES) * UNIT_BYTES
    return max(SIZE_MIN, 1 << (length - 1).bit_length())
