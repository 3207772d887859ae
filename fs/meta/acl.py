"""POSIX access control lists: their rules and their form as extended attributes.  Pure.

An access list adds to the mode bits: entries of further users and groups, and one of the owning
group.  What the mode says of owner, mask and others is kept in the mode alone, so that chmod and
the list can never disagree.  A list that says no more than mode bits can is not kept at all.  A
directory's default list is kept whole.

Invariants:
    - A list with entries of users or groups has a mask; for an access list, the
      group bits of the mode are it.
    - At most ENTRY_COUNT_MAX entries, so that an inode stays a small record.

Source: acl(5), POSIX.1e draft 17; Linux fs/posix_acl.c for errors and for what new objects inherit;
include/uapi/linux/posix_acl_xattr.h for the form (version 2).
"""

import struct
from collections.abc import Iterable, Iterator
from enum import IntEnum
from typing import Final

from ..schema.proto import common_pb2 as pb
from ..schema.status import FsError, Status
from .context import Caller

ACCESS_NAME: Final = b"system.posix_acl_access"
DEFAULT_NAME: Final = b"system.posix_acl_default"
NAMES: Final = (ACCESS_NAME, DEFAULT_NAME)

ENTRY_COUNT_MAX: Final = 128

_VERSION: Final = 2
_HEAD: Final = struct.Struct("<I")
_ENTRY: Final = struct.Struct("<HHI")
_NO_ID: Final = 0xFFFFFFFF
_RIGHTS: Final = 0o7
_MODE_BITS: Final = 0o777


class Tag(IntEnum):
    """Whom an entry is about."""

    OWNER = 0x01
    USER = 0x02
    GROUP_OWNER = 0x04
    GROUP = 0x08
    MASK = 0x10
    OTHER = 0x20


_ONCE: Final = {Tag.OWNER: "owner", Tag.GROUP_OWNER: "group", Tag.MASK: "mask", Tag.OTHER: "other"}
"""What a list has one entry of, and its field."""
_NEEDED: Final = ("owner", "group", "other")


# ---- as an extended attribute ----------------------------------------------------------------


def unpack(value: bytes) -> pb.AclPb | None:
    """Return the list that an attribute's value holds;
    None for one without entries, which asks to remove it.

    Raises:
        FsError: INVALID_ARGUMENT for what is no valid list; NOT_SUPPORTED for another version of
            the form; NO_SPACE for more than ENTRY_COUNT_MAX entries.
    """
    if not value:
        return None
    if len(value) < _HEAD.size or (len(value) - _HEAD.size) % _ENTRY.size:
        raise FsError(Status.INVALID_ARGUMENT, f"an access control list of {len(value)} bytes")
    (version,) = _HEAD.unpack_from(value)
    if version != _VERSION:
        raise FsError(Status.NOT_SUPPORTED, f"version {version} of access control lists")
    entries = list(_ENTRY.iter_unpack(value[_HEAD.size :]))
    if not entries:
        return None
    if len(entries) > ENTRY_COUNT_MAX:
        what = f"{len(entries)} entries of an access control list, at most {ENTRY_COUNT_MAX}"
        raise FsError(Status.NO_SPACE, what)
    return _collected(entries)


def _collected(entries: Iterable[tuple[int, int, int]]) -> pb.AclPb:
    acl = pb.AclPb()
    tag_before = 0
    for tag, rights, id_ in entries:
        if tag < tag_before or rights & ~_RIGHTS:
            raise FsError(Status.INVALID_ARGUMENT, f"entry {tag:#x}, {rights:o} of a list")
        if tag in (Tag.USER, Tag.GROUP):
            if id_ == _NO_ID:
                raise FsError(Status.INVALID_ARGUMENT, f"entry {tag:#x} of nobody")
            (acl.users if tag == Tag.USER else acl.groups).add(id=id_, rights=rights)
        elif tag not in _ONCE or tag == tag_before:
            raise FsError(Status.INVALID_ARGUMENT, f"entry {tag:#x} of a list")
        else:
            setattr(acl, _ONCE[Tag(tag)], rights)
        tag_before = tag
    needed = [*_NEEDED, "mask"] if acl.users or acl.groups else _NEEDED
    missing = [name for name in needed if not acl.HasField(name)]  # type: ignore[arg-type]
    if missing:
        raise FsError(Status.INVALID_ARGUMENT, f"a list without {', '.join(missing)}")
    return acl


def pack(acl: pb.AclPb) -> bytes:
    """Return a whole list as the value of an attribute."""
    return _HEAD.pack(_VERSION) + b"".join(_ENTRY.pack(*entry) for entry in _entries(acl))


def _entries(acl: pb.AclPb) -> Iterator[tuple[int, int, int]]:
    yield Tag.OWNER, acl.owner, _NO_ID
    yield from ((Tag.USER, named.rights, named.id) for named in acl.users)
    yield Tag.GROUP_OWNER, acl.group, _NO_ID
    yield from ((Tag.GROUP, named.rights, named.id) for named in acl.groups)
    if acl.HasField("mask"):
        yield Tag.MASK, acl.mask, _NO_ID
    yield Tag.OTHER, acl.other, _NO_ID


# ---- of an inode -----------------------------------------------------------------------------


def access_acl(inode: pb.InodePb) -> pb.AclPb | None:
    """Return the whole access list of an object; None when its mode says everything."""
    if not inode.HasField("acl"):
        return None
    acl = pb.AclPb()
    acl.CopyFrom(inode.acl)
    acl.owner, acl.mask, acl.other = inode.mode >> 6 & 7, inode.mode >> 3 & 7, inode.mode & 7
    return acl


def set_access_acl(inode: pb.InodePb, acl: pb.AclPb | None) -> None:
    """Make a whole list the access list of an object, and its mode what that says;
    None removes it, and leaves the mode.
    """
    inode.ClearField("acl")
    if acl is None:
        return
    group_class = acl.mask if acl.HasField("mask") else acl.group
    bits = acl.owner << 6 | group_class << 3 | acl.other
    inode.mode = inode.mode & ~_MODE_BITS | bits
    if acl.HasField("mask"):
        inode.acl.group = acl.group
        inode.acl.users.extend(acl.users)
        inode.acl.groups.extend(acl.groups)


def inherit(inode: pb.InodePb, default: pb.AclPb) -> None:
    """Give a new object what its directory's default list says;
    its mode holds what was asked for, without a umask.

    Nothing is granted that was not asked for.
    """
    acl = pb.AclPb()
    acl.CopyFrom(default)
    acl.owner &= inode.mode >> 6
    acl.other &= inode.mode
    if acl.HasField("mask"):
        acl.mask &= inode.mode >> 3
    else:
        acl.group &= inode.mode >> 3
    set_access_acl(inode, acl)
    if inode.type == pb.DIRECTORY:
        inode.directory.default_acl.CopyFrom(default)


def is_allowed(caller: Caller, inode: pb.InodePb, mask: int) -> bool:
    """Return whether the access list of an object gives a caller who neither owns it nor
    is root all of `mask`.

    The entry of the caller's user decides, or, without one, those of his groups; the mask limits
    both.  So does a mask of nothing, where Linux itself looks at the bits of others instead.
    """
    acl, limit = inode.acl, inode.mode >> 3
    for named in acl.users:
        if named.id == caller.uid:
            return named.rights & limit & mask == mask
    found = [named.rights for named in acl.groups if named.id in caller.groups]
    if inode.gid in caller.groups:
        found.append(acl.group)
    if not found:
        return inode.mode & mask == mask
    return any(rights & limit & mask == mask for rights in found)
