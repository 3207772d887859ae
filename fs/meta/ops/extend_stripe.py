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

    With `ends_inline` data_ver grows where a report with inline data could still be taken: it names the one before.

    Raises:
        FsError: STALE, ACCESS_DENIED, IS_DIRECTORY, NOT_REGULAR.
        TruncationUnfinishedError: an earlier truncation must be finished first.
        StillInlineError: the bytes must be moved to a chunk first.
    """
    inode = await load_file(tr, request.inode_id)
    await content.require_may_write(tr, ctx, inode)
    content.require_truncated(inode)
    content.require_chunks(inode)
    is_changed = content.widen_stripe(inode.file, request.dyn_stripe_min)
    if request.ends_inline and not inode.file.length:
        inode.file.data_ver += 1
        is_changed = True
    if is_changed:
        store_inode(tr, inode)
    return meta.InodeRsp(inode=inode)
