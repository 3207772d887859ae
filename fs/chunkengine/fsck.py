"""Does a disk hold what its records say?  The whole check of a disk that no engine has open.

Every record is decoded and compared with all others that speak of the same blocks, and every byte
of every version is read and verified.  The rules are those of fs/chunkengine/format.py:

    - chunk and pending records are consistent in themselves, and the bytes they point at match;
    - a block is named by one chunk, marked in its group's bitmap, and its
      owner record names that chunk;
    - nothing else is marked or owned; a target's used bytes are the sum of its blocks;
    - every chunk and note belongs to a target that the disk holds;
    - a version that the next open may have to go back to (undo records) is
      whole, and its block nobody else's.

A disk that was not closed may hold versions that a power loss tore.  As long as the next open
settles them without loss of anything synced they are notices.

Decides and reads, never writes: a finding carries the changes that would put it right.
Memory: 32 bytes per 256 blocks, and the chunks touched since the last sync; not the records.
Concurrency: none; the caller keeps everybody else away from the disk.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

import msgspec
from msgspec import structs

from ..schema.ids import TargetId
from ..schema.status import FsError, Status
from .allocator import GROUP_BYTES
from .api import NOTE_KEY_BYTES_MAX
from .findings import Finding, Kind
from .format import (
    BLOCKS_PER_GROUP,
    CHUNK_KEY_BYTES,
    CHUNK_PREFIX,
    EPOCH_KEY,
    FORMAT_KEY,
    GROUP_PREFIX,
    NO_POSITION,
    NOTE_PREFIX,
    PENDING_PREFIX,
    POSITION_PREFIX,
    SIZE_CLASS_COUNT,
    TARGET_HELD,
    TARGET_PREFIX,
    TARGET_REMOVED,
    TARGET_REMOVING,
    UNDO_PREFIX,
    USED_PREFIX,
    ChunkKey,
    ChunkRecord,
    DiskFormat,
    GroupId,
    Position,
    block_of_position,
    capacity_of,
    file_name,
    group_id,
    group_key,
    group_of_position,
    make_position,
    pack_u64,
    place_of,
    position_key,
    size_class_of_position,
    split_group_id,
    split_undo_key,
    target_key,
    target_of_key,
    unpack_u64,
    used_key,
)
from .fsck_data import Blocks, DataCheck, Tally
from .fsck_records import (
    RECORD_BYTES_MIN,
    decoded,
    decoded_pending,
    is_position,
    owner_name,
    record_in_pending,
)

U64_BYTES: Final = 8
U64_KEY_BYTES: Final = 9
GROUP_KEY_BYTES: Final = 5
TARGET_STATES: Final = (TARGET_HELD, TARGET_REMOVING, TARGET_REMOVED)


class Records(Protocol):
    """The metadata store, as far as a check needs it."""

    def get(self, key: bytes) -> bytes | None:
        """See `MetaStore`."""
        ...

    def scan(self, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        """See `MetaStore`."""
        ...


@dataclass(slots=True)
class _Seen:
    """What the chunk records say, to be compared with the others."""

    bits: defaultdict[GroupId, int] = field(default_factory=lambda: defaultdict(int))
    used: defaultdict[TargetId, int] = field(default_factory=lambda: defaultdict(int))
    targets: set[TargetId] = field(default_factory=set)
    unsettled: dict[ChunkKey, list[bytes]] = field(default_factory=dict)
    """Chunks with undo records that count: the versions replaced, oldest first."""


def check_disk(
    meta: Records,
    blocks: Blocks,
    *,
    has_data: bool = True,
    tally: Tally | None = None,
    on_step: Callable[[], None] = lambda: None,
) -> Iterator[Finding]:
    """Yield what is wrong with a disk; see the head of this module.

    Args:
        meta: its metadata.
        blocks: its data files.
        has_data: read all data; without it only the records are compared.
        tally: kept up to date.
        on_step: called after every chunk and every megabyte or so; may raise, to stop.
    """
    return _Check(meta, blocks, has_data, tally or Tally(), on_step).run()


class _Check:
    def __init__(
        self,
        meta: Records,
        blocks: Blocks,
        has_data: bool,
        tally: Tally,
        on_step: Callable[[], None],
    ) -> None:
        self._meta = meta
        self._has_data = has_data
        self._tally = tally
        self._on_step = on_step
        self._seen = _Seen()
        self._block = 0
        self._data = DataCheck(blocks, tally, on_step)

    def run(self) -> Iterator[Finding]:
        steps = (
            self._check_singles,
            self._load_undos,
            self._check_chunks,
            self._check_undos,
            self._check_owners,
            self._check_groups,
            self._check_used,
            self._check_targets,
        )
        for step in steps:
            try:
                yield from step()
            except FsError as error:
                if error.status is not Status.IO_ERROR:
                    raise
                yield Finding(Kind.BAD_STORE, error.detail)

    # ---------------------------------------------------------------- singles

    def _check_singles(self) -> Iterator[Finding]:
        """Format and epoch; and every key is of a known kind."""
        stored = self._meta.get(FORMAT_KEY)
        try:
            if stored is None:
                yield Finding(Kind.BAD_FORMAT, "no format record")
            else:
                self._block = DiskFormat.unpack(stored).checksum_block_bytes
        except msgspec.MsgspecError as error:
            yield Finding(Kind.BAD_FORMAT, f"format record: {error}")
        if not self._block and self._has_data:
            self._has_data = False
            yield Finding(Kind.BAD_FORMAT, "checksum block size unknown: the data was not read")
        epoch = self._meta.get(EPOCH_KEY)
        if epoch is not None and len(epoch) != U64_BYTES:
            yield Finding(Kind.BAD_FORMAT, f"epoch record of {len(epoch)} bytes")
        for key, value in self._scan(USED_PREFIX):
            if len(key) == U64_KEY_BYTES and len(value) == U64_BYTES:
                self._tally.data_bytes_total += unpack_u64(value)
        outside = (b"", CHUNK_PREFIX), (bytes([TARGET_PREFIX[0] + 1]), b"\xff")
        for start, end in outside:
            for key, _ in self._meta.scan(start, end):
                yield Finding(Kind.UNKNOWN_RECORD, f"key {key.hex()}")
        for key in (EPOCH_KEY, FORMAT_KEY):
            for stored_key, _ in self._scan(key):
                if stored_key != key:
                    yield Finding(Kind.UNKNOWN_RECORD, f"key {stored_key.hex()}")

    def _load_undos(self) -> Iterator[Finding]:
        stored = self._meta.get(EPOCH_KEY) or b""
        durable = unpack_u64(stored) if len(stored) == U64_BYTES else 0
        for key, value in self._scan(UNDO_PREFIX):
            if len(key) != U64_KEY_BYTES + CHUNK_KEY_BYTES:
                yield Finding(Kind.BAD_RECORD, f"undo record {key.hex()}: key of {len(key)} bytes")
                continue
            epoch, chunk = split_undo_key(key)
            if epoch > durable:
                self._seen.unsettled.setdefault(chunk, []).append(value)

    # ----------------------------------------------------------------- chunks

    def _check_chunks(self) -> Iterator[Finding]:
        for key, value, pending_value in self._merged():
            if len(key) != CHUNK_KEY_BYTES:
                yield Finding(Kind.BAD_RECORD, f"chunk record: key {key.hex()}")
                continue
            self._tally.chunk_count += 1
            self._seen.targets.add(target_of_key(key))
            record = pending = None
            if value is not None:
                record, wrong = decoded(value, self._block)
                if record is None:
                    yield Finding(Kind.BAD_RECORD, wrong, key)
            if pending_value is not None:
                pending, wrong = decoded_pending(pending_value, self._block)
                if wrong:
                    yield Finding(Kind.BAD_RECORD, wrong, key)
            found = list(self._check_blocks(key, record, pending))
            yield from found
            has_block = all(finding.kind is not Kind.DOUBLE_USE for finding in found)
            if self._has_data and has_block:
                yield from self._check_bytes(key, record, pending)
            self._on_step()

    def _merged(self) -> Iterator[tuple[ChunkKey, bytes | None, bytes | None]]:
        """Yield (chunk, committed value, pending value) in chunk order."""
        pendings = self._scan(PENDING_PREFIX)
        pending = next(pendings, None)
        for key, value in self._scan(CHUNK_PREFIX):
            while pending is not None and pending[0][1:] < key[1:]:
                yield ChunkKey(pending[0][1:]), None, pending[1]
                pending = next(pendings, None)
            if pending is not None and pending[0][1:] == key[1:]:
                yield ChunkKey(key[1:]), value, pending[1]
                pending = next(pendings, None)
            else:
                yield ChunkKey(key[1:]), value, None
        while pending is not None:
            yield ChunkKey(pending[0][1:]), None, pending[1]
            pending = next(pendings, None)

    def _check_blocks(
        self, key: ChunkKey, record: ChunkRecord | None, pending: ChunkRecord | None
    ) -> Iterator[Finding]:
        """Is each block this chunk names its own?"""
        found = {r.position for r in (record, pending) if r is not None}
        for position in sorted(found - {NO_POSITION}):
            group = group_id(size_class_of_position(position), group_of_position(position))
            bit = 1 << block_of_position(position)
            owner = self._meta.get(position_key(position))
            file_id, start = place_of(position)
            where = file_name(file_id), start
            is_others = owner != key and self._names(owner, position)
            if is_others or self._seen.bits[group] & bit:
                yield self._double_use(key, record, position, owner)
                continue
            self._seen.bits[group] |= bit
            self._seen.used[target_of_key(key)] += capacity_of(position)
            if owner != key:
                detail = f"owner record says {owner_name(owner)}"
                fix = [(position_key(position), key)]
                yield Finding(Kind.WRONG_OWNER, detail, key, *where, fix)

    def _double_use(
        self, key: ChunkKey, record: ChunkRecord | None, position: Position, owner: bytes | None
    ) -> Finding:
        """A block that another chunk owns, or was first to name: this one loses it.

        The loser keeps its version without bytes, as damaged, so that resync or repair replaces it.
        """
        file_id, start = place_of(position)
        fix: list[tuple[bytes, bytes | None]] = []
        if record is not None and record.position == position:
            bare = structs.replace(record, position=NO_POSITION, checksums=b"", is_damaged=True)
            fix = [(CHUNK_PREFIX + key, bare.pack())]
        detail = (
            f"the block is also named by another chunk; its owner record says {owner_name(owner)}"
        )
        return Finding(Kind.DOUBLE_USE, detail, key, file_name(file_id), start, fix)

    def _names(self, owner: bytes | None, position: Position) -> bool:
        """Return whether the chunk `owner` does have a version at `position`."""
        if owner is None:
            return False
        value = self._meta.get(CHUNK_PREFIX + owner)
        pending = self._meta.get(PENDING_PREFIX + owner)
        stored = pending and record_in_pending(pending)
        values = [v for v in (value, stored) if v and len(v) >= RECORD_BYTES_MIN]
        return any(ChunkRecord.unpack(v).position == position for v in values)

    # ------------------------------------------------------------------- data

    def _check_bytes(
        self, key: ChunkKey, record: ChunkRecord | None, pending: ChunkRecord | None
    ) -> Iterator[Finding]:
        """Verify the versions of one chunk as the next open would choose among them."""
        if record is not None and record.is_damaged:
            file_id, start = (
                place_of(record.position) if record.position != NO_POSITION else (None, 0)
            )
            name = "" if file_id is None else file_name(file_id)
            yield Finding(Kind.DAMAGED, f"version {record.version}", key, name, start)
        elif (
            record is not None
            and (found := self._data.verify(key, record, self._block)) is not None
        ):
            yield self._torn_or_rotten(key, record, found)
        if (
            pending is not None
            and (found := self._data.verify(key, pending, self._block)) is not None
        ):
            yield replace(found, kind=Kind.TORN, detail=f"pending: {found.detail}")

    def _torn_or_rotten(self, key: ChunkKey, record: ChunkRecord, found: Finding) -> Finding:
        for value in reversed(self._seen.unsettled.get(key, [])):
            if not value:
                return replace(found, kind=Kind.TORN, detail=f"{found.detail}; back to nothing")
            older, _ = decoded(value, self._block)
            if older is not None and (
                older.is_damaged or self._data.verify(key, older, self._block) is None
            ):
                detail = f"{found.detail}; back to version {older.version}"
                return replace(found, kind=Kind.TORN, detail=detail)
        if key in self._seen.unsettled:
            return (
                found  # no whole version is left: nothing to be marked before the disk is settled
            )
        marked = structs.replace(record, is_damaged=True)
        return replace(found, fix=[(CHUNK_PREFIX + key, marked.pack())])

    # ------------------------------------------------------------------ rest

    def _check_undos(self) -> Iterator[Finding]:
        """May the versions that the next open might go back to be trusted?"""
        for key, values in self._seen.unsettled.items():
            for value in values:
                if not value:
                    continue
                older, wrong = decoded(value, self._block)
                if older is None:
                    yield Finding(Kind.BAD_RECORD, f"undo record: {wrong}", key)
                    continue
                owner = self._meta.get(position_key(older.position))
                if older.position != NO_POSITION and owner not in (None, key):
                    file_id, start = place_of(older.position)
                    detail = (
                        f"version {older.version} may come back, its block is {owner_name(owner)}"
                    )
                    yield Finding(Kind.DOUBLE_USE, detail, key, file_name(file_id), start)

    def _check_owners(self) -> Iterator[Finding]:
        for stored, owner in self._scan(POSITION_PREFIX):
            if len(stored) != U64_KEY_BYTES or len(owner) != CHUNK_KEY_BYTES:
                yield Finding(Kind.BAD_RECORD, f"owner record {stored.hex()}", fix=[(stored, None)])
                continue
            position = Position(unpack_u64(stored[1:]))
            if not is_position(position):
                yield Finding(Kind.BAD_RECORD, f"owner record {stored.hex()}", fix=[(stored, None)])
                continue
            group = group_id(size_class_of_position(position), group_of_position(position))
            if not self._seen.bits.get(group, 0) >> block_of_position(position) & 1:
                file_id, start = place_of(position)
                yield Finding(
                    Kind.STRAY_OWNER,
                    "the chunk does not name this block",
                    ChunkKey(owner),
                    file_name(file_id),
                    start,
                    [(stored, None)],
                )
            self._on_step()

    def _check_groups(self) -> Iterator[Finding]:
        left = dict(self._seen.bits)
        for stored, bitmap in self._scan(GROUP_PREFIX):
            group = GroupId(int.from_bytes(stored[1:], "big"))
            size_class, number = split_group_id(group)
            is_sound = len(stored) == GROUP_KEY_BYTES and size_class < SIZE_CLASS_COUNT
            if not is_sound or len(bitmap) != GROUP_BYTES:
                wanted = left.pop(group, 0) if is_sound else 0
                fix = (stored, wanted.to_bytes(GROUP_BYTES, "little") if wanted else None)
                yield Finding(Kind.BAD_RECORD, f"bitmap {stored.hex()}", fix=[fix])
                continue
            wanted = left.pop(group, 0)
            found = int.from_bytes(bitmap, "little")
            yield from self._compared(size_class, number, wanted, found)
        for group, wanted in left.items():
            yield from self._compared(*split_group_id(group), wanted, 0)

    def _compared(self, size_class: int, number: int, wanted: int, found: int) -> Iterator[Finding]:
        """One finding per block whose mark is wrong; each carries the whole right bitmap."""
        fix = group_key(group_id(size_class, number)), wanted.to_bytes(GROUP_BYTES, "little")
        wrong = wanted ^ found
        for block in range(BLOCKS_PER_GROUP) if wrong else ():
            if wrong >> block & 1:
                file_id, start = place_of(make_position(size_class, number, block))
                is_lost = found >> block & 1
                kind = Kind.LOST_BLOCK if is_lost else Kind.UNMARKED_BLOCK
                detail = (
                    "marked as used, named by no chunk" if is_lost else "in use, marked as free"
                )
                yield Finding(kind, detail, None, file_name(file_id), start, [fix])

    def _check_used(self) -> Iterator[Finding]:
        left = dict(self._seen.used)
        for key, value in self._scan(USED_PREFIX):
            target_id = TargetId(int.from_bytes(key[1:], "big"))
            wanted = left.pop(target_id, 0) if len(key) == U64_KEY_BYTES else 0
            if len(key) != U64_KEY_BYTES or len(value) != U64_BYTES:
                fix = (key, pack_u64(wanted) if len(key) == U64_KEY_BYTES else None)
                yield Finding(Kind.BAD_RECORD, f"used bytes {key.hex()}", fix=[fix])
            elif unpack_u64(value) != wanted:
                yield _wrong_used(target_id, wanted, unpack_u64(value))
        for target_id, wanted in left.items():
            yield _wrong_used(target_id, wanted, 0)

    def _check_targets(self) -> Iterator[Finding]:
        held: set[TargetId] = set()
        for key, value in self._scan(TARGET_PREFIX):
            if len(key) != U64_KEY_BYTES or value not in TARGET_STATES:
                yield Finding(Kind.BAD_RECORD, f"target record {key.hex()}: {value.hex()}")
            if value != TARGET_REMOVED:
                held.add(TargetId(int.from_bytes(key[1:], "big")))
        for key, _ in self._scan(NOTE_PREFIX):
            if not U64_KEY_BYTES < len(key) <= U64_KEY_BYTES + NOTE_KEY_BYTES_MAX:
                yield Finding(Kind.BAD_RECORD, f"note {key.hex()}")
            else:
                self._seen.targets.add(TargetId(unpack_u64(key[1:U64_KEY_BYTES])))
        for target_id in sorted(self._seen.targets - held):
            fix = (target_key(target_id), TARGET_HELD)
            yield Finding(Kind.NO_TARGET, f"target {target_id} has no target record", fix=[fix])

    def _scan(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        return iter(self._meta.scan(prefix, bytes([prefix[0] + 1])))


def _wrong_used(target_id: TargetId, wanted: int, found: int) -> Finding:
    return Finding(
        Kind.WRONG_USED,
        f"target {target_id}: {found} bytes recorded, {wanted} in use",
        fix=[(used_key(target_id), pack_u64(wanted))],
    )
