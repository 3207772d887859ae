"""A way to a storage node over another one, which passes requests on:
fs/storage/relay.py is the other end.

The request is the same, with its client, channel and sequence number: should an earlier try of it
have arrived after all, the node knows it.

Invariants:
    - Whatever the passing on ends with is an error as of a direct call: repeated under the same
      conditions, and no other status reaches a user.
    - What the node itself has answered is told as it is, in its own status.

Does not: choose who passes on; reach.py does.
"""

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Final

from ..rpc.api import Channel, Into, Lending, OnReply, Received, UnderWay
from ..rpc.frame import decode_error
from ..rpc.reply_messages import parse_reply
from ..runtime.ports import Buffer
from ..schema import services
from ..schema.method import Method, ReqT, RspT
from ..schema.proto import storage_pb2 as pb
from ..schema.routing import Node
from ..schema.status import FsError, Status

_UNABLE: Final = {
    Status.RPC_UNKNOWN_METHOD,
    Status.RPC_BAD_REQUEST,
    Status.RPC_BAD_VERSION,
    Status.RPC_WRONG_CLUSTER,
    Status.RPC_WRONG_NODE,
    Status.NODE_UNKNOWN,
}
"""Of a relay of an earlier release, which does not know the node yet, or has been replaced:
to the user's operation it is as if nobody were reached.
"""

_STRANGERS: Final = {
    Status.RPC_BAD_VERSION,
    Status.RPC_UNAUTHENTICATED,
    Status.RPC_WRONG_CLUSTER,
    Status.RPC_WRONG_NODE,
}
"""What relay and node make of each other, which is nothing that a user has to do with."""

_TROUBLE: Final = {
    Status.RPC_CONNECTION_LOST,
    Status.RPC_TIMEOUT,
    Status.RPC_OVERLOADED,
    Status.RPC_UNCHECKED,
    Status.INTERNAL_ERROR,
    Status.OUT_OF_RESOURCES,
}


class Vain(Enum):
    """Why asking a relay was in vain."""

    UNABLE = "unable"
    """It passes nothing on for anybody."""
    UNREACHED = "unreached"
    """It does not reach the node either, or is not reached itself."""
    TROUBLE = "trouble"
    """It may do better soon: it has no room, or a connection broke."""


class RelayChannel:
    """See module head.  A `Channel`; what is begun without a task is not relayed."""

    def __init__(
        self, relay: Node, node: Node, channel: Channel, *, on_vain: Callable[[Vain], None]
    ) -> None:
        """Reach `node` through `relay`, to which `channel` leads.

        `on_vain` is told when that was in vain.
        """
        self.relay = relay
        self._node = node
        self._channel = channel
        self._on_vain = on_vain

    async def call(
        self,
        method: Method[ReqT, RspT],
        request: ReqT | bytes,
        *,
        payload: Sequence[Buffer] = (),
        into: Into | None = None,
        timeout_s: float | None = None,
        under_way: set[UnderWay] | None = None,
        may_be_lent: int = Lending.NOT,
    ) -> Received[RspT]:
        """See `fs.rpc.api.Channel.call`; nothing is lent on this way, whatever may be."""
        assert method.is_relayed, method
        del may_be_lent
        message = request if isinstance(request, bytes) else request.SerializeToString()

        def into_inner(reply: pb.RelayRsp, payload_bytes: int) -> Sequence[memoryview]:
            assert into is not None
            return into(parse_reply(method, reply.message), payload_bytes)

        try:
            received = await self._channel.call(
                services.STORAGE_RELAY,
                pb.RelayReq(
                    node_id=self._node.node_id,
                    service_number=method.service_number,
                    method_number=method.number,
                    message=message,
                ),
                payload=payload,
                into=None if into is None else into_inner,
                timeout_s=timeout_s,
                under_way=under_way,
            )
        except FsError as error:
            failure = self._failed(error)
            if failure is error:
                raise
            raise failure from error
        reply = received.message
        if reply.status:
            raise self._told(reply)
        parsed = parse_reply(method, reply.message)
        return Received(parsed, received.payload_bytes, received.payload)

    def _told(self, reply: pb.RelayRsp) -> FsError:
        """Return what the call of the relay has ended with; take note of it."""
        told = decode_error(reply.status, reply.detail.encode())
        status = told.status
        if reply.is_silent or status in _STRANGERS:
            self._on_vain(Vain.UNREACHED)
        elif status is Status.RPC_CONNECTION_LOST:
            self._on_vain(Vain.TROUBLE)
        if status in _STRANGERS:
            status = Status.RPC_CONNECT_FAILED
        return FsError(status, f"through node {self.relay.node_id}: {told.detail}")

    def _failed(self, error: FsError) -> FsError:
        """Take note of what the passing on has failed with; return what the call fails with."""
        if error.status in _TROUBLE:
            self._on_vain(Vain.TROUBLE)
        elif error.status is Status.RPC_CONNECT_FAILED:
            self._on_vain(Vain.UNREACHED)
        if error.status not in _UNABLE:
            return error
        is_old = error.status is Status.RPC_UNKNOWN_METHOD
        self._on_vain(Vain.UNABLE if is_old else Vain.UNREACHED)
        return FsError(
            Status.RPC_CONNECT_FAILED,
            f"node {self._node.node_id} is not reached from here, and node {self.relay.node_id} "
            f"passes nothing on to it: {error}",
        )

    def begin(
        self,
        method: Method[ReqT, RspT],
        request: ReqT | bytes,
        on_end: OnReply,
        *,
        timeout_s: float,
        under_way: set[UnderWay],
        payload: Sequence[Buffer] = (),
        is_packed: bool = False,
        reply_bytes_max: int = 0,
    ) -> UnderWay | None:
        """See `fs.rpc.api.Channel.begin`; nothing is done."""
        del method, request, on_end, timeout_s, under_way, payload, is_packed, reply_bytes_max
        return None

    async def aclose(self) -> None:
        """Do nothing: the connection is for others, too."""
