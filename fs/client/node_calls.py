"""Calls to one storage node: a bound on requests under way,
and an early end when it is gone or silent.

Invariants:
    - At most requests_per_node_max calls of each kind are under way to one node, but for those
      that have waited for longer than a call's limit for a node that lives: a node with one slow
      disk serves its others meanwhile.
    - A refused connection is reported to the manager once per node incarnation: the
      manager checks for itself and, if it is true, takes the node out of its chains at
      once instead of after its lease.
    - A call to a node that is judged failed meanwhile ends at once instead of after its timeout:
      the node may have fallen silent, and others have its chains by then.  `run` sees to that.  A
      node judged failed before is not called at all, also by what waited for its turn.
    - One that lives and is slow is waited for (patience.py).
"""

import logging
from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from typing import Final

import trio

from ..node.api import MgmtdCaller, RoutingView
from ..rpc.api import Channels, ConnectionRefused, Into, Lending, OnReply, Received, UnderWay
from ..runtime.ports import Buffer, Runtime
from ..runtime.quick_semaphore import QuickSemaphore
from ..schema import services
from ..schema.config import ClientSection
from ..schema.ids import NodeId
from ..schema.method import Method, ReqT, RspT
from ..schema.proto import mgmtd_pb2
from ..schema.routing import Node, NodeState, RoutingInfo
from ..schema.status import FsError, Status
from .patience import Patience, let_lack_pass
from .reach import Reach
from .relay_channel import RelayChannel
from .relay_choice import Process, process_of

log = logging.getLogger(__name__)

REPLY_BYTES_MAX: Final = 4 * 1024
"""Of payload of a reply to what is begun, where nobody says otherwise."""

LACK_PAUSE_S: Final = 1.0


class _Place:
    """One of the places of a limiter, given back once."""

    __slots__ = ("_limiter",)

    def __init__(self, limiter: QuickSemaphore) -> None:
        self._limiter: QuickSemaphore | None = limiter

    def give_back(self) -> None:
        """Let another one have it."""
        limiter, self._limiter = self._limiter, None
        if limiter is not None:
            limiter.give_back()


class NodeCalls:
    """The storage nodes as the client calls them."""

    def __init__(
        self,
        *,
        channels: Channels,
        routing: RoutingView,
        mgmtd: MgmtdCaller,
        section: ClientSection,
        runtime: Runtime,
    ) -> None:
        self._channels = channels
        self._routing = routing
        self._mgmtd = mgmtd
        self._section = section
        self._reach = Reach(channels, routing, runtime)
        self._patience = Patience(channels, section, self._reach.detour)
        self._limiters: dict[tuple[NodeId, str], QuickSemaphore] = {}
        self._reported: set[Process] = set()
        self._under_way: dict[Process, set[UnderWay]] = {}
        """Straight to a node."""
        self._relayed: dict[tuple[Process, Process], set[UnderWay]] = {}
        """By whom they are sent to, and for whom."""

    @property
    def unreached(self) -> AbstractSet[NodeId]:
        """The nodes that are cut off from here: what others can do as well, others should do."""
        return self._reach.unreached

    def adopt(self, section: ClientSection) -> None:
        """Go on with other settings; calls that wait for their turn or are under way still count
        by the old ones.
        """
        self._section = section
        self._patience.adopt(section)
        self._limiters.clear()

    async def run(self) -> None:
        """End the calls to nodes that are judged failed, and look after the others that keep one,
        until cancelled.
        """
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._patience.watch, self._calls_by_callee)
            nursery.start_soon(
                self._reach.watch,
                self._calls_by_link,
                lambda: self._section.call_timeout_s,
                self._end_to_unreached,
            )
            await self._end_to_failed()

    def _calls_by_callee(self) -> Iterator[tuple[Node, AbstractSet[UnderWay]]]:
        """Return who is to answer, with the calls."""
        return self._known(
            [*self._under_way.items(), *((to, c) for (_, to), c in self._relayed.items())]
        )

    def _calls_by_link(self) -> Iterator[tuple[Node, AbstractSet[UnderWay]]]:
        """Return who has been sent something, with the calls."""
        return self._known(
            [*self._under_way.items(), *((at, c) for (at, _), c in self._relayed.items())]
        )

    def _known(
        self, found: Sequence[tuple[Process, AbstractSet[UnderWay]]]
    ) -> Iterator[tuple[Node, AbstractSet[UnderWay]]]:
        nodes = self._routing.info.nodes
        for process, under_way in found:
            node = nodes.get(process[0])
            if node is not None and node.incarnation == process[1] and under_way:
                yield node, under_way

    async def _end_to_failed(self) -> None:
        while True:
            info = self._routing.info
            try:
                self._end_to_gone(info)
            except Exception as error:  # noqa: BLE001 - raised again if it is a bug
                let_lack_pass(error, "calls to nodes that were judged failed end later")
                await trio.sleep(LACK_PAUSE_S)
            else:
                await self._routing.wait_newer(info.routing_version)

    def _end_to_gone(self, info: RoutingInfo) -> None:
        # Each is forgotten once its calls have ended: for that there may be no memory.
        for process in list(self._under_way):
            if _is_gone(info, process):
                _end(self._under_way[process], f"node {process[0]} was judged failed")
                del self._under_way[process]
        for link in list(self._relayed):
            gone = [process for process in link if _is_gone(info, process)]
            if gone:
                _end(self._relayed[link], f"node {gone[0][0]} was judged failed")
                del self._relayed[link]

    async def _end_to_unreached(self, node: Node) -> None:
        """End what a node that is cut off has been sent,
        and connections that may stay stuck when the way is free again.
        """
        process, detail = process_of(node), f"node {node.node_id} is not reached from here"
        _end(self._under_way.get(process, ()), detail)
        for (at, _), calls in list(self._relayed.items()):
            if at == process:
                _end(calls, detail)
        for node_id in (node.node_id, 0):
            await self._channels.get(node.address, node_id=node_id).aclose()

    async def call(
        self,
        node_id: NodeId,
        method: Method[ReqT, RspT],
        request: ReqT | bytes,
        *,
        payload: Sequence[Buffer] = (),
        into: Into | None = None,
        may_be_lent: int = Lending.NOT,
    ) -> Received[RspT]:
        """Call a node by id; the last three as of `Channel.call`.

        Raises:
            FsError: what `Patience.call` raises; RPC_CONNECT_FAILED for a node that is judged
                failed, RPC_CONNECTION_LOST for one that is while it is called.
        """
        limiter = self._limiters.get((node_id, method.name)) or self._new_limiter(node_id, method)
        if not limiter.take_now():
            await limiter.take()
        place = _Place(limiter)
        try:
            node = self._routing.info.node(node_id)
            if node.state is NodeState.FAILED:
                detail = f"{method}: node {node_id} is judged failed"
                raise FsError(Status.RPC_CONNECT_FAILED, detail)
            return await self._call(
                node, method, request, payload, into, place, may_be_lent=may_be_lent
            )
        finally:
            place.give_back()

    def begin(
        self,
        node_id: NodeId,
        method: Method[ReqT, RspT],
        request: ReqT | bytes,
        on_end: OnReply,
        *,
        payload: Sequence[Buffer] = (),
        is_packed: bool = False,
        reply_bytes_max: int = REPLY_BYTES_MAX,
    ) -> UnderWay | None:
        """Begin a small call to a node by id, as `Channel.begin`;
        None also where it would have to wait for its turn.
        """
        node = self._routing.info.nodes.get(node_id)
        if node is None or node.state is NodeState.FAILED or node_id in self._reach.unreached:
            return None
        limiter = self._limiters.get((node_id, method.name)) or self._new_limiter(node_id, method)
        if not limiter.take_now():
            return None

        # Quoted: they would be evaluated for every call.
        def end(received: "Received[RspT] | None", error: "FsError | None") -> None:
            limiter.give_back()
            on_end(received, error)

        begun = None
        try:
            begun = self._channels.get(node.address, node_id=node_id).begin(
                method,
                request,
                end,
                timeout_s=self._section.call_timeout_s,
                under_way=self._under_way.setdefault((node_id, node.incarnation), set()),
                payload=payload,
                is_packed=is_packed,
                reply_bytes_max=reply_bytes_max,
            )
        finally:
            if begun is None:
                limiter.give_back()
        return begun

    def _new_limiter(self, node_id: NodeId, method: Method[ReqT, RspT]) -> QuickSemaphore:
        limiter = QuickSemaphore(self._section.requests_per_node_max)
        self._limiters[node_id, method.name] = limiter
        return limiter

    async def _call(  # noqa: PLR0917 - those of `call`
        self,
        node: Node,
        method: Method[ReqT, RspT],
        request: ReqT | bytes,
        payload: Sequence[Buffer],
        into: Into | None,
        place: _Place,
        *,
        may_be_lent: int,
    ) -> Received[RspT]:
        way: RelayChannel | None = None
        if self._reach.unreached and method.is_relayed:
            way = self._reach.detour(node)
        if way is None:
            under_way = self._under_way.setdefault(process_of(node), set())
        else:
            link = process_of(way.relay), process_of(node)
            under_way = self._relayed.setdefault(link, set())
        try:
            return await self._patience.call(
                node,
                method,
                request,
                payload=payload,
                into=into,
                under_way=under_way,
                on_slow=place.give_back,
                may_be_lent=may_be_lent,
                way=way,
            )
        except FsError as error:
            is_refused = isinstance(error, ConnectionRefused)
            # Other such errors may be what a relay says of the node.
            if is_refused or (way is None and error.status is Status.RPC_CONNECT_FAILED):
                called = node if way is None else way.relay
                self._reach.doubt(called)
                if is_refused:
                    await self._report_unreachable(called)
            raise

    async def _report_unreachable(self, node: Node) -> None:
        process, is_told = process_of(node), False
        if process in self._reported:
            return
        self._reported.add(process)
        try:
            request = mgmtd_pb2.ReportUnreachableReq(
                node_id=node.node_id, incarnation=node.incarnation
            )
            await self._mgmtd.call(services.MGMTD_REPORT_UNREACHABLE, request, timeout_s=2.0)
            is_told = True
        except FsError as error:
            log.info(
                "node %d refused a connection; the manager does not answer: %s", node.node_id, error
            )
        finally:
            if not is_told:  # also where whoever tells it was cancelled: another one does
                self._reported.discard(process)


def _end(calls: Iterable[UnderWay], detail: str) -> None:
    for call in list(calls):
        call.fail(FsError(Status.RPC_CONNECTION_LOST, detail))


def _is_gone(info: RoutingInfo, process: Process) -> bool:
    """Tell whether the process that was called serves no chain any more."""
    node = info.nodes.get(process[0])
    if node is None or node.incarnation != process[1]:
        return True
    return node.state is NodeState.FAILED
