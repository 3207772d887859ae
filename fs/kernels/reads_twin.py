"""The twin of reads.c: the same in Python.  It says what the functions promise.

Numbers that are too large for anything are what they say: beyond the end.  Negative
ones are a mistake of the caller.
"""

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Final

from xxhash import xxh3_64_digest, xxh3_64_intdigest

ReadNow = Callable[[Sequence[memoryview], int, int], int]
"""Called as os.preadv without its descriptor: fills buffers in order from an offset on, returns how
many bytes there were. Raises OSError; BlockingIOError if it would have to wait for the disk and the
flags say that it must not (os.RWF_NOWAIT).
"""

Chunk = tuple[int | ReadNow, int, int, int, bytes]
"""A version of a chunk: its file (a descriptor; the twin also takes what reads), where
it starts there, its length, its version number, the xxh3-64 of each of its checksum
blocks (8 bytes, the highest first).
"""

ReadRow = Callable[[int, int, int | ReadNow, int, int, bytes, int, memoryview], int | None]
"""`read_row`."""

CHECKSUM_BYTES: Final = 8

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

    Rows whose chunk is None or larger than any file, that go beyond its end, that cannot be read or
    do not match are left; the buffer holds anything there.

    Args:
        block: bytes of a checksum block, 1..2**30.
        bounce_max: rows that do not fill their checksum blocks are left if
            those are longer than this.
        cold_min: when so many rows, and more than half of those tried, would have to wait for the
            disk, the others are not tried.  0: rows wait for the disk, which is told of all of them
            before the first is waited for.
        chunks: what rows name.
        numbers: which chunk, of each row.
        offsets: in the chunk.
        lengths: of each row.
        ends: where each row's bytes end in the buffer.
        view: writable.
        want_checksums: of each row's bytes.

    Returns:
        Of each row the version that was read, 0 where it is left; of each the xxh3-64 of its bytes,
        0 where it is left, if they are wanted, else none; the positions of the rows that are left;
        how many would have had to wait, or were not tried since so many others would.

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


def read_row(  # noqa: PLR0917 - a compiled function has no keywords
    block: int,
    bounce_max: int,
    source: int | ReadNow,
    start: int,
    chunk_length: int,
    checksums: bytes,
    offset: int,
    view: memoryview,
    /,
) -> int | None:
    """Read a single row without waiting for the disk, as `read_rows`, into all of `view`.

    Args:
        block: as there.
        bounce_max: as there.
        source: of the chunk, as `start`, `chunk_length` and `checksums`.
        start: below 2**63, as the other numbers.
        chunk_length: of its version.
        checksums: as there.
        offset: in the chunk.
        view: writable.

    Returns:
        The xxh3-64 of its bytes; None: it is left.

    Raises:
        BlockingIOError: it is left, since the disk would have to be waited for.
        ValueError: a negative number.
    """
    if min(start, chunk_length, offset) < 0:
        raise ValueError("sizes that nothing has")
    chunk = source, start, chunk_length, 0, checksums
    is_read = _Reader(block, bounce_max, may_wait=False).read(chunk, offset, view)
    return xxh3_64_intdigest(view) if is_read else None


class _Reader:
    """Reads one row after the other; those of the same checksum blocks take what
    one has verified.
    """

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
        if self._may_wait:
            return fill(read_from, target, where)
        read = partial(os.preadv, read_from) if isinstance(read_from, int) else read_from
        return read([target], where, os.RWF_NOWAIT)


def fill(source: int | ReadNow, target: memoryview, where: int) -> int:
    """Read from an offset on, waiting for the disk; return how many bytes there were.

    Raises:
        OSError: as os.preadv.
    """
    read = partial(os.preadv, source) if isinstance(source, int) else source
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
