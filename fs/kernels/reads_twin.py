"""The twin of reads.c: the same in Python.  It says what the functions promise.

Numbers that are too large for anything are what they say: beyond the end.  Negative ones are a mistake of the caller.
"""

import os
import struct
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Final

from xxhash import xxh3_64_digest, xxh3_64_intdigest

ReadNow = Callable[[Sequence[memoryview], int, int], int]
"""Called as os.preadv without its descriptor: fills buffers in order from an offset on, returns how many bytes there were.
Raises OSError; BlockingIOError if it would have to wait for the disk and the flags say that it must not (os.RWF_NOWAIT)."""

Chunk = tuple[int | ReadNow, int, int, int, bytes]
"""A version of a chunk: its file (a descriptor; the twin also takes what reads), where it starts there, its length, its version
number, the xxh3-64 of each of its checksum blocks (8 bytes, the highest first)."""

OneRow = tuple[int, int, int, int, int, int, int]
"""What a row says, in the order of the columns that are asked for, and which flags are set: a bit for each, the lowest for the first."""

CHECKSUM_BYTES: Final = 8

_KEY: Final = struct.Struct(">QQI")
_VARINT_BYTES_MAX: Final = 10
_BYTES_MAX: Final = 2**63 - 1
"""What the system takes for an offset."""
_NOTHING: Final = memoryview(b"")


def row_checksums(view: memoryview, ends: list[int], /) -> list[int]:
    """Return the xxh3-64 of each piece of a buffer.

    Args:
        view: bytes; only read.
        ends: where each piece ends, ascending; the first begins with the buffer.

    Raises:
        ValueError: the ends do not ascend, or go beyond the buffer.
    """
    found, start = [], 0
    for end in ends:
        if not start <= end <= len(view):
            raise ValueError("a piece beyond the buffer")
        found.append(xxh3_64_intdigest(view[start:end]))
        start = end
    return found


def distinct_pairs(
    firsts: list[int], seconds: list[int], /
) -> tuple[list[tuple[int, int]], list[int]]:
    """Return the pairs that two columns make, each once in the order of its first row, and which one each row is.

    Raises:
        ValueError: columns of different lengths, a negative number; numbers from 2**63 on may count as the same.
    """
    _check_lengths(firsts, seconds)
    if min(firsts, default=0) < 0 or min(seconds, default=0) < 0:
        raise ValueError("a negative number")
    known: dict[tuple[int, int], int] = {}
    each = [known.setdefault(pair, len(known)) for pair in zip(firsts, seconds, strict=True)]
    return list(known), each


def chunk_keys(
    owners: list[int], numbers: list[int], inode_ids: list[int], chunk_indexes: list[int], /
) -> tuple[list[bytes], list[int]]:
    """Return the keys of the chunks that rows name, each once in the order of its first row, and which one each row names.

    Args:
        owners: what keys begin with.
        numbers: which of the owners, of each row.
        inode_ids: of each row.
        chunk_indexes: of each row, below 2**32.

    Raises:
        ValueError: columns of different lengths, a row of no owner, a number that no key can hold.
    """
    _check_lengths(numbers, inode_ids, chunk_indexes)
    if numbers and not 0 <= min(numbers) <= max(numbers) < len(owners):
        raise ValueError("a row of no owner")
    known: dict[bytes, int] = {}
    pack = _KEY.pack
    try:
        keys = [
            pack(owners[number], inode_id, chunk_index)
            for number, inode_id, chunk_index in zip(numbers, inode_ids, chunk_indexes, strict=True)
        ]
    except struct.error as error:
        raise ValueError("a number that no key can hold") from error
    each = [known.setdefault(key, len(known)) for key in keys]
    return list(known), each


def read_rows(  # noqa: PLR0917 - one loop, in a function of its own for its names
    block: int,
    bounce_max: int,
    cold_min: int,
    chunks: list[Chunk | None],
    numbers: list[int],
    offsets: list[int],
    lengths: list[int],
    ends: list[int],
    view: memoryview,
    want_checksums: bool,
    /,
) -> tuple[list[int], list[int], list[int], int]:
    """Read rows out of files; a row counts as read only if all its checksum blocks match.

    Rows whose chunk is None or larger than any file, that go beyond its end, that cannot be read or do not match are left; the buffer holds anything there.

    Args:
        block: bytes of a checksum block, 1..2**30.
        bounce_max: rows that do not fill their checksum blocks are left if those are longer than this.
        cold_min: when so many rows, and more than half of those tried, would have to wait for the disk, the others are
            not tried.  0: rows wait for the disk, which is told of all of them before the first is waited for.
        chunks: what rows name.
        numbers: which chunk, of each row.
        offsets: in the chunk.
        lengths: of each row.
        ends: where each row's bytes end in the buffer.
        view: writable.
        want_checksums: of each row's bytes.

    Returns:
        Of each row the version that was read, 0 where it is left; of each the xxh3-64 of its bytes, 0 where it is left,
        if they are wanted, else none; the positions of the rows that are left; how many would have had to wait, or were
        not tried since so many others would.

    Raises:
        ValueError: columns of different lengths, rows beyond the buffer or of no chunk.
    """
    _check_lengths(numbers, offsets, lengths, ends)
    rows = list(zip(numbers, offsets, lengths, ends, strict=True))
    for number, offset, length, end in rows:
        if offset < 0 or not 0 <= length <= end <= len(view) or not 0 <= number < len(chunks):
            raise ValueError("a row beyond the buffer, or of no chunk")
    versions, checksums, left = [0] * len(rows), [0] * len(rows), list[int]()
    reader = _Reader(block, bounce_max, may_wait=not cold_min)
    if not cold_min and len(rows) > 1:
        for number, offset, length, _ in rows:
            _begin(block, chunks[number], offset, length)
    cold_count = 0
    for n, (number, offset, length, end) in enumerate(rows):
        chunk, piece = chunks[number], view[end - length : end]
        try:
            if chunk is not None and reader.read(chunk, offset, piece):
                versions[n] = chunk[3]
                checksums[n] = xxh3_64_intdigest(piece)
                continue
        except BlockingIOError:
            cold_count += 1
            if cold_count >= cold_min and 2 * cold_count > n + 1:
                left += range(n, len(rows))
                cold_count += len(rows) - (n + 1)
                break
        left.append(n)
    return versions, checksums if want_checksums else [], left, cold_count


def one_row(message: bytes, columns: bytes, flags: bytes, /) -> OneRow | None:
    """Return what a message says whose columns have one number each; None: it is not of this kind.

    A wrapper of protobuf's for a column costs more than all of this.

    Args:
        message: as protobuf has it on the wire.
        columns: the tags of the six, each a byte, all different: packed repeated numbers.
        flags: at most eight tags, each a byte, of plain numbers that may be there, too: set unless 0; of several the last counts.

    Raises:
        ValueError: not six columns, or too many flags.
    """
    if len(columns) != 6 or len(flags) > 8:  # noqa: PLR2004 - as said above
        raise ValueError("not the columns of a row")
    numbers: dict[int, int] = {}
    is_set: dict[int, bool] = {}
    at = 0
    while at < len(message):
        tag = message[at]
        size, at = _varint(message, at + 1, len(message))
        if at and tag in flags:
            is_set[flags.index(tag)] = size != 0
            continue
        stop = at + size
        if not at or tag not in columns or tag in numbers or stop > len(message):
            return None
        numbers[tag], at = _varint(message, at, stop)
        if at != stop:
            return None
    if len(numbers) != len(columns):
        return None
    first, second, third, fourth, fifth, sixth = (numbers[tag] for tag in columns)
    bits = sum(flag << place for place, flag in is_set.items())
    return first, second, third, fourth, fifth, sixth, bits


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
    """Return the message, as protobuf has it on the wire, whose columns say of one row what was read.

    Args:
        columns: the tags, each a byte, of lengths, of versions, and of checksums: packed numbers, the last of 8 bytes each.
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


class _Reader:
    """Reads one row after the other; those of the same checksum blocks take what one has verified."""

    __slots__ = ("_block", "_bounce_max", "_held", "_may_wait", "_wide")

    def __init__(self, block: int, bounce_max: int, *, may_wait: bool) -> None:
        self._block = block
        self._bounce_max = bounce_max
        self._may_wait = may_wait
        self._wide = _NOTHING
        self._held: tuple[Chunk | None, int, int] = (None, 0, 0)
        """Chunk and range of the verified bytes that `_wide` begins with."""

    def read(self, chunk: Chunk, offset: int, piece: memoryview) -> bool:
        """Fill `piece`; False: that row is left.  Raises BlockingIOError."""
        read_from, start, chunk_length, _, checksums = chunk
        block, stop = self._block, offset + len(piece)
        if stop > chunk_length or chunk_length > _BYTES_MAX - max(start, block):
            return False
        low = offset - offset % block
        high = min(stop + -stop % block, chunk_length)
        width = high - low
        is_widened = width != len(piece)
        held = self._held
        if not is_widened or held[0] is not chunk or held[1:] != (low, high):
            target = piece
            if is_widened:
                if width > self._bounce_max:
                    return False
                self._held = (None, 0, 0)
                if width > len(self._wide):
                    self._wide = memoryview(bytearray(max(width, block)))
                target = self._wide[:width]
            try:
                count = self._fill(read_from, target, start + low)
            except BlockingIOError:
                raise
            except (OSError, OverflowError):
                return False
            first, last = low // block * CHECKSUM_BYTES, -(-high // block) * CHECKSUM_BYTES
            wanted = checksums[first : max(last, first + CHECKSUM_BYTES)]
            if count != width or _digests(target, block) != wanted:
                return False
            if is_widened:
                self._held = (chunk, low, high)
        if is_widened:
            piece[:] = self._wide[offset - low : stop - low]
        return True

    def _fill(self, read_from: int | ReadNow, target: memoryview, where: int) -> int:
        """Return how many bytes there were."""
        read = partial(os.preadv, read_from) if isinstance(read_from, int) else read_from
        if not self._may_wait:
            return read([target], where, os.RWF_NOWAIT)
        done = more = read([target], where, 0)
        while more and done < len(target):
            more = read([target[done:]], where + done, 0)
            done += more
        return done


def _begin(block: int, chunk: Chunk | None, offset: int, length: int) -> None:
    """Have the disk at work on what a row needs; promises nothing."""
    if chunk is None or not isinstance(chunk[0], int) or offset + length > chunk[2]:
        return
    low, stop = offset - offset % block, offset + length
    width = min(stop + -stop % block, chunk[2]) - low
    if width:
        with suppress(OSError, OverflowError):  # who reads it is told
            os.posix_fadvise(chunk[0], chunk[1] + low, width, os.POSIX_FADV_WILLNEED)


def _digests(target: memoryview, block: int) -> bytes:
    if len(target) <= block:
        return xxh3_64_digest(target)
    return b"".join(
        [xxh3_64_digest(target[at : at + block]) for at in range(0, len(target), block)]
    )


def _check_lengths(*columns: list[int]) -> None:
    if len(set(map(len, columns))) != 1:
        raise ValueError("columns of different lengths")
