"""Quotas: limits on the bytes and on the inodes below a directory, checked where usage is counted.

A growth that would exceed a limit is refused with QUOTA_EXCEEDED in the transaction that would make
it.  So no commit leaves more than the limit, with the exceptions listed below.

To be sure of that a transaction must conflict with every other growth below the same quota, which
would let one of them commit at a time.  So there are two ways, and a *near mark* that says which:
    - Far from the limit (more than a margin away) a small growth reads the counter without a
      conflict, and only the near mark with one.
    - The first transaction that sees less than the margin left reads the counter with a conflict
      and sets the mark, which reruns all that were under way.  From then on every growth reads the
      counter with a conflict, until somebody sees twice the margin left and takes the mark away.

Why no limit is exceeded: let p be the first commit that leaves less than the margin, w the first
later one that sets the mark.  Between p and w only growths commit whose snapshot is before p, so
which were under way at p.  They are at most IN_FLIGHT_MAX small ones, which together are no more
than the margin.  After w nobody commits on a counter that changed after he read it.  A growth that
is not small reads with a conflict at any time.  Should more than IN_FLIGHT_MAX be under way at one
moment below one quota, those beyond may exceed it.

What may leave more than a limit, and is counted all the same:
    - setting a limit below what is there;
    - an inode with several names whose home goes, so that it counts elsewhere;
    - a writer's last report of bytes that its dead client had been promised.

Concurrency: none of its own; every function works within one transaction.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from ..kv.api import Transaction
from ..schema.layout import MIB
from ..schema.status import FsError, Status
from . import records
from .damage import count
from .lineage import Ancestor
from .usage_sum import Usage

IN_FLIGHT_MAX: Final = 16_384
"""Growths below one quota that are between their snapshot and their commit at one moment."""

SMALL_BYTES: Final = 1 * MIB
SMALL_INODES: Final = 1
MARGIN_BYTES: Final = IN_FLIGHT_MAX * SMALL_BYTES
MARGIN_INODES: Final = IN_FLIGHT_MAX * SMALL_INODES

_COUNTERS: Final = {
    records.KIND_BYTES: (records.KIND_BYTES,),
    records.KIND_INODES: (records.KIND_FILES, records.KIND_DIRECTORIES),
}
_SMALL: Final = {records.KIND_BYTES: SMALL_BYTES, records.KIND_INODES: SMALL_INODES}
_MARGINS: Final = {records.KIND_BYTES: MARGIN_BYTES, records.KIND_INODES: MARGIN_INODES}
_WORDS: Final = {records.KIND_BYTES: "bytes", records.KIND_INODES: "inodes"}


def is_metered(lineage: Iterable[Ancestor]) -> bool:
    """Return whether a file below has to ask before it grows."""
    return any(ancestor.bytes_max for ancestor in lineage)


async def require_room(tr: Transaction, totals: Iterable[tuple[Ancestor, Usage]]) -> None:
    """Raise FsError(QUOTA_EXCEEDED) if a growth does not fit; nothing has been added yet."""
    for ancestor, total in totals:
        if ancestor.bytes_max and total.byte_count > 0:
            await _require(tr, ancestor, records.KIND_BYTES, ancestor.bytes_max, total.byte_count)
        if ancestor.inodes_max and total.inode_count > 0:
            await _require(
                tr, ancestor, records.KIND_INODES, ancestor.inodes_max, total.inode_count
            )


def _counter_keys(directory_id: int, kind: bytes) -> list[bytes]:
    return [records.usage_key(directory_id, part) for part in _COUNTERS[kind]]


async def _used(tr: Transaction, directory_id: int, kind: bytes) -> int:
    keys = _counter_keys(directory_id, kind)
    return sum(map(count, keys, await tr.get_many(keys, snapshot=True)))


async def _require(
    tr: Transaction, ancestor: Ancestor, kind: bytes, limit: int, growth: int
) -> None:
    near_key = records.quota_near_key(ancestor.directory_id, kind)
    is_near = await tr.get(near_key) is not None
    used = await _used(tr, ancestor.directory_id, kind)
    left = limit - used - growth
    if left < 0:
        raise FsError(
            Status.QUOTA_EXCEEDED,
            f"directory {ancestor.directory_id:#x}: {used} of {limit} {_WORDS[kind]} used,"
            f" {growth} more wanted",
        )
    margin = _MARGINS[kind]
    if left >= margin and growth <= _SMALL[kind] and not is_near:
        return
    for key in _counter_keys(ancestor.directory_id, kind):
        tr.add_read_conflict_key(key)
    if left < margin and not is_near:
        tr.set(near_key, b"")
    elif left >= 2 * margin and is_near:
        tr.clear(near_key)


async def bytes_left(tr: Transaction, lineage: Sequence[Ancestor]) -> int | None:
    """Return how many bytes fit below all the quotas of a lineage, as of the snapshot;
    None: no limit.
    """
    left = None
    for ancestor in lineage:
        if ancestor.bytes_max:
            used = await _used(tr, ancestor.directory_id, records.KIND_BYTES)
            here = max(0, ancestor.bytes_max - used)
            left = here if left is None else min(left, here)
    return left
