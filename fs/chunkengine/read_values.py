"""What a chunk engine is asked to read, and what becomes of it: one by one, or many by columns.

No I/O here.

`ChunkReads` (read_api.py) says what it promises for each.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from ..kernels.reads_twin import ReadNow
from ..schema.ids import ChunkId, TargetId


class ReadIo(msgspec.Struct):
    """One read of a batch; `buffer` belongs to the caller and has room for `length` bytes."""

    target_id: TargetId
    chunk_id: ChunkId
    offset: int
    length: int
    buffer: memoryview
    version: int = 0
    """0: the committed version; else this one, committed or pending (CRAQ reads)."""


class ReadDone(msgspec.Struct, frozen=True):
    """Outcome of one read: `status` is a fs.schema.status number, 0 = ok."""

    status: int
    length: int
    """Bytes put at the start of the buffer; fewer than asked for at the end of the chunk."""
    commit_ver: int
    """The version read."""
    detail: str = ""


class ReadRows(NamedTuple):
    """Many reads, by columns."""

    numbers: list[int]
    """Which of the chunks that are named with them."""
    offsets: list[int]
    """Bytes from the start of the chunk."""
    lengths: list[int]
    ends: list[int]
    """Where the bytes of each end in the buffer of all."""

    def some(self, positions: Sequence[int]) -> "ReadRows":
        """Return some of the rows."""
        if len(positions) == len(self.numbers):
            return self
        return ReadRows(*[[column[n] for n in positions] for column in self])


class RowsRead(msgspec.Struct):
    """What became of rows, by position."""

    versions: list[int]
    """The committed one that was read; 0 where the row is left."""
    checksums: list[int]
    """xxh3-64 of each row's bytes, 0 where it is left; empty if nobody asked."""
    left: list[int]
    """Positions of the rows that were not read; `read_batch` finds out why."""
    is_cold: bool = False
    """Whether all that is left would have to wait for the disk."""
    block_bytes: int = 0
    """Not 0: the bytes have not been matched against their checksums,
    which are `blocks` for blocks of so many bytes; no row is left then.
    """
    blocks: bytes = b""
    """As `LentRows.checksums`, of all rows one after the other."""

    @classmethod
    def none_of(cls, count: int, *, want_checksums: bool) -> "RowsRead":
        """Return that nothing has become of so many rows, nor is any said to be left."""
        return cls([0] * count, [0] * count if want_checksums else [], [])

    def take(self, positions: Sequence[int], some: "RowsRead") -> None:
        """Take in what has become of some rows."""
        for position, version in zip(positions, some.versions, strict=True):
            self.versions[position] = version
        for position, checksum in zip(positions, some.checksums, strict=False):
            self.checksums[position] = checksum
        self.left += [positions[n] for n in some.left]
        self.block_bytes, self.blocks = some.block_bytes, some.blocks


class LentRows(NamedTuple):
    """Rows that their asker reads."""

    ranges: list[tuple[int | ReadNow, int, int]]
    """Of each the file (a descriptor, or what stands for it), where it begins there,
    and its length.
    """
    versions: list[int]
    """The committed ones that they are of."""
    block_bytes: int
    checksums: list[bytes]
    """Of each the xxh3-64 of its blocks of so many bytes (the last may be shorter), 8 bytes each,
    the highest first.
    """
    give_back: Callable[[], None]
    """To be called once; until then all stays as it is."""
