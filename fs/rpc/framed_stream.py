"""Frames over one stream: buffered receiving, beside the uncut sending of `FrameSender`.

The shell around fs/rpc/frame.py.

Receiving: small things (headers, messages) come out of one receive buffer, so that several
frames cost one system call; payloads go straight into the buffers they are meant for, but for
what the receive buffer already holds.

Invariant: `payload_left` says at any checkpoint how much of the current payload has not been
received, so whoever comes after a cancelled receiver can drain exactly the rest.

Small replies are held while the receive buffer has more requests, and go in one system call before
more is received.  But where a reply took longer to make than HELD_S_MAX the next one may, too, and
whoever waits for this one would be idle meanwhile: then all go at once.

Concurrency: many tasks may send, in the order they came; one task at a time may receive.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Final

import trio

from ..kernels.frames import take_header
from ..kernels.frames_twin import HEADER_BYTES
from ..runtime.ports import Buffer, Stream
from ..runtime.readiness import current_time
from .buffers import skip_bytes
from .frame import FLAG_LENT, HELLO_VERSION, KIND_MAX, FrameLimits, Header, header_at, new_header
from .frame_sender import POST_BYTES_MAX, FrameSender, Spawn

log = logging.getLogger(__name__)

RECEIVE_BUFFER_BYTES: Final = 16 * 1024
DRAIN_BUFFER_BYTES: Final = 256 * 1024
MESSAGE_ROOM_BYTES: Final = 4 * 1024
"""For the message before a payload that is to come into the receive buffer."""

MESSAGE_STEP_BYTES: Final = 64 * 1024
"""Memory for a longer message is taken as its bytes come: a header alone claims nothing."""

SMALL_PAYLOAD_BYTES_MAX: Final = 4 * 1024
"""Copying these once more is cheaper than waiting for who wants them."""

HELD_S_MAX: Final = 0.00005
"""Several times what a system call costs and being woken by it:
what takes longer to answer is worth one of its own.
"""


class FramedStream(FrameSender):
    """One connection's stream, frame by frame."""

    def __init__(self, stream: Stream, limits: FrameLimits, spawn: Spawn) -> None:
        """Wrap `stream`; `spawn` starts tasks that live as long as the connection."""
        super().__init__(stream, spawn)
        self.version = HELLO_VERSION
        """Set once the handshake has agreed on one."""
        self.payload_left = 0
        self._limits = limits
        self._view = memoryview(bytearray(RECEIVE_BUFFER_BYTES))
        self._start = 0
        self._end = 0
        self._frame_bytes_max = RECEIVE_BUFFER_BYTES
        """What the receive buffer is to hold from when it is empty next."""
        self._header: Header | None = None
        """Decoded, not taken: that of the frame that begins at `_start`."""
        self._is_receiving = False
        """Waiting for bytes of a frame that has begun."""
        self._held: list[Buffer] = []
        self._made_s = 0.0
        """When the last reply was made, or bytes came; trio time."""
        self._may_hold = True
        """Whoever receives sends what is held before it waits; False while it waits."""
        self.has_more = False
        """Behind the frame that `take_whole` has returned something has been received."""
        self.awaits_whole = False
        """Set by `serve_whole`: what has come is the begin of a frame
        that the receive buffer can hold, and it is to be called when all has.
        """
        self.serve_whole: Callable[[], None] | None = None
        """Called when bytes have come while `receive_header` waits, maybe outside of any
        task: takes whole frames (`take_whole`, `take_small_payload`) for as long as it can
        do what they ask for without waiting.  What it leaves or puts back, and what it
        raises, is for `receive_header`.
        """

    @property
    def is_inside_frame(self) -> bool:
        """Whether a frame has begun, in either direction, and waits for the peer."""
        return self._is_receiving or self._is_sending

    # ---- receiving ---------------------------------------------------------------------------

    async def receive_header(self) -> Header | None:
        """Receive the next header; None when the stream ended between two frames.

        Raises:
            FsError: RPC_BAD_FRAME, RPC_BAD_VERSION, RPC_TOO_LARGE: the stream is unusable.
            trio.BrokenResourceError: the stream broke or ended inside a frame.
        """
        while (header := self._next_header()) is None:
            if not await self._fill():
                if self._start == self._end:
                    return None
                raise trio.BrokenResourceError("the stream ended inside a header")
        self._header = None
        self._start += HEADER_BYTES
        self.payload_left = 0 if header.flags & FLAG_LENT else header.payload_bytes
        return header

    def _next_header(self) -> Header | None:
        """Return the next header if it has been received; nothing is taken by that."""
        start = self._start
        if self._header is None and self._end - start >= HEADER_BYTES:
            self._header = header_at(self._view, start, self._limits, self.version)
        return self._header

    def take_whole(self) -> tuple[Header, bytes] | None:
        """Take header and message of the next frame if all of it has been received;
        its payload is left to be taken.

        Raises:
            FsError: as `receive_header`; nothing is taken.
        """
        start = self._start + HEADER_BYTES
        left = self._end - start
        if left < 0:
            return None
        header = self._header
        if header is None:  # as `header_at`, without a call
            bounds = self._limits.message_bytes_max, self._limits.payload_bytes_max
            fields = take_header(self._view, self._start, self.version, KIND_MAX, *bounds)
            if fields is None:
                header = header_at(self._view, self._start, self._limits, self.version)
            else:
                header = new_header(Header, fields)
        payload_bytes = 0 if header.flags & FLAG_LENT else header.payload_bytes
        left -= header.message_bytes + payload_bytes
        if left < 0:
            self._header = header
            return None
        self._header = None
        self.payload_left = payload_bytes
        self.has_more = left > 0
        self._start = end = start + header.message_bytes
        return header, bytes(self._view[start:end])

    def put_back(self, header: Header) -> None:
        """Undo `take_whole`, before anything else is done:
        `receive_header` is to have that frame.
        """
        self._start -= HEADER_BYTES + header.message_bytes
        self._header = header
        self.payload_left = 0

    def give_payload_back(self, size: int) -> None:
        """Undo `take_small_payload`, before anything else is done."""
        self._start -= size
        self.payload_left = size

    async def receive_message(self, size: int) -> Buffer:
        """Receive the `size` bytes of the current frame's message; the caller owns the result."""
        start = self._start
        if self._end - start >= size:
            self._start = start + size
            return bytes(self._view[start : start + size])
        message = bytearray(min(size, MESSAGE_STEP_BYTES))
        done = self._take_buffered(memoryview(message))
        while done < size:
            if done == len(message):
                message.extend(bytes(min(size - done, done)))
            with memoryview(message) as view, view[done:] as rest:
                done += await self._receive_scatter([rest])
        return message

    async def receive_payload(self, buffers: Sequence[memoryview]) -> None:
        """Receive the rest of the current payload;
        `buffers` must hold exactly `payload_left` bytes.

        Cancelled, it touches the buffers no more, and `payload_left` is exact.
        """
        rest: Sequence[memoryview] = buffers
        if self._start < self._end and self.payload_left:
            rest = self._take_first(buffers)
        while self.payload_left:
            count = await self._receive_scatter(rest)
            self.payload_left -= count
            if self.payload_left:
                rest = skip_bytes(rest, count)  # type: ignore[assignment]

    def receive_payload_now(self, buffers: Sequence[memoryview]) -> Sequence[memoryview]:
        """Receive as much of the current payload as has come;
        return what `receive_payload` is to fill.
        """
        rest: Sequence[memoryview] = buffers
        if self._start < self._end:
            rest = self._take_first(buffers)
        if self._held:
            return rest
        while self.payload_left:
            count = self.stream.receive_now(rest)
            if not count:
                break
            self.payload_left -= count
            self.progress += 1
            rest = skip_bytes(rest, count) if self.payload_left else ()  # type: ignore[assignment]
        return rest

    def _take_first(self, buffers: Sequence[memoryview]) -> list[memoryview]:
        """Move what the receive buffer holds of the payload;
        return the buffers that are left to be filled.
        """
        for number, buffer in enumerate(buffers):
            count = self._take_buffered(buffer)
            self.payload_left -= count
            if count < len(buffer):
                return [buffer[count:], *buffers[number + 1 :]]
        return []

    def make_room(self, payload_bytes: int) -> None:
        """Have frames with so much payload come into the receive buffer,
        which grows when it is empty next, and never becomes smaller.
        """
        needed = HEADER_BYTES + MESSAGE_ROOM_BYTES + payload_bytes
        self._frame_bytes_max = max(self._frame_bytes_max, needed)

    def begun_frame(self) -> Header | None:
        """Return the header of the next frame, if a part of that has come
        and the receive buffer has room for the rest.
        """
        header = self._next_header()
        if header is None or header.flags & FLAG_LENT:
            return None
        size = HEADER_BYTES + header.message_bytes + header.payload_bytes
        return header if self._start + size <= len(self._view) else None

    def take_payload_now(self) -> memoryview:
        """Return the current payload, all of which has been received: valid until more is."""
        start, self._start = self._start, self._start + self.payload_left
        self.payload_left = 0
        return self._view[start : self._start]

    def take_small_payload(self) -> memoryview | None:
        """Return a copy of the current payload if it is small
        and has been received already; else None.
        """
        start, size = self._start, self.payload_left
        if size > SMALL_PAYLOAD_BYTES_MAX or self._end - start < size:
            return None
        self._start, self.payload_left = start + size, 0
        return memoryview(bytearray(self._view[start : start + size]))

    async def drain_payload(self) -> None:
        """Receive and drop the rest of the current payload."""
        if not self.payload_left:
            return
        buffered = min(self.payload_left, self._end - self._start)
        self._start += buffered
        self.payload_left -= buffered
        if self.payload_left:
            scratch = memoryview(bytearray(min(DRAIN_BUFFER_BYTES, self.payload_left)))
            while self.payload_left:
                self.payload_left -= await self._receive_scatter([scratch[: self.payload_left]])

    def _take_buffered(self, target: memoryview) -> int:
        """Move what the receive buffer holds to `target`, as far as it fits; return how much."""
        count = min(len(target), self._end - self._start)
        target[:count] = self._view[self._start : self._start + count]
        self._start += count
        return count

    async def _fill(self) -> int:
        """Receive more into the receive buffer; 0 at end of stream."""
        self._may_hold = False
        if self._held:
            await self.stop_holding()
        if self._start == self._end:
            self._empty_buffer()
        elif len(self._view) - self._start < HEADER_BYTES:
            kept = self._end - self._start
            self._view[:kept] = bytes(self._view[self._start : self._end])
            self._start, self._end = 0, kept
        if self.serve_whole is None:
            count = await self.stream.receive_into(self._view[self._end :])
            self._end += count
        else:
            count = await self.stream.receive_into(self._view[self._end :], self._note_bytes)
        self._may_hold = True
        return count

    def _note_bytes(self, count: int) -> memoryview | None:
        """Have whole frames served that have come;
        return where the next bytes go if that was all.
        """
        self._end += count
        self._made_s = current_time()
        self._may_hold = True
        assert self.serve_whole is not None
        self.awaits_whole = False
        self.serve_whole()
        awaits_whole = self.awaits_whole
        if (self._start < self._end and not awaits_whole) or (self._held and not self._send_held()):
            return None
        self._may_hold = False
        if awaits_whole:
            return self._view[self._end :]
        self._empty_buffer()
        return self._view

    def _empty_buffer(self) -> None:
        self._start = self._end = 0
        if len(self._view) < self._frame_bytes_max:
            self._view = memoryview(bytearray(self._frame_bytes_max))

    async def _receive_scatter(self, buffers: Sequence[memoryview]) -> int:
        self._may_hold = False
        if self._held:
            await self.stop_holding()
        self._is_receiving = True
        if len(buffers) == 1:
            count = await self.stream.receive_into(buffers[0])
        else:
            count = await self.stream.receive_scatter(buffers)
        if not count:
            raise trio.BrokenResourceError("the stream ended inside a frame")
        self._is_receiving = False
        self._may_hold = True
        self.progress += 1
        return count

    # ---- held replies ------------------------------------------------------------------------

    def hold(self, buffers: Sequence[Buffer]) -> bool:
        """Take over one small frame, if another one is there to be received
        before this stream waits; else return False.

        It is sent before anything more is received: by whoever receives; or
        now, if it took long to make.
        """
        if not self._may_hold or self._start == self._end or self._is_closed:
            return False
        if sum(map(len, buffers)) > POST_BYTES_MAX:
            return False
        before_s, self._made_s = self._made_s, current_time()
        took_long = self._made_s - before_s > HELD_S_MAX
        if took_long and not self._held:
            return False
        self._held.append(b"".join(buffers))
        if took_long:
            try:
                self._send_held()
            except Exception as error:  # noqa: BLE001 - who has handed it over would answer once more
                log.debug("replies stay held for whoever receives: %r", error)
        return True

    async def stop_holding(self) -> None:
        """Send what is held, and hold nothing before more is received.

        For whoever receives, before it waits; cancelled, it may have lost what was held.
        """
        self._may_hold = False
        if self._held:
            frames, self._held = b"".join(self._held), []
            await self.send([frames])

    def _send_held(self) -> bool:
        """Send what is held if nothing has to be waited for."""
        if self._is_sending or self._is_closed:
            return False
        frames = b"".join(self._held)
        count = self.stream.send_now([frames])
        if count:
            self._held.clear()
            self.progress += 1
            if count < len(frames):
                self._finish_later((frames,), count)
        return bool(count)
