"""Rows whose bytes are not read here at all:
who asked for them reads them out of the data files, and compares the checksums.

Invariants:
    - Only whole checksum blocks of committed versions are lent, of which nothing is known against,
      and which are in the page cache; or, to who has the disk read them himself, which are not, and
      which nobody has read lately (direct_reads.py).
    - Until they are given back the blocks are pinned, and the files open.
    - All rows or none.

Concurrency: `lend` and what gives back are for the event loop, and wait for no disk: if
the books are in use by a thread that hangs, what is given back waits in line, and the
next who has the books takes it in.
"""

from collections.abc import Sequence

from ..kernels.reads_twin import ReadNow
from .books import Books
from .cached_ranges import is_cached, is_uncached
from .checksum import CHECKSUM_BYTES
from .direct_reads import DirectReads
from .format import ChunkKey, ChunkRecord, FileId, place_of
from .ports import DataFiles, Lent
from .read_values import LentRows, ReadRows


class RowLender:
    """See module head."""

    def __init__(
        self, books: Books, files: DataFiles, checksum_block_bytes: int, direct: DirectReads
    ) -> None:
        self._books = books
        self._files = files
        self._block = checksum_block_bytes
        self._direct = direct

    def lend(
        self, keys: Sequence[ChunkKey], rows: ReadRows, *, is_direct: bool = False
    ) -> LentRows | None:
        """See `ChunkEngine.lend_rows`."""
        loan, found = _Loan(self._books), None
        try:
            found = self._lend(keys, rows, loan, is_direct=is_direct)
        finally:
            if found is None:  # also where memory was short in the middle
                loan.give_back()
        return found

    def _lend(
        self, keys: Sequence[ChunkKey], rows: ReadRows, loan: "_Loan", *, is_direct: bool
    ) -> LentRows | None:
        with self._books as ledger:
            numbers = dict.fromkeys(rows.numbers)
            records = ledger.records([keys[number] for number in numbers])
            chunks = dict(zip(numbers, records, strict=True))
            found = self._found(chunks, rows, loan, is_direct=is_direct)
            if found is None:
                return None
            pinned = [record for record in records if record is not None]
            ledger.readers.pin_all(pinned)
            loan.pinned = pinned
        if is_direct:
            pairs = zip(rows.numbers, rows.offsets, strict=True)
            reads = [(chunks[number], offset) for number, offset in pairs]
            self._direct.remember([(chunk, at) for chunk, at in reads if chunk is not None])
        return found

    def _found(
        self,
        chunks: dict[int, ChunkRecord | None],
        rows: ReadRows,
        loan: "_Loan",
        *,
        is_direct: bool,
    ) -> LentRows | None:
        """Return the rows, whose files are lent by `loan`; None: one of them cannot be."""
        ranges: list[tuple[int | ReadNow, int, int]] = []
        versions, checksums, block = list[int](), list[bytes](), self._block
        for number, offset, length in zip(rows.numbers, rows.offsets, rows.lengths, strict=True):
            chunk, end = chunks[number], offset + length
            if chunk is None or chunk.is_damaged or offset % block or end > chunk.length:
                return None
            if end % block and end != chunk.length:
                return None
            if is_direct and not self._direct.may_lend(chunk, offset, length):
                return None
            file_id, start = place_of(chunk.position)
            file = loan.files.get(file_id) or self._lent(file_id, loan, is_direct=is_direct)
            if file is None:
                return None
            is_there = is_uncached if is_direct else is_cached
            if not is_there(file.source, start + offset, length):
                return None
            ranges.append((file.source, start + offset, length))
            versions.append(chunk.version)
            first, last = offset // block, -(-end // block)
            checksums.append(chunk.checksums[first * CHECKSUM_BYTES : last * CHECKSUM_BYTES])
        return LentRows(ranges, versions, block, checksums, loan.give_back)

    def _lent(self, file_id: FileId, loan: "_Loan", *, is_direct: bool) -> Lent | None:
        """Return a file that is lent by `loan` from now on; None: it cannot be, without a wait."""
        files = self._files
        file = files.lend_past_cache(file_id, may_wait=False) if is_direct else files.lend(file_id)
        if file is not None:
            loan.files[file_id] = file
        return file


class _Loan:
    """What is held for rows that are lent."""

    __slots__ = ("_books", "files", "pinned")

    def __init__(self, books: Books) -> None:
        self._books = books
        self.files: dict[FileId, Lent] = {}
        self.pinned: list[ChunkRecord] = []

    def give_back(self) -> None:
        """End it; called once."""
        try:
            self._books.unpin_soon(self.pinned)
        finally:
            for file in self.files.values():
                file.give_back()
