"""Huge pages for memory of programs on machines that give memory files none:
asked for by hand, for what is written out of again and again.

A storage process copies what is written through a ring out of this process's memory, and out of
small pages that takes three to four times as long (decisions 0173, 0178).  Linux begins with giving
memory files no huge pages by itself, but puts them in the place of small ones where a process asks
for it (`MADV_COLLAPSE`, since 6.1): in a mapping that begins where a huge page might.

Invariants:
    - Only what has been written out of some times: one such exchange takes as long as some ten
      writes out of the same bytes are quicker for it.
    - Bytes stay what they are, and where they are, for all who have them mapped; who touches them
      meanwhile waits for the kernel.
    - The daemon's own control group is charged for the new pages: half of what it
      may have is left for the daemon.
    - It is a hint: wherever the kernel has no huge page to give all stays as it was, to be asked
      for again after four times as many writes.

Concurrency: `WornPages` belongs to the event loop; `exchange` may be called in any thread, and is
to be, since it takes milliseconds.
"""

import ctypes
import logging
import mmap
from collections.abc import Iterable, Sequence
from functools import partial
from operator import methodcaller
from typing import Final

import trio

from ...runtime.control_groups import GroupMemory, memory_limits
from ...runtime.plain_memory import PlainMemory

log = logging.getLogger(__name__)

HUGE_BYTES: Final = 2 << 20
"""A huge page; memory that is smaller stays in small ones."""

LARGE_BYTES_MIN: Final = 64 << 10
"""What is smaller is hardly ever lent."""

TIMES_MIN: Final = 4
"""So often a huge page's bytes are written before it is asked for;
then again whenever it is four times as often.
"""

LOOKED_AT_MAX: Final = 1024
"""Of these parts, in one batch: a program may have the same gigabytes written many
times over by one.
"""

STEP_BYTES: Final = 32 << 20
"""Exchanged before it is looked again how much room there is."""

ROOM_SHARE: Final = 2
"""Of what a control group of the daemon may have only so much may be in use for an exchange:
the kernel charges the group of the daemon for the new pages, and kills the daemon once it
needs more than is left for itself.
"""

_COLLAPSE: Final = 25
"""Of madvise, since Linux 6.1."""
_SPARE: Final = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
_FIXED: Final = 0x10
_FAILED: Final = ctypes.c_void_p(-1).value

_lost: Final[list[PlainMemory]] = []
"""Mappings of which the kernel may have given a part to somebody else: never to be given back."""


def aligned_mapping(fd: int, size: int) -> memoryview:
    """Return all `size` bytes of a memory file, mapped where a huge page could begin;
    ends with the last view of it.

    Up to HUGE_BYTES of addresses lie unused before and behind it.

    Raises:
        OSError: it cannot be mapped for reading and writing.
    """
    spare = PlainMemory(-1, size + HUGE_BYTES, _SPARE)
    begins = _address(memoryview(spare))
    skipped = -begins % HUGE_BYTES
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    place = libc.mmap(
        ctypes.c_void_p(begins + skipped),
        ctypes.c_size_t(size),
        mmap.PROT_READ | mmap.PROT_WRITE,
        mmap.MAP_SHARED | _FIXED,
        fd,
        ctypes.c_long(0),
    )
    if place == _FAILED:
        _lost.append(spare)  # the kernel may have unmapped what was there
        raise OSError(ctypes.get_errno(), f"{size} bytes cannot be mapped")
    mapping = memoryview(spare)[skipped : skipped + size]
    try:
        spare.madvise(mmap.MADV_HUGEPAGE, skipped, size)
    except OSError:  # a kernel without huge pages
        return mapping
    return mapping


class WornPages:
    """How much has been written out of each part of a memory that a huge page could hold."""

    def __init__(self, size: int) -> None:
        """Begin with nothing; `size` of the memory, in bytes."""
        self._written = [0] * (size // HUGE_BYTES)
        self._until = [TIMES_MIN * HUGE_BYTES] * len(self._written)

    def note(self, pieces: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
        """Count pieces, each told by where it begins and how long it is;
        return offset and length of what is to be exchanged now.
        """
        found: list[tuple[int, int]] = []
        left = LOOKED_AT_MAX
        for place, length in pieces:
            if left <= 0:
                break
            if length < LARGE_BYTES_MIN:
                continue
            first = place // HUGE_BYTES
            end = min((place + length - 1) // HUGE_BYTES + 1, len(self._written), first + left)
            for number in range(first, end):
                left -= 1
                start = number * HUGE_BYTES
                count = min(place + length, start + HUGE_BYTES) - max(place, start)
                self._written[number] += count
                if self._written[number] < self._until[number]:
                    continue
                self._until[number] *= TIMES_MIN
                if found and sum(found[-1]) == start:
                    start, _ = found.pop()
                found.append((start, (number + 1) * HUGE_BYTES - start))
        return found


def begin_exchange(parts: Sequence[memoryview]) -> None:
    """Begin what `exchange` does, part by part in one thread, where one is to be had:
    a batch in any order may have hundreds, and others need threads.
    """
    try:
        trio.lowlevel.start_thread_soon(partial(_exchange_all, parts), methodcaller("unwrap"))
    except RuntimeError as error:
        log.debug("%d parts stay in small pages: %s", len(parts), error)


def _exchange_all(parts: Sequence[memoryview]) -> None:
    for pages in parts:
        for start in range(0, len(pages), STEP_BYTES):
            step = pages[start : start + STEP_BYTES]
            if not has_room(len(step), memory_limits()):
                log.debug("%d parts stay in small pages: no room to be charged for", len(parts))
                return
            exchange(step)


def has_room(count: int, limits: Iterable[GroupMemory]) -> bool:
    """Return whether the control groups of the daemon may be charged
    for so many bytes of programs.
    """
    return all(group.used + count <= group.limit // ROOM_SHARE for group in limits)


def exchange(pages: memoryview) -> None:
    """Have the small pages of some whole huge ones replaced by these,
    without the interpreter's lock; what cannot be stays.
    """
    libc = ctypes.CDLL(None)
    libc.madvise(ctypes.c_void_p(_address(pages)), ctypes.c_size_t(len(pages)), _COLLAPSE)


def _address(memory: memoryview) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))
