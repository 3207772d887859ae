"""The chunk engine of one disk: versions of chunks, prepared and committed without waiting for it.

Crash rules, and why they hold.  An *epoch* is the time between the beginnings of two flushes.
`sync` writes all data of an epoch to the disk (1), then its number with one synced metadata batch
(2).  A process kill loses nothing: the kernel has data and log.  A power loss may drop or tear data
written since (1), and drops a suffix of the batches since (2).

a. *A durable record has its data.*  Records of durable epochs have it, by the order of (1) and (2).
   A later record may survive without its data.  But the batch that wrote it also wrote an undo
   record with the version it replaced, the first time in its epoch.  `open` verifies by checksum
   exactly the chunks with such undo records, and goes back to the newest whole version
   (fs/chunkengine/recovery.py).  A version that was durable while it was pending replaces another
   without such a record.  It is whole, and it is what the undo record of the next replacement
   stores.  An append in place changes no byte of the committed version, so the older version stays
   whole below it.
b. *A freed block is not reused before the freeing record is durable*, unless no durable record can
   ever name it.  This is the ledger's quarantine.  `open` flushes everything first, since an
   earlier process may have freed blocks and died before it was durable.
c. *A pending version is found again.*  `prepare` stores it in one batch, with its block and owner.
   `open` loads all of them and drops torn ones; `get` shows the others for storage to resolve.  A
   version that is committed by the batch that makes it never was pending.  After a power loss it is
   there whole, or the version that it replaced is (a).
d. *Torn or rotten bytes are never served.*  Each read verifies every checksum block it touches
   (fs/chunkengine/verified.py), and copy-on-write verifies what it copies.

What needs no rule of its own:
    - A compaction.  It moves a version by a change of its record like any other
      (fs/chunkengine/compaction.py).
    - A mark of damage.  It is part of the chunk record, so undo records carry it.  A marked version
      has no bytes that could be torn.
    - A note.  It is in its commit's batch, and is not taken back with the commit (see `Note`).
    - A target's record.  It is synced alone, which makes durable no more than a prefix of batches,
      as any crash may.  The removal of a target begins with such a record, and goes on at `open`.

A failed flush or metadata write leaves the disk in doubt: the engine refuses everything from then
on.  Where only space was missing, and only for metadata, another engine may be opened on the disk
when there is room: as after a kill.

Concurrency: thread-safe.  A short lock guards the books; data I/O and checksums run outside it.
The caller serialises the updates of one chunk.  Reads may run beside them: pinned blocks are not
reused.  A compaction runs beside updates, too: what is being updated is not moved, and what was
updated meanwhile stays where it is.

Source: deepseek-ai/3FS, its design notes, "Chunk engine".
"""

import logging
from collections.abc import Sequence

from ..runtime.ports import Buffer
from ..schema.config import StorageSection
from ..schema.ids import ChunkId, TargetId
from ..schema.status import FsError, Status
from .api import ChunkCommit, ChunkState, ChunkWrite, CommitsAtOnce, Note
from .books import Books
from .compaction import Compactor
from .damage import Damage
from .direct_reads import DirectReads
from .disk_use import Compacted, SpaceInfo
from .epochs import Epochs
from .format import (
    NO_POSITION,
    ChunkKey,
    ChunkRecord,
    DiskFormat,
    chunk_key,
    note_key,
)
from .ledger import Change
from .lent_rows import RowLender
from .listing import Listing
from .ports import DataFiles, MetaStore
from .ranges import Range
from .read_values import ReadDone, ReadIo, ReadRows, RowsRead
from .reads import Reads
from .recovery import open_ledger
from .registry import Registry
from .rows import Rows
from .space import BlockSpace
from .updates import Updates
from .verified import VerifiedReader
from .version_writer import VersionWriter
from .versions import (
    committed_record,
    known_state,
    state_of,
    version_error,
)

_log = logging.getLogger(__name__)


class DiskEngine:
    """One disk; implements `ChunkEngine`.  Made by fs/chunkengine/factory.py."""

    def __init__(
        self, meta: MetaStore, files: DataFiles, disk_format: DiskFormat, section: StorageSection
    ) -> None:
        self.disk_format = disk_format
        self._meta = meta
        self._files = files
        self._block = self.checksum_block_bytes = disk_format.checksum_block_bytes
        self._reader = VerifiedReader(files, self._block)
        ledger = open_ledger(meta, files, self._reader)
        self._books = Books(ledger, disk_format.disk_uuid)
        self._listing = Listing(meta, self._books)
        self._reads = Reads(self._books, self._reader)
        direct = DirectReads(files, self._block, section.direct_read_bytes_min)
        self._rows = Rows(self._books, files, self._block, direct)
        self.read_cached_row = self._rows.read_cached_one
        """See `ChunkEngine`."""
        self.lend_rows = RowLender(self._books, files, self._block, direct).lend
        """See `ChunkEngine`."""
        self._space = BlockSpace(files, self._books, section)
        self._epochs = Epochs(self._books, files, self._space)
        self._writer = VersionWriter(
            files,
            self._books,
            self._space,
            self._reader,
            block=self._block,
            direct_bytes_min=section.direct_write_bytes_min,
        )
        self._updates = Updates(
            self._books,
            self._space,
            self._reader,
            self._writer,
            block=self._block,
            sync=self.sync,
        )
        self._damage = Damage(
            self._books, self._reader, self._writer, block=self._block, sync=self.sync
        )
        self._is_closed = False
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

    def make_way(self) -> None:
        """See `ChunkEngine`."""
        self._space.make_way()

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
        return not self._epochs.is_full() and self._updates.takes_at_once(
            target_id, chunk_id, offset, length
        )

    def removes_at_once(self) -> bool:
        """See `ChunkEngine`."""
        return not self._space.is_short()

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
        ranges: Sequence[Range] = (),
    ) -> ChunkState:
        """See `ChunkEngine`."""
        write = ChunkWrite(
            chunk_id, version, chunk_size_bytes, offset, data, tag, is_full_replace, ranges
        )
        self._epochs.limit()
        return self._updates.write(target_id, [write], commits)[0]

    def prepare_writes(
        self,
        target_id: TargetId,
        writes: Sequence[ChunkWrite],
        *,
        commits: CommitsAtOnce | None = None,
    ) -> list[ChunkState]:
        """See `ChunkEngine`."""
        assert len({write.chunk_id for write in writes}) == len(writes), writes
        self._epochs.limit()
        return self._updates.write(target_id, writes, commits)

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
        end = ChunkWrite(chunk_id, version, chunk_size_bytes, length, b"", tag)
        if self._updates.is_cut(target_id, end):
            return self._updates.cut(target_id, end)
        self._epochs.limit()
        return self._updates.write(target_id, [end], None)[0]

    def prepare_remove(
        self, target_id: TargetId, chunk_id: ChunkId, *, version: int, tag: bytes = b""
    ) -> ChunkState:
        """See `ChunkEngine`; `version` may be any above the committed one."""
        return self._updates.remove(target_id, chunk_id, version, tag)

    def remove(self, target_id: TargetId, chunk_id: ChunkId, *, version: int) -> ChunkState:
        """See `ChunkEngine`."""
        return self._updates.remove(target_id, chunk_id, version, b"", is_final=True)

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

    # ----------------------------------------------------------------- damage

    def repair(self, target_id: TargetId, chunk_id: ChunkId, *, version: int, data: Buffer) -> bool:
        """See `ChunkEngine`."""
        return self._damage.repair(chunk_key(target_id, chunk_id), version, data)

    def mark_damaged(self, target_id: TargetId, chunk_id: ChunkId, *, version: int = 0) -> bool:
        """See `ChunkEngine`."""
        return self._damage.mark(chunk_key(target_id, chunk_id), version)

    def end_damage(self, target_id: TargetId, chunk_id: ChunkId, *, version: int) -> bool:
        """See `ChunkEngine`."""
        return self._damage.end(chunk_key(target_id, chunk_id), version)

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
        lost = ChunkRecord(
            version,
            chain_version,
            NO_POSITION,
            checksum,
            chunk_size_bytes,
            length,
            b"",
            is_damaged=length > 0,
        )
        return self._damage.put(chunk_key(target_id, chunk_id), lost)

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
        """Add the configured targets that are missing, durably;
        a target that was removed stays removed.
        """
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
        is_gone = self._registry.remove(target_id, self._epochs.limit, lot_count_max)
        if is_gone:
            self.sync()
        return is_gone

    def compact(self, bytes_max: int) -> Compacted:
        """See `ChunkEngine`."""
        return self._compactor.run(bytes_max, self.sync, self._epochs.limit)

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

    def read_rows(
        self,
        keys: Sequence[ChunkKey],
        rows: ReadRows,
        view: memoryview,
        *,
        want_checksums: bool,
        may_pass_cache: bool = False,
        leaves_matching: bool = False,
    ) -> RowsRead:
        """See `ChunkEngine`."""
        return self._rows.read(
            keys,
            rows,
            view,
            want_checksums=want_checksums,
            may_pass_cache=may_pass_cache,
            leaves_matching=leaves_matching,
        )

    def read_whole(self, target_id: TargetId, chunk_id: ChunkId, *, version: int = 0) -> bytes:
        """See `ChunkEngine`."""
        return self._reads.read_whole(target_id, chunk_id, version=version)

    # ------------------------------------------------------------------- sync

    def sync(self) -> None:
        """See `ChunkEngine`."""
        self._epochs.flush()

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
