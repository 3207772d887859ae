"""Link: another name for an object that is no directory."""

from ...kv.api import Transaction
from ...schema.inode import NLINK_MAX
from ...schema.proto import common_pb2 as pb
from ...schema.proto import meta_pb2 as meta
from ...schema.services import META_LINK
from ...schema.status import FsError, Status
from .. import permissions
from ..context import OpContext
from ..dentries import require_expected, store_dentry
from ..homes import add_name
from ..idempotency import once
from ..inodes import advance_ctime, load_inode, stamp_directory, store_inode
from ..making import find_place
from ..name_leases import require_unleased
from .unnamed import give_first_name


@once(META_LINK)
async def link(tr: Transaction, ctx: OpContext, request: meta.LinkReq) -> meta.InodeRsp:
    """Add a name.

    Raises:
        FsError: as `require_expected` and `find_place`; NOT_PERMITTED for a directory, an immutable
            or append-only object, or another's that the caller may not write; TOO_MANY_LINKS; for
            an object without a name as `give_first_name`.
    """
    await require_expected(tr, request)
    parent = await find_place(tr, ctx, request.parent_inode_id, request.name)
    inode = await load_inode(tr, request.inode_id)
    if inode.type == pb.DIRECTORY:
        raise FsError(Status.NOT_PERMITTED, f"inode {inode.inode_id:#x} is a directory")
    permissions.require_unflagged(inode)
    permissions.require_linkable(ctx.caller, inode)
    if inode.nlink >= NLINK_MAX:
        raise FsError(Status.TOO_MANY_LINKS, f"inode {inode.inode_id:#x}: {inode.nlink}")
    require_unleased(ctx, parent)
    if inode.nlink == 0:
        await give_first_name(tr, ctx, inode, parent.inode_id)
    else:
        add_name(tr, inode, (parent.inode_id, request.name))
    inode.nlink += 1
    advance_ctime(ctx, inode)
    store_inode(tr, inode)
    store_dentry(tr, parent.inode_id, request.name, inode)
    await stamp_directory(tr, ctx, parent)
    return meta.InodeRsp(inode=inode)
