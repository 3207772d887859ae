"""Which groups of blocks are worth emptying, so that their space goes back to the disk.  Pure.

A sparse group is emptied if all its used blocks find room in other groups that are in use and are
not emptied themselves.  The emptiest go first: they cost least and give most.  Nothing is moved
into an empty group, nor is a new one made for it: that would gain nothing.

Invariants:
    - What the chosen groups hold fits into the free blocks of the others that hold something.
    - When the plan has been carried out, and nothing else has happened, a new plan is empty.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

SPARSE_SHARE: Final = 4
"""Sparse is a group of which at most one in so many blocks is used: a byte moved frees three."""


@dataclass(frozen=True, slots=True)
class GroupUse:
    """One group of a size class."""

    number: int
    used_count: int
    """Blocks that records name."""
    busy_count: int
    """Those, and the ones that may not be used again yet."""


def groups_to_empty(groups: Iterable[GroupUse], *, blocks_per_group: int) -> list[int]:
    """Return the numbers of the groups to empty, the emptiest first;
    of equals the one that is further back.
    """
    in_use = [group for group in groups if group.used_count]
    free_count = sum(blocks_per_group - group.busy_count for group in in_use)
    chosen: list[int] = []
    to_move = 0
    for group in sorted(in_use, key=lambda g: (g.used_count, -g.number)):
        to_move += group.used_count
        free_count -= blocks_per_group - group.busy_count
        if group.used_count * SPARSE_SHARE > blocks_per_group or to_move > free_count:
            break
        chosen.append(group.number)
    return chosen
