"""The `foundationdb` engine: transactions of a FoundationDB cluster,
through its own client library.

Writes gather on this side (fs/kv/transaction.py), so that limits, reading of own writes and what
counts as read are those of every engine.  Reads are snapshot reads of one FoundationDB transaction;
at commit it is given what was read as explicit conflicts and then the writes.

Futures: the client library calls back on its network thread, which does nothing but
wake the task that waits.  No thread is spent per call, and reads that are asked for
together are under way together.

Read versions: the client library gathers the requests of many transactions into one, and a version
is never used by a transaction that began after it was asked for; so what was committed before a
transaction began is always seen.

Every commit is on disk when FoundationDB acknowledges it: `sync` has nothing to wait for.

Outcomes:
    - FoundationDB's own predicates say which errors leave a commit undecided: KV_COMMIT_UNKNOWN.
      It reports one only when the commit can no longer take effect later.
    - Nobody answers: KV_UNAVAILABLE after READ_TIMEOUT_S, KV_COMMIT_UNKNOWN after COMMIT_TIMEOUT_S.
      A commit given up so, or cancelled, may still take effect within the 5 s that FoundationDB
      lets a transaction live; it is refused then if anything it read has changed, so a retry that
      reads the record which it writes is safe.
    - An error that FoundationDB wants to be retried later is raised once that back-off is over.
    - The first error of a read ends its transaction: that of FoundationDB
      would go on at another snapshot.
    - A commit that has happened is told so with its versionstamp, or as KV_COMMIT_UNKNOWN.

Invariants:
    - All keys are under one prefix, that of the cluster: any number of
      clusters share one FoundationDB.

How a process comes to the client library stands in fs/kv/foundationdb_client.py.

Concurrency: as KvEngine.  An engine belongs to the event loop that opened it.

Source: FoundationDB C API and developer guide, release 7.3.
"""

import struct
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

import trio

from ..runtime.ports import Clock, Runtime
from ..schema.config import KvSection
from ..schema.status import FsError, Status
from .api import (
    TRANSACTION_AGE_S_MAX,
    VERSIONSTAMP_BYTES,
    KeyValue,
    Transaction,
)
from .buffer import (
    ADD_BYTES,
    ADD_MASK,
    KEY_END,
    Added,
    Raised,
    Stamped,
    Unwritten,
    WriteBuffer,
)
from .foundationdb_client import (
    RELEASE,
    client_of,
    engine_error,
    key_prefix,
    read_cluster_file,
)
from .transaction import BufferedTransaction

READ_TIMEOUT_S: Final = TRANSACTION_AGE_S_MAX
COMMIT_TIMEOUT_S: Final = 10.0
BACKOFF_TIMEOUT_S: Final = 5.0
KEYS_AT_ONCE_MAX: Final = 1_000
"""Reads of one get_many under way together."""

NOT_COMMITTED: Final = 1020
STATUSES: Final = {
    NOT_COMMITTED: Status.KV_CONFLICT,
    1007: Status.KV_TOO_OLD,
    2101: Status.KV_TRANSACTION_TOO_LARGE,
    2102: Status.KV_KEY_TOO_LARGE,
    2103: Status.KV_VALUE_TOO_LARGE,
}
"""FoundationDB's error codes that have a status of their own; all of them are definite."""

OFFSET: Final = struct.Struct("<L")
"""Where the versionstamp goes: at the end of the parameter, little-endian."""


async def open_engine(
    section: KvSection, runtime: Runtime, *, cluster_id: str
) -> "FoundationDbEngine":
    """Open FoundationDB for the cluster `cluster_id`, and wait until it answers.

    Raises:
        FsError: BAD_CONFIG for what can be seen from here; KV_UNREACHABLE when nobody
            answers within kv.open_timeout_s.
    """
    prefix = key_prefix(cluster_id)
    where = read_cluster_file(section.cluster_file)
    client = client_of(section)
    try:
        database = client.fdb.open(section.cluster_file)
    except client.fdb.FDBError as error:
        raise engine_error(
            Status.BAD_CONFIG, error, f"cluster file {section.cluster_file}"
        ) from error
    engine = FoundationDbEngine(
        client.fdb, database, prefix, runtime.clock, f"{section.cluster_file} ({where})"
    )
    await engine.check_reachable(section.open_timeout_s)
    return engine


class FoundationDbEngine:
    """A KvEngine; see the module head."""

    def __init__(self, fdb: Any, database: Any, prefix: bytes, clock: Clock, where: str) -> None:
        """Use an open database; `where` is for messages."""
        self.fdb = fdb
        self.database = database
        self.prefix = prefix
        self.clock = clock
        self.where = where
        self.waiting_count = 0
        """Tasks that wait for FoundationDB at this moment."""
        self._token = trio.lowlevel.current_trio_token()

    @property
    def trouble(self) -> str:
        """See KvEngine.trouble: FoundationDB's own tools tell."""
        return ""

    def transaction(self) -> Transaction:
        """See KvEngine.transaction."""
        return FoundationDbTransaction(self)

    async def sync(self) -> None:
        """See KvEngine.sync: every commit is durable already."""
        await trio.lowlevel.checkpoint()

    async def aclose(self) -> None:
        """See KvEngine.aclose.  The connections are the process's and stay."""
        await trio.lowlevel.checkpoint()

    async def check_reachable(self, timeout_s: float) -> int:
        """Return a read version; raises FsError(KV_UNREACHABLE) when none comes within the time."""
        tr = self.database.create_transaction()
        future = tr.get_read_version()
        if not await self.is_settled(future, timeout_s):
            raise FsError(
                Status.KV_UNREACHABLE,
                f"FoundationDB at {self.where} did not answer within {timeout_s:g} s; are its "
                f"processes up, of the client library's release ({RELEASE}), and reachable from "
                "here? See: fdbcli -C CLUSTERFILE --exec status",
            )
        try:
            return int(future.wait())
        except self.fdb.FDBError as error:
            raise engine_error(Status.KV_UNREACHABLE, error, f"at {self.where}") from error

    async def server_status(self, timeout_s: float) -> bytes:
        """Return what the cluster says of itself, as JSON;
        empty when it says nothing within the time.
        """
        tr = self.database.create_transaction()
        future = tr.get(b"\xff\xff/status/json")
        if not await self.is_settled(future, timeout_s):
            return b""
        try:
            return bytes(future.value or b"")
        except self.fdb.FDBError:  # a server that does not offer it is still a server
            return b""

    async def clear_all(self) -> None:
        """Remove every key of this cluster.

        Raises:
            FsError: as a commit; removing again does no harm.
        """
        tr = self.transaction()
        tr.clear_range(b"", KEY_END)
        await tr.commit()

    async def is_settled(self, future: Any, timeout_s: float) -> bool:
        """Wait until a future holds a value or an error;
        False when time is up, and then it is cancelled.
        """
        if future.is_ready():  # as all but the first of many that were asked for together
            await trio.lowlevel.checkpoint_if_cancelled()
            return True
        event, token = trio.Event(), self._token

        def wake(_future: Any) -> None:  # on the network thread
            with suppress(trio.RunFinishedError):
                token.run_sync_soon(event.set)

        future.on_ready(wake)
        self.waiting_count += 1
        try:
            with trio.move_on_after(timeout_s):
                await event.wait()
        finally:
            self.waiting_count -= 1
            if not event.is_set():
                future.cancel()
        return event.is_set()

    async def failed(self, tr: Any, error: Any, *, is_commit: bool) -> FsError:
        """Return what to raise for FoundationDB's error, after the pause it asks for."""
        what = "commit" if is_commit else "read"
        if (status := STATUSES.get(error.code)) is not None:
            return engine_error(status, error, what)
        predicates = self.fdb.predicates
        if is_commit and predicates.is_maybe_committed(error):
            return engine_error(Status.KV_COMMIT_UNKNOWN, error, what)
        if not predicates.is_retryable(error):
            return engine_error(Status.IO_ERROR, error, what)
        again = tr.on_error(error)
        if await self.is_settled(again, BACKOFF_TIMEOUT_S):
            with suppress(self.fdb.FDBError):  # the error at hand says more
                again.wait()
        return engine_error(Status.KV_CONFLICT if is_commit else Status.KV_UNAVAILABLE, error, what)


class FoundationDbTransaction(BufferedTransaction):
    """See Transaction; made by FoundationDbEngine.transaction."""

    __slots__ = ("_ahead", "_engine", "_pinned_s", "_prefix", "_tr", "_version")

    def __init__(self, engine: FoundationDbEngine) -> None:
        super().__init__()
        self._engine = engine
        self._prefix = engine.prefix
        self._ahead: dict[bytes, bytes | None] = {}
        self._tr: Any = None
        self._version: Any = None
        self._pinned_s: float | None = None

    def _begin_read(self) -> None:
        assert self._is_open, "the transaction is over"
        if self._pinned_s is None:
            self._pinned_s = self._engine.clock.monotonic_s()
        else:
            self._check_age()

    def _check_age(self) -> None:
        assert self._pinned_s is not None
        age_s = self._engine.clock.monotonic_s() - self._pinned_s
        if age_s > TRANSACTION_AGE_S_MAX:
            self.close()
            raise FsError(Status.KV_TOO_OLD, f"{age_s:.3f} s since its snapshot")

    def _begun(self) -> Any:
        if self._tr is None:
            self._tr = self._engine.database.create_transaction()
        return self._tr

    def _pin(self) -> None:
        """Ask for the read version now; whatever is written later has a newer one."""
        self._begin_read()
        if self._version is None:
            self._version = self._begun().get_read_version()

    async def _settle(self, future: Any) -> None:
        """Wait for a read; raises FsError(KV_UNAVAILABLE)."""
        if not await self._engine.is_settled(future, READ_TIMEOUT_S):
            self.close()
            raise FsError(
                Status.KV_UNAVAILABLE,
                f"FoundationDB at {self._engine.where}: no answer within {READ_TIMEOUT_S:g} s",
            )

    async def _value(self, future: Any) -> bytes | None:
        await self._settle(future)
        try:
            value: bytes | None = future.value
        except self._engine.fdb.FDBError as error:
            raise await self._failed(error) from error
        return value

    async def _failed(self, error: Any) -> FsError:
        """Return what to raise for FoundationDB's error of a read."""
        try:
            return await self._engine.failed(self._tr, error, is_commit=False)
        finally:
            self.close()

    async def _fetch(self, key: bytes) -> bytes | None:
        if key in self._ahead:
            return self._ahead[key]
        return await self._value(self._begun().snapshot.get(self._prefix + key))

    async def _fetch_ahead(self, keys: Sequence[bytes]) -> None:
        """Of one snapshot, so a value stays right however late it is asked for."""
        missing = [
            key
            for key in dict.fromkeys(keys)
            if key not in self._ahead
            and isinstance(self._buffer.written(key), Unwritten | Added | Raised)
        ]
        for first in range(0, len(missing), KEYS_AT_ONCE_MAX):
            part = missing[first : first + KEYS_AT_ONCE_MAX]
            snapshot = self._begun().snapshot
            futures = [snapshot.get(self._prefix + key) for key in part]
            for key, future in zip(part, futures, strict=True):
                self._ahead[key] = await self._value(future)

    async def _fetch_rows(
        self, begin: bytes, end: bytes, limit: int, reverse: bool
    ) -> list[KeyValue]:
        skipped = len(self._prefix)
        low, high = self._prefix + begin, self._prefix + end
        rows: list[KeyValue] = []
        while True:
            left = limit - len(rows) if limit else 0
            page, has_more = await self._page(low, high, left, reverse=reverse)
            rows += [(row.key[skipped:], row.value) for row in page]
            if not page or not has_more or (limit and len(rows) >= limit):
                return rows
            if reverse:
                high = page[-1].key
            else:
                low = page[-1].key + b"\x00"

    async def _page(
        self, low: bytes, high: bytes, limit: int, *, reverse: bool
    ) -> tuple[list[Any], bool]:
        """Return some rows and whether there are more.

        The one use of a private name of the binding, whose public ranges block the thread.
        """
        fdb = self._engine.fdb
        mode = fdb.StreamingMode.exact if limit else fdb.StreamingMode.want_all
        first = fdb.KeySelector.first_greater_or_equal
        future = self._begun().snapshot._get_range(  # noqa: SLF001 - see above
            first(low), first(high), limit, mode, 1, reverse
        )
        await self._settle(future)
        try:
            rows, _, more = future.wait()
        except fdb.FDBError as error:
            raise await self._failed(error) from error
        return rows, bool(more)

    async def _commit(self) -> bytes:
        """A cancellation that comes before the request is sent leaves nothing behind."""
        await trio.lowlevel.checkpoint()
        if self._pinned_s is not None:
            self._check_age()
        engine, tr = self._engine, self._begun()
        fdb = engine.fdb
        try:
            write_buffer(tr, self._prefix, self._buffer)
            stamp = tr.get_versionstamp()  # before the commit, or not at all
            done = tr.commit()
            if not await engine.is_settled(done, COMMIT_TIMEOUT_S):
                raise FsError(
                    Status.KV_COMMIT_UNKNOWN,
                    f"FoundationDB at {engine.where}: no answer within {COMMIT_TIMEOUT_S:g} s",
                )
            done.wait()
        except fdb.FDBError as error:
            raise await engine.failed(tr, error, is_commit=True) from error
        return await self._stamp(stamp)

    async def _stamp(self, stamp: Any) -> bytes:
        """Return the versionstamp of a commit that has happened;
        it is there before the commit is told as done.
        """
        engine = self._engine
        try:
            if stamp.is_ready() or await engine.is_settled(stamp, READ_TIMEOUT_S):
                return bytes(stamp.value)
        except engine.fdb.FDBError as error:
            raise engine_error(Status.KV_COMMIT_UNKNOWN, error, "versionstamp") from error
        raise FsError(
            Status.KV_COMMIT_UNKNOWN, f"FoundationDB at {engine.where}: committed, without a stamp"
        )

    def close(self) -> None:
        """See Transaction.close."""
        super().close()
        self._tr = self._version = None
        self._ahead.clear()


def write_buffer(tr: Any, prefix: bytes, buffer: WriteBuffer) -> None:
    """Give a transaction of FoundationDB what `buffer` holds:
    conflicts, cleared ranges, then writes.
    """
    for key in buffer.read_keys:
        tr.add_read_conflict_key(prefix + key)
    for begin, end in buffer.read_ranges:
        tr.add_read_conflict_range(prefix + begin, prefix + end)
    for key in buffer.extra_conflict_keys:
        tr.add_write_conflict_key(prefix + key)
    for begin, end in buffer.cleared:
        tr.clear_range(prefix + begin, prefix + end)
    for key, write in buffer.points.items():
        if write is None:
            tr.clear(prefix + key)
        elif isinstance(write, Added):
            tr.add(prefix + key, (write & ADD_MASK).to_bytes(ADD_BYTES, "little"))
        elif isinstance(write, Raised):
            tr.max(prefix + key, write.value)
        elif isinstance(write, Stamped):
            tr.set_versionstamped_value(prefix + key, _with_stamp(write.prefix, write.suffix))
        else:
            tr.set(prefix + key, write)
    for before, suffix, value in buffer.stamped_keys:
        tr.set_versionstamped_key(_with_stamp(prefix + before, suffix), value)


def _with_stamp(before: bytes, after: bytes) -> bytes:
    """Return the parameter of a versionstamped write: a placeholder, and where it is."""
    return before + bytes(VERSIONSTAMP_BYTES) + after + OFFSET.pack(len(before))
