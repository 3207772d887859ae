"""Small reads of the kernel that no task waits for:
whoever receives the reply of storage answers the kernel.

A task that waits, one that takes its place as leader, and the layers of a call that may wait cost
more than all the rest of the mount's part.

Invariants:
    - The end of reads that are begun is told once, or they are abandoned.
    - Reads that are together wait for ALONE_AFTER_S at the most.
    - A read that is alone waits for as long as the call may last.  It is given up where its caller
      got a signal: at once if the signal kills the caller, else INTERRUPT_AFTER_S after the read
      was begun.  Who then does it again by itself answers EINTR, and asks nobody.

Does not answer, and does nothing again.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import trio

from ....rpc.api import UnderWay
from ....runtime.recycled import RecycledMemory
from ....schema.status import FsError, Status
from ...read_table import ReadTable
from . import interrupts, together
from .device import Request
from .together import BEGUN_BYTES_MAX, ReadsTogether, request_of

LOOK_S: Final = 0.1

Begin = Callable[[ReadTable, Callable[[bool], None]], UnderWay | None]
"""Fills the memory of a table and tells whether it has, later; None: nothing is begun."""

OnEnd = Callable[[ReadsTogether, ReadTable, bool], None]
"""Told what was begun, and whether it is read; False: each is to be done again by itself."""


@dataclass(slots=True, eq=False)
class _Begun:
    reads: ReadsTogether
    table: ReadTable
    began_s: float
    call: UnderWay | None = None

    def give_up(self) -> None:
        assert self.call is not None
        # not as a timeout: it says nothing of the node
        self.call.fail(FsError(Status.RPC_CANCELLED, "reads were given up"))

    def late_s(self) -> float:
        """Return when it is to be given up; trio time."""
        if len(self.reads) > 1:
            return self.began_s + together.ALONE_AFTER_S
        return self.began_s + interrupts.INTERRUPT_AFTER_S if self.reads.interrupted else math.inf


class BegunReads:
    """Those of one mount; see module head.  Called on the event loop, also outside of any task."""

    def __init__(self, begin: Begin, on_end: OnEnd, is_killed: Callable[[Request], bool]) -> None:
        """Begin with none; `is_killed` is asked of callers that got a signal."""
        self._begin = begin
        self._on_end = on_end
        self._is_killed = is_killed
        self._begun: dict[_Begun, None] = {}
        """Oldest first."""
        self._has_changed = trio.Event()
        """There may be another one to be given up than before."""

    def __len__(self) -> int:
        """Return how many are under way, of those that are together only one."""
        return len(self._begun)

    def begin(self, reads: ReadsTogether, memory: RecycledMemory) -> bool:
        """Begin reads, into such memory; False: nothing is done."""
        if reads.byte_count > BEGUN_BYTES_MAX:
            return False
        table = reads.table(memory)
        begun = _Begun(reads, table, reads.began_s)

        def end(is_read: bool) -> None:
            if begun in self._begun:
                del self._begun[begun]
                self._on_end(reads, table, is_read)

        if len(reads) > 1:
            self._has_changed.set()
        self._begun[begun] = None
        try:
            begun.call = self._begin(table, end)
        finally:
            if begun.call is None:  # also after an error: whatever ends later, nobody is told
                del self._begun[begun]
        return begun.call is not None

    def hear_of_signals(self) -> None:
        """Give up what is alone and whose caller got a signal, if that kills it;
        have the others given up later.
        """
        for begun in list(self._begun):
            if len(begun.reads) > 1 or not begun.reads.interrupted:
                continue
            if self._is_killed(request_of(begun.reads.rows[0])):
                self._give_up(begun)
            else:
                self._has_changed.set()

    def _give_up(self, begun: _Begun) -> None:
        """End what has not ended; its call may have its reply, and wait for something else."""
        begun.give_up()
        if begun in self._begun:
            del self._begun[begun]
            self._on_end(begun.reads, begun.table, False)

    def abandon(self) -> None:
        """End all of them, without telling anybody."""
        begun, self._begun = self._begun, {}
        for one in begun:
            one.give_up()

    async def watch(self) -> None:
        """Give up what is together, or with a signal, for too long, until cancelled."""
        while True:
            await self._has_changed.wait()
            self._has_changed = trio.Event()
            while waiting := [one for one in self._begun if one.late_s() < math.inf]:
                first, now_s = min(waiting, key=_Begun.late_s), trio.current_time()
                if now_s < first.late_s():
                    # What begins meanwhile may be due before one that is alone.
                    left_s = first.late_s() - now_s
                    await trio.sleep(left_s if len(first.reads) > 1 else min(left_s, LOOK_S))
                else:
                    self._give_up(first)
