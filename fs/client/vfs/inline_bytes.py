"""The bytes of an inline file, as a mount knows them.  Pure.

What is known is all bytes of one content, named by `truncate_ver` and `data_ver`.  A file without
bytes, of which none may have left for storage since, is known so, too: it may be made inline.
"""

from collections.abc import Iterable
from typing import NamedTuple

from xxhash import xxh3_64_intdigest

from ...schema.inode import FilePart
from ...schema.status import FsError, Status
from .write_run import WriteRun


class InlineBytes(NamedTuple):
    """See module head."""

    data: bytes
    truncate_ver: int
    data_ver: int
    told_s: float
    """When meta was asked for them, or took them; monotonic."""

    def are_of(self, file: FilePart) -> bool:
        """Return whether they are all bytes of a file."""
        is_same = (file.truncate_ver, file.data_ver) == (self.truncate_ver, self.data_ver)
        return is_same and file.length == len(self.data) and (file.is_inline or not self.data)


def checksum_of(data: bytes) -> int:
    """Return what goes with the bytes wherever they go."""
    return xxh3_64_intdigest(data)


def require_intact(inode_id: int, length: int, data: bytes, checksum: int) -> None:
    """Raise FsError(CHECKSUM_MISMATCH) unless these are the bytes that meta has of a file
    of this length.
    """
    if len(data) != length or checksum_of(data) != checksum:
        what = f"inode {inode_id}: {len(data)} of {length} bytes inline, checksum {checksum:#x}"
        raise FsError(Status.CHECKSUM_MISMATCH, what)


def overlaid(data: bytes, runs: Iterable[WriteRun]) -> bytes:
    """Return the bytes after runs were written over them, the later ones last;
    zeros where nobody wrote.
    """
    made = bytearray(data)
    for run in runs:
        if run.offset > len(made):
            made += bytes(run.offset - len(made))
        made[run.offset : run.end] = run.joined()
    return bytes(made)
