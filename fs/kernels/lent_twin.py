"""The twin of lent.c: the same in Python.  It says what the functions promise.

A process that has asked another one of its machine to read a payload has lent it: it leaves those
bytes as they are until it is answered.
"""

import ctypes
import errno
import os
import stat
import struct
from collections.abc import Sequence
from contextlib import ExitStack
from functools import cache
from typing import Any, Final

Buffer = bytes | bytearray | memoryview

PIECE: Final = struct.Struct("<QQ")
"""Where bytes lie in the memory of their process, and how many there are."""
PIECE_COUNT_MAX: Final = 1000
NONCE_BYTES: Final = 16
RANGE: Final = struct.Struct("<QQQ")
"""The number of another process's descriptor,
and where in its file a range begins and how long it is.
"""

_NUMBER_MAX: Final = 2**64 - 1
_DESCRIPTOR_MAX: Final = 2**31 - 1
_OFFSET_MAX: Final = 2**63 - 1
_PIDFD_GETFD: Final = 438
"""Of the system calls; the same on all kinds of machines."""

_WRITABLE: Final = 1


class _Iovec(ctypes.Structure):
    _fields_ = (("base", ctypes.c_size_t), ("length", ctypes.c_size_t))


class _View(ctypes.Structure):
    """What `PyObject_GetBuffer` fills in; only the first three fields are of concern."""

    _fields_ = (
        ("buf", ctypes.c_void_p),
        ("obj", ctypes.py_object),
        ("len", ctypes.c_ssize_t),
        ("rest", ctypes.c_void_p * 12),
    )


@cache
def _library() -> Any:
    return ctypes.CDLL(None, use_errno=True)


def pieces_of(buffers: Sequence[Buffer], /) -> bytes:
    """Return `PIECE` by `PIECE` where buffers lie.

    That says nothing of how long they stay there, which is their owner's business.

    Raises:
        ValueError: there are more than PIECE_COUNT_MAX.
    """
    if len(buffers) > PIECE_COUNT_MAX:
        raise ValueError("too many pieces")
    return b"".join(PIECE.pack(*_place_of(buffer)) for buffer in buffers)


def _place_of(buffer: Buffer, flags: int = 0) -> tuple[int, int]:
    view = _View()
    ctypes.pythonapi.PyObject_GetBuffer(ctypes.py_object(buffer), ctypes.byref(view), flags)
    try:
        return view.buf or 0, view.len
    finally:
        ctypes.pythonapi.PyBuffer_Release(ctypes.byref(view))


def read_lent(  # noqa: PLR0917 - as the compiled one has them
    pid: int, pieces: Buffer, skip: int, into: bytearray | memoryview, place: int, nonce: bytes, /
) -> None:
    """Read memory of another process, all that is wanted or an error;
    `into` may hold anything after that.

    Args:
        pid: of the process; its own is one, too.
        pieces: `PIECE` by `PIECE`, at most PIECE_COUNT_MAX.
        skip: so many of their bytes do not matter.
        into: is filled with those that follow.
        place: where that process has the nonce.
        nonce: NONCE_BYTES.  It is read together with the bytes, so they
            are of a process that has it.

    Raises:
        OSError: what the kernel says: EPERM, ESRCH (also: what has that number now has no such
            nonce), EFAULT (a piece is not there, or only a part of it), ENOSYS, ENOMEM.
        ValueError: the pieces are not whole, too many, too short for what is wanted, or beyond
            64 bits; or it is no nonce.
    """
    if len(pieces) % PIECE.size or len(pieces) > PIECE_COUNT_MAX * PIECE.size:
        raise ValueError(f"{len(pieces)} bytes of pieces")
    if len(nonce) != NONCE_BYTES:
        raise ValueError(f"{len(nonce)} bytes of a nonce")
    target, seen = _place_of(into, _WRITABLE), bytearray(NONCE_BYTES)
    parts = [*_cut(pieces, skip, len(into)), (place, NONCE_BYTES)]
    from_there = (_Iovec * len(parts))(*[_Iovec(*part) for part in parts])
    to_here = (_Iovec * 2)(_Iovec(*target), _Iovec(*_place_of(seen)))
    done = _library().process_vm_readv(
        ctypes.c_int(pid),
        to_here,
        ctypes.c_ulong(2),
        from_there,
        ctypes.c_ulong(len(parts)),
        ctypes.c_ulong(0),
    )
    failure = 0
    if done < 0:
        failure = ctypes.get_errno()
    elif done != len(into) + NONCE_BYTES:
        failure = errno.EFAULT
    elif seen != nonce:
        failure = errno.ESRCH
    if failure:
        raise OSError(failure, os.strerror(failure))


def _cut(pieces: Buffer, skip: int, wanted: int) -> list[tuple[int, int]]:
    """Return the parts of pieces that are wanted, behind what is skipped."""
    parts: list[tuple[int, int]] = []
    for address, length in PIECE.iter_unpack(pieces):
        if not wanted:
            break
        if address + length > _NUMBER_MAX:
            raise ValueError("a piece beyond all memory")
        count = min(max(0, length - skip), wanted)
        if count:
            parts.append((address + skip, count))
        skip = max(0, skip - length)
        wanted -= count
    if wanted:
        raise ValueError("pieces too short for what is wanted")
    return parts


def read_files(
    pid: int,
    ranges: Buffer,
    into: Sequence[bytearray | memoryview],
    place: int,
    nonce: bytes,
    /,
) -> None:
    """Read ranges of files that another process has open out of the page cache,
    all of them or an error.

    Descriptors are copied by pidfd_getfd(2), which the kernel lets happen where it lets memory be
    read, and closed again: nothing of another process's files stays open here.

    Args:
        pid: of the process; its own is one, too.
        ranges: `RANGE` by `RANGE`, at most PIECE_COUNT_MAX.
        into: buffers that are filled with them, one after the other; each may
            hold anything after an error.
        place: where that process has the nonce, which is looked for behind all reads.
        nonce: NONCE_BYTES.

    Raises:
        OSError: what the kernel says: EPERM, EBADF, ENOSYS; ESRCH also: what has that number now
            has no such nonce; EINVAL: no regular file; EAGAIN (BlockingIOError): the disk would
            have to be waited for, or the file is shorter.
        ValueError: the ranges are not whole, too many, beyond any file, or not as many bytes as the
            buffers; or it is no nonce.
    """
    if len(ranges) % RANGE.size or len(ranges) > PIECE_COUNT_MAX * RANGE.size:
        raise ValueError(f"{len(ranges)} bytes of ranges")
    if len(nonce) != NONCE_BYTES:
        raise ValueError(f"{len(nonce)} bytes of a nonce")
    rows = list(RANGE.iter_unpack(ranges))
    rest = [memoryview(one).cast("B") for one in reversed(into)]
    if any(one.readonly for one in rest):
        raise BufferError("what is read into can be written to")
    if any(offset + length > _OFFSET_MAX for _, offset, length in rows):
        raise ValueError("a range beyond any file")
    if sum(length for _, _, length in rows) != sum(map(len, rest)):
        raise ValueError("ranges of other sizes than the buffers")
    if not (hasattr(os, "pidfd_open") and hasattr(os, "RWF_NOWAIT")):  # built where headers are old
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    fds: dict[int, int] = {}
    with ExitStack() as opened:
        pidfd = os.pidfd_open(pid)
        opened.callback(os.close, pidfd)
        for number, offset, length in rows:
            if number not in fds:
                fds[number] = copied(pidfd, number, opened)
            _read_range(fds[number], offset, length, rest)
    read_lent(pid, b"", 0, bytearray(), place, nonce)


def copied(pidfd: int, number: int, opened: ExitStack) -> int:
    """Return a descriptor of ours of a regular file of another process, for as long as `opened`.

    Raises:
        OSError: as `read_files`.
    """
    if number > _DESCRIPTOR_MAX:
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))
    fd: int = _library().syscall(
        ctypes.c_long(_PIDFD_GETFD), ctypes.c_int(pidfd), ctypes.c_int(number), ctypes.c_uint(0)
    )
    if fd < 0:
        failure = ctypes.get_errno()
        raise OSError(failure, os.strerror(failure))
    opened.callback(os.close, fd)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
    return fd


def _read_range(fd: int, offset: int, length: int, rest: list[memoryview]) -> None:
    """Fill the last of some buffers, as far as the range goes, with what is cached of it."""
    at, end = offset, offset + length
    while at < end:
        buffer = rest.pop()
        part = buffer[: end - at]
        if len(part) < len(buffer):
            rest.append(buffer[len(part) :])
        if len(part) and os.preadv(fd, (part,), at, os.RWF_NOWAIT) != len(part):
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        at += len(part)
