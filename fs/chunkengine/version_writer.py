"""Puts the bytes of new versions where they are to lie:
behind the old ones, or into a block of their own.

A large version that comes whole, into a block of its own, is written past the page cache, straight
out of the buffer it was received into: the copy, and finding memory for it, cost a storage process
more than all else of such an update.  What is left of it behind the last whole 4 KiB, and all other
bytes, go through the page cache.

Invariants:
    - In place, no byte below the old length is written.
    - A block whose write has failed is free again; nothing names it.

Concurrency: thread-safe; updates of one chunk are serialised by the caller, who
keeps the old version's block.
"""

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from ..runtime.ports import Buffer
from .books import Books
from .content import UpdatePlan, new_content
from .format import NO_POSITION, ChunkKey, ChunkRecord, FileId, Position, place_of, size_class_of
from .ports import DataFiles
from .ranges import Range, ranged_content
from .space import BlockSpace
from .verified import VerifiedReader

WRITE_BEHIND_BYTES_MIN: Final = 128 << 10
"""Updates of at least this many bytes are on their way to the disk at once: else it idles until the
next flush, which then waits for all of them.  Smaller ones may be overwritten, or grow together,
before that; so are copies for their sake.
"""

Sync = Callable[[], None]


class Job(NamedTuple):
    """The bytes of one new version."""

    key: ChunkKey
    base: ChunkRecord | None
    plan: UpdatePlan
    data: Buffer
    ranges: Sequence[Range] = ()
    """Not empty: what `data` is cut into."""

    @property
    def is_whole(self) -> bool:
        """Whether `data` is all of the version, which gets a block of its own."""
        plan = self.plan
        if self.ranges:
            return False
        return plan.offset == 0 and plan.data_end == plan.new_length and not plan.is_in_place


class VersionWriter:
    """Writes of one disk."""

    def __init__(
        self,
        files: DataFiles,
        books: Books,
        space: BlockSpace,
        reader: VerifiedReader,
        *,
        block: int,
        direct_bytes_min: int,
    ) -> None:
        """Take the parts of an engine; versions of `direct_bytes_min` bytes on, if not 0,
        are written past the page cache.

        `block`: size of its checksum blocks.
        """
        self._files = files
        self._books = books
        self._space = space
        self._reader = reader
        self._block = block
        self._direct_bytes_min = direct_bytes_min

    def writes_at_once(self, position: Position, length: int) -> bool:
        """Return whether a new version of so many bytes would only be copied to memory
        of the kernel, without a wait; a hint.
        """
        return not self._goes_past_cache(length) and self._files.is_open(place_of(position)[0])

    def _goes_past_cache(self, length: int) -> bool:
        """Return whether a new version of so many bytes waits
        for the disk instead of for memory.
        """
        return 0 < self._direct_bytes_min <= length

    def write(self, jobs: Sequence[Job], *, sync: Sync) -> list[tuple[Position, bytes]]:
        """Write the bytes of several updates of different chunks, large whole versions together.

        Returns:
            Where each new version lies, and its checksums.

        Raises:
            FsError: as `write_new`, whichever of them it is about; the blocks
                of all are free again then.
        """
        together = [
            job for job in jobs if job.is_whole and self._goes_past_cache(job.plan.new_length)
        ]
        found: dict[ChunkKey, tuple[Position, bytes]] = {}
        try:
            for job in together:  # all of them first: neighbours are written by one call
                found[job.key] = self._allocate(job, sync), b""
            self._write_together(together, found)
            for job in jobs:
                if job.key not in found:
                    self._write_alone(job, found, sync)
        except BaseException:
            self._abandon(jobs, found)
            raise
        return [found[job.key] for job in jobs]

    def _allocate(self, job: Job, sync: Sync) -> Position:
        return self._space.allocate(
            job.key, size_class_of(job.plan.new_length), is_create=job.base is None, sync=sync
        )

    def _abandon(self, jobs: Sequence[Job], found: dict[ChunkKey, tuple[Position, bytes]]) -> None:
        """Free the blocks of versions that will never be recorded;
        one that grew in place has none of its own.
        """
        positions = [
            found[job.key][0] for job in jobs if job.key in found and not job.plan.is_in_place
        ]
        for position in positions:
            self.free(position)

    def _write_together(
        self, jobs: Sequence[Job], found: dict[ChunkKey, tuple[Position, bytes]]
    ) -> None:
        """Write whole versions to the blocks that have been found for them,
        and note their checksums.
        """
        places = [(*place_of(found[job.key][0]), job.data) for job in jobs]
        if not places:
            return
        written = self._files.write_past_cache(places, self._block)
        for job, (file_id, start, data), (count, checksums) in zip(
            jobs, places, written, strict=True
        ):
            left = memoryview(data)[count:]
            if len(left):
                self._files.write_at(file_id, start + count, [left])
                self._begin_write_back(file_id, start + count, len(left), len(data))
            found[job.key] = found[job.key][0], checksums

    def _write_alone(
        self, job: Job, found: dict[ChunkKey, tuple[Position, bytes]], sync: Sync
    ) -> None:
        """Write the bytes of an update, with what it keeps of the old version,
        and note where they are.
        """
        if job.ranges:
            self._write_ranges(job, found, sync)
            return
        key, base, plan, data, _ = job
        empty = memoryview(b"")
        head = self._reader.read(base, plan.head_from, plan.head_to) if base else empty
        tail = self._reader.read(base, plan.tail_from, plan.old_length) if base else empty
        old_checksums = base.checksums if base else b""
        parts, checksums = new_content(plan, old_checksums, head, tail, data)
        if plan.is_in_place:
            position = base.position if base else NO_POSITION
            if parts:
                file_id, start = place_of(position)
                self._files.write_at(file_id, start + plan.old_length, parts)
        else:
            is_create = base is None
            position = self.write_new(key, parts, plan.new_length, is_create=is_create, sync=sync)
        found[key] = position, checksums
        if position != NO_POSITION:
            file_id, start = place_of(position)
            about = start + plan.offset, len(data), sum(map(len, parts))
            self._begin_write_back(file_id, *about)

    def _write_ranges(
        self, job: Job, found: dict[ChunkKey, tuple[Position, bytes]], sync: Sync
    ) -> None:
        """Write an update of several ranges: as one copy, by way of the page cache,
        since the next one begins by reading it.
        """
        key, base, plan, data, ranges = job
        old = self._reader.read(base, 0, base.length) if base else memoryview(b"")
        old_checksums = base.checksums if base else b""
        parts, checksums = ranged_content(
            plan, ranges, old_checksums=old_checksums, old=old, data=data
        )
        position = self.write_new(
            key, parts, plan.new_length, is_create=base is None, sync=sync, may_pass_cache=False
        )
        found[key] = position, checksums
        file_id, start = place_of(position)
        if len(data) >= max(WRITE_BEHIND_BYTES_MIN, plan.new_length // 2):
            self._files.begin_write_back(file_id, start, plan.new_length)

    def _begin_write_back(self, file_id: FileId, start: int, count: int, total: int) -> None:
        """Have new bytes on their way to the disk, if they are many,
        and most of what was written to the page cache.
        """
        if count >= max(WRITE_BEHIND_BYTES_MIN, total // 2):
            self._files.begin_write_back(file_id, start, count)

    def write_new(
        self,
        key: ChunkKey,
        parts: Sequence[Buffer],
        length: int,
        *,
        is_create: bool,
        sync: Sync,
        may_pass_cache: bool = True,
    ) -> Position:
        """Write a version into a block of its own; on failure the block is free again.

        Args:
            key: the chunk.
            parts: the bytes of the version, one after the other.
            length: how many these are.
            is_create: the chunk is new, which takes more free space.
            sync: flushes the disk, to free blocks when it is full.
            may_pass_cache: large versions need not be left in the page cache.
        """
        if not length:
            return NO_POSITION
        position = self._space.allocate(key, size_class_of(length), is_create=is_create, sync=sync)
        file_id, start = place_of(position)
        try:
            if may_pass_cache and len(parts) == 1 and self._goes_past_cache(length):
                place = file_id, start, parts[0]
                ((count, _),) = self._files.write_past_cache([place], self._block)
                start, parts = start + count, [memoryview(parts[0])[count:]]
            if len(parts[0]):
                self._files.write_at(file_id, start, parts)
        except BaseException:
            self.free(position)
            raise
        return position

    def free(self, position: Position) -> None:
        """Free the block of a version that was written by `write_new`
        and will never be recorded.
        """
        if position != NO_POSITION:
            self._books.finish(lambda ledger: ledger.abandon(position))
