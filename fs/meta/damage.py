"""Records that cannot be, and what is said of them.  Pure.

Nothing is guessed from a damaged record: what needs it is refused with METADATA_DAMAGED,
which names the key; work in the background goes on with the others.  `ember fsck
--repair` puts right what can be.
"""

from typing import Final, TypeVar

from google.protobuf.message import DecodeError, Message

from ..schema.proto import common_pb2 as pb
from ..schema.proto.record_pb2 import GcRecordPb
from ..schema.status import FsError, Status
from . import records

LAST_TYPE: Final = max(pb.InodeTypePb.values())

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


def gc_record(key: bytes, value: bytes) -> GcRecordPb:
    """Return a record of garbage collection, which names the inode of its key;
    raises FsError(METADATA_DAMAGED).
    """
    record = decoded(GcRecordPb, key, value)
    if record.inode_id != records.gc_inode_id(key):
        raise damaged(key, f"it is about inode {record.inode_id:#x}")
    return record
