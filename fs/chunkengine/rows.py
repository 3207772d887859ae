"""Many reads of committed versions in one loop over columns:
small reads cost the interpreter more than the memory.

Invariants:
    - As in verified.py: a row counts as read only if all its checksum blocks match, but for whoever
      says that he matches them himself.
    - Whatever is unusual is left: beyond the end, damaged, refused, not matching; not in
      the cache, where nothing may be waited for.  The ordinary way (reads.py) then finds
      out what is to be said of it.

Concurrency: thread-safe.  Blocks are not reused while they are read: what does not wait for the
disk is done under the lock of the books, some rows at a time; what does pins them.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final, Self

from ..kernels import direct_twin, reads_twin
from ..kernels.direct import read_places
from ..kernels.direct_twin import Place
from ..kernels.reads import read_row, read_rows
from ..kernels.reads_twin import Chunk, ReadRow
from ..runtime.turns import Turns
from ..schema.status import FsError
from .books import Books
from .checksum import CHECKSUM_BYTES
from .direct_reads import DirectReads
from .format import ChunkKey, ChunkRecord, FileId, place_of
from .ports import DataFiles, Lent
from .read_values import ReadRows, RowsRead
from .verified import BOUNCE_BYTES_MAX

HELD_COUNT: Final = 64
"""Rows under one hold of the lock: some 100 us where the kernel is compiled, else 250."""

COLD_COUNT_MIN: Final = 16
"""When so many rows under one hold of the lock, and more than half of those tried, are not in the
cache, the others are not tried: each asking in vain has the kernel begin the read, so the disk is
at work before a thread is, but the event loop waits meanwhile, some 5 us for each.
"""

TURN_BYTES: Final = 4 << 20
"""At the disk at the same time, of requests that are read past the page cache;
one that is larger is there alone.
"""

Lend = Callable[[FileId], Lent | None]
"""Opens a file, as `DataFiles.lend`."""


class Rows:
    """See module head."""

    def __init__(
        self, books: Books, files: DataFiles, checksum_block_bytes: int, direct: DirectReads
    ) -> None:
        """Take the parts of an engine; `direct` knows which reads go past the page cache."""
        self._books = books
        self._files = files
        self._block = checksum_block_bytes
        self._direct = direct
        self._turns = Turns(TURN_BYTES)

    def read_cached(
        self, keys: Sequence[ChunkKey], rows: ReadRows, view: memoryview, *, want_checksums: bool
    ) -> RowsRead:
        """See `ChunkEngine.read_cached_rows`."""
        done = RowsRead([], [], [])
        cold_count, count = 0, len(rows.numbers)
        with _Borrowed(self._files.lend) as borrowed:
            for start in range(0, count, HELD_COUNT):
                some = rows
                if count > HELD_COUNT:
                    stop = start + HELD_COUNT
                    some = ReadRows(*[column[start:stop] for column in rows])
                wanted = dict.fromkeys(some.numbers)
                with self._books as ledger:
                    records = ledger.records([keys[number] for number in wanted])
                    chunks = borrowed.chunks(len(keys), wanted, records)
                    versions, checksums, left, cold = borrowed.kernel(
                        self._block,
                        BOUNCE_BYTES_MAX,
                        COLD_COUNT_MIN,
                        chunks,
                        *some,
                        view,
                        want_checksums,
                    )
                done.versions += versions
                done.checksums += checksums
                done.left += [start + n for n in left] if start else left
                cold_count += cold
        done.is_cold = cold_count == len(done.left)
        return done

    def read_cached_one(
        self, key: ChunkKey, offset: int, view: memoryview
    ) -> tuple[int, int] | None:
        """See `ChunkEngine.read_cached_row`."""
        books = self._books
        if not books.lock.acquire(False):
            return None
        try:
            record = books.ledger.cached(key)
            if record is None or record.is_damaged or not record.length:
                return None
            if books.failure or books.is_closed:
                return None
            file_id, start = place_of(record.position)
            file = self._files.lend(file_id, may_wait=False)
            if file is None:
                return None
            read: ReadRow = reads_twin.read_row
            if not callable(file.source):
                read = read_row  # type: ignore[assignment]  # of descriptors only
            try:
                checksum = read(
                    self._block,
                    BOUNCE_BYTES_MAX,
                    file.source,
                    start,
                    record.length,
                    record.checksums,
                    offset,
                    view,
                )
            finally:
                file.give_back()
        finally:
            books.lock.release()
        return None if checksum is None else (record.version, checksum)

    def read(
        self,
        keys: Sequence[ChunkKey],
        rows: ReadRows,
        view: memoryview,
        *,
        want_checksums: bool,
        may_pass_cache: bool,
        leaves_matching: bool,
    ) -> RowsRead:
        """See `ChunkEngine.read_rows`."""
        wanted = dict.fromkeys(rows.numbers)
        with self._books as ledger:
            records = ledger.records([keys[number] for number in wanted])
            known = dict(zip(wanted, records, strict=True))
            lend = partial(self._files.lend, may_wait=True)
            pinned = [record for record in records if record is not None]
            ledger.readers.pin_all(pinned)
        try:
            direct = self._direct.choose(known, rows, view) if may_pass_cache else []
            if not direct:
                return self._read_some(lend, known, rows, view, want_checksums)
            if leaves_matching and len(direct) == len(rows.numbers):
                unmatched = self._read_unmatched(known, rows, view)
                if unmatched is not None:
                    return unmatched
            # One at a time: of many the disk would be told before, to
            # bring them into the page cache.
            done = RowsRead.none_of(len(rows.numbers), want_checksums=want_checksums)
            for position in direct:
                row, files = rows.some([position]), self._files
                one = self._read_some(files.lend_past_cache, known, row, view, want_checksums)
                done.take([position], one)
            rest = [position for position, version in enumerate(done.versions) if not version]
            done.left.clear()
            if rest:
                rows = rows.some(rest)
                done.take(rest, self._read_some(lend, known, rows, view, want_checksums))
            return done
        finally:
            with self._books.lock:
                self._books.ledger.readers.unpin_all(pinned)

    def _read_unmatched(
        self, known: dict[int, ChunkRecord | None], rows: ReadRows, view: memoryview
    ) -> RowsRead | None:
        """Read rows of whole checksum blocks past the page cache;
        None: one of them is not to be had so, and matching them tells why.
        """
        versions, blocks, block = list[int](), list[bytes](), self._block
        places = list[Place]()
        with self._turns.of(rows.ends[-1]), _Borrowed(self._files.lend_past_cache) as borrowed:
            chunks = borrowed.chunks(max(known) + 1, known, [*known.values()])
            for number, offset, length, end in zip(*rows, strict=True):
                chunk = chunks[number]
                if chunk is None:
                    return None
                source, start, _, version, checksums = chunk
                places.append((source, start + offset, view[end - length : end]))
                versions.append(version)
                first, last = offset // block, (offset + length) // block
                blocks.append(checksums[first * CHECKSUM_BYTES : last * CHECKSUM_BYTES])
            if not borrowed.read_places(places):
                return None
        return RowsRead(versions, [], [], block_bytes=block, blocks=b"".join(blocks))

    def _read_some(
        self,
        lend: Lend,
        known: dict[int, ChunkRecord | None],
        rows: ReadRows,
        view: memoryview,
        want_checksums: bool,
    ) -> RowsRead:
        """Read rows out of files that `lend` gives; they may wait for the disk."""
        wanted = dict.fromkeys(rows.numbers)
        with _Borrowed(lend) as borrowed:
            records = [known[number] for number in wanted]
            chunks = borrowed.chunks(max(wanted) + 1, wanted, records)
            versions, checksums, left, _ = borrowed.kernel(
                self._block, BOUNCE_BYTES_MAX, 0, chunks, *rows, view, want_checksums
            )
        return RowsRead(versions, checksums, left)


class _Borrowed:
    """Data files that stay open until the end of a `with`."""

    def __init__(self, lend: Lend) -> None:
        self._ask = lend
        self._lent: dict[FileId, Lent | None] = {}
        self.kernel = read_rows
        """What reads rows of them: the twin where a file has no descriptor."""
        self.read_places: Callable[[Sequence[Place]], bool] = read_places
        """What reads several whole; the twin likewise."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for one in self._lent.values():
            if one is not None:
                one.give_back()

    def chunks(
        self, count: int, numbers: Iterable[int], records: Sequence[ChunkRecord | None]
    ) -> list[Chunk | None]:
        """Return where versions lie, by number, below `count`;
        None: not to be read here, or not named.
        """
        chunks: list[Chunk | None] = [None] * count
        lent = self._lent
        for number, record in zip(numbers, records, strict=True):
            # An empty version lies in no file.
            if record is None or record.is_damaged or not record.length:
                continue
            file_id, start = place_of(record.position)
            file = lent[file_id] if file_id in lent else self._lend(file_id)
            if file is not None:
                chunks[number] = (
                    file.source,
                    start,
                    record.length,
                    record.version,
                    record.checksums,
                )
        return chunks

    def _lend(self, file_id: FileId) -> Lent | None:
        try:
            file = self._ask(file_id)
        except FsError:  # who reads it in the ordinary way is told
            file = None
        self._lent[file_id] = file
        if file is not None and callable(file.source):
            self.kernel = reads_twin.read_rows
            self.read_places = direct_twin.read_places
        return file
