"""Threads of a client that have a disk read what a storage process of this machine lends,
and what becomes of them when it does not answer.

A thread that waits for a disk cannot be stopped, and while it waits the kernel may write into the
memory that it was given.  So whoever waits for a thread for too long leaves it behind with that
memory, which nobody uses any more: it is used again when the thread has ended and dropped it
(fs/runtime/recycled.py).  The storage process, which is asked next, finds out itself what is wrong
with its disk (fs/storage/disk_calls.py).

Invariants:
    - Only memory that nobody but the read needs is given to a thread: of what is read ahead.
    - Of what is to be read so there is never more than DIRECT_COUNT_MAX, and nothing while one
      thread is left behind (`has_room`).
    - What no thread has begun is withdrawn, not left behind: where memory is short a thread may die
      before its first step, unheard of.

Concurrency: one event loop.
Decision: specs/decisions/0174-cold-streams-read-by-who-asks.md.
"""

import logging
import threading
from collections.abc import Callable
from functools import partial
from typing import Final

import trio

from ..runtime.ports import Runtime
from ..schema.status import FsError, Status

log = logging.getLogger(__name__)

DIRECT_WAIT_S: Final = 2.0
"""A disk that is only slow has some MiB read by then;
the storage process waits for as long as `storage.disk_hang_s` says.
"""

DIRECT_COUNT_MAX: Final = 8
"""At one disk only one of them reads at a time."""


class LeftBehindError(FsError):
    """A read was not waited for any longer, and its buffers may be written to at any later time."""


class _Read:
    """One read, of which its thread and who gives it up may be in each other's way:
    who is first counts.
    """

    __slots__ = ("_claim", "ended", "failure", "function", "is_left", "is_withdrawn", "result")

    def __init__(self, function: Callable[[], bool]) -> None:
        self.function: Callable[[], bool] | None = function
        self.ended = trio.Event()
        self.result = False
        self.failure: BaseException | None = None
        self.is_left = False
        self.is_withdrawn = False
        """No thread has begun it, and none will."""
        self._claim = threading.Lock()

    def work(self) -> None:
        """Read, in a thread."""
        if self._claim.acquire(blocking=False):
            assert self.function is not None
            self.result = self.function()

    def give_up(self) -> None:
        """Withdraw it, or leave it behind."""
        if self._claim.acquire(blocking=False):
            self.is_withdrawn = True
            self.function = None  # and with it the buffers: the thread may never come
        else:
            self.is_left = True


class DirectThreads:
    """Those of one client."""

    def __init__(self, runtime: Runtime) -> None:
        self._run_blocking, self._begin = runtime.run_blocking, runtime.begin_blocking
        if runtime.own_threads is not None:
            self._run_blocking, self._begin = runtime.own_threads(DIRECT_COUNT_MAX)
        self._begun_count = self._left_count = 0
        """Not at their end yet; of these, left behind."""

    @property
    def has_room(self) -> bool:
        """Return whether something may be read so now:
        it would not wait for long, unless the disk does not answer.
        """
        return not self._left_count and self._begun_count < DIRECT_COUNT_MAX

    async def run(self, function: Callable[[], bool]) -> bool:
        """Return what a function returns that waits for a disk.

        Raises:
            LeftBehindError: it has begun, and has not ended within DIRECT_WAIT_S.
            RuntimeError, MemoryError: no thread is to be had, or none has come; the
                function is not called any more.
            Exception: what it raises.
        """
        if self._begin is None:  # a simulation, whose disks answer at once
            return await self._run_blocking(function)
        read = _Read(function)
        del function  # what is withdrawn is held by nobody
        self._begin(read.work, partial(self._end, read))
        self._begun_count += 1
        try:
            with trio.move_on_after(DIRECT_WAIT_S):
                await read.ended.wait()
        finally:
            if not read.ended.is_set():
                read.give_up()
                self._begun_count -= read.is_withdrawn
                self._left_count += read.is_left
        if read.is_withdrawn:
            raise RuntimeError(f"no thread has come within {DIRECT_WAIT_S:.0f} s")
        if read.is_left:
            detail = f"a disk of this machine has not answered a read for {DIRECT_WAIT_S:.0f} s"
            log.warning("%s; its storage process is asked to read until it has", detail)
            raise LeftBehindError(Status.IO_ERROR, detail)
        failure, read.failure = read.failure, None
        if failure is not None:
            try:
                raise failure
            finally:
                del failure  # its traceback holds this frame
        return read.result

    def _end(self, read: _Read, error: BaseException | None) -> None:
        """Take note that a thread is ready for something else."""
        if read.is_withdrawn:
            return
        self._begun_count -= 1
        self._left_count -= read.is_left
        read.failure = error
        read.ended.set()
