"""The chunk engine of one disk: versions of chunks, prepared and committed without waiting for the disk.

Crash rules, and why they hold.  An *epoch* is the time between the beginnings of two flushes; `sync` writes all
data of an epoch to the disk (1), then its number with one synced metadata batch (2).  A process kill
loses nothing: the kernel has data and log.  A power loss may drop or tear data written since (1) and drops a
suffix of the batches since (2).

a. *A durable record has its data.*  Records of durable epochs do, by the order of (1) and (2).  A later record
   may survive without its data; but the batch that wrote it also wrote, the first time in its epoch, an
   undo record with the version it replaced.  `open` verifies exactly the chunks with such undo records
   by checksum and goes back to the newest whole version (fs/chunkengine/recovery.py).  A version that was durable while
   it was pending replaces another without such a record: it is whole, and what the next replacement stores.  An append in
   place changes no byte of the committed version, so the older version stays whole below it.
b. *A freed block is not reused before the freeing record is durable*, unless no durable record can ever
   name it: the ledger's quarantine.  `open` flushes everything first, since an earlier process may have freed
   blocks and died before it was durable.
c. *A pending version is found again*: `prepare` stores it in one batch, with its block and owner; `open` loads
   all of them, drops torn ones, and `get` shows the others for storage to resolve.  One that is committed by the batch
   that makes it never was pending: after a power loss it is there whole, or the version that it replaced is (a).
d. *Torn or rotten bytes are never served*: each read verifies every checksum block it touches
   (fs/chunkengine/verified.py), and copy-on-write verifies what it copies.

A compaction moves a version by a change of its record like any other (fs/chunkengine/compaction.py).
Records beside the versions need no rule of their own.  A mark of damage is part of the chunk record, so that undo
records carry it; a marked version has no bytes that could be torn.  A note is in its commit's batch and is not taken back
with it (see `Note`).  A target's record is synced alone, which makes durable no more than a prefix of batches, as
any crash may; its removal is begun by one, and gone on with at `open`.

A failed flush or metadata write leaves the disk in doubt: the engine refuses everything from then on.  Where only space
was missing, and only for metadata, another engine may be opened on the disk when there is room: as after a kill.

Concurrency: thread-safe.  A short lock guards the books; data I/O and checksums run outside it.  Updates of one
chunk are serialised by the caller, reads may run beside them: pinned blocks are not reused.  A compaction runs
beside updates, too: what is being updated is not moved, what was updated meanwhile stays where it is.
Source: DESIGN "Storage"; 3FS design notes, "Chunk engine".
"""

import logging
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Final, NamedTuple

from ..runtime.ports import Buffer
from ..schema.config import StorageSection
from ..schema.ids import ChunkId, TargetId
from ..schema.status import FsError, Status
from .api import (
    TAG_BYTES_MAX,
    ChunkCommit,
    ChunkState,
    ChunkWrite,
    CommitsAtOnce,
    Note,
    ReadDone,
    ReadIo,
    ReadRows,
    RowsRead,
)
from .books import Books
from .checksum import digest_of, packed_checksums
from .compaction import Compactor
from .content import cut_content
from .disk_use import Compacted, SpaceInfo
from .format import (
    NO_POSITION,
    ChunkKey,
    ChunkRecord,
    DiskFormat,
    PendingRecord,
    chunk_key,
    note_key,
    place_of,
    size_class_of,
)
from .ledger import Change
from .listing import Listing
from .ports import DataFiles, MetaStore
from .reads import Reads
from .recovery import open_ledger
from .registry import Registry
from .rows import Rows
from .space import BlockSpace
from .verified import VerifiedReader
from .version_writer import VersionWriter
from .versions import (
    check_version,
    committed_record,
    kept_base,
    known_state,
    new_record,
    plan_on,
    state_of,
    version_error,
)

_log = logging.getLogger(__name__)

QUARANTINE_BYTES_MAX: Final = 512 << 20
"""More freed and not yet durable blocks than this, and the next update flushes first."""

UNDO_COUNT_MAX: Final = 100_000
"""The same for chunks changed since the last flush."""


class _Made(NamedTuple):
    """A new version whose bytes have been written, and which no record names yet."""

    key: ChunkKey
    base: ChunkRecord | None
    """What it was made from, and is kept until `_end_update`."""
    record: ChunkRecord
    tag: bytes


class DiskEngine:
    """One disk; implements `ChunkEngine`.  Made by fs/chunkengine/factory.py."""

    def __init__(
        self, meta: MetaStore, files: DataFiles, disk_format: DiskFormat, section: StorageSection
    ) -> None:
        self.disk_format = disk_format
        self._meta = meta
        self._files = files
        self._block = disk_format.checksum_block_bytes
        self._reader = VerifiedReader(files, self._block)
        ledger = open_ledger(meta, files, self._reader)
        self._books = Books(ledger, disk_format.disk_uuid)
        self._listing = Listing(meta, self._books)
        self._reads = Reads(self._books, self._reader)
        self._rows = Rows(self._books, files, self._block, section.direct_read_bytes_min)
        self._space = BlockSpace(files, self._books, section.reject_create_free_bytes_min)
        self._writer = VersionWriter(
            files, self._books, self._space, self._reader, section.direct_write_bytes_min
        )
        self._flush_done = threading.Condition(self._books.lock)
        self._is_closed = False
        self._flushes_begun = 0
        self._flushes_ended = 0
        self._compactor = Compactor(meta, files, self._books, self._space, self._reader)
        self._registry = Registry(meta, self._books)
        for target_id in self._registry.removing():
            _log.warning("target %d: its removal goes on", target_id)
            self.remove_target(target_id)

    # ------------------------------------------------------------------ state

    def get(self, target_id: TargetId, chunk_id: ChunkId) -> ChunkState | None:
        """See `ChunkEngine`."""
        key = chunk_key(target_id, chunk_id)
        with self._books as ledger:
            return state_of(key, ledger.record(key), ledger.pendings.get(key))

    def used_bytes(self, target_id: TargetId) -> int:
        """See `ChunkEngine`."""
        with self._books as ledger:
            return ledger.used.get(target_id, 0)

    def space(self) -> SpaceInfo:
        """See `ChunkEngine`."""
        with self._books as ledger:
            allocator = ledger.allocator
            reusable, used = allocator.reusable_bytes(), allocator.used_bytes()
            reserved = allocator.reserved_bytes()
        free = self._files.free_bytes() + reusable
        return SpaceInfo(self._files.capacity_bytes(), free, reserved, used)

    def give_up(self, reason: str) -> None:
        """See `ChunkEngine`."""
        self._books.give_up(reason)

    def room_after_refusal(self) -> int | None:
        """See `ChunkEngine`."""
        with self._books.lock:
            if not self._books.lacks_space:
                return None
        return self._files.free_bytes() + self._files.spare_bytes()

    def list_chunks(
        self, target_id: TargetId, *, after: bytes = b"", limit: int = 1024
    ) -> list[ChunkState]:
        """See `ChunkEngine`."""
        return self._listing.list_chunks(target_id, after=after, limit=limit)

    def list_file(
        self,
        target_id: TargetId,
        inode_id: int,
        *,
        first_index: int = 0,
        end_index: int = 2**32,
        limit: int = 1024,
    ) -> list[ChunkState]:
        """See `ChunkEngine`."""
        return self._listing.list_file(
            target_id, inode_id, first_index=first_index, end_index=end_index, limit=limit
        )

    def last_chunk(self, target_id: TargetId, inode_id: int) -> ChunkState | None:
        """See `ChunkEngine`."""
        return self._listing.last_chunk(target_id, inode_id)

    # ---------------------------------------------------------------- prepare

    def takes_at_once(
        self, target_id: TargetId, chunk_id: ChunkId, offset: int, length: int
    ) -> bool:
        """See `ChunkEngine`."""
        with self._books as ledger:
            old = ledger.record(chunk_key(target_id, chunk_id))
            if old is not None and (offset or length < old.length):
                return False
            position = ledger.allocator.classes[size_class_of(offset + length)].next_claimed()
        if position is None or self._is_epoch_full() or self._writer.goes_past_cache(length):
            return False
        return self._files.is_open(place_of(position)[0])

    def prepare_write(
        self,
        target_id: TargetId,
        chunk_id: ChunkId,
        *,
        version: int,
        chunk_size_bytes: int,
        offset: int,
        data: Buffer,
        is_full_replace: bool = False,
        tag: bytes = b"",
        commits: CommitsAtOnce | None = None,
    ) -> ChunkState:
        """See `ChunkEngine`."""
        write = ChunkWrite(chunk_id, version, chunk_size_bytes, offset, data, tag)
        self._limit_epoch()
        made = self._make(target_id, write, is_full_replace=is_full_replace)
        try:
            return self._put_made([made], commits)[0]
        finally:
            self._end_update(made.key, made.base)

    def prepare_writes(
        self,
        target_id: TargetId,
        writes: Sequence[ChunkWrite],
        *,
        commits: CommitsAtOnce | None = None,
    ) -> list[ChunkState]:
        """See `ChunkEngine`."""
        assert len({write.chunk_id for write in writes}) == len(writes), writes
        self._limit_epoch()
        made: list[_Made] = []
        try:
            try:
                for write in writes:
                    made.append(self._make(target_id, write))  # noqa: PERF401 - those before a failure are taken back
            except BaseException:
                self._abandon(made)
                raise
            return self._put_made(made, commits)
        finally:
            for one in made:
                self._end_update(one.key, one.base)

    def _make(
        self, target_id: TargetId, write: ChunkWrite, *, is_full_replace: bool = False
    ) -> _Made:
        """Write the bytes of a new version, which no record names yet; `_end_update` is to follow, but not if it raises."""
        chunk_id, offset, data = write.chunk_id, write.offset, write.data
        if offset < 0 or offset + len(data) > write.chunk_size_bytes:
            raise FsError(
                Status.INVALID_ARGUMENT,
                f"{chunk_id}: bytes {offset} to {offset + len(data)} of {write.chunk_size_bytes}",
            )
        assert not is_full_replace or offset == 0, offset
        key = chunk_key(target_id, chunk_id)
        self._space.check_write(key)
        with self._books as ledger:
            ledger.check_target(target_id)
            old = ledger.record(key)
            check_version(key, old, write.version, is_any=is_full_replace)
            end = offset + len(data)
            base = kept_base(key, old, offset, end, is_full_replace=is_full_replace)
            may_append = base is not None and ledger.may_append(key, base)
            plan = plan_on(base, offset, len(data), self._block, may_append=may_append)
            ledger.begin_update(key, base)
        try:
            position, checksums = self._writer.write_update(key, base, plan, data, sync=self.sync)
        except BaseException:
            self._end_update(key, base)
            raise
        size, length = write.chunk_size_bytes, plan.new_length
        record = new_record(write.version, position, size, length, checksums)
        return _Made(key, base, record, write.tag)

    def _abandon(self, made: Sequence[_Made]) -> None:
        """Free the blocks of versions that will never be recorded; one that grew in place has none of its own."""
        with self._books.lock:
            for one in made:
                position = one.record.position
                if position != NO_POSITION and (one.base is None or position != one.base.position):
                    self._books.ledger.abandon(position)

    def _put_made(self, made: Sequence[_Made], commits: CommitsAtOnce | None) -> list[ChunkState]:
        """Record versions whose bytes have been written, in one batch."""
        states: list[ChunkState] = []
        changes: list[Change] = []
        with self._books as ledger:
            for key, _, record, tag in made:
                assert len(tag) <= TAG_BYTES_MAX, len(tag)
                pending = PendingRecord(record, is_remove=False, tag=tag)
                old = ledger.record(key)
                state = known_state(key, old, pending)
                states.append(state)
                if commits is None:
                    changes.append(Change(key, old, pending, has_written=True))
                else:
                    done = committed_record(record, commits.chain_version)
                    note = commits.note_of(state)
                    changes.append(Change(key, done, None, has_written=True, note=note))
            ledger.change_all(changes)
        return states

    def prepare_truncate(
        self,
        target_id: TargetId,
        chunk_id: ChunkId,
        *,
        version: int,
        chunk_size_bytes: int,
        length: int,
        tag: bytes = b"",
    ) -> ChunkState:
        """See `ChunkEngine`."""
        if not 0 <= length <= chunk_size_bytes:
            raise FsError(
                Status.INVALID_ARGUMENT, f"{chunk_id}: length {length} of {chunk_size_bytes}"
            )
        key = chunk_key(target_id, chunk_id)
        self._space.check_write(key)
        with self._books as ledger:
            ledger.check_target(target_id)
            old = ledger.record(key)
            check_version(key, old, version, is_any=False)
            is_cut = old is not None and length < old.length
            if old is not None and is_cut:
                ledger.begin_update(key, old)
        if old is None or not is_cut:
            return self.prepare_write(
                target_id,
                chunk_id,
                version=version,
                chunk_size_bytes=chunk_size_bytes,
                offset=length,
                data=b"",
                tag=tag,
            )
        try:
            head_to = min(-(-length // self._block) * self._block, old.length)
            head = self._reader.read(old, 0, head_to)
            parts, checksums = cut_content(head, old.checksums, length, self._block)
            position = self._writer.write_new(key, parts, length, is_create=False, sync=self.sync)
            record = new_record(version, position, chunk_size_bytes, length, checksums)
            return self._put_made([_Made(key, old, record, tag)], None)[0]
        finally:
            self._end_update(key, old)

    def prepare_remove(
        self, target_id: TargetId, chunk_id: ChunkId, *, version: int, tag: bytes = b""
    ) -> ChunkState:
        """See `ChunkEngine`; `version` may be any above the committed one."""
        return self._remove(target_id, chunk_id, version, tag, is_final=False)

    def remove(self, target_id: TargetId, chunk_id: ChunkId, *, version: int) -> ChunkState:
        """See `ChunkEngine`."""
        return self._remove(target_id, chunk_id, version, b"", is_final=True)

    def _remove(
        self, target_id: TargetId, chunk_id: ChunkId, version: int, tag: bytes, *, is_final: bool
    ) -> ChunkState:
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

    # ----------------------------------------------------------------- commit

    def commit(
        self,
        target_id: TargetId,
        chunk_id: ChunkId,
        *,
        version: int,
        chain_version: int,
        note: Note | None = None,
    ) -> ChunkState | None:
        """See `ChunkEngine`; raises FsError(MISSING_UPDATE) if that version was never prepared."""
        key = chunk_key(target_id, chunk_id)
        with self._books as ledger:
            old, pending = ledger.record(key), ledger.pendings.get(key)
            if pending is None or pending.record.version != version:
                if (old is None and pending is None) or (old and version <= old.version):
                    if note is not None and target_id in ledger.targets:
                        ledger.put([(note_key(target_id, note.key), note.value)])
                    return state_of(key, old, pending)
                raise version_error(key, old, version)
            if pending.is_remove:
                ledger.change(key, None, None, note=note)
                return None
            record = committed_record(pending.record, chain_version)
            ledger.change(key, record, None, note=note)
            return known_state(key, record, None)

    def commit_writes(
        self, target_id: TargetId, commits: Sequence[ChunkCommit], *, chain_version: int
    ) -> None:
        """See `ChunkEngine`."""
        assert len({commit.chunk_id for commit in commits}) == len(commits), commits
        changes: list[Change] = []
        with self._books as ledger:
            for commit in commits:
                key = chunk_key(target_id, commit.chunk_id)
                pending = ledger.pendings.get(key)
                if pending is None or pending.record.version != commit.version or pending.is_remove:
                    raise version_error(key, ledger.record(key), commit.version)
                record = committed_record(pending.record, chain_version)
                changes.append(Change(key, record, None, note=commit.note))
            ledger.change_all(changes)

    def drop_pending(self, target_id: TargetId, chunk_id: ChunkId) -> None:
        """See `ChunkEngine`."""
        key = chunk_key(target_id, chunk_id)
        with self._books as ledger:
            if key in ledger.pendings:
                ledger.change(key, ledger.record(key), None)

    def repair(self, target_id: TargetId, chunk_id: ChunkId, *, version: int, data: Buffer) -> bool:
        """See `ChunkEngine`."""
        key = chunk_key(target_id, chunk_id)
        with self._books as ledger:
            old = ledger.record(key)
            if old is None or old.version != version or key in ledger.pendings:
                return False
        checksums = packed_checksums([data], self._block)
        if len(data) != old.length or digest_of(checksums, old.length) != old.digest:
            return False
        position = self._writer.write_new(key, [data], old.length, is_create=False, sync=self.sync)
        whole = replace(old, position=position, checksums=checksums, is_damaged=False)
        with self._books as ledger:
            ledger.change(key, whole, None, has_written=True)
        return True

    # ----------------------------------------------------------------- damage

    def mark_damaged(self, target_id: TargetId, chunk_id: ChunkId, *, version: int = 0) -> bool:
        """See `ChunkEngine`."""
        key = chunk_key(target_id, chunk_id)
        with self._books as ledger:
            old = ledger.record(key)
            if old is None or not old.length or (version and old.version != version):
                return False
            if not old.is_damaged:
                ledger.change(key, replace(old, is_damaged=True), ledger.pendings.get(key))
        return True

    def put_damaged(
        self,
        target_id: TargetId,
        chunk_id: ChunkId,
        *,
        version: int,
        chain_version: int,
        length: int,
        checksum: int,
        chunk_size_bytes: int,
    ) -> ChunkState:
        """See `ChunkEngine`."""
        if not 0 <= length <= chunk_size_bytes:
            raise FsError(
                Status.INVALID_ARGUMENT, f"{chunk_id}: length {length} of {chunk_size_bytes}"
            )
        key = chunk_key(target_id, chunk_id)
        with self._books as ledger:
            ledger.check_target(target_id)
            old = ledger.record(key)
            check_version(key, old, version, is_any=True)
            record = ChunkRecord(
                version,
                chain_version,
                NO_POSITION,
                checksum,
                chunk_size_bytes,
                length,
                b"",
                length > 0,
            )
            if old is not None and (old.version, old.length, old.digest) == (
                version,
                length,
                checksum,
            ):
                record = replace(old, chain_version=chain_version)
            ledger.change(key, record, None)
            return known_state(key, record, None)

    # ---------------------------------------------------------------- targets

    def notes(self, target_id: TargetId) -> list[Note]:
        """See `ChunkEngine`."""
        return self._registry.notes(target_id)

    def put_notes(
        self, target_id: TargetId, notes: Sequence[Note], *, is_durable: bool = False
    ) -> None:
        """See `ChunkEngine`."""
        self._registry.put_notes(target_id, notes, is_durable=is_durable)

    def forget_notes(self, target_id: TargetId, keys: Sequence[bytes]) -> None:
        """See `ChunkEngine`."""
        self._registry.forget_notes(target_id, keys)

    def target_ids(self) -> list[TargetId]:
        """See `ChunkEngine`."""
        return self._registry.target_ids()

    def hold_targets(self, configured: Sequence[TargetId]) -> None:
        """Add the configured targets that are missing, durably; a target that was removed stays removed."""
        self._registry.hold(configured)

    def add_target(self, target_id: TargetId) -> None:
        """See `ChunkEngine`."""
        self._registry.add(target_id)

    def begin_removal(self, target_id: TargetId) -> None:
        """See `ChunkEngine`."""
        self._registry.begin_removal(target_id)

    def remove_target(self, target_id: TargetId, *, lot_count_max: int = 0) -> bool:
        """See `ChunkEngine`; the lock is given up between lots of chunks."""
        self._space.help_store()
        is_gone = self._registry.remove(target_id, self._limit_epoch, lot_count_max)
        if is_gone:
            self.sync()
        return is_gone

    def compact(self, bytes_max: int) -> Compacted:
        """See `ChunkEngine`."""
        return self._compactor.run(bytes_max, self.sync, self._limit_epoch)

    # ------------------------------------------------------------------- read

    def read_batch(self, ios: Sequence[ReadIo]) -> list[ReadDone]:
        """See `ChunkEngine`; a bad sector is IO_ERROR of its read alone."""
        return self._reads.read_batch(ios)

    def read_cached(self, ios: Sequence[ReadIo]) -> list[ReadDone | None]:
        """See `ChunkEngine`."""
        return self._reads.read_cached(ios)

    def read_cached_rows(
        self,
        keys: Sequence[ChunkKey],
        rows: ReadRows,
        view: memoryview,
        *,
        want_checksums: bool,
    ) -> RowsRead:
        """See `ChunkEngine`."""
        return self._rows.read_cached(keys, rows, view, want_checksums=want_checksums)

    def read_cached_row(
        self, key: ChunkKey, offset: int, view: memoryview
    ) -> tuple[int, int] | None:
        """See `ChunkEngine`."""
        return self._rows.read_cached_one(key, offset, view)

    def read_rows(
        self,
        keys: Sequence[ChunkKey],
        rows: ReadRows,
        view: memoryview,
        *,
        want_checksums: bool,
        may_pass_cache: bool = False,
    ) -> RowsRead:
        """See `ChunkEngine`."""
        return self._rows.read(
            keys, rows, view, want_checksums=want_checksums, may_pass_cache=may_pass_cache
        )

    def read_whole(self, target_id: TargetId, chunk_id: ChunkId, *, version: int = 0) -> bytes:
        """See `ChunkEngine`."""
        return self._reads.read_whole(target_id, chunk_id, version=version)

    # ------------------------------------------------------------------- sync

    def sync(self) -> None:
        """See `ChunkEngine`."""
        with self._books.lock:
            self._books.check()
            wanted = self._flushes_begun + 1
            while self._flushes_ended < wanted and self._flushes_begun > self._flushes_ended:
                self._flush_done.wait()
                self._books.check()
            if self._flushes_ended >= wanted or not self._books.ledger.epoch.has_batches:
                return
            self._flushes_begun += 1
            closing = self._books.ledger.begin_flush()
        with self._waking_others():
            with self._books.poison_on_failure("making room for a flush"):
                self._space.help_store()
            with self._books.poison_on_failure("flush of data", is_metadata=False):
                self._files.flush(closing.dirty)
            with self._books.poison_on_failure("flush"):
                self._books.ledger.write_durable(closing)
        with self._books.lock:
            emptied = self._books.ledger.end_flush(closing)
            self._flushes_ended += 1
            self._flush_done.notify_all()
        self._space.give_back(emptied)

    def close(self) -> None:
        """See `ChunkEngine`; nobody may be inside a call.  Closing again is harmless."""
        if self._is_closed:
            return
        self._is_closed = True
        try:
            if not self._books.failure:
                self.sync()
        finally:
            with self._books.lock:
                self._books.is_closed = True
            self._files.close()
            self._meta.close()

    def _limit_epoch(self) -> None:
        if self._is_epoch_full():
            self.sync()

    def _is_epoch_full(self) -> bool:
        epoch = self._books.ledger.epoch
        return epoch.quarantined_bytes > QUARANTINE_BYTES_MAX or len(epoch.undone) > UNDO_COUNT_MAX

    @contextmanager
    def _waking_others(self) -> Iterator[None]:
        """Around a flush: those who wait for it learn of its failure."""
        try:
            yield
        except FsError:
            with self._books.lock:
                self._flush_done.notify_all()
            raise

    def _end_update(self, key: ChunkKey, base: ChunkRecord | None) -> None:
        with self._books.lock:
            self._books.ledger.end_update(key, base)
