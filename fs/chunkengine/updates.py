"""New versions of chunks: written, then recorded, pending or committed at once.

What is written together is recorded by one batch: all of it, or nothing that anybody will see.

Invariants:
    - A record comes after the bytes that it names.
    - What an update was made from is kept until it is recorded; a block whose
      record does not come is free again.

Concurrency: thread-safe; updates of one chunk are serialised by the caller.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from ..schema.ids import ChunkId, TargetId
from ..schema.status import FsError, Status
from .api import TAG_BYTES_MAX, ChunkState, ChunkWrite, CommitsAtOnce
from .books import Books
from .content import UpdatePlan, cut_content
from .format import (
    NO_POSITION,
    ChunkKey,
    ChunkRecord,
    PendingRecord,
    Position,
    chunk_key,
    size_class_of,
)
from .ledger import Change, Ledger
from .ranges import fault_of, plan_ranges
from .space import BlockSpace
from .verified import VerifiedReader
from .version_writer import Job, VersionWriter
from .versions import (
    check_version,
    committed_record,
    kept_base,
    known_state,
    new_record,
    plan_on,
    version_error,
)


class _Begun(NamedTuple):
    """An update whose base is kept until `_end`."""

    key: ChunkKey
    base: ChunkRecord | None
    plan: UpdatePlan
    write: ChunkWrite


class Updates:
    """Those of one disk."""

    def __init__(
        self,
        books: Books,
        space: BlockSpace,
        reader: VerifiedReader,
        writer: VersionWriter,
        *,
        block: int,
        sync: Callable[[], None],
    ) -> None:
        """Take the parts of an engine, the size of its checksum blocks, and what flushes it."""
        self._books = books
        self._space = space
        self._reader = reader
        self._writer = writer
        self._block = block
        self._sync = sync

    def takes_at_once(
        self, target_id: TargetId, chunk_id: ChunkId, offset: int, length: int
    ) -> bool:
        """See `ChunkEngine`; leaves out whether a flush is due."""
        with self._books as ledger:
            old = ledger.record(chunk_key(target_id, chunk_id))
            if old is not None and (offset or length < old.length):
                return False
            position = ledger.allocator.classes[size_class_of(offset + length)].next_claimed()
        if position is None or not self._writer.writes_at_once(position, length):
            return False
        return not self._space.is_short()

    def write(
        self,
        target_id: TargetId,
        writes: Sequence[ChunkWrite],
        commits: CommitsAtOnce | None,
    ) -> list[ChunkState]:
        """Make versions of different chunks, all of them or none;
        see `ChunkEngine.prepare_write`.
        """
        begun = self._begin(target_id, writes)
        try:
            jobs = [
                Job(key, base, plan, write.data, write.ranges) for key, base, plan, write in begun
            ]
            written = self._writer.write(jobs, sync=self._sync)
            return self._record(begun, written, commits)
        finally:
            self._end(begun)

    def _begin(self, target_id: TargetId, writes: Sequence[ChunkWrite]) -> list[_Begun]:
        """Plan updates and keep what they are made from;
        `_end` is to follow, but not if it raises.
        """
        begun: list[_Begun] = []
        for write in writes:
            _check_range(write)
        self._space.check_write(chunk_key(target_id, writes[0].chunk_id))
        with self._books as ledger:
            ledger.check_target(target_id)
            for write in writes:
                offset, length = write.offset, len(write.data)
                is_full_replace = write.is_full_replace
                assert not is_full_replace or offset == 0, offset
                key = chunk_key(target_id, write.chunk_id)
                old = ledger.record(key)
                check_version(key, old, write.version, is_any=is_full_replace)
                base = kept_base(key, old, offset, write.first_end, is_full_replace=is_full_replace)
                if write.ranges:
                    old_length = base.length if base is not None else 0
                    plan = plan_ranges(old_length, write.ranges, self._block)
                else:
                    may_append = base is not None and ledger.may_append(key, base)
                    plan = plan_on(base, offset, length, self._block, may_append=may_append)
                begun.append(_Begun(key, base, plan, write))
            kept_count = 0
            try:
                for one in begun:
                    ledger.begin_update(one.key, one.base)
                    kept_count += 1
            except BaseException:  # no memory: whoever calls ends none of them
                for one in begun[:kept_count]:
                    ledger.end_update(one.key, one.base)
                raise
        return begun

    def _end(self, begun: Sequence[_Begun]) -> None:
        def end(ledger: Ledger) -> None:
            for one in begun:
                ledger.end_update(one.key, one.base)

        self._books.finish(end)

    def _record(
        self,
        begun: Sequence[_Begun],
        written: Sequence[tuple[Position, bytes]],
        commits: CommitsAtOnce | None,
    ) -> list[ChunkState]:
        """Record versions whose bytes have been written, in one batch."""
        states: list[ChunkState] = []
        changes: list[Change] = []
        is_changing = False
        try:
            with self._books as ledger:
                for one, (position, checksums) in zip(begun, written, strict=True):
                    key, write = one.key, one.write
                    assert len(write.tag) <= TAG_BYTES_MAX, len(write.tag)
                    size, length = write.chunk_size_bytes, one.plan.new_length
                    record = new_record(write.version, position, size, length, checksums)
                    pending = PendingRecord(record, is_remove=False, tag=write.tag)
                    old = ledger.record(key)
                    state = known_state(key, old, pending)
                    states.append(state)
                    if commits is None:
                        changes.append(Change(key, old, pending, has_written=True))
                    else:
                        done = committed_record(record, commits.chain_version)
                        note = commits.note_of(state)
                        changes.append(Change(key, done, None, has_written=True, note=note))
                is_changing = True
                ledger.change_all(changes)
        except BaseException:
            if not is_changing:  # else the disk is not used on
                for one, (position, _) in zip(begun, written, strict=True):
                    if not one.plan.is_in_place:
                        self._writer.free(position)
            raise
        return states

    def is_cut(self, target_id: TargetId, end: ChunkWrite) -> bool:
        """Return whether a version that ends at `end.offset` is shorter than the committed one;
        raises FsError if it cannot be made.
        """
        _check_range(end)
        key = chunk_key(target_id, end.chunk_id)
        self._space.check_write(key)
        with self._books as ledger:
            ledger.check_target(target_id)
            old = ledger.record(key)
            check_version(key, old, end.version, is_any=False)
            return old is not None and end.offset < old.length

    def cut(self, target_id: TargetId, end: ChunkWrite) -> ChunkState:
        """Make a pending version that ends at `end.offset`, before the end of the committed one;
        see `ChunkEngine.prepare_truncate`.
        """
        key, length = chunk_key(target_id, end.chunk_id), end.offset
        with self._books as ledger:
            old = ledger.record(key)
            assert old is not None and length < old.length, key
            ledger.begin_update(key, old)
        try:
            head_to = min(-(-length // self._block) * self._block, old.length)
            head = self._reader.read(old, 0, head_to)
            parts, checksums = cut_content(head, old.checksums, length, self._block)
            position = self._writer.write_new(key, parts, length, is_create=False, sync=self._sync)
            is_changing = False
            try:
                record = new_record(end.version, position, end.chunk_size_bytes, length, checksums)
                pending = PendingRecord(record, is_remove=False, tag=end.tag)
                with self._books as ledger:
                    old_now = ledger.record(key)
                    state = known_state(key, old_now, pending)
                    is_changing = True
                    ledger.change(key, old_now, pending, has_written=True)
            except BaseException:
                if not is_changing:
                    self._writer.free(position)
                raise
            return state
        finally:
            with self._books.lock:
                self._books.ledger.end_update(key, old)

    def remove(
        self,
        target_id: TargetId,
        chunk_id: ChunkId,
        version: int,
        tag: bytes,
        *,
        is_final: bool = False,
    ) -> ChunkState:
        """Make a pending removal, or with `is_final` remove at once;
        returns as `ChunkEngine.prepare_remove`.
        """
        key = chunk_key(target_id, chunk_id)
        self._space.check_remove(key)
        with self._books as ledger:
            ledger.check_target(target_id)
            old = ledger.record(key)
            if version <= (old.version if old else 0):
                raise version_error(key, old, version)
            size = old.chunk_size_bytes if old else 0
            made = new_record(version, NO_POSITION, size, 0, b"")
            removal = PendingRecord(made, is_remove=True, tag=tag)
            if is_final:
                ledger.change(key, None, None)
            else:
                ledger.change(key, old, removal)
            return known_state(key, old, removal)


def _check_range(write: ChunkWrite) -> None:
    if write.ranges:
        assert not write.is_full_replace and write.offset == write.ranges[0][0], write.chunk_id
        fault = fault_of(write.ranges, len(write.data), write.chunk_size_bytes)
        if fault:
            raise FsError(Status.INVALID_ARGUMENT, f"{write.chunk_id}: {fault}")
        return
    offset, end = write.offset, write.offset + len(write.data)
    if offset < 0 or end > write.chunk_size_bytes:
        raise FsError(
            Status.INVALID_ARGUMENT,
            f"{write.chunk_id}: bytes {offset} to {end} of {write.chunk_size_bytes}",
        )
