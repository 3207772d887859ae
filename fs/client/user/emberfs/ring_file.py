"""An open file as the mount daemon knows it, and what transfers may name."""

import errno
import fcntl
import os
import stat
from collections.abc import Callable, Sequence
from contextlib import suppress

from .batch import (
    OFFSET_MAX,
    BatchFile,
    Transfer,
    as_bytes,
    need_bytes,
    need_offset,
    need_view,
    no_transfer,
)
from .closing import OfOneProcess, shown
from .connection import Connection
from .daemon import Daemon
from .posix import close_descriptor, loses_nothing
from .protocol import IOCTL_TICKET, TICKET, Call, Op


class RingFile(OfOneProcess):
    """See `BatchFile`.  Also an ordinary descriptor: `fileno`."""

    def __init__(
        self, daemon: Daemon, path: str, fd: int, on_close: Callable[["RingFile"], None]
    ) -> None:
        """Take over `fd`, open on the daemon's mount; `on_close` is called when it is given up."""
        self.daemon = daemon
        self._on_close = on_close
        self._path = path
        self._fd = fd
        self._id = 0
        self._generation = -1
        self._connection: Connection | None = None

    def __del__(self) -> None:
        self.abandon()

    @property
    def path(self) -> str:
        """As it was opened."""
        return self._path

    def fileno(self) -> int:
        """Return the descriptor; -1 when closed."""
        return self._fd

    def __repr__(self) -> str:
        return shown(self, repr(self._path), is_closed=self._fd < 0)

    @property
    def id(self) -> int:
        """At the daemon; registers the file where it is not yet."""
        if self._generation != self.daemon.generation or not self._id:  # asked for each small read
            self.register()
        return self._id

    @property
    def is_registered(self) -> bool:
        """Whether the daemon that serves the mount knows it, as far as is known here."""
        return self._generation == self.daemon.generation and bool(self._id)

    def register(self) -> None:
        """Make the file known to the daemon, where it is not."""
        if self.is_registered:
            return
        with self.daemon.lock:
            if not self.is_registered:
                self.daemon.ask(self._register_at)

    def _register_at(self, connection: Connection) -> None:
        self._id = self._registered(connection)
        self._connection, self._generation = connection, self.daemon.generation

    def _registered(self, connection: Connection) -> int:
        if self._fd < 0:
            raise OSError(errno.EBADF, "the file is closed", self._path)
        try:
            ticket = fcntl.ioctl(self._fd, IOCTL_TICKET, bytes(TICKET.size))
        except OSError as error:
            if error.errno != errno.ENOTTY:
                raise OSError(error.errno, error.strerror, self._path) from error
            is_file = stat.S_ISREG(os.fstat(self._fd).st_mode)
            what = "not on an EmberFS mount that serves batches" if is_file else "no regular file"
            raise OSError(errno.EOPNOTSUPP, what, self._path) from error
        first, second = TICKET.unpack(ticket)
        try:
            return connection.call(Call.ADD_FILE, first=first, second=second).id
        except OSError as error:
            if stat.S_ISDIR(os.fstat(self._fd).st_mode):
                number = errno.EISDIR
                raise OSError(number, os.strerror(number), self._path) from error
            if self._is_of_another_mount():
                raise of_another_mount(self.daemon, self._path) from error
            raise OSError(error.errno, error.strerror, self._path) from error

    def _is_of_another_mount(self) -> bool:
        try:
            mount = os.stat(self.daemon.mount_path)  # noqa: PTH116 - compared with the other
            return os.fstat(self._fd).st_dev != mount.st_dev
        except OSError:  # the mount's path is gone: what the daemon has said is to be told
            return False

    def after_fork(self) -> None:
        """In the child of a fork: what the parent registered is the parent's to drop."""
        self._id, self._connection = 0, None

    def length(self) -> int:
        """See `BatchFile`."""
        return self._call(Call.FILE_LENGTH)

    def fsync(self) -> None:
        """See `BatchFile`."""
        self._call(Call.SYNC_FILE)

    def _call(self, call: Call) -> int:
        if self._fd < 0:
            raise OSError(errno.EBADF, "the file is closed", self._path)
        file_id, connection = self.id, self._connection
        assert connection is not None, self._path
        try:
            return connection.call(call, file_id).number
        except OSError as error:
            raise OSError(error.errno, error.strerror, self._path) from error

    def abandon(self) -> None:
        """Give the descriptor back without a word, as where nobody has closed the file
        nor its client; twice is harmless.
        """
        fd, self._fd = self._fd, -1
        if fd >= 0:
            with suppress(OSError):  # nobody is there to be told
                os.close(fd)

    def close(self) -> None:
        """See `BatchFile`."""
        if self._fd < 0:
            return
        can_write = self._can_write()
        try:
            self._end()
        except OSError as error:
            if not loses_nothing(error, can_write=can_write):
                raise

    def _can_write(self) -> bool:
        try:
            return fcntl.fcntl(self._fd, fcntl.F_GETFL) & os.O_ACCMODE != os.O_RDONLY
        except OSError:  # somebody has closed it: that is told when it is closed
            return True

    def _end(self) -> None:
        try:
            if self._connection is not None:
                self._drop(self._connection)
        finally:
            fd, self._fd = self._fd, -1
            self._id, self._connection = 0, None
            self._on_close(self)
            close_descriptor(fd, self._path)

    def _drop(self, connection: Connection) -> None:
        """Also where the daemon has gone: what was written may not have come to rest."""
        try:
            connection.call(Call.DROP_FILE, self._id)
        except OSError as error:
            raise OSError(error.errno, error.strerror, self._path) from error


def of_another_mount(daemon: Daemon, path: str) -> OSError:
    """Return the error of a file that is on a mount of another daemon."""
    what = f"on another mount than {daemon.mount_path}: a client reaches the files of one"
    return OSError(errno.EXDEV, what, path)


def own_file(file: BatchFile, daemon: Daemon) -> RingFile:
    """Return a file as what it is; raises TypeError:
    another client has opened it, whose ids mean other files.
    """
    if not isinstance(file, RingFile) or file.daemon is not daemon:
        raise TypeError(f"{file!r} was not opened by this client")
    return file


def checked_buffers(op: Op, transfers: Sequence[Transfer], daemon: Daemon) -> list[memoryview]:
    """Return the buffers of transfers, as bytes.

    Raises:
        TypeError, ValueError: a file, a buffer or an offset that cannot be.
    """
    buffers = []
    for transfer in transfers:
        if not isinstance(transfer, Transfer):
            raise no_transfer(transfer)
        file, offset, buffer = transfer
        own_file(file, daemon)
        if type(buffer) is not memoryview:
            need_view(file.path, buffer)
        if buffer.itemsize != 1 or buffer.ndim != 1 or not buffer.contiguous:
            need_bytes(file.path, buffer)
        if op is Op.READ and buffer.readonly:
            raise TypeError(f"a buffer for {file.path!r} is read-only")
        if type(offset) is not int or not 0 <= offset <= OFFSET_MAX:
            need_offset(file.path, offset)
        buffers.append(as_bytes(buffer))
    return buffers


def is_plain_read(file: RingFile, offset: int, buffer: memoryview, daemon: Daemon) -> bool:
    """Tell whether a read is one that `checked_buffers` lets through as it is,
    without saying what is wrong with another.
    """
    return (
        file.daemon is daemon
        and type(buffer) is memoryview
        and buffer.format == "B"
        and buffer.ndim == 1
        and buffer.contiguous
        and not buffer.readonly
        and type(offset) is int
        and 0 <= offset <= OFFSET_MAX
    )
