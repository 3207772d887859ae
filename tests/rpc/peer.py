"""A peer that speaks frames by hand: nothing checks what it sends, everything it gets is read.

It belongs to attacks and to measurements; honest callers use fs/rpc/channel.py.
"""

from collections.abc import Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import trio

from fs.rpc.api import Identity
from fs.rpc.frame import (
    FLAG_TRACED,
    HEADER_BYTES,
    VERSION_MAX,
    FrameLimits,
    Kind,
    decode_header,
    encode_header,
)
from fs.rpc.handshake import encode_hello
from fs.schema import services
from fs.schema.method import Method
from fs.schema.proto import core_pb2
from fs.schema.status import Status

LIMITS = FrameLimits(1 << 30, 1 << 40)
RECEIVE_BYTES = 256 * 1024
SILENCE_S_MAX = 30.0
"""An answer, or the end of a stream that was broken, comes within this time or counts as never."""


class SilenceError(Exception):
    """The other side neither answered nor closed in time."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One frame that came back; its payload is dropped."""

    kind: int
    request_id: int
    status: int
    message: bytes


@dataclass(slots=True)
class Peer:
    """One connection."""

    stream: trio.abc.HalfCloseableStream
    _buffer: bytearray = field(default_factory=bytearray)

    async def answer(self) -> Answer | None:
        """Return the next frame, None at the end of the stream."""
        if not await self._have(HEADER_BYTES):
            return None
        header = decode_header(bytes(self._buffer[:HEADER_BYTES]), LIMITS, self._buffer[4])
        size = HEADER_BYTES + header.message_bytes + header.payload_bytes
        if not await self._have(size):
            return None
        message = bytes(self._buffer[HEADER_BYTES : HEADER_BYTES + header.message_bytes])
        del self._buffer[:size]
        return Answer(header.kind, header.request_id, header.status, message)

    async def _have(self, count: int) -> bool:
        while len(self._buffer) < count:
            try:
                piece = await self.stream.receive_some(RECEIVE_BYTES)
            except trio.BrokenResourceError:
                return False
            if not piece:
                return False
            self._buffer += piece
        return True

    async def exchange(self, data: bytes, wanted: Collection[int]) -> list[Answer]:
        """Send bytes, and return what comes until every wanted request is answered
        or the stream ends.

        Raises:
            SilenceError: neither happened.
        """
        missing = set(wanted)
        answers = []
        with trio.move_on_after(SILENCE_S_MAX) as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._send, data)
                while missing and (answer := await self.answer()) is not None:
                    answers.append(answer)
                    missing.discard(answer.request_id)
                nursery.cancel_scope.cancel()
        if scope.cancelled_caught:
            raise SilenceError(f"{len(missing)} of {len(wanted)} requests not answered")
        return answers

    async def pour(self, data: bytes) -> list[Answer]:
        """Send bytes and nothing more; return what comes until the other side closes.

        Raises:
            SilenceError: it does not.
        """
        answers = []
        with trio.move_on_after(SILENCE_S_MAX) as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._send_last, data)
                while (answer := await self.answer()) is not None:
                    answers.append(answer)
                nursery.cancel_scope.cancel()
        if scope.cancelled_caught:
            raise SilenceError("a broken stream is kept open")
        return answers

    async def _send(self, data: bytes) -> None:
        try:
            await self.stream.send_all(data)
        except trio.BrokenResourceError:
            return  # it closed: the receiving side sees that, too

    async def _send_last(self, data: bytes) -> None:
        try:
            await self.stream.send_all(data)
            await self.stream.send_eof()
        except (trio.BrokenResourceError, OSError):
            return


@asynccontextmanager
async def connected(address: str):
    """A connection to `unix:/PATH` or `tcp:HOST:PORT`, before the handshake."""
    kind, _, place = address.partition(":")
    if kind == "unix":
        stream = await trio.open_unix_socket(place)
    else:
        host, _, port = place.rpartition(":")
        stream = await trio.open_tcp_stream(host, int(port))
    async with stream:
        yield Peer(stream)


@asynccontextmanager
async def greeted(address: str, cluster_id: str):
    """A connection after the handshake."""
    async with connected(address) as peer:
        hello = b"".join(encode_hello(Identity(cluster_id, client_id="fuzz")))
        (answer,) = await peer.exchange(hello, {0})
        assert answer.kind == Kind.HELLO, answer
        yield peer


def request_frame(
    method: Method,
    request_id: int,
    message: bytes,
    *,
    timeout_ms: int = 0,
    payload: bytes = b"",
    trace: bytes = b"",
    version: int = VERSION_MAX,
) -> bytes:
    """Return a request whose header is good, whatever the message is;
    with a `trace`, one that says it is traced.
    """
    message = trace + message
    header = encode_header(
        Kind.REQUEST,
        request_id,
        service=method.service_number,
        method=method.number,
        timeout_ms=timeout_ms,
        message_bytes=len(message),
        payload_bytes=len(payload),
        flags=FLAG_TRACED if trace else 0,
        version=version,
    )
    return header + message + payload


async def honest_call(address: str, cluster_id: str) -> None:
    """Call Core.Echo over a connection of its own;
    raises when it is not answered well and in time.
    """
    message = core_pb2.EchoReq(data=b"honest").SerializeToString()
    async with greeted(address, cluster_id) as peer:
        frame = request_frame(services.CORE_ECHO, 1, message)
        (answer,) = await peer.exchange(frame, {1})
    assert (answer.kind, answer.status) == (Kind.REPLY, Status.OK), answer
    assert core_pb2.EchoRsp.FromString(answer.message).data == b"honest"
