"""What one transaction has written and read so far.  Pure; no I/O, no versions.

Sets, clears, atomic adds and maxima, and versionstamps gather here until commit; reads
see them (read your writes).  `RangeRead` merges them with the store's rows page by
page, whoever fetches the pages.

Semantics worth knowing:
    - A range is cleared first, points are written after: a set after a clear_range survives, a set
      before it does not.
    - An atomic add or maximum on a key this transaction has set or cleared becomes a plain set.
    - A key written by set_versionstamped_key is not seen by this transaction's own reads (its name
      is not known yet) and is written after all else; reading a key written by
      set_versionstamped_value is a bug.
    - Reading an own set or clear is no read of the store and makes no conflict.

Invariant: `cleared` is sorted, disjoint and non-empty per range; no point write that an own
clear_range removed stays in `points`.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from ..schema.status import FsError, Status
from .api import (
    KEY_BYTES_MAX,
    PREFIX_BYTES_MAX,
    TRANSACTION_BYTES_MAX,
    VALUE_BYTES_MAX,
    VERSIONSTAMP_BYTES,
    KeyValue,
    next_key,
)
from .conflicts import KeyRange

KEY_END: Final = b"\xff"
"""Every user key is below; the rest belongs to the engine."""

PAGE_ROWS: Final = 1_000
"""Rows asked of the store at once when a range is merged with own writes."""

KEY_OVERHEAD_BYTES: Final = PREFIX_BYTES_MAX + 25
"""Added to each key that counts towards the size of a transaction: the longest prefix, and
FoundationDB's own record of a mutation (44 bytes in clients that know checksums of mutations) or a
conflict range (24).  So what is accepted here is never too large there.
"""

SET_KEYS: Final = 3
"""Keys that count for a write: its own, and the two ends of the range
that readers conflict with.
"""
CLEAR_KEYS: Final = 4
"""As SET_KEYS; a cleared key is a range of its own."""
CONFLICT_KEYS: Final = 2

STAMP_PARAMETER_BYTES: Final = VERSIONSTAMP_BYTES + 4
"""A versionstamp to be filled in, and FoundationDB's note of where."""

ADD_BYTES: Final = 8
ADD_MASK: Final = (1 << 64) - 1


class Added(int):
    """An atomic add not yet applied: how much;
    a number itself, since most changes of metadata make four of them.
    """

    __slots__ = ()

    def applied_to(self, value: bytes | None) -> bytes:
        """Return what becomes of a value."""
        return add_to(value, self)


class Raised(NamedTuple):
    """An atomic maximum not yet applied."""

    value: bytes

    def applied_to(self, value: bytes | None) -> bytes:
        """Return what becomes of a value."""
        return larger(value, self.value)


@dataclass(frozen=True, slots=True)
class Stamped:
    """A value that needs the versionstamp of the commit."""

    prefix: bytes
    suffix: bytes


@dataclass(frozen=True, slots=True)
class Unwritten:
    """This transaction has not touched the key."""


UNWRITTEN: Final = Unwritten()

PointWrite = bytes | Added | Raised | Stamped | None
"""None: cleared."""


class Mutations(NamedTuple):
    """What a commit does to the store: clear `ranges`, then apply `points` in order."""

    ranges: Sequence[KeyRange]
    points: Sequence[tuple[bytes, bytes | None]]
    conflict_keys: Sequence[bytes]
    """Keys that readers of them conflict on: those of `points` and explicit ones."""
    is_freeing: bool = False
    """See Transaction.mark_freeing."""


def add_to(value: bytes | None, delta: int) -> bytes:
    """Return little-endian signed 64-bit `value` (absent: 0; cut or zero-filled) plus `delta`."""
    current = int.from_bytes(value[:ADD_BYTES], "little") if value else 0
    return ((current + delta) & ADD_MASK).to_bytes(ADD_BYTES, "little")


def larger(value: bytes | None, other: bytes) -> bytes:
    """Return the larger of two little-endian unsigned numbers as wide
    as `other` (absent `value`: the other).
    """
    if value is None:
        return other
    width = len(other)
    fitted = value if len(value) == width else value[:width].ljust(width, b"\0")
    number = int.from_bytes
    return other if number(other, "little") > number(fitted, "little") else fitted


def check_key(key: bytes) -> None:
    """Refuse keys beyond the limit (operating error) and in the engine's own space (bug)."""
    if len(key) > KEY_BYTES_MAX:
        raise FsError(Status.KV_KEY_TOO_LARGE, f"key {key[:32]!r}...: {len(key)} bytes")
    assert key < KEY_END, f"reserved key {key!r}"


def check_value(key: bytes, value_bytes: int) -> None:
    """Refuse a value beyond the limit."""
    if value_bytes > VALUE_BYTES_MAX:
        raise FsError(Status.KV_VALUE_TOO_LARGE, f"key {key[:32]!r}: value of {value_bytes} bytes")


def check_range(begin: bytes, end: bytes) -> None:
    """Refuse bounds beyond the limit (operating error) or the user's key space (bug)."""
    if len(begin) > KEY_BYTES_MAX + 1 or len(end) > KEY_BYTES_MAX + 1:
        raise FsError(Status.KV_KEY_TOO_LARGE, f"range bounds of {len(begin)} and {len(end)} bytes")
    assert end <= KEY_END, f"reserved range end {end!r}"


class WriteBuffer:
    """Writes, read conflicts and their size."""

    __slots__ = (
        "_extra_conflict_keys",
        "_sorted_points",
        "_stamped_keys",
        "cleared",
        "is_freeing",
        "points",
        "read_keys",
        "read_ranges",
        "size_bytes",
    )

    def __init__(self) -> None:
        self.points: dict[bytes, PointWrite] = {}
        """The newest write of every key; None: cleared.  To be read only."""
        self._sorted_points: list[bytes] | None = None
        self._stamped_keys: list[tuple[bytes, bytes, bytes]] = []
        self._extra_conflict_keys: list[bytes] = []
        self.cleared: list[KeyRange] = []
        self.read_keys: set[bytes] = set()
        self.read_ranges: list[KeyRange] = []
        self.size_bytes = 0
        self.is_freeing = False
        """See Transaction.mark_freeing."""

    @property
    def is_read_only(self) -> bool:
        """True when a commit would have no effect on anybody."""
        return not (self.points or self.cleared or self._stamped_keys or self._extra_conflict_keys)

    @property
    def stamped_keys(self) -> Sequence[tuple[bytes, bytes, bytes]]:
        """(prefix, suffix, value) of every set_versionstamped_key."""
        return self._stamped_keys

    @property
    def extra_conflict_keys(self) -> Sequence[bytes]:
        """Keys of add_write_conflict_key."""
        return self._extra_conflict_keys

    @property
    def has_visible_writes(self) -> bool:
        """True when reads must look here."""
        return bool(self.points or self.cleared)

    def _charge(self, key_count: int, key_bytes: int, value_bytes: int = 0) -> None:
        """Count `key_bytes` in all of `key_count` keys."""
        self.size_bytes += key_count * KEY_OVERHEAD_BYTES + key_bytes + value_bytes
        if self.size_bytes > TRANSACTION_BYTES_MAX:
            raise FsError(
                Status.KV_TRANSACTION_TOO_LARGE,
                f"{self.size_bytes} bytes of keys, values and conflict ranges",
            )

    def _put(self, key: bytes, write: PointWrite, value_bytes: int) -> None:
        key_bytes = len(key)
        if key_bytes > KEY_BYTES_MAX or key >= KEY_END:
            check_key(key)
        count = CLEAR_KEYS if write is None else SET_KEYS
        self.size_bytes += count * (KEY_OVERHEAD_BYTES + key_bytes) + value_bytes
        if self.size_bytes > TRANSACTION_BYTES_MAX:
            self._charge(0, 0)
        if self._sorted_points is not None and key not in self.points:
            self._sorted_points = None
        self.points[key] = write

    def set(self, key: bytes, value: bytes) -> None:
        """See Transaction.set."""
        value_bytes = len(value)
        if value_bytes > VALUE_BYTES_MAX:
            check_value(key, value_bytes)
        self._put(key, value if type(value) is bytes else bytes(value), value_bytes)

    def clear(self, key: bytes) -> None:
        """See Transaction.clear."""
        self._put(key, None, 0)

    def clear_range(self, begin: bytes, end: bytes) -> None:
        """See Transaction.clear_range."""
        check_range(begin, end)
        if begin >= end:
            return
        self._charge(CLEAR_KEYS, 2 * (len(begin) + len(end)))
        for key in self.points_in(begin, end):
            del self.points[key]
            self._sorted_points = None
        # Swallow every range that overlaps or touches the new one.
        first = bisect_left(self.cleared, begin, key=lambda cleared: cleared[1])
        last = bisect_right(self.cleared, end, key=lambda cleared: cleared[0])
        if first < last:
            begin = min(begin, self.cleared[first][0])
            end = max(end, self.cleared[last - 1][1])
        self.cleared[first:last] = [(begin, end)]

    def atomic_add(self, key: bytes, delta: int) -> None:
        """See Transaction.atomic_add."""
        assert -(1 << 63) <= delta < 1 << 63, delta
        if key not in self.points and not self.cleared:
            self._put(key, Added(delta), ADD_BYTES)
            return
        written = self.written(key)
        assert not isinstance(written, Raised), f"{key!r} is both added to and raised"
        if isinstance(written, Added):
            self._put(key, Added(written + delta), ADD_BYTES)
        elif isinstance(written, Unwritten):
            self._put(key, Added(delta), ADD_BYTES)
        else:
            self._put(key, add_to(written, delta), ADD_BYTES)

    def atomic_max(self, key: bytes, value: bytes) -> None:
        """See Transaction.atomic_max."""
        value_bytes = len(value)
        if value_bytes > VALUE_BYTES_MAX:
            check_value(key, value_bytes)
        if key not in self.points and not self.cleared:
            self._put(key, Raised(bytes(value)), value_bytes)
            return
        written = self.written(key)
        assert not isinstance(written, Added), f"{key!r} is both added to and raised"
        if isinstance(written, Unwritten):
            self._put(key, Raised(bytes(value)), len(value))
        elif isinstance(written, Raised):
            assert len(written.value) == len(value), f"{key!r} is raised at two widths"
            self._put(key, Raised(larger(written.value, value)), len(value))
        else:
            self._put(key, larger(written, value), len(value))

    def set_versionstamped_value(self, key: bytes, prefix: bytes, suffix: bytes) -> None:
        """See Transaction.set_versionstamped_value."""
        value_bytes = len(prefix) + STAMP_PARAMETER_BYTES + len(suffix)
        check_value(key, value_bytes)
        self._put(key, Stamped(prefix, suffix), value_bytes)

    def set_versionstamped_key(self, prefix: bytes, suffix: bytes, value: bytes) -> None:
        """See Transaction.set_versionstamped_key."""
        check_key(prefix + bytes(STAMP_PARAMETER_BYTES) + suffix)
        check_value(prefix, len(value))
        key_bytes = len(prefix) + STAMP_PARAMETER_BYTES + len(suffix)
        self._charge(SET_KEYS, SET_KEYS * key_bytes, len(value))
        self._stamped_keys.append((prefix, suffix, bytes(value)))

    def add_read_key(self, key: bytes) -> None:
        """Record a read conflict on one key."""
        if key not in self.read_keys:
            key_bytes = len(key)
            if key_bytes > KEY_BYTES_MAX or key >= KEY_END:
                check_key(key)
            self.size_bytes += CONFLICT_KEYS * (KEY_OVERHEAD_BYTES + key_bytes)
            if self.size_bytes > TRANSACTION_BYTES_MAX:
                self._charge(0, 0)
            self.read_keys.add(key)

    def add_read_range(self, begin: bytes, end: bytes) -> None:
        """Record a read conflict on begin <= key < end; nothing if that is empty."""
        if begin < end:
            check_range(begin, end)
            self._charge(CONFLICT_KEYS, len(begin) + len(end))
            self.read_ranges.append((begin, end))

    def add_write_conflict_key(self, key: bytes) -> None:
        """See Transaction.add_write_conflict_key."""
        check_key(key)
        self._charge(CONFLICT_KEYS, CONFLICT_KEYS * len(key))
        self._extra_conflict_keys.append(key)

    def written(self, key: bytes) -> bytes | Added | Raised | Unwritten | None:
        """Return what this transaction made of `key`; None: cleared."""
        write = self.points.get(key, UNWRITTEN)
        if write is UNWRITTEN:
            is_cleared = self.cleared and self.cleared_until(key) is not None
            return None if is_cleared else UNWRITTEN
        assert not isinstance(write, Stamped), f"{key!r} is known only after commit"
        return write

    def cleared_until(self, key: bytes) -> bytes | None:
        """Return the end of the cleared range that holds `key`."""
        position = bisect_right(self.cleared, key, key=lambda cleared: cleared[0]) - 1
        if position >= 0 and key < self.cleared[position][1]:
            return self.cleared[position][1]
        return None

    def cleared_from(self, end: bytes) -> bytes | None:
        """Return the begin of the cleared range that holds the keys just below `end`."""
        position = bisect_left(self.cleared, end, key=lambda cleared: cleared[0]) - 1
        if position >= 0 and end <= self.cleared[position][1]:
            return self.cleared[position][0]
        return None

    def points_in(self, begin: bytes, end: bytes) -> list[bytes]:
        """Return the keys with a point write in begin <= key < end, in order."""
        if self._sorted_points is None:
            self._sorted_points = sorted(self.points)
        keys = self._sorted_points
        return keys[bisect_left(keys, begin) : bisect_left(keys, end)]

    def mutations(self, stamp: bytes, current: Callable[[bytes], bytes | None]) -> Mutations:
        """Return what to do to the store.

        Args:
            stamp: versionstamp of the commit, VERSIONSTAMP_BYTES long.
            current: the newest committed value of a key, for atomic adds and maxima.
        """
        points: list[tuple[bytes, bytes | None]] = []
        add = points.append
        for key, write in self.points.items():
            if write is None or type(write) is bytes:
                add((key, write))
            elif type(write) is Added:
                add((key, add_to(current(key), write)))
            elif type(write) is Raised:
                add((key, larger(current(key), write.value)))
            else:
                assert isinstance(write, Stamped), write
                add((key, write.prefix + stamp + write.suffix))
        keys = [*self.points, *self._extra_conflict_keys]
        for prefix, suffix, value in self._stamped_keys:
            key = prefix + stamp + suffix
            points.append((key, value))
            keys.append(key)
        return Mutations(self.cleared, points, keys, self.is_freeing)


class RangeRead:
    """One get_range in progress: ask `wanted`, feed the rows, until nothing is wanted.

    Each page is (begin, end, row limit or 0, reverse); feed exactly the store's rows for it, in the
    page's order.  A page that returns fewer rows than its limit is taken as the end of its range.
    """

    def __init__(
        self, buffer: WriteBuffer, begin: bytes, end: bytes, *, limit: int, reverse: bool
    ) -> None:
        check_range(begin, end)
        assert limit >= 0, limit
        self._buffer = buffer
        self._begin = begin
        self._end = end
        self._limit = limit
        self._reverse = reverse
        self._is_plain = not buffer.has_visible_writes
        self._low = begin
        self._high = max(begin, end)
        self.rows: list[KeyValue] = []

    def wanted(self) -> tuple[bytes, bytes, int, bool] | None:
        """Return the next page to read from the store, None when `rows` is complete."""
        if not self._is_plain:
            self._skip_cleared()
        if self._low >= self._high or (self._limit and len(self.rows) >= self._limit):
            return None
        return self._low, self._high, self._page_limit(), self._reverse

    def _page_limit(self) -> int:
        if self._is_plain:
            return self._limit
        return min(self._limit - len(self.rows), PAGE_ROWS) if self._limit else PAGE_ROWS

    def feed(self, page: list[KeyValue]) -> None:
        """Take the store's rows for the page last wanted."""
        if self._is_plain:
            self.rows = page
            self._low = self._high
            return
        is_last = len(page) < self._page_limit()
        if self._reverse:
            covered = (self._low if is_last else page[-1][0], self._high)
            self._high = covered[0]
        else:
            covered = (self._low, self._high if is_last else next_key(page[-1][0]))
            self._low = covered[1]
        self._take(self._merged(page, *covered))

    def _take(self, rows: Iterator[KeyValue]) -> None:
        for row in rows:
            if self._limit and len(self.rows) >= self._limit:
                return
            self.rows.append(row)

    def _skip_cleared(self) -> None:
        """Move past a cleared stretch at the near edge without asking the store for its rows."""
        while self._low < self._high:
            buffer = self._buffer
            if self._reverse:
                edge = buffer.cleared_from(self._high)
                stretch = (max(edge, self._low), self._high) if edge is not None else None
            else:
                edge = buffer.cleared_until(self._low)
                stretch = (self._low, min(edge, self._high)) if edge is not None else None
            if stretch is None or (self._limit and len(self.rows) >= self._limit):
                return
            self._take(self._merged([], *stretch))
            if self._reverse:
                self._high = stretch[0]
            else:
                self._low = stretch[1]

    def _merged(self, page: list[KeyValue], low: bytes, high: bytes) -> Iterator[KeyValue]:
        buffer = self._buffer
        own = buffer.points_in(low, high)
        if not own and not buffer.cleared:
            return iter(page)
        base = dict(page)
        keys = sorted({*base, *own}, reverse=self._reverse)
        return (
            (key, value) for key in keys if (value := self._value(key, base.get(key))) is not None
        )

    def _value(self, key: bytes, base: bytes | None) -> bytes | None:
        written = self._buffer.written(key)
        if isinstance(written, Unwritten):
            return base
        if isinstance(written, Added | Raised):
            return written.applied_to(base)
        return written

    def looked_at(self) -> KeyRange:
        """Return the range whose content decided the result; call it when nothing is wanted."""
        if not self._limit or len(self.rows) < self._limit:
            return self._begin, self._end
        last = self.rows[-1][0]
        return (last, self._end) if self._reverse else (self._begin, next_key(last))
