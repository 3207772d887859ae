"""Passes requests of clients on to other storage nodes, which those clients do not reach,
and the replies back.

A network may be cut between a client and one node that all others reach.  The client then
sends what is for that node to us (fs/client/reach.py).  We call it as we call it for our
own sake, on our own connection.

Invariants:
    - One hop: what is passed on is no Relay itself, and only what its rule says may be (`relayed`),
      to another storage node of the routing info.
    - Nobody gets further than by himself: whom a method is for, and in whose name its request
      speaks, is judged here, since the other node takes our word (`check_rights`).
    - Memory is bounded: RELAYED_BYTES_MAX of requests and payloads of replies together, and
      RELAYED_COUNT_MAX requests; one that is larger has its turn when there is no other.
    - A request is executed as often as the client sends it; its channel and sequence number say
      that it is the same.  It is sent once.
    - A node that is not reached from here either is told as such within seconds, so that the client
      asks somebody else.  One that is slow is waited for, for as long as the client says, and
      RELAYED_S_MAX at the most.
    - However many requests there are, a node is tried once at a time (ways.py), and told to the
      manager once.

Concurrency: trio; any number at once.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import trio
from google.protobuf.message import DecodeError, Message

from ..rpc.api import Call, ConnectionRefused, Identity, Received, Reply, check_client_id
from ..runtime.background import open_background
from ..runtime.ports import Buffer
from ..schema import services
from ..schema.ids import NodeId
from ..schema.lacks import is_lack, lacking
from ..schema.method import Access, Method
from ..schema.proto import mgmtd_pb2
from ..schema.proto import storage_pb2 as pb
from ..schema.proto.core_pb2 import RelayedLinkPb
from ..schema.routing import Node, NodeState, Role
from ..schema.status import FsError, Status
from ..schema.user import User
from .context import StorageContext
from .ways import Ways

log = logging.getLogger(__name__)

RELAYED_BYTES_MAX: Final = 64 * 1024 * 1024
RELAYED_COUNT_MAX: Final = 256
RELAYED_S_MAX: Final = 300.0
"""As long as our clients wait for a slow node; others may name no limit at all."""
ANSWER_S: Final = 1.0
"""A node that has not answered for so long is tried:
less than clients wait, since they may have to ask another one after us.
"""
TRY_AGAIN_S: Final = 5.0
REPORT_TIMEOUT_S: Final = 2.0
TOLD_S: Final = 60.0
"""A link is told of in the log again, and counts as cut,
until nothing has been passed on for so long.
"""
LINKS_MAX: Final = 256
"""That are remembered."""
CLIENT_ID_LENGTH_MAX: Final = 64
"""Of that; ours are shorter."""
LEFT_FRACTION: Final = 0.05
"""Of the time that a client waits: for our answer to reach it."""

METHODS: Final = {
    (method.service_number, method.number): method
    for method in vars(services).values()
    if isinstance(method, Method) and method.is_relayed
}
Link = tuple[str, int, NodeId]
"""Client id and node id of who does not reach a node, and that node."""


def check_rights(user: User, peer: Identity, request: pb.RelayReq) -> None:
    """Raise FsError(RPC_NOT_ALLOWED) for what a user's client may not ask of the node itself.

    What cannot be passed on at all is refused later, as to everybody.
    """
    method = METHODS.get((request.service_number, request.method_number))
    if method is None:
        return
    access = Access.ADMIN if user.is_admin else Access.USER
    if access < method.access:
        detail = (
            f"{method}, passed on, is for {method.access.name.lower()}s, {user.name} is "
            f"{access.name.lower()}"
        )
        raise FsError(Status.RPC_NOT_ALLOWED, detail)
    check_names(peer, _parsed(method, request))


def check_names(peer: Identity, request: Message) -> None:
    """Raise FsError(RPC_NOT_ALLOWED) when a user's client asks for updates in a channel
    that is not its own.
    """
    if isinstance(request, pb.UpdateReq):
        check_client_id(request.tag.client_id, peer)
    elif isinstance(request, pb.UpdateGroupReq):
        for update in request.updates:
            check_client_id(update.tag.client_id, peer)


class NotReachedError(FsError):
    """A call that was given up since the way to its node is not free."""

    def __init__(self, detail: str) -> None:
        super().__init__(Status.RPC_CONNECTION_LOST, detail)


@dataclass(slots=True)
class PassedLink:
    """Somebody who does not reach a node, and whose requests to it come this way."""

    first_s: float
    last_s: float
    count: int = 0


class Relays:
    """See module head."""

    def __init__(self, context: StorageContext) -> None:
        self._context = context
        self._ways = Ways(context.runtime.network)
        self._reported: set[tuple[NodeId, str]] = set()
        """Processes that refuse connections, by node and incarnation: the manager was told."""
        self.byte_count = 0
        """Of what is being passed on."""
        self.request_count = 0
        self.links: dict[Link, PassedLink] = {}
        """By who asked for whom."""

    async def relay(self, call: Call, request: pb.RelayReq) -> Reply[pb.RelayRsp]:
        """Pass a request on; raises FsError when it is not."""
        # 1. Is it for somebody, and nothing else than what may be passed on?
        method = METHODS.get((request.service_number, request.method_number))
        if method is None:
            detail = (
                f"service {request.service_number} method {request.method_number} is not passed on"
            )
            raise FsError(Status.RPC_BAD_REQUEST, detail)
        if len(call.payload) and not method.has_request_payload:
            detail = f"{method} takes no payload, {len(call.payload)}"
            raise FsError(Status.RPC_BAD_REQUEST, detail)
        node = self._node(request.node_id)
        # 2. Is there room?
        taken, message = _Taken(self), request.message  # which is a copy each time
        try:
            taken.take(len(call.payload) + len(message))
            self._note(call.peer, node)
            # 3. Ask, and say what has come of it.
            reply = await self._pass_on(call, node, method, message, taken)
            reply.release = taken.give_back
        except BaseException:
            taken.give_back()
            raise
        return reply

    def _node(self, node_id: int) -> Node:
        """Return a storage node that is not us and not judged failed."""
        info = self._context.routing.info
        node = info.nodes.get(NodeId(node_id))
        if node is None or Role.STORAGE not in node.roles:
            raise FsError(Status.NODE_UNKNOWN, f"no storage node {node_id} here, to pass on to")
        if node_id == self._context.node_id:
            raise FsError(Status.RPC_BAD_REQUEST, f"node {node_id} passes nothing on to itself")
        if node.state is NodeState.FAILED:
            raise FsError(Status.RPC_CONNECT_FAILED, f"node {node_id} is judged failed")
        return node

    async def _pass_on(
        self, call: Call, node: Node, method: Method[Any, Any], message: bytes, taken: "_Taken"
    ) -> Reply[pb.RelayRsp]:
        left_s = min(call.deadline_s - trio.current_time(), RELAYED_S_MAX) * (1 - LEFT_FRACTION)

        def into(_reply: Message, payload_bytes: int) -> Sequence[memoryview]:
            return [taken.take_for_reply(payload_bytes)]

        try:
            received = await self._ask(
                node,
                method,
                message,
                [call.payload] if len(call.payload) else (),
                into=into,
                timeout_s=max(0.001, left_s),
            )
        except FsError as error:
            if error.status is Status.RPC_OVERLOADED and taken.is_refused:
                raise  # by us
            if isinstance(error, ConnectionRefused):
                await self._report(node)
            # A connection that just broke may be made again.
            is_silent = error.status is Status.RPC_CONNECT_FAILED or isinstance(
                error, NotReachedError
            )
            return Reply(pb.RelayRsp(status=error.status, detail=error.detail, is_silent=is_silent))
        answer = pb.RelayRsp(message=received.message.SerializeToString())
        return Reply(answer, [taken.reply] if received.payload_bytes else ())

    async def _ask(
        self,
        node: Node,
        method: Method[Any, Any],
        message: bytes,
        payload: Sequence[Buffer],
        **options: Any,
    ) -> Received[Any]:
        """Call a node; raises FsError, a NotReachedError when it turns out not to be reached."""
        # Whether it lives is asked beside what it is busy with.
        node_id = 0 if method is services.CORE_GET_INFO else node.node_id
        channel = self._context.channels.get(node.address, node_id=node_id)
        async with open_background() as nursery:
            nursery.start_soon(self._watch, node, nursery.cancel_scope)
            return await channel.call(method, message, payload=payload, **options)
        own_id = self._context.node_id
        raise NotReachedError(f"node {node.node_id} is not reached from node {own_id} either")

    async def _watch(self, node: Node, scope: trio.CancelScope) -> None:
        """Cancel when the way to a node is not free."""
        await trio.sleep(ANSWER_S)
        while await self._ways.is_free(node):  # noqa: ASYNC110 - it is asked each time
            await trio.sleep(TRY_AGAIN_S)
        scope.cancel()

    async def _report(self, node: Node) -> None:
        """Tell the manager that a node refuses connections, once: it looks for itself."""
        process = node.node_id, node.incarnation
        if process in self._reported:
            return
        self._reported = {one for one in self._reported if one[0] != node.node_id} | {process}
        is_told = False
        try:
            request = mgmtd_pb2.ReportUnreachableReq(
                node_id=node.node_id, incarnation=node.incarnation
            )
            await self._context.mgmtd.call(
                services.MGMTD_REPORT_UNREACHABLE, request, timeout_s=REPORT_TIMEOUT_S
            )
            is_told = True
        except FsError as error:
            log.info(
                "node %d refuses connections, the manager was not told: %s", node.node_id, error
            )
        finally:
            if not is_told:  # also where whoever tells it was given up: another one does
                self._reported.discard(process)

    # ---- who does not reach whom

    def _note(self, peer: Identity, node: Node) -> None:
        """Remember a link, and tell of it when it is new."""
        now_s = trio.current_time()
        key = peer.client_id[:CLIENT_ID_LENGTH_MAX], peer.node_id, node.node_id
        link = self.links.get(key)
        if link is None or now_s - link.last_s > TOLD_S:
            self._forget(now_s)
            if len(self.links) >= LINKS_MAX:
                return
            link = self.links[key] = PassedLink(now_s, now_s)
            name = f"node {peer.node_id}" if peer.node_id else f"client {key[0]}"
            log.warning(
                "%s does not reach node %d: its requests go through here", name, node.node_id
            )
        link.last_s = now_s
        link.count += 1

    def told(self) -> list[RelayedLinkPb]:
        """Return who did not reach whom within the last minute."""
        now_s = trio.current_time()
        self._forget(now_s)
        return [
            RelayedLinkPb(
                client_id=client_id,
                caller_node_id=caller_id,
                node_id=node_id,
                since_s=now_s - link.first_s,
                request_count=link.count,
            )
            for (client_id, caller_id, node_id), link in self.links.items()
        ]

    def check_none_lately(self, client_id: str) -> None:
        """See that nothing was passed on for a client within the last minute.

        What was may still be on its way at another node, which takes it for ours.  In a minute a
        node that lives has met it, and one that does not has lost its lease.

        Raises:
            FsError: BUSY: something was, or nobody can say.
        """
        self._forget(trio.current_time())
        key = client_id[:CLIENT_ID_LENGTH_MAX]
        if len(self.links) >= LINKS_MAX or any(passed == key for passed, _, _ in self.links):
            raise FsError(Status.BUSY, f"requests of client {client_id} were passed on lately")

    def _forget(self, now_s: float) -> None:
        self.links = {k: link for k, link in self.links.items() if now_s - link.last_s <= TOLD_S}


class _Taken:
    """What one request takes of what there is for all."""

    def __init__(self, relays: Relays) -> None:
        self._relays = relays
        self._bytes = 0
        self._is_counted = False
        self.is_refused = False
        self.reply = memoryview(b"")
        """The payload of its reply."""

    def take(self, byte_count: int) -> None:
        """Take its place, and so many bytes besides those that it has;
        raises FsError(RPC_OVERLOADED).
        """
        relays = self._relays
        others = relays.byte_count - self._bytes
        is_full = not self._is_counted and relays.request_count >= RELAYED_COUNT_MAX
        if is_full or (others and relays.byte_count + byte_count > RELAYED_BYTES_MAX):
            self.is_refused = True
            detail = (
                f"{relays.request_count} requests with {relays.byte_count} bytes are being passed "
                "on"
            )
            raise FsError(Status.RPC_OVERLOADED, detail)
        # All of it, or nothing: there may be no memory for a number.
        count, total = relays.request_count + (not self._is_counted), relays.byte_count + byte_count
        own = self._bytes + byte_count
        relays.request_count, relays.byte_count = count, total
        self._is_counted, self._bytes = True, own

    def take_for_reply(self, byte_count: int) -> memoryview:
        """Return memory for the payload of the reply, which may be asked for more than once;
        raises as `take`.
        """
        self.take(byte_count - len(self.reply))
        self.reply = memoryview(bytearray(byte_count))
        return self.reply

    def give_back(self) -> None:
        """Leave it to others."""
        relays = self._relays
        relays.request_count -= self._is_counted
        relays.byte_count -= self._bytes
        self._is_counted, self._bytes = False, 0


def _parsed(method: Method[Any, Any], request: pb.RelayReq) -> Message:
    """Return what is to be passed on; raises FsError(RPC_BAD_REQUEST)."""
    try:
        parsed: Message = method.request_type.FromString(request.message)
    except DecodeError as error:
        what = f"{method}, to be passed on"
        if is_lack(error):
            raise lacking(what, error) from error
        raise FsError(Status.RPC_BAD_REQUEST, f"{what}: {error}") from error
    return parsed
