"""ExtendStripe: more chains for a file that grows."""

from ...kv.api import Transaction
from ...schema.proto import meta_pb2 as meta
from .. import content
from ..context import OpContext
from ..inodes import load_file, store_inode


async def extend_stripe(
    tr: Transaction, ctx: OpContext, request: meta.ExtendStripeReq
) -> meta.InodeRsp:
    """Double dyn_stripe until it covers `dyn_stripe_min`, at most to the stripe size.

    Raises:
        FsError: STALE, ACCESS_DENIED, IS_DIRECTORY, NOT_REGULAR.
        TruncationUnfinishedError: an earlier truncation must be finished first.
    """
    inode = await load_file(tr, request.inode_id)
    await content.require_may_write(tr, ctx, inode)
    content.require_truncated(inode)
    if content.widen_stripe(inode.file, request.dyn_stripe_min):
        store_inode(tr, inode)
    return meta.InodeRsp(inode=inode)
