"""How counters are put right, which others add to meanwhile.  Pure."""

from collections.abc import Sequence
from typing import Final, NamedTuple, TypedDict

from . import records
from .fsck_facts import Row

COUNT_MAX: Final = 2**62
"""Counters are signed 64-bit numbers, and of nothing that exists there is that much."""


class Counter(NamedTuple):
    """What is stored of something, and what was counted."""

    key: bytes
    stored: int
    counted: int


class _Repair(TypedDict):
    guards: tuple[Row, ...]
    writes: tuple[Row, ...]
    adds: tuple[tuple[bytes, int], ...]


def put_right(counters: Sequence[Counter], *guards: Row) -> _Repair:
    """Return those parts of a finding by which its repair puts counters right.

    What is missing is added, so that it does not matter who counts meanwhile.  A counter that is
    so far off that no addition leads back is set, if it is still the same.

    Args:
        counters: those that may be wrong.
        guards: more of them.
    """
    adds, writes, same = [], [], list(guards)
    for key, stored, counted in counters:
        missing = counted - stored
        if abs(missing) < COUNT_MAX:
            adds += [(key, missing)] if missing else []
        elif abs(counted) < COUNT_MAX:
            same.append((key, records.pack_count(stored)))
            writes.append((key, records.pack_count(counted)))
        # else a length that no file can have, which is another finding
    return {"guards": tuple(same), "writes": tuple(writes), "adds": tuple(adds)}
