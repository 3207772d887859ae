"""Key map of the metadata service, and the few values that are not protobuf records.  Pure.

Every key starts with four letters; the rest is fixed-width numbers and then, at most, one name of
variable length, so that keys need no escaping.  LE8 and BE8 are 8 bytes little- and big-endian, ID8
is an inode id as `pack_id` writes it.

    INOD inode ID8                  -> InodePb (of directories: all but what DTIM and DCNT hold)
    DENT parent BE8, name           -> DentryRecordPb
    DTIM directory ID8              -> mtime, ctime: two signed LE8; newer than those in INOD; as
                                       one number, the larger one has the later ctime
    DCNT directory ID8              -> signed LE8 counter: its subdirectories
    INOS inode ID8, file session    -> FileSessionRecordPb
    XATR inode ID8, attribute name  -> the attribute's value
    IDEM client 0x00 request        -> IdempotencyRecordPb
    GCFI turn BE8, inode BE8        -> GcRecordPb: an inode without a name
    GCDI turn BE8, inode BE8        -> GcRecordPb: a removed tree that is still to be emptied
                                       (turn: when it is due; plus LARGE_TURN: it is large)
    TRUN inode ID8                  -> LE8 start time: a truncation whose chunks
                                       are not all gone yet
    INLN inode ID8                  -> InlineRecordPb: all bytes of an inline file
    FLCK inode ID8                  -> FileLocksRecordPb: advisory locks
    CLCK client 0x00 inode ID8      -> LE8 time of its first lock: the files on which
                                       a client holds locks
    DLCK client 0x00 inode ID8      -> LE8 time: the directories that a client has locked
    LWAI client 0x00 owner ID8      -> LE8 time of its newest wait, LockWaitsRecordPb: the locks
                                       that a process waits for
    USAG directory ID8, kind        -> signed LE8 counter of all below: kind b bytes, f
                                       files, d directories
    QUOT directory BE8              -> QuotaRecordPb
    QNEA directory ID8, kind        -> empty: a quota (kind b bytes, i inodes) is nearly used up
    UFEN directory ID8              -> UsageFenceRecordPb: a directory about to be moved
    LINK inode ID8, parent BE8, name -> empty: a name of an inode that has several, all but the home
    TRSH due BE8, parent BE8, name  -> empty: until when a name in the trash is kept
    SING name                       -> singletons: format, inode-count, inode-ids-SHARD,
                                       usage-epoch, usage-state, gc-pause, outcome-tick,
                                       inline-bytes (signed LE8 counter: the bytes of all INLN)

Invariants:
    - What several clients change at once is written blindly (DTIM, DCNT, USAG, inode-count,
      inline-bytes), so creates in one directory do not conflict, and DTIM never goes back; what
      decides (INOD of the parent, DENT) is read.
    - Inode keys spread runs of ids over the whole range, and keep the 256 of a run together: what
      one service makes one after the other is found in few places.  Dentries and GC keys are
      big-endian to be listed in order.

Source: deepseek-ai/3FS, key prefixes and record split; DTIM, DCNT, XATR and TRUN are ours.
"""

import struct
from collections.abc import Iterable
from functools import lru_cache
from typing import Final

from ..kv.api import prefix_end
from ..schema.ids import InodeId

INODE: Final = b"INOD"
DENTRY: Final = b"DENT"
DIRECTORY_TIMES: Final = b"DTIM"
SUBDIRECTORY_COUNT: Final = b"DCNT"
FILE_SESSION: Final = b"INOS"
XATTR: Final = b"XATR"
IDEMPOTENCY: Final = b"IDEM"
GC_FILE: Final = b"GCFI"
GC_DIRECTORY: Final = b"GCDI"
TRUNCATION: Final = b"TRUN"
INLINE: Final = b"INLN"
FILE_LOCKS: Final = b"FLCK"
CLIENT_LOCKS: Final = b"CLCK"
DIRECTORY_LOCKS: Final = b"DLCK"
LOCK_WAITS: Final = b"LWAI"
USAGE: Final = b"USAG"
QUOTA: Final = b"QUOT"
QUOTA_NEAR: Final = b"QNEA"
USAGE_FENCE: Final = b"UFEN"
LINK: Final = b"LINK"
TRASH: Final = b"TRSH"
SINGLETON: Final = b"SING"

KIND_BYTES: Final = b"b"
KIND_FILES: Final = b"f"
KIND_DIRECTORIES: Final = b"d"
KIND_INODES: Final = b"i"

FORMAT_KEY: Final = SINGLETON + b"meta-format"
INODE_COUNT_KEY: Final = SINGLETON + b"inode-count"
USAGE_EPOCH_KEY: Final = SINGLETON + b"usage-epoch"
USAGE_STATE_KEY: Final = SINGLETON + b"usage-state"
GC_PAUSE_KEY: Final = SINGLETON + b"gc-pause"
OUTCOME_TICK_KEY: Final = SINGLETON + b"outcome-tick"
INLINE_BYTES_KEY: Final = SINGLETON + b"inline-bytes"
FORMAT_VERSION: Final = 5
"""2: usage is counted.  A service that does not count must not serve it.

3: made with ids from TOGETHER_ID_MIN on; a store that was made before keeps its format, and its
ids.  4: may hold inline files.  A store that was made before keeps its format, and has none.  5:
may hold leases of directories; as above.
"""
COUNTED_FORMAT: Final = 2
INLINE_FORMAT: Final = 4
LEASED_FORMAT: Final = 5

TOGETHER_ID_MIN: Final = 1 << 52
"""Of keys of inodes with ids from here on, the lowest byte comes behind the five others,
so that runs of 256 lie together; the two highest bytes stay where they are, and tell which it is.
"""

LARGE_TURN: Final = 1 << 62
"""In the turn of a GC record: it is in the lane of what is large, behind all that is not.

No time is that late.  To releases that know no lanes such a record seems put off by a clock that
was ahead: they have it be due as if it had been removed just now, in the lane that they know.
"""

_TIMES = struct.Struct("<qq")
_COUNT = struct.Struct("<q")
_TURN_AND_INODE = struct.Struct(">QQ")
_DUE_AND_INODE = struct.Struct(">QQ")


def pack_id(inode_id: int) -> bytes:
    """Return an inode id as it stands in the keys of inodes (ID8)."""
    packed = inode_id.to_bytes(8, "little")
    return packed if inode_id < TOGETHER_ID_MIN else packed[1:6] + packed[:1] + packed[6:]


def unpack_id(packed: bytes) -> InodeId:
    """Inverse of `pack_id`."""
    number = int.from_bytes(packed, "little")
    if number >= TOGETHER_ID_MIN:
        number = int.from_bytes(packed[5:6] + packed[:5] + packed[6:], "little")
    return InodeId(number)


def runs(inode_ids: Iterable[int]) -> list[list[int]]:
    """Return inode ids in groups whose keys lie together, each in the order of its keys."""
    found: dict[bytes, list[int]] = {}
    for packed, inode_id in sorted((pack_id(inode_id), inode_id) for inode_id in inode_ids):
        place = packed[:5] if inode_id >= TOGETHER_ID_MIN else packed
        found.setdefault(place, []).append(inode_id)
    return list(found.values())


def inode_key(inode_id: int) -> bytes:
    """Return the key of an inode."""
    return INODE + pack_id(inode_id)


def dentry_prefix(parent_id: int) -> bytes:
    """Return what the keys of a directory's dentries start with."""
    return DENTRY + parent_id.to_bytes(8, "big")


def dentry_key(parent_id: int, name: bytes) -> bytes:
    """Return the key of a dentry."""
    return DENTRY + parent_id.to_bytes(8, "big") + name


def dentry_end(parent_id: int) -> bytes:
    """Return the first key after all dentries of a directory."""
    return DENTRY + (parent_id + 1).to_bytes(8, "big")


def dentry_name(key: bytes) -> bytes:
    """Return the name in a dentry's key."""
    return key[12:]


def directory_times_key(directory_id: int) -> bytes:
    """Return the key of a directory's newest times."""
    return DIRECTORY_TIMES + pack_id(directory_id)


def pack_times(mtime_ns: int, ctime_ns: int) -> bytes:
    """Return the value stored under `directory_times_key`."""
    return _TIMES.pack(mtime_ns, ctime_ns)


def unpack_times(value: bytes) -> tuple[int, int]:
    """Return (mtime_ns, ctime_ns)."""
    mtime_ns, ctime_ns = _TIMES.unpack(value)
    return mtime_ns, ctime_ns


def subdirectory_count_key(directory_id: int) -> bytes:
    """Return the key of a directory's counter of subdirectories."""
    return SUBDIRECTORY_COUNT + pack_id(directory_id)


@lru_cache(maxsize=4096)
def directory_rows(directory_id: int) -> tuple[bytes, bytes, bytes]:
    """Return the keys of the inode, the times and the counter of a directory,
    whose names are changed one after the other.
    """
    return (
        inode_key(directory_id),
        directory_times_key(directory_id),
        subdirectory_count_key(directory_id),
    )


def unpack_count(value: bytes | None) -> int:
    """Return the number in a counter; an absent one is 0."""
    return 0 if value is None else int(_COUNT.unpack(value)[0])


def pack_count(count: int) -> bytes:
    """Return the value of a counter."""
    return _COUNT.pack(count)


def file_session_prefix(inode_id: int) -> bytes:
    """Return what the keys of an inode's file sessions start with."""
    return FILE_SESSION + pack_id(inode_id)


def file_session_key(inode_id: int, session_id: str) -> bytes:
    """Return the key of a file session."""
    return FILE_SESSION + pack_id(inode_id) + session_id.encode()


def file_session_inode(key: bytes) -> InodeId:
    """Return the inode in a file session's key."""
    return unpack_id(key[4:12])


def xattr_prefix(inode_id: int) -> bytes:
    """Return what the keys of an inode's extended attributes start with."""
    return XATTR + pack_id(inode_id)


def xattr_key(inode_id: int, name: bytes) -> bytes:
    """Return the key of an extended attribute."""
    return XATTR + pack_id(inode_id) + name


def xattr_name(key: bytes) -> bytes:
    """Return the attribute name in a key."""
    return key[12:]


def idempotency_key(client_id: str, request_id: bytes) -> bytes:
    """Return the key under which the outcome of a request is remembered."""
    return IDEMPOTENCY + client_id.encode() + b"\x00" + request_id


def gc_turn(due_ns: int, *, is_large: bool) -> int:
    """Return what a GC record is sorted by."""
    return due_ns | LARGE_TURN if is_large else due_ns


def gc_key(prefix: bytes, turn: int, inode_id: int) -> bytes:
    """Return the key of a GC record; `prefix` is GC_FILE or GC_DIRECTORY."""
    return prefix + _TURN_AND_INODE.pack(turn, inode_id)


def gc_lane(prefix: bytes, *, is_large: bool) -> tuple[bytes, bytes]:
    """Return between which keys the GC records of one kind and one lane are."""
    first_large = gc_key(prefix, LARGE_TURN, 0)
    return (first_large, prefix_end(prefix)) if is_large else (prefix, first_large)


def is_gc_key(key: bytes) -> bool:
    """Return whether a key can be one of a GC record, as far as its length tells."""
    return len(key) == len(GC_FILE) + _TURN_AND_INODE.size


def gc_prefix(key: bytes) -> bytes:
    """Return which kind of GC record this key is of: GC_FILE or GC_DIRECTORY."""
    return key[:4]


def gc_inode_id(key: bytes) -> int:
    """Return the inode of the record of this key."""
    return int(_TURN_AND_INODE.unpack(key[4:])[1])


def gc_turn_of(key: bytes) -> int:
    """Return what the record of this key is sorted by."""
    return int(_TURN_AND_INODE.unpack(key[4:])[0])


def gc_due_ns(key: bytes) -> int:
    """Return when the record of this key is due."""
    return gc_turn_of(key) & ~LARGE_TURN


def is_gc_large(key: bytes) -> bool:
    """Return whether the record of this key is in the lane of what is large."""
    return bool(gc_turn_of(key) & LARGE_TURN)


def truncation_key(inode_id: int) -> bytes:
    """Return the key that marks an unfinished truncation."""
    return TRUNCATION + pack_id(inode_id)


def truncation_inode(key: bytes) -> InodeId:
    """Return the inode in a truncation's key."""
    return unpack_id(key[4:12])


def inline_key(inode_id: int) -> bytes:
    """Return the key of the bytes of an inline file."""
    return INLINE + pack_id(inode_id)


def file_locks_key(inode_id: int) -> bytes:
    """Return the key of a file's advisory locks."""
    return FILE_LOCKS + pack_id(inode_id)


def client_locks_key(client_id: str, inode_id: int) -> bytes:
    """Return the key that says that a client holds locks on a file."""
    return CLIENT_LOCKS + client_id.encode() + b"\x00" + pack_id(inode_id)


def directory_lock_key(client_id: str, directory_id: int) -> bytes:
    """Return the key that says that a client has locked a directory."""
    return DIRECTORY_LOCKS + client_id.encode() + b"\x00" + pack_id(directory_id)


def lock_waits_key(client_id: str, owner: int) -> bytes:
    """Return the key of what an owner of locks waits for."""
    return LOCK_WAITS + client_id.encode() + b"\x00" + pack_id(owner)


def client_locks_parts(key: bytes) -> tuple[str, InodeId]:
    """Return the client and the inode in the key of a client's locks on a file or directory,
    or the owner in that of its waits.
    """
    client_id, inode = key[4:-9], key[-8:]
    return client_id.decode(), unpack_id(inode)


def usage_key(directory_id: int, kind: bytes) -> bytes:
    """Return the key of a counter of what lies below a directory;
    `kind` is bytes, files or directories.
    """
    return USAGE + pack_id(directory_id) + kind


def quota_key(directory_id: int) -> bytes:
    """Return the key of a directory's quota."""
    return QUOTA + directory_id.to_bytes(8, "big")


def quota_directory(key: bytes) -> InodeId:
    """Return the directory in a quota's key."""
    return InodeId(int.from_bytes(key[4:12], "big"))


def quota_near_key(directory_id: int, kind: bytes) -> bytes:
    """Return the key that marks a nearly used up quota; `kind` is bytes or inodes."""
    return QUOTA_NEAR + pack_id(directory_id) + kind


def usage_fence_key(directory_id: int) -> bytes:
    """Return the key of a directory's fence."""
    return USAGE_FENCE + pack_id(directory_id)


def link_prefix(inode_id: int) -> bytes:
    """Return what the keys of an inode's names but for its home start with."""
    return LINK + pack_id(inode_id)


def link_key(inode_id: int, parent_id: int, name: bytes) -> bytes:
    """Return the key of one of several names of an inode."""
    return LINK + pack_id(inode_id) + parent_id.to_bytes(8, "big") + name


def link_place(key: bytes) -> tuple[InodeId, bytes]:
    """Return (parent, name) in the key of a link."""
    return InodeId(int.from_bytes(key[12:20], "big")), key[20:]


def trash_key(due_ns: int, parent_id: int, name: bytes) -> bytes:
    """Return the key that says when a name in the trash is removed."""
    return TRASH + _DUE_AND_INODE.pack(due_ns, parent_id) + name


def trash_parts(key: bytes) -> tuple[int, InodeId, bytes]:
    """Return (due_ns, parent, name) in such a key."""
    due_ns, parent_id = _DUE_AND_INODE.unpack(key[4:20])
    return int(due_ns), InodeId(parent_id), key[20:]


def inode_ids_key(shard: int) -> bytes:
    """Return the key of one shard of the inode id counter."""
    return SINGLETON + b"inode-ids-%d" % shard


def pack_u64(value: int) -> bytes:
    """Return a number as LE8."""
    return value.to_bytes(8, "little")


def unpack_u64(value: bytes | None) -> int:
    """Inverse of `pack_u64`; an absent value is 0."""
    return 0 if value is None else int.from_bytes(value, "little")
