"""Whether bytes of a file are in the page cache, asked without reading them, nor having them read.

Concurrency: thread-safe; waits for nothing.
"""

import ctypes
import errno
import os
from collections.abc import Callable
from functools import cache
from typing import Final

from ..kernels.reads_twin import ReadNow

_CACHESTAT: Final = 451
"""Of the system calls, since Linux 6.5; the same on all kinds of machines."""

_PAGE_BYTES: Final = os.sysconf("SC_PAGESIZE")


class _Range(ctypes.Structure):
    _fields_ = (("offset", ctypes.c_uint64), ("length", ctypes.c_uint64))


class _Stat(ctypes.Structure):
    """In pages."""

    _fields_ = (
        ("cached", ctypes.c_uint64),
        ("dirty", ctypes.c_uint64),
        ("writeback", ctypes.c_uint64),
        ("evicted", ctypes.c_uint64),
        ("recently_evicted", ctypes.c_uint64),
    )


def is_cached(source: int | ReadNow, offset: int, length: int) -> bool:
    """Return whether a range is in memory, or is about to be: a hint;
    False also where the system cannot tell.

    Args:
        source: a descriptor, or what stands for one, which is asked for its first byte.
        offset: from the start of the file.
        length: above 0.
    """
    if not isinstance(source, int):
        try:
            return source([memoryview(bytearray(1))], offset, os.RWF_NOWAIT) == 1
        except OSError:
            return False
    first, end = offset // _PAGE_BYTES, -(-(offset + length) // _PAGE_BYTES)
    return _cached_pages(source, offset, length) == end - first


def is_uncached(source: int | ReadNow, offset: int, length: int) -> bool:
    """Return whether nothing of a range is in memory; False also where the system cannot tell.

    Of what is no descriptor as `is_cached`.
    """
    if isinstance(source, int):
        return _cached_pages(source, offset, length) == 0
    return not is_cached(source, offset, length)


def _cached_pages(fd: int, offset: int, length: int) -> int:
    """Return how many pages of a range are there; -1: nobody knows."""
    call = _system_call()
    if call is None:
        return -1
    where, found = _Range(offset, length), _Stat()
    if call(_CACHESTAT, fd, ctypes.byref(where), ctypes.byref(found), 0):
        return -1
    return int(found.cached)


@cache
def _system_call() -> Callable[..., int] | None:
    """Return what asks the kernel; None: it does not know the question."""
    call = ctypes.CDLL(None, use_errno=True).syscall
    call.argtypes = (ctypes.c_long, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint)
    call.restype = ctypes.c_long
    call(_CACHESTAT, -1, None, None, 0)
    return call if ctypes.get_errno() != errno.ENOSYS else None
