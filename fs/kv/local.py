"""What every engine inside one process shares: transactions over snapshots, and the commit.

`LocalEngine` leaves to its subclass only how to look at a snapshot and how to apply a commit
(fs/kv/memory.py, fs/kv/rocksdb.py).  Neither waits: reads are short calls, and between the conflict
check of a commit and its write there is no checkpoint, so that the check still holds when the
write happens.

Invariants:
    - Commit versions grow by one per commit; a snapshot holds exactly
      the commits up to its version.
    - A transaction that read anything is refused (KV_TOO_OLD) once TRANSACTION_AGE_S_MAX have
      passed since its snapshot: when it looks at the store, or commits.  Rows that are known anyway
      it may still read.  One that never read cannot conflict and has no age.
    - A commit is cancelled before it starts or not at all.

Concurrency: one event loop; many tasks, each with its own transaction.
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar, Final, Protocol

import trio

from ..runtime.figures import Figures
from ..runtime.ports import Clock
from ..runtime.readiness import current_time
from ..schema import metrics
from ..schema.status import FsError, Status
from .api import TRANSACTION_AGE_S_MAX, VERSIONSTAMP_BYTES, KeyValue, Transaction
from .buffer import UNWRITTEN, Mutations, WriteBuffer
from .conflicts import ConflictWindow
from .transaction import BufferedTransaction

VERSION_BYTES: Final = 8
STAMP_ORDER: Final = bytes(VERSIONSTAMP_BYTES - VERSION_BYTES)
"""The order within a version: always 0, a local engine gives each commit a version of its own."""

NO_MEMORY: Final = "no memory in the middle of a commit"
"""Why a store serves nothing more; made beforehand, as there may be no memory for it then."""


class View(Protocol):
    """A snapshot of the store."""

    version: int

    @property
    def known(self) -> Mapping[bytes, bytes | None]:
        """Rows that need no look at the store; None: absent.

        Maybe none, and another mapping after each commit.
        """
        ...

    def get(self, key: bytes) -> bytes | None:
        """Return the value at the snapshot."""
        ...

    def scan(self, begin: bytes, end: bytes, limit: int, reverse: bool) -> list[KeyValue]:
        """Return the rows with begin <= key < end, at most `limit` if > 0."""
        ...


class LocalEngine(ABC):
    """A KvEngine whose store is in this process; see the module head for what it guarantees."""

    COMMITS_PER_TURN: ClassVar[int] = 1
    """Every so many commits other tasks get a turn first."""

    def __init__(self, clock: Clock, version: int) -> None:
        """Continue after the commit `version`."""
        self.now_s = clock.monotonic_s
        """Monotonic seconds; the conflict window forgets by them."""
        self._version = version
        self._window = ConflictWindow(version)
        self.generation = 0
        """Changes when commits were lost: snapshots of an older generation are void."""
        self.commit_count = 0
        """Of this process."""
        self.refused: Counter[Status] = Counter()
        """Commits that did not happen, or of which nobody knows, by status."""
        self._commits_to_turn = self.COMMITS_PER_TURN

    @property
    def version(self) -> int:
        """Version of the newest commit."""
        return self._version

    @property
    def trouble(self) -> str:
        """See KvEngine.trouble."""
        return ""

    def transaction(self) -> Transaction:
        """See KvEngine.transaction."""
        return LocalTransaction(self)

    @abstractmethod
    async def sync(self) -> None:
        """See KvEngine.sync."""

    @abstractmethod
    async def aclose(self) -> None:
        """See KvEngine.aclose."""

    @abstractmethod
    def open_view(self) -> View:
        """Return a snapshot of the newest commit; raises FsError when the store cannot serve."""

    def open_lasting_view(self) -> View:
        """As `open_view`, of a snapshot that is read for longer than a transaction lives."""
        return self.open_view()

    @abstractmethod
    def current(self, key: bytes) -> bytes | None:
        """Return the newest committed value."""

    @abstractmethod
    def apply(self, version: int, mutations: Mutations) -> None:
        """Make the commit `version`: all of it or, with an error, as that error's status says."""

    async def take_turn(self) -> None:
        """A checkpoint; of most commits one that does not wait.

        Not to be called outside of any task, where others have their turns anyway.
        """
        self._commits_to_turn -= 1
        if self._commits_to_turn:
            await trio.lowlevel.checkpoint_if_cancelled()
        else:
            self._commits_to_turn = self.COMMITS_PER_TURN
            await trio.lowlevel.checkpoint()

    def say(self, figures: Figures) -> None:
        """Say how commits went, and what the store takes."""
        figures.note(metrics.KV_STORE_COMMITS, self.commit_count)
        for status, count in self.refused.items():
            figures.note(metrics.KV_STORE_REFUSED, count, status.name)

    def _restart_at(self, version: int) -> None:
        """Forget everything after `version`; open transactions become too old."""
        self._version = version
        self._window = ConflictWindow(version)
        self.generation += 1

    def commit_now(self, read_version: int | None, buffer: WriteBuffer) -> bytes:
        """Check and write, without a checkpoint; return the versionstamp."""
        window = self._window
        if read_version is not None:
            if read_version < window.horizon:
                self.refused[Status.KV_TOO_OLD] += 1
                raise FsError(
                    Status.KV_TOO_OLD, f"snapshot {read_version} is before {window.horizon}"
                )
            if not window.check(read_version, buffer.read_keys, buffer.read_ranges):
                self.refused[Status.KV_CONFLICT] += 1
                raise FsError(Status.KV_CONFLICT, f"snapshot {read_version} of {self._version}")
        version = self._version + 1
        stamp = version.to_bytes(VERSION_BYTES, "big") + STAMP_ORDER
        mutations = buffer.mutations(stamp, self.current)
        try:
            self.apply(version, mutations)
            self._version = version
            self.commit_count += 1
            window.add(version, self.now_s(), mutations.conflict_keys, mutations.ranges)
        except FsError as error:
            self.refused[error.status] += 1
            raise
        except MemoryError as error:
            raise self.doubt() from error
        return stamp

    def doubt(self) -> FsError:
        """Return what a commit ends with in the middle of which memory was short.

        It may be stored, and not be known here: a later one that overlaps it would not be
        refused, and rows would be read that are no more.  An engine whose store outlives
        it serves nothing after that.
        """
        return FsError(Status.KV_COMMIT_UNKNOWN, NO_MEMORY)


class LocalTransaction(BufferedTransaction):
    """See Transaction; made by LocalEngine.transaction.  Reads do not wait."""

    __slots__ = ("_engine", "_generation", "_pinned_s", "_view")

    def __init__(self, engine: LocalEngine) -> None:
        super().__init__()
        self._engine = engine
        self._view: View | None = None
        self._pinned_s = 0.0
        self._generation = engine.generation

    def _begin_read(self) -> None:
        self._pinned()

    def _pin(self) -> None:
        self._pinned()

    def _pinned(self) -> View:
        """Return the snapshot, taking it at the first read; refuse when it is too old."""
        assert self._is_open, "the transaction is over"
        view, engine = self._view, self._engine
        if view is None:
            self._view = view = engine.open_view()
            self._pinned_s = current_time()
            self._generation = engine.generation
            return view
        age_s = current_time() - self._pinned_s
        if age_s > TRANSACTION_AGE_S_MAX or self._generation != engine.generation:
            self.close()
            raise FsError(Status.KV_TOO_OLD, f"{age_s:.3f} s since its snapshot")
        return view

    async def get(self, key: bytes, *, snapshot: bool = False) -> bytes | None:
        """See Transaction.get; the same as in the base class, in one step."""
        view = self._view
        if view is None or key not in view.known:
            view = self._pinned()
        buffer = self._buffer
        if key in buffer.points or buffer.cleared:
            return self._own_row(view, key, snapshot=snapshot)
        if not snapshot:
            buffer.add_read_key(key)
        known = view.known
        return known[key] if key in known else view.get(key)

    def _own_row(self, view: View, key: bytes, *, snapshot: bool) -> bytes | None:
        """Return a row of which this transaction may have written something."""
        buffer = self._buffer
        written = buffer.written(key)
        if written is None or type(written) is bytes:
            return written
        if not snapshot:
            buffer.add_read_key(key)
        value = view.get(key)
        return value if written is UNWRITTEN else written.applied_to(value)  # type: ignore[union-attr]

    async def get_many(
        self, keys: Sequence[bytes], *, snapshot: bool = False
    ) -> list[bytes | None]:
        """See Transaction.get_many."""
        view = self._pinned()
        buffer, known, values = self._buffer, view.known, []
        is_clearing = bool(buffer.cleared)
        for key in keys:
            if is_clearing or key in buffer.points:
                values.append(self._own_row(view, key, snapshot=snapshot))
                continue
            if not snapshot:
                buffer.add_read_key(key)
            values.append(known[key] if key in known else view.get(key))
        return values

    async def _fetch(self, key: bytes) -> bytes | None:
        assert self._view is not None
        return self._view.get(key)

    async def _fetch_ahead(self, keys: Sequence[bytes]) -> None:
        """A read here is cheap as it is."""

    async def prefetch(self, keys: Iterable[bytes]) -> None:
        """See Transaction.prefetch: nothing to gain."""

    async def _fetch_rows(
        self, begin: bytes, end: bytes, limit: int, reverse: bool
    ) -> list[KeyValue]:
        assert self._view is not None
        return self._view.scan(begin, end, limit, reverse)

    async def _commit(self) -> bytes:
        """A checkpoint comes before the work, none after it."""
        if trio.lowlevel.in_trio_task():
            await self._engine.take_turn()
        if self._view is None:
            return self._engine.commit_now(None, self._buffer)
        read_version = self._pinned().version
        # What nobody holds need not be kept readable beside the new state (fs/kv/rocksdb_view.py).
        self._view = None
        return self._engine.commit_now(read_version, self._buffer)

    def close(self) -> None:
        """See Transaction.close."""
        self._is_open = False
        self._view = None
