"""Finds a stretch of a RocksDB log that is missing between others.  Pure.

RocksDB notices neither that a log file has vanished nor, when the last record of its MANIFEST is
cut short, that a table is not known any more whose log is deleted: older and newer changes are
there, those between them are not.

A *segment* is what is written between two changes of the log: by `LogSegments.end`, at which the
caller makes RocksDB change it, or by opening the store, at which RocksDB moves all logs to
tables.  The first batch of each segment stores a row: its number -> {newest change before it,
lowest number that must be there with it}, two u64, big-endian.  A segment is in one log, or in
tables that appear in one record of the MANIFEST, so its row is lost with it, and is missing
between the rows of others.  A segment that lost its end is the newest there is: that the length
of the log is guarded against (log_mark.py).

Invariants:
    - The caller never lets RocksDB change the log by itself.
    - At most WINDOW rows are kept: far more than logs that are in no table yet,
      and than tables in one record.
"""

import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

WINDOW: Final = 64
_NUMBER: Final = struct.Struct(">Q")
_ROW: Final = struct.Struct(">QQ")


class _Row(NamedTuple):
    after: int
    first: int


@dataclass(frozen=True, slots=True)
class Held:
    """What a store holds."""

    change: int
    """The newest, whatever the store counts."""
    segment: int
    """The newest; 0 in a store that has none."""
    gap: tuple[int, int] | None = None
    """Changes between these two, both of which may be there, are missing."""


NOTHING_HELD: Final = Held(0, 0)


def held(prefix: bytes, rows: Iterable[tuple[bytes, bytes]], change: int) -> Held:
    """Return what a store with these rows, whose newest change is `change`, holds."""
    known = _unpacked(prefix, rows)
    newest = max(known, default=0)
    return Held(change, newest, _gap(known, newest) if known else None)


def _gap(known: dict[int, _Row], newest: int) -> tuple[int, int] | None:
    before = 0
    for number in range(known[newest].first, newest + 1):
        if number not in known:
            follower = min(n for n in known if n > number)
            return before, known[follower].after + 1
        before = known[number].after
    return None


class LogSegments:
    """The segments of an open store; the caller serialises all calls."""

    def __init__(self, prefix: bytes, rows: Iterable[tuple[bytes, bytes]], cost_max: int) -> None:
        """Continue after the rows that the store holds; a gap that the caller accepts is forgotten.

        Args:
            prefix: of the rows' keys.
            rows: all with this prefix.
            cost_max: what `note` adds up to before a segment should end.
        """
        self._prefix = prefix
        self._cost_max = cost_max
        self._known = _unpacked(prefix, rows)
        self.number = max(self._known, default=0)
        """Of the newest segment that has begun."""
        has_gap = not self._known or _gap(self._known, self.number) is not None
        self._first = self.number + 1 if has_gap else self._known[self.number].first
        self.is_between = True
        """The next batch begins a segment: it has rows of its own to put."""
        self._change = 0
        self._cost = 0

    def opening_rows(self, newest: Callable[[], int]) -> list[tuple[bytes, bytes | None]]:
        """Return what the next batch has to put (or delete, None) besides its own.

        Args:
            newest: returns the newest change in the store; only called when it is needed.
        """
        if not self.is_between:
            return []
        self._change, number = newest(), self.number + 1
        first = max(self._first, number + 1 - WINDOW)
        rows: list[tuple[bytes, bytes | None]] = [
            (self._key(old), None) for old in sorted(self._known) if old < first
        ]
        return [*rows, (self._key(number), _ROW.pack(self._change, first))]

    def note(self, cost: int) -> bool:
        """The batch has been written; return whether the segment should end.

        Args:
            cost: of the batch, in what `cost_max` counts.
        """
        if self.is_between:
            self.is_between = False
            self.number += 1
            self._first = max(self._first, self.number + 1 - WINDOW)
            self._known[self.number] = _Row(self._change, self._first)
            self._known = {n: row for n, row in self._known.items() if n >= self._first}
        self._cost += cost
        return self._cost >= self._cost_max

    def end(self) -> None:
        """RocksDB has changed the log, after the last batch and before the next one."""
        self.is_between = True
        self._cost = 0

    def _key(self, number: int) -> bytes:
        return self._prefix + _NUMBER.pack(number)


def _unpacked(prefix: bytes, rows: Iterable[tuple[bytes, bytes]]) -> dict[int, _Row]:
    return {_NUMBER.unpack(key[len(prefix) :])[0]: _Row(*_ROW.unpack(value)) for key, value in rows}
