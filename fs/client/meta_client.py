"""The metadata half of the native client: one call, made until some meta service has answered it.

Invariants:
    - All tries of one call carry the same request id, and all but the first say that they are
      repeats, so a repeated operation happens exactly once, or not at all when it is refused.
    - A client stays with one meta service until that one fails: its caches stay warm, and
      operations of one client are seldom spread over several servers.
    - A call that waits for a service which the manager has declared failed is given up
      and made elsewhere, so a service that falls silent costs the time to judge it, not
      the time that a call may take.
    - One that lives and is slow is waited for (patience.py).
    - One that keeps a call for its whole limit and does not say that it lives comes last for a
      while, judged or not: it costs the time of one call, not that of each.
    - A change is not repeated once services may have forgotten whether they have done it:
      trio's clock, by which it is, stands still while the machine sleeps, and what others
      have done since would be undone.

Source: deepseek-ai/3FS, "RandomFollow" server selection: rendezvous order of the servers by client.
"""

import logging
from collections.abc import Coroutine, Iterator
from collections.abc import Set as AbstractSet
from typing import Any, Final

import trio
from google.protobuf.message import Message
from xxhash import xxh3_64_intdigest

from ..node.api import RoutingView
from ..rpc.api import Channels, Lending, Received, UnderWay
from ..runtime.ports import Runtime
from ..runtime.recycled import RecycledMemory
from ..schema.config import OUTCOMES_KEPT_S, ClientSection
from ..schema.ids import ClientId, NodeId
from ..schema.method import Method, ReqT, RspT
from ..schema.proto.common_pb2 import CallerPb
from ..schema.proto.meta_pb2 import CloseReq
from ..schema.routing import Node, NodeState, Role, RoutingInfo
from ..schema.status import FsError, Retry, Status
from .api import OnMetaReply
from .patience import Patience, SlowPeerError
from .retry import RetryBudget

log = logging.getLogger(__name__)

REQUEST_ID_BYTES = 16
PAYLOAD_IDLE_BYTES_MAX = 16 * 1024 * 1024
"""Of memory kept for payloads that pass through: those of a few calls."""
_NO_BYTES = memoryview(b"")

BEGUN_COUNT_MAX: Final = 4096
"""Of changes begun without a task that failed, and that nobody has gone on with so far."""

SILENT_S: Final = 30.0
"""For so long others are asked in the place of a service that was silent.

The manager judges it in a fraction of that, unless it gets no time itself.
"""

_HARMLESS: Final = frozenset(
    {
        "Access",
        "BatchGetAttr",
        "BatchResolvePath",
        "FindLockConflict",
        "GetAttr",
        "GetRealPath",
        "GetUsage",
        "GetXattr",
        "List",
        "ListQuotas",
        "ListXattrs",
        "Lookup",
        "ResolvePath",
        "StatFs",
        "SyncMeta",
        "Close",
        "ExtendStripe",
        "FreeClient",
        "NoteReads",
        "PruneSessions",
        "ReserveSpace",
        "Sync",
    }
)
"""Methods that change nothing, and those that tell of open files, or make what only ever
grows: they may be repeated whenever that is. So may what names the state that it changes,
and is refused in any other one.
"""


def caller_of(request: Message) -> CallerPb:
    """Return the caller inside a meta request (Close wraps a Sync request that holds it)."""
    holder = request.sync if isinstance(request, CloseReq) else request
    caller = holder.caller  # type: ignore[attr-defined]
    assert isinstance(caller, CallerPb)
    return caller


class _Payload:
    """The payload of a reply, of the latest try alone."""

    def __init__(self, memory: RecycledMemory) -> None:
        self._memory = memory
        self.view = _NO_BYTES

    def into(self, _reply: Message, size: int) -> list[memoryview]:
        """As of `Channel.call`."""
        self.view = self._memory.take(size)
        return [self.view]

    def forget(self) -> None:
        """Forget what has come of it: the try failed, and the next one's reply may have none."""
        self.view = _NO_BYTES


class MetaClient:
    """Implements `fs.client.api.MetaCaller` over the cluster's meta services."""

    def __init__(
        self,
        client_id: ClientId,
        *,
        channels: Channels,
        routing: RoutingView,
        runtime: Runtime,
        section: ClientSection,
    ) -> None:
        self._client_id = client_id
        self._channels = channels
        self._routing = routing
        self._runtime = runtime
        self._section = section
        self._patience = Patience(channels, section)
        self._ranked: tuple[RoutingInfo | None, list[Node]] = (None, [])
        self._under_way: dict[NodeId, set[UnderWay]] = {}
        self._begun: dict[bytes, tuple[float, NodeId]] = {}
        """Changes begun without a task that failed, by request id:
        when they were first sent, and to whom.
        """
        self._silent_until_s: dict[NodeId, float] = {}
        """Of services that kept a call for its whole limit; trio time."""
        self._memory = RecycledMemory(PAYLOAD_IDLE_BYTES_MAX)

    def adopt(self, section: ClientSection) -> None:
        """Go on with other settings."""
        self._section = section
        self._patience.adopt(section)

    @property
    def client_id(self) -> str:
        """This client's id."""
        return self._client_id

    def _servers(self) -> list[Node]:
        """Return the meta services in this client's order, failed ones last,
        before them those that were silent.
        """
        info = self._routing.info
        seen, ranked = self._ranked
        if info is not seen:
            nodes = [n for n in info.nodes_with_role(Role.META) if n.address]
            ranked = sorted(nodes, key=lambda n: (n.state is NodeState.FAILED, self._weight(n)))
            self._ranked = info, ranked
        return self._silent_later(ranked) if self._silent_until_s else ranked

    def _silent_later(self, ranked: list[Node]) -> list[Node]:
        now_s, silent = trio.current_time(), self._silent_until_s
        for node_id in [node_id for node_id, until_s in silent.items() if until_s <= now_s]:
            del silent[node_id]
        return sorted(ranked, key=lambda n: (n.state is NodeState.FAILED, n.node_id in silent))

    def _note_silent(self, node_id: NodeId) -> None:
        self._silent_until_s[node_id] = trio.current_time() + SILENT_S

    def _choose(self, tries: dict[NodeId, int]) -> Node:
        """Return the service to ask: of those that live, the least tried one of this call,
        the usual one first.

        Raises:
            FsError: RPC_CONNECT_FAILED when none is known.
        """
        servers = self._servers()
        if not servers:
            raise FsError(Status.RPC_CONNECT_FAILED, "no meta service is known")
        if not tries:
            return servers[0]
        return min(servers, key=lambda n: (n.state is NodeState.FAILED, tries.get(n.node_id, 0)))

    def _weight(self, node: Node) -> int:
        return xxh3_64_intdigest(f"{self._client_id}/{node.node_id}".encode())

    def call(
        self, method: Method[ReqT, RspT], request: ReqT, *, timeout_s: float | None = None
    ) -> Coroutine[Any, Any, RspT]:
        """See `MetaCaller.call`; no meta service known counts as RPC_CONNECT_FAILED."""
        self._sign(request)
        sent_s = self._runtime.clock.monotonic_s()
        return self._try(method, request, timeout_s, trio.current_time(), sent_s, {})

    async def fetch(self, method: Method[ReqT, RspT], request: ReqT) -> tuple[RspT, memoryview]:
        """See `MetaCaller.fetch`."""
        self._sign(request)
        payload = _Payload(self._memory)
        now_s, sent_s = trio.current_time(), self._runtime.clock.monotonic_s()
        reply = await self._try(method, request, None, now_s, sent_s, {}, payload=payload)
        return reply, payload.view

    async def call_again(
        self, method: Method[ReqT, RspT], request: ReqT, error: FsError, began_s: float
    ) -> RspT:
        """See `BeginsChanges.call_again`."""
        # Not whoever comes first by now: that may be one which lives, in place of
        # one that was declared failed.
        sent = self._begun.pop(caller_of(request).request_id, None)
        sent_s, node_id = sent or (self._runtime.clock.monotonic_s(), NodeId(0))
        return await self._try(method, request, None, began_s, sent_s, {node_id: 1}, error)

    def _sign(self, request: Message) -> bytes:
        """Say in a request who asks, and return its id:
        that which it has, if it was signed before.
        """
        caller = caller_of(request)
        caller.client_id = self._client_id
        request_id = caller.request_id
        if not request_id:
            request_id = caller.request_id = self._runtime.random.randbytes(REQUEST_ID_BYTES)
        return request_id

    async def _try(  # noqa: PLR0917 - how far a call has come
        self,
        method: Method[ReqT, RspT],
        request: ReqT,
        timeout_s: float | None,
        began_s: float,
        sent_s: float,
        tries: dict[NodeId, int],
        failure: FsError | None = None,
        *,
        payload: _Payload | None = None,
    ) -> RspT:
        """Try a signed request until it is answered; it was tried before if there is a `failure`.

        It was begun at `began_s` of trio's time, and at `sent_s` of the clock that does
        not stand still.  `payload`: of who matches it against checksums before all else.
        """
        caller, is_repeat = caller_of(request), failure is not None
        into, lending = (None, Lending.NOT) if payload is None else (payload.into, Lending.MEMORY)
        budget: RetryBudget | None = None  # most calls need none
        while True:
            if failure is not None:
                budget = budget or RetryBudget(self._section, self._runtime, began_s)
                budget.check(failure)
                log.debug("%s: try %d: %s", method, budget.try_count, failure)
                if failure.retry in {Retry.OTHER, Retry.ROUTING}:
                    await self._routing.refresh()
                await budget.pause()
                self._check_remembered(method, failure, sent_s)
            node_id = NodeId(0)
            try:
                server = self._choose(tries)
                node_id = server.node_id
                caller.is_repeat = is_repeat
                is_repeat = True
                tries[node_id] = tries.get(node_id, 0) + 1
                under_way = self._under_way.get(node_id)
                if under_way is None:
                    under_way = self._under_way[node_id] = set()
                if timeout_s is None:
                    received = await self._patience.call(
                        server,
                        method,
                        request,
                        into=into,
                        under_way=under_way,
                        may_be_lent=lending,
                    )
                else:
                    channel = self._channels.get(server.address, node_id=node_id)
                    received = await channel.call(
                        method, request, timeout_s=timeout_s, under_way=under_way
                    )
            except FsError as error:
                failure = error
                if payload is not None:
                    payload.forget()
                is_silent = error.status is Status.RPC_TIMEOUT and timeout_s is None
                if is_silent and not isinstance(error, SlowPeerError):
                    self._note_silent(node_id)
            else:
                return received.message

    def _check_remembered(
        self, method: Method[ReqT, RspT], failure: FsError, sent_s: float
    ) -> None:
        """Raise `failure` if services may have forgotten what became of a change
        that was first sent at `sent_s`.
        """
        age_s = self._runtime.clock.monotonic_s() - sent_s
        if age_s >= OUTCOMES_KEPT_S and method.name not in _HARMLESS:
            what = f"{failure.detail}; after {age_s:.0f} s nobody knows whether it was done"
            raise FsError(failure.status, what)

    def begin(
        self, method: Method[ReqT, RspT], request: ReqT, on_end: OnMetaReply[RspT]
    ) -> UnderWay | None:
        """See `BeginsCalls.begin`."""
        servers = self._servers()
        if not servers:
            return None
        caller_of(request).client_id = self._client_id
        return self._begin(servers[0], method, request, on_end)

    def _begin(
        self, server: Node, method: Method[ReqT, RspT], request: ReqT, on_end: OnMetaReply[RspT]
    ) -> UnderWay | None:
        """Begin a signed request, at one service."""
        under_way = self._under_way.get(server.node_id)
        if under_way is None:
            under_way = self._under_way[server.node_id] = set()

        # Quoted: they would be evaluated for every call.
        def end(received: "Received[RspT] | None", error: "FsError | None") -> None:
            if error is not None and error.status is Status.RPC_TIMEOUT:
                self._note_silent(server.node_id)
            on_end(None if received is None else received.message, error)

        return self._channels.get(server.address, node_id=server.node_id).begin(
            method,
            request,
            end,
            timeout_s=self._section.call_timeout_s,
            under_way=under_way,
        )

    def begin_change(
        self, method: Method[ReqT, RspT], request: ReqT, on_end: OnMetaReply[RspT]
    ) -> bool:
        """See `BeginsChanges.begin_change`."""
        request_id = self._sign(request)
        servers = self._servers()
        if not servers:
            return False
        sent_s, server = self._runtime.clock.monotonic_s(), servers[0]

        # Quoted: they would be evaluated for every change.
        def end(reply: "RspT | None", error: "FsError | None") -> None:
            if error is not None and error.retry is not Retry.NEVER:
                self._begun[request_id] = sent_s, server.node_id
                if len(self._begun) > BEGUN_COUNT_MAX:
                    del self._begun[next(iter(self._begun))]
            on_end(reply, error)

        try:
            return self._begin(server, method, request, end) is not None
        except FsError as error:  # the usual way says so, to whom it concerns
            log.debug("%s: not begun: %s", method, error)
            return False

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Give up calls to services that are declared failed,
        and ask whether the others live that keep one, until cancelled.
        """
        task_status.started()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._patience.watch, self._calls_under_way)
            await self._give_up_failed()

    def _calls_under_way(self) -> Iterator[tuple[Node, AbstractSet[UnderWay]]]:
        nodes = self._routing.info.nodes
        for node_id, under_way in self._under_way.items():
            node = nodes.get(node_id)
            if node is not None and under_way:
                yield node, under_way

    async def _give_up_failed(self) -> None:
        info = self._routing.info
        while True:
            before, info = info, await self._routing.wait_newer(info.routing_version)
            # While all are failed one of them is asked nevertheless, until another is back.
            has_another = any(
                n.address and n.state is not NodeState.FAILED
                for n in info.nodes_with_role(Role.META)
            )
            for node_id, under_way in self._under_way.items():
                is_news = has_another or not _has_failed(before, node_id)
                if is_news and _has_failed(info, node_id):
                    detail = f"node {node_id} was declared failed"
                    for call in list(under_way):
                        # Not as a timeout: nobody need ask whether it lives.
                        call.fail(FsError(Status.RPC_CONNECTION_LOST, detail))


def _has_failed(info: RoutingInfo, node_id: NodeId) -> bool:
    node = info.nodes.get(node_id)
    return node is not None and node.state is NodeState.FAILED
