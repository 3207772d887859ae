"""What was changed through this mount lately:
who asked meta before learns that the answer may be out of date.

The kernel takes no attributes from replies to requests that it sent before a change of its own.
But it cannot know that a page of a listing was read before.  Nor can it know that a reply was under
way for so long that its file was written and closed meanwhile.

Invariant: what changed after `mark` was called is found by `is_since`.  What did not may be found,
too, once too much has changed since.
"""

from collections.abc import Callable, Hashable
from typing import Final

from ...runtime.oldest import forget_oldest
from ...schema.ids import InodeId

COUNT_MAX: Final = 8192
"""Changes remembered; of what came before these all counts as changed."""


class Changes:
    """See module head."""

    def __init__(self, on_changed: Callable[[InodeId], None]) -> None:
        """Call `on_changed`, which neither waits nor raises, with each inode that may have changed:
        also the directory of a name.
        """
        self._on_changed = on_changed
        self._changed: dict[Hashable, int] = {}
        self._count = 0
        self._forgotten_count = 0

    def mark(self) -> int:
        """Return what `is_since` wants to know of the moment before meta is asked."""
        return self._count

    def note_inode(self, inode_id: InodeId) -> None:
        """Attributes, length or content have changed, or may have; before the kernel is told."""
        self._on_changed(inode_id)
        self._note(inode_id)

    def note_name(self, parent: InodeId, name: bytes) -> None:
        """A name means something else, or may; before the kernel is told."""
        self._on_changed(parent)
        self._note((parent, name))

    def _note(self, key: Hashable) -> None:
        self._count += 1
        self._changed.pop(key, None)
        self._changed[key] = self._count
        forgotten = forget_oldest(self._changed, COUNT_MAX)
        if forgotten is not None:
            self._forgotten_count = forgotten

    def is_since(self, mark: int, inode_id: InodeId) -> bool:
        """Return whether an inode has changed since, or may have."""
        return mark < self._count and self._changed.get(inode_id, self._forgotten_count) > mark

    def is_name_since(self, mark: int, parent: InodeId, name: bytes) -> bool:
        """Return whether a name has come to mean something else since, or may have."""
        if mark == self._count:
            return False
        return self._changed.get((parent, name), self._forgotten_count) > mark
