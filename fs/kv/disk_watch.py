"""Looks after the disk of an embedded store: who is told when a call to it never returns.

The engine's commits are written on the event loop, and RocksDB's binding holds Python's interpreter
lock meanwhile.  So a disk that hangs would stop the whole process without a word, together with the
thread that looks after it.  Therefore, before each commit, a byte is written to a file of the same
file system, without that lock, and looked after.  Flushes let go of the lock themselves.

Does not: notice a hang that begins in the microseconds between that byte and the commit.

Concurrency: calls are noted by the event loop and its threads, `run` is a thread of its own.
Each note is one step of a dict.
"""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from ..runtime.disk_hang import LOOK_INTERVAL_S, HangJudge, open_probe

COMMIT: Final = "commit"


class DiskWatch:
    """See the module head."""

    def __init__(self, path: str, hang_s: float) -> None:
        """Take the store's directory, and when its disk hangs (seconds; 0: never)."""
        self._path = path
        self._judge = HangJudge(path, hang_s)
        self._probe_fd = -1
        self._began: dict[str, tuple[float, int]] = {}
        """By kind: when, and the kernel's number of the thread."""
        self._committing_id = 0
        """The kernel's number of the thread of the event loop, once that has committed:
        asking takes as long as writing the byte.
        """
        self._is_over = threading.Event()

    def open(self) -> None:
        """Find out about the disk, and make the file that is written before commits; blocks.

        Raises:
            OSError: the directory takes no file.
        """
        self._judge.learn_device()
        self._probe_fd = open_probe(self._path)

    def probe(self) -> None:
        """Return when the file system takes writes;
        called by one thread only, that of the event loop.
        """
        if self._probe_fd < 0:
            return
        if not self._committing_id:
            self._committing_id = threading.get_native_id()
        self._began[COMMIT] = (self._judge.now_s, self._committing_id)
        try:  # noqa: SIM105 - a context manager takes as long as the write
            os.pwrite(self._probe_fd, b"\0", 0)
        except OSError:
            pass  # the commit, which follows, fails as well, and says so
        del self._began[COMMIT]

    @contextmanager
    def under_way(self, what: str) -> Iterator[None]:
        """Look after what the body does with the disk, in the thread that enters it;
        one of a kind at a time.
        """
        self._began[what] = (self._judge.now_s, threading.get_native_id())
        try:
            yield
        finally:
            del self._began[what]

    def run(self, on_hang: Callable[[float], None]) -> None:
        """Look until `end`; tell once, from this thread,
        for how many seconds the disk has not answered.
        """
        while not self._is_over.wait(LOOK_INTERVAL_S):
            self._judge.pass_time(LOOK_INTERVAL_S)
            oldest = min(list(self._began.values()), default=None)
            if oldest is not None and (age_s := self._judge.hung_s(*oldest)):
                on_hang(age_s)
                return

    def end(self) -> None:
        """Have `run` return; the engine is closed."""
        self._is_over.set()
        if self._probe_fd >= 0:
            os.close(self._probe_fd)
            self._probe_fd = -1
