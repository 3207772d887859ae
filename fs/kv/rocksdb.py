"""The embedded engine: transactions over RocksDB, one process, one machine.

Durability: a commit is one RocksDB batch, appended to the write-ahead log with write(2) and not
synced, so it survives the death of the process at once.  Flushes (`flush_wal(sync=True)`: fdatasync
of the log, seen with strace) run off the event loop, cover all commits before them, and are shared
by everybody who waits: who asks while one is under way gets the next, together with all others.
`run` flushes what nobody waits for kv.group_sync_interval_s after it was committed, so that a power
loss takes the commits of that time at most.

Invariants:
    - The version of the newest commit is stored in that commit's batch: versions, and so
      versionstamps, go on growing after a restart.
    - After a power loss a prefix of the commits is there.  RocksDB recovers the log up to its first
      damage; a hole between two logs cannot occur because the log is only ever changed
      (`_rotate`) at a moment when all of the old one is synced, before the next commit.
    - A store that lacks synced commits is refused (fs/kv/rocksdb_store.py): the version that each
      flush covered is kept beside the log (fs/runtime/log_mark.py), and each log begins with a row
      that names it (log_segments.py).
    - After a failed flush or a commit whose failure proves nothing, the engine is poisoned: nothing
      is read, committed or reported durable again (IO_ERROR).  The process must end; the next one
      finds what the disk really holds.
    - A full disk refuses commits (NO_SPACE, definite) and nothing else: reads go on, what was
      committed before is made durable.  Commits of the managers go on in what is set aside, for
      a while also those that free space (log_room.py).  Where RocksDB itself finds the disk
      full it never writes again: the store is opened anew, in place, once there is space;
      transactions begun before become too old.

Concurrency: one event loop; reads and commits are short calls on it, only flushes and open/close
run elsewhere.  rocksdict raises bare Exception for everything, which is why it is caught as such at
each call, and nowhere else.
"""

import logging
import shutil
import weakref
from contextlib import AbstractContextManager, nullcontext
from typing import ClassVar, Final
from weakref import WeakSet

import trio
from rocksdict import Rdict, WriteBatch

from ..runtime.figures import Figures, Histogram
from ..runtime.log_mark import LogMark
from ..runtime.log_segments import LogSegments
from ..runtime.ports import Runtime
from ..runtime.until_wait import in_task
from ..schema import metrics
from ..schema.config import KvSection
from ..schema.layout import MIB
from ..schema.status import FsError, Status
from .buffer import Mutations
from .disk_watch import DiskWatch
from .local import NO_MEMORY, VERSION_BYTES, LocalEngine
from .log_room import LogRoom
from .rocksdb_store import (
    NO_ROOM,
    VERSION_KEY,
    WRITE_BUFFER_BYTES,
    check_format,
    discard,
    logs,
    open_mark,
    open_segments,
    open_store,
    sizes,
    stored_version,
    sync_path,
)
from .rocksdb_view import KnownRows, RocksDbView

log = logging.getLogger(__name__)

ROTATE_COST_BYTES: Final = 32 * MIB
"""So much log (with OP_COST_BYTES for each row, for the tables' overhead) before a rotation."""

OP_COST_BYTES: Final = 128

CLEAR_ROWS_MAX: Final = 256
"""A range of fewer rows is cleared row by row: range tombstones make later reads slower."""

REOPEN_INTERVAL_S: Final = 1.0
"""A full store looks for space no more often."""

REOPEN_FREE_BYTES_MIN: Final = 4 * MIB
"""Free space, beyond twice the log, that a full store waits for:
opening writes the log to tables.
"""

assert 4 * ROTATE_COST_BYTES <= WRITE_BUFFER_BYTES


class RocksDbEngine(LocalEngine):
    """See the module head; made by `open`, needs `run` to keep the durability promise."""

    COMMITS_PER_TURN: ClassVar[int] = 16

    def __init__(
        self,
        path: str,
        db: Rdict,
        mark: LogMark,
        segments: LogSegments,
        version: int,
        *,
        section: KvSection,
        runtime: Runtime,
        spared: tuple[bytes, ...] = (),
    ) -> None:
        """Use `open` instead."""
        super().__init__(runtime.clock, version)
        self._path = path
        self._db = db
        self._mark = mark
        self._segments = segments
        self._flushes = Histogram()
        self._runtime = runtime
        self._interval_s = section.group_sync_interval_s
        self._views: WeakSet[RocksDbView] = WeakSet()
        """Those that are fixed."""
        self._newest_view: RocksDbView | None = None
        self._known = KnownRows()
        """Of the newest state."""
        self._synced_version = version  # recovery writes what it found to synced tables
        self._has_unsynced = trio.Event()
        self._unsynced_since_s = 0.0
        """No commit that is not flushed is older: whoever waits for a flush spares the one
        in the background.
        """
        self._flush_done: trio.Event | None = None
        self._failure: str | None = None
        self._full_since_s: float | None = None  # or since the last look for space
        self._full_what = "just now"
        self._room = LogRoom(path, spared, self.now_s, self._watched)
        self._room.follow()
        self._is_closed = False
        self.watch: DiskWatch | None = None
        """Looks after the disk; None: nobody does, a disk that hangs stops this process."""

    @classmethod
    async def open(
        cls,
        path: str,
        section: KvSection,
        runtime: Runtime,
        *,
        cluster_id: str,
        spared: tuple[bytes, ...] = (),
    ) -> "RocksDbEngine":
        """Open the store in directory `path`, making it when it is not there.

        Commits of keys that begin as one of `spared` go on when the disk is full, for a while.

        Raises:
            FsError: ALREADY_RUNNING when another process (or object) has it open;
                KV_BAD_FORMAT when it is newer than this program, of another cluster, or no
                EmberFS store; KV_DAMAGED when synced commits are missing or RocksDB finds
                damage; IO_ERROR for the rest.
        """
        db = await runtime.run_blocking(open_store, path)
        try:
            version = check_format(db, path, cluster_id)
            segments = open_segments(db, path, ROTATE_COST_BYTES)
            mark = await runtime.run_blocking(open_mark, path, version, segments.number)
        except BaseException:
            discard(db, path)
            raise
        log.info("key-value store %s: open at version %d", path, version)
        return cls(
            path, db, mark, segments, version, section=section, runtime=runtime, spared=spared
        )

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Flush in the background until cancelled.

        Raises:
            FsError: IO_ERROR when the engine is poisoned; the process should end.
        """
        task_status.started()
        while True:
            await self._has_unsynced.wait()
            self._check_failure()
            while self._synced_version < self._version:
                self._check_health()
                left_s = self._unsynced_since_s + self._interval_s - self.now_s()
                if left_s > 0.0:
                    await trio.sleep(left_s)
                elif self._flush_done is None:
                    await self._flush()
                else:
                    await self._flush_done.wait()
            self._check_failure()  # of a commit that came while all others were being synced
            self._has_unsynced = trio.Event()

    @property
    def trouble(self) -> str:
        """See KvEngine.trouble."""
        if self._full_since_s is None:
            return self._room.trouble()
        return (
            f"{self._full()}; nothing is changed until then, so free space on that disk, or "
            "enlarge it"
        )

    def say(self, figures: Figures) -> None:
        """See LocalEngine.say."""
        super().say(figures)
        figures.note_histogram(metrics.KV_STORE_FLUSHES, self._flushes)
        store_bytes, log_bytes = sizes(self._path)
        figures.note(metrics.KV_STORE_BYTES, store_bytes)
        figures.note(metrics.KV_STORE_LOG_BYTES, log_bytes)

    async def sync(self) -> None:
        """See KvEngine.sync.

        Raises:
            FsError: IO_ERROR when the flush failed, now or earlier.
        """
        version = self._version
        while self._synced_version < version:
            self._check_health()
            await in_task()
            if self._flush_done is None:
                await self._flush()
            else:
                await self._flush_done.wait()

    async def _flush(self) -> None:
        """Flush once for everybody; those who come meanwhile wait and share the next."""
        done = self._flush_done = trio.Event()
        try:
            version, segment = self._version, self._segments.number
            began_s = self.now_s()
            await self._runtime.run_blocking(self._flush_log, version, segment)
            self._flushes.note(self.now_s() - began_s)
            self._unsynced_since_s = began_s
            self._synced_version = max(self._synced_version, version)
        finally:
            self._flush_done = None
            done.set()

    def _flush_log(self, version: int, segment: int) -> None:
        """Make the log durable, which holds all commits up to `version`,
        in segments up to `segment`; blocks.

        A failure poisons: the kernel may have dropped pages.
        """
        self._check_health()
        try:
            with self._watched("flush"):
                if self._full_since_s is None:
                    self._db.flush_wal(True)
                else:
                    for path in logs(self._path):
                        sync_path(path)
                self._mark.raise_to(version, segment)
        except Exception as error:
            raise self._poison(f"flush of the log: {error}") from error

    def _watched(self, what: str) -> AbstractContextManager[None]:
        return nullcontext() if self.watch is None else self.watch.under_way(what)

    def _poison(self, what: str) -> FsError:
        if self._failure is None:
            self._failure = what  # first: all else takes memory
            log.error("key-value store %s failed and serves no more: %s", self._path, what)
        return FsError(Status.IO_ERROR, f"key-value store {self._path}: {what}")

    def _poison_and_end(self, what: str) -> FsError:
        """As `_poison`, and `run` ends now, though nothing may be unsynced;
        on the event loop only.
        """
        try:
            return self._poison(what)
        finally:
            self._has_unsynced.set()

    def doubt(self) -> FsError:
        """See LocalEngine.doubt: the process must end, and the next one reads what is there."""
        self._poison_and_end(NO_MEMORY)
        return super().doubt()

    def _check_health(self) -> None:
        assert not self._is_closed, "the engine is closed"
        if self._failure is not None:
            self._check_failure()

    def _check_failure(self) -> None:
        if self._failure is not None:
            raise FsError(Status.IO_ERROR, f"key-value store {self._path}: {self._failure}")

    def open_view(self) -> RocksDbView:
        """See LocalEngine.open_view."""
        self._check_health()
        view = self._newest_view
        if view is None:
            view = self._newest_view = RocksDbView(self._db, self._version, self._known)
        return view

    def _part_newest_view(self) -> None:
        """Fix the view of the newest state, which is about to be another one,
        if anybody but this engine holds it.

        Raises:
            FsError: IO_ERROR: it cannot be fixed, so there must be no commit; it
                shows the newest state still.
        """
        if self._newest_view is None:
            return
        held = weakref.ref(self._newest_view)
        self._newest_view = None
        view = held()
        if view is None:
            return
        try:
            view.fix()
        except Exception as error:
            self._newest_view = view
            what = f"key-value store {self._path}: no snapshot: {error}"
            raise FsError(Status.IO_ERROR, what) from error
        self._views.add(view)

    def current(self, key: bytes) -> bytes | None:
        """See LocalEngine.current."""
        known = self._known
        if key in known:
            return known[key]
        view = self._newest_view
        return (self.open_view() if view is None else view).get(key)

    def apply(self, version: int, mutations: Mutations) -> None:
        """See LocalEngine.apply."""
        self._check_health()
        if self._full_since_s is not None:
            self._check_space(self._full_since_s)
        batch = WriteBatch(raw_mode=True)
        put = batch.put
        for begin, end in mutations.ranges:
            self._clear_range(batch, begin, end)
        for key, value in mutations.points:
            if value is None:
                batch.delete(key)
            else:
                put(key, value)
        if self._segments.is_between:
            for key, value in self._segments.opening_rows(lambda: version - 1):
                if value is None:
                    batch.delete(key)
                else:
                    put(key, value)
        put(VERSION_KEY, version.to_bytes(VERSION_BYTES, "big"))
        cost = batch.size_in_bytes() + OP_COST_BYTES * batch.len()
        self._room.admit(mutations, cost)
        self._part_newest_view()
        self._write(batch)
        is_last = self._segments.note(cost)
        self._known.follow(mutations)
        if not self._has_unsynced.is_set():
            self._unsynced_since_s = self.now_s()
            self._has_unsynced.set()
        if is_last and self._room.may_change():
            self._rotate()

    def _clear_range(self, batch: WriteBatch, begin: bytes, end: bytes) -> None:
        rows = self.open_view().scan(begin, end, CLEAR_ROWS_MAX, False)
        if len(rows) == CLEAR_ROWS_MAX:
            batch.delete_range(begin, end)
        else:
            for key, _ in rows:
                batch.delete(key)

    def _write(self, batch: WriteBatch) -> None:
        if self.watch is not None:
            self.watch.probe()
        try:
            self._db.write(batch)
        except Exception as error:
            if NO_ROOM in str(error):
                # A log record that did not fit is incomplete, and recovery drops it.
                self._full_since_s = self.now_s()
                log.warning(
                    "key-value store %s: disk full at version %d", self._path, self._version
                )
                raise FsError(Status.NO_SPACE, f"key-value store {self._path}: {error}") from error
            self._poison_and_end(f"commit: {error}")
            raise FsError(
                Status.KV_COMMIT_UNKNOWN, f"key-value store {self._path}: {error}"
            ) from error

    def _check_space(self, full_since_s: float) -> None:
        """Refuse while the disk is full; once it is not,
        open the store anew and ask for a retry.
        """
        if self._flush_done is None and self.now_s() - full_since_s >= REOPEN_INTERVAL_S:
            self._full_since_s = self.now_s()
            if self._has_space():
                self._reopen()
                raise FsError(Status.KV_TOO_OLD, f"{self._path}: opened anew after a full disk")
        raise FsError(Status.NO_SPACE, self._full())

    def _has_space(self) -> bool:
        """Return whether there is space for opening; what is known of it is told from now on."""
        try:
            _, log_bytes = sizes(self._path)
            free = shutil.disk_usage(self._path).free
        except OSError as error:
            self._full_what = f"how much is free cannot be found out: {error}"
            return False
        wanted = 2 * log_bytes + REOPEN_FREE_BYTES_MIN
        self._full_what = f"{free} bytes are free, changes go on with {wanted}"
        return free >= wanted

    def _full(self) -> str:
        return f"key-value store {self._path}: the disk is full: {self._full_what}"

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
            raise self._poison_and_end(f"opening after a full disk: {error}") from error
        if version != self._version:
            what = f"version {version} after a full disk, {self._version} before"
            raise self._poison_and_end(what)
        self._restart_at(version)
        self._segments.end()
        self._room.follow()
        self._full_since_s, self._full_what = None, "just now"
        log.info("key-value store %s: has space again at version %d", self._path, version)

    def _release_views(self) -> None:
        if self._newest_view is not None:
            self._newest_view.release()
            self._newest_view = None
        self._known = KnownRows()
        for view in list(self._views):
            view.release()

    def _rotate(self) -> None:
        """Begin a new log after syncing the old one; blocks for one flush, every 32 MiB or so."""
        version = self._version + 1  # the commit being applied is in the log already
        try:
            with self._watched("rotation"):
                self._db.flush_wal(True)
                self._mark.raise_to(version, self._segments.number)
                self._db.flush(wait=False)
        except Exception as error:
            # The commit stands in the log, but nobody can say whether it will stay.
            self._poison(f"rotation of the log: {error}")
            raise FsError(
                Status.KV_COMMIT_UNKNOWN, f"key-value store {self._path}: {error}"
            ) from error
        self._synced_version = version
        self._segments.end()
        self._room.follow()

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
        with self._watched("close"):
            try:
                self._db.close()
            except Exception as error:
                if self._full_since_s is None and NO_ROOM not in str(error):
                    raise self._closing_error(error) from error
                # All of it is in the synced log already; the next opening reads it from there.
                log.warning("key-value store %s: closing the full store: %s", self._path, error)
            finally:
                self._room.close()
                self._close_mark()

    def _close_mark(self) -> None:
        try:
            self._mark.close()
        except OSError as error:
            raise self._closing_error(error) from error

    def _closing_error(self, error: Exception) -> FsError:
        return FsError(Status.IO_ERROR, f"key-value store {self._path}: close: {error}")
