r"""The embedded engine: transactions over RocksDB, one process, one machine.

Durability: a commit is one RocksDB batch, appended to the write-ahead log with write(2) and not
synced, so it survives the death of the process at once.  Flushes (`flush_wal(sync=True)`: fdatasync
of the log, seen with strace) run off the event loop, cover all commits before them, and are shared by
everybody who waits: who asks while one is under way gets the next, together with all others.  `run`
flushes what nobody waits for kv.group_sync_interval_s after it was committed, so that a power loss
takes a few milliseconds of commits at most.

Invariants:
    - The version of the newest commit is stored in that commit's batch: versions, and so
      versionstamps, go on growing after a restart.
    - After a power loss a prefix of the commits is there.  RocksDB recovers the log up to its first
      damage; a hole between two logs cannot occur because the log is only ever changed
      (`_rotate`) at a moment when all of the old one is synced, before the next commit.
    - A store that lacks synced commits, because a byte of its log or its list of files is rotten, is
      refused (KV_DAMAGED) before anything is written: the version that each flush covered is kept
      beside the log (fs/runtime/log_mark.py).
    - After a failed flush or a commit whose failure proves nothing, the engine is poisoned: nothing
      is read, committed or reported durable again (IO_ERROR).  The process must end; the next one
      finds what the disk really holds.
    - A full disk refuses commits (NO_SPACE, definite) and nothing else: reads go on, what was
      committed before is made durable.  RocksDB never writes again after such an error, so the
      store is opened anew, in place, once there is space; transactions begun before become too old.

Reserved keys: \xff/format holds a FormatRecordPb, \xff/version the newest commit version (8 bytes,
big-endian), written in the batch of that commit.  The last batch of log n stores its version as
\xff/log/n, the first one of the next log stores n as \xff/log-follows: a number that is missing tells
of a log, or the table made of it, that was lost between others.  User keys are below \xff.

Concurrency: one event loop; reads and commits are short calls on it, only flushes and open/close
run elsewhere.  rocksdict raises bare Exception for everything, which is why it is caught as such at
each call, and nowhere else.
"""

import logging
import os
import shutil
import sys
from pathlib import Path
from typing import Final
from weakref import WeakSet

import trio
from google.protobuf.message import DecodeError
from rocksdict import (
    AccessType,
    BlockBasedOptions,
    Cache,
    DBCompressionType,
    DBRecoveryMode,
    Options,
    Rdict,
    RdictIter,
    Snapshot,
    WriteBatch,
    WriteOptions,
)

from ..runtime.durable_file import sync_directory
from ..runtime.log_mark import MARK_NAME, LogMark, missing_changes
from ..runtime.ports import Runtime
from ..runtime.rocksdb_log import first_bad_byte
from ..schema.config import KvSection
from ..schema.layout import KIB, MIB
from ..schema.proto import record_pb2
from ..schema.status import FsError, Status
from .api import KeyValue
from .buffer import Mutations
from .local import VERSION_BYTES, LocalEngine

log = logging.getLogger(__name__)

FORMAT_VERSION: Final = 1
FORMAT_KEY: Final = b"\xff/format"
FORMAT_WHAT: Final = "kv"
VERSION_KEY: Final = b"\xff/version"
LOG_PREFIX: Final = b"\xff/log/"
LOG_PREFIX_END: Final = b"\xff/log0"
LOG_FOLLOWS_KEY: Final = b"\xff/log-follows"
WRITE_BUFFER_BYTES: Final = 256 * MIB
"""Never reached: the engine changes the log, RocksDB must not by itself."""

WAL_BYTES: Final = 64 * MIB
"""How much RocksDB sets aside for a log; with one column family it limits nothing else."""

BLOCK_CACHE_BYTES: Final = 64 * MIB
ROW_MISSING: Final = ("key not found",)
"""Arguments of the exception by which a snapshot reports an absent key."""

ROTATE_COST_BYTES: Final = 32 * MIB
"""So much log (with OP_COST_BYTES for each row, for the tables' overhead) before a rotation."""

OP_COST_BYTES: Final = 128

CLEAR_ROWS_MAX: Final = 256
"""A range of fewer rows is cleared row by row: range tombstones make later reads slower."""

REOPEN_INTERVAL_S: Final = 1.0
"""A full store looks for space no more often."""

REOPEN_FREE_BYTES_MIN: Final = 4 * MIB
"""Free space, beyond twice the log, that a full store waits for: opening writes the log to tables."""

assert 4 * ROTATE_COST_BYTES <= WRITE_BUFFER_BYTES


def _options() -> Options:
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_wal_recovery_mode(DBRecoveryMode.point_in_time())
    options.set_write_buffer_size(WRITE_BUFFER_BYTES)
    options.set_max_write_buffer_number(6)
    options.set_max_total_wal_size(WAL_BYTES)
    options.set_max_background_jobs(2)
    options.set_compression_type(DBCompressionType.lz4())
    options.set_keep_log_file_num(4)
    options.set_max_log_file_size(4 * MIB)
    options.set_max_open_files(512)
    table = BlockBasedOptions()
    table.set_block_cache(Cache(BLOCK_CACHE_BYTES))
    table.set_block_size(8 * KIB)
    table.set_bloom_filter(10, False)
    options.set_block_based_table_factory(table)
    return options


class RocksDbView:
    """One state of the store; shared by the transactions that begin between two commits.

    The cursor is made together with the snapshot, because the binding's `Snapshot.iter` reads the
    newest state instead of the snapshot's; a plain cursor stays at the state in which it was made.
    """

    __slots__ = ("__weakref__", "_cursor", "_snapshot", "version")

    def __init__(self, db: Rdict, version: int) -> None:
        self._snapshot: Snapshot | None = db.snapshot()
        self._cursor: RdictIter | None = db.iter()
        self.version = version

    def release(self) -> None:
        """Let go of the store; later reads are a bug."""
        self._snapshot = None
        self._cursor = None

    def get(self, key: bytes) -> bytes | None:
        """See View.get."""
        snapshot = self._snapshot
        assert snapshot is not None, "the engine is closed"
        try:
            value: bytes = snapshot[key]
        except Exception as error:
            if error.args == ROW_MISSING:
                return None
            raise FsError(Status.IO_ERROR, f"key-value store: get {key!r}: {error}") from error
        return value

    def scan(self, begin: bytes, end: bytes, limit: int, reverse: bool) -> list[KeyValue]:
        """See View.scan."""
        cursor = self._cursor
        assert cursor is not None, "the engine is closed"
        collect = _backward if reverse else _forward
        try:
            rows = collect(cursor, begin, end, limit)
            cursor.status()  # a cursor that failed looks like one at its end
        except Exception as error:
            raise FsError(
                Status.IO_ERROR, f"key-value store: scan {begin!r}..{end!r}: {error}"
            ) from error
        return rows


def _forward(cursor: RdictIter, begin: bytes, end: bytes, limit: int) -> list[KeyValue]:
    rows: list[KeyValue] = []
    cursor.seek(begin)
    while cursor.valid() and (key := cursor.key()) < end:
        rows.append((key, cursor.value()))
        if len(rows) == limit:
            break
        cursor.next()
    return rows


def _backward(cursor: RdictIter, begin: bytes, end: bytes, limit: int) -> list[KeyValue]:
    rows: list[KeyValue] = []
    cursor.seek_for_prev(end)
    if cursor.valid() and cursor.key() >= end:
        cursor.prev()
    while cursor.valid() and (key := cursor.key()) >= begin:
        rows.append((key, cursor.value()))
        if len(rows) == limit:
            break
        cursor.prev()
    return rows


def open_store(path: str) -> Rdict:
    """Open or make the store in directory `path`; blocks.

    Raises:
        FsError: ALREADY_RUNNING when it is open elsewhere; KV_DAMAGED, with nothing written, when it
            lacks synced commits or RocksDB finds it damaged; IO_ERROR.
    """
    directory = Path(path)
    try:
        if not directory.is_dir():
            directory.mkdir(parents=True)
            sync_directory(directory.parent)
        _check_file_list(directory)
        _check_mark(directory)
        return Rdict(path, options=_options())
    except FsError:
        raise
    except Exception as error:
        raise _opening_error(path, error) from error


def _opening_error(path: str, error: Exception) -> FsError:
    text = str(error)
    if "/LOCK" in text and "lock" in text.lower():
        return FsError(Status.ALREADY_RUNNING, f"key-value store {path}: {text}")
    if "Corruption" in text or "No such file" in text:
        return FsError(
            Status.KV_DAMAGED, f"key-value store {path}: {text}; put back a copy of {path}"
        )
    return FsError(Status.IO_ERROR, f"key-value store {path}: {text}")


def _check_file_list(directory: Path) -> None:
    """Refuse a torn MANIFEST.

    RocksDB would go back to the tables that it named before, although the logs of the later ones are
    deleted: rows in the middle of the history would be gone, and the newest version still be there.
    """
    try:
        manifest = directory / (directory / "CURRENT").read_text("ascii").strip()
        bad = first_bad_byte(manifest.read_bytes())
    except (FileNotFoundError, UnicodeDecodeError):
        return  # a new store, or one that RocksDB, or the mark, refuses
    if bad is not None:
        raise FsError(
            Status.KV_DAMAGED,
            f"{manifest} is damaged at byte {bad}: commits may be missing; put back a copy of {directory},"
            f" or, if the power failed while its end was written, cut it there: truncate -s {bad} {manifest}",
        )


def _check_mark(directory: Path) -> None:
    missing = missing_changes(directory, lambda: _whole_version(directory))
    if missing is not None:
        raise FsError(
            Status.KV_DAMAGED,
            f"{missing}; put back a copy of {directory}, or, to go on without these commits,"
            f" remove {directory / MARK_NAME}",
        )


def _whole_version(directory: Path) -> int:
    """Return the newest version up to which no commit is missing, changing nothing."""
    db = Rdict(str(directory), options=_options(), access_type=AccessType.read_only(False))
    try:
        previous = 0
        ends, newest = _log_ends(db)
        for number in range(min(ends, default=newest), newest + 1 if newest else 0):
            if number not in ends:
                return previous
            previous = ends[number]
        return stored_version(db)
    finally:
        db.close()


def logs(path: str) -> list[Path]:
    """Return the log files, oldest first."""
    return sorted(Path(path).glob("*.log"))


def sync_path(path: Path) -> None:
    """Make a file or directory durable; blocks."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def check_format(db: Rdict, path: str, cluster_id: str) -> int:
    """Return the newest commit version, after writing the records of a new store.

    Raises:
        FsError: KV_BAD_FORMAT, naming what was found; KV_DAMAGED, IO_ERROR.
    """
    try:
        packed = db.get(FORMAT_KEY)
        version = stored_version(db)
    except Exception as error:
        raise _opening_error(path, error) from error
    if packed is None:
        if next(iter(db.keys()), None) is not None:
            raise FsError(Status.KV_BAD_FORMAT, f"{path}: not empty, and no format record")
        _write_format(db, cluster_id)
        return 0
    try:
        record = record_pb2.FormatRecordPb.FromString(packed)
    except DecodeError as error:
        raise FsError(Status.KV_BAD_FORMAT, f"{path}: unreadable format record") from error
    if record.what != FORMAT_WHAT or not 1 <= record.format_version <= FORMAT_VERSION:
        raise FsError(
            Status.KV_BAD_FORMAT,
            f"{path}: {record.what!r} of format {record.format_version};"
            f" this program knows {FORMAT_WHAT!r} up to {FORMAT_VERSION}",
        )
    if record.cluster_id != cluster_id:
        raise FsError(
            Status.KV_BAD_FORMAT, f"{path}: of cluster {record.cluster_id!r}, not {cluster_id!r}"
        )
    return version


def _write_format(db: Rdict, cluster_id: str) -> None:
    record = record_pb2.FormatRecordPb(
        format_version=FORMAT_VERSION, cluster_id=cluster_id, what=FORMAT_WHAT
    )
    batch = WriteBatch(raw_mode=True)
    batch.put(FORMAT_KEY, record.SerializeToString())
    batch.put(VERSION_KEY, bytes(VERSION_BYTES))
    options = WriteOptions()
    options.sync = True
    db.write(batch, options)


def stored_version(db: Rdict) -> int:
    """Return the version of the newest commit in the store."""
    return _stored_number(db, VERSION_KEY)


def _log_ends(db: Rdict) -> tuple[dict[int, int], int]:
    """Return the last version of each ended log, by number, and the newest number known of."""
    cursor = db.iter()
    rows = _forward(cursor, LOG_PREFIX, LOG_PREFIX_END, sys.maxsize)
    cursor.status()
    ends = {
        int.from_bytes(key[len(LOG_PREFIX) :], "big"): int.from_bytes(value, "big")
        for key, value in rows
    }
    return ends, max([_stored_number(db, LOG_FOLLOWS_KEY), *ends])


def _forget_logs(db: Rdict, path: str) -> int:
    """Keep the row of the newest log alone, gaps being settled; return its number, 0 without any."""
    try:
        ends, newest = _log_ends(db)
        if newest and set(ends) != {newest}:
            batch = WriteBatch(raw_mode=True)
            for number in ends:
                batch.delete(LOG_PREFIX + _packed(number))
            batch.put(LOG_PREFIX + _packed(newest), _packed(stored_version(db)))
            db.write(batch)
    except Exception as error:
        raise _opening_error(path, error) from error
    return newest


def _discard(db: Rdict, path: str) -> None:
    """Release a store that is refused; what cannot be written then is in its log."""
    try:
        db.close()
    except Exception as error:  # noqa: BLE001 - the reason of the refusal matters more
        log.warning("key-value store %s: closing after a refusal: %s", path, error)


def _packed(number: int) -> bytes:
    return number.to_bytes(VERSION_BYTES, "big")


def _stored_number(db: Rdict, key: bytes) -> int:
    return int.from_bytes(db.get(key) or b"", "big")


def _open_mark(path: str, version: int) -> LogMark:
    try:
        mark = LogMark(Path(path))
        mark.raise_to(version)
        mark.sync()
        sync_directory(Path(path))
    except OSError as error:
        raise FsError(Status.IO_ERROR, f"{path}/{MARK_NAME}: {error.strerror}") from error
    return mark


class RocksDbEngine(LocalEngine):
    """See the module head; made by `open`, needs `run` to keep the durability promise."""

    def __init__(
        self,
        path: str,
        db: Rdict,
        mark: LogMark,
        version: int,
        *,
        log_number: int,
        section: KvSection,
        runtime: Runtime,
    ) -> None:
        """Use `open` instead."""
        super().__init__(runtime.clock, version)
        self._path = path
        self._db = db
        self._mark = mark
        self._runtime = runtime
        self._interval_s = section.group_sync_interval_s
        self._views: WeakSet[RocksDbView] = WeakSet()
        self._newest_view: RocksDbView | None = None
        self._synced_version = version  # recovery writes what it found to synced tables
        self._log_cost_bytes = 0
        self._log_number = log_number  # of the newest log that has ended
        self._is_log_new = False  # and so the next commit has to tell which log it follows
        self._has_unsynced = trio.Event()
        self._flush_done: trio.Event | None = None
        self._failure: str | None = None
        self._full_since_s: float | None = None  # or since the last look for space
        self._is_closed = False

    @classmethod
    async def open(
        cls, path: str, section: KvSection, runtime: Runtime, *, cluster_id: str
    ) -> "RocksDbEngine":
        """Open the store in directory `path`, making it when it is not there.

        Raises:
            FsError: ALREADY_RUNNING when another process (or object) has it open; KV_BAD_FORMAT
                when it is newer than this program, of another cluster, or no EmberFS store;
                KV_DAMAGED when synced commits are missing or RocksDB finds damage; IO_ERROR for the rest.
        """
        db = await runtime.run_blocking(open_store, path)
        try:
            version = check_format(db, path, cluster_id)
            log_number = _forget_logs(db, path)
            mark = await runtime.run_blocking(_open_mark, path, version)
        except BaseException:
            _discard(db, path)
            raise
        log.info("key-value store %s: open at version %d", path, version)
        return cls(path, db, mark, version, log_number=log_number, section=section, runtime=runtime)

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Flush in the background until cancelled.

        Raises:
            FsError: IO_ERROR when the engine is poisoned; the process should end.
        """
        task_status.started()
        while True:
            await self._has_unsynced.wait()
            await trio.sleep(self._interval_s)
            self._has_unsynced = trio.Event()
            await self.sync()

    async def sync(self) -> None:
        """See KvEngine.sync.

        Raises:
            FsError: IO_ERROR when the flush failed, now or earlier.
        """
        version = self._version
        while self._synced_version < version:
            self._check_health()
            if self._flush_done is None:
                await self._flush()
            else:
                await self._flush_done.wait()

    async def _flush(self) -> None:
        """Flush once for everybody; those who come meanwhile wait and share the next."""
        done = self._flush_done = trio.Event()
        try:
            version = self._version
            await self._runtime.run_blocking(self._flush_log, version)
            self._synced_version = max(self._synced_version, version)
        finally:
            self._flush_done = None
            done.set()

    def _flush_log(self, version: int) -> None:
        """Make the log durable, which holds all commits up to `version`; blocks.

        A failure poisons: the kernel may have dropped pages.
        """
        self._check_health()
        try:
            if self._full_since_s is None:
                self._db.flush_wal(True)
            else:
                for path in logs(self._path):
                    sync_path(path)
            self._mark.raise_to(version)
        except Exception as error:
            raise self._poison(f"flush of the log: {error}") from error

    def _poison(self, what: str) -> FsError:
        if self._failure is None:
            self._failure = what
            log.error("key-value store %s failed and serves no more: %s", self._path, what)
        return FsError(Status.IO_ERROR, f"key-value store {self._path}: {what}")

    def _check_health(self) -> None:
        assert not self._is_closed, "the engine is closed"
        if self._failure is not None:
            raise FsError(Status.IO_ERROR, f"key-value store {self._path}: {self._failure}")

    def open_view(self) -> RocksDbView:
        """See LocalEngine.open_view."""
        self._check_health()
        view = self._newest_view
        if view is None:
            view = self._newest_view = RocksDbView(self._db, self._version)
            self._views.add(view)
        return view

    def current(self, key: bytes) -> bytes | None:
        """See LocalEngine.current."""
        return self.open_view().get(key)

    def apply(self, version: int, mutations: Mutations) -> None:
        """See LocalEngine.apply."""
        self._check_health()
        self._check_space()
        batch = WriteBatch(raw_mode=True)
        for begin, end in mutations.ranges:
            self._clear_range(batch, begin, end)
        for key, value in mutations.points:
            if value is None:
                batch.delete(key)
            else:
                batch.put(key, value)
        batch.put(VERSION_KEY, _packed(version))
        self._log_cost_bytes += batch.size_in_bytes() + OP_COST_BYTES * batch.len()
        is_last = self._log_cost_bytes >= ROTATE_COST_BYTES
        if is_last:
            batch.put(LOG_PREFIX + _packed(self._log_number + 1), _packed(version))
        if self._is_log_new:
            batch.put(LOG_FOLLOWS_KEY, _packed(self._log_number))
        self._write(batch)
        self._is_log_new = False
        self._newest_view = None
        if not self._has_unsynced.is_set():
            self._has_unsynced.set()
        if is_last:
            self._rotate()

    def _clear_range(self, batch: WriteBatch, begin: bytes, end: bytes) -> None:
        rows = self.open_view().scan(begin, end, CLEAR_ROWS_MAX, False)
        if len(rows) == CLEAR_ROWS_MAX:
            batch.delete_range(begin, end)
        else:
            for key, _ in rows:
                batch.delete(key)

    def _write(self, batch: WriteBatch) -> None:
        try:
            self._db.write(batch)
        except Exception as error:
            if "No space left on device" in str(error):
                # A log record that did not fit is incomplete, and recovery drops it.
                self._full_since_s = self.now_s()
                log.warning(
                    "key-value store %s: disk full at version %d", self._path, self._version
                )
                raise FsError(Status.NO_SPACE, f"key-value store {self._path}: {error}") from error
            self._poison(f"commit: {error}")
            raise FsError(
                Status.KV_COMMIT_UNKNOWN, f"key-value store {self._path}: {error}"
            ) from error

    def _check_space(self) -> None:
        """Refuse while the disk is full; once it is not, open the store anew and ask for a retry."""
        if self._full_since_s is None:
            return
        if self._flush_done is None and self.now_s() - self._full_since_s >= REOPEN_INTERVAL_S:
            self._full_since_s = self.now_s()
            log_bytes = sum(path.stat().st_size for path in logs(self._path))
            if shutil.disk_usage(self._path).free >= 2 * log_bytes + REOPEN_FREE_BYTES_MIN:
                self._reopen()
                raise FsError(Status.KV_TOO_OLD, f"{self._path}: opened anew after a full disk")
        raise FsError(Status.NO_SPACE, f"key-value store {self._path}: the disk is full")

    def _reopen(self) -> None:
        self._release_views()
        try:
            self._db.close()
        except Exception as error:  # noqa: BLE001 - it repeats the error that made it full
            log.warning("key-value store %s: closing the full store: %s", self._path, error)
        try:
            self._db = open_store(self._path)
            version = stored_version(self._db)
        except Exception as error:
            raise self._poison(f"opening after a full disk: {error}") from error
        if version != self._version:
            raise self._poison(f"version {version} after a full disk, {self._version} before")
        self._restart_at(version)
        self._log_cost_bytes = 0
        self._is_log_new = False
        self._full_since_s = None
        log.info("key-value store %s: has space again at version %d", self._path, version)

    def _release_views(self) -> None:
        self._newest_view = None
        for view in list(self._views):
            view.release()

    def _rotate(self) -> None:
        """Begin a new log after syncing the old one; blocks for one flush, every 32 MiB or so."""
        version = self._version + 1  # the commit being applied is in the log already
        try:
            self._db.flush_wal(True)
            self._mark.raise_to(version)
            self._db.flush(wait=False)
        except Exception as error:
            # The commit stands in the log, but nobody can say whether it will stay.
            self._poison(f"rotation of the log: {error}")
            raise FsError(
                Status.KV_COMMIT_UNKNOWN, f"key-value store {self._path}: {error}"
            ) from error
        self._synced_version = version
        self._log_number += 1
        self._is_log_new = True
        self._log_cost_bytes = 0

    async def aclose(self) -> None:
        """See KvEngine.aclose; `run` must have ended.  Releases the store even when it fails."""
        if self._is_closed:
            return
        try:
            await self.sync()
        finally:
            with trio.CancelScope(shield=True):
                while self._flush_done is not None:
                    await self._flush_done.wait()
                self._is_closed = True
                self._release_views()
                await self._runtime.run_blocking(self._close_store)

    def _close_store(self) -> None:
        try:
            self._db.close()
        except Exception as error:
            if self._full_since_s is None:
                raise self._closing_error(error) from error
            # All of it is in the synced log already; the next opening reads it from there.
            log.warning("key-value store %s: closing the full store: %s", self._path, error)
        finally:
            self._close_mark()

    def _close_mark(self) -> None:
        try:
            self._mark.close()
        except OSError as error:
            raise self._closing_error(error) from error

    def _closing_error(self, error: Exception) -> FsError:
        return FsError(Status.IO_ERROR, f"key-value store {self._path}: close: {error}")
