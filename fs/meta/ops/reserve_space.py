"""ReserveSpace: bytes that a writer below a quota may add before he reports them."""

from ...kv.api import Transaction
from ...schema.proto import meta_pb2 as meta
from ...schema.status import FsError, Status
from .. import content
from ..context import OpContext
from ..inodes import load_file, store_inode
from ..promises import has_writer, is_metered, promise


async def reserve_space(
    tr: Transaction, ctx: OpContext, request: meta.ReserveSpaceReq
) -> meta.InodeRsp:
    """Promise at least up to `length` bytes of a file, or what fits;
    a repeated request finds that it did.

    Raises:
        FsError: QUOTA_EXCEEDED, STALE, ACCESS_DENIED, FILE_TOO_LARGE, IS_DIRECTORY, NOT_REGULAR,
            INVALID_ARGUMENT when nobody has the file open for writing.
        TruncationUnfinishedError: an earlier truncation must be finished first.
    """
    content.check_length(request.length)
    inode = await load_file(tr, request.inode_id)
    await content.require_may_write(tr, ctx, inode)
    content.require_truncated(inode)
    if not await has_writer(tr, inode.inode_id):
        raise FsError(Status.INVALID_ARGUMENT, f"inode {inode.inode_id:#x} is not open for writing")
    metered = await is_metered(tr, ctx, inode)
    if metered:
        await promise(tr, ctx, inode, request.length, request.length_min or request.length)
        store_inode(tr, inode)
    return meta.InodeRsp(inode=inode, is_metered=metered)
