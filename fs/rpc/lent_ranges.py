"""Replies that lend ranges of files: between processes of one machine a caller reads what
is cached right out of its server's files.

A lent reply (lent_replies.py, which has the whole agreement) whose payload the server
has not even read.  What is said:

    listener -> hello (lends_ranges), with reply_place
    caller   -> requests whose replies may be lent so (FLAG_RANGES, with FLAG_BORROWS)
    listener -> lent replies (FLAG_LENT and FLAG_RANGES): `ranges` and message
    caller   -> return frames, as for all that is lent

A listener whose hello says `lends_direct` also lends what the disk has yet to read, to requests
that have FLAG_DIRECT, by replies that have it: by descriptors that read past the page cache.  The
caller reads it in a thread (peer_files.py).

The message has in front of it how many ranges the payload lies in (four bytes,
little-endian), and of each the number of the server's descriptor, and where the range
begins and how long it is (`RANGE`).

Invariants:
    - The server lends what its message has checksums for, and sees to it that the ranges, and the
      descriptors, stay what they are until the reply is returned, or the connection has ended:
      then the nonce is wiped first.
    - The caller looks for the nonce when it has read: what it found before was still lent.
      Whatever it read, it believes only what matches the checksums: those are of the version that
      was asked for, so bytes of another one, or of another file, cannot pass for it.
    - It waits for no disk, unless it has said that it does: what has left the page cache meanwhile
      is RPC_NOT_LENT, and asked for again, as is whatever cannot be read so.  It touches regular
      files only, and keeps no descriptor.
"""

import logging
import struct
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Final

from ..kernels.lent import PIECE_COUNT_MAX, RANGE
from ..runtime.ports import Buffer, PeerMemory
from ..schema.status import FsError, Status
from .api import FileRange
from .frame import Header
from .lending import STEP_BYTES

log = logging.getLogger(__name__)

RANGE_COUNT_MAX: Final = PIECE_COUNT_MAX

_COUNT: Final = struct.Struct("<I")
_OFFSET_MAX: Final = 2**63 - 1
"""What the system takes for one."""


def size_of_ranges(count: int) -> int:
    """Return how many bytes the message of a reply begins with that lends so many ranges."""
    return _COUNT.size + count * RANGE.size


def packed_ranges(memory: PeerMemory, ranges: Sequence[FileRange]) -> tuple[bytes, list[int]]:
    """Return what the message of a reply begins with, and the numbers of the files in it."""
    numbers = [memory.number_of(one.source) for one in ranges]
    packed = [
        RANGE.pack(number, one.offset, one.length)
        for number, one in zip(numbers, ranges, strict=True)
    ]
    return _COUNT.pack(len(ranges)) + b"".join(packed), numbers


def split_ranges(header: Header, message: Buffer) -> tuple[Buffer, Buffer]:
    """Return the ranges of a lent reply, `RANGE` by `RANGE`, and the rest of its message.

    Raises:
        FsError: RPC_BAD_FRAME: they are not whole, beyond any file, or not of the
            payload that the header tells.
    """
    count = RANGE_COUNT_MAX + 1
    if len(message) >= _COUNT.size:
        (count,) = _COUNT.unpack_from(message)
    end = size_of_ranges(count)
    if count > RANGE_COUNT_MAX or end > len(message):
        raise FsError(Status.RPC_BAD_FRAME, f"reply {header.request_id}: {count} ranges")
    ranges, size = message[_COUNT.size : end], 0
    for _, offset, length in RANGE.iter_unpack(ranges):
        if offset + length > _OFFSET_MAX:
            raise FsError(Status.RPC_BAD_FRAME, f"reply {header.request_id} lends beyond any file")
        size += length
    if size != header.payload_bytes:
        raise FsError(Status.RPC_BAD_FRAME, f"reply {header.request_id} lends something else")
    return ranges, message[end:]


def steps_of(
    ranges: Buffer, buffers: Sequence[memoryview]
) -> Iterator[tuple[Buffer, Sequence[memoryview]]]:
    """Cut ranges, and the buffers that they go to, into steps of STEP_BYTES at the most;
    what is no more than that stays as it is.
    """
    size = sum(map(len, buffers))
    if size <= STEP_BYTES:
        yield ranges, buffers
        return
    rest, rows = deque(buffers), deque(RANGE.iter_unpack(ranges))
    while size:
        left = min(size, STEP_BYTES)
        size -= left
        into, packed = list(_cut_off(rest, left)), []
        while left:
            number, offset, length = rows.popleft()
            part = min(length, left)
            packed.append(RANGE.pack(number, offset, part))
            left -= part
            if part < length:
                rows.appendleft((number, offset + part, length - part))
        yield b"".join(packed), into


def _cut_off(rest: deque[memoryview], count: int) -> Iterator[memoryview]:
    """Take so many bytes from the front of some buffers."""
    while count:
        buffer = rest.popleft()
        part = buffer[:count]
        if len(part) < len(buffer):
            rest.appendleft(buffer[count:])
        count -= len(part)
        yield part
