"""SetAttr: mode, owner, times, length, default layout, inode flags; all asked for, or nothing."""

from ...kv.api import Transaction
from ...schema.inode import APPEND_ONLY, IMMUTABLE
from ...schema.layout import layout_from_pb
from ...schema.proto import common_pb2 as pb
from ...schema.proto import meta_pb2 as meta
from ...schema.services import META_SET_ATTR
from ...schema.status import FsError, Status
from .. import content, permissions
from ..context import OpContext
from ..dentries import require_expected
from ..idempotency import once
from ..inodes import advance_ctime, load_complete, store_inode
from ..usage import recharge, usage_of


def set_owner_and_mode(
    ctx: OpContext, inode: pb.InodePb, request: meta.SetAttrReq | meta.OwnerReportPb
) -> None:
    """Set owner, group and mode as far as they are asked for; that the caller may set the mode
    is known.

    A mode that comes with a group is judged by the group that was, too: it is what a kernel
    has left of the mode for a chown, and that may be set-group-id for a group he is not in.

    Raises:
        FsError: NOT_PERMITTED.
    """
    mode = None
    if request.HasField("mode"):
        mode = permissions.mode_after_chmod(ctx.caller, inode, request.mode & 0o7777)
    _set_owner(ctx, inode, request)
    if mode is not None:
        inode.mode = permissions.mode_after_chmod(ctx.caller, inode, mode)


def _set_owner(
    ctx: OpContext, inode: pb.InodePb, request: meta.SetAttrReq | meta.OwnerReportPb
) -> None:
    uid = request.uid if request.HasField("uid") else None
    gid = request.gid if request.HasField("gid") else None
    if uid is None and gid is None:
        return
    permissions.require_chown(ctx.caller, inode, uid, gid)
    if inode.type != pb.DIRECTORY:
        inode.mode = permissions.mode_after_write(ctx.caller, inode)
    inode.uid = inode.uid if uid is None else uid
    inode.gid = inode.gid if gid is None else gid


async def _require_mode(tr: Transaction, ctx: OpContext, inode: pb.InodePb, mode: int) -> None:
    """Who may write may also take the set-id bits away:
    writing does so, and a kernel asks for it.
    """
    taken = inode.mode & ~mode
    is_set_id_only = mode | taken == inode.mode and taken and not taken & ~permissions.SUID_SGID
    if inode.type == pb.FILE and is_set_id_only and await content.may_write(tr, ctx, inode):
        return
    permissions.require_owner(ctx.caller, inode)


def _require_times(ctx: OpContext, inode: pb.InodePb, request: meta.SetAttrReq) -> None:
    if permissions.is_owner(ctx.caller, inode):
        return
    if request.HasField("atime_ns") or request.HasField("mtime_ns"):
        permissions.require_owner(ctx.caller, inode)
    if request.atime_now or request.mtime_now:
        # A truncation sets "now" beside the length; its own check covers that.
        if request.HasField("length"):
            return
        permissions.require(ctx.caller, inode, permissions.WRITE)


def _set_times(ctx: OpContext, inode: pb.InodePb, request: meta.SetAttrReq) -> None:
    if request.atime_now:
        inode.atime_ns = ctx.now_ns
    elif request.HasField("atime_ns"):
        inode.atime_ns = request.atime_ns
    if request.mtime_now:
        inode.mtime_ns = ctx.now_ns
    elif request.HasField("mtime_ns"):
        inode.mtime_ns = request.mtime_ns


def _set_default_layout(ctx: OpContext, inode: pb.InodePb, request: meta.SetAttrReq) -> None:
    if not request.HasField("default_layout"):
        return
    if inode.type != pb.DIRECTORY:
        raise FsError(Status.NOT_DIRECTORY, f"default layout of inode {inode.inode_id:#x}")
    permissions.require_owner(ctx.caller, inode)
    layout_from_pb(request.default_layout).check()
    inode.directory.default_layout.CopyFrom(request.default_layout)


def _set_iflags(ctx: OpContext, inode: pb.InodePb, request: meta.SetAttrReq) -> None:
    """Change inode flags first: an immutable object refuses everything else,
    and an append-only one what Linux has it refuse.
    """
    if request.HasField("iflags"):
        permissions.require_root(ctx.caller, "changing inode flags")
        if request.iflags & ~(IMMUTABLE | APPEND_ONLY):
            raise FsError(Status.NOT_SUPPORTED, f"inode flags {request.iflags:#x}")
        inode.iflags = request.iflags
    elif _only_adds(request):
        permissions.require_mutable(inode)
    else:
        permissions.require_unflagged(inode)


def _only_adds(request: meta.SetAttrReq) -> bool:
    """Return whether a change is one that append-only objects allow:
    times that become now, both, and a length that only grows, as by fallocate.
    """
    if any(field.name in _OF_UNFLAGGED for field, _ in request.ListFields()):
        return False
    if not request.HasField("length"):
        # To Linux one of them alone is a time that was chosen.
        return request.atime_now == request.mtime_now
    return request.only_lengthens and request.has_open_file


async def _set_length(
    tr: Transaction, ctx: OpContext, inode: pb.InodePb, request: meta.SetAttrReq
) -> None:
    if inode.type != pb.FILE:
        status = Status.IS_DIRECTORY if inode.type == pb.DIRECTORY else Status.NOT_REGULAR
        raise FsError(status, f"inode {inode.inode_id:#x}")
    if request.has_open_file:
        await content.require_may_write(tr, ctx, inode)
    else:
        permissions.require(ctx.caller, inode, permissions.WRITE)
    content.require_truncated(inode)
    before = usage_of(inode)
    if request.HasField("length_hint"):
        content.apply_length_hint(ctx, inode, request.length_hint)
    length = request.length
    if request.only_lengthens:
        length = max(length, inode.file.length)
    content.set_length(tr, ctx, inode, length)
    await recharge(tr, ctx, inode, before)


_OF_UNFLAGGED = frozenset({"mode", "uid", "gid", "atime_ns", "mtime_ns", "default_layout"})
"""Fields that ask for what stays as it is of an append-only object."""

_HOW = frozenset(
    {
        "caller",
        "inode_id",
        "has_open_file",
        "length_hint",
        "only_lengthens",
        "expected_parent_inode_id",
        "expected_name",
    }
)
"""Fields that ask for nothing by themselves."""


def _asks_for_nothing(request: meta.SetAttrReq) -> bool:
    return all(field.name in _HOW for field, _ in request.ListFields())


@once(META_SET_ATTR)
async def set_attr(tr: Transaction, ctx: OpContext, request: meta.SetAttrReq) -> meta.InodeRsp:
    """Change attributes; a shortened file comes back with its truncation pending.

    Raises:
        FsError: STALE, also as `require_expected`, NOT_PERMITTED, ACCESS_DENIED, IS_DIRECTORY,
            NOT_REGULAR, NOT_DIRECTORY, FILE_TOO_LARGE, INVALID_ARGUMENT, NOT_SUPPORTED.
        LengthUnknownError: the request's length hint is void.
        TruncationUnfinishedError: an earlier truncation must be finished first.
        StillInlineError: the bytes must be moved to a chunk first.
    """
    await require_expected(tr, request)
    inode = await load_complete(tr, request.inode_id)
    if _asks_for_nothing(request) and not permissions.is_owner(ctx.caller, inode):
        # The ctime, too, is the owner's to advance: chown(2) with -1, -1.
        return meta.InodeRsp(inode=inode)
    _set_iflags(ctx, inode, request)
    if request.HasField("mode"):
        await _require_mode(tr, ctx, inode, request.mode & 0o7777)
    _require_times(ctx, inode, request)
    if request.HasField("length"):
        await _set_length(tr, ctx, inode, request)
    set_owner_and_mode(ctx, inode, request)
    _set_times(ctx, inode, request)
    _set_default_layout(ctx, inode, request)
    advance_ctime(ctx, inode)
    store_inode(tr, inode)
    return meta.InodeRsp(inode=inode)
