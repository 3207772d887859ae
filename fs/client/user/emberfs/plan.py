"""How a batch of transfers becomes entries of a ring, and their results become its result.  No I/O.

A transfer is cut where an entry would be too long, or cross a block of its memory.  What lies in no
shared memory goes through a stage, as much at a time as fits.  Writes that follow each other both
in the file and in memory are one entry.

Invariants:
    - Every byte is asked for once; the rest of a short write is asked
      for again, until an error comes.
    - When one fails that has several transfers in it, they are asked for again one by one,
      so that each fails for itself.
    - The result of a read counts up to the first short piece: what lies behind
      the end of the file is nothing.
"""

import errno
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from .batch import BatchFile, Transfer, transfer_error
from .memory import Region
from .protocol import LENGTH_MAX, EntryFlag, Op

STAGED_BYTES_MAX: Final = 4 << 20
"""Cut where the file has a multiple of it, so that no chunk is written, or read,
in two steps that need not be.
"""
JOINED_BYTES_MAX: Final = 16 << 20
"""Neighbouring writes become one, up to the next multiple of it in the file:
chunks are written whole, in fewer steps.
"""


class Piece(NamedTuple):
    """One entry."""

    transfer: int
    start: int
    """Within its transfer."""
    length: int
    region: Region | None
    """None: through the stage."""
    region_offset: int


class Plan:
    """One batch of one kind; see module head."""

    def __init__(
        self,
        op: Op,
        transfers: Sequence[Transfer],
        buffers: Sequence[memoryview],
        places: Iterable[tuple[Region, int] | None],
        flags: EntryFlag,
    ) -> None:
        """`buffers`: those of the transfers, as bytes;
        `places`: the region that each lies in, and where in it; None: in none.
        """
        self.op = op
        self.flags = flags
        self.transfers = transfers
        self.buffers = buffers
        self.pieces: list[Piece] = []
        self._errors: dict[int, OSError] = {}
        self._joined: dict[int, list[Piece]] = {}
        """What pieces that hold several transfers are made of, by index."""
        for index, (buffer, found) in enumerate(zip(buffers, places, strict=True)):
            region, offset = found or (None, 0)
            length = buffer.nbytes
            if region is not None and not region.block_size and 0 < length <= LENGTH_MAX:
                piece = Piece(index, 0, length, region, offset)
                if op is not Op.WRITE or not self._can_join(piece):
                    self.pieces.append(piece)
            else:
                self._cut(index, length, region, offset)
        self.moved = [0] * len(self.pieces)
        """Bytes of each piece."""
        self.waiting = deque(range(len(self.pieces)))
        """Pieces to be asked for, by index; its owner takes from the left."""

    def _cut(self, index: int, length: int, region: Region | None, offset: int) -> None:
        start = 0
        while start < length:
            most = LENGTH_MAX if region is not None else self._staged_most(index, start)
            if region is not None and region.block_size:
                most = min(most, region.block_size - (offset + start) % region.block_size)
            count = min(most, length - start)
            self.pieces.append(Piece(index, start, count, region, offset + start))
            start += count

    def _can_join(self, piece: Piece) -> bool:
        """Make a write part of the piece before it;
        False: they are no neighbours, or would be too long together.
        """
        if not self.pieces:
            return False
        last = self.pieces[-1]
        before, transfer = self.transfers[last.transfer], self.transfers[piece.transfer]
        begin, end = before.offset + last.start, transfer.offset + piece.length
        if (
            last.region is not piece.region
            or transfer.file is not before.file
            or last.region_offset + last.length != piece.region_offset
            or begin + last.length != transfer.offset
            or begin // JOINED_BYTES_MAX != (end - 1) // JOINED_BYTES_MAX
        ):
            return False
        self._joined.setdefault(len(self.pieces) - 1, [last]).append(piece)
        self.pieces[-1] = last._replace(length=last.length + piece.length)
        return True

    def _staged_most(self, index: int, start: int) -> int:
        """Return how long a piece may be that goes through the stage."""
        offset = self.transfers[index].offset + start
        return STAGED_BYTES_MAX - offset % STAGED_BYTES_MAX

    def buffer_of(self, index: int) -> memoryview:
        """Return the bytes of the caller that are still to be moved for a piece."""
        piece, moved = self.pieces[index], self.moved[index]
        return self.buffers[piece.transfer][piece.start + moved : piece.start + piece.length]

    def note(self, results: Iterable[tuple[int, int]]) -> None:
        """Take in results of pieces, each with its index."""
        moved, is_write = self.moved, self.op is Op.WRITE
        for index, result in results:
            if result < 0 and index in self._joined:
                self._take_apart(index)
                continue
            if result < 0:
                self._fail(self.pieces[index].transfer, -result)
                continue
            moved[index] += result
            if is_write and moved[index] < self.pieces[index].length:
                if result:
                    self.waiting.append(index)
                else:
                    self._fail(self.pieces[index].transfer, errno.EIO)

    def _fail(self, transfer: int, number: int) -> None:
        error = transfer_error(number, self.transfers[transfer].file.path)
        self._errors.setdefault(transfer, error)

    def refuse(self, file: BatchFile, error: OSError) -> None:
        """Ask for no transfer of a file: it has none, for this reason; before any was asked for."""
        for index, transfer in enumerate(self.transfers):
            if transfer.file is file:
                self._errors.setdefault(index, error)
        self.waiting = deque(
            index
            for index in self.waiting
            if self.transfers[self.pieces[index].transfer].file is not file
        )

    def _take_apart(self, index: int) -> None:
        """Have the transfers of a piece that failed done each by itself;
        the piece counts for nothing.
        """
        parts = self._joined.pop(index)
        self.pieces[index] = self.pieces[index]._replace(length=0)
        self.moved[index] = 0
        self.waiting.extend(range(len(self.pieces), len(self.pieces) + len(parts)))
        self.pieces += parts
        self.moved += [0] * len(parts)

    def counts(self) -> list[int]:
        """Return the bytes that each transfer moved.

        Raises:
            OSError: the first failure by position.
        """
        if self._errors:
            raise self._errors[min(self._errors)]
        counts = [0] * len(self.transfers)
        ended: set[int] = set()
        for (transfer, _, length, _, _), moved in zip(self.pieces, self.moved, strict=True):
            if transfer not in ended:
                counts[transfer] += moved
                if moved < length:
                    ended.add(transfer)
        return counts
