"""Frames: the unit of the transport, as bytes.  Pure; no I/O.

A frame is a fixed header, then `message_bytes` of message, then `payload_bytes` of raw payload.
All numbers are little-endian:

    offset  size  field
         0     4  magic "EMBR"
         4     1  protocol version
         5     1  kind: 1 hello, 2 request, 3 reply, 4 cancel, 5 goodbye, 6 proof, 7 lend, 8 return
         6     2  flags, since version 2: 1 traced (request), 2 lent (request,
                  reply), 4 borrows (request),
                 8 ranges, 16 direct (request, reply); else 0
         8     8  request id: chosen by the caller, unique within the connection
        16     2  service number      (request)
        18     2  method number       (request)
        20     2  status              (reply, goodbye; 0 is OK)
        22     2  reserved, 0
        24     4  timeout in ms from now, 0: none   (request)
        28     4  message bytes
        32     8  payload bytes
        40     8  xxh3-64 of bytes 0..39

What the message is:
    - In hello, proof and request frames, and in replies with status OK: a protobuf message.
    - In replies with another status, and in goodbye frames: the error's detail in UTF-8.
    - A cancel frame has neither message nor payload.  Nothing answers it.

The message of a traced request has TRACE_BYTES in front of it, which count as message bytes: the
16 of the trace id, and the 8 of the id of the span that asks (fs/runtime/tracing.py).  Whoever
keeps no traces cuts them off.

Lent payloads do not follow the message.  A lent request says where its payload lies
(fs/rpc/lending.py).  So does a lent reply, which answers a request that borrows.  A return
frame gives the payload of a lent reply back (fs/rpc/lent_replies.py).  That payload may lie in
files (fs/rpc/lent_ranges.py).

Invariants:
    - A header is believed only when its checksum holds, so lengths are never taken from garbage.
    - Whoever cannot believe a header closes the connection: there is no way to find the next frame.

Does not do: payload checksums (those who store bytes bring their own), compression, encryption.
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import Final, NamedTuple

from xxhash import xxh3_64_intdigest

from ..kernels.frames import make_header, take_header
from ..kernels.frames_twin import BODY, HEADER_BYTES, MAGIC, WHOLE
from ..schema.status import FsError, Status

Buffer = bytes | bytearray | memoryview
"""As in fs/runtime/ports.py, which this pure module stays clear of: it knows the event loop."""

VERSION_MIN: Final = 1
VERSION_MAX: Final = 2
FLAGS_VERSION_MIN: Final = 2
"""Older peers take no flags."""
HELLO_VERSION: Final = 1
"""Header version of hello and proof frames, and of goodbye frames that answer one, for ever."""

FLAG_TRACED: Final = 1
FLAG_LENT: Final = 2
FLAG_BORROWS: Final = 4
FLAG_RANGES: Final = 8
FLAG_DIRECT: Final = 16
TRACE_BYTES: Final = 24

TIMEOUT_MS_MAX: Final = 2**32 - 1


class Kind(IntEnum):
    """What a frame is for."""

    HELLO = 1
    REQUEST = 2
    REPLY = 3
    CANCEL = 4
    GOODBYE = 5
    PROOF = 6
    LEND = 7
    RETURN = 8


KIND_MAX: Final = max(Kind)
"""The greatest that a header may have."""

_FLAGS: Final = {
    Kind.REQUEST: FLAG_TRACED | FLAG_LENT | FLAG_BORROWS | FLAG_RANGES | FLAG_DIRECT,
    Kind.REPLY: FLAG_LENT | FLAG_RANGES | FLAG_DIRECT,
}
"""Of each kind that may have some."""


class Header(NamedTuple):
    """A decoded header; field meanings stand at the module's head."""

    version: int
    kind: int
    request_id: int
    service: int
    method: int
    status: int
    timeout_ms: int
    message_bytes: int
    payload_bytes: int
    flags: int = 0


new_header: Final = tuple.__new__
"""Makes a header of all its fields, without the call that looks for defaults."""


@dataclass(frozen=True, slots=True)
class FrameLimits:
    """The largest frame one side accepts."""

    message_bytes_max: int
    payload_bytes_max: int


def encode_header(
    kind: int,
    request_id: int,
    *,
    service: int = 0,
    method: int = 0,
    status: int = 0,
    timeout_ms: int = 0,
    message_bytes: int = 0,
    payload_bytes: int = 0,
    flags: int = 0,
    version: int = VERSION_MAX,
) -> bytes:
    """Return the HEADER_BYTES of one header; every value must fit its field."""
    return make_header(
        version,
        kind,
        flags,
        request_id,
        service,
        method,
        status,
        timeout_ms,
        message_bytes,
        payload_bytes,
    )


def header_at(buffer: Buffer, start: int, limits: FrameLimits, version: int) -> Header:
    """Do as `decode_header` with what lies at `start` in a buffer,
    which holds all of the header.
    """
    fields = take_header(
        buffer, start, version, KIND_MAX, limits.message_bytes_max, limits.payload_bytes_max
    )
    if fields is not None:
        return new_header(Header, fields)
    return decode_header(memoryview(buffer)[start : start + HEADER_BYTES], limits, version)


def decode_header(data: Buffer, limits: FrameLimits, version: int = VERSION_MAX) -> Header:
    """Read one header.

    Args:
        data: exactly HEADER_BYTES bytes.
        limits: the largest frame the receiver accepts.
        version: the protocol version agreed for this connection.

    Raises:
        FsError: RPC_BAD_FRAME (not ours or damaged), RPC_BAD_VERSION, RPC_TOO_LARGE.
    """
    (
        magic,
        found_version,
        kind,
        flags,
        request_id,
        service,
        method,
        status,
        reserved,
        timeout_ms,
        message_bytes,
        payload_bytes,
        checksum,
    ) = WHOLE.unpack_from(data)
    if magic != MAGIC:
        raise FsError(Status.RPC_BAD_FRAME, f"magic {magic!r} instead of {MAGIC!r}")
    if xxh3_64_intdigest(data[: BODY.size]) != checksum:
        raise FsError(Status.RPC_BAD_FRAME, f"header checksum {checksum:#x} does not hold")
    if found_version != version:
        raise FsError(Status.RPC_BAD_VERSION, f"frame of version {found_version}, not {version}")
    if not 0 < kind <= KIND_MAX or reserved or (flags and not _may_flag(data, version)):
        raise FsError(Status.RPC_BAD_FRAME, f"kind {kind}, flags {flags}, reserved {reserved}")
    if message_bytes > limits.message_bytes_max or payload_bytes > limits.payload_bytes_max:
        raise FsError(
            Status.RPC_TOO_LARGE,
            f"{message_bytes} message bytes and {payload_bytes} payload bytes; at most"
            f" {limits.message_bytes_max} and {limits.payload_bytes_max} are accepted",
        )
    fields = (
        found_version,
        kind,
        request_id,
        service,
        method,
        status,
        timeout_ms,
        message_bytes,
        payload_bytes,
        flags,
    )
    return new_header(Header, fields)


def _may_flag(data: Buffer, version: int) -> bool:
    """Tell whether a header may have the flags that it has."""
    _, _, kind, flags, *_, message_bytes, _ = BODY.unpack_from(data)
    is_known = not flags & ~_FLAGS.get(kind, 0)
    is_whole = not flags & FLAG_TRACED or message_bytes >= TRACE_BYTES
    of_what = FLAG_BORROWS if kind == Kind.REQUEST else FLAG_LENT
    is_whole &= not flags & FLAG_RANGES or flags & of_what != 0
    is_whole &= not flags & FLAG_DIRECT or flags & FLAG_RANGES != 0
    return is_known and is_whole and version >= FLAGS_VERSION_MIN


def encode_error(
    kind: int, request_id: int, error: FsError, *, version: int = VERSION_MAX
) -> list[Buffer]:
    """Return the buffers of a reply or goodbye frame that carries an operating error."""
    detail = error.detail.encode(errors="replace")[:DETAIL_BYTES_MAX]
    header = encode_header(
        kind, request_id, status=int(error.status), message_bytes=len(detail), version=version
    )
    return [header, detail]


DETAIL_BYTES_MAX: Final = 4096
"""Longer details are cut: they are for people."""


def decode_error(status: int, detail: Buffer) -> FsError:
    """Return the operating error that a reply or goodbye frame carries."""
    text = bytes(detail).decode(errors="replace")
    try:
        known = Status(status)
    except ValueError:
        return FsError(Status.INTERNAL_ERROR, f"status {status}, unknown to this release: {text}")
    if known is Status.OK:  # only a goodbye can say so, which is always one
        return FsError(Status.RPC_BAD_FRAME, f"an error of status OK: {text}")
    return FsError(known, text)
