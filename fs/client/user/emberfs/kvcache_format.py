"""The bytes of a KV cache's segment, and nothing but them; pure.

All numbers are little-endian; specs/kvcache.md says why.

    bytes                        content
    0 .. 56                      header: magic, id of the segment, bytes of a block, number of
                                 slots, when it was made, seal
    64 .. 72                     stamp: any other number after something has been deleted
    4096 .. 4096 + 40 * slots    entry n says what lies in slot n
    from a multiple of 1 MiB     the slots, one block each, to the end of the file

An entry is the digest of a key, the XXH3-64 of its block, when it was put, and a seal over all
this, the id of the segment and the number of the slot: an entry that was torn, moved, or copied
from elsewhere is none.  Deleted: an entry of zeros with its seal.

What this module does not do: files (`kvcache`), which block is found where (`kvcache_index`).
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final, NamedTuple

from xxhash import xxh3_64_intdigest

MAGIC: Final = b"EMBERKV1"
DIGEST_BYTES: Final = 16
ID_BYTES: Final = 16
SLOTS_MAX: Final = 1 << 20
BLOCK_BYTES_MAX: Final = 1 << 30
STAMP_OFFSET: Final = 64
STAMP_BYTES: Final = 8
HEAD_BYTES: Final = STAMP_OFFSET + STAMP_BYTES
"""What is read of a segment that is not known yet."""

_HEADER: Final = struct.Struct("<8s16sQQQQ")
_ENTRY: Final = struct.Struct("<16sQQQ")
ENTRY_BYTES: Final = _ENTRY.size
_SEALED: Final = struct.Struct("<16sQ")
"""What a seal covers besides the record: the segment's id and a number."""
_INDEX_OFFSET: Final = 4096
_ALIGNMENT: Final = 1 << 20
"""A chunk of a file by default: entries and blocks share none,
and blocks of powers of two cross none.
"""
_HEADER_NUMBER: Final = (1 << 64) - 1
"""Stands in the header's seal where entries have their slot."""


def key_digest(key: bytes) -> bytes:
    """Return what stands for a key of any length;
    raises ValueError for an empty one, TypeError for what is no bytes.
    """
    if not key:
        raise ValueError("an empty key")
    try:
        return blake2b(key, digest_size=DIGEST_BYTES).digest()
    except TypeError:
        kind = type(key).__name__
        raise TypeError(f"a key is {kind}, not bytes (and keys are a list of them)") from None


def block_checksum(block: memoryview) -> int:
    """Return the XXH3-64 of a block."""
    return xxh3_64_intdigest(block)


@dataclass(frozen=True, slots=True)
class Geometry:
    """How a segment is divided; what does not fit the limits is a ValueError."""

    block_bytes: int
    slot_count: int

    def __post_init__(self) -> None:
        if not 1 <= self.block_bytes <= BLOCK_BYTES_MAX:
            raise ValueError(f"{self.block_bytes} bytes a block: 1 to {BLOCK_BYTES_MAX} can be")
        if not 1 <= self.slot_count <= SLOTS_MAX:
            raise ValueError(f"{self.slot_count} blocks a segment: 1 to {SLOTS_MAX} can be")

    @property
    def data_offset(self) -> int:
        """Where slot 0 begins."""
        return -(-self.entry_offset(self.slot_count) // _ALIGNMENT) * _ALIGNMENT

    @property
    def file_bytes(self) -> int:
        """The length of the file, from its making to its end."""
        return self.block_offset(self.slot_count)

    def entry_offset(self, slot: int) -> int:
        """Return where a slot's entry begins."""
        return _INDEX_OFFSET + slot * ENTRY_BYTES

    def block_offset(self, slot: int) -> int:
        """Return where a slot's block begins."""
        return self.data_offset + slot * self.block_bytes


class Header(NamedTuple):
    """What a segment says of itself."""

    id: bytes
    geometry: Geometry
    made_ms: int
    """Since 1970."""


class Entry(NamedTuple):
    """What lies in a slot."""

    digest: bytes
    """Of the key."""
    checksum: int
    put_ms: int
    """Since 1970."""


DELETED: Final = Entry(bytes(DIGEST_BYTES), 0, 0)


def _seal(segment_id: bytes, number: int, record: bytes) -> int:
    return xxh3_64_intdigest(_SEALED.pack(segment_id, number) + record)


def pack_header(header: Header) -> bytes:
    """Return the header's bytes."""
    geometry = header.geometry
    fields = (MAGIC, header.id, geometry.block_bytes, geometry.slot_count, header.made_ms)
    record = _HEADER.pack(*fields, 0)[:-8]
    return _HEADER.pack(*fields, _seal(header.id, _HEADER_NUMBER, record))


def parse_header(content: bytes) -> Header | None:
    """Return what the first bytes of a file say; None: they are no header."""
    if len(content) < _HEADER.size:
        return None
    magic, segment_id, block_bytes, slot_count, made_ms, seal = _HEADER.unpack_from(content)
    record = content[: _HEADER.size - 8]
    if magic != MAGIC or seal != _seal(segment_id, _HEADER_NUMBER, record):
        return None
    try:
        return Header(segment_id, Geometry(block_bytes, slot_count), made_ms)
    except ValueError:
        return None


def pack_entry(segment_id: bytes, slot: int, entry: Entry) -> bytes:
    """Return an entry's bytes."""
    record = _ENTRY.pack(*entry, 0)[:-8]
    return _ENTRY.pack(*entry, _seal(segment_id, slot, record))


def parse_entries(
    segment_id: bytes, first_slot: int, content: bytes
) -> Iterator[tuple[int, Entry]]:
    """Yield (slot, entry) of what is an entry among whole ones from `first_slot` on."""
    whole = len(content) // ENTRY_BYTES * ENTRY_BYTES
    for slot, start in enumerate(range(0, whole, ENTRY_BYTES), first_slot):
        digest, checksum, put_ms, seal = _ENTRY.unpack_from(content, start)
        record = content[start : start + ENTRY_BYTES - 8]
        if seal and seal == _seal(segment_id, slot, record):
            yield slot, Entry(digest, checksum, put_ms)
