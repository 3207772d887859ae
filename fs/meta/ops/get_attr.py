"""GetAttr and BatchGetAttr: attributes by inode id, also of what was removed but is still open."""

from ...kv.api import Transaction
from ...schema.proto import meta_pb2 as meta
from ...schema.status import FsError, Status
from ..context import OpContext
from ..inodes import load_complete

BATCH_COUNT_MAX = 4096


async def get_attr(tr: Transaction, _ctx: OpContext, request: meta.GetAttrReq) -> meta.InodeRsp:
    """Return an inode; raises FsError(STALE)."""
    return meta.InodeRsp(inode=await load_complete(tr, request.inode_id, snapshot=True))


async def batch_get_attr(
    tr: Transaction, _ctx: OpContext, request: meta.BatchGetAttrReq
) -> meta.BatchGetAttrRsp:
    """Return the inodes that exist, in the order asked; others are left unset.

    Raises:
        FsError: RPC_BAD_REQUEST for more than BATCH_COUNT_MAX ids.
    """
    if len(request.inode_ids) > BATCH_COUNT_MAX:
        raise FsError(
            Status.RPC_BAD_REQUEST, f"{len(request.inode_ids)} ids, at most {BATCH_COUNT_MAX}"
        )
    reply = meta.BatchGetAttrRsp()
    for inode_id in request.inode_ids:
        slot = reply.inodes.add()
        try:
            slot.inode.CopyFrom(await load_complete(tr, inode_id, snapshot=True))
        except FsError as error:
            if error.status is not Status.STALE:
                raise
    return reply
