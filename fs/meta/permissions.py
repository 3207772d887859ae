"""Who may do what: mode bits, access control lists, sticky bit, ownership.  Pure.

Rules are those of Linux.  ACCESS_DENIED (EACCES) says the mode bits or the list (acl.py)
refuse; NOT_PERMITTED (EPERM) says only the owner or root may, or nobody may.

Source: path_resolution(7), chmod(2), chown(2), utimensat(2), unlink(2);
Linux fs/attr.c for precedence.
"""

import stat
from typing import Final

from ..schema.ids import TRASH_ROOT_INODE_ID
from ..schema.inode import APPEND_ONLY, IMMUTABLE
from ..schema.proto import common_pb2 as pb
from ..schema.status import FsError, Status
from . import acl
from .context import Caller

READ: Final = 4
WRITE: Final = 2
SEARCH: Final = 1

SUID_SGID: Final = stat.S_ISUID | stat.S_ISGID


def is_allowed(caller: Caller, inode: pb.InodePb, mask: int) -> bool:
    """Return whether mode bits and access control list grant every right
    in `mask` (READ | WRITE | SEARCH).
    """
    mode = inode.mode
    if caller.uid == 0:
        return not mask & SEARCH or inode.type == pb.DIRECTORY or bool(mode & 0o111)
    if caller.uid == inode.uid:
        mode >>= 6
    elif inode.HasField("acl"):
        return acl.is_allowed(caller, inode, mask)
    elif inode.gid in caller.groups:
        mode >>= 3
    return mode & mask == mask


def require(caller: Caller, inode: pb.InodePb, mask: int) -> None:
    """Raise FsError(ACCESS_DENIED) unless `is_allowed`."""
    if not is_allowed(caller, inode, mask):
        raise FsError(
            Status.ACCESS_DENIED,
            f"uid {caller.uid} wants {mask:o} on inode {inode.inode_id:#x} mode {inode.mode:o}",
        )


def is_owner(caller: Caller, inode: pb.InodePb) -> bool:
    """Return whether the caller owns the object or is root."""
    return caller.uid in (0, inode.uid)


def require_owner(caller: Caller, inode: pb.InodePb) -> None:
    """Raise FsError(NOT_PERMITTED) unless `is_owner`."""
    if not is_owner(caller, inode):
        raise FsError(
            Status.NOT_PERMITTED,
            f"uid {caller.uid}, inode {inode.inode_id:#x} belongs to {inode.uid}",
        )


def require_root(caller: Caller, what: str) -> None:
    """Raise FsError(NOT_PERMITTED) unless the caller is root."""
    if not caller.is_root:
        raise FsError(Status.NOT_PERMITTED, f"uid {caller.uid}: {what}")


def require_mutable(inode: pb.InodePb) -> None:
    """Raise FsError(NOT_PERMITTED) for an immutable object."""
    if inode.iflags & IMMUTABLE:
        raise FsError(Status.NOT_PERMITTED, f"inode {inode.inode_id:#x} is immutable")


def require_unflagged(inode: pb.InodePb) -> None:
    """Raise FsError(NOT_PERMITTED) for what is immutable or append-only: of the latter content may
    be added, and names, but it stays where it is, and as it is otherwise.
    """
    require_mutable(inode)
    if inode.iflags & APPEND_ONLY:
        raise FsError(Status.NOT_PERMITTED, f"inode {inode.inode_id:#x} is append-only")


def require_openable(
    caller: Caller, inode: pb.InodePb, *, reads: bool, writes: bool, only_appends: bool = False
) -> None:
    """Check that the caller may open an object so.

    Raises:
        FsError: IS_DIRECTORY, TOO_MANY_SYMLINKS (for the link itself),
            ACCESS_DENIED, NOT_PERMITTED.
    """
    if inode.type == pb.SYMLINK:
        raise FsError(Status.TOO_MANY_SYMLINKS, f"inode {inode.inode_id:#x} is a symbolic link")
    if writes and inode.type == pb.DIRECTORY:
        raise FsError(Status.IS_DIRECTORY, f"inode {inode.inode_id:#x}")
    require(caller, inode, (READ if reads else 0) | (WRITE if writes else 0))
    if writes and only_appends:
        require_mutable(inode)
    elif writes:
        require_unflagged(inode)


def require_linkable(caller: Caller, inode: pb.InodePb) -> None:
    """Check what another name for an object needs beyond write access to the directory.

    Ids may be guessed where paths may not be searched: so a name is given only to what the caller
    owns, or may read and write anyway.  The kernel asks the same of mounts by default.

    Raises:
        FsError: NOT_PERMITTED.

    Source: Linux, proc(5), "protected_hardlinks".
    """
    is_runnable_as_group = inode.mode & stat.S_ISGID and inode.mode & stat.S_IXGRP
    is_special = inode.type != pb.FILE or inode.mode & stat.S_ISUID or is_runnable_as_group
    if is_owner(caller, inode) or (not is_special and is_allowed(caller, inode, READ | WRITE)):
        return
    raise FsError(
        Status.NOT_PERMITTED,
        f"uid {caller.uid} may not link inode {inode.inode_id:#x} of uid {inode.uid}",
    )


def require_removable(caller: Caller, parent: pb.InodePb, child: pb.InodePb) -> None:
    """Check what removing or renaming `child` away needs beyond write access to `parent`.

    Raises:
        FsError: NOT_PERMITTED by the sticky bit, an immutable or append-only object, an
            append-only directory, or the trash itself.
    """
    if child.inode_id == TRASH_ROOT_INODE_ID:
        raise FsError(Status.NOT_PERMITTED, "the trash stays where it is")
    sticky = parent.mode & stat.S_ISVTX
    if sticky and not (is_owner(caller, child) or is_owner(caller, parent)):
        raise FsError(
            Status.NOT_PERMITTED,
            f"uid {caller.uid}: inode {child.inode_id:#x} in a sticky directory of {parent.uid}",
        )
    if parent.iflags & APPEND_ONLY:
        raise FsError(
            Status.NOT_PERMITTED, f"names stay in inode {parent.inode_id:#x}, which is append-only"
        )
    require_unflagged(child)


def new_mode_and_gid(
    caller: Caller, parent: pb.InodePb, mode: int, *, is_directory: bool
) -> tuple[int, int]:
    """Return (mode, gid) of a new object: the set-group-id bit of a directory is inherited."""
    if not parent.mode & stat.S_ISGID:
        return mode, caller.gid
    if is_directory:
        return mode | stat.S_ISGID, parent.gid
    runs_as_group = mode & (stat.S_ISGID | stat.S_IXGRP) == stat.S_ISGID | stat.S_IXGRP
    if runs_as_group and not (caller.is_root or parent.gid in caller.groups):
        mode &= ~stat.S_ISGID
    return mode, parent.gid


def mode_after_chmod(caller: Caller, inode: pb.InodePb, mode: int) -> int:
    """Return what chmod to `mode` by the owner yields: no set-group-id for a group he is not in."""
    if not caller.is_root and inode.gid not in caller.groups:
        mode &= ~stat.S_ISGID
    return mode


def mode_after_write(caller: Caller, inode: pb.InodePb) -> int:
    """Return the mode without what lets a program that the caller has changed run as somebody else.

    Set-group-id where the group may not run it once meant mandatory locks: those
    who are in the group leave it.
    """
    mode = inode.mode & ~stat.S_ISUID
    is_member = caller.is_root or inode.gid in caller.groups
    return mode if is_member and not mode & stat.S_IXGRP else mode & ~stat.S_ISGID


def require_chown(caller: Caller, inode: pb.InodePb, uid: int | None, gid: int | None) -> None:
    """Raise FsError(NOT_PERMITTED) unless the caller may give the object to `uid` and `gid`."""
    if caller.is_root:
        return
    if uid is not None and (caller.uid != inode.uid or uid != inode.uid):
        raise FsError(Status.NOT_PERMITTED, f"uid {caller.uid} may not change the owner to {uid}")
    if gid is not None and (
        caller.uid != inode.uid or (gid != inode.gid and gid not in caller.groups)
    ):
        raise FsError(Status.NOT_PERMITTED, f"uid {caller.uid} may not change the group to {gid}")
