"""Reading versions of chunks, verified.

The blocks of what is read are pinned meanwhile, so that they are not reused.  Concurrency: thread-safe.
"""

import logging
from collections.abc import Sequence

from ..schema.ids import ChunkId, TargetId
from ..schema.status import FsError, Status
from .api import ReadDone, ReadIo
from .books import Books
from .format import ChunkRecord
from .verified import VerifiedReader
from .versions import find_version

_log = logging.getLogger(__name__)


class Reads:
    """The reads of one disk."""

    def __init__(self, books: Books, reader: VerifiedReader, block_bytes: int) -> None:
        """Read with `reader`, whose checksum blocks have `block_bytes`."""
        self._books = books
        self._reader = reader
        self._block_bytes = block_bytes

    def read_batch(self, ios: Sequence[ReadIo]) -> list[ReadDone]:
        """See `ChunkEngine`; a bad sector is IO_ERROR of its read alone."""
        return [done for done in self._read_ios(ios, may_wait=True) if done is not None]

    def read_cached(self, ios: Sequence[ReadIo]) -> list[ReadDone | None]:
        """See `ChunkEngine`."""
        return self._read_ios(ios, may_wait=False)

    def _begin_reads(self, ios: Sequence[ReadIo], found: Sequence[ChunkRecord | FsError]) -> None:
        """Have the disk at work on all of a batch before the first read waits for its bytes.

        Otherwise it has one read at a time of this thread, which sleeps and wakes up for each.  A single read is left to the
        kernel, which reads ahead when reading goes on behind it.
        """
        for io, record in zip(ios, found, strict=True):
            if isinstance(record, ChunkRecord):
                self._reader.begin(record, io.offset, io.length)

    def _read_ios(self, ios: Sequence[ReadIo], *, may_wait: bool) -> list[ReadDone | None]:
        with self._books as ledger:
            found = [find_version(ledger, io.target_id, io.chunk_id, io.version) for io in ios]
            for record in found:
                if isinstance(record, ChunkRecord):
                    ledger.pin(record)
        try:
            if may_wait and len(ios) > 1:
                self._begin_reads(ios, found)
            scratch = memoryview(bytearray(2 * self._block_bytes))  # what a small read touches
            return [
                self._read_one(io, record, may_wait, scratch)
                for io, record in zip(ios, found, strict=True)
            ]
        finally:
            with self._books.lock:
                for record in found:
                    if isinstance(record, ChunkRecord):
                        self._books.ledger.unpin(record)

    def _read_one(
        self, io: ReadIo, record: ChunkRecord | FsError, may_wait: bool, scratch: memoryview
    ) -> ReadDone | None:
        if isinstance(record, FsError):
            return ReadDone(record.status, 0, 0, record.detail)
        buffer = io.buffer
        if len(buffer) != io.length or io.offset + io.length > record.length:
            buffer = buffer[: max(0, min(io.length, record.length - io.offset))]
        try:
            if not self._reader.read_into(
                record, io.offset, buffer, may_wait=may_wait, scratch=scratch
            ):
                return None
        except FsError as error:
            detail = f"target {io.target_id} {io.chunk_id}: {error.detail}"
            _log.error("read failed: %s: %s", error.status.name, detail)
            return ReadDone(error.status, 0, record.version, detail)
        return ReadDone(Status.OK, len(buffer), record.version)

    def read_whole(self, target_id: TargetId, chunk_id: ChunkId, *, version: int = 0) -> bytes:
        """See `ChunkEngine`."""
        with self._books as ledger:
            record = find_version(ledger, target_id, chunk_id, version)
            if isinstance(record, FsError):
                raise record
            ledger.pin(record)
        try:
            return bytes(self._reader.read(record, 0, record.length))
        finally:
            with self._books.lock:
                self._books.ledger.unpin(record)
