"""Reading versions out of data files: nothing leaves here that does not match its checksums.

Reads are widened to checksum-block boundaries.  The bytes asked for go straight into
the caller's buffer and the widening into scratch space, by one preadv; small
unaligned reads take one copy instead.

Concurrency: none of its own; the caller keeps the block from being
reused (BlockReaders.pin) meanwhile.
"""

from typing import Final

from ..schema.status import FsError, Status
from .checksum import CHECKSUM_BYTES, packed_checksums
from .format import ChunkRecord, file_name, place_of
from .ports import DataFiles

BOUNCE_BYTES_MAX: Final = 128 << 10
"""Up to here one copy is cheaper than hashing and reading around the caller's buffer in pieces."""


class VerifiedReader:
    """Reads of one disk."""

    def __init__(self, files: DataFiles, checksum_block_bytes: int) -> None:
        self._files = files
        self._block = checksum_block_bytes

    def batch(self) -> "BatchReader":
        """Return what does the reads of one batch, one after the other."""
        return BatchReader(self._files, self._block)

    def read_into(self, record: ChunkRecord, offset: int, buffer: memoryview) -> None:
        """Fill `buffer` with the bytes from `offset` on; raises as `BatchReader.read_into`."""
        self.batch().read_into(Located(record), offset, buffer)

    def begin(self, record: ChunkRecord, offset: int, length: int) -> None:
        """Begin to bring what `read_into` will need from the disk; promises nothing."""
        end = min(offset + length, record.length)
        if offset < end and not record.is_damaged:
            block = self._block
            low = offset - offset % block
            file_id, start = place_of(record.position)
            self._files.begin_read(file_id, start + low, -(-end // block) * block - low)

    def read(self, record: ChunkRecord, start: int, end: int) -> memoryview:
        """Return the bytes start..end of a version in a buffer of their own."""
        if end <= start:
            return memoryview(b"")
        buffer = memoryview(bytearray(end - start))
        self.read_into(record, start, buffer)
        return buffer

    def is_whole(self, record: ChunkRecord) -> bool:
        """Return whether every byte of the version is there and matches.

        A version that is marked as damaged is all that it can be: there is
        nothing in it that could be torn.
        """
        if record.is_damaged:
            return True
        try:
            self.read(record, 0, record.length)
        except FsError as error:
            if error.status is not Status.CHECKSUM_MISMATCH:
                raise
            return False
        return True

    def can_be_read(self, record: ChunkRecord) -> bool:
        """Return whether the disk gives every byte of the version, and all match."""
        try:
            return self.is_whole(record)
        except FsError as error:
            if error.status is not Status.IO_ERROR:
                raise
            return False


class Located:
    """A version, and where its bytes lie: found out once for all reads of it."""

    __slots__ = ("file_id", "record", "start")

    def __init__(self, record: ChunkRecord) -> None:
        self.record = record
        self.file_id, self.start = place_of(record.position)


class BatchReader:
    """Reads one after the other, for one thread; see VerifiedReader.

    Small reads share the memory that they are widened in.  What it holds has been verified, so a
    read of the same checksum blocks of the same version takes it from there.
    """

    __slots__ = ("_block", "_files", "_held", "_high", "_low", "_one", "_wide")

    def __init__(self, files: DataFiles, checksum_block_bytes: int) -> None:
        self._files = files
        self._block = checksum_block_bytes
        self._wide = memoryview(b"")
        self._one = [self._wide]
        self._held: Located | None = None
        """The version of which `_wide` begins with the bytes `_low` to `_high`;
        None: nothing that counts.
        """
        self._low = self._high = 0

    def read_into(
        self, located: Located, offset: int, buffer: memoryview, *, may_wait: bool = True
    ) -> bool:
        """Fill `buffer` with the bytes from `offset` on; the range lies within the version.

        Args:
            located: the version.
            offset: bytes from the start of the chunk.
            buffer: filled whole.
            may_wait: for the disk.

        Returns:
            False when that would take waiting for the disk and `may_wait` is not set.

        Raises:
            FsError: CHECKSUM_MISMATCH naming file, byte range and version; the
                buffer then holds garbage.
        """
        record, size = located.record, len(buffer)
        if record.is_damaged:
            detail = f"version {record.version} is known to be damaged"
            raise FsError(Status.CHECKSUM_MISMATCH, detail)
        if not size:
            return True
        block = self._block
        end = offset + size
        low = offset - offset % block
        high = min(end + -end % block, record.length)
        width = high - low
        is_widened = size < width <= BOUNCE_BYTES_MAX
        if width == size:
            parts = [buffer]
        elif not is_widened:
            parts = [memoryview(bytearray(offset - low)), buffer, memoryview(bytearray(high - end))]
        elif located is self._held and low == self._low and high == self._high:
            buffer[:] = self._wide[offset - low : end - low]
            return True
        else:
            self._held = None
            if width > len(self._wide):
                self._wide = memoryview(bytearray(max(width, 2 * block)))
                self._one = [self._wide[:block]]
            parts = self._one if width == block else [self._wide[:width]]
        count, start = width, located.start + low
        if may_wait:
            count = self._files.read_at(located.file_id, start, parts)
        elif not self._files.read_cached_at(located.file_id, start, parts):
            return False
        first, last = low // block * CHECKSUM_BYTES, -(-high // block) * CHECKSUM_BYTES
        if packed_checksums(parts, block) != record.checksums[first:last] or count != width:
            raise FsError(
                Status.CHECKSUM_MISMATCH,
                f"data file {file_name(located.file_id)}, bytes {start} to {start + width},"
                f" version {record.version}, {count} bytes read",
            )
        if is_widened:
            self._held, self._low, self._high = located, low, high
            buffer[:] = self._wide[offset - low : end - low]
        return True
