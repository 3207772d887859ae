r"""The store of this process, served to others: reads at held snapshots, commits, durability.

A client's first read of a transaction takes the snapshot, which is held under the client's
number for it until the client says that the transaction has ended, its connection goes, or
TRANSACTION_AGE_S_MAX is over.  Commits carry everything that was read and written, and are
judged like those of this process.

Invariants:
    - A read is answered from the snapshot of its transaction or not at all (KV_TOO_OLD).
    - A commit names the epoch of its snapshot: one that was taken before this process started, or
      before commits were lost, never commits.
    - Between the judgement of a commit and its write nothing else happens (LocalEngine.commit_now),
      and a commit whose caller has gone happens entirely or not at all.
    - Memory is bounded: at most SNAPSHOTS_PER_CLIENT_MAX snapshots per client, none older than
      SNAPSHOT_AGE_S_MAX; of lasting ones, which backup and check read, LASTING_MAX in all, none
      left alone for LASTING_IDLE_S_MAX; a reply holds at most REPLY_BYTES_MAX and one page of rows.
    - Whatever a request holds, the engine's own records (keys from \xff)
      are neither read nor written.

Concurrency: one event loop; reads and commits do not wait.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import trio

from ..rpc.api import Call, Identity
from ..runtime.figures import Figures
from ..runtime.ports import Runtime
from ..schema import metrics
from ..schema.proto import kv_pb2
from ..schema.status import FsError, Status
from .api import TRANSACTION_AGE_S_MAX, KeyValue, next_key
from .buffer import check_key
from .local import LocalEngine, View
from .remote_wire import (
    ENDED_COUNT_MAX,
    KEYS_PER_READ_MAX,
    check_user_key,
    check_user_range,
    unpack_commit,
)

log = logging.getLogger(__name__)

SNAPSHOTS_PER_CLIENT_MAX: Final = 2048
"""More than requests of one connection run at once; the oldest gives way."""

SNAPSHOT_AGE_S_MAX: Final = TRANSACTION_AGE_S_MAX + 1.0
"""Longer than any transaction may live, so that its own side refuses it first."""

LASTING_MAX: Final = 4
"""Each holds back the store's compaction of what was overwritten since."""

LASTING_IDLE_S_MAX: Final = 60.0
EXPIRE_INTERVAL_S: Final = 1.0
PAGE_ROWS: Final = 100
"""Rows taken from the store at once: of the largest size they fill 11 MB,
so a reply fits into 16 MiB.
"""

REPLY_BYTES_MAX: Final = 1024 * 1024
"""A reply that has reached this is sent; the reader comes again for the rest."""


@dataclass(slots=True)
class _Snapshot:
    view: View
    generation: int
    taken_s: float
    """A lasting one: last read at."""


@dataclass(slots=True)
class _Client:
    snapshots: dict[int, _Snapshot] = field(default_factory=dict)
    """By transaction, oldest first."""
    lasting: dict[int, _Snapshot] = field(default_factory=dict)


class KvService:
    """One method per `rpc` line of kv.proto; `run` must run,
    `forget` be told of connections that end.
    """

    def __init__(self, engine: LocalEngine, runtime: Runtime, *, boot: int) -> None:
        """Serve `engine`, which the caller owns.

        Args:
            engine: where.
            runtime: clock; randomness for the epoch.
            boot: a number that changes when the machine starts anew.
        """
        self._engine = engine
        self._clock = runtime.clock
        self._first_epoch = runtime.random.getrandbits(62)
        self._boot = boot
        self._clients: dict[str, _Client] = {}

    @property
    def snapshot_count(self) -> int:
        """Snapshots held now."""
        return sum(len(c.snapshots) + len(c.lasting) for c in self._clients.values())

    def say(self, figures: Figures) -> None:
        """Say what is held for others, and how the store does."""
        self._engine.say(figures)
        figures.note(metrics.KV_SNAPSHOTS, self.snapshot_count)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Let go of old snapshots until cancelled."""
        task_status.started()
        while True:
            await trio.sleep(EXPIRE_INTERVAL_S)
            self._expire()

    def forget(self, peer: Identity) -> None:
        """Let go of everything that a client whose connection has ended holds.

        Had it a second connection, its transactions are told KV_TOO_OLD and begin again.
        """
        client = self._clients.pop(peer.client_id, None)
        if client is not None and (count := len(client.snapshots) + len(client.lasting)):
            log.debug("client %s left %d snapshots", peer.client_id, count)

    # ---- the remote methods --------------------------------------------------------------------

    async def read(self, call: Call, request: kv_pb2.KvReadReq) -> kv_pb2.KvReadRsp:
        """Read keys and a range at the snapshot of a transaction."""
        if len(request.keys) > KEYS_PER_READ_MAX:
            raise FsError(
                Status.RPC_BAD_REQUEST, f"{len(request.keys)} keys; at most {KEYS_PER_READ_MAX}"
            )
        client = self._end(call.peer, request.ended_ids)
        if request.is_first:
            view = self._take(client, request.transaction_id, is_lasting=request.is_lasting)
        else:
            view = self._held(client, request.transaction_id)
        reply = kv_pb2.KvReadRsp(store=self._store(), read_version=view.version)
        for key in request.keys:
            check_user_key(key)
            check_key(key)
            reply.values.add(value=view.get(key))
        if request.HasField("scan"):
            rows, reply.has_more = _scan(view, request.scan)
            reply.rows.extend(kv_pb2.KvRowPb(key=key, value=value) for key, value in rows)
        return reply

    async def commit(self, call: Call, request: kv_pb2.KvCommitReq) -> kv_pb2.KvCommitRsp:
        """Commit; what the store refuses is told in the reply."""
        self._end(call.peer, request.ended_ids)
        stamp, status, detail = b"", Status.OK, ""
        try:
            stamp = self._commit(request)
        except FsError as error:
            status, detail = error.status, error.detail
        return kv_pb2.KvCommitRsp(store=self._store(), stamp=stamp, status=status, detail=detail)

    def _commit(self, request: kv_pb2.KvCommitReq) -> bytes:
        buffer = unpack_commit(request)
        if not request.has_read:
            if buffer.read_keys or buffer.read_ranges:
                raise FsError(Status.RPC_BAD_REQUEST, "what was read has no snapshot")
            return self._engine.commit_now(None, buffer)
        if request.epoch != self._epoch:
            raise FsError(Status.KV_TOO_OLD, "the store was opened anew since the snapshot")
        if request.read_version > self._engine.version:
            raise FsError(
                Status.RPC_BAD_REQUEST,
                f"snapshot {request.read_version} is not made yet; now {self._engine.version}",
            )
        return self._engine.commit_now(request.read_version, buffer)

    async def sync(self, _call: Call, _request: kv_pb2.KvSyncReq) -> kv_pb2.KvSyncRsp:
        """Make everything durable that was committed before."""
        await self._engine.sync()
        return kv_pb2.KvSyncRsp(store=self._store())

    # ---- snapshots -----------------------------------------------------------------------------

    @property
    def _epoch(self) -> int:
        return self._first_epoch + self._engine.generation

    def _store(self) -> kv_pb2.KvStorePb:
        return kv_pb2.KvStorePb(
            epoch=self._epoch,
            boot=self._boot,
            newest_version=self._engine.version,
            trouble=self._engine.trouble,
        )

    def _end(self, peer: Identity, ended_ids: Sequence[int]) -> _Client:
        """Return what is kept for a client, after letting go of transactions that have ended."""
        if len(ended_ids) > ENDED_COUNT_MAX:
            raise FsError(
                Status.RPC_BAD_REQUEST, f"{len(ended_ids)} ended; at most {ENDED_COUNT_MAX}"
            )
        client = self._clients.get(peer.client_id)
        if client is None:
            client = self._clients[peer.client_id] = _Client()
        for transaction_id in ended_ids:
            client.snapshots.pop(transaction_id, None)
            client.lasting.pop(transaction_id, None)
        return client

    def _take(self, client: _Client, transaction_id: int, *, is_lasting: bool) -> View:
        if transaction_id in client.snapshots or transaction_id in client.lasting:
            raise FsError(Status.RPC_BAD_REQUEST, f"transaction {transaction_id} began twice")
        if is_lasting and sum(len(c.lasting) for c in self._clients.values()) >= LASTING_MAX:
            raise FsError(
                Status.RPC_OVERLOADED, f"{LASTING_MAX} backups or checks read this store already"
            )
        if not is_lasting and len(client.snapshots) >= SNAPSHOTS_PER_CLIENT_MAX:
            del client.snapshots[next(iter(client.snapshots))]
        engine = self._engine
        view = engine.open_lasting_view() if is_lasting else engine.open_view()
        kept = client.lasting if is_lasting else client.snapshots
        kept[transaction_id] = _Snapshot(view, self._engine.generation, self._clock.monotonic_s())
        return view

    def _held(self, client: _Client, transaction_id: int) -> View:
        held = client.snapshots.get(transaction_id)
        if held is None:
            held = client.lasting.get(transaction_id)
            if held is not None:
                held.taken_s = self._clock.monotonic_s()
        if held is None or held.generation != self._engine.generation:
            raise FsError(Status.KV_TOO_OLD, f"transaction {transaction_id} has no snapshot here")
        return held.view

    def _expire(self) -> None:
        now_s = self._clock.monotonic_s()
        oldest_s = now_s - SNAPSHOT_AGE_S_MAX
        for name, client in list(self._clients.items()):
            for number, held in list(client.snapshots.items()):
                if held.taken_s > oldest_s:
                    break
                del client.snapshots[number]
            for number, held in list(client.lasting.items()):
                if held.taken_s <= now_s - LASTING_IDLE_S_MAX:
                    del client.lasting[number]
            if not client.snapshots and not client.lasting:
                del self._clients[name]


def _scan(view: View, scan: kv_pb2.KvScanPb) -> tuple[list[KeyValue], bool]:
    """Return rows until the range or the limit ends, or the reply is full;
    and whether it is full.
    """
    check_user_range(scan.range)
    begin, end, is_reverse = scan.range.begin, scan.range.end, scan.is_reverse
    rows: list[KeyValue] = []
    size_bytes = 0
    while begin < end:
        left = scan.row_count_max - len(rows) if scan.row_count_max else PAGE_ROWS
        page_rows = min(left, PAGE_ROWS)
        page = view.scan(begin, end, page_rows, is_reverse)
        rows += page
        if len(page) < page_rows or len(rows) == scan.row_count_max:
            return rows, False
        size_bytes += sum(len(key) + len(value) for key, value in page)
        if size_bytes >= REPLY_BYTES_MAX:
            return rows, True
        begin, end = (begin, page[-1][0]) if is_reverse else (next_key(page[-1][0]), end)
    return rows, False
