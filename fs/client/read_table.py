"""Many reads of few files into one memory, by rows of a ring: no object is made for each.

It is a sequence of `FileRead` to all who want one.  Who can do with rows (fs/client/read_plans.py)
spares most of what reads cost otherwise.

Invariant: what is made of a row is made once, so what is noted in it stays.
"""

from collections.abc import Collection, Iterator, Sequence
from typing import overload

from ..kernels.batches import ENTRY
from ..schema.ids import InodeId
from ..schema.layout import FileRef
from .file_read import FileRead


class ReadTable(Sequence[FileRead]):
    """See module head."""

    __slots__ = ("entries", "files", "made", "paged", "view")

    def __init__(self, entries: bytes, view: memoryview) -> None:
        """`entries`: rows as `fs.kernels.batches.ENTRY` has them;
        each lies within `view` and has at least one byte.
        """
        self.entries = entries
        self.view = view
        self.files: dict[bytes, FileRef] = {}
        """By key, of each that is in `entries`, before anything is read."""
        self.made: dict[int, FileRead] = {}
        """What rows have become, by position."""
        self.paged: Collection[InodeId] = ()
        """Of these files some rows are for the page cache of the kernel."""

    def __len__(self) -> int:
        return len(self.entries) // ENTRY.size

    def window(self, position: int) -> tuple[bytes, int, memoryview]:
        """Return the key of a row, where it begins in its file, and where its bytes go."""
        _, offset, place, length, key = ENTRY.unpack_from(self.entries, position * ENTRY.size)
        return key, offset, self.view[place : place + length]

    @overload
    def __getitem__(self, position: int) -> FileRead: ...

    @overload
    def __getitem__(self, position: slice) -> list[FileRead]: ...

    def __getitem__(self, position: int | slice) -> FileRead | list[FileRead]:
        if isinstance(position, slice):
            return [self[one] for one in range(*position.indices(len(self)))]
        if not 0 <= position < len(self):
            raise IndexError(f"row {position} of {len(self)}")
        made = self.made.get(position)
        if made is None:
            key, offset, buffer = self.window(position)
            made = self.made[position] = FileRead(self.files[key], offset, buffer)
        return made

    def __iter__(self) -> Iterator[FileRead]:
        return map(self.__getitem__, range(len(self)))
