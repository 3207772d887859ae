"""Files that the process at the other end of a Unix socket has open; see `fs.runtime.ports.PeerFiles`.

Descriptors are copied by pidfd_getfd(2), which the kernel lets happen where it lets memory be read (peer_memory.py says between whom), and
closed again with the object: nothing of another process's files stays open here, and a number means nothing beyond the reply that names it.
"""

import ctypes
import errno
import os
import stat
from functools import cache
from typing import Any, Final

_PIDFD_GETFD: Final = 438
"""Of the system calls; the same on all kinds of machines."""

_NUMBER_MAX: Final = 2**31 - 1


class UnixPeerFiles:
    """See PeerFiles."""

    __slots__ = ("_fds", "_pid", "_pidfd")

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._pidfd = -1
        self._fds: dict[int, int] = {}
        """Of ours, by theirs."""

    def read(self, number: int, offset: int, into: memoryview) -> None:
        """See PeerFiles."""
        fd = self._fds.get(number)
        if fd is None:
            fd = self._copied(number)
        count = os.preadv(fd, (into,), offset, os.RWF_NOWAIT)
        if count != len(into):
            # What is cached ends there, or the file does: who has the file finds out which.
            raise BlockingIOError(errno.EAGAIN, "not all of it is in memory")

    def _copied(self, number: int) -> int:
        """Return a descriptor of ours of a regular file of theirs; raises OSError."""
        if number > _NUMBER_MAX:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        if self._pidfd < 0:
            self._pidfd = os.pidfd_open(self._pid)
        fd: int = _library().syscall(
            ctypes.c_long(_PIDFD_GETFD),
            ctypes.c_int(self._pidfd),
            ctypes.c_int(number),
            ctypes.c_uint(0),
        )
        if fd < 0:
            number_of_error = ctypes.get_errno()
            raise OSError(number_of_error, os.strerror(number_of_error))
        self._fds[number] = fd
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(errno.EINVAL, "no regular file")
        return fd

    def close(self) -> None:
        """See PeerFiles."""
        for fd in self._fds.values():
            os.close(fd)
        self._fds.clear()
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1


@cache
def _library() -> Any:
    return ctypes.CDLL(None, use_errno=True)
