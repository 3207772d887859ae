"""A contiguous run of bytes that were written and not yet sent to storage.  Pure.

Invariants:
    - The pieces tile [offset, offset + length) without gap or overlap, in order.
    - A piece is kept by reference; whoever wrote it must not change it any more.
"""

from ...runtime.ports import Buffer
from ...schema.layout import MIB

FLUSH_BYTES_MAX = 8 * MIB
"""Files with larger chunks are flushed in steps of this size, to bound memory."""

PIECES_LOOKED_AT_MAX = 64
"""Pieces of a run that is read from; more become one."""


def flush_unit_bytes(chunk_size_bytes: int, write_buffer_bytes: int) -> int:
    """Return the alignment at which a sequential writer's data is cut into flushes.

    As many whole chunks as fit the write buffer, at least one; a chunk beyond FLUSH_BYTES_MAX is
    written in power-of-two parts of it.  So a sequential writer produces whole-chunk writes.
    """
    if chunk_size_bytes >= FLUSH_BYTES_MAX:
        return FLUSH_BYTES_MAX
    return max(write_buffer_bytes // chunk_size_bytes, 1) * chunk_size_bytes


STREAM_SHARE = 4
"""A stream holds back at most this part of what it has written so far:
what is yet to be sent at its end is little beside the rest.
"""


class WriteStream:
    """How long somebody has been writing to a file one piece behind the other."""

    __slots__ = ("_end", "_length")

    def __init__(self) -> None:
        self._end = 0
        self._length = 0

    def held_bytes(self, offset: int, count: int, bytes_max: int) -> int:
        """Take note of a write; return how much is to be gathered before any of it is sent."""
        if offset != self._end:
            self._length = 0
        self._end = offset + count
        self._length += count
        return min(self._length // STREAM_SHARE, bytes_max)


class WriteRun:
    """See module head."""

    __slots__ = ("length", "offset", "pieces")

    def __init__(self, offset: int) -> None:
        self.offset = offset
        self.length = 0
        self.pieces: list[Buffer] = []

    @property
    def end(self) -> int:
        """Offset of the byte after the last one."""
        return self.offset + self.length

    def append(self, data: Buffer) -> None:
        """Add bytes at the end; `data` is kept."""
        self.pieces.append(data)
        self.length += len(data)

    def overlay(self, offset: int, data: Buffer) -> int:
        """Write bytes over some that are here, and on behind them; copies all.

        Returns how many were here; 0: none, nothing is done.
        """
        over = min(self.end, offset + len(data)) - offset
        if offset < self.offset or over <= 0:
            return 0
        made = bytearray(self.joined())
        start = offset - self.offset
        made[start : start + len(data)] = data
        self.pieces, self.length = [bytes(made)], len(made)
        return over

    def cut_before(self, boundary: int) -> "WriteRun":
        """Split off and return the bytes before file offset `boundary`;
        offset < boundary <= end.
        """
        assert self.offset < boundary <= self.end, (self.offset, boundary, self.end)
        front = WriteRun(self.offset)
        missing = boundary - self.offset
        used = 0
        for piece in self.pieces:
            if missing < len(piece):
                break
            front.append(piece)
            missing -= len(piece)
            used += 1
        rest = self.pieces[used:]
        if missing:
            view = memoryview(rest[0])
            front.append(view[:missing])
            rest[0] = view[missing:]
        self.pieces = rest
        self.length -= front.length
        self.offset = boundary
        return front

    def between(self, offset: int, end: int) -> bytes:
        """Return a copy of some of the bytes; self.offset <= offset < end <= self.end.

        Of many pieces one is made first, so that a writer who reads everything back does not make
        each read look at all of them.
        """
        assert self.offset <= offset < end <= self.end, (self.offset, offset, end, self.end)
        if len(self.pieces) > PIECES_LOOKED_AT_MAX:
            self.pieces = [self.joined()]
        found: list[Buffer] = []
        piece_end = self.end
        for piece in reversed(self.pieces):  # the last ones are those that are read back mostly
            start = piece_end - len(piece)
            if start < end:
                found.append(memoryview(piece)[max(offset - start, 0) : end - start])
            if start <= offset:
                break
            piece_end = start
        return b"".join(reversed(found))

    def joined(self) -> Buffer:
        """Return all bytes as one buffer; without a copy when there is one piece."""
        if len(self.pieces) == 1:
            return self.pieces[0]
        return b"".join(self.pieces)

    def forget_bytes(self) -> None:
        """Keep no piece any longer; where they lay, and how many they were, stays known."""
        self.pieces = []
