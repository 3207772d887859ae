"""Memory of the process at the other end of a Unix socket; see `fs.runtime.ports.PeerMemory`.

Only that of a process of our own user is read, though the kernel lets root read everybody's: a
socket says which process connected, and what has its number later, or is run by it, might be
somebody else's to whose memory a stranger must not point us.  Between processes of one user the
kernel alone decides (ptrace(2), "PTRACE_MODE_ATTACH_REALCREDS").

A read of memory whose pages another program has to bring first (userfaultfd(2), a mapped file of a
file system in user space) holds up our event loop for as long as that takes.  Callers of ours lend
none such (plain_memory.py); a program of our own user that means harm could stop us as well.
"""

import os
import socket
import struct
from collections.abc import Sequence
from typing import Final

from ..kernels.lent import NONCE_BYTES, pieces_of, read_files, read_lent
from ..runtime.ports import Buffer, FileSource
from .peer_files import read_past_cache

_CREDENTIALS: Final = struct.Struct("=iII")
"""Process, user and group, as SO_PEERCRED has them: of whoever connected, or began to listen."""


class UnixPeerMemory:
    """See module head."""

    def __init__(self, pid: int) -> None:
        self._pid = pid

    def fresh_nonce(self) -> bytes:
        """See PeerMemory."""
        return os.urandom(NONCE_BYTES)

    def pieces_of(self, buffers: Sequence[Buffer]) -> bytes:
        """See PeerMemory."""
        return pieces_of(buffers)

    def may_change(self, pieces: bytes) -> None:
        """See PeerMemory: it stays where it is, and holds what its owner puts there."""

    def read(self, pieces: bytes, skip: int, into: memoryview, place: int, nonce: bytes) -> None:
        """See PeerMemory."""
        read_lent(self._pid, pieces, skip, into, place, nonce)

    def number_of(self, source: FileSource) -> int:
        """See PeerMemory."""
        assert isinstance(source, int), source
        return source

    def sources_may_change(self, numbers: Sequence[int]) -> None:
        """See PeerMemory: its owner may close it, and have the number for another one."""

    def read_ranges(
        self, ranges: Buffer, buffers: Sequence[memoryview], place: int, nonce: bytes
    ) -> None:
        """See PeerMemory."""
        read_files(self._pid, ranges, buffers, place, nonce)

    def read_direct(
        self, ranges: Buffer, buffers: Sequence[memoryview], place: int, nonce: bytes
    ) -> None:
        """See PeerMemory."""
        read_past_cache(self._pid, ranges, buffers)
        read_lent(self._pid, b"", 0, bytearray(), place, nonce)  # behind: they were still lent


def memory_behind(sock: socket.socket) -> UnixPeerMemory | None:
    """Return the memory of the process at the other end;
    None: it is another user's, or not of this machine or namespace.
    """
    if sock.family != socket.AF_UNIX:
        return None
    try:
        packed = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    except OSError:  # it has left, or a kernel that does not tell
        return None
    pid, uid, _ = _CREDENTIALS.unpack(packed)
    return UnixPeerMemory(pid) if pid > 0 and uid == os.geteuid() else None
