"""What a listing tells of a regular file that no program of this mount has open.  Pure.

A listing tells of many files.  Of most the kernel is shown a few numbers, and nothing else is ever
asked.  So those numbers are taken out of meta's message once.  An `Inode` is made of it only where
somebody wants one: that takes longer than all else that is done with a name that is listed.
"""

from typing import Final, NamedTuple

from ...schema.ids import InodeId
from ...schema.inode import Inode, InodeType, inode_from_pb, is_bare, type_bits
from ...schema.proto import common_pb2, meta_pb2

_FILE_BITS: Final = type_bits(InodeType.FILE)
_TYPE_BITS: Final[dict[int, int]] = {int(type_): type_bits(type_) for type_ in InodeType}
"""Of what a later release may know besides, nothing is said."""
UNKNOWN_ID: Final = InodeId(0xFFFF_FFFF)
"""Shown for what a name leads to whose record is damaged: programs pass over 0."""
_new: Final = tuple.__new__


class ListedFile(NamedTuple):
    """Named as in `Inode`, which says more."""

    inode_id: InodeId
    st_mode: int
    uid: int
    gid: int
    nlink: int
    length: int
    mtime_ns: int
    ctime_ns: int
    atime_ns: int
    stored_bytes: int
    """That its chunks hold."""
    chunk_bytes: int
    """Of its layout."""
    has_acl: bool
    is_bare: bool
    message: common_pb2.InodePb

    @property
    def inode(self) -> Inode:
        """All that was told."""
        return inode_from_pb(self.message)


class ListedName(NamedTuple):
    """What a listing tells of a name without attributes."""

    inode_id: InodeId
    st_mode: int
    """The type alone."""


def listed_name(entry: meta_pb2.DentryPb) -> ListedName:
    """Return what meta tells of a name."""
    return _new(ListedName, (entry.inode_id or UNKNOWN_ID, _TYPE_BITS.get(entry.type, 0)))


def listed_file(message: common_pb2.InodePb) -> ListedFile | None:
    """Return what meta tells of a regular file; None: it is of something else."""
    if message.type != common_pb2.FILE or not message.HasField("file"):
        return None
    part = message.file
    length = part.length
    return _new(  # as the class itself, in half the time
        ListedFile,
        (
            message.inode_id,
            _FILE_BITS | message.mode,
            message.uid,
            message.gid,
            message.nlink,
            length,
            message.mtime_ns,
            message.ctime_ns,
            message.atime_ns,
            message.used_bytes if part.has_holes else length,
            part.layout.chunk_size_bytes,
            message.HasField("acl"),
            is_bare(message),
            message,
        ),
    )
