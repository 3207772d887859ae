"""Lent payloads: between processes of one machine a request says where its payload lies,
and the server reads it there.

A byte that goes through a socket is copied twice, by way of pages that are new to the caches each
time; read from where it lies it is copied once, by one call.  What is said and when:

    caller   -> hello (lends)
    listener -> hello (lend_nonce): sixteen random bytes
    caller   -> lend frame: where in its memory it has them
    listener -> empty lend frame: it has read them there
    caller   -> lent requests, at any time from then on

The message of a lent request has in front of it, and in front of what a trace adds, how many pieces
the payload lies in (four bytes, little-endian), and each piece's address and length (`PIECE`).  All
that counts as message bytes.  Its header says how long the payload is; nothing of it follows.

Invariants:
    - The server reads into a buffer of its own, and all at once: what it verifies
      afterwards cannot change any more.
    - Only payloads are lent that a checksum in the message covers, and that the server
      matches against it before it does anything else with them (`Method.is_payload_checked`):
      bytes that are no longer what was lent are refused, by CHECKSUM_MISMATCH.  A caller that
      gave up a call uses its memory for something else; whether the server reads it before it
      learns of that makes no difference.
    - Each read takes the nonce along (fs/kernels/lent_twin.py): it is of the memory
      that the connection began with.
    - Only plain memory is lent (fs/runtime/plain_memory.py): reading it waits for no file system.
    - Whatever cannot be lent, or read, goes over the socket.  A read that fails is RPC_NOT_LENT,
      and the caller lends nothing more over that connection.
"""

import logging
import struct
from collections.abc import Sequence
from operator import itemgetter
from typing import Any, Final

import trio
from google.protobuf.message import DecodeError

from ..kernels.lent import NONCE_BYTES, PIECE, PIECE_COUNT_MAX
from ..runtime.plain_memory import is_plain
from ..runtime.ports import Buffer, PeerMemory
from ..schema.method import Method
from ..schema.proto.rpc_pb2 import HelloPb, LendPb
from ..schema.status import FsError, Status
from .frame import FLAG_TRACED, FLAGS_VERSION_MIN, TRACE_BYTES, Header, Kind, encode_header

log = logging.getLogger(__name__)

STEP_BYTES: Final = 4 * 1024 * 1024
"""So much is read before others have their turn."""

PIECE_BYTES_MIN: Final = 16 * 1024
"""Payloads whose pieces are smaller on average go over the socket."""

LEND_BYTES_MAX: Final = 64
"""Of the message of a lend frame."""

_COUNT: Final = struct.Struct("<I")
_length_of: Final = itemgetter(1)


class Lender:
    """What a caller lends over one connection."""

    def __init__(self, memory: PeerMemory | None, bytes_min: int) -> None:
        """Lend payloads of `bytes_min` (0: none) to who can read our memory."""
        self._memory = memory if bytes_min else None
        self._bytes_min = bytes_min
        self._nonce = b""
        """Stays where it is for as long as we lend."""
        self._is_believed = False
        self.under_way: dict[int, bytes] = {}
        """The pieces of each request that is not answered yet, by its id."""

    @property
    def offers(self) -> bool:
        """Whether the hello says that we lend."""
        return self._memory is not None

    def frame_for(self, nonce: bytes, version: int) -> Sequence[Buffer]:
        """Return a lend frame that says where we have a listener's nonce;
        nothing for one that gave none.
        """
        if self._memory is None or len(nonce) != NONCE_BYTES or version < FLAGS_VERSION_MIN:
            return ()
        self._nonce = nonce
        place, _ = PIECE.unpack(self._memory.pieces_of([self._nonce]))
        message = LendPb(place=place).SerializeToString()
        return encode_header(Kind.LEND, 0, message_bytes=len(message), version=version), message

    def begin(self) -> None:
        """The listener has read the nonce."""
        self._is_believed = bool(self._nonce)

    def stop(self) -> None:
        """Lend nothing more."""
        self._is_believed = False

    def end(self, request_id: int) -> None:
        """A request that may have lent its payload has been answered, or given up."""
        lent = self.under_way.pop(request_id, None)
        if lent is not None and self._memory is not None:
            self._memory.may_change(lent[_COUNT.size :])

    def lent(self, method: Method[Any, Any], payload: Sequence[Buffer], size: int) -> bytes:
        """Return what the message of a request begins with whose payload, of `size` bytes, is lent;
        nothing: it is to be sent.
        """
        if not self._is_believed or size < self._bytes_min or not method.is_payload_checked:
            return b""
        count = len(payload)
        if (
            count > PIECE_COUNT_MAX
            or count * PIECE_BYTES_MIN > size
            or not all(map(is_plain, payload))
        ):
            return b""
        assert self._memory is not None
        return packed_pieces(self._memory.pieces_of(payload))


class Borrower:
    """What a server reads from its caller's memory over one connection."""

    def __init__(self, memory: PeerMemory | None, bytes_min: int) -> None:
        """Read the `memory` of the caller, unless `bytes_min` is 0."""
        self._memory = memory if bytes_min else None
        self._nonce = b""
        self._place = -1
        """Where the caller has the nonce, once that has been read there."""
        self._has_heard = False

    def nonce_for(self, hello: HelloPb) -> bytes:
        """Return the nonce for a caller that said hello; empty: nothing is to be lent to us."""
        if hello.lends and self._memory is not None:
            self._nonce = self._memory.fresh_nonce()
        return self._nonce

    def hear(self, message: Buffer, peer_name: str) -> bool:
        """Take the message of a lend frame; return whether the nonce is where it says.

        Raises:
            FsError: RPC_BAD_FRAME: nobody was to say so, or not again.
        """
        if not self._nonce or self._has_heard or len(message) > LEND_BYTES_MAX:
            raise FsError(Status.RPC_BAD_FRAME, "a lend frame that nobody has asked for")
        self._has_heard = True
        try:
            place = LendPb.FromString(bytes(message)).place
        except DecodeError as error:
            raise FsError(Status.RPC_BAD_FRAME, f"lend message: {error}") from error
        assert self._memory is not None
        try:
            self._memory.read(b"", 0, memoryview(bytearray()), place, self._nonce)
        except OSError as error:
            log.debug("%s: payloads come over the socket: %s", peer_name, error)
            return False
        self._place = place
        return True

    def split(self, header: Header, message: Buffer) -> tuple[bytes, Buffer]:
        """Return the pieces of a lent request, and the rest of its message.

        Raises:
            FsError: RPC_BAD_FRAME: they are not whole, or nothing was to be lent.
        """
        if self._place < 0:
            raise FsError(Status.RPC_BAD_FRAME, f"request {header.request_id} lends what it cannot")
        return split_pieces(header, message, TRACE_BYTES if header.flags & FLAG_TRACED else 0)

    async def read(self, pieces: bytes, view: memoryview) -> None:
        """Read a lent payload into `view`, which may hold anything if this raises.

        Raises:
            FsError: RPC_NOT_LENT.
        """
        assert self._memory is not None
        for done in range(0, len(view), STEP_BYTES):
            if done:
                await trio.lowlevel.checkpoint()
            try:
                part = view[done : done + STEP_BYTES]
                self._memory.read(pieces, done, part, self._place, self._nonce)
            except (OSError, ValueError) as error:
                raise FsError(
                    Status.RPC_NOT_LENT, f"{len(view)} bytes of payload: {error}"
                ) from error


def packed_pieces(pieces: bytes) -> bytes:
    """Return what the message of a lent request or reply begins with."""
    return _COUNT.pack(len(pieces) // PIECE.size) + pieces


def split_pieces(header: Header, message: Buffer, rest_bytes_min: int) -> tuple[bytes, Buffer]:
    """Return the pieces of a lent request or reply, and the rest of its message,
    at least so many bytes.

    Raises:
        FsError: RPC_BAD_FRAME: they are not whole, or not of the payload that the header tells.
    """
    count = PIECE_COUNT_MAX + 1
    if len(message) >= _COUNT.size:
        (count,) = _COUNT.unpack_from(message)
    end = _COUNT.size + count * PIECE.size
    if count > PIECE_COUNT_MAX or end + rest_bytes_min > len(message):
        raise FsError(Status.RPC_BAD_FRAME, f"request {header.request_id}: {count} pieces")
    pieces = bytes(message[_COUNT.size : end])
    if sum(map(_length_of, PIECE.iter_unpack(pieces))) != header.payload_bytes:
        raise FsError(Status.RPC_BAD_FRAME, f"request {header.request_id} lends something else")
    return pieces, message[end:]
