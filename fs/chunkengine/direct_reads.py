"""Which large reads go past the page cache:
those of bytes that are not in it, and that nobody has read lately.

A direct read (O_DIRECT) has the disk put the bytes where they are wanted: no page of the host is
looked for, filled and copied, which is most of what a large read from the disk costs, and what lies
in the page cache for small reads stays there.  Who reads the same again finds that remembered and
reads through the page cache, so from the third time on it is found there.

Concurrency: thread-safe.
"""

import ctypes
import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import Final

from ..schema.status import FsError
from .direct_write import DIRECT_UNIT_BYTES
from .format import ChunkRecord, place_of
from .ports import DataFiles
from .read_values import ReadRows

REMEMBERED_COUNT: Final = 16 << 10
"""Reads that are remembered, some 150 bytes each: the last 16 GiB, if they are of 1 MiB."""


class DirectReads:
    """See module head."""

    def __init__(self, files: DataFiles, checksum_block_bytes: int, bytes_min: int) -> None:
        """Take the files of a disk; reads of at least `bytes_min` bytes are looked at,
        none if that is 0.
        """
        self._files = files
        self._block = checksum_block_bytes
        self._bytes_min = bytes_min
        self._remembered: OrderedDict[int, None] = OrderedDict()
        self._lock = threading.Lock()

    def choose(
        self, chunks: Mapping[int, ChunkRecord | None], rows: ReadRows, view: memoryview
    ) -> list[int]:
        """Return the positions of the rows that are to be read past the page cache,
        and remember them.

        Args:
            chunks: what rows name, by number.
            rows: the reads.
            view: where their bytes go.
        """
        bytes_min = self._bytes_min
        if not bytes_min or max(rows.lengths, default=0) < bytes_min:
            return []
        address = ctypes.addressof(ctypes.c_char.from_buffer(view))
        return [
            position
            for position, (number, offset, length, end) in enumerate(zip(*rows, strict=True))
            if length >= bytes_min
            and not (address + end - length) % DIRECT_UNIT_BYTES
            and (chunk := chunks[number]) is not None
            and self._is_whole(chunk, offset, length)
            and self._is_new(chunk, offset)
            and not self._is_cached(chunk, offset + length // 2)
        ]

    def _is_whole(self, chunk: ChunkRecord, offset: int, length: int) -> bool:
        """Return whether a read is of whole checksum blocks, and of whole pages."""
        units = (self._block, DIRECT_UNIT_BYTES)
        is_whole = not any(offset % unit or length % unit for unit in units)
        return is_whole and offset + length <= chunk.length and not chunk.is_damaged

    def _is_new(self, chunk: ChunkRecord, offset: int) -> bool:
        """Return whether this was not read lately, and remember it.

        Blocks are used again, and most versions are the first of their chunk: it is the
        digest that tells them apart.
        """
        key = _key(chunk, offset)
        with self._lock:
            is_new = key not in self._remembered
            self._remember(key)
        return is_new

    def may_lend(self, chunk: ChunkRecord, offset: int, length: int) -> bool:
        """Return whether a read would go past the page cache if nothing of it is there;
        it is not remembered yet.
        """
        bytes_min = self._bytes_min
        if not bytes_min or length < bytes_min or not self._is_whole(chunk, offset, length):
            return False
        with self._lock:
            return _key(chunk, offset) not in self._remembered

    def remember(self, reads: Iterable[tuple[ChunkRecord, int]]) -> None:
        """Remember reads from some offsets of chunks."""
        keys = [_key(chunk, offset) for chunk, offset in reads]
        with self._lock:
            for key in keys:
                self._remember(key)

    def _remember(self, key: int) -> None:
        """Do so; the caller has the lock."""
        self._remembered[key] = None
        self._remembered.move_to_end(key)
        if len(self._remembered) > REMEMBERED_COUNT:
            self._remembered.popitem(last=False)

    def _is_cached(self, chunk: ChunkRecord, offset: int) -> bool:
        """Return whether a page is in the page cache; it stands for those around it."""
        file_id, start = place_of(chunk.position)
        page = memoryview(bytearray(DIRECT_UNIT_BYTES))
        try:
            return self._files.read_cached_at(
                file_id, start + offset - offset % DIRECT_UNIT_BYTES, [page]
            )
        except FsError:  # who reads it is told
            return True


def _key(chunk: ChunkRecord, offset: int) -> int:
    return hash((chunk.position, chunk.version, chunk.digest, offset))
