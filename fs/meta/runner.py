"""How a request to the metadata service is run:
in one transaction, again after a conflict, and once however often it is tried.

Base of fs/meta/service.py, which has a method for each RPC.

Invariants:
    - A request without a caller is refused: it would be root's otherwise.
    - Times never go back within one service.
    - What is refused as a repeat is refused for good: no earlier try of it succeeds later.

Does not know what any operation does.  Concurrency: any number of requests at once; conflicts are
resolved by the key-value layer.
"""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final, TypeVar

import trio
from google.protobuf.message import Message

from ..kv.api import KvEngine, Transaction
from ..kv.transact import snapshot_read
from ..runtime.ports import Runtime
from ..runtime.recycled import RecycledMemory
from ..runtime.until_wait import in_task
from ..schema.config import MetaSection, ProcessConfig
from ..schema.proto import meta_pb2 as meta
from ..schema.proto.common_pb2 import CallerPb, InodePb
from ..schema.status import FsError, Retry, Status
from .by_path import find_directories, names_path
from .content_driver import ContentDriver
from .context import (
    CLIENT_ID_BYTES_MAX,
    GROUP_COUNT_MAX,
    REQUEST_ID_BYTES,
    Caller,
    LayoutSource,
    NamesLeasedError,
    OpContext,
    PreciseLength,
    UsageFencedError,
    caller_from_pb,
)
from .event_log import EventLog
from .events import event_of
from .idempotency import refuse
from .inline import is_emptied_inline
from .inode_ids import InodeIds
from .inodes import load_inode
from .lineage import Lineages
from .name_leases import NameLeases
from .ops.fence_tree import fence_tree
from .outcome_ticks import OutcomeTicks
from .ports import ChunkPort
from .read_ahead import request_keys
from .told import is_told, tell_directories

ReqT = TypeVar("ReqT", bound=Message)
RspT = TypeVar("RspT")

Operation = Callable[[Transaction, OpContext, ReqT], Awaitable[RspT]]

FENCE_AFTER_RUNS: Final = 4
"""A move of a directory that has been rerun so often because of changes below makes them wait."""

FENCE_PAUSE_S: Final = 0.01

PAYLOAD_IDLE_BYTES_MAX: Final = 16 * 1024 * 1024
"""Of memory kept for payloads: those of a few replies."""

ROOT_CALLER: Final = Caller(0, 0, frozenset({0}))
"""On whose behalf the service itself acts."""


class _ContendedError(Exception):
    """What an operation moves is changed all the time."""


def check_caller(caller: CallerPb) -> None:
    """Raise FsError(RPC_BAD_REQUEST) for ids of a wrong size or too many groups,
    before these take thirty times the memory of the message.
    """
    client_id, request_id = caller.client_id, caller.request_id
    if len(client_id) > CLIENT_ID_BYTES_MAX or "\x00" in client_id:
        raise FsError(Status.RPC_BAD_REQUEST, f"client id {client_id!r}")
    if request_id and len(request_id) != REQUEST_ID_BYTES:
        raise FsError(Status.RPC_BAD_REQUEST, f"request id of {len(request_id)} bytes")
    if len(caller.groups) > GROUP_COUNT_MAX:
        raise FsError(Status.RPC_BAD_REQUEST, f"{len(caller.groups)} groups")


def _begun(
    op: Operation[ReqT, RspT], ctx: OpContext, request: ReqT
) -> Callable[[Transaction], Awaitable[RspT]]:
    """Return the operation as a function of a transaction,
    which first reads what it will need for certain.
    """
    by_path, tells = names_path(request), is_told(type(request))

    async def run(tr: Transaction) -> RspT:
        if by_path:
            await find_directories(tr, ctx, request)
        await tr.prefetch(request_keys(ctx.caller, request))
        reply = await op(tr, ctx, request)
        if tells:
            await tell_directories(tr, ctx, request, reply)
        return reply

    return run


class RequestRunner:
    """Runs operations for the methods of a service."""

    def __init__(
        self,
        engine: KvEngine,
        runtime: Runtime,
        config: ProcessConfig,
        *,
        layouts: LayoutSource,
        chunks: ChunkPort,
    ) -> None:
        self._engine = engine
        self._runtime = runtime
        self._config = config.meta
        self._retry_time_s_max = config.kv.retry_time_s_max
        self._layouts = layouts
        self._lineages = Lineages()
        self._memory = RecycledMemory(PAYLOAD_IDLE_BYTES_MAX)
        self.events = EventLog(config, runtime)
        self.inode_ids = InodeIds(engine, runtime, self._retry_time_s_max)
        self.ticks = OutcomeTicks(engine, runtime, self._retry_time_s_max)
        self.driver = ContentDriver(engine, runtime, chunks, self._retry_time_s_max)
        self.name_leases = NameLeases(self.driver.transact, self.now_ns)
        self.asked_count = 0
        """Requests that came, tries of one request each by itself."""
        self._last_now_ns = 0
        self._behind_since_s: float | None = None
        """When time was last asked for, while the wall clock is behind; None: it is not."""

    def adopt(self, section: MetaSection) -> None:
        """Go on with other settings, from the next request; the event log keeps its own."""
        self._config = section

    def now_ns(self) -> int:
        """Return the wall time, strictly growing.

        When the wall clock is set back, time goes on here at half its pace until that clock
        has caught up: it neither repeats itself nor stands still, which would keep
        everything that waits for a time.
        """
        wall_ns = self._runtime.clock.wall_ns()
        if wall_ns > self._last_now_ns:
            self._behind_since_s = None
            self._last_now_ns = wall_ns
            return wall_ns
        asked_s = self._runtime.clock.monotonic_s()
        passed_s = 0.0 if self._behind_since_s is None else asked_s - self._behind_since_s
        self._behind_since_s = asked_s
        self._last_now_ns += max(1, int(passed_s * 1e9 / 2))
        return self._last_now_ns

    def own_context(self, known: PreciseLength | None = None) -> OpContext:
        """Return the context of work that the service does by itself."""
        return self._context(ROOT_CALLER, known=known)

    def _context(
        self, caller: Caller, new_inode_id: int = 0, known: PreciseLength | None = None
    ) -> OpContext:
        return OpContext(  # by position, in half the time
            caller,
            self.now_ns(),
            self._config,
            self._layouts,
            self._lineages,
            new_inode_id,
            known,
            self.ticks.known(),
            self._memory,
        )

    def _caller(self, request: object, *, is_change: bool = True) -> Caller:
        self.asked_count += 1
        if isinstance(request, meta.CloseReq):
            request = request.sync
        if not request.HasField("caller"):  # type: ignore[attr-defined]
            raise FsError(Status.RPC_BAD_REQUEST, f"{type(request).__name__} without a caller")
        message: CallerPb = request.caller  # type: ignore[attr-defined]
        check_caller(message)
        caller = caller_from_pb(message)
        if is_change and not caller.request_id:
            # Reruns of this one attempt must still know each other.
            request_id = self._runtime.random.randbytes(REQUEST_ID_BYTES)
            caller = caller._replace(request_id=request_id)
        return caller

    async def _read(self, op: Operation[ReqT, RspT], request: ReqT) -> RspT:
        ctx = self._context(self._caller(request, is_change=False))
        return await snapshot_read(self._engine, _begun(op, ctx, request))

    async def _read_content(self, op: Operation[ReqT, RspT], request: ReqT) -> RspT:
        """As `_read`, for operations that may need the bytes of files in their chunks first."""
        return await self.driver.run(lambda _: self._read(op, request))

    async def _change(
        self, op: Operation[ReqT, RspT], request: ReqT, *, new_inode_id: int = 0
    ) -> RspT:
        caller = self._caller(request)

        def attempt() -> Awaitable[RspT]:
            ctx = self._context(caller, new_inode_id)
            return self.driver.transact(_begun(op, ctx, request))

        return await self._settled(caller, request, attempt)

    async def _settled(
        self, caller: Caller, request: Message, attempt: Callable[[], Awaitable[RspT]]
    ) -> RspT:
        """Run an operation until nothing holds it up, and log what was done;
        when a repeat is refused, no earlier try of it may succeed later.

        What goes well at once, as most does, passes through here alone.
        """
        try:
            try:
                reply = await attempt()
            except (NamesLeasedError, UsageFencedError) as held_up:
                reply = await self._past_fences(attempt, held_up)
        except FsError as error:
            if not caller.is_repeat or error.retry is not Retry.NEVER:
                raise
            reply = await self._refused(caller, attempt, error)
        if self.events.is_on and isinstance(reply, Message):
            event = event_of(caller, request, reply)
            if event is not None:
                self.events.note(event)
        return reply

    async def _refused(
        self, caller: Caller, attempt: Callable[[], Awaitable[RspT]], refusal: FsError
    ) -> RspT:
        """Remember that a repeat was refused, and raise that;
        where an earlier try has succeeded meanwhile, return its reply.
        """
        now_ns, tick = self.now_ns(), self.ticks.known()
        if await self.driver.transact(
            lambda tr: refuse(tr, caller, refusal, now_ns=now_ns, tick=tick)
        ):
            raise refusal
        return await self._past_fences(attempt)

    async def _past_fences(
        self,
        attempt: Callable[[], Awaitable[RspT]],
        held_up: NamesLeasedError | UsageFencedError | None = None,
    ) -> RspT:
        """Run an operation again while a directory above is about to be moved,
        or names are leased to another client.

        Args:
            attempt: runs it.
            held_up: what a run has ended with already.
        """
        deadline_s = None
        while True:
            if isinstance(held_up, NamesLeasedError):
                await in_task()
                await self.name_leases.end(held_up.directory_id)
            elif held_up is not None:
                now_s = self._runtime.clock.monotonic_s()
                deadline_s = deadline_s or now_s + self._retry_time_s_max
                if now_s > deadline_s:
                    what = f"{held_up} is being moved again and again"
                    raise FsError(Status.BUSY, what) from held_up
                await in_task()
                await trio.sleep(FENCE_PAUSE_S)
            try:
                return await attempt()
            except (NamesLeasedError, UsageFencedError) as error:
                held_up = error

    async def _move(
        self,
        op: Operation[ReqT, RspT],
        request: ReqT,
        places: Callable[[], Sequence[tuple[int, bytes]]],
        *,
        new_inode_id: int = 0,
    ) -> RspT:
        """As `_change`, for what moves whole directories;
        `places` returns (parent, name) of those.
        """
        caller = self._caller(request)
        may_contend = True

        async def attempt() -> RspT:
            ctx = self._context(caller, new_inode_id)
            run_once, run_count = _begun(op, ctx, request), 0

            async def run(tr: Transaction) -> RspT:
                nonlocal run_count
                run_count += 1
                if may_contend and run_count > FENCE_AFTER_RUNS:
                    raise _ContendedError
                return await run_once(tr)

            return await self.driver.transact(run)

        try:
            return await self._settled(caller, request, attempt)
        except _ContendedError:
            may_contend = False
        ctx = self._context(caller)
        await self.driver.transact(lambda tr: fence_tree(tr, ctx, places()))
        return await self._settled(caller, request, attempt)

    async def _make(self, op: Operation[ReqT, RspT], request: ReqT) -> RspT:
        return await self._change(op, request, new_inode_id=await self.inode_ids.take())

    async def _change_content(
        self, op: Operation[ReqT, RspT], request: ReqT, *, new_inode_id: int = 0
    ) -> RspT:
        """As `_change`, for operations that may need the chunks of the file first."""
        caller = self._caller(request)

        def attempt(known: PreciseLength | None) -> Awaitable[RspT]:
            ctx = self._context(caller, new_inode_id, known)
            return self.driver.transact(_begun(op, ctx, request))

        return await self._settled(caller, request, partial(self.driver.run, attempt))

    async def _finish_truncation(self, inode: InodePb) -> None:
        """Do the second half of a truncation, after its first transaction has committed."""
        if is_emptied_inline(inode.file):
            # What is written now may be durable before that: it would stand before the bytes of the
            # old content, which are back.
            await self._engine.sync()
        if inode.file.truncate_pending:
            await self.driver.finish_truncation(inode.inode_id)
            inode.file.truncate_pending = False
            if inode.file.has_holes:
                found = await self._read_inode(inode.inode_id)
                inode.used_bytes, inode.file.has_holes = found.used_bytes, found.file.has_holes

    async def _read_inode(self, inode_id: int) -> InodePb:
        return await snapshot_read(self._engine, lambda tr: load_inode(tr, inode_id, snapshot=True))
