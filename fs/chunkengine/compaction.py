"""Compaction: moves the chunks of sparse groups together and returns the space that becomes free.

A move copies the committed version into another block, verified on the way, and changes the chunk's
record to name that block: same version, same bytes, one batch.  To the crash rules
(fs/chunkengine/engine.py) it is an update like any other:

a. The batch stores the record it replaces for undo; if a power loss tears the copy, `open` goes
   back to the old block.
b. The old block is quarantined until the move is durable, and a group is only punched when all its
   blocks have left the quarantine.  A reader that was there first keeps the old block pinned.
c. Pending versions are not moved, and nothing is moved under them: a chunk with one, or being
   prepared, is left alone.
d. Bytes that do not match are not copied.  The caller hears of them.

An update that begins while a chunk is copied wins: the copy is given up.  Nothing is moved while
all space that is free is kept at hand (fs/chunkengine/space.py): it would not go back to the disk.

Does not pace itself: the engine has no clock.  Concurrency: one compaction at
a time; beside everything else.
"""

import logging
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from msgspec.structs import replace

from ..schema.ids import ChunkId, TargetId
from ..schema.status import FsError, Status
from .books import Books
from .compaction_plan import groups_to_empty
from .disk_use import Compacted
from .format import (
    BLOCKS_PER_GROUP,
    ChunkKey,
    ChunkRecord,
    Position,
    chunk_id_of_key,
    make_position,
    place_of,
    position_key,
    size_class_of_position,
    target_of_key,
)
from .ports import DataFiles, MetaStore
from .space import BlockSpace
from .verified import VerifiedReader

_log = logging.getLogger(__name__)

COPY_BYTES: Final = 4 << 20
"""Copied at a time; a whole number of checksum blocks."""


@dataclass(slots=True)
class _Progress:
    bytes_max: int
    moved_count: int = 0
    moved_bytes: int = 0
    tried_bytes: int = 0
    """Those, and what was copied in vain."""
    skipped_count: int = 0
    damaged: list[tuple[TargetId, ChunkId]] = field(default_factory=list)

    @property
    def is_spent(self) -> bool:
        return self.tried_bytes >= self.bytes_max


class Compactor:
    """Compaction of one disk."""

    def __init__(
        self,
        meta: MetaStore,
        files: DataFiles,
        books: Books,
        space: BlockSpace,
        reader: VerifiedReader,
    ) -> None:
        self._meta = meta
        self._files = files
        self._books = books
        self._space = space
        self._reader = reader
        self._lock = threading.Lock()

    def run(self, bytes_max: int, sync: Callable[[], None], limit: Callable[[], None]) -> Compacted:
        """See `ChunkEngine.compact`; `sync` flushes the disk,
        `limit` does when the epoch has grown large.
        """
        with self._lock:
            with self._books as ledger:
                reserved = ledger.allocator.reserved_bytes()
                size_classes = range(len(ledger.allocator.classes))
            progress = _Progress(bytes_max)
            for size_class in size_classes if self._space.has_surplus() else ():
                self._compact_class(size_class, progress, limit)
            is_finished = not progress.is_spent or not progress.moved_count
            if is_finished:
                if progress.moved_count:
                    sync()
                self._space.trim()
            with self._books as ledger:
                freed = max(0, reserved - ledger.allocator.reserved_bytes())
        return Compacted(
            progress.moved_count,
            progress.moved_bytes,
            freed,
            progress.skipped_count,
            tuple(progress.damaged),
            is_finished,
        )

    def _compact_class(
        self, size_class: int, progress: _Progress, limit: Callable[[], None]
    ) -> None:
        with self._books as ledger:
            blocks = ledger.allocator.classes[size_class]
            chosen = groups_to_empty(blocks.uses(), blocks_per_group=blocks.blocks_per_group)
        avoid = frozenset(chosen)
        for number in chosen:
            for position, key in self._owners(size_class, number):
                if progress.is_spent:
                    return
                self._move(key, position, avoid, progress)
                limit()

    def _owners(self, size_class: int, number: int) -> Iterator[tuple[Position, ChunkKey]]:
        first = make_position(size_class, number, 0)
        end = Position(first + BLOCKS_PER_GROUP)
        for stored, key in self._meta.scan(position_key(first), position_key(end)):
            yield Position(int.from_bytes(stored[1:], "big")), ChunkKey(key)

    def _move(
        self, key: ChunkKey, position: Position, avoid: frozenset[int], progress: _Progress
    ) -> None:
        """Move one chunk out of a block, if it may be moved and there is room."""
        with self._books as ledger:
            record = ledger.record(key)
            is_movable = record is not None and record.position == position
            if record is None or not is_movable or record.is_damaged or ledger.is_changing(key):
                progress.skipped_count += 1
                return
            ledger.readers.pin(record)
        try:
            copy = self._space.allocate_elsewhere(key, size_class_of_position(position), avoid)
            if copy is not None:
                progress.tried_bytes += record.length
            if copy is not None and self._copy_to(key, record, copy, progress):
                progress.moved_count += 1
                progress.moved_bytes += record.length
            else:
                progress.skipped_count += 1
        finally:
            with self._books.lock:
                self._books.ledger.readers.unpin(record)

    def _copy_to(
        self, key: ChunkKey, record: ChunkRecord, copy: Position, progress: _Progress
    ) -> bool:
        """Copy a version and make the copy the chunk's; False: it stays where it is."""
        is_copied = False
        try:
            is_copied = self._copy_bytes(key, record, copy, progress)
        finally:
            if not is_copied:
                with self._books.lock:
                    self._books.ledger.abandon(copy)
        if not is_copied:
            return False
        with self._books as ledger:
            if ledger.record(key) != record or ledger.is_changing(key):
                ledger.abandon(copy)
                return False
            ledger.change(key, replace(record, position=copy), None, has_written=True)
        return True

    def _copy_bytes(
        self, key: ChunkKey, record: ChunkRecord, copy: Position, progress: _Progress
    ) -> bool:
        """Copy verified bytes piece by piece; False if the old ones are bad,
        or there is no room for the new.
        """
        file_id, start = place_of(copy)
        for at in range(0, record.length, COPY_BYTES):
            try:
                piece = self._reader.read(record, at, min(at + COPY_BYTES, record.length))
            except FsError as error:
                _log.error("chunk %s is not moved: %s", chunk_id_of_key(key), error)
                if error.status is not Status.OUT_OF_RESOURCES:
                    progress.damaged.append((target_of_key(key), chunk_id_of_key(key)))
                return False
            try:
                self._files.write_at(file_id, start + at, [piece])
            except FsError as error:
                if error.status is not Status.NO_SPACE:
                    raise
                return False
        return True
