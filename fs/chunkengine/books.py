"""The ledger, its lock, and whether the disk below may still be used.

Concurrency: `with books as ledger` holds the lock; data I/O and waiting for the disk belong outside.
"""

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from ..schema.status import FsError, Status
from .ledger import Ledger

_log = logging.getLogger(__name__)


class Books:
    """Lends the ledger to one thread at a time; a failure to write it leaves the disk in doubt for ever."""

    __slots__ = ("_disk_uuid", "failure", "ledger", "lock")

    def __init__(self, ledger: Ledger, disk_uuid: str) -> None:
        self.ledger = ledger
        self.lock = threading.Lock()
        self.failure = ""
        """Why the disk is not used any more; empty: it is."""
        self._disk_uuid = disk_uuid

    def check(self) -> None:
        """Raise FsError(IO_ERROR) if the disk has failed."""
        if self.failure:
            raise FsError(Status.IO_ERROR, f"disk {self._disk_uuid}: {self.failure}")

    @contextmanager
    def poison_on_failure(self, what: str) -> Iterator[None]:
        """Around waiting for the disk, without the lock: a failure ends the use of the disk."""
        try:
            yield
        except FsError as error:
            with self.lock:
                self.failure = self.failure or str(error)
            _log.exception("%s failed, the disk is not used any more", what)
            raise FsError(Status.IO_ERROR, error.detail) from error

    def __enter__(self) -> Ledger:
        self.lock.acquire()
        if self.failure:
            self.lock.release()
            self.check()
        return self.ledger

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: object
    ) -> None:
        try:
            if isinstance(error, FsError) and error.status in (Status.IO_ERROR, Status.NO_SPACE):
                self.failure = str(error)
                raise FsError(Status.IO_ERROR, error.detail) from error
        finally:
            self.lock.release()
