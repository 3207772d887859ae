"""What storage calls a hole: whether it is one,
or what is left where a truncation has cut bytes off.  Pure.

Meta has the new length of a file, and a larger truncate version, before the first chunk is cut.  So
a hole is one of the file as a reader knows it if meta, asked after the hole was read, still has the
truncate version that the reader's length is from (`FileRef.truncate_ver`).  Else he has to look
again, by the new length: the zeros were never in the file.

What was asked for is known for a while, chunk by chunk: the bytes of a chunk are its beginning,
so a hole reaches up to its end.
"""

from collections.abc import Iterator
from typing import Final

from ..schema.ids import InodeId
from ..schema.layout import KIB
from ..schema.status import FsError, Status
from .file_read import FileRead

CHUNK_COUNT_MAX = 65_536
"""Of one file: chunks whose holes are known."""

INLINE_LENGTH_MAX: Final = 64 * KIB
"""That any release makes a file inline with (`meta.inline_bytes_max` is at most so much)."""


class CutMeanwhileError(FsError):
    """What was read may have been cut off meanwhile:
    the read has to be done again, by the length that is known now.
    """

    def __init__(self, inode_id: InodeId) -> None:
        super().__init__(Status.BUSY, f"inode {inode_id} was truncated while it was read")


class KnownHoles:
    """Where the chunks of one file end, for as long as that is taken to be so;
    of its newest known truncate version.
    """

    __slots__ = ("_begins", "_truncate_ver")

    def __init__(self) -> None:
        self._truncate_ver = 0
        self._begins: dict[int, tuple[int, float]] = {}
        """By chunk index: the first byte of its hole, within the chunk,
        and until when that holds.
        """

    def note(self, read: FileRead, until_s: float) -> None:
        """Take the holes of a read for known until then;
        nothing is done for one that went by a length of before.
        """
        if read.file.truncate_ver != self._truncate_ver:
            if read.file.truncate_ver < self._truncate_ver:
                return
            self._truncate_ver = read.file.truncate_ver
            self._begins.clear()
        for index, begin in _holes_of(read):
            self._begins.pop(index, None)  # the newest are last
            self._begins[index] = begin, until_s
        while len(self._begins) > CHUNK_COUNT_MAX:
            del self._begins[next(iter(self._begins))]

    def have(self, read: FileRead, now_s: float) -> bool:
        """Return whether all holes of a read are known;
        False for one that begin within several chunks.
        """
        if read.file.truncate_ver != self._truncate_ver:
            return False
        is_found = False
        for index, begin in _holes_of(read):
            known = self._begins.get(index)
            if known is None or begin < known[0] or now_s >= known[1]:
                return False
            is_found = True
        return is_found


def may_be_inline(read: FileRead) -> bool:
    """Return whether holes of a read lie where an inline file may have bytes."""
    return any(index == 0 and begin < INLINE_LENGTH_MAX for index, begin in _holes_of(read))


def _holes_of(read: FileRead) -> Iterator[tuple[int, int]]:
    """Yield chunk index and first byte within the chunk of each hole;
    of holes within several chunks nothing is known.
    """
    size, offset, length = read.file.layout.chunk_size_bytes, read.offset, len(read.buffer)
    first, last = offset // size, (offset + length - 1) // size
    if read.hole_bytes == length:
        for index in range(first, last + 1):
            yield index, max(offset - index * size, 0)
    elif first == last:
        yield first, offset + length - read.hole_bytes - first * size
