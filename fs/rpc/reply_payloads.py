"""How the payload of a reply gets to its caller:
with the reply, from the stream, or out of memory that the peer lends.

Part of fs/rpc/connection.py, which hands replies to their calls, and returns what
was lent once a call has ended.

Invariants:
    - Only `take`, in the calling task, waits for bytes; all of it within the time limit of the
      call, but for what a thread reads (`ReadApart`).
    - `fill` takes what has come already, and raises nothing: what is wrong with a
      reply its own caller hears of.

No call is ended here, and nothing lent is returned.
"""

from functools import partial

from ..runtime.ports import Buffer
from ..schema.method import Method, ReqT, RspT
from ..schema.status import FsError, Status
from .api import Into, ReadApart, Received
from .call_under_way import CallUnderWay
from .frame import FLAG_DIRECT, FLAG_LENT, FLAG_RANGES, Header
from .framed_stream import FramedStream
from .lending import STEP_BYTES
from .lent_ranges import split_ranges
from .lent_replies import ReplyBorrower
from .reply_messages import buffers_for, parse_reply, reply_to


class ReplyPayloads:
    """Those of one connection."""

    def __init__(self, framed: FramedStream, borrower: ReplyBorrower) -> None:
        """Receive from `framed`; `borrower` reads what is lent."""
        self._framed = framed
        self._borrower = borrower

    def fill(
        self,
        method: Method[ReqT, RspT],
        call: CallUnderWay,
        into: Into,
        header: Header,
        message: Buffer,
    ) -> None:
        """Put what has come of a payload where it belongs, which spares turns of the event loop."""
        try:
            reply = parse_reply(method, message)
            buffers = buffers_for(method, into, reply, header.payload_bytes)
        except Exception:  # noqa: BLE001 - the calling task meets it, too, and it is its own
            return
        call.buffers = self._framed.receive_payload_now(buffers)
        call.reply = reply

    async def take(
        self, method: Method[ReqT, RspT], call: CallUnderWay, into: Into | None
    ) -> Received[RspT]:
        """Decode the reply and receive its payload, if it has one, in the calling task.

        Raises:
            FsError: what the reply says, RPC_BAD_FRAME, or what reading lent memory raises.
            TimeUpError: at the deadline of `call`.
        """
        if call.reply is not None:
            if call.buffers:
                await call.within(self._framed.receive_payload(call.buffers))
            assert call.header is not None
            return Received(call.reply, call.header.payload_bytes)
        if call.header is not None and call.header.flags & FLAG_LENT:
            return await self._take_lent(method, call, into)
        reply, size = reply_to(method, call)
        if not size:
            return Received(reply)
        if into is None:
            if call.payload is not None:
                return Received(reply, size, call.payload)
            view = memoryview(bytearray(size))
            await call.within(self._framed.receive_payload([view]))
            return Received(reply, size, view)
        buffers = buffers_for(method, into, reply, size)
        if call.payload is None:
            await call.within(self._framed.receive_payload(buffers))
            return Received(reply, size)
        start = 0
        for buffer in buffers:
            end = start + len(buffer)
            buffer[:] = call.payload[start:end]
            start = end
        return Received(reply, size)

    async def _take_lent(
        self, method: Method[ReqT, RspT], call: CallUnderWay, into: Into | None
    ) -> Received[RspT]:
        """Decode a lent reply, and read its payload where it lies:
        in shared memory, or in files.
        """
        assert call.header is not None
        size = call.header.payload_bytes
        borrower = self._borrower
        if call.header.flags & FLAG_RANGES:
            ranges, message = split_ranges(call.header, call.message)
            read = partial(borrower.read_ranges, ranges)
            is_direct = call.header.flags & FLAG_DIRECT
            read_with = borrower.read_direct_now if is_direct else borrower.read_ranges_now
            read_now = partial(read_with, ranges)
        else:
            pieces, message = borrower.split(call.header, call.message)
            read = partial(borrower.read, pieces)
            read_now = partial(borrower.read_now, pieces)
        reply = parse_reply(method, message)
        view = memoryview(bytearray(size if into is None else 0))
        buffers = [view] if into is None else buffers_for(method, into, reply, size)
        if call.header.flags & FLAG_DIRECT:
            have_read = buffers.have_read_direct if isinstance(buffers, ReadApart) else None
            if have_read is None:
                detail = f"{method}: nobody here can wait for the disk that has the payload"
                raise FsError(Status.RPC_NOT_LENT, detail)
            await have_read(partial(read_now, buffers))
        elif isinstance(buffers, ReadApart):
            await buffers.have_read(partial(read_now, buffers))
        elif size <= STEP_BYTES:  # it takes no turn, so no time limit can end it
            await read(buffers)
        else:
            await call.within(read(buffers))
        return Received(reply, size, view) if into is None else Received(reply, size)
