"""The twin of device.c: the same in Python.  It says what the functions promise.

A descriptor is that of /dev/fuse, not blocking, or, in tests, of a socket that keeps the boundaries
of messages.  What is packed is in the byte order of the machine, as the kernel has it.
"""

import errno
import os
import struct
from typing import Final

Buffer = bytes | bytearray | memoryview

READ_OPCODE: Final = 15
READ_REQUEST: Final = struct.Struct("=IIQQIIIHHQQIIQII")
"""A READ as a whole: length, opcode, unique, node, uid, gid, pid, two of no concern;
handle, offset, size, four of no concern.
"""
ANSWER: Final = struct.Struct("=QQIi")
"""Unique, where its bytes begin in the memory, how many there are, and an errno,
with which there are none; 0: success.
"""
COUNT_MAX: Final = 64
"""Of one call."""
PART_COUNT_MAX: Final = 8
"""Of one answer."""
_HEAD: Final = struct.Struct("=II")
_IN_HEADER: Final = struct.Struct("=IIQQIIIHH")
_OUT_HEADER: Final = struct.Struct("=IiQ")
_LENGTH_MAX: Final = 2**32 - 1 - _OUT_HEADER.size


def receive_reads(
    fd: int, head: bytearray | memoryview, data: bytearray | memoryview, count_max: int, /
) -> tuple[bytes, int]:
    """Receive READs until there are no more, another request comes, or there are enough.

    Args:
        fd: of the device.
        head: holds READ_REQUEST.size bytes; the start of another request is put there.
        data: takes the rest of that.
        count_max: as many READs are enough; so are COUNT_MAX.

    Returns:
        `READ_REQUEST` by `READ_REQUEST` what was received; and the bytes of another request, -1 if
        there is none.  A socket that has ended has one of no bytes.

    Raises:
        OSError: what the device says, such as ENODEV when the mount is gone, and only while there
            are no READs to be returned.
    """
    if len(head) != READ_REQUEST.size or count_max < 1:
        raise ValueError(f"{len(head)} bytes for a head, {count_max} requests")
    rows: list[bytes] = []
    while len(rows) < min(count_max, COUNT_MAX):
        try:
            size = os.readv(fd, (head, data))
        except BlockingIOError:
            break
        except OSError as error:
            if error.errno == errno.ENOENT:  # that one was given up by its caller
                continue
            if rows:
                break
            raise
        if size != READ_REQUEST.size or _HEAD.unpack_from(head) != (size, READ_OPCODE):
            return b"".join(rows), size
        rows.append(bytes(head))
    return b"".join(rows), -1


def take_request(
    head: Buffer, data: Buffer, size: int, /
) -> tuple[int, int, int, int, int, int, bytes]:
    """Return unique, opcode, node, uid, gid and pid of a request that `receive_reads` has received,
    and what follows its header.

    Args:
        head: where it begins, as given to `receive_reads`.
        data: where it goes on.
        size: its bytes.

    Raises:
        ValueError: they are not those of a request.
    """
    if len(head) != READ_REQUEST.size or not _IN_HEADER.size <= size <= len(head) + len(data):
        raise ValueError(f"{size} bytes of a request, in {len(head)} and {len(data)}")
    length, opcode, unique, node_id, uid, gid, pid, _, _ = _IN_HEADER.unpack_from(head)
    if length != size:
        raise ValueError(f"{size} bytes of a request, which says {length}")
    body = b"".join((head, data[: max(0, size - len(head))]))[_IN_HEADER.size : size]
    return unique, opcode, node_id, uid, gid, pid, body


def answer_request(fd: int, unique: int, error: int, parts: tuple[Buffer, ...], /) -> int:
    """Answer a request with these bytes, PART_COUNT_MAX parts at most,
    which are free again when this returns, and an errno, 0: none.

    Returns:
        0, or the errno of the device, which has taken nothing then.

    Raises:
        ValueError: too many parts or bytes, or a number that its field
            cannot hold; nothing is answered.
    """
    length = _OUT_HEADER.size + sum(map(len, parts))
    if len(parts) > PART_COUNT_MAX or length >= 2**32:
        raise ValueError(f"{length} bytes in {len(parts)} parts of an answer")
    if not (-(2**31) <= fd < 2**31 and 0 <= unique < 2**64 and 0 <= error < 2**31):
        raise ValueError("a number that its field cannot hold")
    try:
        os.writev(fd, (_OUT_HEADER.pack(length, -error, unique), *parts))
    except OSError as failure:
        return failure.errno or errno.EIO
    return 0


def answer_reads(fd: int, answers: Buffer, memory: Buffer, /) -> list[tuple[int, int]]:
    """Answer requests; the memory is free again when this returns.

    Args:
        fd: of the device.
        answers: `ANSWER` by `ANSWER`, at most COUNT_MAX.
        memory: where their bytes lie.

    Returns:
        Position and errno of each answer that the device refused, other than
        because nobody waits for it.

    Raises:
        ValueError: an answer is not whole, or beyond the memory; nothing is answered.
    """
    count, rest = divmod(len(answers), ANSWER.size)
    if rest or count > COUNT_MAX:
        raise ValueError(f"{len(answers)} bytes of answers")
    found = list(ANSWER.iter_unpack(answers))
    for position, (_, place, length, number) in enumerate(found):
        if place + length > len(memory) or length > _LENGTH_MAX or number < 0:
            raise ValueError(f"answer {position} is beyond the memory, or no answer")
    refused, view = [], memoryview(memory)
    for position, (unique, place, length, number) in enumerate(found):
        part = view[place : place + (0 if number else length)]
        header = _OUT_HEADER.pack(_OUT_HEADER.size + len(part), -number, unique)
        try:
            os.writev(fd, (header, part))
        except OSError as error:
            # ENOENT: its caller gave up meanwhile.  ENODEV: the mount is gone, and
            # so is everybody who waits.
            if error.errno not in (errno.ENOENT, errno.ENODEV):
                refused.append((position, error.errno or errno.EIO))
    return refused
