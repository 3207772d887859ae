"""Memory behind which stands no file system:
whoever touches it, this process or another one, waits for nobody.

A page of a file that is mapped may first have to be read, maybe from a mount of ours: a process
that serves that mount and touched such a page would wait for itself.
"""

import ctypes
import mmap
from typing import Final

from .ports import Buffer

_POPULATE_WRITE: Final = 23
"""Of madvise, since Linux 5.14."""


class PlainMemory(mmap.mmap):
    """A mapping of memory alone: anonymous, or of a sealed memory file of ordinary pages."""

    is_plain: Final = True


def is_plain(buffer: Buffer) -> bool:
    """Return whether it is known that bytes lie in plain memory."""
    owner = buffer.obj if isinstance(buffer, memoryview) else buffer
    return type(owner) in {bytes, bytearray} or getattr(owner, "is_plain", False) is True


def touch(memory: memoryview) -> None:
    """Have the kernel find and clear all pages of a new anonymous mapping now,
    without the interpreter's lock; a hint.
    """
    libc = ctypes.CDLL(None)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(len(memory)), _POPULATE_WRITE)
