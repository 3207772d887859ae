"""Unlink: remove a name of an object that is no directory."""

from ...kv.api import Transaction
from ...schema.proto import common_pb2 as pb
from ...schema.proto import meta_pb2 as meta
from ...schema.services import META_UNLINK
from ...schema.status import FsError, Status
from .. import content, permissions
from ..context import OpContext
from ..dentries import check_name, clear_dentry, is_dot, load_dentry
from ..idempotency import once
from ..inodes import drop_link, load_directory, load_inode, require_changeable, stamp_directory
from ..name_leases import require_unleased
from ..read_ahead import name_keys
from ..usage import charge


def keep_open(
    tr: Transaction,
    ctx: OpContext,
    request: meta.UnlinkReq | meta.RenameReq,
    inode: pb.InodePb,
) -> None:
    """Keep a nameless inode for the caller who has it open, if it is the one he means."""
    if request.HasField("keep_session") and request.keep_inode_id == inode.inode_id:
        content.store_session(tr, ctx, inode.inode_id, request.keep_session)


async def take_name(
    tr: Transaction, ctx: OpContext, parent: pb.InodePb, name: bytes, inode: pb.InodePb
) -> None:
    """Remove a name of an object that is no directory; the last one hands it to garbage collection.

    Raises:
        NamesLeasedError: another client may take the name for there.
    """
    require_unleased(ctx, parent)
    tr.mark_freeing()
    clear_dentry(tr, parent.inode_id, name)
    changes = await drop_link(tr, ctx, inode, parent.inode_id, name)
    await charge(tr, ctx, *changes, is_limited=False)
    await stamp_directory(tr, ctx, parent)


@once(META_UNLINK)
async def unlink(tr: Transaction, ctx: OpContext, request: meta.UnlinkReq) -> meta.RemoveRsp:
    """Remove the name; the last one hands the inode to garbage collection.

    Raises:
        FsError: NOT_FOUND, IS_DIRECTORY, ACCESS_DENIED, NOT_PERMITTED, NOT_DIRECTORY, STALE.
    """
    check_name(request.name)
    parent = await load_directory(tr, ctx, request.parent_inode_id)
    if is_dot(request.name):
        raise FsError(Status.IS_DIRECTORY, f"unlink of {request.name!r}")
    dentry = await load_dentry(tr, request.parent_inode_id, request.name)
    require_changeable(ctx, parent)
    await tr.prefetch(name_keys(dentry, request.parent_inode_id, request.name))
    inode = await load_inode(tr, dentry.inode_id)
    permissions.require_removable(ctx.caller, parent, inode)
    if inode.type == pb.DIRECTORY:
        raise FsError(Status.IS_DIRECTORY, f"inode {inode.inode_id:#x}")
    await take_name(tr, ctx, parent, request.name, inode)
    if inode.nlink == 0:
        keep_open(tr, ctx, request, inode)
    return meta.RemoveRsp(removed=inode)
