"""The methods that one peer calls: called, or refused to it, and what became of them entered in the figures.

Part of fs/rpc/server_connection.py, which receives requests and answers them.
"""

import logging
from collections.abc import Awaitable, Coroutine
from functools import partial
from types import CoroutineType
from typing import TYPE_CHECKING, Any, Final

from google.protobuf.message import Message

from ..runtime import tracing
from ..runtime.ports import Buffer
from ..schema.status import FsError
from ..schema.user import User
from .api import Call, Identity, Reply
from .frame import TRACE_BYTES, Header
from .guard import OPEN_GRANT, Grant
from .observer import MethodObserver
from .replies import Replies
from .serving import Binding, Work

if TYPE_CHECKING:
    from .server import Server

log = logging.getLogger(__name__)

_NO_PAYLOAD: Final = memoryview(b"")


class MethodRuns:
    """See module head."""

    def __init__(self, server: "Server", peer_name: str) -> None:
        self._server = server
        self._peer_name = peer_name
        self.peer = Identity("")
        """What it has said of itself in the handshake, and in `grant` what it may."""
        self.grant: Grant = OPEN_GRANT
        self.replies: Replies | None = None
        """Of the connection, once there may be any."""

    def call(self, work: Work, message: Buffer) -> Any:
        """Return the method's result, an FsError to reply with, or what has to be awaited for either."""
        binding, lease = work.binding, work.lease
        method = binding.method
        try:
            payload = _NO_PAYLOAD if lease is None else lease.view
            call = Call(
                self.peer, work.header.request_id, work.deadline_s, payload, work.would_block
            )
            if lease is not None and self.replies is not None:
                call.tell = partial(self.replies.tell, work)
            packed, result = bytes(message), None
            if binding.packed is not None:
                result = binding.packed(call, packed)
            if result is None:
                request = method.request_type.FromString(packed)
                if self.grant.user is not None:
                    self._admit(self.grant.user, binding, request)
                result = binding.handler(call, request)
            assert isinstance(result, (CoroutineType, Reply, method.reply_type)), type(result)
        except Exception as error:  # noqa: BLE001 - the edge: a bug must not end the connection
            return self.failed(work, error)
        return result

    async def run(self, work: Work, begun: Awaitable[Any]) -> Any:
        """Return the method's result, or an FsError to reply with."""
        try:
            result = await begun
            assert isinstance(result, (work.binding.method.reply_type, Reply)), type(result)
        except Exception as error:  # noqa: BLE001 - the edge: a bug must not end the connection
            return self.failed(work, error)
        return result

    def failed(self, work: Work, error: Exception) -> FsError:
        """Return what to answer after an error of a method; a bug is told to the server."""
        where = f"{work} from {self._peer_name}"
        return work.failed(error, lambda bug: self._server.on_bug(where, bug))

    def tried(
        self, work: Work, begun: Coroutine[Any, Any, Any], message: Buffer
    ) -> Message | FsError | Coroutine[Any, Any, Any]:
        """Return what a method without effects ends with if it need not wait; else it is forgotten, and begun anew by a task.

        What waits has asked for the current task before it leaves word anywhere to wake it, and there is none.
        """
        try:
            begun.send(None)
            begun.close()
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        except FsError as error:
            return error
        except Exception as error:  # noqa: BLE001 - it may have wanted a task; one that has it tells what is wrong
            log.debug("%s: %s", work, error)
        return self.call(work, message)  # type: ignore[no-any-return]

    def _admit(self, user: User, binding: Binding, request: Any) -> None:
        """Raise FsError when a user's client asks for something in another's name."""
        if binding.admit is None:
            return
        try:
            binding.admit(user, self.peer, request)
        except FsError as error:
            self._server.refusals.note(self._peer_name, str(binding.method), error)
            raise

    def join(self, binding: Binding, message: Buffer) -> tuple[tracing.Span | None, Buffer]:
        """Begin the span of a traced request, if this process keeps traces; return it, and the message itself."""
        wire, rest = bytes(message[:TRACE_BYTES]), message[TRACE_BYTES:]
        tracer = self._server.tracer
        if tracer is None:
            return None, rest
        span = tracer.join_wire(wire, str(binding.method))
        span.attributes["peer"] = self.peer.client_id or self.peer.node_id
        return span, rest

    def note(self, observed: MethodObserver, work: Work) -> None:
        """Say how a request went; one without a result got no answer."""
        result = work.result
        error = result if isinstance(result, FsError) else None
        if result is None or error is not None:
            observed.note_error(error)
        self.note_end(observed, work.header, work.began_s, work.sent_bytes, error)

    def note_end(
        self,
        observed: MethodObserver,
        header: Header,
        began_s: float,
        sent_bytes: int,
        error: FsError | None,
    ) -> None:
        """Enter a request that has ended, `sent_bytes` behind the header of its reply, in the figures of its method and user."""
        received_bytes = header.message_bytes + header.payload_bytes
        took_s = observed.end(began_s, received_bytes, sent_bytes)
        if took_s > observed.slow_s:
            observed.note_slow(took_s, header.request_id, self._peer_name, error)
        user = self.grant.user
        if user is not None and self._server.observer is not None:
            total = self._server.observer.user_bytes[user.uid]
            total[0] += received_bytes
            total[1] += sent_bytes
