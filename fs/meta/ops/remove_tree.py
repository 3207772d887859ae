"""RemoveTree: a whole directory tree in one transaction, whatever its size.

Only the topmost dentry goes; garbage collection empties the tree in batches afterwards.
"""

from ...kv.api import Transaction
from ...schema.ids import GC_ROOT_INODE_ID
from ...schema.proto import common_pb2 as pb
from ...schema.proto import meta_pb2 as meta
from ...schema.services import META_REMOVE_TREE
from ...schema.status import FsError, Status
from .. import permissions
from ..context import OpContext
from ..dentries import check_name, clear_dentry, is_dot, load_dentry, require_same
from ..idempotency import once
from ..inodes import (
    add_subdirectories,
    advance_ctime,
    hand_to_gc,
    load_complete,
    load_directory,
    require_changeable,
    stamp_directory,
    store_inode,
)
from ..name_leases import require_unleased
from ..read_ahead import object_keys
from ..usage import charge, whole_tree
from ..usage_sum import Usage
from .tree_rights import require_tree_removable


def detach_tree(
    tr: Transaction,
    ctx: OpContext,
    directory: pb.InodePb,
    tree: Usage,
    *,
    due_ns: int | None = None,
) -> None:
    """Hand a (complete) directory with all below it to garbage collection.

    Which waits for no lease when it takes the names away.  `tree`, `due_ns`: as of `hand_to_gc`.
    """
    directory.nlink = 0
    directory.directory.ClearField("lease_client_id")
    directory.directory.ClearField("is_lease_ending")
    directory.directory.parent_inode_id = GC_ROOT_INODE_ID
    advance_ctime(ctx, directory)
    store_inode(tr, directory)
    hand_to_gc(tr, ctx, directory, tree=tree, due_ns=due_ns)


async def take_tree(
    tr: Transaction, ctx: OpContext, parent: pb.InodePb, name: bytes, inode: pb.InodePb
) -> None:
    """Remove a (complete) directory with everything below it.

    Raises:
        NamesLeasedError: another client may take its name for there.
    """
    require_unleased(ctx, parent)
    tr.mark_freeing()
    total = await whole_tree(tr, ctx, inode.inode_id)
    await charge(tr, ctx, (parent.inode_id, -total), is_limited=False)
    clear_dentry(tr, parent.inode_id, name)
    detach_tree(tr, ctx, inode, total)
    await stamp_directory(tr, ctx, parent)
    add_subdirectories(tr, parent.inode_id, -1)


@once(META_REMOVE_TREE)
async def remove_tree(
    tr: Transaction, ctx: OpContext, request: meta.RemoveTreeReq
) -> meta.RemoveRsp:
    """Remove a directory that the caller owns, with everything below it,
    if he may remove that, too, as far as `require_tree_removable` looks.

    Raises:
        FsError: NOT_FOUND (also when the name leads to another inode than the request says),
            NOT_DIRECTORY, ACCESS_DENIED, NOT_PERMITTED, INVALID_ARGUMENT, STALE.
    """
    check_name(request.name)
    parent = await load_directory(tr, ctx, request.parent_inode_id)
    if is_dot(request.name):
        raise FsError(Status.INVALID_ARGUMENT, f"removal of {request.name!r}")
    dentry = await load_dentry(tr, request.parent_inode_id, request.name)
    require_same(request.name, dentry.inode_id, request.inode_id)
    require_changeable(ctx, parent)
    await tr.prefetch(object_keys([dentry]))
    inode = await load_complete(tr, dentry.inode_id)
    permissions.require_removable(ctx.caller, parent, inode)
    if inode.type != pb.DIRECTORY:
        raise FsError(Status.NOT_DIRECTORY, f"inode {inode.inode_id:#x}")
    permissions.require_owner(ctx.caller, inode)
    await require_tree_removable(tr, ctx.caller, inode)
    await take_tree(tr, ctx, parent, request.name, inode)
    return meta.RemoveRsp(removed=inode)
