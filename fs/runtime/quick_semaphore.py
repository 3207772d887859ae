"""A bound on how many are at something at once;
a free place is taken without a turn of the event loop, and with one call.

trio's own takes four calls of functions for a place taken and given back, and a turn for
each place that is waited for.

Invariants:
    - At most so many places are taken at once.
    - Who waits gets one first come, first served: nobody takes a place while somebody waits for it.

Concurrency: trio, one event loop; no task has to be there to take a place or to give one back.
"""

from collections import OrderedDict

import trio


class QuickSemaphore:
    """See module head; also for `async with`."""

    __slots__ = ("_waiting", "value")

    def __init__(self, count: int) -> None:
        self.value = count
        """Free places; 0 while somebody waits."""
        self._waiting: OrderedDict[trio.lowlevel.Task, None] = OrderedDict()

    def take_now(self) -> bool:
        """Take a place if there is one, until `give_back`."""
        if not self.value:
            return False
        self.value -= 1
        return True

    async def take(self) -> None:
        """Take a place, until `give_back`; cancelled, there is none taken."""
        if self.value:
            self.value -= 1
            return
        task = trio.lowlevel.current_task()
        self._waiting[task] = None

        def abort(_: object) -> trio.lowlevel.Abort:
            del self._waiting[task]
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(abort)

    @property
    def waiting_count(self) -> int:
        """How many wait for a place."""
        return len(self._waiting)

    async def __aenter__(self) -> None:
        await self.take()

    async def __aexit__(self, *_error: object) -> None:
        self.give_back()

    def give_back(self) -> None:
        """Give a place back: to who has waited for one longest, if somebody has."""
        if self._waiting:
            task, _ = self._waiting.popitem(last=False)
            trio.lowlevel.reschedule(task)
        else:
            self.value += 1
