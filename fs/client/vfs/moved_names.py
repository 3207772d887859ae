"""Names that got another one in the same directory while it was listed,
so that nothing is listed twice for that.

Entries come in byte order.  Who gives each file that he is shown a later name would be
shown it again under that one, and again, until names are too long.  Only what this
mount renames is known.  Pure.
"""

from typing import Final

from ...schema.ids import InodeId

NAMES_MAX: Final = 1 << 18
"""Of one open directory; what is renamed beyond that may be listed again."""


class MovedNames:
    """Of one open directory."""

    def __init__(self) -> None:
        self._listed: dict[bytes, bytes] = {}
        """By the name that something has now: the one by which it was listed."""
        self._undecided: dict[bytes, bytes] = {}
        """The same of what was renamed since the last request:
        which names of the reply before the kernel has shown, that tells.
        """
        self.change_count = 0
        """Of names in the directory, through this mount, since it was opened."""

    @property
    def is_empty(self) -> bool:
        """True while `is_listed` is true of nothing."""
        return not self._listed

    @property
    def is_undecided(self) -> bool:
        """True when `decide` has something to do."""
        return bool(self._undecided)

    def note(self, old: bytes, new: bytes, *, is_new_name: bool) -> None:
        """Something was renamed; `is_new_name`: nothing was there before by the name
        that it has now.
        """
        known = self._listed if old in self._listed else self._undecided
        origin = known.pop(old, old)
        self.forget(new)
        if is_new_name and origin < new and len(self._listed) < NAMES_MAX:
            known[new] = origin

    def forget(self, name: bytes) -> None:
        """Something else has this name now."""
        self._listed.pop(name, None)
        self._undecided.pop(name, None)

    def decide(self, after: bytes) -> None:
        """The kernel goes on behind a name: of what was renamed since its last request that up
        to there was shown, and what is behind it not.
        """
        self._listed |= {new: old for new, old in self._undecided.items() if old <= after}
        self._undecided.clear()

    def is_listed(self, name: bytes, after: bytes) -> bool:
        """Return whether a listing that goes on behind `after` has shown
        by an earlier name what has this one.
        """
        origin = self._listed.get(name)
        return origin is not None and origin <= after

    def clear(self) -> None:
        """The listing begins anew."""
        self._listed.clear()
        self._undecided.clear()


class Listings:
    """All directories that are open."""

    def __init__(self) -> None:
        self._open: dict[InodeId, list[MovedNames]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._open.values()))

    @property
    def are_open(self) -> bool:
        """True while any directory is."""
        return bool(self._open)

    def begin(self, inode_id: InodeId) -> MovedNames:
        """Return what is kept up to date for one open directory until its `end`."""
        made = MovedNames()
        self._open.setdefault(inode_id, []).append(made)
        return made

    def end(self, inode_id: InodeId, ended: MovedNames) -> None:
        """Forget an open directory."""
        left = [one for one in self._open[inode_id] if one is not ended]
        if left:
            self._open[inode_id] = left
        else:
            del self._open[inode_id]

    def note_changed(self, inode_id: InodeId) -> None:
        """Something has changed in what may be an open directory."""
        for moved in self._open.get(inode_id, ()):
            moved.change_count += 1

    def note(
        self, old: tuple[InodeId, bytes], new: tuple[InodeId, bytes], *, is_new_name: bool
    ) -> None:
        """As `MovedNames.note`, of (directory, name)."""
        if old[0] == new[0]:
            for moved in self._open.get(old[0], ()):
                moved.note(old[1], new[1], is_new_name=is_new_name)
            return
        for parent, name in (old, new):
            for moved in self._open.get(parent, ()):
                moved.forget(name)
