"""`MetaStore` on RocksDB (through rocksdict): the metadata of a real disk.

Batches go to the write-ahead log unsynced and so survive a process kill; `write_synced` syncs the log (one
fdatasync, seen by strace), which covers every earlier batch.  Point-in-time recovery keeps a prefix.

Does not decide anything about chunks.  Concurrency: RocksDB's own; one process per directory.
"""

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import rocksdict

from ..schema.status import FsError, Status
from .ports import Batch

_log = logging.getLogger(__name__)

T = TypeVar("T")

WRITE_BUFFER_BYTES = 16 << 20


def _options() -> rocksdict.Options:
    options = rocksdict.Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_wal_recovery_mode(rocksdict.DBRecoveryMode.point_in_time())
    options.set_write_buffer_size(WRITE_BUFFER_BYTES)
    options.set_max_write_buffer_number(3)
    options.set_keep_log_file_num(4)
    options.set_max_open_files(256)
    table = rocksdict.BlockBasedOptions()
    table.set_bloom_filter(10, False)
    table.set_block_cache(rocksdict.Cache(16 << 20))
    options.set_block_based_table_factory(table)
    return options


class RocksMetaStore:
    """One RocksDB directory; created when missing."""

    def __init__(self, path: Path) -> None:
        """Open it; raises FsError(ALREADY_RUNNING) if another process holds it, else IO_ERROR."""
        self._path = path
        try:
            self._db = rocksdict.Rdict(str(path), _options())
        except Exception as error:
            taken = "lock" in str(error).lower()
            status = Status.ALREADY_RUNNING if taken else Status.IO_ERROR
            raise FsError(status, f"{path}: {error}") from error

    def get(self, key: bytes) -> bytes | None:
        """See `MetaStore`."""
        value: bytes | None = self._guard(self._db.get, key)
        return value

    def write(self, batch: Batch) -> None:
        """See `MetaStore`."""
        self._guard(self._db.write, _to_rocks(batch))

    def write_synced(self, batch: Batch) -> None:
        """See `MetaStore`.

        Not one write with `sync` set: every other write, and Python's interpreter lock, would wait for the
        disk with it, and so would the event loop.
        """
        self.write(batch)
        self._guard(self._db.flush_wal, True)

    def scan(
        self, start: bytes, end: bytes, *, is_reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        """See `MetaStore`."""
        cursor = self._db.iter()
        if is_reverse:
            cursor.seek_for_prev(end)
            if cursor.valid() and cursor.key() == end:
                cursor.prev()
        else:
            cursor.seek(start)
        return self._walk(cursor, start, end, is_reverse=is_reverse)

    def _walk(
        self, cursor: rocksdict.RdictIter, start: bytes, end: bytes, *, is_reverse: bool
    ) -> Iterator[tuple[bytes, bytes]]:
        advance = cursor.prev if is_reverse else cursor.next
        while cursor.valid():
            key: bytes = cursor.key()
            if key < start or key >= end:
                return
            yield key, cursor.value()
            advance()
        self._guard(cursor.status)

    def close(self) -> None:
        """See `MetaStore`."""
        self._db.close()

    def _guard(self, function: Callable[..., T], *args: object) -> T:
        # rocksdict raises plain Exception for every RocksDB error, so nothing narrower can be named
        try:
            return function(*args)
        except Exception as error:
            full = "No space left" in str(error)
            _log.exception("metadata store %s failed", self._path)
            status = Status.NO_SPACE if full else Status.IO_ERROR
            raise FsError(status, f"{self._path}: {error}") from error


def _to_rocks(batch: Batch) -> rocksdict.WriteBatch:
    rocks = rocksdict.WriteBatch(raw_mode=True)
    put, delete = rocks.put, rocks.delete
    for key, value in batch:
        if value is None:
            delete(key)
        else:
            put(key, value)
    return rocks
