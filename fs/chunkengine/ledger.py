"""The books of one disk: committed and pending versions, blocks, epochs; every change is one batch.

Decides which metadata a change writes and when a block may be used
again.  Knows nothing of data bytes.

Invariants (crash rules of the engine, see its head):
    - A change of a chunk and all its consequences (bitmaps, owners,
      used bytes, undo) are one batch.
    - The first replacement of a committed version in an epoch stores what it replaced; but not
      when a version takes its place that was durable while it was pending.  That one is what a
      later replacement goes back to.
    - A block that a record of an earlier epoch names is quarantined when freed, until the
      epoch of the freeing batch is durable.  A block handed out in the current epoch may be
      reused at once: every record that names it is of this epoch, and will be verified if the
      epoch turns out not to be durable.
    - A block with readers is reused only after the last one has left.

Concurrency: the caller holds the engine's lock in every method.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from ..schema.ids import TargetId
from ..schema.status import FsError, Status
from .allocator import Allocator, Reservation
from .api import Note
from .block_readers import BlockReaders
from .format import (
    CHUNK_PREFIX,
    EPOCH_KEY,
    NO_POSITION,
    PENDING_PREFIX,
    TARGET_HELD,
    ChunkKey,
    ChunkRecord,
    FileId,
    PendingRecord,
    Position,
    capacity_of,
    group_key,
    note_key,
    pack_u64,
    place_of,
    position_key,
    size_class_of_position,
    target_key,
    target_of_key,
    undo_key,
    used_key,
)
from .ports import MetaStore
from .record_cache import RecordCache


@dataclass(slots=True)
class Epoch:
    """What happened since the last flush began."""

    number: int
    dirty: dict[FileId, None] = field(default_factory=dict)
    quarantine: list[Position] = field(default_factory=list)
    quarantined_bytes: int = 0
    undone: dict[ChunkKey, None] = field(default_factory=dict)
    """Chunks whose previous version this epoch has stored."""
    fresh: set[Position] = field(default_factory=set)
    has_batches: bool = False


class Change(NamedTuple):
    """A change of one chunk; see `Ledger.change`."""

    key: ChunkKey
    record: ChunkRecord | None
    pending: PendingRecord | None
    has_written: bool = False
    note: Note | None = None


IN_DOUBT: Final = (
    "no memory in the middle of a change: what is known here may not be what is stored"
)
"""Why a disk is not used any more; made beforehand, as there may be no memory for it then."""


def in_doubt(error: MemoryError) -> FsError:
    """Return what a change ends with in the middle of which memory was short;
    it ends the use of the disk.
    """
    return FsError(Status.IO_ERROR, f"{IN_DOUBT} {error}".rstrip())


class Ledger:
    """State of one disk in memory, and the batches that keep the metadata store equal to it."""

    def __init__(self, meta: MetaStore, allocator: Allocator, epoch: int) -> None:
        self._meta = meta
        self.allocator = allocator
        self.epoch = Epoch(epoch)
        self.pendings: dict[ChunkKey, PendingRecord] = {}
        self._pending_epochs: dict[ChunkKey, int] = {}
        """In which epoch each was made; those that were found when the disk was opened
        are not here, and durable.
        """
        self._durable_epoch = epoch - 1
        self.used: dict[TargetId, int] = {}
        self.targets: dict[TargetId, bool] = {}
        """The targets of this disk, and whether they are being removed."""
        self.removed: set[TargetId] = set()
        """Targets that are not held any more, whatever the configuration says."""
        self._versions = RecordCache(meta)
        self.record = self._versions.get
        """See `RecordCache`; likewise the next two."""
        self.records = self._versions.get_all
        self.cached = self._versions.cached
        self.readers = BlockReaders(self._reuse)
        self._updating: set[ChunkKey] = set()
        self._emptied: dict[int, None] = {}
        self.is_doubtful = False
        """A change has lacked memory in its middle:
        nobody is to use it any more, whatever that change has raised.
        """

    def allocate(self, size_class: int) -> tuple[Position, Reservation | None]:
        """Hand out a block for a version about to be written."""
        position, reservation = self.allocator.allocate(size_class)
        self.epoch.fresh.add(position)
        return position, reservation

    def allocate_elsewhere(
        self, size_class: int, avoid: Collection[int]
    ) -> tuple[Position, Reservation | None] | None:
        """Hand out a block for a version about to be moved; see `SizeClass.allocate_elsewhere`."""
        found = self.allocator.classes[size_class].allocate_elsewhere(avoid)
        if found is not None:
            self.epoch.fresh.add(found[0])
        return found

    def begin_update(self, key: ChunkKey, base: ChunkRecord | None) -> None:
        """Note that a version of the chunk is being prepared, on top of `base`; keeps its block.

        All of that, or nothing.
        """
        if base is not None:
            self.readers.pin(base)
        try:
            self._updating.add(key)
        except BaseException:  # no memory
            if base is not None:
                self.readers.unpin(base)
            raise

    def end_update(self, key: ChunkKey, base: ChunkRecord | None) -> None:
        """End of `begin_update`."""
        self._updating.discard(key)
        if base is not None:
            self.readers.unpin(base)

    def is_changing(self, key: ChunkKey) -> bool:
        """Return whether the chunk has a pending version, or gets one just now."""
        return key in self.pendings or key in self._updating

    def abandon(self, position: Position) -> None:
        """Take back a block that no record has named."""
        self.epoch.fresh.discard(position)
        self._reuse(position)

    def change(
        self,
        key: ChunkKey,
        record: ChunkRecord | None,
        pending: PendingRecord | None,
        *,
        has_written: bool = False,
        note: Note | None = None,
    ) -> None:
        """Make these the committed and the pending version of a chunk, in one batch.

        Args:
            key: the chunk.
            record: committed version; equal to the old one when it does not change.
            pending: pending version.
            has_written: data of the pending version, or else of the committed one,
                was written before this call.
            note: stored in the same batch.
        """
        self.change_all([Change(key, record, pending, has_written=has_written, note=note)])

    def change_all(self, changes: Sequence[Change]) -> None:
        """Do what `change` does for several chunks, all different, in one batch.

        Blocks are accounted for before the batch is stored, versions are known afterwards: where
        that is cut short the disk is not to be used on.
        """
        try:
            self._change_all(changes)
        except MemoryError as error:
            self.is_doubtful = True  # first: the rest takes memory, too
            raise in_doubt(error) from error

    def _change_all(self, changes: Sequence[Change]) -> None:
        batch: list[tuple[bytes, bytes | None]] = []
        for key, record, pending, has_written, note in changes:
            target_id = target_of_key(key)
            self._stage_target(target_id, batch)
            self._stage_change(key, record, pending, batch)
            if note is not None:
                batch.append((note_key(target_id, note.key), note.value))
            made = pending.record if pending is not None else record
            if has_written and made is not None and made.position != NO_POSITION:
                self.epoch.dirty[place_of(made.position)[0]] = None
        self.put(batch)
        for change in changes:
            self._install(change.key, change.record, change.pending)

    def remove(self, keys: Iterable[ChunkKey]) -> None:
        """Remove chunks with all their versions, in one batch; cut short as `change_all`."""
        batch: list[tuple[bytes, bytes | None]] = []
        try:
            for key in keys:
                self._stage_change(key, None, None, batch)
                self._install(key, None, None)
            if batch:
                self.put(batch)
        except MemoryError as error:
            self.is_doubtful = True  # first: the rest takes memory, too
            raise in_doubt(error) from error

    def put(self, batch: Sequence[tuple[bytes, bytes | None]]) -> None:
        """Write a batch as part of the epoch."""
        self.epoch.has_batches = True
        self._meta.write(batch)

    def put_notes(self, target_id: TargetId, notes: Iterable[Note]) -> None:
        """Store notes, in one batch; cut short as `change_all`."""
        batch: list[tuple[bytes, bytes | None]] = []
        try:
            self._stage_target(target_id, batch)
            self.put([*batch, *((note_key(target_id, note.key), note.value) for note in notes)])
        except MemoryError as error:
            self.is_doubtful = True  # first: the rest takes memory, too
            raise in_doubt(error) from error

    def check_target(self, target_id: TargetId) -> None:
        """Raise FsError(TARGET_UNKNOWN) if the target is being removed."""
        if self.targets.get(target_id):
            raise FsError(Status.TARGET_UNKNOWN, f"target {target_id} is being removed")

    def _stage_target(self, target_id: TargetId, batch: list[tuple[bytes, bytes | None]]) -> None:
        """See to it that whatever names a target comes with the target's record."""
        if target_id not in self.targets:
            self.targets[target_id] = False
            self.removed.discard(target_id)
            batch.append((target_key(target_id), TARGET_HELD))

    def _stage_change(
        self,
        key: ChunkKey,
        record: ChunkRecord | None,
        pending: PendingRecord | None,
        batch: list[tuple[bytes, bytes | None]],
    ) -> None:
        old_record, old_pending = self.record(key), self.pendings.get(key)
        if record is not old_record and record != old_record:
            if record is None or not self._was_durable(key, record, old_pending):
                self._stage_undo(key, old_record, batch)
            elif key in self.epoch.undone:  # what else was replaced in this epoch is older
                batch.append((undo_key(self.epoch.number, key), record.pack()))
            batch.append((CHUNK_PREFIX + key, None if record is None else record.pack()))
        if pending is not old_pending:
            batch.append((PENDING_PREFIX + key, None if pending is None else pending.pack()))
        self._stage_blocks(
            key, _positions(old_record, old_pending), _positions(record, pending), batch
        )

    def _was_durable(
        self, key: ChunkKey, record: ChunkRecord, pending: PendingRecord | None
    ) -> bool:
        """Return whether the version to be committed is pending,
        and its bytes and its record would survive a power loss.
        """
        if pending is None or pending.is_remove:
            return False
        is_same = (record.version, record.position) == (
            pending.record.version,
            pending.record.position,
        )
        return is_same and self._pending_epochs.get(key, 0) <= self._durable_epoch

    def may_append(self, key: ChunkKey, record: ChunkRecord) -> bool:
        """Return whether the bytes behind a committed version may be written.

        Not while they are a pending version's (it may be durable, the new one is not yet), nor
        while a reader of a longer pending version, dropped meanwhile, may still look at them.
        """
        pending = self.pendings.get(key)
        if pending is not None and pending.record.position == record.position:
            return False
        return not self.readers.may_look_beyond(record)

    def begin_flush(self) -> Epoch:
        """Start the next epoch; return the one to make durable."""
        closing = self.epoch
        self.epoch = Epoch(closing.number + 1)
        return closing

    def write_durable(self, closing: Epoch) -> None:
        """Record that an epoch is durable (its data files are flushed); waits for the disk.

        The one method that is called without the engine's lock: it touches nothing in memory.
        """
        batch: list[tuple[bytes, bytes | None]] = [(EPOCH_KEY, pack_u64(closing.number))]
        batch += [(undo_key(closing.number, key), None) for key in closing.undone]
        self._meta.write_synced(batch)

    def end_flush(self, closing: Epoch) -> list[int]:
        """Let the quarantined blocks go; return the size classes of groups
        that ran empty since the last time.
        """
        self._durable_epoch = max(self._durable_epoch, closing.number)
        for position in closing.quarantine:
            self.readers.leave(position)
        emptied = list(self._emptied)
        self._emptied.clear()
        return emptied

    def _stage_undo(
        self,
        key: ChunkKey,
        old: ChunkRecord | None,
        batch: list[tuple[bytes, bytes | None]],
    ) -> None:
        if key not in self.epoch.undone:
            self.epoch.undone[key] = None
            batch.append((undo_key(self.epoch.number, key), b"" if old is None else old.pack()))

    def _stage_blocks(
        self,
        key: ChunkKey,
        before: set[Position],
        after: set[Position],
        batch: list[tuple[bytes, bytes | None]],
    ) -> None:
        """Account for blocks gained and lost; before and after hold at most two each."""
        if before == after:
            return
        target_id = target_of_key(key)
        used = self.used.get(target_id, 0)
        for position in sorted(after - before):
            group, bitmap = self.allocator.persist(position, is_used=True)
            batch.append((group_key(group), bitmap))
            batch.append((position_key(position), key))
            used += capacity_of(position)
        for position in sorted(before - after):
            group, bitmap = self.allocator.persist(position, is_used=False)
            batch.append((group_key(group), bitmap))
            batch.append((position_key(position), None))
            used -= capacity_of(position)
            self._free(position)
        self.used[target_id] = used
        batch.append((used_key(target_id), pack_u64(used)))

    def _free(self, position: Position) -> None:
        if position in self.epoch.fresh:
            self.epoch.fresh.remove(position)
            self.readers.leave(position)
        else:
            self.epoch.quarantine.append(position)
            self.epoch.quarantined_bytes += capacity_of(position)

    def _reuse(self, position: Position) -> None:
        if self.allocator.release(position):
            self._emptied[size_class_of_position(position)] = None

    def _install(
        self, key: ChunkKey, record: ChunkRecord | None, pending: PendingRecord | None
    ) -> None:
        if pending is None:
            self.pendings.pop(key, None)
            self._pending_epochs.pop(key, None)
        elif self.pendings.get(key) is not pending:
            self.pendings[key] = pending
            self._pending_epochs[key] = self.epoch.number
        self._versions.replace(key, record)


def _positions(record: ChunkRecord | None, pending: PendingRecord | None) -> set[Position]:
    found: set[Position] = set()
    if record is not None:
        found.add(record.position)
    if pending is not None:
        found.add(pending.record.position)
    found.discard(NO_POSITION)
    return found
