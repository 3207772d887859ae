"""Reading versions of chunks, verified.

Concurrency: thread-safe.  Blocks that are read are not reused meanwhile: reads that
may wait for the disk pin them; those that do not are done under the lock of the
books, some at a time, which is cheaper.
"""

import logging
from collections.abc import Sequence
from typing import Final

from ..schema.ids import ChunkId, TargetId
from ..schema.status import FsError
from .books import Books
from .format import ChunkRecord
from .ledger import Ledger
from .read_values import ReadDone, ReadIo
from .verified import BatchReader, Located, VerifiedReader
from .versions import find_version

_log = logging.getLogger(__name__)


HELD_COUNT: Final = 64
"""Reads under one hold of the lock: some 300 us."""

Key = tuple[TargetId, ChunkId, int]
"""Of what is looked up once for all reads of a batch:
target, chunk, and the version that is asked for.
"""

Found = dict[Key, Located | FsError]


class Reads:
    """The reads of one disk."""

    def __init__(self, books: Books, reader: VerifiedReader) -> None:
        self._books = books
        self._reader = reader

    def read_batch(self, ios: Sequence[ReadIo]) -> list[ReadDone]:
        """See `ChunkEngine`; a bad sector is IO_ERROR of its read alone."""
        found: Found = {}
        with self._books as ledger:
            keys = [(io.target_id, io.chunk_id, io.version) for io in ios]
            wanted = [found.get(key) or _look_up(found, ledger, key) for key in keys]
            pinned = [one.record for one in found.values() if isinstance(one, Located)]
            ledger.readers.pin_all(pinned)
        try:
            if len(ios) > 1:
                self._begin_reads(ios, wanted)
            reader, done = self._reader.batch(), list[ReadDone | None]()
            for io, one in zip(ios, wanted, strict=True):
                _read_one(reader, io, one, done, may_wait=True)
        finally:
            with self._books.lock:
                self._books.ledger.readers.unpin_all(pinned)
        return [one for one in done if one is not None]

    def read_cached(self, ios: Sequence[ReadIo]) -> list[ReadDone | None]:
        """See `ChunkEngine`."""
        reader = self._reader.batch()
        done: list[ReadDone | None] = []
        for start in range(0, len(ios), HELD_COUNT):
            found: Found = {}  # what was looked up counts under this hold of the lock only
            with self._books as ledger:
                for io in ios[start : start + HELD_COUNT]:
                    key = (io.target_id, io.chunk_id, io.version)
                    one = found.get(key) or _look_up(found, ledger, key)
                    _read_one(reader, io, one, done, may_wait=False)
        return done

    def _begin_reads(self, ios: Sequence[ReadIo], wanted: Sequence[Located | FsError]) -> None:
        """Have the disk at work on all of a batch before the first read waits for its bytes.

        Otherwise it has one read at a time of this thread, which sleeps and wakes up for each.  A
        single read is left to the kernel, which reads ahead when reading goes on behind it.
        """
        for io, one in zip(ios, wanted, strict=True):
            if isinstance(one, Located):
                self._reader.begin(one.record, io.offset, io.length)

    def read_whole(self, target_id: TargetId, chunk_id: ChunkId, *, version: int = 0) -> bytes:
        """See `ChunkEngine`."""
        with self._books as ledger:
            record = find_version(ledger, target_id, chunk_id, version)
            if isinstance(record, FsError):
                raise record
            ledger.readers.pin(record)
        try:
            return bytes(self._reader.read(record, 0, record.length))
        finally:
            with self._books.lock:
                self._books.ledger.readers.unpin(record)


def _look_up(found: Found, ledger: Ledger, key: Key) -> Located | FsError:
    record = find_version(ledger, *key)
    one = found[key] = Located(record) if isinstance(record, ChunkRecord) else record
    return one


def _read_one(
    reader: BatchReader,
    io: ReadIo,
    one: Located | FsError,
    done: list[ReadDone | None],
    *,
    may_wait: bool,
) -> None:
    """Do one read and put what became of it behind the others; None: it would have to wait."""
    if isinstance(one, FsError):
        done.append(ReadDone(one.status, 0, 0, one.detail))
        return
    record, buffer, offset, length = one.record, io.buffer, io.offset, io.length
    if len(buffer) != length or offset + length > record.length:
        length = max(0, min(length, record.length - offset))
        buffer = buffer[:length]
    try:
        is_read = reader.read_into(one, offset, buffer, may_wait=may_wait)
    except FsError as error:
        detail = f"target {io.target_id} {io.chunk_id}: {error.detail}"
        _log.error("read failed: %s: %s", error.status.name, detail)
        done.append(ReadDone(error.status, 0, record.version, detail))
        return
    done.append(ReadDone(0, length, record.version) if is_read else None)
