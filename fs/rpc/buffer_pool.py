"""Page-aligned buffers for payloads, received or to be sent; reused and bounded.

A buffer is anonymous memory from `mmap`, so it may be handed to O_DIRECT writes.  Sizes are powers of two
from one page up, so that a buffer serves many payload sizes; the view handed out has the exact length.

Large buffers are huge pages where the kernel has some: touching them first takes a sixth of the time, and a disk takes 4 MiB of
them in one request instead of four.  Buffers of half a huge page are made in pairs.

Invariants:
    - Buffers in use never sum to more than `bytes_max`, except that one buffer alone may be larger.
    - A buffer in use at a `disown` is never used again: somebody may write into it who cannot be stopped.
    - Kept (idle) buffers never sum to more than `idle_bytes_max`.

Concurrency: trio; `acquire` waits in line, `release` never waits.
"""

import mmap
from collections import deque
from contextlib import suppress
from typing import Final

import trio

from ..runtime.plain_memory import PlainMemory

SIZE_MIN: Final = mmap.PAGESIZE
IDLE_BYTES_MAX: Final = 96 * 1024 * 1024
"""Two full groups of writes to each of six chains, which a busy storage process receives again and again."""

HUGE_BYTES: Final = 2 * 1024 * 1024
"""A huge page; a half of it is the smallest buffer that lies in one."""


class Lease:
    """One buffer in use: `view` has the asked length; give it back once, by `BufferPool.release`."""

    __slots__ = ("generation", "memory", "size", "view")

    def __init__(self, memory: memoryview, size: int, length: int, generation: int) -> None:
        self.memory = memory
        self.size = size
        self.generation = generation
        self.view = memory[:length]


class BufferPool:
    """Hands out page-aligned buffers."""

    def __init__(self, bytes_max: int, *, idle_bytes_max: int = IDLE_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._idle_bytes_max = idle_bytes_max
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
        """Bytes of the buffers kept for reuse."""
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
        idle = self._idle.pop(size, None)
        if idle:
            self._idle[size] = idle  # behind the sizes that nobody has asked for since
            self._idle_bytes -= size
            return Lease(idle.pop(), size, length, self._generation)
        has_room = self._idle_bytes + size <= self._idle_bytes_max
        try:
            memory, *twin = _fresh(size, may_have_twin=has_room)
        except BaseException:  # no memory: nobody has it, and others may wait for room
            self._used_bytes -= size
            self._admit()
            raise
        for other in twin:
            self._keep(size, other)
        return Lease(memory, size, length, self._generation)

    def _keep(self, size: int, memory: memoryview) -> None:
        """Keep a buffer for reuse, rather than those of sizes that were last asked for longer ago."""
        while self._idle_bytes + size > self._idle_bytes_max:
            other = next((other for other, idle in self._idle.items() if idle), size)
            if other == size or size > self._idle_bytes_max:
                return
            self._idle[other].pop()
            self._idle_bytes -= other
        self._idle.setdefault(size, []).append(memory)
        self._idle_bytes += size

    def release(self, lease: Lease) -> None:
        """Take a buffer back; its contents may be overwritten at once."""
        self._used_bytes -= lease.size
        if lease.generation == self._generation:
            lease.view.release()
            self._keep(lease.size, lease.memory)
        self._admit()

    def disown(self) -> None:
        """Use no buffer again that is in use now; each is unmapped when nobody has it any more."""
        self._generation += 1

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
    return max(SIZE_MIN, 1 << (length - 1).bit_length())


def _fresh(size: int, *, may_have_twin: bool) -> list[memoryview]:
    """Return a new buffer, and its twin if there is one; they are unmapped when nobody has them any more."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    if size < (HUGE_BYTES // 2 if may_have_twin else HUGE_BYTES):
        return [memoryview(PlainMemory(-1, size, flags))]
    memory = PlainMemory(-1, max(size, HUGE_BYTES), flags)
    with suppress(OSError):  # a kernel without huge pages
        memory.madvise(mmap.MADV_HUGEPAGE)
    view = memoryview(memory)
    return [view[at : at + size] for at in range(0, len(view), size)]
