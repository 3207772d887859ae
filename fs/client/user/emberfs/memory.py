"""Memory that a program shares with the mount daemon, found again by address.

A buffer belongs to shared memory when its bytes lie there, whatever object it is a view of: a
memoryview, a numpy array, a tensor.  Memory lives as long as anything refers to it; what nothing
refers to any more is dropped at the next call.

Invariant: memory that has gone is never found, though other memory may have its address since.
"""

import mmap
import os
import weakref
from bisect import bisect_right
from collections import deque
from ctypes import addressof, c_char, memmove
from typing import Final

LONG_COPY_BYTES: Final = 256 << 10
"""Less takes no longer than a change of threads."""


def address_of(buffer: memoryview) -> int | None:
    """Return where the bytes of a buffer lie; None where
    that cannot be told (read-only or empty).
    """
    if buffer.readonly or not buffer.nbytes:
        return None
    return addressof(c_char.from_buffer(buffer))


def copy(source: memoryview, target: memoryview) -> None:
    """Put the bytes of a writable buffer at the start of another one;
    others have the interpreter meanwhile if it takes long.
    """
    count = source.nbytes
    if count < LONG_COPY_BYTES:
        target[:count] = source
        return
    if target.nbytes < count:
        raise ValueError(f"{count} bytes into {target.nbytes}")
    # Assigned, nobody else would come to run while the kernel finds pages for `target`.  As long as
    # these live nobody can let go of either.
    to, out_of = c_char.from_buffer(target), c_char.from_buffer(source)
    memmove(addressof(to), addressof(out_of), count)


class Region:
    """Shared memory; refers to the mapping only weakly, for what lives by its users' views."""

    __slots__ = ("__weakref__", "_mapping", "base", "block_size", "fd", "id", "is_closing", "size")

    def __init__(self, mapping: mmap.mmap, fd: int, block_size: int) -> None:
        """Take over `fd`, the memory file."""
        self.base = addressof(c_char.from_buffer(mapping))
        self.size = len(mapping)
        self.block_size = block_size
        self.fd = fd
        self.id = 0
        """At the daemon, for the present connection; 0: it does not know of it."""
        self.is_closing = False
        """Set by who unmaps it, before."""
        self._mapping = weakref.ref(mapping)

    @property
    def is_there(self) -> bool:
        """Whether bytes at its addresses are its own."""
        return not self.is_closing and self._mapping() is not None


class Regions:
    """All shared memory of a client, by address.

    Guarded by its owner's lock, but for `find_again` and the end of a mapping.
    """

    def __init__(self) -> None:
        self._bases: list[int] = []
        self._regions: dict[int, Region] = {}
        self._ended: deque[Region] = deque()
        self._last: tuple[weakref.ref[memoryview], tuple[Region, int]] | None = None
        """The view that was found last, and what was found; set and read in one step."""

    def add(self, mapping: mmap.mmap, region: Region) -> None:
        """Take a region in until its mapping goes."""
        self._regions[region.base] = region
        self._bases = sorted(self._regions)
        weakref.finalize(mapping, _note_end, region, self._ended).atexit = False

    def find(self, buffer: memoryview) -> tuple[Region, int] | None:
        """Return the region that a buffer lies in, and where in it; None: in none."""
        address = address_of(buffer) if self._bases else None
        if address is None:
            return None
        index = bisect_right(self._bases, address) - 1
        if index < 0:
            return None
        region = self._regions[self._bases[index]]
        start = address - region.base
        if start + buffer.nbytes > region.size or not region.is_there:
            return None
        found = region, start
        self._last = weakref.ref(buffer), found
        return found

    def find_again(self, buffer: memoryview) -> tuple[Region, int] | None:
        """Return what `find` does if it is the view that was found last, which lies where it lay;
        None: ask `find`.

        Needs no lock.
        """
        last = self._last
        if last is None or last[0]() is not buffer:
            return None
        found = last[1]
        return found if found[0].is_there else None

    def take_ended(self) -> list[Region]:
        """Forget and return the regions whose mapping has gone."""
        ended = []
        while self._ended:
            region = self._ended.popleft()
            if self._regions.get(region.base) is region:
                del self._regions[region.base]
                self._bases = sorted(self._regions)
            ended.append(region)
        return ended

    def forget_ids(self) -> None:
        """A new connection knows of none."""
        for region in (*self._regions.values(), *self._ended):
            region.id = 0


def _note_end(region: Region, ended: deque[Region]) -> None:
    """Runs wherever the last reference goes, so it takes no lock."""
    os.close(region.fd)
    ended.append(region)
