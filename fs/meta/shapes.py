"""What a record of each kind looks like: how long its key and its value are,
and what can be read in them.  Pure.

An operation reads the record that it needs, and is refused where that is damaged.  Who visits all
records of a kind asks here first, for a record that cannot be one must not end the visit of the
others.

Does not judge what records say of each other (fs/meta/fsck.py).
"""

from collections.abc import Callable
from functools import partial
from typing import Final

from ..schema.inode import XATTR_NAME_BYTES_MAX
from ..schema.proto import common_pb2 as pb
from ..schema.proto.record_pb2 import (
    FileLocksRecordPb,
    FileSessionRecordPb,
    LockWaitsRecordPb,
    UsageFenceRecordPb,
)
from ..schema.status import FsError
from . import records
from .context import CLIENT_ID_BYTES_MAX, REQUEST_ID_BYTES
from .damage import (
    NUMBER_BYTES,
    count,
    damaged,
    decoded,
    dentry_record,
    format_record,
    number,
    outcome_record,
    quota_record,
    tick,
    times,
)
from .inode_ids import BLOCK_MAX, SHARD_COUNT

Judge = Callable[[bytes, bytes], object]
"""Raises FsError(METADATA_DAMAGED) for a key and its value."""

_WITH_ID: Final = 4 + 8
_ANY_NAME: Final = 4096
"""Names are judged by themselves, as `bad-name`."""


def typed_inode(key: bytes, value: bytes) -> pb.InodePb:
    """Return an inode that says of what type it is, whatever its number, and nothing that only
    another type has: a directory that is taken for something else would lose its names.

    Raises:
        FsError: METADATA_DAMAGED.
    """
    inode = decoded(pb.InodePb, key, value)
    if not inode.type:
        raise damaged(key, "an inode of no type")
    is_file, is_directory = inode.type == pb.FILE, inode.type == pb.DIRECTORY
    if inode.HasField("file") != is_file or (inode.HasField("directory") and not is_directory):
        raise damaged(key, f"an inode of type {inode.type}, by what it holds of another one")
    return inode


def inode_ids(key: bytes, value: bytes) -> int:
    """Return how many blocks of inode ids were given out of a shard;
    raises FsError(METADATA_DAMAGED).
    """
    block = number(key, value)
    if block > BLOCK_MAX:
        raise damaged(key, f"{block} blocks of inode ids, of {BLOCK_MAX} that there are")
    return block


def _anything(_key: bytes, _value: bytes) -> None:
    """Whatever the value, it is one."""


def _session(key: bytes, value: bytes) -> None:
    record = decoded(FileSessionRecordPb, key, value)
    if record.session_id.encode() != key[_WITH_ID:]:
        raise damaged(key, f"it is about session {record.session_id!r}")


def _of_client(key: bytes, value: bytes, *, judge: Judge) -> None:
    try:
        client_id = key[4:-9].decode()
    except UnicodeDecodeError:
        client_id = ""
    if key[-9:-8] != b"\x00" or not _can_be_client(client_id):
        raise damaged(key, "cannot be a key")
    judge(key, value)


def _can_be_client(client_id: str) -> bool:
    return 0 < len(client_id) <= CLIENT_ID_BYTES_MAX and "\x00" not in client_id


def _locks(key: bytes, value: bytes) -> None:
    """Of a client that cannot be one nothing could say that it is gone."""
    for lock in decoded(FileLocksRecordPb, key, value).locks:
        if not _can_be_client(lock.client_id):
            raise damaged(key, f"a lock of client {lock.client_id!r}")


def _waits(key: bytes, value: bytes) -> None:
    number(key, value[:NUMBER_BYTES])
    decoded(LockWaitsRecordPb, key, value[NUMBER_BYTES:])


def _usage(key: bytes, value: bytes) -> None:
    if key[_WITH_ID:] not in (
        records.KIND_BYTES,
        records.KIND_FILES,
        records.KIND_DIRECTORIES,
    ):
        raise damaged(key, "cannot be a key")
    count(key, value)


def _outcome(key: bytes, value: bytes) -> None:
    if key[-REQUEST_ID_BYTES - 1 : -REQUEST_ID_BYTES] != b"\x00":
        raise damaged(key, "cannot be a key")
    outcome_record(key, value)


def _singleton(key: bytes, value: bytes) -> None:
    judge = _SINGLETONS.get(key)
    if judge is not None:  # else one of a newer release, or a name that means what it is
        judge(key, value)


_SINGLETONS: Final[dict[bytes, Judge]] = {
    records.FORMAT_KEY: format_record,
    records.INODE_COUNT_KEY: count,
    records.INLINE_BYTES_KEY: count,
    records.GC_PAUSE_KEY: number,
    records.OUTCOME_TICK_KEY: tick,
    **{records.inode_ids_key(shard): inode_ids for shard in range(SHARD_COUNT)},
}

_SHAPES: Final[dict[bytes, tuple[int, int, Judge]]] = {
    records.INODE: (_WITH_ID, _WITH_ID, typed_inode),
    records.DENTRY: (_WITH_ID, _ANY_NAME, dentry_record),
    records.DIRECTORY_TIMES: (_WITH_ID, _WITH_ID, times),
    records.SUBDIRECTORY_COUNT: (_WITH_ID, _WITH_ID, count),
    records.FILE_SESSION: (_WITH_ID + 1, _ANY_NAME, _session),
    records.XATTR: (_WITH_ID + 1, _WITH_ID + XATTR_NAME_BYTES_MAX, _anything),
    records.IDEMPOTENCY: (4 + 1 + REQUEST_ID_BYTES, _ANY_NAME, _outcome),
    records.TRUNCATION: (_WITH_ID, _WITH_ID, number),
    records.INLINE: (_WITH_ID, _WITH_ID, _anything),
    records.FILE_LOCKS: (_WITH_ID, _WITH_ID, _locks),
    records.CLIENT_LOCKS: (_WITH_ID + 2, _ANY_NAME, partial(_of_client, judge=number)),
    records.DIRECTORY_LOCKS: (_WITH_ID + 2, _ANY_NAME, partial(_of_client, judge=number)),
    records.LOCK_WAITS: (_WITH_ID + 2, _ANY_NAME, partial(_of_client, judge=_waits)),
    records.USAGE: (_WITH_ID + 1, _WITH_ID + 1, _usage),
    records.QUOTA: (_WITH_ID, _WITH_ID, quota_record),
    records.QUOTA_NEAR: (_WITH_ID + 1, _WITH_ID + 1, _anything),
    records.USAGE_FENCE: (_WITH_ID, _WITH_ID, partial(decoded, UsageFenceRecordPb)),
    records.LINK: (_WITH_ID + 8 + 1, _ANY_NAME, _anything),
    records.TRASH: (_WITH_ID + 8 + 1, _ANY_NAME, _anything),
    records.SINGLETON: (4, _ANY_NAME, _singleton),
}
"""Between how many bytes a key has, and what judges the rest.  (GC records: fs/meta/damage.py.)"""


def require_shape(key: bytes, value: bytes) -> None:
    """Raise FsError(METADATA_DAMAGED) for what cannot be a record of its kind."""
    least, most, judge = _SHAPES[key[:4]]
    if not least <= len(key) <= most:
        raise damaged(key, "cannot be a key")
    judge(key, value)


def has_shape(key: bytes, value: bytes) -> bool:
    """Return whether something can be a record of its kind."""
    try:
        require_shape(key, value)
    except FsError:
        return False
    return True
