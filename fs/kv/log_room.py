"""Space set aside behind a store's log, so
that a full disk stops neither managers nor who removes something.

RocksDB takes no commit any more after one that found no room, whoever made it.  A manager that
cannot renew its lease is none any more, and then nobody reads either.  So blocks are allocated
ahead of the log's end (which stays where it is): a commit never finds the disk full there.

Where no more can be allocated:
    - Commits of users are refused before they reach RocksDB.
    - Those that free space (`Transaction.mark_freeing`) go on in the
      upper part of what is set aside.
    - Those of the managers, which are few and small, go on in all of it:
      MANAGERS_BYTES last for hours.

Invariants:
    - A commit that was admitted has its bytes set aside, where the file system can do that;
      where it cannot, all are admitted.
    - What is refused here is definite: nothing of it is in the log.
    - The log is not changed while its tables might find no room (`may_change`).

Does not: help where the disk becomes full while RocksDB writes tables; then all commits
are refused (fs/kv/rocksdb.py).

Concurrency: all calls on the event loop; allocating is short, as appending is.
"""

import ctypes
import errno
import logging
import os
import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from typing import Final

from ..schema.layout import MIB
from ..schema.status import FsError, Status
from .buffer import Mutations
from .rocksdb_store import logs

log = logging.getLogger(__name__)

MANAGERS_BYTES: Final = 8 * MIB
"""So much stays set aside when anybody else's commit is admitted;
a manager at rest writes 1 MiB an hour.
"""

FREEING_BYTES: Final = 8 * MIB
"""More than that when it frees nothing: to remove a file, and collect it, takes 1 to 2 KiB."""

REMOVALS_BYTES: Final = MIB // 16
"""What one commit that frees takes, as a rule: 64 files are collected together."""

AHEAD_BYTES_MIN: Final = MANAGERS_BYTES + FREEING_BYTES

STEP_BYTES: Final = 8 * MIB
"""More than that is allocated at once."""

TABLES_BYTES_MIN: Final = 4 * MIB
"""Free space, beyond the log's size, for the tables that it is written to."""

LOOK_INTERVAL_S: Final = 1.0
"""Who found no room looks again no more often."""

_FALLOC_KEEP_SIZE: Final = 1
_NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT)
_libc: Final = ctypes.CDLL(None, use_errno=True)
_libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]


class LogRoom:
    """See the module head."""

    def __init__(
        self,
        path: str,
        spared: tuple[bytes, ...],
        now_s: Callable[[], float],
        watched: Callable[[str], AbstractContextManager[None]],
    ) -> None:
        """Take the store's directory, the beginnings of the keys whose commits go on when there
        is no room, the clock, and who looks after calls.
        """
        self._path = path
        self._spared = spared
        self._watched = watched
        self._now_s = now_s
        self._fd = -1
        self._room_end = 0
        """Bytes of the log up to which blocks are allocated."""
        self._left_bytes = 0
        """At least so many are between the log's end and there."""
        self._is_offered = True
        """The file system allocates ahead."""
        self._low_since_s: float | None = None  # or since the last look for room
        self._tables_bytes = 0
        """Free space that is waited for before the log is changed; 0: it is not waited for."""

    def follow(self) -> None:
        """The store has been opened, or has a new log.

        Without a log that can be opened nothing is set aside.
        """
        self.close()
        self._is_offered = True
        try:
            found = [path for path in logs(self._path) if path.stem.isdigit()]
            self._fd = os.open(max(found, key=lambda path: int(path.stem)), os.O_WRONLY)
        except (OSError, ValueError) as error:  # ValueError: there is none
            self._give_up(error)

    def close(self) -> None:
        """Give back what is set aside: nobody writes to that log any more."""
        if self._fd >= 0:
            with suppress(OSError):  # then it is given back when RocksDB removes the log
                os.ftruncate(self._fd, os.fstat(self._fd).st_size)
            os.close(self._fd)
        self._fd, self._room_end, self._left_bytes, self._tables_bytes = -1, 0, 0, 0

    def admit(self, mutations: Mutations, cost: int) -> None:
        """Return when a commit that takes at most `cost` bytes of the log may be written.

        Raises:
            FsError: NO_SPACE.
        """
        left_bytes = self._left_bytes - cost
        if left_bytes >= AHEAD_BYTES_MIN and self._low_since_s is None:
            self._left_bytes = left_bytes
            return
        if not self._is_offered:
            return
        try:
            self._admit(mutations, cost)
        except OSError as error:
            self._give_up(error)
        self._left_bytes -= cost

    def _admit(self, mutations: Mutations, cost: int) -> None:
        now_s = self._now_s()
        self._left_bytes = self._room_end - os.fstat(self._fd).st_size
        if self._low_since_s is None:
            if self._makes_room(cost):
                return
            log.warning(
                "key-value store %s: the disk is full; only managers and removals change it",
                self._path,
            )
            self._low_since_s = now_s
        elif now_s - self._low_since_s >= LOOK_INTERVAL_S and self._has_room_again(cost):
            return
        if mutations.is_freeing and self._holds(cost + MANAGERS_BYTES):
            return
        if not (self._is_spared(mutations) and self._holds(cost)):
            raise FsError(Status.NO_SPACE, self._full(cost))

    def _has_room_again(self, cost: int) -> bool:
        """Look whether users' commits may go on; not often."""
        self._low_since_s = self._now_s()
        if not self._makes_room(cost):
            return False
        log.info("key-value store %s: has room again", self._path)
        self._low_since_s = None
        return True

    def _full(self, cost: int = 0) -> str:
        free = shutil.disk_usage(self._path).free
        wanted = self._tables_bytes or cost + AHEAD_BYTES_MIN + STEP_BYTES
        what = f"the disk is full: {free} bytes are free, changes go on with {wanted}"
        return f"key-value store {self._path}: {what}"

    def trouble(self) -> str:
        """Return what people are to know; see `KvEngine.trouble`."""
        if self._low_since_s is None or not self._is_offered:
            return ""
        try:
            if self._now_s() - self._low_since_s >= LOOK_INTERVAL_S and self._has_room_again(0):
                return ""
            ahead = max(0, self._room_end - os.fstat(self._fd).st_size)
            kept = ahead + shutil.disk_usage(self._path).free - MANAGERS_BYTES
            may_free = (
                "names are removed, but not made"
                if kept > REMOVALS_BYTES
                else "no name is made or removed"
            )
            return f"{self._full()}; {may_free}: free space on that disk, or enlarge it"
        except OSError as error:
            self._give_up(error)
            return ""

    def may_change(self) -> bool:
        """Return whether there is room for the tables that the log is written
        to when it is changed; if not, users' commits wait for it.
        """
        if not self._is_offered:
            return True
        try:
            self._tables_bytes = os.fstat(self._fd).st_size + TABLES_BYTES_MIN
            if shutil.disk_usage(self._path).free < self._tables_bytes:
                self._low_since_s = self._low_since_s or self._now_s()
                return False
        except OSError as error:
            self._give_up(error)
        self._tables_bytes = 0
        return True

    def _give_up(self, error: Exception) -> None:
        """What is wrong with the disk the commit itself will meet, and say."""
        log.warning("key-value store %s: no room is set aside: %s", self._path, error)
        self._is_offered = False

    def _makes_room(self, cost: int) -> bool:
        """Return whether users' commits may go on."""
        if self._tables_bytes and shutil.disk_usage(self._path).free < self._tables_bytes:
            return False
        return self._allocates(cost + AHEAD_BYTES_MIN + STEP_BYTES)

    def _holds(self, cost: int) -> bool:
        """Return whether so much fits into what is set aside, or what little the disk has left."""
        return self._left_bytes >= cost or self._allocates(cost)

    def _allocates(self, length: int) -> bool:
        size = os.fstat(self._fd).st_size
        number = errno.EINTR
        with self._watched("setting room aside"):
            while number == errno.EINTR:
                is_refused = _libc.fallocate(self._fd, _FALLOC_KEEP_SIZE, size, length)
                number = ctypes.get_errno() if is_refused else 0
        if not number:
            self._room_end, self._left_bytes = size + length, length
        elif number not in _NO_ROOM:
            raise OSError(number, os.strerror(number))
        return not number

    def _is_spared(self, mutations: Mutations) -> bool:
        keys = [key for key, _ in mutations.points]
        keys += [end for ends in mutations.ranges for end in ends]
        return all(key.startswith(self._spared) for key in keys)
