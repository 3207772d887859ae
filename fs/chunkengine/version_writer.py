"""Puts the bytes of new versions where they are to lie: behind the old ones, or into a block of their own.

A large version that comes whole, into a block of its own, is written past the page cache, straight out of the buffer it was
received into: the copy, and finding memory for it, cost a storage process more than all else of such an update.  What is left of
it behind the last whole 4 KiB, and all other bytes, go through the page cache.

Invariants:
    - In place, no byte below the old length is written.
    - A block whose write has failed is free again; nothing names it.

Concurrency: thread-safe; updates of one chunk are serialised by the caller, who keeps the old version's block.
"""

from collections.abc import Callable, Sequence
from typing import Final

from ..runtime.ports import Buffer
from ..schema.status import FsError
from .books import Books
from .content import UpdatePlan, new_content
from .format import NO_POSITION, ChunkKey, ChunkRecord, Position, place_of, size_class_of
from .ports import DataFiles
from .space import BlockSpace
from .verified import VerifiedReader

WRITE_BEHIND_BYTES_MIN: Final = 128 << 10
"""Updates of at least this many bytes are on their way to the disk at once: else it idles until the next flush, which
then waits for all of them.  Smaller ones may be overwritten, or grow together, before that; so are copies for their sake."""

Sync = Callable[[], None]


class VersionWriter:
    """Writes of one disk."""

    def __init__(
        self,
        files: DataFiles,
        books: Books,
        space: BlockSpace,
        reader: VerifiedReader,
        direct_bytes_min: int,
    ) -> None:
        """Take the parts of an engine; versions of `direct_bytes_min` bytes on, if not 0, are written past the page cache."""
        self._files = files
        self._books = books
        self._space = space
        self._reader = reader
        self._direct_bytes_min = direct_bytes_min

    def goes_past_cache(self, length: int) -> bool:
        """Return whether a new version of so many bytes waits for the disk instead of for memory."""
        return 0 < self._direct_bytes_min <= length

    def write_update(
        self,
        key: ChunkKey,
        base: ChunkRecord | None,
        plan: UpdatePlan,
        data: Buffer,
        *,
        sync: Sync,
    ) -> tuple[Position, bytes]:
        """Write the bytes of an update; return where the new version lies and its checksums."""
        empty = memoryview(b"")
        head = self._reader.read(base, plan.head_from, plan.head_to) if base else empty
        tail = self._reader.read(base, plan.tail_from, plan.old_length) if base else empty
        old_checksums = base.checksums if base else b""
        parts, checksums = new_content(plan, old_checksums, head, tail, data)
        direct_bytes = 0
        if plan.is_in_place:
            position = base.position if base else NO_POSITION
            if parts:
                file_id, start = place_of(position)
                self._files.write_at(file_id, start + plan.old_length, parts)
        else:
            is_create = base is None
            position, direct_bytes = self._write_new(
                key, parts, plan.new_length, is_create=is_create, sync=sync
            )
        if len(data) - direct_bytes >= max(WRITE_BEHIND_BYTES_MIN, sum(map(len, parts)) // 2):
            file_id, start = place_of(position)
            self._files.begin_write_back(file_id, start + plan.offset, len(data))
        return position, checksums

    def write_new(
        self, key: ChunkKey, parts: Sequence[Buffer], length: int, *, is_create: bool, sync: Sync
    ) -> Position:
        """Write a version into a block of its own; on failure the block is free again.

        Args:
            key: the chunk.
            parts: the bytes of the version, one after the other.
            length: how many these are.
            is_create: the chunk is new, which takes more free space.
            sync: flushes the disk, to free blocks when it is full.
        """
        return self._write_new(key, parts, length, is_create=is_create, sync=sync)[0]

    def _write_new(
        self, key: ChunkKey, parts: Sequence[Buffer], length: int, *, is_create: bool, sync: Sync
    ) -> tuple[Position, int]:
        """As `write_new`; also return how many of the bytes went past the page cache."""
        direct_bytes = 0
        if not length:
            return NO_POSITION, direct_bytes
        position = self._space.allocate(key, size_class_of(length), is_create=is_create, sync=sync)
        file_id, start = place_of(position)
        try:
            if len(parts) == 1 and self.goes_past_cache(length):
                direct_bytes = self._files.write_past_cache(file_id, start, parts[0])
                start += direct_bytes
                parts = [memoryview(parts[0])[direct_bytes:]] if direct_bytes < length else []
            if parts:
                self._files.write_at(file_id, start, parts)
        except FsError:
            with self._books.lock:
                self._books.ledger.abandon(position)
            raise
        return position, direct_bytes
