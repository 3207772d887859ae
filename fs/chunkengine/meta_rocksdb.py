r"""`MetaStore` on RocksDB (through rocksdict): the metadata of a real disk.

Batches go to the write-ahead log unsynced and so survive a process kill; `write_synced` syncs the
log (one fdatasync, seen by strace), which covers every earlier batch.  Point-in-time recovery keeps
a prefix; one that lacks synced batches is refused, before anything is written
(fs/runtime/log_mark.py, log_segments.py).

Keys from \xff on are the store's own and are not told to anybody: \xff/segment/ and a number, of
log_segments.py, which counts RocksDB's own sequence numbers here.

Does not decide anything about chunks.  Concurrency: RocksDB's own; one process per directory.
"""

import errno
import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

import rocksdict

from ..runtime.disk_hang import open_probe
from ..runtime.durable_file import sync_directory
from ..runtime.log_mark import MARK_NAME, LogMark, find_trap, missing_changes
from ..runtime.log_segments import Held, LogSegments, held
from ..runtime.manifest_end import cut_torn_manifest
from ..schema.status import FsError, Status
from .ports import Batch

_log = logging.getLogger(__name__)

T = TypeVar("T")

META_DIRECTORY: Final = "meta"
"""Below the directory of a disk."""

_TAKEN: Final = ("While lock file", "lock hold by")
"""What RocksDB says of a store that is open elsewhere, or here;
a damaged *block* has "lock" in it, too.
"""

_REMEDY: Final = "look with `ember fsck-disk`, then give the disk's targets an empty disk"

SEGMENT_PREFIX: Final = b"\xff/segment/"
SEGMENT_COST_BYTES: Final = 8 << 20
"""So much log, with OP_COST_BYTES for each row, before it is made a table."""

OP_COST_BYTES: Final = 64

WRITE_BUFFER_BYTES: Final = 4 * SEGMENT_COST_BYTES
"""Never reached: RocksDB must not change the log by itself."""

MERGE_BYTES: Final = 64 << 20
"""What RocksDB writes at most before it deletes what it has merged;
storage.reject_create_free_bytes_min leaves that much, so that a nearly full disk can still merge.
Without room it would stop for good.
"""


def _options() -> rocksdict.Options:
    options = rocksdict.Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_wal_recovery_mode(rocksdict.DBRecoveryMode.point_in_time())
    options.set_write_buffer_size(WRITE_BUFFER_BYTES)
    options.set_max_write_buffer_number(3)
    options.set_target_file_size_base(MERGE_BYTES // 16)
    options.set_max_bytes_for_level_base(MERGE_BYTES // 2)
    options.set_max_compaction_bytes(MERGE_BYTES)
    options.set_keep_log_file_num(4)
    options.set_max_open_files(256)
    table = rocksdict.BlockBasedOptions()
    table.set_bloom_filter(10, False)
    table.set_block_cache(rocksdict.Cache(16 << 20))
    options.set_block_based_table_factory(table)
    return options


class RocksMetaStore:
    """One RocksDB directory; created when missing."""

    def __init__(
        self,
        path: Path,
        *,
        is_read_only: bool = False,
        is_strict: bool = False,
        is_shared: bool = False,
    ) -> None:
        """Open it; a read-only one changes no byte and heeds neither the lock nor the mark.

        With `is_strict` also a log that ends in a torn record is an error.  With `is_shared` each
        write is made by way of a probe, see `_probe`, and gets let other threads go on: the process
        has other things to do than to wait for this disk.

        Raises:
            FsError: ALREADY_RUNNING if another process holds it; IO_ERROR or NO_SPACE if RocksDB
                cannot open it; IO_ERROR if synced batches are missing.
        """
        self._path = path
        self._mark: LogMark | None = None
        self._write_lock = threading.Lock()
        self._is_shared = is_shared
        self._probe_fd = probe_file(path.parent) if is_shared else -1
        if is_read_only:
            options = _options()
            if is_strict:
                strict = rocksdict.DBRecoveryMode.absolute_consistency()
                options.set_wal_recovery_mode(strict)
            self._db = _open(path, options, rocksdict.AccessType.read_only(False))
            return
        try:
            self._db = _open_mended(path)
        except BaseException:
            self._close_probe()
            raise
        try:
            self._segments = LogSegments(SEGMENT_PREFIX, self._own_rows(), SEGMENT_COST_BYTES)
            covered = self._sequence()
            self._guard(self._db.flush_wal, True)
            with _named(path):
                self._mark = LogMark(path)
                self._mark.raise_to(covered, self._segments.number)
                self._mark.sync()
                sync_directory(path)
        except FsError:
            self.close()
            raise

    def held(self) -> Held:
        """Return what the store holds, in RocksDB's sequence numbers;
        reads the store's own records.
        """
        return held(SEGMENT_PREFIX, self._own_rows(), self._sequence())

    def _own_rows(self) -> Iterator[tuple[bytes, bytes]]:
        return self.scan(SEGMENT_PREFIX, SEGMENT_PREFIX + b"\xff")

    def _sequence(self) -> int:
        number: int = self._guard(self._db.latest_sequence_number)
        return number

    def get(self, key: bytes) -> bytes | None:
        """See `MetaStore`."""
        if not self._is_shared:
            value: bytes | None = self._guard(self._db.get, key)
            return value
        # The other way round the process would stand still until the disk has read it; 0.8
        # us more, see decision 0114.
        values: Any = self._guard(self._db.get, [key])
        found: bytes | None = values[0]
        return found

    def write(self, batch: Batch) -> None:
        """See `MetaStore`; now and then the log is made a table behind it."""
        rocks = _to_rocks(batch)
        with self._write_lock:
            self._probe()
            _add(rocks, self._segments.opening_rows(self._sequence))
            cost = rocks.size_in_bytes() + OP_COST_BYTES * rocks.len()
            self._guard(self._db.write, rocks)
            if self._segments.note(cost):
                self._guard(self._flush)

    def _probe(self) -> None:
        """Wait for a file system that does not take writes just now, before RocksDB does.

        rocksdict writes with Python's interpreter lock in its hand: with a disk that hangs the
        whole process would stand still.  Here nothing but this thread does.
        """
        if self._probe_fd >= 0:
            with _named(self._path):
                os.pwrite(self._probe_fd, b"\0", 0)

    def _close_probe(self) -> None:
        if self._probe_fd >= 0:
            os.close(self._probe_fd)
            self._probe_fd = -1

    def _flush(self) -> None:
        self._db.flush(wait=False)
        self._segments.end()

    def write_synced(self, batch: Batch) -> None:
        """See `MetaStore`.

        Not one write with `sync` set: every other write, and Python's interpreter lock, would wait
        for the disk with it, and so would the event loop.
        """
        self.write(batch)
        with self._write_lock:
            covered, segment = self._sequence(), self._segments.number
        self._guard(self._db.flush_wal, True)
        assert self._mark is not None, self._path
        with _named(self._path):
            self._mark.raise_to(covered, segment)

    def scan(
        self, start: bytes, end: bytes, *, is_reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        """See `MetaStore`."""
        # Without a bound a cursor passes over all that was deleted behind the range, as
        # kv/rocksdb_view.py says.  The binding does not copy it: `end` is there as long as the
        # cursor, since `_walk` has both.
        options = rocksdict.ReadOptions()
        options.set_iterate_upper_bound(end)
        cursor = self._db.iter(options)
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
        """See `MetaStore`; what RocksDB cannot write now, on a full disk,
        it finds in its log when opened again.
        """
        try:
            self._db.close()
        except Exception as error:  # noqa: BLE001 - see _guard
            _log.warning("metadata store %s: closed with its log unmerged: %s", self._path, error)
            del self._db  # the last reference: closes it without writing
        self._close_probe()
        if self._mark is not None:
            mark, self._mark = self._mark, None
            with _named(self._path):
                mark.close()

    def _guard(self, function: Callable[..., T], *args: object) -> T:
        # rocksdict raises plain Exception for every RocksDB error, so nothing narrower can be named
        try:
            return function(*args)
        except Exception as error:
            if self._mark is not None:
                _log.exception("metadata store %s failed", self._path)
            raise FsError(_status_of(error), f"{self._path}: {error}") from error


def _status_of(error: Exception) -> Status:
    is_full = "No space left" in str(error)
    return Status.NO_SPACE if is_full else Status.IO_ERROR


def _open(path: Path, options: rocksdict.Options, access: rocksdict.AccessType) -> rocksdict.Rdict:
    with _named(path):
        found = find_trap(path)
    if found is not None:
        raise FsError(
            Status.IO_ERROR,
            f"{found[0]} is damaged at byte {found[1]}, nothing behind it can be read; {_REMEDY}",
        )
    try:
        # Without the second a store that exists has the options it was
        # made with, and a small cache.
        return rocksdict.Rdict(str(path), options, {"default": options}, access_type=access)
    except Exception as error:
        taken = any(words in str(error) for words in _TAKEN)
        status = Status.ALREADY_RUNNING if taken else _status_of(error)
        remedy = f"; {_REMEDY}" if "Corruption" in str(error) else ""
        raise FsError(status, f"{path}: {error}{remedy}") from error


def probe_file(directory: Path) -> int:
    """Return the descriptor of a file without a name, -1 where the file system makes none."""
    with _named(directory):
        return open_probe(directory)


def _open_mended(path: Path) -> rocksdict.Rdict:
    """Open a store for writing; the end of a MANIFEST that a power loss tore is cut off first."""
    try:
        return _open_checked(path)
    except FsError as error:
        if "Corruption" not in error.detail:
            raise
        with _named(path):
            if not cut_torn_manifest(path, _held_by):
                raise
        return _open_checked(path)


def _open_checked(path: Path) -> rocksdict.Rdict:
    _check_mark(path)
    return _open(path, _options(), rocksdict.AccessType.read_write())


def _check_mark(path: Path) -> None:
    """Refuse a store that would come up without batches that were synced; nothing is written.

    A damaged mark demands nothing: it is written anew, `ember fsck-disk` reports it.
    """
    with _named(path):
        missing = missing_changes(path, lambda: _held_by(path))
    if missing is not None:
        raise FsError(Status.IO_ERROR, f"{missing}; {_REMEDY}")


def _held_by(path: Path) -> Held:
    store = RocksMetaStore(path, is_read_only=True)
    try:
        return store.held()
    finally:
        store.close()


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Turn an OSError about the mark into FsError(IO_ERROR or NO_SPACE)."""
    try:
        yield
    except OSError as error:
        status = Status.NO_SPACE if error.errno == errno.ENOSPC else Status.IO_ERROR
        raise FsError(status, f"{path / MARK_NAME}: {error.strerror}") from error


def _to_rocks(batch: Batch) -> rocksdict.WriteBatch:
    rocks = rocksdict.WriteBatch(raw_mode=True)
    _add(rocks, batch)
    return rocks


def _add(rocks: rocksdict.WriteBatch, batch: Batch) -> None:
    put, delete = rocks.put, rocks.delete
    for key, value in batch:
        if value is None:
            delete(key)
        else:
            put(key, value)
