"""The `remote` engine: the store of another process, reached over the framed transport.

A transaction buffers its writes here; it begins without a round trip, takes its snapshot with the
first read, and commits in one call.  A read-only transaction costs one round trip per read and
nothing else: that its snapshot is needed no more is told with the next request of this process.

Outcomes, when the store cannot be reached:
    - The connection could not be made: KV_UNREACHABLE, nothing happened.
    - It broke, or nobody answered in time: KV_UNAVAILABLE for a read,
      KV_COMMIT_UNKNOWN for a commit.
    - `sync` tries again for SYNC_RETRY_S_MAX, because a store that was
      restarted still holds every commit.

Invariants:
    - A commit request is sent at most once.
    - Explicit read conflicts before the first read count from a version that
      is not newer than that moment.
    - A machine that starts anew may have lost commits that were not synced, of which this
      process knows.  Then the engine fails for good (IO_ERROR) and `run` raises: the process
      must end and read what is there.

Concurrency: as KvEngine; calls of many tasks share one connection.
"""

import logging
from collections.abc import Sequence
from typing import Final

import trio

from ..rpc.api import Channel
from ..rpc.frame import decode_error
from ..runtime.ports import Runtime
from ..schema.method import Method, ReqT, RspT
from ..schema.proto import kv_pb2
from ..schema.services import KV_COMMIT, KV_READ, KV_SYNC
from ..schema.status import FsError, Status
from .api import TRANSACTION_AGE_S_MAX, KeyValue, Transaction, next_key
from .buffer import Unwritten
from .remote_wire import ENDED_COUNT_MAX, KEYS_PER_READ_MAX, pack_commit
from .transaction import BufferedTransaction

log = logging.getLogger(__name__)

CALL_TIMEOUT_S: Final = TRANSACTION_AGE_S_MAX
SYNC_TIMEOUT_S: Final = 30.0
SYNC_RETRY_S_MAX: Final = 10.0
SYNC_PAUSE_S: Final = 0.05

NOT_SENT: Final = frozenset({Status.RPC_CONNECT_FAILED, Status.RPC_OVERLOADED})
LOST: Final = frozenset(
    {
        Status.RPC_CONNECTION_LOST,
        Status.RPC_TIMEOUT,
        Status.RPC_CANCELLED,
        Status.RPC_BAD_FRAME,
        Status.INTERNAL_ERROR,
        Status.OUT_OF_RESOURCES,
    }
)


class RemoteEngine:
    """A KvEngine; see the module head."""

    def __init__(self, channel: Channel, address: str, runtime: Runtime) -> None:
        """Use the store behind `channel`, which the caller owns; `address` is for messages."""
        self.clock = runtime.clock
        self._channel = channel
        self._address = address
        self._random = runtime.random
        self._last_id = 0
        self._ended: list[int] = []
        self._store = kv_pb2.KvStorePb()
        self._trouble = ""
        self._failure = ""
        self._failed = trio.Event()

    @property
    def store(self) -> kv_pb2.KvStorePb:
        """What the newest reply said of the store; zeros before the first."""
        return self._store

    @property
    def trouble(self) -> str:
        """See KvEngine.trouble: as the newest reply has it."""
        return self._trouble

    def transaction(self) -> Transaction:
        """See KvEngine.transaction."""
        return RemoteTransaction(self, self.new_id())

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Wait until cancelled.

        Raises:
            FsError: IO_ERROR when the store may have lost commits; the process should end.
        """
        task_status.started()
        await self._failed.wait()
        self._check()

    async def sync(self) -> None:
        """See KvEngine.sync.

        Raises:
            FsError: KV_UNAVAILABLE or KV_UNREACHABLE when the store was away too long; IO_ERROR.
        """
        deadline_s = self.clock.monotonic_s() + SYNC_RETRY_S_MAX
        while True:
            try:
                reply = await self.call(
                    KV_SYNC, kv_pb2.KvSyncReq(), Status.KV_UNAVAILABLE, SYNC_TIMEOUT_S
                )
            except FsError as error:
                is_away = error.status in {Status.KV_UNAVAILABLE, Status.KV_UNREACHABLE}
                if not is_away or self.clock.monotonic_s() > deadline_s:
                    raise
                await trio.sleep(self._random.uniform(0.5, 1.5) * SYNC_PAUSE_S)
            else:
                self.note(reply.store)
                return

    async def aclose(self) -> None:
        """See KvEngine.aclose.  A store that does not answer makes durable
        by itself what it holds.
        """
        if not self._store.epoch:
            return  # it has never answered
        try:
            await self.call(KV_SYNC, kv_pb2.KvSyncReq(), Status.KV_UNAVAILABLE)
        except FsError as error:
            log.warning("key-value store %s not synced at the end: %s", self._address, error)

    # ---- for transactions ----------------------------------------------------------------------

    def new_id(self) -> int:
        """Return a number for a snapshot of this client."""
        self._last_id += 1
        return self._last_id

    def ended(self, transaction_id: int) -> None:
        """Remember that a snapshot is needed no more."""
        self._ended.append(transaction_id)
        if len(self._ended) > ENDED_COUNT_MAX:
            del self._ended[: ENDED_COUNT_MAX // 2]

    def take_ended(self) -> list[int]:
        """Return what the next request is to tell."""
        ended, self._ended = self._ended, []
        return ended

    def note(self, store: kv_pb2.KvStorePb) -> None:
        """Take in what a reply says of the store."""
        self._check()
        known = self._store
        if known.boot and store.boot != known.boot:
            self._failure = (
                f"key-value store {self._address}: its machine started anew and may have lost "
                "commits that were not durable; this process must start anew, too"
            )
            self._failed.set()
            self._check()
        self._trouble = store.trouble
        if store.epoch != known.epoch or store.newest_version > known.newest_version:
            self._store = store

    def _check(self) -> None:
        if self._failure:
            raise FsError(Status.IO_ERROR, self._failure)

    async def call(
        self,
        method: Method[ReqT, RspT],
        request: ReqT,
        unknown: Status,
        timeout_s: float = CALL_TIMEOUT_S,
    ) -> RspT:
        """Send one request; `unknown` is the status of one whose outcome nobody knows."""
        self._check()
        try:
            received = await self._channel.call(method, request, timeout_s=timeout_s)
        except FsError as error:
            if error.status in LOST:
                raise FsError(unknown, f"{self._address}: {error}") from error
            if error.status in NOT_SENT:
                raise FsError(Status.KV_UNREACHABLE, f"{self._address}: {error}") from error
            if error.status is Status.RPC_TOO_LARGE:
                raise FsError(Status.KV_TRANSACTION_TOO_LARGE, error.detail) from error
            raise
        return received.message


class RemoteTransaction(BufferedTransaction):
    """See Transaction; made by RemoteEngine.transaction."""

    __slots__ = ("_ahead", "_engine", "_has_begun", "_id", "_pinned_s", "_read_version", "_store")

    def __init__(self, engine: RemoteEngine, transaction_id: int) -> None:
        super().__init__()
        self._engine = engine
        self._id = transaction_id
        self._has_begun = False
        self._ahead: dict[bytes, bytes | None] = {}
        self._pinned_s = 0.0
        self._store: kv_pb2.KvStorePb | None = None
        self._read_version = 0

    def _begin_read(self) -> None:
        assert self._is_open, "the transaction is over"
        if self._store is not None:
            self._check_age()

    def _check_age(self) -> None:
        age_s = self._engine.clock.monotonic_s() - self._pinned_s
        if age_s > TRANSACTION_AGE_S_MAX:
            self.close()
            raise FsError(Status.KV_TOO_OLD, f"{age_s:.3f} s since its snapshot")

    def _pin(self) -> None:
        assert self._is_open, "the transaction is over"
        if self._store is None:
            self._note_snapshot(self._engine.store, self._engine.store.newest_version)

    def _note_snapshot(self, store: kv_pb2.KvStorePb, read_version: int) -> None:
        """Count conflicts from the oldest of all snapshots; two epochs never commit."""
        if self._store is None:
            self._store, self._read_version = store, read_version
            self._pinned_s = self._engine.clock.monotonic_s()
        elif self._store.epoch == store.epoch:
            self._read_version = min(self._read_version, read_version)
        else:
            self.close()
            raise FsError(Status.KV_TOO_OLD, "the store was opened anew since the snapshot")

    async def _fetch(self, key: bytes) -> bytes | None:
        if key in self._ahead:
            return self._ahead[key]
        (value,) = await self._values([key])
        return value

    async def _fetch_ahead(self, keys: Sequence[bytes]) -> None:
        """Of one snapshot, so a value stays right however late it is asked for."""
        missing = [
            key
            for key in dict.fromkeys(keys)
            if key not in self._ahead and isinstance(self._buffer.written(key), Unwritten)
        ]
        for first in range(0, len(missing), KEYS_PER_READ_MAX):
            part = missing[first : first + KEYS_PER_READ_MAX]
            self._ahead.update(zip(part, await self._values(part), strict=True))

    async def _values(self, keys: Sequence[bytes]) -> list[bytes | None]:
        reply = await self._read(kv_pb2.KvReadReq(keys=keys))
        return [v.value if v.HasField("value") else None for v in reply.values]

    async def _fetch_rows(
        self, begin: bytes, end: bytes, limit: int, reverse: bool
    ) -> list[KeyValue]:
        rows: list[KeyValue] = []
        while True:
            scan = kv_pb2.KvScanPb(
                range=kv_pb2.KvRangePb(begin=begin, end=end),
                row_count_max=limit - len(rows) if limit else 0,
                is_reverse=reverse,
            )
            reply = await self._read(kv_pb2.KvReadReq(scan=scan))
            rows += [(row.key, row.value) for row in reply.rows]
            if not reply.has_more:
                return rows
            last = rows[-1][0]
            begin, end = (begin, last) if reverse else (next_key(last), end)

    async def _read(self, request: kv_pb2.KvReadReq) -> kv_pb2.KvReadRsp:
        engine = self._engine
        request.transaction_id = self._id
        request.is_first = not self._has_begun
        request.ended_ids.extend(engine.take_ended())
        began_s = engine.clock.monotonic_s()
        self._has_begun = True
        reply = await engine.call(KV_READ, request, Status.KV_UNAVAILABLE)
        engine.note(reply.store)
        if request.is_first:
            self._note_snapshot(reply.store, reply.read_version)
            self._pinned_s = min(self._pinned_s, began_s)
        return reply

    async def _commit(self) -> bytes:
        """A cancellation that comes before the request is sent leaves nothing behind."""
        await trio.lowlevel.checkpoint()
        engine = self._engine
        request = pack_commit(self._buffer)
        if self._store is not None:
            self._check_age()
            request.has_read = True
            request.epoch, request.read_version = self._store.epoch, self._read_version
        self._end()
        request.ended_ids.extend(engine.take_ended())
        reply = await engine.call(KV_COMMIT, request, Status.KV_COMMIT_UNKNOWN)
        engine.note(reply.store)
        if reply.status:
            raise decode_error(reply.status, reply.detail.encode())
        return reply.stamp

    def _end(self) -> None:
        if self._has_begun:
            self._has_begun = False
            self._engine.ended(self._id)

    def close(self) -> None:
        """See Transaction.close."""
        super().close()
        self._end()
