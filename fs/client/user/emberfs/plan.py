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
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from .batch import Transfer
from .memory import Region
from .protocol import LENGTH_MAX, EntryFlag, Op

STAGED_PIECE_BYTES_MAX: Final = 1 << 20


@dataclass(slots=True)
class Piece:
    """One entry."""

    transfer: int
    start: int
    """Within its transfer."""
    length: int
    region: Region | None
    """None: through the stage."""
    region_offset: int
    moved: int = 0


class Plan:
    """One batch of one kind; see module head."""

    def __init__(
        self,
        op: Op,
        transfers: Sequence[Transfer],
        buffers: Sequence[memoryview],
        find: Callable[[memoryview], tuple[Region, int] | None],
        flags: EntryFlag,
    ) -> None:
        """`buffers`: those of the transfers, as bytes."""
        self.op = op
        self.flags = flags
        self.transfers = transfers
        self.buffers = buffers
        self._errors: dict[int, int] = {}
        self._pieces: list[Piece] = []
        for index, buffer in enumerate(buffers):
            self._cut(index, buffer, find(buffer))
        self.waiting = deque(range(len(self._pieces)))
        """Pieces to be asked for, by index; its owner takes from the left."""

    def _cut(self, index: int, buffer: memoryview, found: tuple[Region, int] | None) -> None:
        region, offset = found or (None, 0)
        start, length = 0, buffer.nbytes
        while start < length:
            most = LENGTH_MAX if region is not None else STAGED_PIECE_BYTES_MAX
            if region is not None and region.block_size:
                most = min(most, region.block_size - (offset + start) % region.block_size)
            count = min(most, length - start)
            self._pieces.append(Piece(index, start, count, region, offset + start))
            start += count

    def piece(self, index: int) -> Piece:
        """Return a piece by its index."""
        return self._pieces[index]

    def buffer_of(self, piece: Piece) -> memoryview:
        """Return the bytes of the caller that are still to be moved."""
        start = piece.start + piece.moved
        return self.buffers[piece.transfer][start : piece.start + piece.length]

    def note(self, index: int, result: int) -> None:
        """Take in the result of a piece."""
        piece = self._pieces[index]
        if result < 0:
            self._errors.setdefault(piece.transfer, -result)
            return
        piece.moved += result
        if self.op is Op.WRITE and piece.moved < piece.length:
            if result:
                self.waiting.append(index)
            else:
                self._errors.setdefault(piece.transfer, errno.EIO)

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
        for piece in self._pieces:
            if piece.transfer not in ended:
                counts[piece.transfer] += piece.moved
                if piece.moved < piece.length:
                    ended.add(piece.transfer)
        return counts
