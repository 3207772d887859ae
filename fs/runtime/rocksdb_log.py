"""Is a log of RocksDB, or its MANIFEST (the list of its own files), whole?  Pure.

RocksDB takes a damaged last record of its MANIFEST for one that was being written, and goes without
it.  Format: blocks of 32 KiB of records {masked crc32c u32, length u16, kind u8, payload}, all
little-endian; a rest of a block shorter than a record's head is padding.  The checksum covers kind
and payload.  Source: RocksDB wiki, "Write Ahead Log File Format" (the MANIFEST has the same);
crc32c is RFC 3720, appendix B.4.
"""

import struct
from typing import Final

_BLOCK_BYTES: Final = 32 << 10
_HEAD: Final = struct.Struct("<IHB")
_CHECKSUM_BYTES: Final = 4
_MASK_DELTA: Final = 0xA282EAD8
_POLYNOMIAL: Final = 0x82F63B78
_KIND_MAX: Final = 4
"""Full, first, middle, last part of a record."""

_RECYCLED_KINDS: Final = frozenset({5, 6, 7, 8, 11})
"""The same and one more in recycled logs, which nobody here has."""


def first_bad_byte(data: bytes) -> int | None:
    """Return where the first record begins that is damaged or cut short,
    None if the file is whole.
    """
    at = 0
    while at < len(data):
        left = _BLOCK_BYTES - at % _BLOCK_BYTES
        if left < _HEAD.size:
            if any(data[at : at + left]):
                return at
            at += left
            continue
        if at + _HEAD.size > len(data):
            return at
        checksum, length, kind = _HEAD.unpack_from(data, at)
        end = at + _HEAD.size + length
        covered = data[at + _HEAD.size - 1 : end]
        if kind > _KIND_MAX or end > len(data) or _masked(_crc32c(covered)) != checksum:
            return at
        at = end
    return None


def has_whole_record(data: bytes, start: int) -> bool:
    """Tell whether a record that is whole begins anywhere from `start` on;
    looks at every byte, as lengths may be damaged.
    """
    for at in range(start, len(data) - _HEAD.size + 1):
        checksum, length, kind = _HEAD.unpack_from(data, at)
        end = at + _HEAD.size + length
        if not 0 < kind <= _KIND_MAX or end > len(data):
            continue
        if _masked(_crc32c(data[at + _HEAD.size - 1 : end])) == checksum:
            return True
    return False


def trap(data: bytes) -> int | None:
    """Return where the first record begins that RocksDB would never get past;
    None if there is none.

    One of a recycled log in a log that is not one makes it read the same bytes for ever; a single
    changed bit can make one. RocksDB comes to a record if all before it in its block are whole:
    after a bad one it goes on with the next block.
    """
    for start in range(0, len(data), _BLOCK_BYTES):
        block = data[start : start + _BLOCK_BYTES]
        at = 0
        while at + _HEAD.size <= len(block):
            _, length, kind = _HEAD.unpack_from(block, at)
            if kind in _RECYCLED_KINDS:
                bad = first_bad_byte(block)
                if bad is None or bad >= at:
                    return start + at
                break
            at += _HEAD.size + length
    return None


def _masked(crc: int) -> int:
    return ((crc >> 15 | crc << 17) + _MASK_DELTA) & 0xFFFFFFFF


def _crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


def _table() -> list[int]:
    table = []
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = crc >> 1 ^ (_POLYNOMIAL if crc & 1 else 0)
        table.append(crc)
    return table


_TABLE: Final = _table()
