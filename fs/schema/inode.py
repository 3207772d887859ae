"""Inodes as the cores see them, and their wire and record form.  Pure.

Invariants:
    - Exactly one of `file`, `directory` and `symlink_target` is set, and only for its type.
    - Times are nanoseconds since the Unix epoch.
"""

import stat
from enum import IntEnum

from .ids import InodeId
from .layout import Layout, layout_from_pb, layout_to_pb
from .proto import common_pb2 as pb
from .values import value

NAME_BYTES_MAX = 255
PATH_BYTES_MAX = 4096
SYMLINK_TARGET_BYTES_MAX = 4095
NLINK_MAX = 65000
XATTR_NAME_BYTES_MAX = 255
XATTR_VALUE_BYTES_MAX = 65536
IMMUTABLE = 0x10
"""In the flags of an inode, as FS_IMMUTABLE_FL of chattr(1): neither it nor its names change."""
APPEND_ONLY = 0x20
"""As FS_APPEND_FL: what is appended, and names in a directory, are all that is taken."""


class InodeType(IntEnum):
    """Kind of object; numbers as on the wire."""

    FILE = 1
    DIRECTORY = 2
    SYMLINK = 3
    FIFO = 4
    SOCKET = 5
    CHAR_DEVICE = 6
    BLOCK_DEVICE = 7


_TYPE_BITS = {
    InodeType.FILE: stat.S_IFREG,
    InodeType.DIRECTORY: stat.S_IFDIR,
    InodeType.SYMLINK: stat.S_IFLNK,
    InodeType.FIFO: stat.S_IFIFO,
    InodeType.SOCKET: stat.S_IFSOCK,
    InodeType.CHAR_DEVICE: stat.S_IFCHR,
    InodeType.BLOCK_DEVICE: stat.S_IFBLK,
}


def type_bits(type_: InodeType) -> int:
    """Return the S_IF* bits of a type."""
    return _TYPE_BITS[type_]


@value(frozen=True, slots=True)
class FilePart:
    """What only regular files have."""

    length: int
    truncate_ver: int
    layout: Layout
    dyn_stripe: int
    """Stripe slots 0..dyn_stripe-1 may hold chunks; others certainly hold none.

    0 of an inline file.
    """
    data_ver: int
    """Grows whenever a writer reports new content; equal means unchanged since."""
    truncate_pending: bool = False
    """Chunks beyond `length` are still to be removed; until then nobody may write or extend."""
    charged_length: int = 0
    """Promised to writers below a quota of bytes; usage counts the larger of this and `length`."""
    has_holes: bool = False
    """`used_bytes` of the inode says what the chunks hold;
    else every byte below the length takes space.
    """
    is_inline: bool = False
    """The bytes are in the metadata store; with `truncate_pending` they are being moved to a chunk,
    and may still be read there.
    """

    @property
    def finished_cut(self) -> int:
        """The newest truncation that is certainly over: the next one begins only then."""
        return self.truncate_ver - self.truncate_pending

    @property
    def promised_length(self) -> int:
        """How long the file may become without asking."""
        return max(self.length, self.charged_length)


@value(frozen=True, slots=True)
class DirectoryPart:
    """What only directories have."""

    parent_inode_id: InodeId
    name: bytes
    default_layout: Layout | None = None


@value(frozen=True, slots=True)
class Inode:
    """Attributes of one object."""

    inode_id: InodeId
    type: InodeType
    mode: int
    """Permission bits, 0..0o7777."""
    uid: int
    gid: int
    nlink: int
    atime_ns: int
    mtime_ns: int
    ctime_ns: int
    btime_ns: int
    iflags: int = 0
    file: FilePart | None = None
    directory: DirectoryPart | None = None
    symlink_target: bytes = b""
    rdev: int = 0
    used_bytes: int = 0
    has_acl: bool = False
    """There is an access control list, or a default one for what is made in it;
    meta knows what it says.
    """
    is_bare: bool = False
    """There are no extended attributes, beside access control lists; else nobody knows."""

    @property
    def is_dir(self) -> bool:
        """True for a directory."""
        return self.type is InodeType.DIRECTORY

    def shown_as(
        self,
        file: FilePart,
        owned: tuple[int, int, int],
        atime_ns: int,
        mtime_ns: int,
        ctime_ns: int,
    ) -> "Inode":
        """Return these attributes with other ones of a file; `owned` is mode, owner and group.

        As `dataclasses.replace`, in less than half the time: a file that is being
        written is shown again and again.
        """
        mode, uid, gid = owned
        return Inode(
            self.inode_id,
            self.type,
            mode,
            uid,
            gid,
            self.nlink,
            atime_ns,
            mtime_ns,
            ctime_ns,
            self.btime_ns,
            self.iflags,
            file,
            self.directory,
            self.symlink_target,
            self.rdev,
            self.used_bytes,
            self.has_acl,
            self.is_bare,
        )

    @property
    def st_mode(self) -> int:
        """Type and permission bits as stat(2) shows them."""
        return _TYPE_BITS[self.type] | self.mode

    @property
    def length(self) -> int:
        """What stat(2) shows as size, in bytes."""
        if self.file is not None:
            return self.file.length
        return len(self.symlink_target)


def inode_to_pb(inode: Inode) -> pb.InodePb:
    """Return the wire form; of an access control list, just that there is one."""
    message = pb.InodePb(
        inode_id=inode.inode_id,
        type=pb.InodeTypePb.ValueType(inode.type),
        mode=inode.mode,
        uid=inode.uid,
        gid=inode.gid,
        nlink=inode.nlink,
        iflags=inode.iflags,
        atime_ns=inode.atime_ns,
        mtime_ns=inode.mtime_ns,
        ctime_ns=inode.ctime_ns,
        btime_ns=inode.btime_ns,
        symlink_target=inode.symlink_target,
        rdev=inode.rdev,
        used_bytes=inode.used_bytes,
    )
    if inode.has_acl:
        message.acl.SetInParent()
    if inode.is_bare:
        message.bare_ctime_ns = inode.ctime_ns
    if inode.file is not None:
        part = inode.file
        message.file.length = part.length
        message.file.truncate_ver = part.truncate_ver
        message.file.dyn_stripe = part.dyn_stripe
        message.file.data_ver = part.data_ver
        message.file.truncate_pending = part.truncate_pending
        message.file.charged_length = part.charged_length
        message.file.has_holes = part.has_holes
        message.file.is_inline = part.is_inline
        message.file.layout.CopyFrom(layout_to_pb(part.layout))
    if inode.directory is not None:
        message.directory.parent_inode_id = inode.directory.parent_inode_id
        message.directory.name = inode.directory.name
        if inode.directory.default_layout is not None:
            message.directory.default_layout.CopyFrom(layout_to_pb(inode.directory.default_layout))
    return message


def is_bare(message: pb.InodePb) -> bool:
    """Return whether an inode certainly has no extended attributes, beside access control lists."""
    return message.bare_ctime_ns == message.ctime_ns != 0


_TYPES = {int(type_): type_ for type_ in InodeType}
"""Calling the enum takes six times as long."""


def inode_from_pb(message: pb.InodePb) -> Inode:
    """Inverse of `inode_to_pb`; each field is looked at once, and by its place,
    since every reply is taken in by this.
    """
    file = directory = None
    has_acl = message.HasField("acl")
    if message.HasField("file"):
        part = message.file
        file = FilePart(
            part.length,
            part.truncate_ver,
            layout_from_pb(part.layout),
            part.dyn_stripe,
            part.data_ver,
            part.truncate_pending,
            part.charged_length,
            part.has_holes,
            part.is_inline,
        )
    elif message.HasField("directory"):
        place = message.directory
        has_layout = place.HasField("default_layout")
        directory = DirectoryPart(
            InodeId(place.parent_inode_id),
            place.name,
            layout_from_pb(place.default_layout) if has_layout else None,
        )
        has_acl = has_acl or place.HasField("default_acl")
    ctime_ns = message.ctime_ns
    return Inode(
        InodeId(message.inode_id),
        _TYPES[message.type],
        message.mode,
        message.uid,
        message.gid,
        message.nlink,
        message.atime_ns,
        message.mtime_ns,
        ctime_ns,
        message.btime_ns,
        message.iflags,
        file,
        directory,
        message.symlink_target,
        message.rdev,
        message.used_bytes,
        has_acl,
        message.bare_ctime_ns == ctime_ns != 0,
    )
