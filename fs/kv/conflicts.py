"""Conflict window: which keys were written since a snapshot.  Pure; time is an argument.

A commit adds what it wrote under its version; a later commit asks whether anything it read was
written after its snapshot.  The window forgets commits older than WINDOW_S and, when it would grow
beyond its bounds, the older half: a snapshot from before `horizon` can no longer be judged and is
too old.

Invariants:
    - For every read version >= horizon, `check` is exact: no missed conflict, no invented one.
    - At most POINTS_MAX logged point writes and RANGES_MAX logged range writes are kept.

Cost: a point read is one dictionary lookup; a range read looks either at the writes since its
snapshot or at the written keys inside the range, whichever are fewer; nothing at all is looked at
when no commit happened since the snapshot.

Does not decide versions and does not store values.  Not safe for use by two threads.
"""

import math
from bisect import bisect_right
from collections import deque
from collections.abc import Collection, Sequence
from itertools import islice
from operator import itemgetter
from typing import Final

from sortedcontainers import SortedSet

from .api import TRANSACTION_AGE_S_MAX

KeyRange = tuple[bytes, bytes]
"""begin <= key < end."""

WINDOW_S: Final = TRANSACTION_AGE_S_MAX + 1.0
"""Longer than any transaction may live, so that age is refused before the window forgets."""

MARK_INTERVAL_S: Final = 0.25
"""Granularity of forgetting by age."""

POINTS_MAX: Final = 200_000
RANGES_MAX: Final = 4_096

SCAN_MAX: Final = 256
"""So many recent point writes are compared one by one before the sorted index is brought in."""

assert WINDOW_S > TRANSACTION_AGE_S_MAX
assert SCAN_MAX < POINTS_MAX


class ConflictWindow:
    """The recent writes by commit version."""

    def __init__(
        self, version: int, *, points_max: int = POINTS_MAX, ranges_max: int = RANGES_MAX
    ) -> None:
        """Start empty after the commit `version`: older snapshots are too old."""
        self.horizon = version
        """The oldest read version that can still be judged."""
        self._latest = version
        self._points_max = points_max
        self._ranges_max = ranges_max
        self._version_of: dict[bytes, int] = {}
        self._log_keys: list[bytes] = []
        self._log_versions: list[int] = []
        self._ranges: list[tuple[int, bytes, bytes]] = []
        self._marks: deque[tuple[float, int]] = deque()
        self._look_s = -math.inf
        """When the next mark is due, and with it a look for what is old."""
        # Built when first needed: most windows never see a range read across many commits.
        self._index: SortedSet[bytes] | None = None
        self._indexed_count = 0

    @property
    def point_count(self) -> int:
        """Point writes kept, for tests and metrics."""
        return len(self._log_keys)

    def check(
        self, read_version: int, keys: Collection[bytes], ranges: Collection[KeyRange]
    ) -> bool:
        """Return True when nothing of `keys` and `ranges` was written after `read_version`.

        Args:
            read_version: >= horizon.
            keys: keys read.
            ranges: ranges read; empty ones are allowed.
        """
        if read_version >= self._latest:
            return True
        assert read_version >= self.horizon, (read_version, self.horizon)
        version_of = self._version_of
        for key in keys:
            if version_of.get(key, 0) > read_version:
                return False
        if self._ranges and self._is_cleared_since(read_version, keys, ranges):
            return False
        return not any(self._is_written_since(read_version, *key_range) for key_range in ranges)

    def add(
        self, version: int, now_s: float, keys: Sequence[bytes], ranges: Sequence[KeyRange]
    ) -> None:
        """Remember a commit.

        Args:
            version: greater than every version before.
            now_s: monotonic seconds.
            keys: keys written.
            ranges: ranges cleared.
        """
        assert version > self._latest, (version, self._latest)
        self._latest = version
        self._version_of.update(dict.fromkeys(keys, version))
        self._log_keys += keys
        self._log_versions += [version] * len(keys)
        if ranges:
            self._ranges += [(version, begin, end) for begin, end in ranges]
        if now_s >= self._look_s:
            self._forget_old(now_s, version)
        if len(self._log_keys) > self._points_max or len(self._ranges) > self._ranges_max:
            self._forget_excess()

    def _is_cleared_since(
        self, read_version: int, keys: Collection[bytes], ranges: Collection[KeyRange]
    ) -> bool:
        first = bisect_right(self._ranges, read_version, key=itemgetter(0))
        for _, begin, end in islice(self._ranges, first, None):
            if any(begin <= key < end for key in keys):
                return True
            if any(begin < read_end and read_begin < end for read_begin, read_end in ranges):
                return True
        return False

    def _is_written_since(self, read_version: int, begin: bytes, end: bytes) -> bool:
        first = bisect_right(self._log_versions, read_version)
        recent_count = len(self._log_keys) - first
        if recent_count > SCAN_MAX:
            index = self._current_index()
            if index.bisect_left(end) - index.bisect_left(begin) < recent_count:
                inside = index.irange(begin, end, inclusive=(True, False))
                return any(self._version_of[key] > read_version for key in inside)
        return any(begin <= key < end for key in self._log_keys[first:])

    def _current_index(self) -> "SortedSet[bytes]":
        if self._index is None:
            self._index = SortedSet(self._version_of)
        else:
            self._index.update(self._log_keys[self._indexed_count :])
        self._indexed_count = len(self._log_keys)
        return self._index

    def _forget_old(self, now_s: float, version: int) -> None:
        marks = self._marks
        marks.append((now_s, version))
        self._look_s = now_s + MARK_INTERVAL_S
        forget = self.horizon
        while marks and marks[0][0] < now_s - WINDOW_S:
            forget = marks.popleft()[1]
        if forget > self.horizon:
            self._forget(forget)

    def _forget_excess(self) -> None:
        if len(self._log_keys) > self._points_max:
            self._forget(self._log_versions[len(self._log_keys) // 2])
        if len(self._ranges) > self._ranges_max:
            self._forget(self._ranges[len(self._ranges) // 2][0])

    def _forget(self, version: int) -> None:
        """Drop all writes up to and including `version`."""
        self.horizon = version
        gone_count = bisect_right(self._log_versions, version)
        gone = self._log_keys[:gone_count]
        del self._log_keys[:gone_count], self._log_versions[:gone_count]
        for key in gone:
            if self._version_of.get(key, version + 1) <= version:
                del self._version_of[key]
                if self._index is not None:
                    self._index.discard(key)
        self._indexed_count = max(0, self._indexed_count - gone_count)
        del self._ranges[: bisect_right(self._ranges, version, key=itemgetter(0))]
