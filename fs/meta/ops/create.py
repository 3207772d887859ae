"""Create: a regular file, opened at once, with a name or without; or the existing one, opened."""

from ...kv.api import Transaction
from ...schema.layout import layout_from_pb
from ...schema.proto import common_pb2 as pb
from ...schema.proto import meta_pb2 as meta
from ...schema.proto.record_pb2 import DentryRecordPb
from ...schema.services import META_CREATE
from ...schema.status import FsError, Status
from .. import content, inline
from ..context import OpContext
from ..dentries import check_name, find_dentry, is_dot, told
from ..idempotency import recall, remember
from ..inodes import load_directory, load_inode, require_changeable
from ..making import new_inode, put
from ..promises import is_metered, promise_first
from .open import open_inode
from .unnamed import store_unnamed


def give_file_part(ctx: OpContext, inode: pb.InodePb, default: pb.LayoutPb) -> None:
    """Make a new inode an empty regular file, spread as `default` says."""
    inode.file.layout.CopyFrom(ctx.layouts.place(default))
    inode.file.dyn_stripe = 1


async def _open_existing(
    tr: Transaction, ctx: OpContext, request: meta.CreateReq, dentry: DentryRecordPb
) -> meta.CreateRsp:
    what = told(request.name, request.parent_inode_id)
    if request.is_exclusive:
        raise FsError(Status.EXISTS, what)
    if dentry.type == pb.DIRECTORY:
        raise FsError(Status.IS_DIRECTORY, what)
    if dentry.type != pb.FILE:
        raise FsError(Status.EXISTS, f"{what} is no regular file")
    inode = await load_inode(tr, dentry.inode_id)
    await open_inode(tr, ctx, inode, request)
    reply = meta.CreateRsp(inode=inode, is_metered=await is_metered(tr, ctx, inode))
    if request.is_truncate or request.HasField("session") or ctx.caller.is_repeat:
        # Also what only looks: an earlier try that comes when the name is
        # free again would make the file.
        remember(tr, ctx, META_CREATE, reply)
    return reply


def _new_file(ctx: OpContext, request: meta.CreateReq, parent: pb.InodePb) -> pb.InodePb:
    inode = new_inode(ctx, parent, pb.FILE, request.mode, umask=request.umask)
    default = parent.directory.default_layout
    if request.HasField("layout"):
        layout_from_pb(request.layout).check()
        default = request.layout
    give_file_part(ctx, inode, default)
    return inode


def _create_unnamed(
    tr: Transaction, ctx: OpContext, request: meta.CreateReq, parent: pb.InodePb
) -> meta.CreateRsp:
    require_changeable(ctx, parent)
    inode = _new_file(ctx, request, parent)
    store_unnamed(tr, ctx, inode, request)
    reply = meta.CreateRsp(inode=inode, was_created=True, is_metered=False)
    remember(tr, ctx, META_CREATE, reply)
    return reply


async def create(tr: Transaction, ctx: OpContext, request: meta.CreateReq) -> meta.CreateRsp:
    """Create and open a file; a repeated request gets the file it made or opened.

    Mode bits of the new file do not bind its maker: O_CREAT|O_WRONLY with mode 0444 works.

    Raises:
        FsError: EXISTS, IS_DIRECTORY, ACCESS_DENIED, NOT_PERMITTED, NOT_FOUND (the directory was
            removed), NOT_DIRECTORY, STALE, NAME_TOO_LONG, INVALID_ARGUMENT, CHAIN_TABLE_UNKNOWN,
            QUOTA_EXCEEDED, METADATA_DAMAGED.
        TruncationUnfinishedError: as `open_inode`.
        StillInlineError: as `inline.tell`.
    """
    reply = await _create(tr, ctx, request)
    await inline.tell(tr, ctx, request, reply)
    return reply


async def _create(tr: Transaction, ctx: OpContext, request: meta.CreateReq) -> meta.CreateRsp:
    name, is_unnamed = request.name, request.is_unnamed
    if not is_unnamed:
        check_name(name)
    done = await recall(tr, ctx, META_CREATE)
    if done is not None:
        return done
    parent_id = request.parent_inode_id
    parent = await load_directory(tr, ctx, parent_id)
    if is_unnamed:
        return _create_unnamed(tr, ctx, request, parent)
    if is_dot(name):
        status = Status.EXISTS if request.is_exclusive else Status.IS_DIRECTORY
        raise FsError(status, f"name {name!r}")
    dentry = await find_dentry(tr, parent_id, name)
    if dentry is not None:
        return await _open_existing(tr, ctx, request, dentry)
    require_changeable(ctx, parent)
    session = request.session
    if request.wants_write and not session.is_write:
        raise FsError(Status.INVALID_ARGUMENT, "a write open needs a write session")
    inode = _new_file(ctx, request, parent)
    metered: bool | None = None
    if session.is_write:
        inode.home_inode_id = parent_id
        metered = await promise_first(tr, ctx, inode)
    await put(tr, ctx, parent, name, inode)
    if request.HasField("session"):
        content.store_session(tr, ctx, inode.inode_id, session)
    reply = meta.CreateRsp(inode=inode, was_created=True, is_metered=metered)
    remember(tr, ctx, META_CREATE, reply)
    return reply
