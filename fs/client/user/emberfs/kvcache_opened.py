"""The segments that a `KVCache` has open: opened anew once their mount daemon has died
and the mount is served again.

Invariants:
    - Whoever has put something that was not synced before its daemon died is told so once, by
      `sync` or `close`; once more only of what was still being put when that was told.
    - What was open at a daemon that died is closed when the last thread has left it: no other
      thread finds it half forgotten.
    - Nothing is opened in a folder of another file system (`Folder.require_same`),
      such as the bare mount point.

What this module does not do: forks (`kvcache`), waiting for a mount.
"""

import errno
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final, TypeVar

from .kvcache_segments import Segments

T = TypeVar("T")

_UNSYNCED: Final = "the mount daemon died, and what was put before may not survive a power loss"


class OpenedSegments:
    """See module head.

    Args:
        path: of the folder, for errors.
        make: makes segments that know nothing yet.
    """

    def __init__(self, path: str, make: Callable[[], Segments]) -> None:
        """Find what is there; raises OSError."""
        self._path = path
        self._make = make
        self._lock = threading.Lock()
        self._unsynced: OSError | None = None
        """Why what was put may not be durable, until somebody is told."""
        self._count_lock = threading.Lock()
        self._user_counts: Counter[Segments] = Counter()
        """How many threads are in which segments: the present ones,
        and those lost that somebody has yet to leave.
        """
        self._noted: set[Segments] = set()
        """Of those lost: what was put there is known to be."""
        self.segments = make()
        self.segments.refresh()

    def do(self, act: Callable[[Segments], T], *, puts: bool = False) -> T:
        """Return what `act` makes of the segments;
        if they turn out to have gone with their mount daemon, of those opened anew.

        `act` may have done part of its work before it is called again; with
        `puts` it may have put something.

        Raises:
            OSError: what `act` raises; ENOTCONN: the mount is not served now.
        """
        with self._entered() as segments:
            try:
                done = act(segments)
            except OSError as error:
                if error.errno != errno.ENOTCONN:
                    raise
                self._open_anew(segments, error)
            else:
                if puts and segments is not self.segments:
                    # Its daemon died behind it; somebody may have been told so before this was put.
                    self._note_unsynced(segments)
                return done
        with self._entered() as segments:
            return act(segments)

    @contextmanager
    def _entered(self) -> Iterator[Segments]:
        """Keep the segments from being closed during a block, unless the cache is."""
        with self._count_lock:
            segments = self.segments
            self._user_counts[segments] += 1
        try:
            yield segments
        finally:
            with self._count_lock:
                self._user_counts[segments] -= 1
                is_last = not self._user_counts[segments]
                if is_last:
                    del self._user_counts[segments]
                is_lost = segments is not self.segments
            if is_lost and is_last:
                if segments not in self._noted:
                    self._note_unsynced(segments)
                self._noted.discard(segments)
                with suppress(OSError):  # as was told
                    segments.close()

    def _note_unsynced(self, lost: Segments) -> None:
        if lost.own is not None or lost.has_unsynced:
            self._noted.add(lost)
            self._unsynced = OSError(errno.ENOTCONN, os.strerror(errno.ENOTCONN), self._path)

    def _open_anew(self, lost: Segments, why: OSError) -> None:
        """Find what is there now, for who comes next;
        raises `why` where the mount is not served.
        """
        with self._lock:
            if self.segments is not lost:  # another thread has done it
                return
            found = self._make()
            try:
                found.folder.require_same()
                found.refresh()
            except OSError as error:
                with suppress(OSError):  # the first failure is the one to tell
                    found.close()
                raise why from error
            # If there is nothing to note, again at its end: others may be about
            # to give up what they fill.
            self._note_unsynced(lost)
            with self._count_lock:
                self.segments = found

    def _tell_unsynced(self) -> None:
        unsynced, self._unsynced = self._unsynced, None
        if unsynced is not None:
            raise OSError(errno.EIO, _UNSYNCED, self._path) from unsynced

    def sync(self) -> None:
        """Return when all that was put would survive a power loss; raises OSError: it may not."""
        self.do(self._sync)

    def _sync(self, segments: Segments) -> None:
        self._tell_unsynced()
        with segments.lock:
            own = segments.own
            if own is None:
                return
            own.writer.hold()
        try:
            own.writer.file.fsync()
        finally:
            own.writer.release()

    def close(self) -> None:
        """Close all files; raises OSError: what was put may not survive a power loss."""
        self.segments.close()
        self._tell_unsynced()
