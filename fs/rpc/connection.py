"""One connection as its caller sees it: handshake, calls by request id, replies in any order.

Invariants:
    - Only the calling task waits for bytes that go into the caller's buffers.  The receiving task
      reads headers, messages and small payloads, and what has come of larger ones, while the call
      is under way; for the rest it lends the stream to the calling task.  When that task is
      cancelled in the middle it returns the stream, and the receiving task drops the rest.  So once
      a call has returned or raised, nothing touches its buffers.
    - A reply nobody waits for any more is received and dropped.
    - When the connection ends, every call in flight fails with RPC_CONNECTION_LOST.
    - A call that waits for its reply ends when its time is up: one task looks after all of them.

Concurrency: one receiving task; any number of calling tasks.
"""

import logging
import math
from collections.abc import Sequence
from functools import partial
from typing import Final

import trio

from ..kernels.frames import make_header
from ..runtime import tracing
from ..runtime.ports import Buffer, Stream
from ..runtime.readiness import current_time
from ..schema.config import RpcSection
from ..schema.lacks import lack_among
from ..schema.method import Method, ReqT, RspT
from ..schema.status import FsError, Status
from .api import Identity, Into, Lending, Received
from .begun_call import BegunCall
from .call_under_way import CallUnderWay
from .credentials import Secret
from .frame import (
    FLAG_LENT,
    FLAG_TRACED,
    FLAGS_VERSION_MIN,
    TIMEOUT_MS_MAX,
    FrameLimits,
    Header,
    Kind,
    decode_error,
    encode_header,
)
from .framed_stream import SMALL_PAYLOAD_BYTES_MAX, FramedStream
from .greeting import greet
from .lending import Lender
from .lent_replies import RETURN_S, ReplyBorrower
from .reply_payloads import ReplyPayloads

log = logging.getLogger(__name__)

_BROKEN: Final = (trio.BrokenResourceError, trio.ClosedResourceError)


class Connection:
    """Carries calls over one stream."""

    def __init__(
        self, stream: Stream, limits: RpcSection, identity: Identity, address: str
    ) -> None:
        self.peer = Identity("")
        """What the peer said of itself; set by `shake_hands`."""
        self.key_id = b""
        """Of the secret that both sides proved; empty: none."""
        self.is_closed = False
        self.received_count = 0
        """Of receipts so far, each of one reply or several."""
        self._stream = stream
        self._limits = FrameLimits(limits.message_bytes_max, limits.payload_bytes_max)
        self._identity = identity
        self._address = address
        self._framed = FramedStream(stream, self._limits, self._spawn)
        self._framed.on_cut = self._end_at_once
        self._lender = Lender(stream.peer_memory, limits.lend_bytes_min)
        self._borrower = ReplyBorrower(stream.peer_memory, limits.lend_bytes_min)
        self._payloads = ReplyPayloads(self._framed, self._borrower)
        self._calls: dict[int, CallUnderWay | BegunCall] = {}
        self._next_look_s = math.inf
        self._next_look = trio.CancelScope()
        self._last_id = 0
        self._nursery: trio.Nursery | None = None
        self._is_retired = False

    @property
    def is_usable(self) -> bool:
        """Whether new calls may use it."""
        return not (self.is_closed or self._is_retired)

    @property
    def in_flight_count(self) -> int:
        """Calls that wait for a reply."""
        return len(self._calls)

    async def shake_hands(
        self, expected_node_id: int, secrets: Sequence[Secret], nonce: bytes
    ) -> None:
        """Exchange hellos, and proofs if we hold secrets, before anything else;
        raises as `greet`.
        """
        framed = self._framed
        own = self._lender, self._borrower
        greeted = await greet(framed, self._identity, expected_node_id, secrets, nonce, *own)
        self.peer, self.key_id = greeted
        framed.serve_whole = self._hand_out_whole

    async def run(self) -> None:
        """Receive replies until the connection ends; closes it.

        Raises nothing but trio.Cancelled.
        """
        reason = "closed"
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                nursery.start_soon(self._end_late_calls)
                try:
                    reason = await self._receive_replies()
                finally:
                    self._nursery = None  # it takes no more tasks
                nursery.cancel_scope.cancel()
        except Exception as error:
            reason = repr(error)
            if lack_among(error) is None:
                log.exception("bug in the connection to %s, which ends", self._address)
        finally:
            await self.aclose(reason)

    async def aclose(self, reason: str = "closed") -> None:
        """Close the stream; every call in flight fails with RPC_CONNECTION_LOST."""
        if self.is_closed:
            return
        self.is_closed = True
        if self._calls:
            log.info("connection to %s lost: %s", self._address, reason)
        calls = list(self._calls.values())
        self._calls.clear()
        for call in calls:
            call.fail(FsError(Status.RPC_CONNECTION_LOST, f"{self._address}: {reason}"))
        await self._framed.aclose()
        if self._nursery is not None:
            self._nursery.cancel_scope.cancel()

    def retire(self) -> None:
        """Take no more calls; close once those in flight have ended."""
        self._is_retired = True
        self._close_if_idle()

    # ---- calls -------------------------------------------------------------------------------

    async def call(
        self,
        method: Method[ReqT, RspT],
        request: ReqT | bytes,
        payload: Sequence[Buffer],
        into: Into | None,
        call: CallUnderWay,
        *,
        may_be_lent: int = Lending.NOT,
    ) -> Received[RspT]:
        """Send one request and wait for its reply.

        Raises:
            FsError: as `Channel.call`.
            TimeUpError: at the deadline of `call`.
        """
        message = request if isinstance(request, bytes) else request.SerializeToString()
        timeout_s = call.deadline_s - current_time()
        request_id, frame = self._encode_request(
            method,
            message,
            payload,
            timeout_s,
            may_lend=bool(payload),
            flags=self._borrower.flags(may_be_lent) if may_be_lent else 0,
        )
        self._calls[request_id] = call
        if into is not None:
            call.fill = partial(self._payloads.fill, method, call, into)
        if call.deadline_s < self._next_look_s:
            self._look_at(call.deadline_s)
        try:
            await trio.lowlevel.checkpoint_if_cancelled()
            if not self._borrower.send_along(self._framed, frame, len(self._calls)):
                await call.within(self._framed.send(frame))
            await call.wait()
            if call.header is not None and call.header.status == Status.RPC_NOT_LENT:
                self._lender.stop()
            return await self._payloads.take(method, call, into)
        except _BROKEN as error:
            raise FsError(
                Status.RPC_CONNECTION_LOST, f"{method} to {self._address}: {error}"
            ) from error
        finally:
            if call.payload_taken is not None:
                call.payload_taken.set()
            # So that buffers go when their owner is done with them.
            call.fill, call.buffers = None, ()
            if self._lender.under_way:
                self._lender.end(request_id)
            if call.header is not None and call.header.flags & FLAG_LENT:
                self._borrower.reading_count -= 1
                self._owe(request_id)
            if self._calls.pop(request_id, None) is not None:
                self._spawn(self._send_cancel, request_id)
            if self._is_retired:
                self._close_if_idle()

    def begin(
        self,
        method: Method[ReqT, RspT],
        request: ReqT | bytes,
        call: BegunCall,
        timeout_s: float,
        payload: Sequence[Buffer] = (),
    ) -> bool:
        """Send one small request if nothing has to be waited for;
        False: nothing is done, also where it takes no more calls.

        Args:
            method: its replies have no more payload than `call` says.
            request: of it, or the message that it is on the wire.
            call: learns of the end; `reply_to` makes something of it.
            timeout_s: from now until its deadline.
            payload: that goes with it; not used any more when this returns.

        Raises:
            FsError: RPC_TOO_LARGE, RPC_BAD_VERSION: it cannot be sent.
        """
        if self.is_closed or self._is_retired:
            return False
        message = request if isinstance(request, bytes) else request.SerializeToString()
        request_id, frame = self._encode_request(
            method, message, payload, timeout_s, may_lend=False
        )
        if call.payload_bytes_max > SMALL_PAYLOAD_BYTES_MAX:
            self._framed.make_room(call.payload_bytes_max)
        call.forget = partial(self._forget, request_id)
        self._calls[request_id] = call
        is_sent = False
        try:
            is_sent = self._borrower.send_along(self._framed, frame, len(self._calls))
        except _BROKEN:
            return False
        finally:
            # also after an error: whoever was not told that it is begun does not hear of its end
            if not is_sent:
                del self._calls[request_id]
        if not is_sent:
            return False
        if call.deadline_s < self._next_look_s:
            self._look_at(call.deadline_s)
        return True

    def _forget(self, request_id: int) -> None:
        """A begun call ends before its reply has come."""
        if self._calls.pop(request_id, None) is not None:
            self._spawn(self._send_cancel, request_id)
        if self._is_retired:
            self._close_if_idle()

    def _encode_request(
        self,
        method: Method[ReqT, RspT],
        message: bytes,
        payload: Sequence[Buffer],
        timeout_s: float,
        *,
        may_lend: bool,
        flags: int = 0,
    ) -> tuple[int, list[Buffer]]:
        payload_bytes = sum(map(len, payload)) if payload else 0
        limits = self._limits
        if len(message) > limits.message_bytes_max or payload_bytes > limits.payload_bytes_max:
            raise FsError(
                Status.RPC_TOO_LARGE,
                f"{method}: {len(message)} message bytes and {payload_bytes} payload bytes; at most"
                f" {limits.message_bytes_max} and {limits.payload_bytes_max} are allowed",
            )
        assert method.has_request_payload or not payload_bytes, f"{method} takes no payload"
        if self._framed.version < method.version_min:
            raise FsError(
                Status.RPC_BAD_VERSION,
                f"{method} as this release asks it is known since protocol version "
                f"{method.version_min}; {self._address} (release {self.peer.release or 'unknown'}) "
                f"and this side have {self._framed.version} in common: upgrade it before its "
                "callers",
            )
        request_id = self._last_id = self._last_id + 1
        if tracing.live.count and self._framed.version >= FLAGS_VERSION_MIN:
            span = tracing.current()
            if span is not None:
                flags, message = flags | FLAG_TRACED, span.wire + message
        lent = self._lender.lent(method, payload, payload_bytes) if may_lend else b""
        if lent and len(lent) + len(message) <= limits.message_bytes_max:
            flags, message, payload = flags | FLAG_LENT, lent + message, ()
            self._lender.under_way[request_id] = lent
        asked = method.service_number, method.number, 0
        timeout_ms = min(TIMEOUT_MS_MAX, max(1, int(timeout_s * 1000)))
        sizes = timeout_ms, len(message), payload_bytes
        header = make_header(self._framed.version, Kind.REQUEST, flags, request_id, *asked, *sizes)
        return request_id, [header, message, *payload]

    def _owe(self, request_id: int) -> None:
        """A lent reply is to be returned: with the next request, or soon."""
        owed = self._borrower.owed
        if not owed:
            look_s = current_time() + RETURN_S
            if look_s < self._next_look_s:
                self._look_at(look_s)
        owed.append(request_id)

    # ---- the receiving task ------------------------------------------------------------------

    async def _receive_replies(self) -> str:
        """Hand out replies until the stream ends; return why it ended."""
        framed = self._framed
        try:
            while (header := await framed.receive_header()) is not None:
                self.received_count += 1
                if header.kind == Kind.REPLY:
                    await self._hand_out(header)
                elif header.kind == Kind.LEND:
                    await framed.receive_message(header.message_bytes)
                    self._lender.begin()
                elif header.kind == Kind.GOODBYE:
                    message = await framed.receive_message(header.message_bytes)
                    return f"the peer said goodbye: {decode_error(header.status, message)}"
                else:
                    return f"the peer sent a frame of kind {header.kind}"
        except FsError as error:
            return str(error)
        except _BROKEN as error:
            return str(error)
        return "the peer closed the connection"

    def _hand_out_whole(self) -> None:
        """Give small replies that have come entirely to their calls;
        see `FramedStream.serve_whole`.
        """
        framed, calls = self._framed, self._calls
        is_first = True
        while (found := framed.take_whole()) is not None:
            header, message = found
            is_lent = header.flags & FLAG_LENT
            size = header.payload_bytes
            is_large = size > SMALL_PAYLOAD_BYTES_MAX and not is_lent
            if header.kind != Kind.REPLY or (
                is_large and not self._is_for_begun(header.request_id, size)
            ):
                framed.put_back(header)
                return
            self.received_count += is_first
            is_first = False
            if is_lent:
                self._borrower.check(header)
            call = calls.pop(header.request_id, None)
            if is_lent:
                self._hand_out_lent(call, header, message)
                call = None
            elif size:
                payload = framed.take_payload_now() if is_large else framed.take_small_payload()
                if call is not None:
                    call.payload = payload
            if call is not None:
                call.replied(header, message)
                if self._is_retired:
                    self._close_if_idle()
            if not framed.has_more:
                return
        begun = framed.begun_frame()
        if begun is not None and self._is_for_begun(begun.request_id, begun.payload_bytes):
            framed.awaits_whole = True

    def _is_for_begun(self, request_id: int, payload_bytes: int) -> bool:
        """Return whether a reply with so much payload, which is not lent,
        is to a call that nobody waits for, and wants that much.
        """
        call = self._calls.get(request_id)
        return isinstance(call, BegunCall) and payload_bytes <= call.payload_bytes_max

    async def _hand_out(self, header: Header) -> None:
        """Give one reply to its call, or drop it."""
        framed = self._framed
        message = await framed.receive_message(header.message_bytes)
        call = self._calls.get(header.request_id)
        if header.flags & FLAG_LENT:
            self._borrower.check(header)
            self._calls.pop(header.request_id, None)
            self._hand_out_lent(call, header, message)
        elif isinstance(call, BegunCall):
            await self._end_begun(call, header, message)
        elif call is not None:
            if header.payload_bytes:
                call.payload = framed.take_small_payload()
                if call.payload is None and call.fill is not None and not header.status:
                    call.fill(header, message)
                if framed.payload_left:
                    call.payload_taken = trio.Event()
            del self._calls[header.request_id]
            call.replied(header, message)
            if call.payload_taken is not None:
                await call.payload_taken.wait()
        await framed.drain_payload()

    def _hand_out_lent(
        self, call: CallUnderWay | BegunCall | None, header: Header, message: Buffer
    ) -> None:
        """Give a lent reply to its call, which reads the payload, or return it."""
        if isinstance(call, CallUnderWay):
            self._borrower.reading_count += 1
            call.replied(header, message)
            return
        self._owe(header.request_id)
        if call is not None:
            detail = f"{self._address}: a lent reply where few bytes were asked for"
            call.fail(FsError(Status.RPC_BAD_FRAME, detail))

    async def _end_begun(self, call: BegunCall, header: Header, message: Buffer) -> None:
        """Give a reply to a call that nobody waits for, unless it ends while the payload comes."""
        framed, size = self._framed, header.payload_bytes
        if size > call.payload_bytes_max:
            detail = f"{self._address}: {size} bytes of payload where few were asked for"
            call.fail(FsError(Status.RPC_BAD_FRAME, detail))
            return
        if size:
            payload = framed.take_small_payload()
            if payload is None:
                payload = memoryview(bytearray(size))
                await framed.receive_payload([payload])
            call.payload = payload
        if self._calls.pop(header.request_id, None) is not None:
            call.replied(header, message)
            if self._is_retired:
                self._close_if_idle()

    # ---- time limits -------------------------------------------------------------------------

    def _look_at(self, time_s: float) -> None:
        """Have `_end_late_calls` look then, which is before it would."""
        self._next_look_s = self._next_look.deadline = time_s

    async def _end_late_calls(self) -> None:
        """End calls whose time is up, until cancelled."""
        while True:
            with trio.CancelScope(deadline=self._next_look_s) as self._next_look:
                await trio.sleep_forever()
            now_s = current_time()
            for call in list(self._calls.values()):
                call.look_at_time(now_s)
            if not self._borrower.return_owed(self._framed):
                self._spawn(self._borrower.return_in_turn, self._framed)
            later = (c.deadline_s for c in self._calls.values() if c.deadline_s > now_s)
            again_s = now_s + RETURN_S if self._borrower.owed else math.inf
            self._next_look_s = min(again_s, min(later, default=math.inf))

    # ---- small things ------------------------------------------------------------------------

    def _spawn(self, function: object, *args: object) -> None:
        """Start a task of this connection; nothing happens when it has ended."""
        if self._nursery is not None and not self.is_closed:
            self._nursery.start_soon(function, *args)  # type: ignore[arg-type]

    def _end_at_once(self) -> None:
        """End the connection, outside of any task, too."""
        if self._nursery is not None:
            self._nursery.cancel_scope.cancel()

    async def _send_cancel(self, request_id: int) -> None:
        try:
            frame = encode_header(Kind.CANCEL, request_id, version=self._framed.version)
            await self._framed.send_behind(frame)
        except _BROKEN as error:
            log.debug("cancel to %s not sent: %s", self._address, error)

    def _close_if_idle(self) -> None:
        if not self._calls and not self._borrower.reading_count:
            self._spawn(self._close_retired)

    async def _close_retired(self) -> None:
        await self.aclose("replaced by a newer connection")
