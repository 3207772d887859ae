"""Many reads of what the page cache holds, in one loop without calls of our own: small reads cost the interpreter more than the memory.

Invariants:
    - As in verified.py: a row counts as read only if all its checksum blocks match.
    - Whatever is unusual is left: not in the cache, beyond the end, damaged, refused, not matching.  The ordinary way
      (reads.py) then finds out what is to be said of it.

Concurrency: thread-safe.  Done under the lock of the books, some rows at a time, so blocks are not reused meanwhile.
"""

import os
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
from xxhash import xxh3_64_digest, xxh3_64_intdigest

from ..schema.ids import ChunkId, TargetId
from ..schema.status import FsError
from .api import ReadRow, RowsRead
from .books import Books
from .checksum import CHECKSUM_BYTES, packed_checksums
from .format import FileId, place_of
from .ledger import Ledger
from .ports import DataFiles, Lent, ReadNow
from .verified import BOUNCE_BYTES_MAX
from .versions import find_version

HELD_COUNT: Final = 64
"""Rows under one hold of the lock: some 200 us."""

COLD_COUNT_MIN: Final = 4
"""When so many rows under one hold of the lock, and more than half of those tried, are not in the cache, the others are not
tried: asking in vain costs a tenth of what such a read costs the processor."""

_NO_WAIT: Final = os.RWF_NOWAIT
_NOTHING: Final = memoryview(b"")


class _Found(msgspec.Struct):
    """What the rows of a chunk have in common, under one hold of the lock."""

    read_now: ReadNow
    start: int
    length: int
    checksums: bytes
    version: int


class CachedRows:
    """See module head."""

    def __init__(self, books: Books, files: DataFiles, checksum_block_bytes: int) -> None:
        self._books = books
        self._files = files
        self._block = checksum_block_bytes

    def read(
        self,
        chunks: Sequence[tuple[TargetId, ChunkId]],
        rows: Sequence[ReadRow],
        view: memoryview,
        *,
        want_checksums: bool,
    ) -> RowsRead:
        """See `ChunkEngine.read_cached_rows`."""
        lent: dict[FileId, Lent | None] = {}
        versions: list[int] = []
        checksums: list[int] = []
        cold_count = 0
        try:
            for start in range(0, len(rows), HELD_COUNT):
                some = rows[start : start + HELD_COUNT]
                with self._books as ledger:
                    wanted = {row[0] for row in some}
                    found = {number: self._find(ledger, *chunks[number], lent) for number in wanted}
                    cold_count += _read_some(self._block, found, some, view, versions, checksums)
        finally:
            for one in lent.values():
                if one is not None:
                    one.give_back()
        left = [] if all(versions) else [n for n, version in enumerate(versions) if not version]
        is_cold = cold_count == len(left)
        return RowsRead(versions, checksums if want_checksums else [], left, is_cold)

    def _find(
        self,
        ledger: Ledger,
        target_id: TargetId,
        chunk_id: ChunkId,
        lent: dict[FileId, Lent | None],
    ) -> _Found | None:
        """Return where the committed version lies; None: nothing of it can be read here."""
        record = find_version(ledger, target_id, chunk_id, 0)
        if isinstance(record, FsError) or record.is_damaged:
            return None
        file_id, start = place_of(record.position)
        if file_id not in lent:
            lent[file_id] = self._files.lend(file_id)
        file = lent[file_id]
        if file is None:
            return None
        return _Found(file.read_now, start, record.length, record.checksums, record.version)


def _read_some(  # noqa: PLR0917 - one loop, in a function of its own for its names
    block: int,
    found: Mapping[int, _Found | None],
    rows: Sequence[ReadRow],
    view: memoryview,
    versions: list[int],
    checksums: list[int],
) -> int:
    """Read rows under one hold of the lock; put their versions and checksums behind the others, 0 for what is left.

    Returns:
        How many would have had to wait for the disk, or were not tried since so many others would.
    """
    wide, cold_count, before = _NOTHING, 0, len(versions)
    held, held_low, held_high = None, 0, 0  # what `wide` begins with: verified bytes of a chunk
    for number, offset, length, end in rows:
        chunk = found[number]
        stop = offset + length
        versions.append(0)
        checksums.append(0)
        if chunk is None or stop > chunk.length:
            continue
        low = offset - offset % block
        high = min(stop + -stop % block, chunk.length)
        width = high - low
        target = piece = view[end - length : end]
        is_widened = width != length
        if not is_widened or chunk is not held or low != held_low or high != held_high:
            if is_widened:
                if width > BOUNCE_BYTES_MAX:
                    continue
                held = None
                if width > len(wide):
                    wide = memoryview(bytearray(max(width, block)))
                target = wide if width == len(wide) else wide[:width]
            try:
                count = chunk.read_now([target], chunk.start + low, _NO_WAIT)
            except BlockingIOError:
                cold_count += 1
                if cold_count >= COLD_COUNT_MIN and 2 * cold_count > len(versions) - before:
                    untried = len(rows) - (len(versions) - before)
                    versions += [0] * untried
                    checksums += [0] * untried
                    return cold_count + untried
                continue
            except (OSError, FsError):
                continue
            if width <= block:
                at = low // block * CHECKSUM_BYTES
                is_good = xxh3_64_digest(target) == chunk.checksums[at : at + CHECKSUM_BYTES]
            else:
                first, last = low // block * CHECKSUM_BYTES, -(-high // block) * CHECKSUM_BYTES
                is_good = packed_checksums([target], block) == chunk.checksums[first:last]
            if count != width or not is_good:
                continue
            if is_widened:
                held, held_low, held_high = chunk, low, high
        if is_widened:
            piece[:] = wide[offset - low : stop - low]
        versions[-1] = chunk.version
        checksums[-1] = xxh3_64_intdigest(piece)
    return cold_count
