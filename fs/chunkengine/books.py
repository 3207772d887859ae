"""The ledger, its lock, and whether the disk below may still be used.

Concurrency: `with books as ledger` holds the lock; data I/O and waiting for the disk belong
outside.  The metadata store is written under the lock, so where the disk hangs its holder may never
let go: threads then wait with it, the event loop, which has the main thread, only for STUCK_S.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from ..schema.status import FsError, Status
from .format import ChunkRecord
from .ledger import IN_DOUBT, Ledger, in_doubt

_log = logging.getLogger(__name__)

STUCK_S: Final = 1.0
"""So long the event loop waits for the books, once;
from then on, until it has had them again, not at all.
"""

_FAILED: Final = "it has failed"

Work = Callable[[Ledger], None]


class StuckError(FsError):
    """The event loop has not got at the books in time; says nothing of the disk."""


class Books:
    """Lends the ledger to one thread at a time;
    a failure to write it, or a lack in the middle of that, leaves the disk in doubt for ever.

    To give the disk up takes no memory: there may be none.
    """

    __slots__ = (
        "_disk_uuid",
        "_is_stuck",
        "_owed",
        "failure",
        "is_closed",
        "lacks_space",
        "ledger",
        "lock",
    )

    def __init__(self, ledger: Ledger, disk_uuid: str) -> None:
        self.ledger = ledger
        self.lock = threading.Lock()
        self.failure = ""
        """Why the disk is not used any more; empty: it is."""
        self.lacks_space = False
        """All that failed was the metadata store, for want of space:
        another engine may be opened on the disk.
        """
        self.is_closed = False
        self._disk_uuid = disk_uuid
        self._owed: deque[Work] = deque()
        self._is_stuck = False
        """The last time that the event loop wanted the lock it did not get it."""

    def check(self) -> None:
        """Raise FsError: NOT_SERVING if the engine is closed, IO_ERROR if the disk has failed."""
        if self.is_closed:
            raise FsError(Status.NOT_SERVING, f"disk {self._disk_uuid}: the engine is closed")
        if self.failure:
            raise FsError(Status.IO_ERROR, f"disk {self._disk_uuid}: {self.failure}")

    @contextmanager
    def poison_on_failure(self, what: str, *, is_metadata: bool = True) -> Iterator[None]:
        """Around waiting for the disk, without the lock: a failure ends the use of the disk.

        Args:
            what: is done, for the log.
            is_metadata: only the metadata store is at work.  A failed flush of data is another
                matter: the kernel may have dropped pages that nobody will write again.
        """
        try:
            yield
        except FsError as error:
            with self.lock:
                self._fail(error, is_metadata=is_metadata)
            _log.exception("%s failed, the disk is not used any more", what)
            raise FsError(Status.IO_ERROR, error.detail) from error
        except MemoryError as error:  # nobody knows how far it has come
            self.give_up(IN_DOUBT)
            raise in_doubt(error) from error

    def __enter__(self) -> Ledger:
        if not self.lock.acquire(False):
            self._wait()
        if self.failure or self.is_closed:
            self.lock.release()
            self.check()
        if self._owed:
            try:
                self._do_owed()
            except BaseException:  # no memory
                self.lock.release()
                raise
        return self.ledger

    def unpin_soon(self, records: Sequence[ChunkRecord]) -> None:
        """Unpin versions, as `soon`."""
        self.soon(lambda ledger: ledger.readers.unpin_all(records))

    def soon(self, work: Work) -> None:
        """Have something that may not be left out done to the ledger, now if nobody has the books,
        else by whoever has them next; waits for nothing.
        """
        is_owed = not self.lock.acquire(False)
        if is_owed:
            self._owed.append(work)  # or an error
            if not self.lock.acquire(False):
                return
        try:
            if not is_owed:
                work(self.ledger)
            self._do_owed()
        finally:
            self.lock.release()

    def finish(self, work: Work) -> None:
        """Have the end of what was begun done to the ledger, whatever became of it:
        by a thread now, by the event loop, which may not wait for long, as `soon`.
        """
        if threading.current_thread() is threading.main_thread():
            self.soon(work)
            return
        with self.lock:
            work(self.ledger)

    def _do_owed(self) -> None:
        while self._owed:
            self._owed.popleft()(self.ledger)

    def _wait(self) -> None:
        """Take the lock; raises StuckError on the event loop when that takes too long."""
        if threading.current_thread() is not threading.main_thread():
            self.lock.acquire()
        elif self.lock.acquire(timeout=0 if self._is_stuck else STUCK_S):
            self._is_stuck = False
        else:
            self._is_stuck = True
            raise StuckError(Status.IO_ERROR, f"disk {self._disk_uuid}: a call does not return")

    def give_up(self, reason: str) -> None:
        """Let nobody in any more; without the lock, whose holder may never let go."""
        self.failure = self.failure or reason

    def _fail(self, error: FsError, *, is_metadata: bool) -> None:
        is_first = not self.failure
        if is_first:
            self.failure = _FAILED  # first: to say why takes memory
        lacks_space = is_metadata and error.status is Status.NO_SPACE
        self.lacks_space = lacks_space and (is_first or self.lacks_space)
        if is_first:
            self.failure = str(error)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: object
    ) -> None:
        try:
            if self.ledger.is_doubtful or self.ledger.allocator.is_torn:
                self.give_up(IN_DOUBT)
            if isinstance(error, FsError) and error.status in (Status.IO_ERROR, Status.NO_SPACE):
                self._fail(error, is_metadata=True)
                raise FsError(Status.IO_ERROR, error.detail) from error
        finally:
            self.lock.release()
