"""The methods that one peer calls: called, or refused to it,
and what became of them entered in the figures.

Part of fs/rpc/server_connection.py, which receives requests and answers them.
"""

import logging
from collections.abc import Awaitable, Coroutine, Mapping
from functools import partial
from types import CoroutineType
from typing import Any, Final

from google.protobuf.message import Message

from ..runtime import tracing
from ..runtime.ports import Buffer
from ..runtime.until_wait import NoTaskError, begin_without_task
from ..schema.status import FsError, Status
from ..schema.user import User
from .api import LATER, Call, Identity, Reply
from .frame import FLAG_DIRECT, FLAG_LENT, FLAG_RANGES, TRACE_BYTES, Header
from .guard import OPEN_GRANT, Grant
from .observer import MethodObserver
from .replies import Replies
from .server_parts import ServerParts
from .serving import Binding, Work

log = logging.getLogger(__name__)

_NO_PAYLOAD: Final = memoryview(b"")


class MethodRuns:
    """See module head."""

    def __init__(self, server: ServerParts, peer_name: str) -> None:
        self._server = server
        self._peer_name = peer_name
        self.peer = Identity("")
        """What it has said of itself in the handshake, and in `grant` what it may."""
        self.grant: Grant = OPEN_GRANT
        self.replies: Replies | None = None
        """Of the connection, once there may be any."""

    def refusal_of(
        self, header: Header, binding: Binding | None, under_way: Mapping[int, object]
    ) -> FsError | None:
        """Return why a request is not run; None: it may be.

        Raises FsError when the connection is to end.
        """
        if binding is None:
            detail = f"service {header.service} method {header.method}"
            return FsError(Status.RPC_UNKNOWN_METHOD, detail)
        refusal = self.judge(binding) if self.grant is not OPEN_GRANT else None
        if refusal is not None:
            self._server.refusals.note(self._peer_name, str(binding.method), refusal)
            return refusal
        if header.request_id in under_way:
            raise FsError(Status.RPC_BAD_FRAME, f"request id {header.request_id} is in use")
        in_flight_max = self._server.limits.inflight_per_connection_max
        if len(under_way) >= in_flight_max:
            detail = f"{in_flight_max} requests of this connection are running"
            return FsError(Status.RPC_OVERLOADED, detail)
        method = binding.method
        if header.payload_bytes and not method.has_request_payload:
            detail = f"{method} takes no payload, {header.payload_bytes}"
            return FsError(Status.RPC_BAD_REQUEST, detail)
        if header.flags & FLAG_LENT and not method.is_payload_checked:
            return FsError(Status.RPC_BAD_REQUEST, f"{method} takes no lent payload")
        return None

    def judge(self, binding: Binding) -> FsError | None:
        """Return why the peer may not call a method; None: it may.

        Raises FsError when the connection is to end.
        """
        grant = self.grant
        try:
            grant.check(binding.method)
        except FsError as error:
            if grant.is_over:
                raise
            return error
        return None

    def begin(self, work: Work, message: Buffer) -> None:
        """Call the method of a request, which counts as under way from here on."""
        if work.binding.observed is not None:
            work.binding.observed.in_flight += 1
        work.is_begun = True
        work.result = self.call(work, message)

    def call(self, work: Work, message: Buffer) -> Any:
        """Return the method's result, an FsError to reply with,
        or what has to be awaited for either.
        """
        binding, lease = work.binding, work.lease
        method = binding.method
        try:
            payload = _NO_PAYLOAD if lease is None else lease.view
            call = Call(
                self.peer, work.header.request_id, work.deadline_s, payload, work.would_block
            )
            if lease is not None and self.replies is not None:
                call.tell = partial(self.replies.tell, work)
            call.answer = work.answer
            if work.header.flags & FLAG_RANGES and self.replies is not None:
                call.takes_ranges = partial(self.replies.takes_ranges, work.header)
                call.takes_direct = work.header.flags & FLAG_DIRECT != 0
            packed, result = bytes(message), None
            if binding.packed is not None:
                result = binding.packed(call, packed)
            if result is None:
                request = method.request_type.FromString(packed)
                if self.grant.user is not None:
                    self._admit(self.grant.user, binding, request)
                result = binding.handler(call, request)
            is_later = result is LATER and work.answer is not None
            assert is_later or isinstance(result, (CoroutineType, Reply, method.reply_type)), type(
                result
            )
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
        """Return what a method ends with if it need not wait, or what is left of it, for a task.

        One that waits without a word before has ended with that, and is called anew for a task: it
        has asked for the current task before it left word anywhere to wake it, and there is none.
        """
        try:
            return begin_without_task(begun)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        except FsError as error:
            return error
        except NoTaskError as error:
            log.debug("%s: %s", work, error)
        except Exception as error:  # noqa: BLE001 - the edge, as in `run`: called again, it might find its work done, and nobody learnt of the bug
            return self.failed(work, error)
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
        """Begin the span of a traced request, if this process keeps traces;
        return it, and the message itself.
        """
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
        """Enter a request that has ended, `sent_bytes` behind the header of its reply,
        in the figures of its method and user.
        """
        received_bytes = header.message_bytes + header.payload_bytes
        took_s = observed.end(began_s, received_bytes, sent_bytes)
        if took_s > observed.slow_s:
            observed.note_slow(took_s, header.request_id, self._peer_name, error)
        user = self.grant.user
        if user is not None and self._server.observer is not None:
            total = self._server.observer.user_bytes[user.uid]
            total[0] += received_bytes
            total[1] += sent_bytes
