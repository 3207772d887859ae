"""The twin of frames.c: the same in Python.  It says what the functions promise.

What the fields of a header mean, and where they lie, stands at the head of fs/rpc/frame.py.
"""

import struct
from typing import Final

from xxhash import xxh3_64_intdigest

Buffer = bytes | bytearray | memoryview

Fields = tuple[int, int, int, int, int, int, int, int, int, int]
"""Version, kind, request id, service, method, status, timeout in ms, message bytes,
payload bytes, flags.
"""

HEADER_BYTES: Final = 48
MAGIC: Final = b"EMBR"
BODY: Final = struct.Struct("<4sBBHQHHHHIIQ")
"""What the checksum covers."""
_CHECKSUM: Final = struct.Struct("<Q")
WHOLE: Final = struct.Struct("<4sBBHQHHHHIIQQ")
assert BODY.size + _CHECKSUM.size == WHOLE.size == HEADER_BYTES


def make_header(  # noqa: PLR0917 - the fields, in the order of the wire
    version: int,
    kind: int,
    flags: int,
    request_id: int,
    service: int,
    method: int,
    status: int,
    timeout_ms: int,
    message_bytes: int,
    payload_bytes: int,
    /,
) -> bytes:
    """Return the HEADER_BYTES of a header.

    Raises:
        ValueError: a number that its field cannot hold.
    """
    try:
        body = BODY.pack(
            MAGIC,
            version,
            kind,
            flags,
            request_id,
            service,
            method,
            status,
            0,
            timeout_ms,
            message_bytes,
            payload_bytes,
        )
    except struct.error as error:
        raise ValueError("a number that its field cannot hold") from error
    return body + _CHECKSUM.pack(xxh3_64_intdigest(body))


def take_header(  # noqa: PLR0917 - all that a header is measured by
    buffer: Buffer,
    start: int,
    version: int,
    kind_max: int,
    message_bytes_max: int,
    payload_bytes_max: int,
    /,
) -> Fields | None:
    """Return the fields of a header that nothing is wrong with, nor unusual; None: there is.

    Args:
        buffer: only read.
        start: where the header begins in it; as the other numbers, 0..2**64 - 1.
        version: that it has to have.
        kind_max: the greatest kind; the least is 1.
        message_bytes_max: the longest message that is accepted.
        payload_bytes_max: the longest payload.

    Raises:
        ValueError: the buffer does not hold all of it.
    """
    if not 0 <= start <= len(buffer) - HEADER_BYTES:
        raise ValueError("a header beyond the buffer")
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
    ) = WHOLE.unpack_from(buffer, start)
    if magic != MAGIC or found_version != version or not 0 < kind <= kind_max:
        return None
    if flags or reserved or message_bytes > message_bytes_max or payload_bytes > payload_bytes_max:
        return None
    if xxh3_64_intdigest(buffer[start : start + BODY.size]) != checksum:
        return None
    return (
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
