"""What a server sends over one connection: replies, refusals, and a goodbye.

Part of fs/rpc/server_connection.py, which says when.
"""

import logging
from collections.abc import Mapping, Sequence
from typing import Any, Final

import trio
from google.protobuf.message import Message

from ..kernels.frames import make_header
from ..runtime.ports import Buffer
from ..schema.status import FsError, Status
from .api import Reply
from .frame import FLAG_DIRECT, FLAG_LENT, FLAG_RANGES, FrameLimits, Header, Kind, encode_error
from .frame_sender import Spawn
from .framed_stream import FramedStream
from .lent_replies import ReplyLender
from .serving import Work

log = logging.getLogger(__name__)

GOODBYE_TIMEOUT_S: Final = 1.0
LINGER_S_MAX: Final = 0.2
LINGER_BUFFER_BYTES: Final = 64 * 1024

REFUSALS_UNSENT_MAX: Final = 64
"""With more, a connection receives nothing before its peer has read them."""

BROKEN: Final = (trio.BrokenResourceError, trio.ClosedResourceError)
"""What a stream raises that is no more."""


class Replies:
    """See module head."""

    def __init__(
        self,
        framed: FramedStream,
        limits: FrameLimits,
        spawn: Spawn,
        under_way: Mapping[int, object],
        lender: ReplyLender,
    ) -> None:
        """Send on `framed`; `spawn` starts tasks that live as long as the connection,
        whose requests that wait are `under_way`; what may be lent `lender` lends.
        """
        self._framed = framed
        self._limits = limits
        self._spawn = spawn
        self._under_way = under_way
        self._lender = lender
        self._refusal_count = 0
        """Under way."""

    async def say_goodbye(self, error: FsError) -> None:
        """Say why the connection ends, and give the peer a moment to hear it."""
        with trio.move_on_after(GOODBYE_TIMEOUT_S):
            try:
                version = self._framed.version
                await self._framed.send(encode_error(Kind.GOODBYE, 0, error, version=version))
                await self._linger()
            except BROKEN:
                log.debug("connection from %s broke before goodbye", self._framed.stream.peer_name)

    async def _linger(self) -> None:
        """Drop what the peer still sends: closing with bytes unread would reset
        the goodbye away.
        """
        scratch = memoryview(bytearray(LINGER_BUFFER_BYTES))
        with trio.move_on_after(LINGER_S_MAX):
            while await self._framed.stream.receive_into(scratch):
                pass

    def takes_ranges(self, header: Header, size: int, count: int, message_bytes: int) -> bool:
        """See `ReplyLender.takes_ranges`."""
        return self._lender.takes_ranges(header, size, count, message_bytes)

    def fits(self, message_bytes: int, size: int) -> bool:
        """Tell whether a frame of so many bytes behind its header, its message included,
        is within the limits.
        """
        limits = self._limits
        if message_bytes > limits.message_bytes_max:
            return False
        return size - message_bytes <= limits.payload_bytes_max

    async def refuse(self, request_id: int, error: FsError) -> None:
        """Answer a request that is not run; wait with it only for a peer that does not read."""
        if self._refusal_count >= REFUSALS_UNSENT_MAX:
            await self.send_error(request_id, error)
        else:
            self._refusal_count += 1
            self._spawn(self._send_refusal, request_id, error)

    async def _send_refusal(self, request_id: int, error: FsError) -> None:
        await self.send_error(request_id, error)
        self._refusal_count -= 1

    async def send_error(self, request_id: int, error: FsError) -> None:
        """Answer a request with an error; nobody is told of a connection that has broken."""
        try:
            version = self._framed.version
            await self._framed.send(encode_error(Kind.REPLY, request_id, error, version=version))
        except BROKEN:
            log.debug("connection from %s broke before a reply", self._framed.stream.peer_name)

    async def send(self, work: Work, reply: Message | Reply[Any]) -> None:
        """Send a reply, or the error that it is too large; say in `work` how many bytes it has."""
        request_id = work.header.request_id
        if isinstance(reply, Reply):
            frame, size = self.frame_for(work, reply)
        else:
            frame, size = self.frame_of(request_id, reply, ())
        message_bytes = len(frame[1])
        if not self.fits(message_bytes, size):
            detail = (
                f"reply of {work.binding.method}: {message_bytes} + {size - message_bytes} bytes"
            )
            await self.send_error(request_id, FsError(Status.RPC_TOO_LARGE, detail))
            return
        framed = self._framed
        if not (framed.hold(frame) or framed.send_at_once(frame, call_count=len(self._under_way))):
            await framed.send(frame)
        work.sent_bytes = size + work.lent_bytes

    def tell(self, work: Work, reply: Message) -> bool:
        """See `Call.tell`."""
        frame, size = self.frame_of(work.header.request_id, reply, ())
        try:
            if work.is_told or not self._framed.send_at_once(
                frame, call_count=len(self._under_way)
            ):
                return False
        except BROKEN as error:
            log.debug("%s: connection broke before the reply: %s", work, error)
            return False
        work.is_told, work.sent_bytes = True, size
        return True

    def frame_for(self, work: Work, reply: Reply[Any]) -> tuple[list[Buffer], int]:
        """Do as `frame_of`, and lend the payload if that may be: then it is not in the frame."""
        if not work.lent_bytes:
            work.lent_bytes = self._lender.lend(work.header, reply)
        if not work.lent_bytes:
            return self.frame_of(work.header.request_id, reply.message, reply.payload)
        message = reply.message
        assert isinstance(message, bytes)
        request_id, sizes = work.header.request_id, (len(message), work.lent_bytes)
        version = self._framed.version
        flags = FLAG_LENT | FLAG_RANGES if reply.ranges else FLAG_LENT
        if reply.is_direct:
            flags |= FLAG_DIRECT
        header = make_header(version, Kind.REPLY, flags, request_id, 0, 0, 0, 0, *sizes)
        return [header, message], len(message)

    def frame_of(
        self, request_id: int, reply: Message | bytes, payload: Sequence[Buffer]
    ) -> tuple[list[Buffer], int]:
        """Return the frame of a reply, and the bytes behind its header."""
        message = reply if isinstance(reply, bytes) else reply.SerializeToString()
        payload_bytes = sum(map(len, payload))
        sizes = len(message), payload_bytes
        header = make_header(self._framed.version, Kind.REPLY, 0, request_id, 0, 0, 0, 0, *sizes)
        return [header, message, *payload], len(message) + payload_bytes
