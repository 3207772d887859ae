"""Records that cannot be, and what is said of them.  Pure.

Nothing is guessed from a damaged record: what needs it is refused with METADATA_DAMAGED,
which names the key; work in the background goes on with the others.  `ember fsck
--repair` puts right what can be.
"""

import struct
from typing import Final, TypeVar

from google.protobuf.message import DecodeError, Message

from ..schema.proto import common_pb2 as pb
from ..schema.proto.record_pb2 import (
    DentryRecordPb,
    FormatRecordPb,
    GcRecordPb,
    IdempotencyRecordPb,
    QuotaRecordPb,
)
from ..schema.status import FsError, Status
from . import records

LAST_TYPE: Final = max(pb.InodeTypePb.values())
NUMBER_BYTES: Final = 8
TICK_MAX: Final = 2**40
"""A cluster counts one a minute (fs/meta/outcome_ticks.py): it never comes so far.  By a larger
one all outcomes would be over.
"""

MessageT = TypeVar("MessageT", bound=Message)


def damaged(key: bytes, what: str) -> FsError:
    """Return the error that says what is wrong with a record."""
    return FsError(Status.METADATA_DAMAGED, f"record {key!r}: {what}")


def require_known_type(inode: pb.InodePb) -> None:
    """Refuse an inode of a type that only a newer release can have made;
    raises FsError(KV_BAD_FORMAT).
    """
    if inode.type > LAST_TYPE:
        what = (
            f"inode {inode.inode_id:#x} is of type {inode.type}: made by a newer release, use "
            "that one"
        )
        raise FsError(Status.KV_BAD_FORMAT, what)


def decoded(type_: type[MessageT], key: bytes, value: bytes) -> MessageT:
    """Return what a record says; raises FsError(METADATA_DAMAGED)."""
    try:
        return type_.FromString(value)
    except DecodeError as error:
        raise damaged(key, f"no {type_.DESCRIPTOR.name}: {error}") from error


def require_inode(inode: pb.InodePb, inode_id: int) -> None:
    """Refuse what was read under the number of an inode and cannot be that one: it would be
    stored over what has its number, or shown as that.

    Raises:
        FsError: METADATA_DAMAGED; KV_BAD_FORMAT when a newer release made it.
    """
    if inode.inode_id != inode_id and inode.type:
        raise damaged(records.inode_key(inode_id), f"it says it is inode {inode.inode_id:#x}")
    require_known_type(inode)
    if not inode.type:
        raise damaged(records.inode_key(inode_id), "an inode of no type")


def inode_record(inode_id: int, value: bytes) -> pb.InodePb:
    """Return what the record of an inode says; raises FsError as `require_inode`.

    Every operation calls it several times: nothing is made here that only an error needs.
    """
    try:
        inode = pb.InodePb.FromString(value)
    except DecodeError as error:
        raise damaged(records.inode_key(inode_id), f"no InodePb: {error}") from error
    if inode.inode_id != inode_id or not 0 < inode.type <= LAST_TYPE:
        require_inode(inode, inode_id)
    return inode


def is_spread(part: pb.FilePartPb) -> bool:
    """Return whether a file says how its bytes are spread over chunks and chains."""
    layout = part.layout
    return bool(layout.chunk_size_bytes and layout.stripe_size)


def require_spread(inode: pb.InodePb) -> None:
    """Refuse a file of whose bytes none would be found; raises FsError(METADATA_DAMAGED)."""
    if not is_spread(inode.file):
        raise damaged(records.inode_key(inode.inode_id), "a file in chunks of no size, or nowhere")


def dentry_record(key: bytes, value: bytes) -> DentryRecordPb:
    """Return what a name leads to, which is something; raises FsError(METADATA_DAMAGED)."""
    record = decoded(DentryRecordPb, key, value)
    if not record.inode_id:
        raise damaged(key, "a name of nothing")
    return record


def quota_record(key: bytes, value: bytes) -> QuotaRecordPb:
    """Return the limits of a directory, of which there is one at least;
    raises FsError(METADATA_DAMAGED).
    """
    record = decoded(QuotaRecordPb, key, value)
    if not (record.bytes_max or record.inodes_max):
        raise damaged(key, "a quota without a limit")
    return record


def format_record(key: bytes, value: bytes) -> FormatRecordPb:
    """Return what the store is said to be; raises FsError(METADATA_DAMAGED)."""
    record = decoded(FormatRecordPb, key, value)
    if not record.format_version:
        raise damaged(key, "a format without a number")
    return record


def outcome_record(key: bytes, value: bytes) -> IdempotencyRecordPb:
    """Return what became of a request; raises FsError(METADATA_DAMAGED)."""
    record = decoded(IdempotencyRecordPb, key, value)
    if not (record.method_number or record.status):
        raise damaged(key, "neither a reply nor a refusal")
    if record.tick > TICK_MAX:
        raise damaged(key, f"remembered in tick {record.tick}")
    return record


def times(key: bytes, value: bytes) -> tuple[int, int]:
    """Return (mtime_ns, ctime_ns) of a directory; raises FsError(METADATA_DAMAGED)."""
    try:
        return records.unpack_times(value)
    except struct.error:
        raise damaged(key, f"two times in {len(value)} bytes") from None


def count(key: bytes, value: bytes | None) -> int:
    """Return the number in a counter, an absent one is 0; raises FsError(METADATA_DAMAGED)."""
    try:
        return records.unpack_count(value)
    except struct.error:
        raise damaged(key, f"a counter of {len(value or b'')} bytes") from None


def number(key: bytes, value: bytes | None) -> int:
    """Return an unsigned number, an absent one is 0; raises FsError(METADATA_DAMAGED)."""
    if value is not None and len(value) != NUMBER_BYTES:
        raise damaged(key, f"a number of {len(value)} bytes")
    return records.unpack_u64(value)


def tick(key: bytes, value: bytes | None) -> int:
    """Return a count of ticks, an absent one is 0; raises FsError(METADATA_DAMAGED)."""
    found = number(key, value)
    if found > TICK_MAX:
        raise damaged(key, f"{found} ticks")
    return found


def gc_record(key: bytes, value: bytes) -> GcRecordPb:
    """Return a record of garbage collection, which names the inode of its key;
    raises FsError(METADATA_DAMAGED).
    """
    if not records.is_gc_key(key):
        raise damaged(key, "cannot be a key")
    record = decoded(GcRecordPb, key, value)
    if record.inode_id != records.gc_inode_id(key):
        raise damaged(key, f"it is about inode {record.inode_id:#x}")
    return record
