"""Rmdir: remove an empty directory."""

from ...kv.api import Transaction
from ...schema.proto import common_pb2 as pb
from ...schema.proto import meta_pb2 as meta
from ...schema.services import META_RMDIR
from ...schema.status import FsError, Status
from .. import permissions
from ..context import OpContext
from ..dentries import check_name, clear_dentry, is_empty, load_dentry
from ..idempotency import once
from ..inodes import (
    add_subdirectories,
    drop_link,
    load_complete,
    load_directory,
    require_changeable,
    stamp_directory,
)
from ..name_leases import require_unleased
from ..read_ahead import object_keys
from ..usage import charge


def _check_not_dot(name: bytes) -> None:
    if name == b".":
        raise FsError(Status.INVALID_ARGUMENT, "rmdir of '.'")
    if name == b"..":
        raise FsError(Status.NOT_EMPTY, "rmdir of '..'")


@once(META_RMDIR)
async def rmdir(tr: Transaction, ctx: OpContext, request: meta.RmdirReq) -> meta.RemoveRsp:
    """Remove an empty directory; it serves who has it open until garbage collection deletes it.

    Raises:
        FsError: NOT_FOUND, NOT_EMPTY, NOT_DIRECTORY, ACCESS_DENIED, NOT_PERMITTED, STALE.
    """
    check_name(request.name)
    parent = await load_directory(tr, ctx, request.parent_inode_id)
    _check_not_dot(request.name)
    dentry = await load_dentry(tr, request.parent_inode_id, request.name)
    require_changeable(ctx, parent)
    await tr.prefetch(object_keys([dentry]))
    inode = await load_complete(tr, dentry.inode_id)
    permissions.require_removable(ctx.caller, parent, inode)
    if inode.type != pb.DIRECTORY:
        raise FsError(Status.NOT_DIRECTORY, f"inode {inode.inode_id:#x}")
    if not await is_empty(tr, inode.inode_id):
        raise FsError(Status.NOT_EMPTY, f"directory {inode.inode_id:#x}")
    require_unleased(ctx, parent)
    tr.mark_freeing()
    clear_dentry(tr, request.parent_inode_id, request.name)
    changes = await drop_link(tr, ctx, inode, request.parent_inode_id, request.name)
    await charge(tr, ctx, *changes, is_limited=False)
    await stamp_directory(tr, ctx, parent)
    add_subdirectories(tr, parent.inode_id, -1)
    return meta.RemoveRsp(removed=inode)
