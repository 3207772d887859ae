"""Threads of a client that have a disk read what a storage process of this machine lends, and what becomes of them when it does not answer.

A thread that waits for a disk cannot be stopped, and while it waits the kernel may write into the memory that it was given.  So whoever waits
for a thread for too long leaves it behind with that memory, which nobody uses any more: it is used again when the thread has
ended and dropped it (fs/runtime/recycled.py).  The storage process, which is asked next, finds out itself what is wrong with its disk
(fs/storage/disk_calls.py).

Invariants:
    - Only memory that nobody but the read needs is given to a thread: of what is read ahead.
    - Of what is to be read so there is never more than DIRECT_COUNT_MAX, and nothing while one thread is left behind (`has_room`).

Concurrency: one event loop.
Decision: specs/decisions/0174-cold-streams-read-by-who-asks.md.
"""

import logging
from collections.abc import Callable
from typing import Final

import trio

from ..runtime.ports import Runtime
from ..schema.status import FsError, Status

log = logging.getLogger(__name__)

DIRECT_WAIT_S: Final = 2.0
"""A disk that is only slow has some MiB read by then; the storage process waits for as long as `storage.disk_hang_s` says."""

DIRECT_COUNT_MAX: Final = 8
"""At one disk only one of them reads at a time."""


class LeftBehindError(FsError):
    """A read was not waited for any longer, and its buffers may be written to at any later time."""


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
        """Return whether something may be read so now: it would not wait for long, unless the disk does not answer."""
        return not self._left_count and self._begun_count < DIRECT_COUNT_MAX

    async def run(self, function: Callable[[], bool]) -> bool:
        """Return what a function returns that waits for a disk.

        Raises:
            LeftBehindError: it has not ended within DIRECT_WAIT_S.
            Exception: what it raises, or the lack of a thread.
        """
        if self._begin is None:  # a simulation, whose disks answer at once
            return await self._run_blocking(function)
        results: list[bool] = []
        failures: list[BaseException | None] = []
        ended, is_left = trio.Event(), False

        def end(error: BaseException | None) -> None:
            self._begun_count -= 1
            self._left_count -= is_left
            failures.append(error)
            ended.set()

        self._begin(lambda: results.append(function()), end)
        self._begun_count += 1
        try:
            with trio.move_on_after(DIRECT_WAIT_S):
                await ended.wait()
        finally:
            if not ended.is_set():
                is_left = True
                self._left_count += 1
        if is_left:
            detail = f"a disk of this machine has not answered a read for {DIRECT_WAIT_S:.0f} s"
            log.warning("%s; its storage process is asked to read until it has", detail)
            raise LeftBehindError(Status.IO_ERROR, detail)
        (failure,) = failures
        if failure is not None:
            raise failure
        return results[0]
