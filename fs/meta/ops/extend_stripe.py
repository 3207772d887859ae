"""ExtendStripe: more chains for a file that grows."""

from ...kv.api import Transaction
from ...schema.proto import meta_pb2 as meta
from ...schema.services import META_SYNC
from ...schema.status import FsError, Status
from .. import content
from ..context import REQUEST_ID_BYTES, OpContext
from ..idempotency import end_request
from ..inodes import load_file, store_inode


async def extend_stripe(
    tr: Transaction, ctx: OpContext, request: meta.ExtendStripeReq
) -> meta.InodeRsp:
    """Double dyn_stripe until it covers `dyn_stripe_min`, at most to the stripe size.

    With `ends_inline` data_ver grows where a report with inline data could still be taken: it names
    the one before.  The one that `report_id` names will be refused, whatever others do to the file,
    unless it was taken; which of both the reply says.

    Raises:
        FsError: STALE, ACCESS_DENIED, IS_DIRECTORY, NOT_REGULAR; RPC_BAD_REQUEST:
            `report_id` is that of no report.
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
    reply = meta.InodeRsp(inode=inode)
    if request.report_id:
        reply.inline_outcome = await _end_report(tr, ctx, request)
    return reply


async def _end_report(
    tr: Transaction, ctx: OpContext, request: meta.ExtendStripeReq
) -> meta.InlineOutcomePb.ValueType:
    if len(request.report_id) != REQUEST_ID_BYTES:
        raise FsError(Status.RPC_BAD_REQUEST, f"report id of {len(request.report_id)} bytes")
    refusal = meta.InodeRsp(is_inline_refused=True)
    refusal.inode.inode_id = request.inode_id
    told = await end_request(tr, ctx, request.report_id, META_SYNC, refusal)
    is_refused = told is None or told.is_inline_refused
    return meta.INLINE_NOT_TAKEN if is_refused else meta.INLINE_TAKEN
