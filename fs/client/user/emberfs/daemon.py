"""The mount daemon as one client knows it: whichever serves the mount now.

Invariants:
    - A daemon that has gone fails the calls of that time; the next ones look for another that
      serves the mount, and fail with ENOTCONN while there is none: the mount point may be bare
      then, and what is missing there is not missing in the file system.
    - What was registered with one daemon means nothing to the next: `generation` grows, and
      `on_other` is called, before anybody reaches that one.
    - A child of a fork reaches nothing by its copy of the parent's connection;
      it connects at its first use.
"""

import errno
import os
import threading
import weakref
from collections.abc import Callable
from typing import Final, TypeVar

from .connection import Connection

T = TypeVar("T")

_NOT_SERVED: Final = {
    errno.ENOENT,
    errno.ENOTCONN,
    errno.EOPNOTSUPP,
    errno.ECONNREFUSED,
    errno.ENOTDIR,
}
"""What a mount point without a mount answers, or the address of a daemon that is no more."""


def _nothing() -> None:
    """Do what is to be done where nobody has said otherwise."""


class Daemon:
    """See module head."""

    def __init__(self, mount_path: str) -> None:
        """Connect to the mount that a path is on.

        Raises:
            OSError: EOPNOTSUPP: it is on no mount that serves batches;
                ENOENT, ECONNREFUSED and others.
        """
        self.mount_path = mount_path
        """By which the mount was found; named in errors."""
        self.lock = threading.RLock()
        self.generation = 1
        """Grows where a connection is given up; what was registered before is registered again."""
        self.is_closed = False
        """Whether `end` was called."""
        self.on_other: Callable[[], None] = _nothing
        """Called when the daemon has gone; holds the lock."""
        self.on_fork: Callable[[], None] = _nothing
        """Called in the child of a fork."""
        self._connection: Connection | None = Connection(mount_path)
        _daemons.add(self)

    @property
    def present(self) -> Connection | None:
        """The connection there is now, if its daemon still listens."""
        connection = self._connection
        return None if connection is None or connection.has_ended else connection

    def connection(self) -> Connection:
        """Return the connection to the daemon, made where there is none in this process.

        Raises:
            OSError: EBADF: the client is closed; ENOTCONN: nobody serves the mount now; EMFILE and
                others of this process's own.
        """
        connection = self._connection
        if connection is not None and not connection.has_ended:
            return connection
        with self.lock:
            if self.is_closed:
                raise OSError(errno.EBADF, "this client is closed", self.mount_path)
            if self._connection is not None and self._connection.has_ended:
                self.forget(self._connection)
            if self._connection is None:
                self._connection = self._connect_again()
            return self._connection

    def _connect_again(self) -> Connection:
        """Connect to who serves the mount now."""
        try:
            return Connection(self.mount_path)
        except OSError as error:
            if error.errno not in _NOT_SERVED:
                raise
            what = f"the mount is not served now: {error.strerror}"
            raise OSError(errno.ENOTCONN, what, self.mount_path) from error

    def forget(self, ended: Connection) -> None:
        """It has gone; the mount may be served by another one now, which knows of nothing."""
        ended.close()
        self._connection = None
        self.generation += 1
        self.on_other()

    def ask(self, ask: Callable[[Connection], T]) -> T:
        """Ask the daemon for what it can do twice: another one if this one turns out to have gone;
        raises OSError.
        """
        connection = self.connection()
        try:
            return ask(connection)
        except OSError:
            if not connection.has_ended:
                raise
        return ask(self.connection())

    def end(self) -> Connection | None:
        """Let nobody reach it any more; return the connection that is to be closed,
        if there is one.
        """
        with self.lock:
            self.is_closed = True
            connection, self._connection = self._connection, None
        _daemons.discard(self)
        return connection

    def after_fork(self) -> None:
        """In the child of a fork: drop the copies of what is the parent's."""
        if self._connection is not None:
            self._connection.abandon()
        self.on_fork()
        self.lock = threading.RLock()  # a thread of the parent may have held the other
        self._connection = None
        self.generation += 1


_daemons: weakref.WeakSet[Daemon] = weakref.WeakSet()


def _after_fork() -> None:
    for daemon in list(_daemons):
        daemon.after_fork()


os.register_at_fork(after_in_child=_after_fork)
