"""Open: permission, file session, O_TRUNC.  Also what create does with a file that exists."""

from ...kv.api import Transaction
from ...schema.proto import common_pb2 as pb
from ...schema.proto import meta_pb2 as meta
from ...schema.services import META_OPEN
from ...schema.status import FsError, Status
from .. import content, inline, permissions
from ..context import OpContext
from ..damage import require_spread
from ..dentries import require_expected
from ..idempotency import recall, remember
from ..inodes import load_complete, store_inode
from ..promises import is_metered
from ..usage import recharge, usage_of


async def open_inode(
    tr: Transaction, ctx: OpContext, inode: pb.InodePb, request: meta.OpenReq | meta.CreateReq
) -> None:
    """Open a loaded inode as the request says and store what that changes.

    Raises:
        FsError: as `permissions.require_openable`; INVALID_ARGUMENT for a write open without a
            write session, or the reverse: the session will be taken for the right to write.
        TruncationUnfinishedError: an earlier truncation must be finished first.
    """
    writes = request.wants_write or request.is_truncate
    permissions.require_openable(
        ctx.caller,
        inode,
        reads=request.wants_read,
        writes=writes,
        only_appends=request.is_append and not request.is_truncate,
    )
    if request.session.is_write and not writes:
        raise FsError(Status.INVALID_ARGUMENT, "a write session needs a write open")
    if inode.type == pb.FILE:
        if request.wants_write and not request.session.is_write:
            raise FsError(Status.INVALID_ARGUMENT, "a write open needs a write session")
        if writes:
            content.require_truncated(inode)
        else:
            require_spread(inode)
        if request.is_truncate:
            before = usage_of(inode)
            content.set_length(tr, ctx, inode, 0)
            await recharge(tr, ctx, inode, before)
            store_inode(tr, inode)
    if request.HasField("session"):
        content.store_session(tr, ctx, inode.inode_id, request.session)


async def open_(tr: Transaction, ctx: OpContext, request: meta.OpenReq) -> meta.InodeRsp:
    """Open by inode id; works for an inode without a name until it is deleted,
    unless a name is expected.

    Raises:
        FsError: STALE and as `open_inode`, METADATA_DAMAGED.
        TruncationUnfinishedError: as `open_inode`.
        StillInlineError: as `inline.tell`.
    """
    reply = await _open(tr, ctx, request)
    await inline.tell(tr, ctx, request, reply)
    return reply


async def _open(tr: Transaction, ctx: OpContext, request: meta.OpenReq) -> meta.InodeRsp:
    if request.is_truncate or request.HasField("session"):
        done = await recall(tr, ctx, META_OPEN)
        if done is not None:
            return done
    await require_expected(tr, request)
    inode = await load_complete(tr, request.inode_id)
    await open_inode(tr, ctx, inode, request)
    reply = meta.InodeRsp(inode=inode)
    if request.wants_write:
        reply.is_metered = await is_metered(tr, ctx, inode)
    if request.is_truncate or (ctx.caller.is_repeat and request.HasField("session")):
        remember(tr, ctx, META_OPEN, reply)
    return reply
