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
from typing import Any, Final

from google.protobuf.message import DecodeError

from ..rpc.api import Channel, Into, Lending, OnReply, Received, UnderWay
from ..rpc.frame import decode_error
from ..runtime.ports import Buffer
from ..schema import services
from ..schema.method import Method, ReqT, RspT
from ..schema.proto import storage_pb2 as pb
from ..schema.routing import Node
from ..schema.status import FsError, Status

_UNABLE: Final = {Status.RPC_UNKNOWN_METHOD, Status.RPC_BAD_REQUEST, Status.NODE_UNKNOWN}
"""Of a relay of an earlier release, or which does not know the node yet:
to the user's operation it is as if nobody were reached.
"""

_NO_RELAY: Final = {Status.RPC_CONNECT_FAILED, Status.RPC_CONNECTION_LOST, Status.RPC_TIMEOUT}
"""The relay itself says nothing."""


class RelayChannel:
    """See module head.  A `Channel`; what is begun without a task is not relayed."""

    def __init__(
        self, relay: Node, node: Node, channel: Channel, *, on_vain: Callable[[bool], None]
    ) -> None:
        """Reach `node` through `relay`, to which `channel` leads.

        `on_vain` is told when that was in vain; True: the relay passes nothing on for anybody.
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
            return into(_parsed(method, reply), payload_bytes)

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
            if reply.is_silent:
                self._on_vain(False)
            told = decode_error(reply.status, reply.detail.encode())
            raise FsError(told.status, f"through node {self.relay.node_id}: {told.detail}")
        return Received(_parsed(method, reply), received.payload_bytes, received.payload)

    def _failed(self, error: FsError) -> FsError:
        """Take note of what the passing on has failed with; return what the call fails with."""
        if error.status in _NO_RELAY:
            self._on_vain(False)
        if error.status not in _UNABLE:
            return error
        self._on_vain(error.status is Status.RPC_UNKNOWN_METHOD)
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


def _parsed(method: Method[Any, RspT], reply: pb.RelayRsp) -> RspT:
    """Return the reply that was passed back; raises FsError(RPC_BAD_FRAME)."""
    try:
        parsed: RspT = method.reply_type.FromString(reply.message)
    except DecodeError as error:
        raise FsError(Status.RPC_BAD_FRAME, f"reply of {method}, passed on: {error}") from error
    return parsed
