"""Reading a whole store in one state, for longer than a transaction lives: backup and check.

    the embedded store, also over its process    a snapshot that lasts; changes go on beside it
    others (FoundationDB)                        one transaction, which reads for 5 s at most; or,
                                                 if the caller allows it, many, while changes of
                                                 metadata are held up (fs/kv/pause.py)

Invariant: all pages of one snapshot show the same state, or an error is raised.  Where
changes are held up, only those are that heed it; what others write is to be read with
`is_whole`, in one transaction.

Concurrency: one task at a time.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final, Protocol

import trio

from ..runtime.ports import Runtime
from ..schema.layout import MIB
from ..schema.proto import kv_pb2
from ..schema.services import KV_READ
from ..schema.status import FsError, Status
from .api import TRANSACTION_AGE_S_MAX, KeyValue, KvEngine, Transaction, next_key
from .local import LocalEngine
from .pause import PAUSE_KEY, Pause
from .remote import RemoteEngine
from .transact import snapshot_read

PAGE_ROWS: Final = 100
"""Of a page: 11 MB if every row is as large as it may be."""
DISTANT_PAGE_ROWS: Final = 1000
"""Of a page where each costs a way there and back, and rows are small."""
DISTANT_PAGE_BYTES: Final = 4 * MIB
"""Of such a page, once the rows of a range are known to be large:
one transaction has to bring it.
"""


class LastingSnapshot(Protocol):
    """One state of a store."""

    version: int
    """Of the state; 0 before the first page, or where the store does not tell."""

    async def page(self, begin: bytes, end: bytes, *, is_whole: bool = False) -> list[KeyValue]:
        """Return rows with begin <= key < end in key order:
        the first ones, none only if there are none.

        With `is_whole` all of them, for ranges that are small.

        Raises:
            FsError: KV_TOO_OLD or BUSY when the state is no longer to be
                had: the caller begins again.
        """
        ...


async def rows_of(
    snapshot: LastingSnapshot, begin: bytes, end: bytes
) -> AsyncIterator[list[KeyValue]]:
    """Yield all rows of a range, page by page."""
    while rows := await snapshot.page(begin, end):
        yield rows
        begin = next_key(rows[-1][0])


class LocalSnapshot:
    """A snapshot of a store in this process."""

    def __init__(self, engine: LocalEngine) -> None:
        self._engine = engine
        self._view = engine.open_lasting_view()
        self._generation = engine.generation
        self.version = self._view.version

    async def page(self, begin: bytes, end: bytes, *, is_whole: bool = False) -> list[KeyValue]:
        """See LastingSnapshot.page."""
        await trio.lowlevel.checkpoint()
        if self._generation != self._engine.generation:
            raise FsError(Status.KV_TOO_OLD, "the store was opened anew meanwhile; start again")
        return self._view.scan(begin, end, 0 if is_whole else PAGE_ROWS, False)


class RemoteSnapshot:
    """A snapshot that the process of the store holds for us."""

    def __init__(self, engine: RemoteEngine) -> None:
        self._engine = engine
        self._id = engine.new_id()
        self.version = 0
        self._has_begun = False

    async def page(self, begin: bytes, end: bytes, *, is_whole: bool = False) -> list[KeyValue]:
        """See LastingSnapshot.page."""
        rows = await self._page(begin, end)
        while is_whole and rows and (more := await self._page(next_key(rows[-1][0]), end)):
            rows += more
        return rows

    async def _page(self, begin: bytes, end: bytes) -> list[KeyValue]:
        request = kv_pb2.KvReadReq(
            transaction_id=self._id,
            is_first=not self._has_begun,
            is_lasting=True,
            scan=kv_pb2.KvScanPb(range=kv_pb2.KvRangePb(begin=begin, end=end)),
            ended_ids=self._engine.take_ended(),
        )
        self._has_begun = True
        reply = await self._engine.call(KV_READ, request, Status.KV_UNAVAILABLE)
        self._engine.note(reply.store)
        self.version = reply.read_version
        return [(row.key, row.value) for row in reply.rows]

    def close(self) -> None:
        """Have it let go of with the next request."""
        self._engine.ended(self._id)


class _PageRows:
    """How many rows to ask for where each page costs a way there and back:
    by what those before in the same range take.
    """

    def __init__(self) -> None:
        self._next: bytes | None = None
        self._count = PAGE_ROWS

    def count(self, begin: bytes) -> int:
        """Return the number for the page that begins there."""
        return self._count if begin == self._next else PAGE_ROWS

    def note(self, rows: Sequence[KeyValue]) -> None:
        """Take note of a page."""
        if rows:
            self._next = next_key(rows[-1][0])
            byte_count = sum(len(key) + len(value) for key, value in rows)
            fitting = DISTANT_PAGE_BYTES * len(rows) // byte_count
            self._count = max(1, min(fitting, DISTANT_PAGE_ROWS))


class TransactionSnapshot:
    """What one transaction sees, as long as it lives."""

    def __init__(self, tr: Transaction) -> None:
        self.version = 0
        self._tr = tr
        self._page_rows = _PageRows()

    async def page(self, begin: bytes, end: bytes, *, is_whole: bool = False) -> list[KeyValue]:
        """See LastingSnapshot.page."""
        limit = 0 if is_whole else self._page_rows.count(begin)
        try:
            rows = await self._tr.get_range(begin, end, limit=limit, snapshot=True)
        except FsError as error:
            if error.status is not Status.KV_TOO_OLD:
                raise
            raise FsError(
                Status.KV_TOO_OLD,
                f"this store shows one state for {TRANSACTION_AGE_S_MAX:g} s only, which is too "
                "short to read all of it; run it again with --pause, which holds up changes of "
                "names and attributes meanwhile (reading and writing of open files goes on)",
            ) from error
        self._page_rows.note(rows)
        return rows


class PausedSnapshot:
    """The state at which changes are held up."""

    def __init__(self, engine: KvEngine, pause: Pause) -> None:
        self.version = 0
        self._engine = engine
        self._pause = pause
        self._page_rows = _PageRows()

    async def page(self, begin: bytes, end: bytes, *, is_whole: bool = False) -> list[KeyValue]:
        """See LastingSnapshot.page."""
        await self._pause.renew()

        async def read(tr: Transaction) -> list[KeyValue]:
            self._pause.check(await tr.get(PAUSE_KEY, snapshot=True))
            limit = 0 if is_whole else self._page_rows.count(begin)
            return await tr.get_range(begin, end, limit=limit, snapshot=True)

        rows = await snapshot_read(self._engine, read)
        self._page_rows.note(rows)
        return rows


@asynccontextmanager
async def open_snapshot(
    engine: KvEngine, runtime: Runtime, *, may_pause: bool = False
) -> AsyncIterator[LastingSnapshot]:
    """Open one state of a store for the length of the block.

    Args:
        engine: the store.
        runtime: clock and randomness for a pause.
        may_pause: whether changes may be held up where the store has no lasting snapshots.

    Raises:
        FsError: as the store; BUSY when somebody else holds up changes.
    """
    if isinstance(engine, LocalEngine):
        yield LocalSnapshot(engine)
    elif isinstance(engine, RemoteEngine):
        snapshot = RemoteSnapshot(engine)
        try:
            yield snapshot
        finally:
            snapshot.close()
    elif may_pause:
        async with _paused(engine, runtime) as paused:
            yield paused
    else:
        tr = engine.transaction()
        try:
            yield TransactionSnapshot(tr)
        finally:
            tr.close()


@asynccontextmanager
async def _paused(engine: KvEngine, runtime: Runtime) -> AsyncIterator[PausedSnapshot]:
    pause = Pause(engine, runtime)
    try:
        await pause.begin()
        yield PausedSnapshot(engine, pause)
    finally:
        with trio.CancelScope(shield=True):
            await pause.end()
