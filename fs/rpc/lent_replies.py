"""Lent replies: between processes of one machine a reply says where its payload lies,
and the caller reads it there.

The other way round of fs/rpc/lending.py, which says why.  What is said and when:

    caller   -> hello (reply_nonce): sixteen random bytes
    listener -> hello (reply_place): where in its memory it has them, and the caller, which
                finds them there, from then on
    caller   -> requests that say that their replies may be lent (FLAG_BORROWS)
    listener -> lent replies (FLAG_LENT): `pieces` and message, as of a lent request
    caller   -> return frames: the ids of lent replies that it has read, or will not;
                with its next request, or soon

Invariants:
    - What is lent stays as it is until the caller has returned it, or the connection has
      ended.  Before it is used for something else then, the nonce is wiped; each read takes
      the nonce along, behind all else (fs/kernels/lent_twin.py).  So what was read together
      with the nonce was still lent.
    - Callers let only those replies be lent whose payload they match against a checksum before
      they do anything else with it.
    - One connection holds at most HELD_BYTES_MAX, all of a server together ALL_HELD_BYTES_MAX; what
      is more goes over the socket.  Who keeps something for STUCK_S (server.py) has lost its
      connection, unless its server was short of buffers and did not see what it sent.
    - Every lent reply is returned once, also where its call was given up.
"""

import logging
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import trio

from ..kernels.lent import NONCE_BYTES, PIECE, PIECE_COUNT_MAX
from ..runtime.plain_memory import is_plain
from ..runtime.ports import Buffer, PeerMemory
from ..schema.proto.rpc_pb2 import HelloPb
from ..schema.status import FsError, Status
from .api import Lending, Reply
from .frame import (
    FLAG_BORROWS,
    FLAG_DIRECT,
    FLAG_RANGES,
    FLAGS_VERSION_MIN,
    FrameLimits,
    Header,
    Kind,
    encode_header,
)
from .framed_stream import FramedStream
from .lending import PIECE_BYTES_MIN, STEP_BYTES, packed_pieces, split_pieces
from .lent_ranges import RANGE_COUNT_MAX, packed_ranges, size_of_ranges, steps_of

log = logging.getLogger(__name__)

HELD_BYTES_MAX: Final = 32 * 1024 * 1024
"""Lent over one connection at a time."""

ALL_HELD_BYTES_MAX: Final = 64 * 1024 * 1024
"""Lent by one server at a time: a third of what storage reads into (READ_BUFFER_BYTES_MAX),
whose buffers may be twice as large as what is in them.
"""

RETURN_S: Final = 0.02
"""After that what was read is returned without a request that it could go with."""

_BOTH: Final = FLAG_BORROWS | FLAG_RANGES

_BROKEN: Final = (trio.BrokenResourceError, trio.ClosedResourceError)

ID: Final = struct.Struct("<Q")
"""The message of a return frame is one after the other."""


@dataclass(slots=True)
class LentTotals:
    """Of all connections of a server."""

    held_bytes: int = 0
    lent_bytes: int = 0
    """In all."""
    range_bytes: int = 0
    """Of these, in files."""


@dataclass(frozen=True, slots=True)
class _Lent:
    """One reply that is with its caller."""

    payload: Sequence[Buffer]
    release: Callable[[], None] | None
    pieces: bytes
    """Empty: ranges of files are."""
    size: int
    numbers: Sequence[int] = ()
    """Of the files that they are of."""


class ReplyLender:
    """What a server lends over one connection."""

    def __init__(
        self,
        memory: PeerMemory | None,
        bytes_min: int,
        limits: FrameLimits,
        totals: LentTotals,
    ) -> None:
        """Lend payloads of `bytes_min` (0: none) to who can read our memory."""
        self._memory = memory if bytes_min else None
        self._bytes_min = bytes_min
        self._limits = limits
        self._totals = totals
        self._nonce: memoryview | None = None
        """Stays where it is for as long as we lend."""
        self._held: dict[int, _Lent] = {}
        """By request."""
        self._held_bytes = 0
        self._seen: frozenset[int] = frozenset()

    def place_for(self, hello: HelloPb, version: int) -> int:
        """Return where a caller that said hello finds its nonce; 0: nothing is to be lent to it."""
        nonce = hello.reply_nonce
        if self._memory is None or len(nonce) != NONCE_BYTES or version < FLAGS_VERSION_MIN:
            return 0
        self._nonce = memoryview(bytearray(nonce))
        place: int = PIECE.unpack(self._memory.pieces_of([self._nonce]))[0]
        return place

    def lend(self, header: Header, reply: Reply[Any]) -> int:
        """Make a reply a lent one, if it may be; return the bytes of its payload,
        which are ours to release then, 0: it is as it was.
        """
        if not header.flags & FLAG_BORROWS or self._memory is None or self._nonce is None:
            return 0
        if reply.ranges:
            return self._lend_ranges(header, reply)
        payload = reply.payload
        size = sum(map(len, payload))
        if (
            not self._has_room(header, size)
            or len(payload) > min(PIECE_COUNT_MAX, size // PIECE_BYTES_MIN)
            or not all(map(is_plain, payload))
        ):
            return 0
        message = _packed(reply)
        pieces = self._memory.pieces_of(payload)
        whole = packed_pieces(pieces) + message
        if len(whole) > self._limits.message_bytes_max:
            self._memory.may_change(pieces)
            return 0
        self._hold(header, _Lent(payload, reply.release, pieces, size))
        reply.message, reply.payload, reply.release = whole, (), None
        return size

    def takes_ranges(self, header: Header, size: int, count: int, message_bytes: int) -> bool:
        """Tell whether a reply of so many bytes of payload,
        ranges and bytes of message may lend its ranges now.
        """
        return (
            header.flags & _BOTH == _BOTH
            and self._nonce is not None
            and count <= RANGE_COUNT_MAX
            and size_of_ranges(count) + message_bytes <= self._limits.message_bytes_max
            and self._has_room(header, size)
        )

    def _has_room(self, header: Header, size: int) -> bool:
        return (
            self._bytes_min <= size <= self._limits.payload_bytes_max
            and self._held_bytes + size <= HELD_BYTES_MAX
            and self._totals.held_bytes + size <= ALL_HELD_BYTES_MAX
            and header.request_id not in self._held
        )

    def _lend_ranges(self, header: Header, reply: Reply[Any]) -> int:
        """Do as `lend` with a reply that has been admitted by `takes_ranges`,
        unless the connection has ended since.
        """
        assert self._memory is not None
        size = sum(one.length for one in reply.ranges)
        message = _packed(reply)
        if not self.takes_ranges(header, size, len(reply.ranges), len(message)):
            return 0
        assert not reply.is_direct or header.flags & FLAG_DIRECT
        packed, numbers = packed_ranges(self._memory, reply.ranges)
        self._totals.range_bytes += size
        self._hold(header, _Lent((), reply.release, b"", size, numbers))
        reply.message, reply.release = packed + message, None
        return size

    def _hold(self, header: Header, lent: _Lent) -> None:
        self._held[header.request_id] = lent
        self._held_bytes += lent.size
        self._totals.held_bytes += lent.size
        self._totals.lent_bytes += lent.size

    def take_back(self, message: Buffer) -> None:
        """Take the message of a return frame.

        Raises:
            FsError: RPC_BAD_FRAME: it names what is not lent.
        """
        if not message or len(message) % ID.size:
            raise FsError(Status.RPC_BAD_FRAME, f"a return frame of {len(message)} bytes")
        for (request_id,) in ID.iter_unpack(message):
            lent = self._held.pop(request_id, None)
            if lent is None:
                raise FsError(Status.RPC_BAD_FRAME, f"reply {request_id} is returned, but not lent")
            self._free(lent)

    def has_stuck(self) -> bool:
        """Return whether something is lent that was at the last call."""
        seen, self._seen = self._seen, frozenset(self._held)
        return not seen.isdisjoint(self._seen)

    def end(self) -> None:
        """Lend nothing more, and take back everything: the connection has ended."""
        if self._nonce is not None:
            self._nonce[:] = bytes(NONCE_BYTES)  # first: what is read from now on does not count
        held, self._held, self._bytes_min = list(self._held.values()), {}, 1 << 63
        for lent in held:
            self._free(lent)

    def _free(self, lent: _Lent) -> None:
        assert self._memory is not None
        self._held_bytes -= lent.size
        self._totals.held_bytes -= lent.size
        self._memory.may_change(lent.pieces)
        self._memory.sources_may_change(lent.numbers)
        if lent.release is not None:
            lent.release()


class ReplyBorrower:
    """What a caller reads from its server's memory over one connection."""

    def __init__(self, memory: PeerMemory | None, bytes_min: int) -> None:
        """Read the `memory` of the server, unless `bytes_min` is 0."""
        self._memory = memory if bytes_min else None
        self._nonce = b""
        self._place = 0
        """Where the server has the nonce, once that has been read there."""
        self._offers_ranges = False
        """The server has said that it lends ranges of files."""
        self._takes_ranges = False
        """And none has failed yet."""
        self._offers_direct = self._takes_direct = False
        """The same of ranges that the disk has yet to read."""
        self._has_failed = False
        self.owed: list[int] = []
        """Lent replies that are to be returned."""
        self.reading_count = 0
        """Calls that have a lent reply, and have not read it."""

    def flags(self, lending: int) -> int:
        """Return what requests have whose replies may be lent so; see `Lending`."""
        if not lending or self._has_failed or not self._place:
            return 0
        if lending < Lending.RANGES or not self._takes_ranges:
            return FLAG_BORROWS
        takes_direct = lending == Lending.DIRECT and self._takes_direct
        return _BOTH | FLAG_DIRECT if takes_direct else _BOTH

    def nonce(self) -> bytes:
        """Return the nonce for our hello; empty: nothing is to be lent to us."""
        if self._memory is not None:
            self._nonce = self._memory.fresh_nonce()
        return self._nonce

    def hear(self, hello: HelloPb, peer_name: str) -> None:
        """Take a listener's hello: find out whether the nonce is where it says."""
        place = hello.reply_place
        if not place or not self._nonce:
            return
        assert self._memory is not None
        try:
            self._memory.read(b"", 0, memoryview(bytearray()), place, self._nonce)
        except OSError as error:
            log.debug("%s: replies come over the socket: %s", peer_name, error)
            return
        self._place = place
        self._takes_ranges = self._offers_ranges = hello.lends_ranges
        self._takes_direct = self._offers_direct = hello.lends_direct

    def check(self, header: Header) -> None:
        """Raise FsError(RPC_BAD_FRAME) for a lent reply that nobody can have asked for."""
        has_ranges, is_direct = header.flags & FLAG_RANGES, header.flags & FLAG_DIRECT
        is_offered = self._offers_ranges >= bool(has_ranges) and self._offers_direct >= bool(
            is_direct
        )
        if not self._place or header.status or not is_offered:
            detail = f"reply {header.request_id} is lent, status {header.status}"
            raise FsError(Status.RPC_BAD_FRAME, detail)

    @staticmethod
    def split(header: Header, message: Buffer) -> tuple[bytes, Buffer]:
        """Return the pieces of a lent reply, and the rest of its message.

        Raises:
            FsError: RPC_BAD_FRAME: they are not whole.
        """
        return split_pieces(header, message, 0)

    async def read(self, pieces: bytes, buffers: Sequence[memoryview]) -> None:
        """Read a lent payload into `buffers`, one after the other,
        which may hold anything if this raises.

        Raises:
            FsError: RPC_NOT_LENT; nothing more is to be lent then.
        """
        skip, step = 0, 0
        for buffer in buffers:
            for start in range(0, len(buffer), STEP_BYTES):
                part = buffer[start : start + STEP_BYTES]
                if step + len(part) > STEP_BYTES:
                    await trio.lowlevel.checkpoint()
                    step = 0
                self.read_now(pieces, (part,), skip)
                skip += len(part)
                step += len(part)

    def read_now(self, pieces: bytes, buffers: Sequence[memoryview], skip: int = 0) -> None:
        """Do as `read` in one step, in any thread;
        what is read begins behind the first `skip` bytes of the payload.
        """
        assert self._memory is not None
        try:
            for buffer in buffers:
                self._memory.read(pieces, skip, buffer, self._place, self._nonce)
                skip += len(buffer)
        except (OSError, ValueError) as error:
            self._has_failed = True
            raise FsError(Status.RPC_NOT_LENT, f"a reply's payload: {error}") from error

    async def read_ranges(self, ranges: Buffer, buffers: Sequence[memoryview]) -> None:
        """Read a payload that lies in files into `buffers`, which may hold anything if this raises.

        Raises:
            FsError: RPC_NOT_LENT; nothing more is to be lent so then, unless it would only
                have had to be waited for.
        """
        for part, into in steps_of(ranges, buffers):
            if part is not ranges:
                await trio.lowlevel.checkpoint()
            self.read_ranges_now(part, into)

    def read_ranges_now(self, ranges: Buffer, buffers: Sequence[memoryview]) -> None:
        """Do as `read_ranges` in one step, in any thread."""
        assert self._memory is not None
        try:
            self._memory.read_ranges(ranges, buffers, self._place, self._nonce)
        except BlockingIOError as error:
            raise FsError(Status.RPC_NOT_LENT, f"a reply's ranges: {error}") from error
        except OSError as error:
            log.debug("no more ranges are read: %s", error)
            self._takes_ranges = False
            raise FsError(Status.RPC_NOT_LENT, f"a reply's ranges: {error}") from error

    def read_direct_now(self, ranges: Buffer, buffers: Sequence[memoryview]) -> None:
        """Read ranges that the disk has to read, all of them, in a thread: the disk is waited for.

        Raises:
            FsError: RPC_NOT_LENT; nothing more is to be lent so then.
        """
        assert self._memory is not None
        try:
            self._memory.read_direct(ranges, buffers, self._place, self._nonce)
        except (OSError, ValueError) as error:
            log.debug("nothing more is read from the disk: %s", error)
            self._takes_direct = False
            raise FsError(Status.RPC_NOT_LENT, f"a reply's ranges: {error}") from error

    def send_along(self, framed: FramedStream, frame: Sequence[Buffer], call_count: int) -> bool:
        """Do as `framed.send_at_once`, and return what is owed with that frame."""
        if self.owed and framed.send_at_once(
            [self._return_frame(framed), *frame], call_count=call_count
        ):
            self.owed.clear()
            return True
        return framed.send_at_once(frame, call_count=call_count)

    def return_owed(self, framed: FramedStream) -> bool:
        """Return what is owed, if nothing has to be waited for; False: it has to be."""
        if not self.owed:
            return True
        try:
            if not framed.send_at_once([self._return_frame(framed)], call_count=0):
                return False
        except _BROKEN as error:
            log.debug("lent replies are not returned: %s", error)  # the connection has ended
        self.owed.clear()
        return True

    async def return_in_turn(self, framed: FramedStream) -> None:
        """Return what is owed behind those who wait to send:
        of a busy connection there may always be some.
        """
        if not self.owed:
            return
        frame = self._return_frame(framed)
        self.owed.clear()
        try:
            await framed.send([frame])
        except _BROKEN as error:
            log.debug("lent replies are not returned: %s", error)

    def _return_frame(self, framed: FramedStream) -> bytes:
        message = b"".join(map(ID.pack, self.owed))
        size, version = len(message), framed.version
        return encode_header(Kind.RETURN, 0, message_bytes=size, version=version) + message


def _packed(reply: Reply[Any]) -> bytes:
    message = reply.message
    return message if isinstance(message, bytes) else message.SerializeToString()
