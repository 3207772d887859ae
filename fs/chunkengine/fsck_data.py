"""Verifying the bytes of versions, for the check of fs/chunkengine/fsck.py.

Reads, never writes.  Concurrency: none.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from ..schema.status import FsError, Status
from .checksum import CHECKSUM_BYTES, packed_checksums
from .findings import Finding, Kind
from .format import ChunkKey, ChunkRecord, FileId, file_name, place_of

READ_BYTES: Final = 1 << 20
"""Read and verified at a time; a multiple of every checksum block size."""


class Blocks(Protocol):
    """The data files, as far as a check needs them; raises FsError(IO_ERROR) for a bad sector."""

    def read_at(self, file_id: FileId, offset: int, buffers: list[memoryview]) -> int:
        """See `DataFiles`; a missing file is an empty one."""
        ...


@dataclass(slots=True)
class Tally:
    """How far a check has come; changes while it runs."""

    chunk_count: int = 0
    data_bytes: int = 0
    """Read and verified."""
    data_bytes_total: int = 0
    """Of blocks in use by the stored counters; data_bytes ends somewhat below."""


class DataCheck:
    """Reads versions of one disk and compares them with their checksums."""

    def __init__(self, blocks: Blocks, tally: Tally, on_step: Callable[[], None]) -> None:
        self._blocks = blocks
        self._tally = tally
        self._on_step = on_step
        self._buffer = memoryview(bytearray(READ_BYTES))

    def verify(self, key: ChunkKey, record: ChunkRecord, block: int) -> Finding | None:
        """Return what is wrong with the bytes of a version;
        the place is that of the first bad checksum block.
        """
        if not record.length:
            return None
        file_id, start = place_of(record.position)
        name = file_name(file_id)
        for low in range(0, record.length, READ_BYTES):
            size = min(READ_BYTES, record.length - low)
            part = self._buffer[:size]
            try:
                count = self._blocks.read_at(file_id, start + low, [part])
            except FsError as error:
                if error.status is not Status.IO_ERROR:
                    raise
                return Finding(Kind.UNREADABLE, error.detail, key, name, start + low)
            self._tally.data_bytes += count
            if count < size:
                detail = f"version {record.version}: {size - count} bytes and more are missing"
                return Finding(Kind.SHORT_FILE, detail, key, name, start + low + count)
            first = low // block * CHECKSUM_BYTES
            wanted = record.checksums[first : first + -(-size // block) * CHECKSUM_BYTES]
            found = packed_checksums([part], block)
            if found != wanted:
                at = next(i for i in range(len(found)) if found[i] != wanted[i])
                offset = start + low + at // CHECKSUM_BYTES * block
                return Finding(
                    Kind.BAD_DATA, f"version {record.version}: wrong checksum", key, name, offset
                )
            self._on_step()
        return None
