"""Large buffers whose memory is used again once nobody refers to them any more.

Fresh memory costs a fault for each page, which is cleared first: for bytes that only pass
through, more than any of their copies.  Who holds a buffer need not say when it is done with
it, as with `BufferPool`: what was read ahead is shared with replies under way, and what was
written with those who send it.

Memory begins with a page, and lies in huge pages where it is as large
as one and the kernel has some.

Invariants:
    - Memory is handed out again only when no view of it is left.
    - What is kept for that sums to `idle_bytes_max` at the most, but for what two
      threads let go in the same moment.

Concurrency: thread-safe; the last view may go in any thread.
"""

import ctypes
import mmap
from contextlib import suppress
from typing import Any, Final

from .plain_memory import PlainMemory

RECYCLED_BYTES_MIN: Final = 128 * 1024
"""Smaller buffers are made anew, by what keeps small memory anyway."""

_HUGE_BYTES: Final = 2 * 1024 * 1024


class RecycledMemory:
    """Hands out buffers; see module head."""

    def __init__(self, idle_bytes_max: int) -> None:
        self._idle_bytes_max = idle_bytes_max
        self._idle: dict[int, list[mmap.mmap]] = {}
        self._kinds: dict[int, Any] = {}

    @property
    def idle_bytes(self) -> int:
        """Bytes kept to be used again."""
        return sum(size * len(idle) for size, idle in list(self._idle.items()))

    def take(self, length: int) -> memoryview:
        """Return a writable buffer of `length` bytes, which may hold anything."""
        if length < RECYCLED_BYTES_MIN:
            return memoryview(bytearray(length))
        size = 1 << (length - 1).bit_length()
        kind = self._kinds.get(size)
        if kind is None:
            kind = self._kind(size)
        try:
            memory = self._idle[size].pop()
        except IndexError:
            memory = _fresh(size)
        lent = kind.from_buffer(memory)
        lent.memory = memory
        view = memoryview(lent).cast("B")
        return view if length == size else view[:length]

    def _has_room(self, size: int) -> bool:
        """Make room for one more of a size, where others have it:
        what is let go now is what will be wanted next.
        """
        excess = self.idle_bytes + size - self._idle_bytes_max
        if size > self._idle_bytes_max:
            return False
        for other, idle in list(self._idle.items()):
            with suppress(IndexError):  # no more of these
                while other != size and excess > 0:
                    idle.pop()
                    excess -= other
        return excess <= 0

    def _kind(self, size: int) -> Any:
        """Return what stands between memory and its views, and ends with the last of them;
        made once for each size.
        """
        idle = self._idle.setdefault(size, [])

        def end(lent: Any) -> None:
            if self._has_room(size):
                idle.append(lent.memory)

        kind = self._kinds[size] = type(
            "Lent", (ctypes.c_char * size,), {"__del__": end, "is_plain": True}
        )
        return kind


def _fresh(size: int) -> mmap.mmap:
    memory = PlainMemory(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if size >= _HUGE_BYTES:
        with suppress(OSError):  # a kernel without huge pages
            memory.madvise(mmap.MADV_HUGEPAGE)
    return memory
