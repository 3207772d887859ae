"""Conflict window: which keys were written since a snapshot.  Pure; time is an argument.

A commit adds what it wrote under its version.  A later commit asks whether anything it read
was written after its snapshot.  The window forgets commits older than WINDOW_S and, when it
would grow beyond its bounds, the oldest ones.  A snapshot from before `horizon` can no
longer be judged and is too old.

Point writes lie in stretches of commits, each of MARK_INTERVAL_S and of a bounded number of writes,
that are forgotten whole.  Why not one by one: keys that nobody has touched for seconds took more of
a commit's time than all else here, and stopped the event loop for tens of ms.

Invariants:
    - For every read version >= horizon, `check` is exact: no missed conflict, no invented one.
    - At most POINTS_MAX logged point writes and RANGES_MAX logged range writes are kept.
    - No commit is in two stretches.

Cost:
    - A point read is one dictionary lookup in each stretch since its snapshot, mostly one.
    - A range read looks in each stretch at the writes since its snapshot or at the written keys
      inside the range, whichever are fewer.
    - Nothing at all is looked at when no commit happened since the snapshot.

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

STRETCH_SHARE: Final = 16
"""A stretch ends with one of so many of the point writes that are kept at the most."""

POINTS_MAX: Final = 200_000
RANGES_MAX: Final = 4_096

SCAN_MAX: Final = 256
"""So many recent point writes are compared one by one before the sorted index is brought in."""

assert WINDOW_S > TRANSACTION_AGE_S_MAX
assert SCAN_MAX < POINTS_MAX // STRETCH_SHARE


class _Stretch:
    """The point writes of commits that came one after the other."""

    __slots__ = (
        "_index",
        "_indexed_count",
        "_starts",
        "_versions",
        "end_version",
        "ended_s",
        "keys",
        "version_of",
    )

    def __init__(self) -> None:
        self.version_of: dict[bytes, int] = {}
        """The last commit of each key."""
        self.keys: list[bytes] = []
        self._versions: list[int] = []
        self._starts: list[int] = []
        """Of each commit, its version and where its keys begin."""
        self.end_version, self.ended_s = 0, math.inf
        """Of its last commit, also of one that wrote no keys, and when that came;
        inf: there may be more.
        """
        # Built when first needed: most windows never see a range read across many commits.
        self._index: SortedSet[bytes] | None = None
        self._indexed_count = 0

    def add(self, version: int, keys: Sequence[bytes]) -> None:
        """Remember what one more commit wrote."""
        self.version_of.update(dict.fromkeys(keys, version))
        self._versions.append(version)
        self._starts.append(len(self.keys))
        self.keys += keys

    @property
    def last(self) -> int:
        """The version of its last commit; 0: it has none."""
        return self._versions[-1] if self._versions else 0

    def is_any_since(self, read_version: int, keys: Collection[bytes]) -> bool:
        """Return whether any of these keys was written after `read_version`."""
        version_of = self.version_of
        return any(version_of.get(key, 0) > read_version for key in keys)

    def is_written_since(self, read_version: int, begin: bytes, end: bytes) -> bool:
        """Return whether anything between these was written after `read_version`."""
        first = bisect_right(self._versions, read_version)
        start = self._starts[first] if first < len(self._starts) else len(self.keys)
        recent_count = len(self.keys) - start
        if recent_count > SCAN_MAX:
            index = self._current_index()
            if index.bisect_left(end) - index.bisect_left(begin) < recent_count:
                inside = index.irange(begin, end, inclusive=(True, False))
                return any(self.version_of[key] > read_version for key in inside)
        return any(begin <= key < end for key in self.keys[start:])

    def _current_index(self) -> "SortedSet[bytes]":
        # Not kept meanwhile: one to which keys were being added when memory ran
        # out holds fewer than it says.
        index, self._index = self._index, None
        if index is None:
            index = SortedSet(self.version_of)
        else:
            index.update(self.keys[self._indexed_count :])
        self._index, self._indexed_count = index, len(self.keys)
        return index


class ConflictWindow:
    """The recent writes by commit version."""

    def __init__(
        self, version: int, *, points_max: int = POINTS_MAX, ranges_max: int = RANGES_MAX
    ) -> None:
        """Start empty after the commit `version`: older snapshots are too old."""
        self.horizon = version
        """The oldest read version that can still be judged."""
        self.point_count = 0
        """Point writes kept."""
        self._latest = version
        self._points_max = points_max
        self._ranges_max = ranges_max
        self._stretch_count_max = points_max // STRETCH_SHARE
        self._stretches = deque([_Stretch()])
        """The last one takes what comes next."""
        self._ranges: list[tuple[int, bytes, bytes]] = []
        self._look_s = -math.inf
        """When the last stretch ends, and it is looked for what is old."""

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
        if self._ranges and self._is_cleared_since(read_version, keys, ranges):
            return False
        for stretch in reversed(self._stretches):
            if stretch.keys:
                if stretch.last <= read_version:
                    break
                if stretch.is_any_since(read_version, keys):
                    return False
                if any(stretch.is_written_since(read_version, *bounds) for bounds in ranges):
                    return False
        return True

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
        stretch = self._stretches[-1]
        if keys:
            stretch.add(version, keys)
            self.point_count += len(keys)
        if ranges:
            self._ranges += [(version, begin, end) for begin, end in ranges]
            if len(self._ranges) > self._ranges_max:
                self._forget(self._ranges[len(self._ranges) // 2][0])
        if now_s >= self._look_s or len(stretch.keys) > self._stretch_count_max:
            self._end_stretch(stretch, version, now_s)

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

    def _end_stretch(self, stretch: _Stretch, version: int, now_s: float) -> None:
        """Begin another stretch, and forget what there is no room for, or no need of."""
        self._look_s = now_s + MARK_INTERVAL_S
        stretch.end_version, stretch.ended_s = version, now_s
        stretches = self._stretches
        stretches.append(_Stretch())
        while (
            self.point_count > self._points_max - self._stretch_count_max
            or stretches[0].ended_s < now_s - WINDOW_S
        ):
            self._forget(stretches[0].end_version)

    def _forget(self, version: int) -> None:
        """Forget all writes up to and including `version`;
        keys of a stretch that goes on behind it stay there, and are older than any snapshot.
        """
        self.horizon = version
        stretches = self._stretches
        while len(stretches) > 1 and stretches[0].end_version <= version:
            self.point_count -= len(stretches.popleft().keys)
        del self._ranges[: bisect_right(self._ranges, version, key=itemgetter(0))]
