"""Sync and Close: what an open file reports, and the end of its file session."""

from ...kv.api import Transaction
from ...schema.method import Method, ReqT
from ...schema.proto import common_pb2 as pb
from ...schema.proto import meta_pb2 as meta
from ...schema.proto.record_pb2 import InlineRecordPb
from ...schema.services import META_CLOSE, META_SYNC
from ...schema.status import FsError, Status
from .. import content, inline, permissions, records
from ..context import OpContext
from ..idempotency import recall, remember
from ..inodes import advance_ctime, load_complete, load_inode, store_inode
from ..promises import give_back, is_metered, judge, settle
from ..usage import recharge, usage_of
from . import reported_owner


def _changes_anything(request: meta.SyncReq) -> bool:
    return (
        request.has_new_data
        or request.clears_suid
        or request.HasField("length_hint")
        or request.HasField("mtime_ns")
        or request.HasField("atime_ns")
        or request.gives_back
        or request.counts_space
        or request.HasField("inline_data")
        or request.HasField("owner")
    )


def _is_content_change(request: meta.SyncReq) -> bool:
    return request.has_new_data or request.HasField("length_hint") or request.HasField("mtime_ns")


def _apply_content(ctx: OpContext, inode: pb.InodePb, request: meta.SyncReq) -> None:
    content.require_truncated(inode)
    if request.has_new_data or request.counts_space:
        content.require_chunks(inode)
    if request.HasField("length_hint"):
        content.apply_length_hint(ctx, inode, request.length_hint)
    elif request.has_new_data:
        content.apply_precise_length(ctx, inode)
    if request.counts_space:
        content.apply_used(ctx, inode)
    if request.has_new_data:
        inode.file.data_ver += 1
        inode.mtime_ns = ctx.now_ns


def _apply_times(inode: pb.InodePb, request: meta.SyncReq, before: tuple[int, int, int]) -> None:
    """Set the times of a report into an inode that had mtime, atime and ctime `before`,
    but for those that somebody has set since.
    """
    mtime_ns, atime_ns, ctime_ns = before
    may_be_late = ctime_ns > request.times_set_ns
    if request.HasField("mtime_ns"):
        is_other = request.HasField("mtime_seen_ns") and mtime_ns != request.mtime_seen_ns
        inode.mtime_ns = mtime_ns if is_other and may_be_late else request.mtime_ns
    if request.HasField("atime_ns"):
        is_other = request.HasField("atime_seen_ns") and atime_ns != request.atime_seen_ns
        inode.atime_ns = atime_ns if is_other and may_be_late else request.atime_ns


def _note_change(
    ctx: OpContext, inode: pb.InodePb, request: meta.SyncReq, *, is_owner_set: bool
) -> None:
    """Advance ctime as what was reported asks for:
    to what the client shows for it already, where both clocks allow that.
    """
    is_content = _is_content_change(request) or request.clears_suid
    if is_content:
        is_written = request.has_new_data and request.HasField("mtime_ns")
        written_ns = request.mtime_ns if is_written else ctx.now_ns
        if is_owner_set:
            written_ns = max(written_ns, request.times_set_ns, request.owner.set_ns)
        content.note_written(ctx, inode, written_ns)
    elif is_owner_set:
        advance_ctime(ctx, inode)


def apply(
    ctx: OpContext, inode: pb.InodePb, request: meta.SyncReq
) -> "meta.OwnerOutcomePb.ValueType":
    """Put into an inode what a file reports, and return what became of its owner and mode;
    the caller stores it.

    Raises:
        FsError: FILE_TOO_LARGE, NOT_REGULAR.
        LengthUnknownError: the chains must be asked.
        TruncationUnfinishedError: new content cannot be judged before the truncation is done.
        StillInlineError: it is in chunks, and the bytes that were there before are not.
    """
    before = inode.mtime_ns, inode.atime_ns, inode.ctime_ns
    outcome = meta.OWNER_NOT_SET
    if request.HasField("owner"):
        outcome = reported_owner.take(ctx, inode, request.owner)
    if request.HasField("inline_data"):  # that it may be taken is known
        inode.file.data_ver += 1
        inode.mtime_ns = ctx.now_ns
    elif request.has_new_data or request.counts_space or request.HasField("length_hint"):
        if inode.type != pb.FILE:
            raise FsError(Status.NOT_REGULAR, f"inode {inode.inode_id:#x}")
        _apply_content(ctx, inode, request)
    _apply_times(inode, request, before)
    if request.clears_suid:
        inode.mode = permissions.mode_after_write(ctx.caller, inode)
    _note_change(ctx, inode, request, is_owner_set=outcome == meta.OWNER_SET)
    return outcome


async def _may_report(
    tr: Transaction, ctx: OpContext, inode: pb.InodePb, request: meta.SyncReq
) -> bool:
    """A reader may report when he read; what concerns the content takes the right to write."""
    is_write = _is_content_change(request) or request.clears_suid or request.counts_space
    if not is_write and permissions.is_allowed(ctx.caller, inode, permissions.READ):
        return True
    return await content.may_write(tr, ctx, inode)


def _overwrites(report: meta.SyncReq) -> bool:
    """Whether this report, done again later, would undo what others have said since;
    or was refused, and would fit now.
    """
    is_time = report.HasField("mtime_ns") or report.HasField("atime_ns")
    return report.has_new_data or is_time or report.clears_suid or report.HasField("owner")


async def _done_before(
    tr: Transaction, ctx: OpContext, method: Method[ReqT, meta.InodeRsp], report: meta.SyncReq
) -> meta.InodeRsp | None:
    """Return what this very report was answered, if that was kept (`_keep`)."""
    if not _overwrites(report) or not ctx.caller.request_id:
        return None
    return await recall(tr, ctx, method)


def _keep_inline(
    tr: Transaction, ctx: OpContext, report: meta.SyncReq, reply: meta.InodeRsp
) -> None:
    """Keep that the bytes of a report were taken:
    others may change the file, and then nothing else tells; of a repeat also that they were not.

    The file is told as it is when the report comes again.
    """
    if reply.is_inline_refused and not ctx.caller.is_repeat:
        return
    kept = meta.InodeRsp(
        is_metered=reply.is_metered,
        is_inline_refused=reply.is_inline_refused,
        owner_outcome=reply.owner_outcome,
    )
    kept.inode.inode_id = report.inode_id
    remember(tr, ctx, META_SYNC, kept)


def _keep(
    tr: Transaction,
    ctx: OpContext,
    method: Method[ReqT, meta.InodeRsp],
    report: meta.SyncReq,
    reply: meta.InodeRsp,
) -> None:
    """Keep the answer to what was refused, and to a repeat:
    its first try may come later than what others say next.

    And to what has set owner or mode: a SetAttr takes effect once, however late its repeat comes.
    """
    is_set_once = reply.owner_outcome == meta.OWNER_SET
    if reply.is_over_quota or is_set_once or (ctx.caller.is_repeat and _overwrites(report)):
        remember(tr, ctx, method, reply)


async def _sync_inline(
    tr: Transaction, ctx: OpContext, request: meta.SyncReq, inode: pb.InodePb
) -> meta.InodeRsp:
    """As `sync`, of a report that brings all bytes of the file;
    what cannot be taken is refused, quotas included.
    """
    inline.check_report(inode, request)
    reply = meta.InodeRsp(is_metered=await is_metered(tr, ctx, inode))
    outcome = await _take_inline(tr, ctx, request, inode)
    reply.is_inline_refused = outcome is None
    reply.owner_outcome = outcome or meta.OWNER_NOT_SET
    reply.inode.CopyFrom(inode)
    _keep_inline(tr, ctx, request, reply)
    return reply


async def _take_inline(
    tr: Transaction, ctx: OpContext, request: meta.SyncReq, inode: pb.InodePb
) -> "meta.OwnerOutcomePb.ValueType | None":
    """Take the bytes, and return what became of owner and mode;
    None: they cannot be taken, and nothing is done.
    """
    if not await inline.may_take(tr, ctx, inode, request):
        return None
    before, taken = usage_of(inode), pb.InodePb()
    taken.CopyFrom(inode)
    inline.become_inline(taken, len(request.inline_data))
    outcome = apply(ctx, taken, request)
    if request.gives_back:
        await give_back(tr, ctx, taken)
    try:
        await recharge(tr, ctx, taken, before)
    except FsError as error:
        if error.status is not Status.QUOTA_EXCEEDED:
            raise
        return None
    record = InlineRecordPb(data=request.inline_data, checksum=request.inline_checksum)
    inline.put(tr, inode, record)
    store_inode(tr, taken)
    inode.CopyFrom(taken)
    return outcome


async def sync(tr: Transaction, ctx: OpContext, request: meta.SyncReq) -> meta.InodeRsp:
    """Record what a client knows of a file it has open; works without a name.

    Growth that no quota has room for is not taken over, and the reply says so
    (`is_over_quota`); the bytes behind the length are to be cut then, by a pending truncation
    or by the last writer's close.

    Raises:
        FsError: STALE, ACCESS_DENIED, and as `apply`; INVALID_ARGUMENT for inline
            data that contradicts itself.
        LengthUnknownError: as `apply`.
        TruncationUnfinishedError: as `apply`.
        StillInlineError: as `apply`.
    """
    inode = await load_complete(tr, request.inode_id)
    if not _changes_anything(request):
        return meta.InodeRsp(inode=inode)
    done = await _done_before(tr, ctx, META_SYNC, request)
    if done is not None:
        return done
    if not await _may_report(tr, ctx, inode, request):
        raise FsError(
            Status.ACCESS_DENIED,
            f"uid {ctx.caller.uid} does not have inode {inode.inode_id:#x} open for this",
        )
    if request.HasField("inline_data"):
        return await _sync_inline(tr, ctx, request, inode)
    stored = pb.InodePb()
    stored.CopyFrom(inode)
    outcome = apply(ctx, inode, request)
    if request.gives_back:
        await give_back(tr, ctx, inode)
    is_over_quota = await judge(tr, ctx, inode, stored)
    if is_over_quota:  # nothing of the report is done
        outcome = meta.OWNER_NOT_SET
    store_inode(tr, inode)
    metered = await is_metered(tr, ctx, inode)
    reply = meta.InodeRsp(
        inode=inode, is_metered=metered, is_over_quota=is_over_quota, owner_outcome=outcome
    )
    _keep(tr, ctx, META_SYNC, request, reply)
    return reply


async def close(tr: Transaction, ctx: OpContext, request: meta.CloseReq) -> meta.InodeRsp:
    """Sync and end the file session, in one transaction; another client's session stays.

    A truncation may be pending then, also without `is_over_quota`, which is as in `sync`.

    The session proves the right to report.  A repeated close finds it gone: what it reported then
    stands already, so a caller without any other right is not refused.

    Raises:
        FsError: STALE, INVALID_ARGUMENT, and as `apply`.
        LengthUnknownError: as `apply`.
        TruncationUnfinishedError: as `apply`.
    """
    report = request.sync
    if report.HasField("inline_data"):
        raise FsError(Status.INVALID_ARGUMENT, "inline data in a Close")
    if report.HasField("owner"):
        raise FsError(Status.INVALID_ARGUMENT, "owner and mode in a Close")
    inode = await load_complete(tr, report.inode_id)
    done = await _done_before(tr, ctx, META_CLOSE, report)
    if done is not None:
        return done
    stored = pb.InodePb()
    stored.CopyFrom(inode)
    is_granted = False
    if request.session_id:
        content.check_session_id(request.session_id)
        key = records.file_session_key(report.inode_id, request.session_id)
        is_granted = await content.end_own_session(tr, ctx, key)
    if _changes_anything(report) and (is_granted or await _may_report(tr, ctx, inode, report)):
        apply(ctx, inode, report)
    is_over_quota = await settle(tr, ctx, inode, stored)
    if inode != stored:
        store_inode(tr, inode)
    reply = meta.InodeRsp(inode=inode, is_over_quota=is_over_quota)
    _keep(tr, ctx, META_CLOSE, report, reply)
    return reply


async def close_settled(tr: Transaction, ctx: OpContext, request: meta.PruneSessionsReq) -> None:
    """End sessions of the caller's client that have nothing to report, each as `close` would;
    those of removed files went with them.

    Raises:
        FsError: INVALID_ARGUMENT, METADATA_DAMAGED, KV_BAD_FORMAT.
    """
    for ended in request.sessions:
        content.check_session_id(ended.session_id)
        try:
            inode = await load_inode(tr, ended.inode_id)
        except FsError as error:
            if error.status is not Status.STALE:
                raise
            continue
        key = records.file_session_key(ended.inode_id, ended.session_id)
        await content.end_own_session(tr, ctx, key)
        part = inode.file
        if part.charged_length or part.is_end_refused:  # of all others nothing is to be settled
            stored = pb.InodePb()
            stored.CopyFrom(inode)
            await settle(tr, ctx, inode, stored)
            if inode != stored:
                store_inode(tr, inode)
