"""Reading versions out of data files: nothing leaves here that does not match its checksums.

Reads are widened to checksum-block boundaries.  The bytes asked for go straight into the caller's buffer and
the widening into scratch space, by one preadv; small unaligned reads take one copy instead.

Concurrency: none of its own; the caller keeps the block from being reused (Ledger.pin) meanwhile.
"""

from typing import Final

from ..schema.status import FsError, Status
from .checksum import CHECKSUM_BYTES, packed_checksums
from .format import ChunkRecord, file_name, place_of
from .ports import DataFiles

BOUNCE_BYTES_MAX: Final = 128 << 10
"""Up to here one copy is cheaper than hashing and reading around the caller's buffer in pieces."""

_NO_SCRATCH: Final = memoryview(b"")


class VerifiedReader:
    """Reads of one disk."""

    def __init__(self, files: DataFiles, checksum_block_bytes: int) -> None:
        self._files = files
        self._block = checksum_block_bytes

    def read_into(
        self,
        record: ChunkRecord,
        offset: int,
        buffer: memoryview,
        *,
        may_wait: bool = True,
        scratch: memoryview = _NO_SCRATCH,
    ) -> bool:
        """Fill `buffer` with the bytes from `offset` on; the range lies within the version.

        Args:
            record: the version.
            offset: bytes from the start of the chunk.
            buffer: filled whole.
            may_wait: for the disk.
            scratch: what may be overwritten during the call; saves the memory of the widening if it is large enough.

        Returns:
            False when that would take waiting for the disk and `may_wait` is not set.

        Raises:
            FsError: CHECKSUM_MISMATCH naming file, byte range and version; the buffer then holds garbage.
        """
        size = len(buffer)
        if record.is_damaged:
            raise FsError(
                Status.CHECKSUM_MISMATCH, f"version {record.version} is known to be damaged"
            )
        if not size:
            return True
        block = self._block
        end = offset + size
        low = offset - offset % block
        high = min(-(-end // block) * block, record.length)
        expected = record.checksums[
            low // block * CHECKSUM_BYTES : -(-high // block) * CHECKSUM_BYTES
        ]
        file_id, start = place_of(record.position)
        parts = [buffer]
        is_bounced = size != high - low and high - low <= BOUNCE_BYTES_MAX
        if is_bounced:
            is_enough = high - low <= len(scratch)
            parts = [scratch[: high - low] if is_enough else memoryview(bytearray(high - low))]
        elif size != high - low:
            parts = [memoryview(bytearray(offset - low)), buffer, memoryview(bytearray(high - end))]
        if may_wait:
            count = self._files.read_at(file_id, start + low, parts)
        elif self._files.read_cached_at(file_id, start + low, parts):
            count = high - low
        else:
            return False
        if count != high - low or packed_checksums(parts, block) != expected:
            raise FsError(
                Status.CHECKSUM_MISMATCH,
                f"data file {file_name(file_id)}, bytes {start + low} to {start + high},"
                f" version {record.version}, {count} bytes read",
            )
        if is_bounced:
            buffer[:] = parts[0][offset - low : end - low]
        return True

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

        A version that is marked as damaged is all that it can be: there is nothing in it that could be torn.
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
