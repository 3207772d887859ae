"""What a check of a disk can find, and what would put it right.  Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from ..schema.ids import ChunkId, TargetId
from .format import ChunkKey, chunk_id_of_key, target_of_key


class Kind(StrEnum):
    """Kinds of findings; the names are part of the output for programs."""

    BAD_FORMAT = "bad-format"  # format or epoch record missing or unreadable
    BAD_STORE = "bad-store"  # RocksDB cannot read a part of the metadata, or all of it
    LOST_LOG = "lost-log"  # synced metadata changes are missing
    BAD_RECORD = "bad-record"  # a record that contradicts itself or cannot be decoded
    UNKNOWN_RECORD = "unknown-record"  # a record of no known kind
    BAD_DATA = "bad-data"  # bytes of a version that do not match their checksum
    SHORT_FILE = "short-file"  # a data file ends before the bytes of a version do, or is missing
    UNREADABLE = "unreadable"  # the disk refuses to read bytes of a version
    DOUBLE_USE = "double-use"  # a block that two chunks name
    LOST_BLOCK = "lost-block"  # a block marked as used that no chunk names
    UNMARKED_BLOCK = "unmarked-block"  # a block that a chunk names, marked as free
    WRONG_OWNER = "wrong-owner"  # the owner record of a block is missing or names another chunk
    STRAY_OWNER = "stray-owner"  # an owner record of a block that no chunk names
    WRONG_USED = "wrong-used"  # the used bytes of a target are not the sum of its blocks
    NO_TARGET = "no-target"  # chunks or notes of a target that has no target record
    FOREIGN_FILE = "foreign-file"  # a file where only data files belong
    DAMAGED = "damaged"  # notice: a version already known to be bad, waiting for a good copy
    TORN = "torn"  # notice: an unsynced version that a power loss tore; the next open drops it
    TORN_LOG = "torn-log"  # notice: RocksDB's log or list of files ends in a torn record
    BAD_MARK = "bad-mark"  # notice: the file that says how far the log was synced is damaged


NOTICES = frozenset({Kind.DAMAGED, Kind.TORN, Kind.TORN_LOG, Kind.BAD_MARK})
"""Nothing is lost: what a power loss may leave, or damage that is known and being dealt with."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing found."""

    kind: Kind
    detail: str
    chunk: ChunkKey | None = None
    file: str = ""
    """Relative to the disk's directory; empty if it is about no file."""
    offset: int = 0
    """In the file, bytes."""
    fix: Sequence[tuple[bytes, bytes | None]] = ()
    """Metadata changes that put it right; empty: the disk alone cannot."""

    @property
    def is_notice(self) -> bool:
        """Return whether this is no fault."""
        return self.kind in NOTICES

    @property
    def target_id(self) -> TargetId | None:
        """Return the target that it concerns."""
        return None if self.chunk is None else target_of_key(self.chunk)

    @property
    def chunk_id(self) -> ChunkId | None:
        """Return the chunk that it concerns."""
        return None if self.chunk is None else chunk_id_of_key(self.chunk)

    def line(self) -> str:
        """Return one line for people."""
        parts = [self.kind.value]
        if self.chunk is not None:
            chunk_id = chunk_id_of_key(self.chunk)
            parts.append(
                f"target {self.target_id} inode {chunk_id.inode_id} chunk {chunk_id.index}"
            )
        if self.file:
            parts.append(f"{self.file} byte {self.offset}")
        return ": ".join([*parts, self.detail])

    def facts(self) -> dict[str, Any]:
        """Return the same for programs."""
        chunk_id = self.chunk_id
        return {
            "kind": self.kind.value,
            "is_notice": self.is_notice,
            "can_repair": bool(self.fix),
            "target_id": self.target_id,
            "inode_id": chunk_id.inode_id if chunk_id else None,
            "chunk_index": chunk_id.index if chunk_id else None,
            "file": self.file,
            "offset": self.offset,
            "detail": self.detail,
        }
