"""Memory of the processes of a simulated network, as they lend it to each other;
part of transport_memory.py.

It is read when it is read, not when the request is sent.  What is lent no more, but is read all the
same because a request was given up while it was under way, may hold the same bytes, others, or be
no memory at all: its owner uses it for something else.

Concurrency: one event loop; deterministic with a seed.
"""

import errno
import os
import random
from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import Final

from ..kernels.lent import NONCE_BYTES, PIECE, RANGE
from ..runtime.ports import Buffer, FileSource

_FIRST_PLACE: Final = 1 << 20
_STALE_COUNT_MAX: Final = 256
"""Pieces that are lent no more, of which it is remembered what they held."""


class SimulatedMemory:
    """Of all processes together; see `fs.runtime.ports.PeerMemory`."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(f"{seed}/lent")  # noqa: S311 - reproducible on purpose
        self._next_place = _FIRST_PLACE
        self._held: dict[int, Buffer] = {}
        self._stale: deque[int] = deque()
        self._sources: dict[int, FileSource] = {}
        self._stale_sources: deque[int] = deque()
        self.read_count = 0
        self.range_count = 0
        """Reads of ranges of files."""
        self.direct_count = 0
        """Replies whose ranges were read so from the disk."""
        self.changed_count = 0
        """Reads of memory that held something else than what was lent."""

    def fresh_nonce(self) -> bytes:
        """See PeerMemory."""
        return self._random.randbytes(NONCE_BYTES)

    def pieces_of(self, buffers: Sequence[Buffer]) -> bytes:
        """See PeerMemory."""
        packed = []
        for buffer in buffers:
            packed.append(PIECE.pack(self._next_place, len(buffer)))
            self._held[self._next_place] = buffer
            self._next_place += len(buffer) + 1
        return b"".join(packed)

    def may_change(self, pieces: bytes) -> None:
        """See PeerMemory: from now on it is as it comes."""
        for place, length in PIECE.iter_unpack(pieces):
            data = self._held[place]
            self._stale.append(place)
            match self._random.randrange(3):
                case 0:
                    self._held[place] = bytes(data)
                case 1:
                    self._held[place] = self._random.randbytes(length)
                case _:
                    del self._held[place]
        while len(self._stale) > _STALE_COUNT_MAX:
            self._held.pop(self._stale.popleft(), None)

    def read(self, pieces: bytes, skip: int, into: memoryview, place: int, nonce: bytes) -> None:
        """See PeerMemory."""
        self.read_count += 1
        if self._held.get(place) != nonce:
            raise OSError(errno.ESRCH, "no such nonce there")
        places = [found for found, _ in PIECE.iter_unpack(pieces)]
        self.changed_count += any(found in self._stale for found in places)
        if any(found not in self._held for found in places):
            raise OSError(errno.EFAULT, "no memory there")
        whole = b"".join(self._held[found] for found in places)
        into[:] = whole[skip : skip + len(into)]

    def number_of(self, source: FileSource) -> int:
        """See PeerMemory."""
        self._next_place += 1
        self._sources[self._next_place] = source
        return self._next_place

    def sources_may_change(self, numbers: Sequence[int]) -> None:
        """See PeerMemory: what is read there later is what the file has then,
        if it is still one.
        """
        for number in numbers:
            self._stale_sources.append(number)
            if not self._random.randrange(3):
                del self._sources[number]
        while len(self._stale_sources) > _STALE_COUNT_MAX:
            self._sources.pop(self._stale_sources.popleft(), None)

    def read_ranges(
        self, ranges: Buffer, buffers: Sequence[memoryview], place: int, nonce: bytes
    ) -> None:
        """See PeerMemory."""
        self._read_ranges(ranges, buffers, os.RWF_NOWAIT)
        self.read(b"", 0, memoryview(bytearray()), place, nonce)

    def read_direct(
        self, ranges: Buffer, buffers: Sequence[memoryview], place: int, nonce: bytes
    ) -> None:
        """See PeerMemory."""
        self._read_ranges(ranges, buffers, 0)
        self.direct_count += 1
        self.read(b"", 0, memoryview(bytearray()), place, nonce)

    def _read_ranges(self, ranges: Buffer, buffers: Sequence[memoryview], flags: int) -> None:
        whole = b"".join(self._read_range(*one, flags=flags) for one in RANGE.iter_unpack(ranges))
        start = 0
        for buffer in buffers:
            buffer[:] = whole[start : start + len(buffer)]
            start += len(buffer)

    def _read_range(self, number: int, offset: int, length: int, *, flags: int) -> bytes:
        self.range_count += 1
        self.changed_count += number in self._stale_sources
        source = self._sources.get(number)
        if source is None:
            raise OSError(errno.EBADF, "no such file")
        into = bytearray(length)
        read = partial(os.preadv, source) if isinstance(source, int) else source
        if read([memoryview(into)], offset, flags) != length:
            raise BlockingIOError(errno.EAGAIN, "not all of it is there")
        return bytes(into)
