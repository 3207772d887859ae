"""Attributes of directories that came with replies to changes of names below them, and to listings.

The kernel forgets what it knows of a directory whenever a name in it changes through this
mount, and when it was last accessed whenever it is read; it asks with the next step of a
path, or when the directory is opened again.  Meta's reply to the change or listing told
already, so the mount answers by itself.

Invariants:
    - Nothing is told that is older than attr_timeout_s, and the kernel is given what is left of
      that time: it sees nothing that it could not have kept itself.
    - A program sees all that was changed through its mount: a reply that may be from
      before a change of the directory's own attributes is not taken, and what was told
      before that change is forgotten.

Does not: keep attributes of anything else, or ask meta.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Final

from ...schema.ids import InodeId
from ...schema.inode import Inode, inode_from_pb
from ...schema.proto import common_pb2

COUNT_MAX: Final = 1024
"""Directories remembered; the oldest go first."""


class ToldDirectories:
    """See module head."""

    def __init__(self, age_s_max: float, now_s: Callable[[], float]) -> None:
        self._age_s_max = age_s_max
        self._now_s = now_s
        self._found: dict[InodeId, tuple[Inode, float]] = {}
        self._change_count = self._given_count = 0
        self.hit_count = self.miss_count = 0
        """Of `find`."""

    def mark(self) -> int:
        """Return what `note` wants to know of the moment when a request was made."""
        return self._change_count

    def given_mark(self) -> int:
        """Return what has changed by a later moment
        if the kernel has been given any directory in between.
        """
        return self._given_count

    def note(
        self, directories: Iterable[common_pb2.InodePb], mark: int, now_s: float
    ) -> list[Inode]:
        """Take in, now, what a reply told, whose request was made at `mark`;
        return what counts from now on.
        """
        if mark != self._change_count or not self._age_s_max:
            # What was told before does not show this change either.
            for message in directories:
                self._found.pop(InodeId(message.inode_id), None)
            return []
        until_s = now_s + self._age_s_max
        return [i for i in map(inode_from_pb, directories) if self._is_taken(i, until_s)]

    def _is_taken(self, inode: Inode, until_s: float) -> bool:
        before, before_until_s = self._found.pop(inode.inode_id, (None, 0.0))
        if before is not None and before.ctime_ns > inode.ctime_ns:
            # Replies have passed each other; which one is newer only the time
            # tells, and not of anything else.
            times = {"mtime_ns": before.mtime_ns, "ctime_ns": before.ctime_ns}
            if replace(inode, **times) != before:  # type: ignore[arg-type]
                return False
            inode, until_s = before, before_until_s
        self._found[inode.inode_id] = inode, until_s
        if len(self._found) > COUNT_MAX:
            del self._found[next(iter(self._found))]
        return True

    def find(self, inode_id: InodeId) -> tuple[Inode, float] | None:
        """Return a directory's attributes, and for how many seconds they may still be used."""
        found = self._found.get(inode_id)
        if found is None:
            self.miss_count += 1
            return None
        inode, until_s = found
        left_s = until_s - self._now_s()
        if left_s <= 0.0:
            del self._found[inode_id]
            self.miss_count += 1
            return None
        self.hit_count += 1
        return inode, left_s

    def forget(self, inode_id: InodeId) -> None:
        """Forget a directory: the kernel was given something newer."""
        self._given_count += 1
        self._found.pop(inode_id, None)

    def note_changed(self, inode_id: InodeId) -> None:
        """A change of attributes begins or ends: what was told before, or is under way,
        may not show it.
        """
        self._change_count += 1
        self._found.pop(inode_id, None)
