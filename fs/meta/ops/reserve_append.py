"""ReserveAppend: room at the end of a file for one appender, so that none overwrites another."""

from ...kv.api import Transaction
from ...schema.proto import meta_pb2 as meta
from ...schema.services import META_RESERVE_APPEND
from ...schema.status import FsError, Status
from .. import content
from ..context import OpContext
from ..idempotency import once
from ..inodes import load_file, store_inode
from ..usage import recharge, usage_of

EARLIEST_NS = -(1 << 63)
"""The first time that an inode can hold."""


@once(META_RESERVE_APPEND)
async def reserve_append(
    tr: Transaction, ctx: OpContext, request: meta.ReserveAppendReq
) -> meta.ReserveAppendRsp:
    """Lengthen the file by `length` bytes and return where they start.

    Raises:
        FsError: STALE, ACCESS_DENIED, FILE_TOO_LARGE, QUOTA_EXCEEDED, IS_DIRECTORY,
            NOT_REGULAR, INVALID_ARGUMENT.
        LengthUnknownError: the request's length hint is void.
        TruncationUnfinishedError: an earlier truncation must be finished first.
        StillInlineError: the bytes must be moved to a chunk first.
    """
    if request.length == 0:
        raise FsError(Status.INVALID_ARGUMENT, "an append of no bytes")
    inode = await load_file(tr, request.inode_id)
    await content.require_may_write(tr, ctx, inode)
    content.require_truncated(inode)
    content.require_chunks(inode)
    before = usage_of(inode)
    if request.HasField("length_hint"):
        content.apply_length_hint(ctx, inode, request.length_hint)
    offset = inode.file.length
    content.check_length(offset + request.length)
    content.lengthen(inode, offset + request.length)
    await recharge(tr, ctx, inode, before)
    # Just before the write: so the report of its bytes, which has its time, changes
    # mtime and ctime, and to the same.
    has_time = request.HasField("mtime_ns")
    place_ns = max(request.mtime_ns - 1, EARLIEST_NS) if has_time else ctx.now_ns
    inode.mtime_ns = place_ns
    content.note_written(ctx, inode, place_ns)
    store_inode(tr, inode)
    return meta.ReserveAppendRsp(offset=offset, inode=inode)
