"""Promised bytes: what a writer below a quota of bytes may add to a file before he reports it.

Storage takes bytes without asking the metadata service, so below a quota a writer asks first: up to
`charged_length` of its inode a file counts as if it were that long already, whatever its length.
So a write that does not fit fails at once, and a report of promised bytes never does.  Elsewhere
`charged_length` is 0 and nobody asks.

Invariants:
    - `charged_length` outlives neither the last write session of its file nor a truncation.
    - Growth behind it, by a writer who did not ask (he had opened the file before there was
      a limit), is judged when it is reported.  What is refused is cut at once when nobody
      else writes the file, whose bytes could be among it; else `is_end_refused` says that
      the last writer's close has to.
"""

from typing import Final

from ..kv.api import Transaction
from ..schema.proto import common_pb2 as pb
from ..schema.proto.record_pb2 import FileSessionRecordPb
from ..schema.status import FsError, Status
from . import content, records
from .context import OpContext
from .damage import decoded
from .inodes import advance_ctime
from .quota import SMALL_BYTES, bytes_left
from .quota import is_metered as _is_metered
from .usage import recharge, usage_of

PROMISE_BYTES_MAX: Final = 64 * SMALL_BYTES
"""What a writer gets beyond what he asks for, at most;
and no more than he has then, so that he asks ever more seldom.
"""

SHARE: Final = 64
"""No writer gets more of what is left than this part of it beyond what he asks for."""


async def is_metered(tr: Transaction, ctx: OpContext, inode: pb.InodePb) -> bool:
    """Return whether a file lies below a quota of bytes,
    so that its writers ask before it grows.
    """
    if not inode.home_inode_id:
        return False
    return _is_metered(await ctx.lineages.above(tr, inode.home_inode_id))


async def promise_first(tr: Transaction, ctx: OpContext, inode: pb.InodePb) -> bool:
    """Promise a little to the writer of a file about to be made; return whether it is metered.

    So a small file needs no call of its own for it.
    """
    lineage = await ctx.lineages.above(tr, inode.home_inode_id)
    left = await bytes_left(tr, lineage)
    if left is None:
        return False
    if left >= SHARE * SMALL_BYTES:
        inode.file.charged_length = SMALL_BYTES
    return True


async def promise(
    tr: Transaction, ctx: OpContext, inode: pb.InodePb, length: int, length_min: int
) -> None:
    """Let a file grow to `length`, or more while there is much room; the caller stores the inode.

    When that does not fit: to what does, if that is at least `length_min`.

    Raises:
        FsError: QUOTA_EXCEEDED.
    """
    before = usage_of(inode)
    wanted = length - before.byte_count
    if wanted <= 0:
        return
    left = await bytes_left(tr, await ctx.lineages.above(tr, inode.home_inode_id))
    if left is None:
        return
    more = min(length, PROMISE_BYTES_MAX, max(0, left - wanted) // SHARE)
    if left < wanted and before.byte_count + left >= length_min:
        more = left - wanted
    inode.file.charged_length = length + more
    await recharge(tr, ctx, inode, before)


async def _writers(tr: Transaction, inode_id: int) -> list[FileSessionRecordPb]:
    prefix = records.file_session_prefix(inode_id)
    sessions = await tr.get_range(prefix, prefix + b"\xff")
    found = (decoded(FileSessionRecordPb, key, value) for key, value in sessions)
    return [session for session in found if session.is_write]


async def has_writer(tr: Transaction, inode_id: int) -> bool:
    """Return whether anybody has the inode open for writing."""
    return bool(await _writers(tr, inode_id))


async def is_only_writer(tr: Transaction, ctx: OpContext, inode_id: int) -> bool:
    """Return whether nobody but one session of the caller's client has the inode
    open for writing.
    """
    writers = await _writers(tr, inode_id)
    return len(writers) <= 1 and all(w.client_id == ctx.caller.client_id for w in writers)


async def give_back(tr: Transaction, ctx: OpContext, inode: pb.InodePb) -> None:
    """Take back what was promised beyond the length, unless somebody else may be using it;
    the caller recharges.
    """
    if inode.file.charged_length and await is_only_writer(tr, ctx, inode.inode_id):
        inode.file.charged_length = 0


async def judge(
    tr: Transaction,
    ctx: OpContext,
    inode: pb.InodePb,
    stored: pb.InodePb,
    *,
    is_closing: bool = False,
) -> bool:
    """Count what a writer reported, or refuse it; the caller stores the inode.

    Args:
        tr: the transaction.
        ctx: who reported.
        inode: with what was reported.
        stored: as it was before.
        is_closing: his session is cleared already.

    Returns:
        True when it was more than the quotas allow: then the inode has its old length, and
        the bytes behind that are to be cut: a truncation is pending, or `is_end_refused` is
        set while somebody else writes.
    """
    before = usage_of(stored)
    try:
        await recharge(tr, ctx, inode, before)
    except FsError as error:
        if error.status is not Status.QUOTA_EXCEEDED:
            raise
    else:
        return False
    inode.CopyFrom(stored)
    # What lies within the length may have been written over.
    inode.file.data_ver += 1
    inode.mtime_ns = ctx.now_ns
    advance_ctime(ctx, inode)
    if is_closing:
        is_alone = not await has_writer(tr, inode.inode_id)
    else:
        is_alone = await is_only_writer(tr, ctx, inode.inode_id)
    if is_alone:
        content.cut_behind_end(tr, ctx, inode)
    else:
        inode.file.is_end_refused = True
    await recharge(tr, ctx, inode, before)
    return True


async def settle(tr: Transaction, ctx: OpContext, inode: pb.InodePb, stored: pb.InodePb) -> bool:
    """Count a file at the end of one write session, already cleared; else as `judge`.

    After the last one nothing is promised any more, and bytes that a quota
    refused meanwhile are cut too.
    """
    if inode.type != pb.FILE:
        return False
    part = inode.file
    is_last = (part.charged_length or part.is_end_refused) and not await has_writer(
        tr, inode.inode_id
    )
    if is_last:
        part.charged_length = 0
    if await judge(tr, ctx, inode, stored, is_closing=True):
        return True
    if is_last and part.is_end_refused and not part.truncate_pending:
        content.cut_behind_end(tr, ctx, inode)
    return False
