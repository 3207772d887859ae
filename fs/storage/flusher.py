"""Flushes beside updates: an update that asks to be durable is flushed here
while the next replica takes it.

After a power loss of all machines each target then has the version, at least as a pending one, with
its bytes and its tag.  Such a version is completed, never taken back (write_path.py).  So the
commit needs no flush of its own.

The commit has to come after the flush, though.  Only then does the engine go back to this
version, and not to the one before it, when the next one is torn (ledger.py).  The tail, which
commits at once, flushes the commit.

Invariants:
    - A flush that says yes began after it was asked for, and on the engine that was there then.
    - Who asks for one while another runs shares the next with all others of its disk.
    - The event loop runs until all flushes under way have ended: a thread cannot be stopped.

Does not: raise.  A flush that fails, or takes longer than somebody waits for it, has not happened.
Its disk tells of a failure by itself, and whoever needs the answer asks for a sync.
"""

import logging
import math
from collections.abc import Callable
from functools import partial
from itertools import chain
from typing import Final

import trio

from ..chunkengine.api import ChunkEngine
from ..schema.lacks import is_lack, lacking
from ..schema.status import FsError, Status
from .disk import Disk

log = logging.getLogger(__name__)

WAIT_S_MAX: Final = 2.0
"""Nobody waits for a flush longer than that after he asked for it: the sender of the update waits,
too.  The flushes of one update begin together, so all of a chain have had their time together.
"""


class Flush:
    """One flush of a disk, under way or about to begin;
    one task may wait for it, or a function be told.
    """

    __slots__ = ("_on_end", "_task", "asked_s", "engine", "has_ended", "is_durable")

    def __init__(self, disk: Disk) -> None:
        self.engine = disk.engine
        self.asked_s = trio.current_time()
        self.has_ended = False
        self.is_durable = False
        self._task: trio.lowlevel.Task | None = None
        self._on_end: Callable[[], None] | None = None

    def tell(self, on_end: Callable[[], None]) -> None:
        """Have a function called when `wait` would return, at once if it would now;
        it does not raise.
        """
        if self.has_ended:
            on_end()
        else:
            self._on_end = on_end

    async def wait(self) -> bool:
        """Return whether what was there when it was asked for is durable;
        False WAIT_S_MAX later.
        """
        if not self.has_ended:
            self._task = trio.lowlevel.current_task()
            await trio.lowlevel.wait_task_rescheduled(self._abort)
        return self.is_durable

    def end(self) -> None:
        """Let who waits go on: it has ended, or nobody waits for it any longer."""
        self.has_ended = True
        if self._task is not None:
            trio.lowlevel.reschedule(self._task)
            self._task = None
        on_end, self._on_end = self._on_end, None
        if on_end is not None:
            on_end()

    def _abort(self, _: object) -> trio.lowlevel.Abort:
        self._task = None
        return trio.lowlevel.Abort.SUCCEEDED


class Flusher:
    """The flushes of all disks of a process."""

    def __init__(self) -> None:
        self._nursery: trio.Nursery | None = None
        self._under_way: dict[Disk, list[Flush]] = {}
        """Of disks that are being flushed."""
        self._waiting: dict[Disk, list[Flush]] = {}
        """What is asked for since."""
        self._changed = trio.Event()
        self._look_s = math.inf
        self._look = trio.CancelScope()

    async def run(self) -> None:
        """Flush until cancelled; nothing is flushed before or after."""
        try:
            async with trio.open_nursery() as self._nursery:
                await self._end_late()
        finally:
            self._nursery = None
            with trio.CancelScope(shield=True):  # a thread that flushes cannot be stopped
                while self._under_way:
                    self._changed = trio.Event()
                    await self._changed.wait()

    def begin(self, disk: Disk) -> Flush | None:
        """Have a disk flushed, without waiting for it; None while nothing is flushed here."""
        nursery = self._nursery
        if nursery is None:
            return None
        flush = Flush(disk)
        if disk in self._under_way:
            self._waiting.setdefault(disk, []).append(flush)
        else:
            self._flush(nursery, disk, [flush])
        if self._look_s == math.inf:
            self._look_s = self._look.deadline = flush.asked_s + WAIT_S_MAX
        return flush

    def _flush(self, nursery: trio.Nursery, disk: Disk, flushes: list[Flush]) -> None:
        self._under_way[disk] = flushes
        on_end = partial(self._ended, disk, disk.engine)
        try:
            if not disk.begin_sync(on_end):
                nursery.start_soon(self._flush_in_task, disk, on_end)
        except (RuntimeError, MemoryError) as error:
            # No thread to be had, or the process stops just now.
            told = FsError(Status.INTERNAL_ERROR, str(error))
            on_end(lacking(disk.path, error) if is_lack(error) else told)

    @staticmethod
    async def _flush_in_task(disk: Disk, on_end: Callable[[FsError | None], None]) -> None:
        failure: FsError | None = FsError(Status.RPC_CANCELLED, "the process stops")
        try:
            await disk.sync()
            failure = None
        except FsError as error:
            failure = error
        finally:
            on_end(failure)

    def _ended(self, disk: Disk, engine: ChunkEngine, failure: FsError | None) -> None:
        """Tell who waits how it went, and flush for those who have come since."""
        if failure is not None and failure.status is not Status.RPC_CANCELLED:
            log.warning("disk %d (%s): not flushed: %s", disk.index, disk.path, failure)
        for flush in self._under_way.pop(disk):
            if not flush.has_ended:
                flush.is_durable = failure is None and flush.engine is engine
                flush.end()
        waiting = self._waiting.pop(disk, None)
        if waiting and self._nursery is not None:
            self._flush(self._nursery, disk, waiting)
        else:
            for flush in waiting or ():
                flush.end()
            self._changed.set()

    async def _end_late(self) -> None:
        """Have nobody wait for too long; one time limit for all
        of them costs less than one each.
        """
        while True:
            flushes = [
                f for asked in (self._under_way, self._waiting) for f in chain(*asked.values())
            ]
            now_s = trio.current_time()
            for flush in flushes:
                if flush.asked_s + WAIT_S_MAX <= now_s and not flush.has_ended:
                    flush.end()
            for disk, asked in self._waiting.items():  # a flush may hang for long
                self._waiting[disk] = [flush for flush in asked if not flush.has_ended]
            left = (flush.asked_s for flush in flushes if not flush.has_ended)
            self._look_s = min(left, default=math.inf) + WAIT_S_MAX
            with trio.CancelScope(deadline=self._look_s) as self._look:
                await trio.sleep_forever()
