"""When a disk counts as slow.  Pure: durations of its calls come in, a judgement goes out.

Reads and writes are judged in windows of time.  Flushes are judged one by one, each with the bytes
written since the last: behind the page cache a slow disk shows only there.

A disk is compared with itself: with how long its calls take usually.  Two things keep it
from being called slow too soon:
    - Only what is also slow in absolute terms counts, since on a machine with busy
      cores every call takes longer.
    - Only several windows in a row count, since every disk hiccups.

The judgement is for people: nothing is taken out of service by it.
"""

from dataclasses import dataclass, field
from typing import Final

CALL_COUNT_MIN: Final = 3
"""A window with fewer calls says nothing."""

SLOW_S_MIN: Final = 0.25
"""Per call and MiB: a disk that is quicker than this is not slow, whatever it was before."""

SLOW_FACTOR: Final = 8.0
"""Times what is usual."""

WINDOW_COUNT: Final = 3
"""Windows in a row before the judgement changes."""

USUAL_SHARE: Final = 0.05
"""Of a new window in what is usual; slow windows do not count."""

MIB: Final = 1 << 20


@dataclass(slots=True)
class DiskPace:
    """The pace of one disk."""

    call_count_min: int = CALL_COUNT_MIN
    is_slow: bool = False
    usual_s: float = 0.0
    """Mean duration of a call of up to one MiB, or per MiB, in seconds; 0: not known yet."""
    window_s: float = 0.0
    """The same of the last window."""
    _total_s: float = field(default=0.0, repr=False)
    _weight: float = field(default=0.0, repr=False)
    _call_count: int = field(default=0, repr=False)
    _against_count: int = field(default=0, repr=False)

    def note(self, duration_s: float, byte_count: int, part_count: int = 1) -> None:
        """A call has ended, which did so many things that take a call each elsewhere."""
        self._total_s += duration_s
        self._weight += max(part_count, byte_count / MIB)
        self._call_count += 1

    def end_window(self) -> bool:
        """Judge the calls since the last time; return whether the judgement has changed."""
        call_count, total_s, weight = self._call_count, self._total_s, self._weight
        self._call_count, self._total_s, self._weight = 0, 0.0, 0.0
        if call_count < self.call_count_min:
            return False
        self.window_s = total_s / weight
        limit_s = max(SLOW_S_MIN, SLOW_FACTOR * self.usual_s)
        looks_slow = self.window_s > (limit_s / 2 if self.is_slow else limit_s)
        if not looks_slow:
            share = USUAL_SHARE if self.usual_s else 1.0
            self.usual_s += share * (self.window_s - self.usual_s)
        self._against_count = self._against_count + 1 if looks_slow is not self.is_slow else 0
        if self._against_count < WINDOW_COUNT:
            return False
        self._against_count = 0
        self.is_slow = looks_slow
        return True
