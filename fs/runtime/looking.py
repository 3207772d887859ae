"""Looking for events again and again for a moment before the event loop sleeps (decision 0167).

Why.  A program that does one small thing after the other makes the processes that serve it wake
each other in turn.  Being woken costs as much as a third of what is then done: the interrupt of
another core, the change of processes, and caches that another process has used meanwhile.  A loop
that still looks pays none of that.

When.  A loop looks only where it is likely to be worth it, and where it takes nobody else's time:
    - The last waits were over sooner than a look lasts, as many of them as are enough.  So whoever
      waits for disks, timers or people sleeps at once, as before.  Each look in vain doubles how
      many are enough.  So nobody looks for long where a long wait follows a few short ones again
      and again, such as for the bytes of a file.
    - After each look the core is given to whoever wants it.  If it does not come back soon, others
      have more to do than there are cores.  Then the loop sleeps at once for a while, twice as long
      each time that this is found again.

Not for storage processes.  A machine runs many of them, and a write passes them one after the
other: they would want each other's cores.

Work that nobody waits for may be left (`leave`).  It is done once no event has come for a moment,
or when the loop is about to sleep: while another process works, it is in no one's way.  A loop that
always has something else to do comes to it all the same, after PASSED_MAX waits.

Does not know what the events are, nor whose.
"""

import os
from collections.abc import Callable
from time import perf_counter
from typing import Final

ENOUGH: Final = 2
"""More than one, since the reply to a lone call, such as a heartbeat, makes one short wait."""
ENOUGH_MAX: Final = 64
"""No more short waits than this are ever needed."""
CROWDED_S: Final = 0.001
"""A core that comes back only after this long is wanted by others.

What our processes do for each other takes less.
"""
REST_S_MIN: Final = 0.1
REST_S_MAX: Final = 10.0
"""The shortest and the longest time without a look, once others have wanted the core."""

LEFT_AFTER_S: Final = 0.000015
"""What is left is done once no event has come for this long:
a program with its answer asks again within some 10 us.
"""

PASSED_MAX: Final = 64
"""No more waits than this go before what is left:
a saturated loop may find events, or tasks that can run, for hours.
"""

Events = list[tuple[int, int]]
Poll = Callable[[float, int], Events]
"""Wait at most so many seconds, and return at most so many events."""


class Looking:
    """Waits for events in the place of a plain poll; of one event loop."""

    __slots__ = (
        "_enough",
        "_event_count_max",
        "_left",
        "_passed_count",
        "_poll",
        "_rest_s",
        "_rested_s",
        "_short_count",
        "_time_s",
        "_yield",
        "limit_s",
    )

    def __init__(
        self,
        poll: Poll,
        event_count_max: int,
        *,
        time_s: Callable[[], float] = perf_counter,
        yield_core: Callable[[], None] = os.sched_yield,
    ) -> None:
        """Do not look, until `limit_s` is set; `time_s` counts from any moment."""
        self._poll = poll
        self._event_count_max = event_count_max
        self._time_s = time_s
        self._yield = yield_core
        self.limit_s = 0.0
        """How long one look lasts; 0: none."""
        self._enough = ENOUGH
        """How many short waits in a row are enough;
        each look that finds something takes one off.
        """
        self._short_count = 0
        """Waits in a row that an event has ended soon."""
        self._rest_s = REST_S_MIN
        self._rested_s = -REST_S_MAX
        """When the last rest is over, or was."""
        self._left: list[Callable[[], None]] = []
        self._passed_count = 0
        """Waits since something is left."""

    def leave(self, function: Callable[[], None]) -> None:
        """Have a function called once nothing else has come for a moment,
        at the latest before the loop sleeps.

        At the latest, too, after PASSED_MAX waits: others may keep the loop from sleeping.

        The function neither waits nor raises.  What it makes runnable
        is run before the loop sleeps.
        """
        self._left.append(function)

    def _do_left(self) -> None:
        left, self._left = self._left, []
        self._passed_count = 0
        for function in left:
            function()

    def wait(self, timeout_s: float) -> Events:
        """Wait for events, at most `timeout_s`.

        Returns:
            What came.  Empty: nothing came, or what was left has been done instead.
        """
        limit_s = self.limit_s
        if self._left:
            self._passed_count += 1
            if self._passed_count > PASSED_MAX:
                self._do_left()
                return self._poll(0.0, self._event_count_max)  # it may have made tasks runnable
        if timeout_s <= 0.0:
            return self._poll(timeout_s, self._event_count_max)
        if not limit_s:
            if self._left:
                return self._poll_or_do_left()
            return self._poll(timeout_s, self._event_count_max)
        began_s = self._time_s()
        if self._short_count >= self._enough and began_s >= self._rested_s:
            events = self._look(began_s, min(limit_s, timeout_s))
            if events is None:
                return []
            if events:
                self._enough = max(self._enough - 1, ENOUGH)
                return events
            self._enough = min(2 * self._enough, ENOUGH_MAX)
            timeout_s = max(0.0, timeout_s - (self._time_s() - began_s))
        if self._left:
            return self._poll_or_do_left()
        events = self._poll(timeout_s, self._event_count_max)
        is_short = events and self._time_s() - began_s < limit_s
        self._short_count = self._short_count + 1 if is_short else 0
        return events

    def _poll_or_do_left(self) -> Events:
        """Return what there is, or else do what was left.

        The loop learns of the tasks and deadlines which that makes only when it comes here again.
        """
        events = self._poll(0.0, self._event_count_max)
        if not events:
            self._do_left()
        return events

    def _look(self, now_s: float, limit_s: float) -> Events | None:
        """Return what came; None: nothing came, and what was left has been done."""
        poll, count_max, time_s = self._poll, self._event_count_max, self._time_s
        end_s, left_s = now_s + limit_s, now_s + LEFT_AFTER_S
        while True:
            events = poll(0.0, count_max)
            if events:
                return events
            self._yield()
            before_s, now_s = now_s, time_s()
            if now_s - before_s >= CROWDED_S:
                self._rest(now_s)
                return []
            if self._left and now_s >= left_s:
                self._do_left()
                return None
            if now_s >= end_s:
                return []

    def _rest(self, now_s: float) -> None:
        """Do not look for a while: others want the core."""
        is_soon = now_s < self._rested_s + self._rest_s
        self._rest_s = min(2 * self._rest_s, REST_S_MAX) if is_soon else REST_S_MIN
        self._rested_s = now_s + self._rest_s
