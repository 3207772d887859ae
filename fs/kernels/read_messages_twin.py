"""The twin of read_messages.c: the same in Python.  It says what the functions promise."""

import struct
from itertools import accumulate
from typing import Final

CHECKSUM_BYTES: Final = 8

OneRow = tuple[bytes, int, int, int, int, int]
"""What a row says: its chunk, as chunks end whose names are made by `chunk_keys`; chain,
its version, offset, length; and which flags are set: a bit for each, the lowest for the first.
"""

TakenRows = tuple[
    list[tuple[int, int, int]],
    list[int],
    bytes,
    list[int],
    list[int],
    list[int],
    list[int],
    int,
]
"""What many rows say: the pairs of chain and version, each once in the order of its first row, with
the bytes that its rows want; which one each row is of; the chunks, each once in the order of its
first row, for `chunk_keys`; which one each row is of; offsets; lengths; where the bytes of each row
end if they lie one after the other; and which flags are set, as of one row.
"""

_CHUNK: Final = struct.Struct(">QQI")
_OF_TARGET: Final = struct.Struct(">QI")
_OWNER: Final = struct.Struct(">Q")
_VARINT_BYTES_MAX: Final = 10
_SHORT_MAX: Final = 2**32 - 1


def one_row(message: bytes, columns: bytes, flags: bytes, /) -> OneRow | None:
    """Return what a message says whose columns have one number each;
    None: it is not of this kind, or of no chunk that can be.

    A wrapper of protobuf's for a column costs more than all of this.

    Args:
        message: as protobuf has it on the wire.
        columns: the tags of the six, each a byte, all different, as for
            `take_rows`: packed repeated numbers.
        flags: at most eight tags, each a byte, of plain numbers that may be there, too: set unless
            0; of several the last counts.

    Raises:
        ValueError: not six columns, or too many flags.
    """
    if len(columns) != 6 or len(flags) > 8:  # noqa: PLR2004 - as said above
        raise ValueError("not the columns of a row")
    found = _columns(message, columns, flags)
    if found is None:
        return None
    each, bits = found
    if any(len(numbers) != 1 for numbers in each):
        return None
    inode_id, index, chain_id, chain_version, offset, length = (numbers[0] for numbers in each)
    if index > _SHORT_MAX:
        return None
    return _OF_TARGET.pack(inode_id, index), chain_id, chain_version, offset, length, bits


def _columns(message: bytes, columns: bytes, flags: bytes) -> tuple[list[list[int]], int] | None:
    """Return the numbers of all columns, and which flags are set;
    None: there are other fields, too, one twice, or not all.
    """
    found: dict[int, list[int]] = {}
    is_set: dict[int, bool] = {}
    at = 0
    while at < len(message):
        tag = message[at]
        size, at = _varint(message, at + 1, len(message))
        if at and tag in flags:
            is_set[flags.index(tag)] = size != 0
            continue
        stop = at + size
        if not at or tag not in columns or tag in found or stop > len(message):
            return None
        numbers = found[tag] = []
        while at < stop:
            number, at = _varint(message, at, stop)
            if not at:
                return None
            numbers.append(number)
    if len(found) != len(columns):
        return None
    return [found[tag] for tag in columns], sum(flag << place for place, flag in is_set.items())


def _varint(message: bytes, at: int, end: int) -> tuple[int, int]:
    """Return a number and where it ends; 0 and 0: there is none before `end`."""
    if at < end and message[at] < 0x80:  # noqa: PLR2004 - the bit that says that more follow
        return message[at], at + 1
    value = shift = 0
    for place in range(at, min(end, at + _VARINT_BYTES_MAX)):
        byte = message[place]
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:  # noqa: PLR2004 - as above
            return (value, place + 1) if value < 1 << 64 else (0, 0)
    return 0, 0


def one_reply(
    columns: bytes, length: int, version: int, checksum: int, want_checksum: bool, /
) -> bytes:
    """Return the message, as protobuf has it on the wire,
    whose columns say of one row what was read.

    Args:
        columns: the tags, each a byte, of lengths, of versions, and of checksums: packed
            numbers, the last of 8 bytes each.
        length: below 2**64, as the others.
        version: what was read.
        checksum: of the bytes.
        want_checksum: without, there is no column of checksums.

    Raises:
        ValueError: not three columns.
    """
    if len(columns) != 3:  # noqa: PLR2004 - as said above
        raise ValueError("not the columns of a reply")
    parts = list[bytes]()
    for tag, number in zip(columns, (length, version), strict=False):
        packed = bytearray()
        rest = number
        while rest >= 0x80:  # noqa: PLR2004 - as above
            packed.append(rest & 0x7F | 0x80)
            rest >>= 7
        packed.append(rest)
        parts += [bytes((tag, len(packed))), bytes(packed)]
    if want_checksum:
        parts += [bytes((columns[2], CHECKSUM_BYTES)), checksum.to_bytes(CHECKSUM_BYTES, "little")]
    return b"".join(parts)


def take_rows(
    message: bytes, columns: bytes, flags: bytes, count_max: int, reach_max: int, /
) -> TakenRows | None:
    """Return what a message of many rows says; None: it is not of this kind, or not right.

    Wrappers of protobuf's, and what is done with lists of theirs, cost as much as reading the rows.

    Args:
        message: as protobuf has it on the wire.
        columns: the tags of inode ids, chunk indexes, chain ids, chain versions,
            offsets and lengths, each a byte, all different: packed repeated numbers,
            all but the first below 2**32.
        flags: as of `one_row`.
        count_max: a message of more rows, or of none, is not of this kind.
        reach_max: nor is one with a row of no bytes, or that ends beyond this.

    Raises:
        ValueError: not six columns, or too many flags.
    """
    if len(columns) != 6 or len(flags) > 8:  # noqa: PLR2004 - as said above
        raise ValueError("not the columns of rows")
    found = _columns(message, columns, flags)
    if found is None:
        return None
    each, bits = found
    if len(set(map(len, each))) != 1 or not 0 < len(each[0]) <= count_max:
        return None
    inode_ids, *short = each
    if max(map(max, short)) > _SHORT_MAX:
        return None
    indexes, chain_ids, chain_versions, offsets, lengths = short
    if not all(lengths) or max(map(sum, zip(offsets, lengths, strict=True))) > reach_max:
        return None
    totals: dict[tuple[int, int], int] = {}
    for first, second, length in zip(chain_ids, chain_versions, lengths, strict=True):
        totals[first, second] = totals.get((first, second), 0) + length
    numbers_of = {pair: number for number, pair in enumerate(totals)}
    pair_numbers = [numbers_of[pair] for pair in zip(chain_ids, chain_versions, strict=True)]
    chunks: dict[bytes, int] = {}
    rows = zip(pair_numbers, inode_ids, indexes, strict=True)
    chunk_numbers = [chunks.setdefault(_CHUNK.pack(*row), len(chunks)) for row in rows]
    return (
        [(*pair, total) for pair, total in totals.items()],
        pair_numbers,
        b"".join(chunks),
        chunk_numbers,
        offsets,
        lengths,
        list(accumulate(lengths)),
        bits,
    )


def chunk_keys(chunks: bytes, owners: list[int], /) -> list[bytes]:
    """Return the keys of chunks that `take_rows` has named.

    Args:
        chunks: what it said of them.
        owners: what keys begin with, for each of the pairs that it said.

    Raises:
        ValueError: a chunk of no owner, or one that is cut off.
        OverflowError: an owner that no key can hold.
    """
    if len(chunks) % _CHUNK.size:
        raise ValueError("a chunk that is cut off")
    keys = []
    for at in range(0, len(chunks), _CHUNK.size):
        (number,) = _OWNER.unpack_from(chunks, at)
        if number >= len(owners):
            raise ValueError("a chunk of no owner")
        owner = owners[number].to_bytes(_OWNER.size, "big")
        keys.append(owner + chunks[at + _OWNER.size : at + _CHUNK.size])
    return keys


def rows_reply(
    columns: bytes, lengths: list[int], versions: list[int], checksums: list[int], /
) -> bytes:
    """Return the message, as protobuf has it on the wire,
    whose columns say of many rows what was read.

    Args:
        columns: as of `one_reply`.
        lengths: of each row, below 2**64, as the others.
        versions: what was read of each.
        checksums: of the bytes of each; empty: there is no such column.

    Raises:
        ValueError: not three columns, or not as long as each other.
        OverflowError: a number that is negative, or too large.
    """
    if len(columns) != 3 or len(lengths) != len(versions):  # noqa: PLR2004 - as said above
        raise ValueError("not the columns of a reply")
    if checksums and len(checksums) != len(lengths):
        raise ValueError("not the columns of a reply")
    packed = [b"".join(map(_packed_varint, column)) for column in (lengths, versions)]
    packed.append(b"".join(number.to_bytes(CHECKSUM_BYTES, "little") for number in checksums))
    return b"".join(
        bytes((tag,)) + _packed_varint(len(column)) + column
        for tag, column in zip(columns, packed, strict=True)
        if column
    )


def _packed_varint(number: int) -> bytes:
    number.to_bytes(8, "little")  # raises what is promised
    packed = bytearray()
    while number >= 0x80:  # noqa: PLR2004 - as above
        packed.append(number & 0x7F | 0x80)
        number >>= 7
    packed.append(number)
    return bytes(packed)
