"""Identifier types: a chain id where a target id belongs is a type error.

Pure; holds no behaviour beyond validation of ranges and the byte form of a chunk id.
"""

from typing import NewType

import msgspec

NodeId = NewType("NodeId", int)
"""A process of the cluster, 1..2**32-1; assigned by configuration,
never reused for another process.
"""

TargetId = NewType("TargetId", int)
"""One replica slot on one disk, 1..2**63-1; member of at most one chain."""

ChainId = NewType("ChainId", int)
"""An ordered list of targets holding the same chunks, 1..2**32-1."""

ChainTableId = NewType("ChainTableId", int)
"""A numbered list of chains, 1..2**32-1."""

InodeId = NewType("InodeId", int)
"""A file-system object, 1..2**63-1; see the constants below for reserved ones."""

ClientId = NewType("ClientId", str)
"""A mounted or native client: 32 lower-case hexadecimal digits, unique for ever."""

SessionId = NewType("SessionId", str)
"""A file session (one write open): 32 lower-case hexadecimal digits, unique for ever."""

ROOT_INODE_ID = InodeId(1)
"""The root directory; FUSE uses the same number."""

GC_ROOT_INODE_ID = InodeId(2)
"""Parent of removed directory trees until garbage collection has emptied them; never visible."""

TRASH_ROOT_INODE_ID = InodeId(3)
"""The directory of all users' trash, made when somebody first moves something there."""

FIRST_INODE_ID = InodeId(0x1000)
"""Ids below are reserved for objects made at cluster initialisation."""

VIRTUAL_INODE_ID_MIN = InodeId(0x7000_0000_0000_0000)
"""Ids from here on exist only inside one mount daemon (virtual files) and never reach a service."""

TARGET_ID_MAX = TargetId(2**63 - 1)
"""There is room above it, so the end of a target's keys can be written as the begin
of the next one's.
"""

CHUNK_ID_BYTES = 12
"""Length of a packed chunk id."""


def is_target_id(number: int) -> bool:
    """Return whether a number from outside may name a target."""
    return 0 < number <= TARGET_ID_MAX


class ChunkId(msgspec.Struct, frozen=True, order=True, gc=False):
    """Names one chunk of one file, cluster-wide; ordered by file, then by index.

    Made, hashed and compared several times for each read and update, so a
    struct of C and no dataclass.
    """

    inode_id: InodeId
    index: int
    """Position of the chunk in its file, from 0, below 2**32."""

    def pack(self) -> bytes:
        """Return the 12-byte form (big-endian inode id, big-endian index); sorts like the id."""
        return self.inode_id.to_bytes(8, "big") + self.index.to_bytes(4, "big")

    @classmethod
    def unpack(cls, packed: bytes) -> "ChunkId":
        """Inverse of `pack`; `packed` is exactly CHUNK_ID_BYTES long."""
        assert len(packed) == CHUNK_ID_BYTES, len(packed)
        return cls(InodeId(int.from_bytes(packed[:8], "big")), int.from_bytes(packed[8:], "big"))
