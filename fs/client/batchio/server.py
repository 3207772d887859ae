"""Listens for programs that want to move batches, as long as the mount lasts.

Anybody may connect: what he reaches is what he holds open on the mount, which tickets prove, and
the memory that he and the daemon share.  What one program can take is bounded
(fs/client/batchio/program.py), and what one user's programs can.
"""

import errno
import logging
import os
import socket
from collections import Counter
from pathlib import Path
from typing import Final

import trio

from ...runtime.figures import Figures
from ...schema import metrics
from ...schema.config import ClientSection
from ...schema.status import FsError, Status
from ..vfs.vfs import Vfs
from .descriptors import Closer
from .program import Program, Refusal
from .turns import Turns

_log = logging.getLogger(__name__)

BATCHES_AT_ONCE: Final = 64
PROGRAMS_PER_USER_MAX: Final = 256
_BACKLOG: Final = 128
_NAME_BYTES: Final = 16
_PAUSE_S: Final = 0.1
_NO_DESCRIPTORS: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


class MemoryRoom:
    """Bytes that programs may have mapped here:
    those of one user up to a bound, of all users up to twice that.

    Memory that is in use cannot be called back, so a plain user's programs get half of what those
    of others leave of the twice, at the most, which is all that is for one user where he is alone:
    whoever comes next, and as long as the first ones stay, finds some.  Root's get what is left.
    """

    def __init__(self, bytes_max: int) -> None:
        """Take what one user's programs may have."""
        self._bytes_max = bytes_max
        self.used_bytes = 0
        self._used_by: Counter[int] = Counter()

    def of_user(self, uid: int) -> "UserRoom":
        """Return the room of one program of a user."""
        return UserRoom(self, uid)

    def take(self, uid: int, count: int) -> None:
        """See Room."""
        own_bytes = self._used_by[uid]
        left_bytes = 2 * self._bytes_max - (self.used_bytes - own_bytes)
        own_bytes_max = min(left_bytes, self._bytes_max) if uid == 0 else left_bytes // 2
        if own_bytes + count > own_bytes_max:
            what = (
                f"{count} bytes of shared memory are not to be had: programs of user {uid} have "
                f"{own_bytes} of {own_bytes_max}, those of all users of this mount "
                f"{self.used_bytes}; one user alone gets {self._bytes_max} "
                "(client.batch_memory_bytes_max): close what is not used, or have it raised"
            )
            raise Refusal(errno.ENOMEM, what)
        self.used_bytes += count
        self._used_by[uid] += count

    def give_back(self, uid: int, count: int) -> None:
        """See Room."""
        self.used_bytes -= count
        self._used_by[uid] -= count
        if not self._used_by[uid]:
            del self._used_by[uid]


class UserRoom:
    """A `Room` of one user's programs."""

    def __init__(self, room: MemoryRoom, uid: int) -> None:
        self._room = room
        self._uid = uid

    def take(self, count: int) -> None:
        """See Room."""
        self._room.take(self._uid, count)

    def give_back(self, count: int) -> None:
        """See Room."""
        self._room.give_back(self._uid, count)


class BatchServer:
    """See module head."""

    def __init__(self, vfs: Vfs, section: ClientSection) -> None:
        self._vfs = vfs
        self._path = section.batch_socket
        self.room = MemoryRoom(section.batch_memory_bytes_max)
        self._turns = Turns(BATCHES_AT_ONCE)
        self._closer = Closer()
        self._program_counts: Counter[int] = Counter()

    def say(self, figures: Figures) -> None:
        """Say who is connected, and with how much memory."""
        figures.note(metrics.MOUNT_BATCH_PROGRAMS, sum(self._program_counts.values()))
        figures.note(metrics.MOUNT_BATCH_MEMORY, self.room.used_bytes)
        batches = self._vfs.batches
        figures.note(metrics.MOUNT_BATCHES, batches.batch_count)
        figures.note(metrics.MOUNT_BATCH_ENTRIES, batches.entry_count)
        figures.note(metrics.MOUNT_BATCH_WAKES, batches.wake_count)
        figures.note(metrics.MOUNT_BATCH_OPEN, batches.open_count)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until cancelled.

        Raises:
            FsError: BAD_CONFIG: client.batch_socket cannot be made.
        """
        with trio.socket.socket(trio.socket.AF_UNIX, trio.socket.SOCK_SEQPACKET) as listener:
            name = await self._bind(listener)
            listener.listen(_BACKLOG)
            self._vfs.announce_batches(name)
            task_status.started()
            try:
                async with trio.open_nursery() as nursery:
                    await self._accept(listener, nursery)
            finally:
                self._vfs.announce_batches(b"")
                _remove(self._path)

    async def _bind(self, listener: trio.socket.SocketType) -> bytes:
        """Return the name as it is announced: a path, or @ and a name in the kernel's own space."""
        if not self._path:
            # A name that nobody can have taken before.
            name = f"emberfs-batch-{os.urandom(_NAME_BYTES).hex()}".encode()
            await listener.bind(b"\0" + name)
            return b"@" + name
        try:
            _remove(self._path)
            await listener.bind(self._path)
            _open_to_all(self._path)
        except OSError as error:
            what = f"client.batch_socket: {self._path}: {error.strerror or error}"
            raise FsError(Status.BAD_CONFIG, what) from error
        return os.fsencode(self._path)

    async def _accept(self, listener: trio.socket.SocketType, nursery: trio.Nursery) -> None:
        while True:
            try:
                connection, _ = await listener.accept()
            except OSError as error:
                if error.errno not in _NO_DESCRIPTORS:
                    raise
                _log.warning("no program can connect: %s", error)
                await trio.sleep(_PAUSE_S)
                continue
            nursery.start_soon(self._serve, connection)

    async def _serve(self, connection: trio.socket.SocketType) -> None:
        """An edge of the process: a bug that one program meets must not end
        the mount of all others.
        """
        try:
            program = Program(
                connection,
                self._vfs.batches,
                self._turns,
                self.room.of_user,
                self._closer,
                segments=None if self._vfs.tree is None else self._vfs.tree.segments,
            )
        except OSError as error:
            _log.info("a program went away at once: %s", error)
            connection.close()
            return
        uid = program.uid
        if self._program_counts[uid] >= PROGRAMS_PER_USER_MAX or self._closer.is_busy(uid):
            count = self._program_counts[uid]
            _log.warning("user %d has too much: %d programs are connected", uid, count)
            self._closer.end(uid, socket.socket(fileno=connection.detach()))
            return
        self._program_counts[uid] += 1
        try:
            await program.run()
        except Exception:  # noqa: BLE001 - logged; the program sees its connection end
            _log.exception("bug in serving process %d", program.pid)
        finally:
            self._program_counts[uid] -= 1


def _remove(path: str) -> None:
    """Remove a socket, if there is one that has a name; nothing else."""
    if path and Path(path).is_socket():
        Path(path).unlink(missing_ok=True)


def _open_to_all(path: str) -> None:
    """Let whoever reaches the mount connect: see module head."""
    Path(path).chmod(0o666)
