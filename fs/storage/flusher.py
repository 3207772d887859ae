"""Flushes beside updates: an update that asks to be durable is flushed here while the next replica takes it.

What a power loss of all machines then leaves: each target has the version, as a pending one at least, with its bytes and its
tag, and such a version is completed, never taken back (write_path.py).  So the commit needs no flush of its own.  But it has to
come after the flush: only then is the version, and not the one before it, what the engine goes back to when the next one is torn (ledger.py).
The tail, which commits at once, flushes the commit.

Invariants:
    - A flush that says yes began after it was asked for, and on the engine that was there then.
    - Who asks for one while another runs shares the next with all others of its disk.

Does not: raise.  A flush that fails, or takes longer than somebody waits for it, has not happened; its disk tells of a failure
by itself, and whoever needs the answer asks for a sync.
"""

import logging
from typing import Final

import trio

from ..schema.status import FsError
from .disk import Disk

log = logging.getLogger(__name__)

WAIT_S_MAX: Final = 2.0
"""Nobody waits for a flush longer than that after he asked for it: the sender of the update waits, too.  The
flushes of one update begin together, so all of a chain have had their time together."""


class Flush:
    """One flush of a disk, under way or about to begin."""

    __slots__ = ("asked_s", "ended", "engine", "is_durable")

    def __init__(self, disk: Disk) -> None:
        self.engine = disk.engine
        self.asked_s = trio.current_time()
        self.ended = trio.Event()
        self.is_durable = False

    async def wait(self, deadline_s: float) -> bool:
        """Return whether what was there when it was asked for is durable; False at trio time `deadline_s`, or before."""
        if not self.ended.is_set():
            with trio.move_on_at(min(deadline_s, self.asked_s + WAIT_S_MAX)):
                await self.ended.wait()
        return self.is_durable


class Flusher:
    """The flushes of all disks of a process."""

    def __init__(self) -> None:
        self._nursery: trio.Nursery | None = None
        self._waiting: dict[Disk, list[Flush]] = {}
        """Disks that are being flushed, and what is asked for since."""

    async def run(self) -> None:
        """Flush until cancelled; nothing is flushed before or after."""
        try:
            async with trio.open_nursery() as self._nursery:
                await trio.sleep_forever()
        finally:
            self._nursery = None

    def begin(self, disk: Disk) -> Flush | None:
        """Have a disk flushed, without waiting for it; None while nothing is flushed here."""
        if self._nursery is None:
            return None
        flush = Flush(disk)
        if (waiting := self._waiting.get(disk)) is not None:
            waiting.append(flush)
        else:
            self._waiting[disk] = [flush]
            self._nursery.start_soon(self._work, disk)
        return flush

    async def _work(self, disk: Disk) -> None:
        """Flush a disk until nobody asks for more."""
        flushes = waiting = self._waiting[disk]
        try:
            while waiting:
                flushes, waiting = waiting, []
                self._waiting[disk] = waiting
                await self._flush(disk, flushes)
        finally:
            del self._waiting[disk]
            for flush in (*flushes, *waiting):
                flush.ended.set()

    async def _flush(self, disk: Disk, flushes: list[Flush]) -> None:
        engine = disk.engine
        try:
            await disk.sync()
            for flush in flushes:
                flush.is_durable = flush.engine is engine
        except FsError as error:
            log.warning("disk %d (%s): not flushed: %s", disk.index, disk.path, error)
        finally:
            for flush in flushes:
                flush.ended.set()
