"""What a pair of committed and pending version means to a caller:
states, checks, the version to read.  Pure.
"""

from ..schema.ids import ChunkId, TargetId
from ..schema.status import FsError, Status
from .api import ChunkState
from .checksum import digest_of
from .content import UpdatePlan, plan_update
from .format import (
    ChunkKey,
    ChunkRecord,
    PendingRecord,
    Position,
    capacity_of,
    chunk_id_of_key,
    chunk_key,
)
from .ledger import Ledger


def plan_on(
    base: ChunkRecord | None, offset: int, length: int, block: int, *, may_append: bool
) -> UpdatePlan:
    """Return the plan of an update of `base`."""
    old_length, capacity = (base.length, capacity_of(base.position)) if base else (0, 0)
    return plan_update(old_length, capacity, offset, length, block, may_append=may_append)


def kept_base(
    key: ChunkKey, old: ChunkRecord | None, start: int, end: int, *, is_full_replace: bool
) -> ChunkRecord | None:
    """Return the version that an update of the bytes start..end builds upon, None for nothing.

    Raises:
        FsError: CHECKSUM_MISMATCH if bytes of a damaged version would have to be kept.
    """
    if old is None or is_full_replace:
        return None
    if not old.is_damaged:
        return old
    if start == 0 and end >= old.length:
        return None
    raise FsError(
        Status.CHECKSUM_MISMATCH,
        f"{chunk_id_of_key(key)}: version {old.version} is known to be damaged",
    )


def new_record(
    version: int, position: Position, chunk_size_bytes: int, length: int, checksums: bytes
) -> ChunkRecord:
    """Return a version that is not committed yet."""
    digest = digest_of(checksums, length)
    return ChunkRecord(version, 0, position, digest, chunk_size_bytes, length, checksums)


def committed_record(made: ChunkRecord, chain_version: int) -> ChunkRecord:
    """Return a version as it is once it is committed under that version of its chain."""
    return ChunkRecord(
        made.version,
        chain_version,
        made.position,
        made.digest,
        made.chunk_size_bytes,
        made.length,
        made.checksums,
    )


def check_version(key: ChunkKey, old: ChunkRecord | None, version: int, *, is_any: bool) -> None:
    """Raise FsError(COMMITTED_UPDATE or MISSING_UPDATE) unless `version` comes next,
    or any will do.
    """
    committed = old.version if old else 0
    if version <= 0 or (not is_any and version != committed + 1):
        raise version_error(key, old, version)


def version_error(key: ChunkKey, old: ChunkRecord | None, version: int) -> FsError:
    """Return the error for a version that does not fit."""
    committed = old.version if old else 0
    status = Status.COMMITTED_UPDATE if version <= committed else Status.MISSING_UPDATE
    return FsError(status, f"{chunk_id_of_key(key)}: version {version}, committed is {committed}")


def find_version(
    ledger: Ledger, target_id: TargetId, chunk_id: ChunkId, version: int
) -> ChunkRecord | FsError:
    """Return the version to read; a committed version newer than the one asked for will do."""
    key = chunk_key(target_id, chunk_id)
    record = ledger.record(key)
    if record is not None and version <= record.version:
        return record
    pending = ledger.pendings.get(key) if version else None
    if pending is not None and pending.record.version == version and not pending.is_remove:
        return pending.record
    has_it = record is not None and (pending is None or not pending.is_remove)
    status = Status.MISSING_UPDATE if has_it else Status.CHUNK_NOT_FOUND
    return FsError(status, f"target {target_id} {chunk_id}: version {version}")


def known_state(
    key: ChunkKey, record: ChunkRecord | None, pending: PendingRecord | None
) -> ChunkState:
    """Return the state of a chunk that exists."""
    state = state_of(key, record, pending)
    assert state is not None, key
    return state


def state_of(
    key: ChunkKey, record: ChunkRecord | None, pending: PendingRecord | None
) -> ChunkState | None:
    """Return the state of a chunk, None if it has no version."""
    if record is None and pending is None:
        return None
    chunk_id = chunk_id_of_key(key)
    made = pending.record if pending else None
    size = record.chunk_size_bytes if record else made.chunk_size_bytes if made else 0
    return ChunkState(
        chunk_id,
        record.version if record else 0,
        record.chain_version if record else 0,
        record.length if record else 0,
        record.digest if record else 0,
        size,
        made.version if made else 0,
        pending.is_remove if pending else False,
        made.length if made else 0,
        made.digest if made else 0,
        record.is_damaged if record else False,
        pending.tag if pending else b"",
    )
