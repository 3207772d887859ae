"""Page-aligned buffers for payloads, received or to be sent; reused and bounded.

A buffer is anonymous memory from `mmap`, so it may be handed to O_DIRECT writes.  Small ones have sizes that are powers of two,
from one page up, so that a buffer serves many payload sizes; the view handed out has the exact length.

Large buffers, of whole MiB, are cut out of slabs of a few huge pages, where the kernel has some: touching these first takes a sixth of the
time, and a disk takes 4 MiB of them in one request instead of four.  Whatever its size, a buffer lies as far in front as it fits, in the
slab that was mapped first: so no more memory is ever touched than about what is in use at the same time.  What is larger than a slab has memory of
its own.

Invariants:
    - Buffers in use never sum to more than `bytes_max`, except that one buffer alone may be larger.
    - A buffer in use at a `disown` is never used again, nor is its slab: somebody may write into it who cannot be stopped.
    - What is kept idle, small buffers and whole slabs, never sums to more than `idle_bytes_max`.
    - Slabs never sum to more than `bytes_max`, or one: what would need another one has memory of its own.

Concurrency: trio; `acquire` waits in line, `release` never waits.
"""

import logging
import mmap
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

import trio

from ..runtime.plain_memory import PlainMemory, touch

log = logging.getLogger(__name__)

SIZE_MIN: Final = mmap.PAGESIZE
IDLE_BYTES_MAX: Final = 96 * 1024 * 1024
"""Two full groups of writes to each of six chains, which a busy storage process receives again and again."""

HUGE_BYTES: Final = 2 * 1024 * 1024
"""A huge page."""

UNIT_BYTES: Final = 1024 * 1024
"""Slabs are cut into these."""

SLAB_UNITS: Final = 8
SLAB_BYTES: Final = SLAB_UNITS * UNIT_BYTES
"""A full group of writes."""

_NOWHERE: Final = 255


def _first_run(used: int, count: int) -> int:
    """Return the first of `count` neighbouring units that are not among those used (bits), or _NOWHERE."""
    run = (1 << count) - 1
    places = range(SLAB_UNITS - count + 1)
    return next((place for place in places if not used >> place & run), _NOWHERE)


_FIRST_RUNS: Final = [
    bytes(_first_run(used, count) for used in range(1 << SLAB_UNITS))
    for count in range(SLAB_UNITS + 1)
]
"""By how many units are wanted, and which are used."""


class _Slab:
    """Memory that large buffers are cut out of."""

    __slots__ = ("memory", "used")

    def __init__(self) -> None:
        self.memory = _fresh(SLAB_BYTES)
        self.used = 0
        """Bit n: unit n is in use."""


class Lease:
    """One buffer in use: `view` has the asked length; give it back once, by `BufferPool.release`."""

    __slots__ = ("generation", "memory", "size", "slab", "units", "view")

    def __init__(
        self,
        memory: memoryview,
        length: int,
        generation: int,
        slab: _Slab | None = None,
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

    def __init__(self, bytes_max: int, *, idle_bytes_max: int = IDLE_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._idle_bytes_max = idle_bytes_max
        self._slab_count_max = (
            max(1, bytes_max // SLAB_BYTES) if idle_bytes_max >= SLAB_BYTES else 0
        )
        self._slabs: list[_Slab] = []
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
        """Bytes of the small buffers and whole slabs that are kept for reuse."""
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

    async def warm(
        self, byte_count: int, run_blocking: Callable[[Callable[[], _Slab]], Awaitable[_Slab]]
    ) -> None:
        """Have so much memory for large buffers at hand, and touched, before anybody asks for it.

        Args:
            byte_count: what is not kept idle is left out.
            run_blocking: calls a function in a thread.
        """
        for _ in range(byte_count // SLAB_BYTES):
            try:
                slab = await run_blocking(_touched_slab)
            except (OSError, MemoryError, RuntimeError) as error:  # no memory, or no thread
                log.info("no memory is touched beforehand: %r", error)
                return
            if (
                len(self._slabs) >= self._slab_count_max
                or self._idle_bytes + SLAB_BYTES > self._idle_bytes_max
            ):
                return
            self._slabs.append(slab)
            self._idle_bytes += SLAB_BYTES

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
                self._idle_bytes -= size
                return Lease(idle.pop(), length, self._generation)
            return Lease(_fresh(size), length, self._generation)
        except BaseException:  # no memory: nobody has it, and others may wait for room
            self._used_bytes -= size
            self._admit()
            raise

    def _cut(self, size: int, length: int) -> Lease | None:
        """Return a buffer of whole units out of the first slab that has room; None: there may be no further slab."""
        count = size // UNIT_BYTES
        first_runs, place = _FIRST_RUNS[count], _NOWHERE
        for slab in self._slabs:
            place = first_runs[slab.used]
            if place != _NOWHERE:
                break
        else:
            if len(self._slabs) >= self._slab_count_max:
                return None
            slab, place = _Slab(), 0
            self._slabs.append(slab)
            self._idle_bytes += SLAB_BYTES
        if not slab.used:
            self._idle_bytes -= SLAB_BYTES
        units = (1 << count) - 1 << place
        slab.used |= units
        start = place * UNIT_BYTES
        return Lease(slab.memory[start : start + size], length, self._generation, slab, units)

    def _keep(self, size: int, memory: memoryview) -> None:
        """Keep a small buffer for reuse, rather than those of sizes that were last asked for longer ago, or a slab."""
        while self._idle_bytes + size > self._idle_bytes_max:
            other = next((other for other, idle in self._idle.items() if idle), size)
            if other != size and size <= self._idle_bytes_max:
                self._idle[other].pop()
                self._idle_bytes -= other
            elif size > self._idle_bytes_max or not self._drop_slab():
                return
        self._idle.setdefault(size, []).append(memory)
        self._idle_bytes += size

    def _drop_slab(self) -> bool:
        """Unmap the last slab of which nothing is used; False: there is none."""
        for position in reversed(range(len(self._slabs))):
            if not self._slabs[position].used:
                del self._slabs[position]
                self._idle_bytes -= SLAB_BYTES
                return True
        return False

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
                    self._keep_slab()
        self._admit()

    def _keep_slab(self) -> None:
        """Count a slab as idle of which nothing is used any more, rather than small buffers; the last such one goes if they are too many."""
        self._idle_bytes += SLAB_BYTES
        if self._idle_bytes > self._idle_bytes_max:
            self._drop_slab()

    def disown(self) -> None:
        """Use no buffer again that is in use now; each is unmapped when nobody has it any more."""
        self._generation += 1
        self._slabs = [slab for slab in self._slabs if not slab.used]

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


def _fresh(size: int) -> memoryview:
    """Return new memory, in huge pages if it is large; unmapped when nobody has it any more."""
    memory = PlainMemory(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if size >= HUGE_BYTES:
        with suppress(OSError):  # a kernel without huge pages
            memory.madvise(mmap.MADV_HUGEPAGE)
    return memoryview(memory)


def _touched_slab() -> _Slab:
    slab = _Slab()
    touch(slab.memory)
    return slab
