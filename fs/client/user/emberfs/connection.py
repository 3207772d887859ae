"""A program's connection to the mount daemon: finding it, requests and answers.

Invariants:
    - Any number of threads may call at once; whoever waits for an answer
      receives for the others, too.
    - A connection that has ended stays ended: every call then raises ENOTCONN.

After a fork the child must drop its copy (`abandon`), or the daemon
could take the parent for alive.
"""

import errno
import os
import socket
import struct
import threading
import weakref
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple, NoReturn

from .mounted import require_mounted
from .protocol import PACKET_BYTES_MAX, REPLY, REQUEST, SOCKET_ATTRIBUTE, VERSION, Call

_FDS_MAX = 2
_UNSENT = {errno.EBADF, errno.ETOOMANYREFS}
"""What the kernel says of a descriptor that it does not send along; the connection is as before."""
_GONE = (
    "the mount daemon has ended this connection: files are to be opened again, once the mount is "
    "served"
)


class Answer(NamedTuple):
    """What the daemon says; descriptors are the receiver's to close."""

    error_number: int
    detail: str
    id: int
    number: int
    fds: Sequence[int]
    is_cut: bool = False
    """This process could take no more descriptors: some of those that were sent are lost."""


def socket_address(path: str) -> str | bytes:
    """Return where the daemon of the mount that `path` is on listens.

    Raises:
        OSError: EOPNOTSUPP: it is on no mount that serves batches; ENOTCONN: nothing is mounted
            where it should be; ENOENT and others: as of stat(2).
    """
    try:
        name = os.getxattr(path, SOCKET_ATTRIBUTE)
    except OSError as error:
        if error.errno not in (errno.ENODATA, errno.EOPNOTSUPP):
            raise
        name = b""
    if not name:
        require_mounted(path)
        what = (
            "not on an EmberFS mount that serves batches (emberfs.opening.open_client takes any "
            "path)"
        )
        raise OSError(errno.EOPNOTSUPP, what, path)
    return b"\0" + name[1:] if name.startswith(b"@") else os.fsdecode(name)


class Connection:
    """See module head."""

    def __init__(self, path: str) -> None:
        """Connect to the daemon of the mount that `path` is on; raises OSError."""
        self.path = path
        """By which the mount was found; named in errors."""
        self._lock = threading.Lock()
        self._heard = threading.Condition(self._lock)
        self._is_receiving = False
        self._answers: dict[int, Answer] = {}
        self._given_up: set[int] = set()
        self._serial = 0
        self.has_ended = False
        """Whether a call has found that the daemon listens no more."""
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        # What has no `close`, as a data set, lets go of it without a warning.
        weakref.finalize(self, self._socket.close).atexit = False
        try:
            self._reach(socket_address(path))
            self.call(Call.HELLO, VERSION)
            self.device = os.stat(path).st_dev  # noqa: PTH116 - a path of any type
            """Of all files of the mount."""
        except BaseException:
            self._socket.close()
            raise

    def _reach(self, address: str | bytes) -> None:
        """Connect to the daemon.

        Raises:
            OSError: ECONNREFUSED, ENOENT and others, with the path of the mount: an address in the
                kernel's own space is one of a network namespace, so containers do not find it.
        """
        try:
            self._socket.connect(address)
        except OSError as error:
            what = f"the mount daemon is out of reach ({error.strerror}): " + (
                "it has just ended, or is in another network namespace: see client.batch_socket"
                if isinstance(address, bytes)
                else f"nothing listens at {address}"
            )
            raise OSError(error.errno, what, self.path) from error

    def call(
        self,
        call: Call,
        id_: int = 0,
        *,
        depth: int = 0,
        timeout_ms: int = 0,
        priority: int = 0,
        first: int = 0,
        second: int = 0,
        fd: int = -1,
    ) -> Answer:
        """Make one request and wait for its answer.

        Raises:
            OSError: what the daemon says, or ENOTCONN.
        """
        with self._lock:
            serial = self._serial = (self._serial + 1) % 2**32
        try:
            packet = REQUEST.pack(call, serial, id_, depth, timeout_ms, priority, first, second)
        except struct.error as error:
            numbers = ", ".join(map(str, (id_, depth, timeout_ms, priority, first, second)))
            said = f"{call.name} with a number that no request has, one of {numbers}: {error}"
            raise ValueError(said) from None
        try:
            socket.send_fds(self._socket, [packet], [fd] if fd >= 0 else [], socket.MSG_NOSIGNAL)
        except OSError as error:
            if error.errno in _UNSENT and fd >= 0 and self._socket.fileno() >= 0:
                what = f"descriptor {fd} cannot be sent to the mount daemon: {error.strerror}"
                raise OSError(error.errno, what, self.path) from error
            raise self._gone() from error
        answer = self._wait(serial)
        if answer.is_cut:
            self._give_up(call, answer)
        if answer.error_number:
            raise OSError(answer.error_number, answer.detail, self.path)
        return answer

    def _give_up(self, call: Call, answer: Answer) -> NoReturn:
        """Have the daemon forget what this process could not take; raise OSError: EMFILE."""
        for fd in answer.fds:
            os.close(fd)
        if call is Call.NEW_MEMORY:  # a ring ends with its bell
            self.call(Call.DROP_MEMORY, answer.id)
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), self.path)

    def _wait(self, serial: int) -> Answer:
        with self._heard:
            try:
                while serial not in self._answers:
                    if self._is_receiving:
                        self._heard.wait()
                    else:
                        self._receive_one()
            except BaseException:  # an interrupt; the answer comes all the same
                self._given_up.add(serial)
                raise
            return self._answers.pop(serial)

    def _receive_one(self) -> None:
        self._is_receiving = True
        self._lock.release()
        try:
            serial, answer = self._receive()
        finally:
            self._lock.acquire()
            self._is_receiving = False
            self._heard.notify_all()
        if serial not in self._given_up:
            self._answers[serial] = answer
            return
        self._given_up.discard(serial)
        for fd in answer.fds:
            os.close(fd)

    def _receive(self) -> tuple[int, Answer]:
        try:
            packet, fds, flags, _ = socket.recv_fds(
                self._socket, PACKET_BYTES_MAX, _FDS_MAX, socket.MSG_CMSG_CLOEXEC
            )
        except OSError as error:
            raise self._gone() from error
        if len(packet) < REPLY.size:
            raise self._gone()
        serial, error_number, id_, _, number = REPLY.unpack_from(packet)
        detail = packet[REPLY.size :].decode(errors="replace")
        is_cut = bool(flags & socket.MSG_CTRUNC)
        return serial, Answer(error_number, detail, id_, number, fds, is_cut)

    def _gone(self) -> OSError:
        self.has_ended = True
        return OSError(errno.ENOTCONN, _GONE, self.path)

    def abandon(self) -> None:
        """Close this process's copy; threads that wait for an answer are not woken."""
        self._socket.close()

    def close(self) -> None:
        """End the connection: the daemon frees all that was registered by it."""
        with suppress(OSError):  # it has ended already
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
