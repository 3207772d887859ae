"""What a check knows about one inode, and what it says.  Pure."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from ..kv.api import KeyValue
from ..schema.proto import common_pb2 as pb
from ..schema.proto.record_pb2 import DentryRecordPb, GcRecordPb
from . import records

BY_INODE: Final = (
    records.INODE,
    records.DIRECTORY_TIMES,
    records.SUBDIRECTORY_COUNT,
    records.FILE_SESSION,
    records.XATTR,
    records.TRUNCATION,
    records.INLINE,
    records.FILE_LOCKS,
    records.USAGE,
    records.QUOTA_NEAR,
    records.USAGE_FENCE,
    records.LINK,
)
"""Prefixes whose keys go on with the inode as LE8: all of them are read side by side."""

NAME: Final = b"N"
ENTRIES: Final = b"E"
GC: Final = b"G"
LOCK_INDEX: Final = b"L"
DIRECTORY_LOCK: Final = b"D"
QUOTA: Final = b"Q"
TRASHED: Final = b"M"
TRASH_KEY: Final = b"T"
CHUNKS: Final = b"C"
"""Kinds of what is sorted by inode first."""


class Kind(StrEnum):
    """What can be wrong; the names are for people and programs."""

    BAD_NAME = "bad-name"
    DANGLING_NAME = "dangling-name"
    WRONG_TYPE = "wrong-type"
    NO_DIRECTORY = "no-directory"
    EXTRA_NAME = "extra-name"
    WRONG_PARENT = "wrong-parent"
    ORPHAN_INODE = "orphan-inode"
    WRONG_NLINK = "wrong-nlink"
    WRONG_HOME = "wrong-home"
    WRONG_ID = "wrong-id"
    NOT_ALLOTTED = "not-allotted"
    WRONG_SUBDIRECTORIES = "wrong-subdirectories"
    WRONG_USAGE = "wrong-usage"
    WRONG_INODE_COUNT = "wrong-inode-count"
    LOOP = "loop"
    NO_ROOT = "no-root"
    NOT_COLLECTED = "not-collected"
    WRONG_GC = "wrong-gc"
    WRONG_TRUNCATION = "wrong-truncation"
    WRONG_TRASH = "wrong-trash"
    WRONG_FILE = "wrong-file"
    WRONG_INLINE = "wrong-inline"
    WRONG_INLINE_BYTES = "wrong-inline-bytes"
    WRONG_SPACE = "wrong-space"
    WRONG_BARE = "wrong-bare"
    WRONG_LOCKS = "wrong-locks"
    LEFT_OVER = "left-over"
    DEAD_SESSION = "dead-session"
    ORPHAN_CHUNK = "orphan-chunk"
    CHUNK_BEYOND_END = "chunk-beyond-end"
    MISPLACED_CHUNK = "misplaced-chunk"
    NO_CHAIN = "no-chain"
    NO_CHUNKS = "no-chunks"
    NOT_LOOKED_AT = "not-looked-at"
    DAMAGED_RECORD = "damaged-record"


Row = tuple[bytes, bytes | None]
"""A key and its value; None: absent."""


@dataclass(frozen=True, slots=True)
class ChunkRun:
    """Some chunks of the inode on one target."""

    target_id: int
    chain_id: int
    first_index: int
    last_index: int
    chunk_count: int = 0
    byte_count: int = 0
    """Of all of them together."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong, and what would put it right.

    A repair is one transaction: if all `guards` are as they were when
    the finding was made, it writes.
    """

    kind: Kind
    inode_id: int
    text: str
    is_notice: bool = False
    """Mentioned, although nothing need be wrong."""
    guards: tuple[Row, ...] = ()
    exists: tuple[bytes, ...] = ()
    """Keys that must be there, whatever their value."""
    empty: tuple[tuple[bytes, bytes], ...] = ()
    """Ranges that must hold nothing."""
    writes: tuple[Row, ...] = ()
    clears: tuple[tuple[bytes, bytes], ...] = ()
    """Ranges."""
    adds: tuple[tuple[bytes, int], ...] = ()
    is_adoption: bool = False
    """The repair is a name in lost+found."""
    is_loss: bool = False
    """The repair gives up what a user has: it takes a person's word."""
    chunks: ChunkRun | None = None
    """What it is about, if it was found on a target: to be looked at again before it is told."""
    space: int | None = None
    """How many bytes the chunks of the file were found to hold, if it is about that:
    to be counted again before it is told.
    """

    @property
    def is_repairable(self) -> bool:
        """There is a repair in the key-value store."""
        return bool(self.writes or self.clears or self.adds or self.is_adoption)

    def facts(self) -> dict[str, object]:
        """Return what programs read."""
        return {
            "kind": str(self.kind),
            "inode_id": self.inode_id,
            "is_notice": self.is_notice,
            "text": self.text,
        }

    def line(self) -> str:
        """Return what people read."""
        return f"{'notice' if self.is_notice else 'FINDING'} {self.kind}: {self.text}"


@dataclass(frozen=True, slots=True)
class Name:
    """One dentry that leads to the inode."""

    key: bytes
    value: bytes

    @property
    def parent_id(self) -> int:
        """The directory it is in."""
        return int.from_bytes(self.key[4:12], "big")

    @property
    def name(self) -> bytes:
        """As users see it."""
        return records.dentry_name(self.key)

    @property
    def place(self) -> tuple[int, bytes]:
        """(parent, name)."""
        return self.parent_id, self.name

    @property
    def record(self) -> DentryRecordPb:
        """What it says."""
        return DentryRecordPb.FromString(self.value)

    @property
    def text(self) -> str:
        """For people."""
        return f"name {self.name!r} in {self.parent_id:#x}"


@dataclass(slots=True)
class Entries:
    """How many names a directory holds."""

    name_count: int = 0
    subdirectory_count: int = 0


@dataclass(slots=True)
class Facts:
    """All that is said of one inode."""

    inode_id: int
    rows: dict[bytes, list[KeyValue]] = field(default_factory=dict)
    """By prefix, of BY_INODE."""
    names: list[Name] = field(default_factory=list)
    entries: Entries = field(default_factory=Entries)
    gc: list[KeyValue] = field(default_factory=list)
    locking_clients: set[str] = field(default_factory=set)
    """By the index of locks."""
    directory_lockers: set[str] = field(default_factory=set)
    """By the index of locks of directories."""
    has_quota: bool = False
    trashed: list[Name] = field(default_factory=list)
    """Names in this directory that carry a mark of the trash."""
    trash_keys: set[bytes] = field(default_factory=set)
    """Keys that say when names in this directory are removed."""
    chunk_runs: list[ChunkRun] = field(default_factory=list)
    inode: pb.InodePb | None = None
    is_unreadable: bool = False
    """There is a record of the inode, and it says nothing, or that it is of another one."""

    @property
    def key(self) -> bytes:
        """Of the inode's record."""
        return records.inode_key(self.inode_id)

    @property
    def seen(self) -> Row:
        """The inode's record as it was read: guard of most repairs."""
        found = self.rows.get(records.INODE)
        return self.key, found[0][1] if found else None

    @property
    def text(self) -> str:
        """For people."""
        is_directory = self.inode is not None and self.inode.type == pb.DIRECTORY
        return f"{'directory' if is_directory else 'inode'} {self.inode_id:#x}"

    def gc_records(self) -> list[tuple[bytes, bytes, GcRecordPb]]:
        """Return key, value and meaning of the GC records."""
        return [(key, value, GcRecordPb.FromString(value)) for key, value in self.gc]
