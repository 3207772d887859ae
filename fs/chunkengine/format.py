"""What a disk holds, byte for byte: keys and values of the metadata store, names of data files.

Pure.

All numbers are big-endian, so that keys sort like what they name.  Format version 2.

| key                                        | value |
|--------------------------------------------|-------|
| 0x01 target u64, inode u64, index u32      | chunk record: the committed version |
| 0x02 group u32 (size class u8, number u24) | 32 bytes: bit i, lowest first = block i used |
| 0x03 position u64                          | 20 bytes: target, inode, index of the owner |
| 0x04 target u64                            | bytes of blocks in use, u64 |
| 0x05                                       | durable epoch u64 |
| 0x06 epoch u64, target, inode, index       | undo record: previous chunk record, empty = none |
| 0x07 target u64, inode u64, index u32      | pending record |
| 0x08                                       | format record (JSON) |
| 0x09 target u64, note key (1..64 bytes)    | note: what storage wants to know with its commit |
| 0x0A target u64                            | 1: held, 2: being removed, 3: was removed |

A chunk record is {commit version u64, chain version u64, position u64, digest u64, chunk size
u32, length u32} followed by the packed checksums, 8 bytes per checksum block.  The highest
bit of the chunk size means that the bytes are known to be damaged; the position and the
checksums may then be missing.  A pending record is one flag byte (1 = removal, 2 = tag), with
a tag its length in a byte and itself, then a chunk record whose commit version is the pending
one and whose chain version is 0.

A position is {size class u8, group number u32, block u8} packed into the low 48 bits of a u64;
NO_POSITION stands for the block of an empty version.  Block `b` of group `g` of a size class lies
in data file `g mod 256` at byte `block size * (g div 256 * 256 + b)`.

Invariants:
    - Every set bit of a group has exactly one position record; both are written in the same batch.
    - Every chunk, pending and note key belongs to a target that has a target record.
    - A byte sequence written by one format version is never read as another:
      the format record decides first.

Source: deepseek-ai/3FS design notes, "Chunk engine"; the encoding is ours.
Version 1 had neither notes nor target records (fs/chunkengine/upgrade.py).
"""

import struct
from typing import Final, NewType

import msgspec

from ..schema.ids import CHUNK_ID_BYTES, ChunkId, TargetId
from ..schema.layout import CHUNK_SIZE_BYTES_MAX, CHUNK_SIZE_BYTES_MIN

FORMAT_VERSION: Final = 2
BLOCKS_PER_GROUP: Final = 256
FILES_PER_SIZE: Final = 256
SIZE_CLASS_COUNT: Final = (CHUNK_SIZE_BYTES_MAX // CHUNK_SIZE_BYTES_MIN).bit_length()
"""11: 64 KiB, 128 KiB ... 64 MiB."""

Position = NewType("Position", int)
"""Where a block lies: size class, group, block."""

GroupId = NewType("GroupId", int)
"""A group of 256 blocks: size class << 24 | number."""

FileId = NewType("FileId", int)
"""A data file: size class << 8 | file index 0..255."""

NO_POSITION: Final = Position(2**64 - 1)

CHUNK_PREFIX: Final = b"\x01"
GROUP_PREFIX: Final = b"\x02"
POSITION_PREFIX: Final = b"\x03"
USED_PREFIX: Final = b"\x04"
EPOCH_KEY: Final = b"\x05"
UNDO_PREFIX: Final = b"\x06"
PENDING_PREFIX: Final = b"\x07"
FORMAT_KEY: Final = b"\x08"
NOTE_PREFIX: Final = b"\x09"
TARGET_PREFIX: Final = b"\x0a"

TARGET_HELD: Final = b"\x01"
TARGET_REMOVING: Final = b"\x02"
TARGET_REMOVED: Final = b"\x03"

ChunkKey = NewType("ChunkKey", bytes)
"""Target and chunk id, 20 bytes: names a chunk of this disk in memory and as a tail
of several keys.
"""

CHUNK_KEY_BYTES: Final = 8 + CHUNK_ID_BYTES
_DAMAGED_BIT: Final = 1 << 31
_RECORD: Final = struct.Struct(">QQQQII")
_KEY: Final = struct.Struct(">QQI")
_U64: Final = struct.Struct(">Q")
_U32: Final = struct.Struct(">I")


class ChunkRecord(msgspec.Struct, frozen=True):
    """One version of a chunk: where its bytes lie and what they must hash to."""

    version: int
    chain_version: int
    position: Position
    digest: int
    chunk_size_bytes: int
    length: int
    checksums: bytes
    """8 bytes per checksum block of the version; empty if it came without its bytes."""
    is_damaged: bool = False
    """The bytes are known to be bad, or were never here: this version cannot be read."""

    def pack(self) -> bytes:
        """Return the stored form."""
        head = _RECORD.pack(
            self.version,
            self.chain_version,
            self.position,
            self.digest,
            self.chunk_size_bytes | (_DAMAGED_BIT if self.is_damaged else 0),
            self.length,
        )
        return head + self.checksums

    @classmethod
    def unpack(cls, value: bytes) -> "ChunkRecord":
        """Inverse of `pack`."""
        version, chain_version, position, digest, size, length = _RECORD.unpack_from(value)
        checksums = value[_RECORD.size :]
        if not size & _DAMAGED_BIT:
            return cls(version, chain_version, Position(position), digest, size, length, checksums)
        size ^= _DAMAGED_BIT
        return cls(
            version, chain_version, Position(position), digest, size, length, checksums, True
        )


_IS_REMOVE: Final = 1
_HAS_TAG: Final = 2


class PendingRecord(msgspec.Struct, frozen=True):
    """A prepared version; of a removal only `record.version` means anything."""

    record: ChunkRecord
    is_remove: bool
    tag: bytes = b""
    """Whose update it is; opaque, at most 255 bytes."""

    def pack(self) -> bytes:
        """Return the stored form: flags (1: removal, 2: tag),
        with a tag its length and itself, the record.
        """
        flags = (_IS_REMOVE if self.is_remove else 0) | (_HAS_TAG if self.tag else 0)
        head = bytes((flags, len(self.tag))) + self.tag if self.tag else bytes((flags,))
        return head + self.record.pack()

    @classmethod
    def unpack(cls, value: bytes) -> "PendingRecord":
        """Inverse of `pack`."""
        parts = split_pending(value)
        assert parts is not None, value
        is_remove, tag, record = parts
        return cls(ChunkRecord.unpack(record), is_remove, tag)


def split_pending(value: bytes) -> tuple[bool, bytes, bytes] | None:
    """Return whether a stored pending record is a removal, its tag and its chunk record;
    None for no such thing.
    """
    if not value or value[0] & ~(_IS_REMOVE | _HAS_TAG):
        return None
    is_remove = bool(value[0] & _IS_REMOVE)
    if not value[0] & _HAS_TAG:
        return is_remove, b"", value[1:]
    tag, rest = value[2:][: value[1]] if len(value) > 1 else b"", value[2:]
    return (is_remove, tag, rest[len(tag) :]) if tag and len(tag) == value[1] else None


class DiskFormat(msgspec.Struct, frozen=True, kw_only=True):
    """The format record: whose disk this is and how it is laid out."""

    format_version: int
    cluster_id: str
    node_id: int
    disk_uuid: str
    checksum_block_bytes: int

    def pack(self) -> bytes:
        """Return the stored form."""
        return msgspec.json.encode(self)

    @classmethod
    def unpack(cls, value: bytes) -> "DiskFormat":
        """Inverse of `pack`; raises msgspec.MsgspecError for anything else."""
        try:
            return msgspec.json.decode(value, type=cls)
        except UnicodeDecodeError as error:  # which is none of msgspec's own
            raise msgspec.DecodeError(str(error)) from error


def chunk_key(target_id: TargetId, chunk_id: ChunkId) -> ChunkKey:
    """Return the name of a chunk of this disk."""
    return ChunkKey(_KEY.pack(target_id, chunk_id.inode_id, chunk_id.index))


def target_of_key(key: ChunkKey) -> TargetId:
    """Return the target part."""
    return TargetId(_U64.unpack_from(key)[0])


def chunk_id_of_key(key: bytes) -> ChunkId:
    """Return the chunk id part."""
    return ChunkId.unpack(key[8:])


def target_prefix(target_id: TargetId) -> bytes:
    """Return what the chunk keys of a target start with."""
    return _U64.pack(target_id)


def undo_key(epoch: int, key: ChunkKey) -> bytes:
    """Return the key of an undo record."""
    return UNDO_PREFIX + _U64.pack(epoch) + key


def split_undo_key(stored: bytes) -> tuple[int, ChunkKey]:
    """Inverse of `undo_key`."""
    return _U64.unpack_from(stored, 1)[0], ChunkKey(stored[9:])


def position_key(position: Position) -> bytes:
    """Return the key that names the owner of a block."""
    return POSITION_PREFIX + _U64.pack(position)


def group_key(group_id: GroupId) -> bytes:
    """Return the key of a group's bitmap."""
    return GROUP_PREFIX + _U32.pack(group_id)


def used_key(target_id: TargetId) -> bytes:
    """Return the key of a target's used bytes."""
    return USED_PREFIX + _U64.pack(target_id)


def target_key(target_id: TargetId) -> bytes:
    """Return the key that says that the disk holds a target."""
    return TARGET_PREFIX + _U64.pack(target_id)


def note_key(target_id: TargetId, key: bytes) -> bytes:
    """Return the key of a note."""
    return NOTE_PREFIX + _U64.pack(target_id) + key


def pack_u64(value: int) -> bytes:
    """Return a number as a value."""
    return _U64.pack(value)


def unpack_u64(value: bytes) -> int:
    """Inverse of `pack_u64`."""
    number: int = _U64.unpack(value)[0]
    return number


def size_class_of(length: int) -> int:
    """Return the smallest size class whose blocks hold `length` bytes, 1..64 MiB."""
    assert 0 < length <= CHUNK_SIZE_BYTES_MAX, length
    return max(0, (length - 1).bit_length() - (CHUNK_SIZE_BYTES_MIN.bit_length() - 1))


def block_bytes(size_class: int) -> int:
    """Return the size of the blocks of a size class."""
    return CHUNK_SIZE_BYTES_MIN << size_class


def make_position(size_class: int, group: int, block: int) -> Position:
    """Return the position of a block."""
    return Position(size_class << 40 | group << 8 | block)


def size_class_of_position(position: Position) -> int:
    """Return the size class."""
    return position >> 40


def group_of_position(position: Position) -> int:
    """Return the group number within the size class."""
    return position >> 8 & 0xFFFF_FFFF


def block_of_position(position: Position) -> int:
    """Return the block within the group."""
    return position & 0xFF


def capacity_of(position: Position) -> int:
    """Return how many bytes fit at a position; 0 for NO_POSITION."""
    return 0 if position == NO_POSITION else CHUNK_SIZE_BYTES_MIN << (position >> 40)


def place_of(position: Position) -> tuple[FileId, int]:
    """Return the data file of a block and the byte where it starts."""
    size_class, group, block = position >> 40, position >> 8 & 0xFFFF_FFFF, position & 0xFF
    # Without calls, of which reads make these for every row.
    file_id: FileId = size_class << 8 | group % FILES_PER_SIZE  # type: ignore[assignment]
    number = group // FILES_PER_SIZE * BLOCKS_PER_GROUP + block
    return file_id, (CHUNK_SIZE_BYTES_MIN << size_class) * number


def group_id(size_class: int, group: int) -> GroupId:
    """Return the id of a group."""
    return GroupId(size_class << 24 | group)


def split_group_id(packed: GroupId) -> tuple[int, int]:
    """Return (size class, group number)."""
    return packed >> 24, packed & 0xFF_FFFF


def file_name(file_id: FileId) -> str:
    """Return the path of a data file below the disk's directory, such as `64k/0A`."""
    return f"{DATA_DIRECTORIES[file_id >> 8]}/{file_id & 0xFF:02X}"


def _label(size: int) -> str:
    return f"{size >> 20}m" if size >= 1 << 20 else f"{size >> 10}k"


DATA_DIRECTORIES: Final = tuple(_label(block_bytes(index)) for index in range(SIZE_CLASS_COUNT))
"""Names of the directories that hold the data files, by size class."""
