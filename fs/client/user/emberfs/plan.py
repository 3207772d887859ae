"""How a batch of transfers becomes entries of a ring, and their results become its result.  No I/O.

A transfer is cut where an entry would be too long, or cross a block of its memory.  What lies in no shared memory goes through
a stage, as much at a time as fits.

Invariants:
    - Every byte is asked for once; the rest of a short write is asked for again, until an error comes.
    - The result of a read counts up to the first short piece: what lies behind the end of the file is nothing.
"""

import errno
import os
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from .batch import Transfer
from .memory import Region
from .protocol import LENGTH_MAX, EntryFlag, Op

STAGED_PIECE_BYTES_MAX: Final = 1 << 20


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
        """`buffers`: those of the transfers, as bytes; `places`: the region that each lies in, and where in it; None: in none."""
        self.op = op
        self.flags = flags
        self.transfers = transfers
        self.buffers = buffers
        self.pieces: list[Piece] = []
        self._errors: dict[int, int] = {}
        for index, (buffer, found) in enumerate(zip(buffers, places, strict=True)):
            region, offset = found or (None, 0)
            length = buffer.nbytes
            if region is not None and not region.block_size and 0 < length <= LENGTH_MAX:
                self.pieces.append(Piece(index, 0, length, region, offset))
            else:
                self._cut(index, length, region, offset)
        self.moved = [0] * len(self.pieces)
        """Bytes of each piece."""
        self.waiting = deque(range(len(self.pieces)))
        """Pieces to be asked for, by index; its owner takes from the left."""

    def _cut(self, index: int, length: int, region: Region | None, offset: int) -> None:
        start = 0
        while start < length:
            most = LENGTH_MAX if region is not None else STAGED_PIECE_BYTES_MAX
            if region is not None and region.block_size:
                most = min(most, region.block_size - (offset + start) % region.block_size)
            count = min(most, length - start)
            self.pieces.append(Piece(index, start, count, region, offset + start))
            start += count

    def buffer_of(self, index: int) -> memoryview:
        """Return the bytes of the caller that are still to be moved for a piece."""
        piece, moved = self.pieces[index], self.moved[index]
        return self.buffers[piece.transfer][piece.start + moved : piece.start + piece.length]

    def note(self, results: Iterable[tuple[int, int]]) -> None:
        """Take in results of pieces, each with its index."""
        moved, is_write = self.moved, self.op is Op.WRITE
        for index, result in results:
            if result < 0:
                self._errors.setdefault(self.pieces[index].transfer, -result)
                continue
            moved[index] += result
            if is_write and moved[index] < self.pieces[index].length:
                if result:
                    self.waiting.append(index)
                else:
                    self._errors.setdefault(self.pieces[index].transfer, errno.EIO)

    def counts(self) -> list[int]:
        """Return the bytes that each transfer moved.

        Raises:
            OSError: the first failure by position.
        """
        if self._errors:
            index = min(self._errors)
            number = self._errors[index]
            raise OSError(number, os.strerror(number), self.transfers[index].file.path)
        counts = [0] * len(self.transfers)
        ended: set[int] = set()
        for (transfer, _, length, _, _), moved in zip(self.pieces, self.moved, strict=True):
            if transfer not in ended:
                counts[transfer] += moved
                if moved < length:
                    ended.add(transfer)
        return counts
