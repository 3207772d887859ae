"""Small reads of the kernel that no task waits for: whoever receives the reply of storage answers the kernel.

A task that waits, one that takes its place as leader, and the layers of a call that may wait cost more than all the rest of the mount's part.

Invariants:
    - Of reads that are begun the end is told once, or they are abandoned.
    - Reads that are together wait for ALONE_AFTER_S at the most.  One that is alone waits for as long as the call may last, and is given
      up as soon as its caller gets a signal: who does it again by itself knows what to do about that.

Does not answer, and does nothing again.
"""

from collections.abc import Callable
from dataclasses import dataclass

import trio

from ....rpc.api import UnderWay
from ....runtime.recycled import RecycledMemory
from ....schema.status import FsError, Status
from ...read_table import ReadTable
from . import together
from .together import BEGUN_BYTES_MAX, ReadsTogether

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
        self.call.fail(FsError(Status.RPC_TIMEOUT, "reads were given up"))


class BegunReads:
    """Those of one mount; see module head.  Called on the event loop, also outside of any task."""

    def __init__(self, begin: Begin, on_end: OnEnd) -> None:
        self._begin = begin
        self._on_end = on_end
        self._begun: dict[_Begun, None] = {}
        """Oldest first."""
        self._is_one_begun = trio.Event()

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

        if not self._is_one_begun.is_set():
            self._is_one_begun.set()
        self._begun[begun] = None
        try:
            begun.call = self._begin(table, end)
        finally:
            if begun.call is None:  # also after an error: whatever ends later, nobody is told
                del self._begun[begun]
        return begun.call is not None

    def hear_of_signals(self) -> None:
        """Give up what is alone and whose caller got a signal."""
        for begun in list(self._begun):
            if len(begun.reads) == 1 and begun.reads.interrupted:
                self._give_up(begun)

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
        """Give up what is together for too long, until cancelled."""
        while True:
            await self._is_one_begun.wait()
            self._is_one_begun = trio.Event()
            while waiting := [one for one in self._begun if len(one.reads) > 1]:
                late_s = waiting[0].began_s + together.ALONE_AFTER_S
                if trio.current_time() < late_s:
                    await trio.sleep_until(late_s)
                else:
                    self._give_up(waiting[0])
