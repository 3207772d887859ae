"""Opening a disk: load the books, verify what a power loss may have torn, make the result durable.

Versions that a power loss may have torn are exactly those with an undo record of a later epoch than
the last durable one, and all pending ones.  All data is flushed, and read from the disk where it is
verified.  Of each such chunk the newest version whose bytes are all there wins; the oldest undo
record was durable, so it needs no check and ends the search.  Then the result is made durable.

Concurrency: runs before the engine is handed out.
"""

import logging
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Final

from ..schema.ids import TargetId
from ..schema.status import FsError, Status
from .allocator import Allocator, SizeClass
from .api import DISK_LOSS_KEY
from .format import (
    BLOCKS_PER_GROUP,
    CHUNK_KEY_BYTES,
    EPOCH_KEY,
    GROUP_PREFIX,
    NO_POSITION,
    PENDING_PREFIX,
    TARGET_PREFIX,
    TARGET_REMOVED,
    TARGET_REMOVING,
    UNDO_PREFIX,
    USED_PREFIX,
    ChunkKey,
    ChunkRecord,
    FileId,
    GroupId,
    PendingRecord,
    block_bytes,
    chunk_id_of_key,
    group_key,
    make_position,
    note_key,
    pack_u64,
    place_of,
    split_group_id,
    split_undo_key,
    target_of_key,
    unpack_u64,
)
from .ledger import Ledger
from .ports import DataFiles, MetaStore
from .verified import VerifiedReader

HELD_SLACK_BYTES: Final = 64 << 10
"""A file may take this much more than its blocks: the file system's own records of it."""

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Undos:
    """What the disk says about epochs that are not durable."""

    stored_keys: list[bytes] = field(default_factory=list)
    versions: dict[ChunkKey, list[bytes]] = field(default_factory=dict)
    """Per chunk the replaced versions, oldest first; empty bytes: there was none."""
    epoch_max: int = 0


def open_ledger(meta: MetaStore, files: DataFiles, reader: VerifiedReader) -> Ledger:
    """Return the books of a disk, free of torn versions and durable as a whole."""
    stored = meta.get(EPOCH_KEY)
    durable_epoch = 0 if stored is None else unpack_u64(stored)
    undos = _load_undos(meta, durable_epoch)
    allocator, empty_groups = _load_groups(meta)
    ledger = Ledger(meta, allocator, max(durable_epoch, undos.epoch_max) + 1)
    for key, value in _scan(meta, USED_PREFIX):
        ledger.used[TargetId(unpack_u64(key[1:]))] = unpack_u64(value)
    for key, value in _scan(meta, TARGET_PREFIX):
        target_id = TargetId(unpack_u64(key[1:]))
        if value == TARGET_REMOVED:
            ledger.removed.add(target_id)
        else:
            ledger.targets[target_id] = value == TARGET_REMOVING
    for key, value in _scan(meta, PENDING_PREFIX):
        ledger.pendings[ChunkKey(key[1:])] = PendingRecord.unpack(value)
    _flush_data(files)
    _read_from_disk(ledger, files, undos)
    lossy = {
        target_of_key(chunk)
        for chunk, versions in undos.versions.items()
        if _settle_committed(ledger, reader, chunk, versions)
    }
    for chunk, pending in list(ledger.pendings.items()):
        _settle_pending(ledger, reader, chunk, pending)
    _make_durable(ledger, meta, undos.stored_keys, lossy)
    _give_back(ledger, meta, files, empty_groups)
    return ledger


def _scan(meta: MetaStore, prefix: bytes) -> list[tuple[bytes, bytes]]:
    return list(meta.scan(prefix, bytes([prefix[0] + 1])))


def _load_undos(meta: MetaStore, durable_epoch: int) -> _Undos:
    undos = _Undos()
    for stored_key, value in _scan(meta, UNDO_PREFIX):
        assert len(stored_key) == 9 + CHUNK_KEY_BYTES, stored_key
        epoch, chunk = split_undo_key(stored_key)
        undos.stored_keys.append(stored_key)
        undos.epoch_max = max(undos.epoch_max, epoch)
        if epoch > durable_epoch:
            undos.versions.setdefault(chunk, []).append(value)
    return undos


def _load_groups(meta: MetaStore) -> tuple[Allocator, list[GroupId]]:
    """Return the allocator, and the groups without a used block: their space can go."""
    allocator = Allocator()
    empty: list[GroupId] = []
    for key, bitmap in _scan(meta, GROUP_PREFIX):
        stored = GroupId(int.from_bytes(key[1:], "big"))
        if any(bitmap):
            allocator.load(stored, bitmap)
        else:
            empty.append(stored)
    return allocator, empty


def _read_from_disk(ledger: Ledger, files: DataFiles, undos: _Undos) -> None:
    """Let what is about to be verified be what the disk holds,
    not what the kernel remembers of a flush that failed.
    """
    records = [ledger.record(chunk) for chunk in undos.versions]
    records += [ChunkRecord.unpack(v) for old in undos.versions.values() for v in old if v]
    records += [pending.record for pending in ledger.pendings.values()]
    named = {r.position for r in records if r is not None} - {NO_POSITION}
    file_ids = sorted({place_of(position)[0] for position in named})
    files.drop_cache(file_ids)


def _settle_committed(
    ledger: Ledger, reader: VerifiedReader, key: ChunkKey, versions: list[bytes]
) -> bool:
    """Keep the newest version of a chunk that is whole; return whether a committed one is lost."""
    current = ledger.record(key)
    chosen = current
    older = list(versions)
    while older and chosen is not None and not reader.is_whole(chosen):
        value = older.pop()
        chosen = ChunkRecord.unpack(value) if value else None
    if chosen is current or current is None:
        return False
    _log.warning(
        "target %d chunk %s: version %d is torn, back to %s",
        target_of_key(key),
        chunk_id_of_key(key),
        current.version,
        f"version {chosen.version}" if chosen else "nothing",
    )
    pending = ledger.pendings.get(key)
    if chosen is not None:
        if pending is not None and pending.record.version <= chosen.version:
            pending = None  # of a chunk made anew after the removal that is undone here
        if chosen.position != NO_POSITION and not ledger.allocator.is_used(chosen.position):
            ledger.allocator.claim(chosen.position)
    ledger.change(key, chosen, pending)
    kept = (chosen.version, chosen.digest) if chosen is not None else None
    return kept != (current.version, current.digest)  # else it was moved, or repaired


def _settle_pending(
    ledger: Ledger, reader: VerifiedReader, key: ChunkKey, pending: PendingRecord
) -> None:
    """Drop a pending version that is not whole."""
    if pending.is_remove or reader.is_whole(pending.record):
        return
    _log.warning(
        "target %d chunk %s: pending version %d is torn and dropped",
        target_of_key(key),
        chunk_id_of_key(key),
        pending.record.version,
    )
    ledger.change(key, ledger.record(key), None)


def _give_back(
    ledger: Ledger, meta: MetaStore, files: DataFiles, empty_groups: list[GroupId]
) -> None:
    """Return the space of groups that were found empty and still are.

    Only once that is durable: until then a power loss may bring back
    records that name their blocks.
    """
    for stored in empty_groups:
        size_class, number = split_group_id(stored)
        if number not in ledger.allocator.classes[size_class].groups:
            punch_group(files, size_class, number)
            meta.write([(group_key(stored), None)])
    for blocks in ledger.allocator.classes:
        _give_back_idle(blocks, files)


def _give_back_idle(blocks: SizeClass, files: DataFiles) -> None:
    """Return the space that an earlier process had claimed for blocks of no record.

    Unknown to the books it would be lost: no block of another size could take it, nor count on it.
    """
    used: dict[FileId, int] = {}
    for group in blocks.groups.values():
        file_id = place_of(make_position(blocks.size_class, group.number, 0))[0]
        used[file_id] = used.get(file_id, 0) + blocks.block_bytes * group.busy.bit_count()
    wasteful = {f for f, size in used.items() if files.held_bytes(f) > size + HELD_SLACK_BYTES}
    for number in sorted(blocks.groups):
        if place_of(make_position(blocks.size_class, number, 0))[0] in wasteful:
            for position, count in blocks.idle_runs(number):
                file_id, start = place_of(position)
                punch_quietly(files, file_id, start, count * blocks.block_bytes)
    blocks.disclaim_idle()


def punch_group(files: DataFiles, size_class: int, number: int) -> None:
    """Return the space of a whole group."""
    file_id, start = place_of(make_position(size_class, number, 0))
    punch_quietly(files, file_id, start, block_bytes(size_class) * BLOCKS_PER_GROUP)


def punch_quietly(files: DataFiles, file_id: FileId, start: int, length: int) -> None:
    """Return space of free blocks; a disk that refuses keeps it, until it is opened again.

    Nobody's data depends on it, so this fails neither the flush nor
    the update that it is a part of.
    """
    try:
        files.punch(file_id, start, length)
    except FsError as error:
        _log.warning("space is not given back: %s", error)


def _flush_data(files: DataFiles) -> None:
    """Flush all data; a refusal is IO_ERROR whatever the reason,
    so that nobody takes it for safe to try again.
    """
    try:
        files.flush_all()
    except FsError as error:
        raise FsError(Status.IO_ERROR, error.detail) from error


def _make_durable(
    ledger: Ledger, meta: MetaStore, undo_keys: list[bytes], lossy: Collection[TargetId]
) -> None:
    """Close the epoch: the data was flushed before it was verified,
    and none has been written since.

    Blocks that an earlier process freed but could not vouch for become reusable only by this.  That
    targets have lost something is noted in the same batch that takes away what tells it.
    """
    closing = ledger.begin_flush()
    batch: list[tuple[bytes, bytes | None]] = [(EPOCH_KEY, pack_u64(closing.number))]
    batch += [(key, None) for key in undo_keys]
    for key in (note_key(target_id, DISK_LOSS_KEY) for target_id in sorted(lossy)):
        stored = meta.get(key)
        batch.append((key, pack_u64(1 + (unpack_u64(stored) if stored else 0))))
    meta.write(batch)
    ledger.write_durable(closing)
    ledger.end_flush(closing)
