"""Access: would the mode bits allow it?"""

from ...kv.api import Transaction
from ...schema.proto import meta_pb2 as meta
from ...schema.status import FsError, Status
from .. import permissions
from ..context import OpContext
from ..inodes import load_inode


async def access(tr: Transaction, ctx: OpContext, request: meta.AccessReq) -> meta.AccessRsp:
    """Check `mask` (read 4, write 2, execute or search 1; 0: existence only).

    Raises:
        FsError: ACCESS_DENIED, STALE, INVALID_ARGUMENT, NOT_PERMITTED
            (writing an immutable object).
    """
    if request.mask > 7:  # noqa: PLR2004
        raise FsError(Status.INVALID_ARGUMENT, f"mask {request.mask}")
    inode = await load_inode(tr, request.inode_id, snapshot=True)
    permissions.require(ctx.caller, inode, request.mask)
    if request.mask & permissions.WRITE:
        permissions.require_mutable(inode)
    return meta.AccessRsp()
