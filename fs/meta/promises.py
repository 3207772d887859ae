"""Promised bytes: what a writer below a quota of bytes may add to a file before he reports it.

Storage takes bytes without asking the metadata service, so below a quota a writer asks first: up to
`charged_length` of its inode a file counts as if it were that long already, whatever its length.  So a
write that does not fit fails at once, and a report of promised bytes never does.  Elsewhere
`charged_length` is 0 and nobody asks.

Invariants:
    - `charged_length` outlives neither the last write session of its file nor a truncation.
    - Growth behind it, by a writer who did not ask (he had opened the file before there was a limit),
      is judged when it is reported; what is refused is cut when nobody writes any more.
"""

from typing import Final

from ..kv.api import Transaction
from ..schema.proto import common_pb2 as pb
from ..schema.proto.record_pb2 import FileSessionRecordPb
from ..schema.status import FsError, Status
from . import content, records
from .context import OpContext
from .quota import SMALL_BYTES, bytes_left
from .quota import is_metered as _is_metered
from .usage import recharge, usage_of

PROMISE_BYTES_MAX: Final = 64 * SMALL_BYTES
"""What a writer gets beyond what he asks for, at most; and no more than he has then, so that he asks ever more seldom."""

SHARE: Final = 64
"""No writer gets more of what is left than this part of it beyond what he asks for."""


async def is_metered(tr: Transaction, ctx: OpContext, inode: pb.InodePb) -> bool:
    """Return whether a file lies below a quota of bytes, so that its writers ask before it grows."""
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


async def promise(tr: Transaction, ctx: OpContext, inode: pb.InodePb, length: int) -> None:
    """Let a file grow to `length`, or more while there is much room; the caller stores the inode.

    Raises:
        FsError: QUOTA_EXCEEDED.
    """
    before = usage_of(inode)
    wanted = length - before.byte_count
    if wanted <= 0:
        return
    left = await bytes_left(tr, await ctx.lineages.above(tr, inode.home_inode_id))
    if left is not None:
        more = min(length, PROMISE_BYTES_MAX, max(0, left - wanted) // SHARE)
        inode.file.charged_length = length + more
        await recharge(tr, ctx, inode, before)


async def has_writer(tr: Transaction, inode_id: int) -> bool:
    """Return whether anybody has the inode open for writing."""
    prefix = records.file_session_prefix(inode_id)
    sessions = await tr.get_range(prefix, prefix + b"\xff")
    return any(FileSessionRecordPb.FromString(value).is_write for _, value in sessions)


async def settle(tr: Transaction, ctx: OpContext, inode: pb.InodePb, stored: pb.InodePb) -> bool:
    """Count a file at its end of one write session, already cleared; the caller stores the inode.

    Args:
        tr: the transaction.
        ctx: whose session it was.
        inode: with what the session reported.
        stored: as it was before.

    Returns:
        True when the report was more than the quotas allow: then the inode is as it was before, but
        for a truncation to its own length when nobody else writes it.
    """
    if inode.type != pb.FILE:
        return False
    before = usage_of(stored)
    is_last = False
    if inode.file.charged_length:
        is_last = not await has_writer(tr, inode.inode_id)
        if is_last:
            inode.file.charged_length = 0
    try:
        await recharge(tr, ctx, inode, before)
    except FsError as error:
        if error.status is not Status.QUOTA_EXCEEDED:
            raise
    else:
        return False
    inode.CopyFrom(stored)
    if not await has_writer(tr, inode.inode_id):
        content.cut_behind_end(tr, ctx, inode)
        await recharge(tr, ctx, inode, before)
    return True
