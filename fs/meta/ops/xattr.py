"""Extended attributes: set, get, list, remove.

Name spaces:
    - `user.`: on files and directories, by mode bits.
    - `trusted.`: for root only.
    - `security.`: read by all, written by root; capabilities are also
      removed by who may write the file.
    - `ember.`: shows usage and quota of directories (usage_attribute.py) and cannot be written, but
      for `ember.lock` (lock_directory.py).
    - `system.`: POSIX ACLs are two of these: acl_attribute.py.

Source: xattr(7), setxattr(2).
"""

import stat

from ...kv.api import Transaction
from ...schema.inode import XATTR_NAME_BYTES_MAX, XATTR_VALUE_BYTES_MAX
from ...schema.proto import common_pb2 as pb
from ...schema.proto import meta_pb2 as meta
from ...schema.services import META_REMOVE_XATTR, META_SET_XATTR
from ...schema.status import FsError, Status
from .. import acl, content, permissions, records
from ..context import OpContext
from ..dentries import require_expected
from ..idempotency import once
from ..inodes import advance_ctime, load_complete, load_inode, store_inode
from .acl_attribute import acl_attribute, acl_names, set_acl_attribute
from .lock_directory import LOCK_ATTRIBUTE, lock_by_attribute, lock_holder
from .usage_attribute import usage_attribute

XATTR_NAMES_BYTES_MAX = 65_536 - 64
"""Of one inode's names, each with the NUL that ends it in a listing:
the kernel lists 64 KiB, the two access control lists included.
"""
XATTR_VALUES_BYTES_MAX = 4 << 20
"""Of one inode's values together: what a transaction has to read at most to know of their names."""

_USAGE_PREFIX = b"ember."
_WITH_USER_ATTRIBUTES = (pb.FILE, pb.DIRECTORY)
"""Of anything else nobody has one, whatever its mode says."""
_NAMESPACES = (b"user.", b"trusted.", b"security.")
_CAPABILITY = b"security.capability"
"""What a program may do beyond its user; gone when it is written,
which a kernel asks for in the writer's name.
"""


def _check_name(name: bytes) -> None:
    if len(name) > XATTR_NAME_BYTES_MAX:
        raise FsError(Status.RANGE_TOO_SMALL, f"attribute name of {len(name)} bytes")
    if not name or b"\x00" in name:
        raise FsError(Status.INVALID_ARGUMENT, f"attribute name {name!r}")
    if not name.startswith(_NAMESPACES):
        raise FsError(Status.NOT_SUPPORTED, f"attribute {name!r}")
    if name in _NAMESPACES:
        raise FsError(Status.INVALID_ARGUMENT, f"attribute name {name!r}")


def _require_user_change(ctx: OpContext, inode: pb.InodePb) -> None:
    if inode.type not in _WITH_USER_ATTRIBUTES:
        raise FsError(Status.NOT_PERMITTED, f"user attribute of inode {inode.inode_id:#x}")
    if inode.type == pb.DIRECTORY and inode.mode & stat.S_ISVTX:
        permissions.require_owner(ctx.caller, inode)
    permissions.require(ctx.caller, inode, permissions.WRITE)


def _require_change(ctx: OpContext, inode: pb.InodePb, name: bytes) -> None:
    permissions.require_unflagged(inode)
    if name.startswith(b"user."):
        _require_user_change(ctx, inode)
    else:
        permissions.require_root(ctx.caller, f"changing {name!r}")


def _xattr_range(inode_id: int) -> tuple[bytes, bytes]:
    # No attribute name starts with 0xff, so this is behind all of them.
    return records.xattr_prefix(inode_id), records.xattr_prefix(inode_id) + b"\xff"


async def _check_room(tr: Transaction, inode_id: int, name: bytes, value: bytes) -> None:
    """Raise FsError(NO_SPACE) where an inode's attributes are too many or too large with this one,
    whatever it replaces.
    """
    own_key = records.xattr_key(inode_id, name)
    others = [pair for pair in await tr.get_range(*_xattr_range(inode_id)) if pair[0] != own_key]
    names_bytes = sum(len(records.xattr_name(key)) + 1 for key, _ in others) + len(name) + 1
    values_bytes = sum(len(other) for _, other in others) + len(value)
    if names_bytes > XATTR_NAMES_BYTES_MAX or values_bytes > XATTR_VALUES_BYTES_MAX:
        raise FsError(
            Status.NO_SPACE,
            f"inode {inode_id:#x} would have {len(others) + 1} attributes, {names_bytes} bytes of "
            f"names and {values_bytes} of values",
        )


def _check_mode(request: meta.SetXattrReq, *, exists: bool) -> None:
    what = f"attribute {request.name!r} of inode {request.inode_id:#x}"
    if request.mode == meta.XATTR_CREATE and exists:
        raise FsError(Status.EXISTS, what)
    if request.mode == meta.XATTR_REPLACE and not exists:
        raise FsError(Status.NO_ATTRIBUTE, what)


@once(META_SET_XATTR)
async def set_xattr(tr: Transaction, ctx: OpContext, request: meta.SetXattrReq) -> meta.SetXattrRsp:
    """Set an attribute.

    Raises:
        FsError: EXISTS, NO_ATTRIBUTE, ACCESS_DENIED, NOT_PERMITTED, NOT_SUPPORTED, STALE,
            RANGE_TOO_SMALL (name too long), ARGUMENT_TOO_LARGE, NO_SPACE, INVALID_ARGUMENT.
    """
    await require_expected(tr, request)
    if request.name == LOCK_ATTRIBUTE:
        await lock_by_attribute(tr, ctx, request.inode_id, request.value)
        return meta.SetXattrRsp()
    if len(request.value) > XATTR_VALUE_BYTES_MAX:
        raise FsError(Status.ARGUMENT_TOO_LARGE, f"attribute value of {len(request.value)} bytes")
    if request.name in acl.NAMES:
        await set_acl_attribute(tr, ctx, request.inode_id, request.name, request.value)
        return meta.SetXattrRsp()
    _check_name(request.name)
    inode = await load_complete(tr, request.inode_id)
    _require_change(ctx, inode, request.name)
    key = records.xattr_key(request.inode_id, request.name)
    exists = await tr.get(key) is not None
    _check_mode(request, exists=exists)
    await _check_room(tr, request.inode_id, request.name, request.value)
    tr.set(key, request.value)
    inode.bare_ctime_ns = 0
    advance_ctime(ctx, inode)
    store_inode(tr, inode)
    return meta.SetXattrRsp()


def _is_hidden(ctx: OpContext, name: bytes) -> bool:
    return name.startswith(b"trusted.") and not ctx.caller.is_root


async def get_xattr(tr: Transaction, ctx: OpContext, request: meta.GetXattrReq) -> meta.GetXattrRsp:
    """Return an attribute's value.

    Raises:
        FsError: NO_ATTRIBUTE, ACCESS_DENIED, NOT_SUPPORTED, STALE, and
            for bad names as `set_xattr`.
    """
    if request.name == LOCK_ATTRIBUTE:
        return meta.GetXattrRsp(value=await lock_holder(tr, request.inode_id))
    if request.name.startswith(_USAGE_PREFIX):
        return meta.GetXattrRsp(value=await usage_attribute(tr, ctx, request))
    if request.name in acl.NAMES:
        return meta.GetXattrRsp(value=await acl_attribute(tr, request.inode_id, request.name))
    _check_name(request.name)
    inode = await load_inode(tr, request.inode_id, snapshot=True)
    key = records.xattr_key(request.inode_id, request.name)
    value = await tr.get(key, snapshot=True)
    if request.name.startswith(b"user.") and inode.type in _WITH_USER_ATTRIBUTES:
        permissions.require(ctx.caller, inode, permissions.READ)
    if value is None or _is_hidden(ctx, request.name):
        what = f"attribute {request.name!r} of inode {request.inode_id:#x}"
        raise FsError(Status.NO_ATTRIBUTE, what)
    return meta.GetXattrRsp(value=value)


async def list_xattrs(
    tr: Transaction, ctx: OpContext, request: meta.ListXattrsReq
) -> meta.ListXattrsRsp:
    """Return the names that the caller may know of, in byte order; raises FsError(STALE)."""
    inode = await load_inode(tr, request.inode_id, snapshot=True)
    pairs = await tr.get_range(*_xattr_range(request.inode_id), snapshot=True)
    names = (records.xattr_name(key) for key, _ in pairs)
    shown = [*acl_names(inode), *(name for name in names if not _is_hidden(ctx, name))]
    return meta.ListXattrsRsp(names=sorted(shown))


@once(META_REMOVE_XATTR)
async def remove_xattr(
    tr: Transaction, ctx: OpContext, request: meta.RemoveXattrReq
) -> meta.RemoveXattrRsp:
    """Remove an attribute; raises FsError as `set_xattr`."""
    await require_expected(tr, request)
    if request.name in acl.NAMES:
        await set_acl_attribute(tr, ctx, request.inode_id, request.name, b"")
        return meta.RemoveXattrRsp()
    _check_name(request.name)
    inode = await load_complete(tr, request.inode_id)
    is_file = inode.type == pb.FILE
    if not (is_file and request.name == _CAPABILITY and await content.may_write(tr, ctx, inode)):
        _require_change(ctx, inode, request.name)
    key = records.xattr_key(request.inode_id, request.name)
    if await tr.get(key) is None:
        what = f"attribute {request.name!r} of inode {request.inode_id:#x}"
        raise FsError(Status.NO_ATTRIBUTE, what)
    tr.clear(key)
    advance_ctime(ctx, inode)
    if not await tr.get_range(*_xattr_range(request.inode_id), limit=1):
        inode.bare_ctime_ns = inode.ctime_ns
    store_inode(tr, inode)
    return meta.RemoveXattrRsp()
