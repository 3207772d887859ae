"""Descriptors that programs send, and their end.

The last close of a file runs in whoever closes it, and may take as long as its sender likes: a
socket that lingers, a file of a file system that never answers.  So the daemon's own thread
never closes one, nor lets the kernel do so for it: it receives all that a packet carries, and
empties a socket before it closes that.

Does not: keep the kernel from closing what finds no room in the table of descriptors.
"""

import array
import logging
import os
import socket
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

import trio

_log = logging.getLogger(__name__)

_FD_BYTES: Final = array.array("i").itemsize
_FDS_MAX: Final = 253
"""Linux sends no more at once."""
_CREDENTIAL_BYTES: Final = 12
SPACE: Final = socket.CMSG_SPACE(_FDS_MAX * _FD_BYTES) + socket.CMSG_SPACE(_CREDENTIAL_BYTES)
"""For what may come beside a packet."""
_PACKET_BYTES: Final = 4096
_NO_WAIT: Final = socket.MSG_DONTWAIT | socket.MSG_CMSG_CLOEXEC

AGAIN_S: Final = 0.1
"""Between two tries to get a thread."""

CLOSES_PER_USER_MAX: Final = 64
"""A user of whom so many are under way is served no further program."""


def received(ancillary: Sequence[tuple[int, int, bytes]]) -> list[int]:
    """Return what came beside a packet."""
    fds = array.array("i")
    for level, kind, content in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            fds.frombytes(content[: len(content) // fds.itemsize * fds.itemsize])
    return list(fds)


def drain(connection: socket.socket) -> list[int]:
    """Return what lies in a socket that nobody will read any more; nothing more can come then."""
    fds: list[int] = []
    has_packets = connection.type == socket.SOCK_SEQPACKET
    with suppress(OSError):  # it has ended
        # With its sender's name no packet, however empty, looks like the end;
        # a stream has no empty ones.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, has_packets)
        connection.shutdown(socket.SHUT_RD)
        while True:
            packet, ancillary, _, _ = connection.recvmsg(_PACKET_BYTES, SPACE, _NO_WAIT)
            if not packet and not (has_packets and ancillary):
                break
            fds += received(ancillary)
    return fds


class Closer:
    """Closes what programs have sent, in threads."""

    def __init__(self) -> None:
        self._under_way: Counter[int] = Counter()

    def is_busy(self, uid: int) -> bool:
        """Return whether what a user has sent takes too long to close."""
        return self._under_way[uid] >= CLOSES_PER_USER_MAX

    def close(self, uid: int, fds: Sequence[int]) -> trio.Event:
        """Begin to close descriptors; return what is set when it is done."""
        closed, token = trio.Event(), trio.lowlevel.current_trio_token()
        if not fds:
            closed.set()
            return closed
        self._under_way[uid] += 1

        def note() -> None:
            self._under_way[uid] -= 1
            closed.set()

        def deliver(_: object) -> None:
            with suppress(trio.RunFinishedError):
                token.run_sync_soon(note)

        def close_all() -> None:
            for fd in fds:
                with suppress(OSError):  # it is closed all the same
                    os.close(fd)

        try:
            trio.lowlevel.start_thread_soon(close_all, deliver)
        except RuntimeError as error:
            _log.warning("%d descriptors of user %d wait for a thread: %s", len(fds), uid, error)
            trio.lowlevel.spawn_system_task(_start_later, close_all, deliver)
        return closed

    def end(self, uid: int, connection: socket.socket, fds: Sequence[int] = ()) -> None:
        """Close a socket of the daemon's own, what lies in it, and what came out of it."""
        self.close(uid, [*fds, *drain(connection)])
        connection.close()


async def _start_later(function: Callable[[], None], deliver: Callable[[object], None]) -> None:
    """Have a thread call a function once one is to be had;
    what is never called ends with the process.
    """
    while True:
        await trio.sleep(AGAIN_S)
        try:
            trio.lowlevel.start_thread_soon(function, deliver)
        except RuntimeError:
            continue
        return
