"""Which truncations have done their work here, so that late copies of their requests do nothing.

Pure.

A truncation may be driven twice, when its first driver died or gave up waiting.  A request of the
first may then still be on its way when the second has finished and a client has written behind the
new end.  Every truncation of a file has a larger number than the one before (metadata's
`truncate_ver`), the same for whoever drives it.

Memory suffices:
    - A request names a chain version, so it reaches only the head of that version.  A head that
      restarts, or is replaced, has another one.
    - Its sender knew the version before it saw that the truncation was still under way.
    - A head that was not there when the truncation finished learns of it from the next write, which
      tells the newest truncation that its client knows to be over.  A request that comes after that
      write names an older version, or meets what the head knows.
    - The request of a later truncation tells the same, as that begins only
      when all earlier ones are over.

The same holds of fills, which move the bytes that metadata has kept of a file to its first
chunk: a fill is a truncation, too.
"""

from typing import Final

COUNT_MAX: Final = 100_000
"""The oldest are forgotten then: long after any request of theirs has timed out."""

BEHIND: Final = -1
"""Stands for a chunk index: all chunks behind the new end."""

WHOLE: Final = -2
"""Stands for a chunk index: the truncation is over on all chains, as a writer,
or the next truncation, has told.
"""


class FinishedCuts:
    """The finished truncations of the files that one target is the head for."""

    def __init__(self, count_max: int = COUNT_MAX) -> None:
        self._newest: dict[tuple[int, int], int] = {}
        self._count_max = count_max

    def __len__(self) -> int:
        return len(self._newest)

    def is_finished(self, inode_id: int, chunk_index: int, truncate_ver: int) -> bool:
        """True if this truncation, or a later one,
        has cut or filled this chunk (or BEHIND) already; never for version 0.
        """
        newest = self._newest
        return (
            0
            < truncate_ver
            <= max(newest.get((inode_id, chunk_index), 0), newest.get((inode_id, WHOLE), 0))
        )

    def note_begun(self, inode_id: int, truncate_ver: int) -> None:
        """A truncation is under way, so all before it are over; 0 is none."""
        self.note(inode_id, WHOLE, truncate_ver - 1)

    def note(self, inode_id: int, chunk_index: int, truncate_ver: int) -> None:
        """A truncation has finished here; 0 is none."""
        key = (inode_id, chunk_index)
        if truncate_ver <= self._newest.get(key, 0):
            return
        self._newest.pop(key, None)
        self._newest[key] = truncate_ver
        if len(self._newest) > self._count_max:
            del self._newest[next(iter(self._newest))]
