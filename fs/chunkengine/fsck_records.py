"""Which stored values of a disk make sense by themselves: for the check of fs/chunkengine/fsck.py.

Pure.
"""

from typing import Final

from ..schema.layout import CHUNK_SIZE_BYTES_MAX
from .checksum import CHECKSUM_BYTES, digest_of
from .format import (
    CHUNK_KEY_BYTES,
    NO_POSITION,
    SIZE_CLASS_COUNT,
    ChunkKey,
    ChunkRecord,
    Position,
    capacity_of,
    chunk_id_of_key,
    group_of_position,
    size_class_of_position,
    split_pending,
    target_of_key,
)

RECORD_BYTES_MIN: Final = 40
GROUP_NUMBER_MAX: Final = 2**24


def decoded(value: bytes, block: int) -> tuple[ChunkRecord | None, str]:
    """Return a version's record that makes sense, or what is wrong with it;
    block 0: size of checksum blocks unknown.
    """
    if len(value) < RECORD_BYTES_MIN:
        return None, f"record of {len(value)} bytes"
    record = ChunkRecord.unpack(value)
    wrong = wrong_in_record(record, block)
    return (None, wrong) if wrong else (record, "")


def decoded_pending(value: bytes, block: int) -> tuple[ChunkRecord | None, str]:
    """The same of a pending record; (None, "") for a removal, which has no bytes."""
    parts = split_pending(value)
    if parts is None:
        return None, "pending: unknown flag or tag"
    is_remove, _, stored = parts
    record, wrong = decoded(stored, block)
    if record is not None and (record.chain_version or record.is_damaged):
        wrong = "with a chain version or a mark of damage"
    if wrong:
        return None, f"pending: {wrong}"
    return (None if is_remove else record), ""


def record_in_pending(value: bytes) -> bytes:
    """Return the stored version in a pending record; empty if it cannot be told."""
    parts = split_pending(value)
    return b"" if parts is None else parts[2]


def wrong_in_record(record: ChunkRecord, block: int) -> str:
    """Return in what a version's record contradicts itself, empty if in nothing;
    block 0: size unknown.
    """
    length, position, checksums = record.length, record.position, record.checksums
    if not record.version:
        return "version 0"
    if length > record.chunk_size_bytes or length > CHUNK_SIZE_BYTES_MAX:
        return f"length {length}, chunk size {record.chunk_size_bytes}"
    if position != NO_POSITION and not is_position(position):
        return f"position {position:#x}"
    if position != NO_POSITION and not 0 < length <= capacity_of(position):
        return f"length {length} in a block of {capacity_of(position)} bytes"
    if record.is_damaged and not checksums:
        return ""  # it came without its bytes: there is nothing to compare
    if position == NO_POSITION and length and not record.is_damaged:
        return f"length {length} without a block"
    if block and len(checksums) != -(-length // block) * CHECKSUM_BYTES:
        return f"length {length} with {len(checksums)} bytes of checksums"
    if digest_of(checksums, length) != record.digest:
        return "the digest does not match the checksums"
    return ""


def is_position(position: Position) -> bool:
    """Return whether a block may lie there."""
    return (
        size_class_of_position(position) < SIZE_CLASS_COUNT
        and group_of_position(position) < GROUP_NUMBER_MAX
    )


def owner_name(owner: bytes | None) -> str:
    """Return what an owner record says, for people."""
    if owner is None:
        return "nobody"
    if len(owner) != CHUNK_KEY_BYTES:
        return owner.hex()
    key = ChunkKey(owner)
    chunk_id = chunk_id_of_key(key)
    return f"target {target_of_key(key)} inode {chunk_id.inode_id} chunk {chunk_id.index}"
