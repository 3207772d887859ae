"""The twin of device.c: the same in Python.  It says what the functions promise.

A descriptor is that of /dev/fuse, not blocking, or, in tests, of a socket that keeps the boundaries of messages.  What is packed is in
the byte order of the machine, as the kernel has it.
"""

import errno
import os
import struct
from typing import Final

Buffer = bytes | bytearray | memoryview

READ_OPCODE: Final = 15
READ_REQUEST: Final = struct.Struct("=IIQQIIIHHQQIIQII")
"""A READ as a whole: length, opcode, unique, node, uid, gid, pid, two of no concern; handle, offset, size, four of no concern."""
ANSWER: Final = struct.Struct("=QQIi")
"""Unique, where its bytes begin in the memory, how many there are, and an errno, with which there are none; 0: success."""
COUNT_MAX: Final = 64
"""Of one call."""
_HEAD: Final = struct.Struct("=II")
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
        `READ_REQUEST` by `READ_REQUEST` what was received; and the bytes of another request, -1 if there is none.  A socket that has ended
        has one of no bytes.

    Raises:
        OSError: what the device says, such as ENODEV when the mount is gone, and only while there are no READs to be returned.
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


def answer_reads(fd: int, answers: Buffer, memory: Buffer, /) -> list[tuple[int, int]]:
    """Answer requests; the memory is free again when this returns.

    Args:
        fd: of the device.
        answers: `ANSWER` by `ANSWER`, at most COUNT_MAX.
        memory: where their bytes lie.

    Returns:
        Position and errno of each answer that the device refused, other than because nobody waits for it.

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
            # ENOENT: its caller gave up meanwhile.  ENODEV: the mount is gone, and so is everybody who waits.
            if error.errno not in (errno.ENOENT, errno.ENODEV):
                refused.append((position, error.errno or errno.EIO))
    return refused
