"""Attributes that the kernel was given last,
of inodes that it holds and whose time of making it has not been told.

The kernel answers stat(2) from what a look-up or a listing brought, for as long as it may.  But no
look-up brings a time of making.  So for each inode of which a program wants one the kernel asks
once, with STATX, although it knows all the rest.  The mount then tells it what it has.

Invariants:
    - Nothing is told that is older than what the kernel may answer stat(2) from itself, nor for
      longer.  It is what the kernel was given last.  It is forgotten with whatever changes it
      through this mount, and its time runs from when it was given.
    - Nothing is kept of open files, whose attributes this mount knows better.
    - Nothing is kept of inodes whose time of making the kernel knows: where it asks for such
      attributes, it could not have answered by itself.

Does not: ask meta.
"""

import math
from collections.abc import Callable
from typing import Final

from ...runtime.oldest import forget_oldest
from ...schema.ids import InodeId
from ...schema.inode import Inode
from .listed_file import ListedFile

COUNT_MAX: Final = 16_384
"""Inodes remembered; the oldest go first, and so does what may be used no more.

Each takes about a KiB.
"""
LOOK_INTERVAL_S: Final = 0.1
"""Between two looks for that."""


class GivenAttributes:
    """See module head."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._found: dict[InodeId, tuple[Inode | ListedFile, float]] = {}
        self._look_s = -math.inf
        """When it is looked again for what may be used no more."""

    def __len__(self) -> int:
        return len(self._found)

    def note(self, inode: Inode | ListedFile, left_s: float, now_s: float | None = None) -> None:
        """The kernel is given attributes that it may use for `left_s`;
        `now_s`: the time, if it has just been looked at.
        """
        found = self._found
        if now_s is None:
            now_s = self._now_s()
        before = found.pop(inode.inode_id, None)
        if before is not None and before[0].ctime_ns > inode.ctime_ns:
            # Replies have passed each other: which of them the kernel has taken nobody knows.
            return
        if left_s <= 0.0:
            return
        found[inode.inode_id] = inode, now_s + left_s
        if now_s >= self._look_s:
            self._look_s = now_s + LOOK_INTERVAL_S
            self._drop_old(now_s)
        forget_oldest(found, COUNT_MAX)

    def _drop_old(self, now_s: float) -> None:
        # They do not end quite in the order in which they came; what is left behind goes later.
        old = []
        for inode_id, (_, until_s) in self._found.items():
            if until_s > now_s:
                break
            old.append(inode_id)
        for inode_id in old:
            del self._found[inode_id]

    def find(self, inode_id: InodeId) -> tuple[Inode, float] | None:
        """Return what the kernel has of an inode, and for how many seconds it may
        still use that.
        """
        found = self._found.get(inode_id)
        if found is None:
            return None
        inode, until_s = found
        left_s = until_s - self._now_s()
        if left_s <= 0.0:
            return None
        return (inode.inode if isinstance(inode, ListedFile) else inode), left_s

    def forget(self, inode_id: InodeId) -> None:
        """What the kernel was given may hold no more, or nobody will ask for it."""
        self._found.pop(inode_id, None)
