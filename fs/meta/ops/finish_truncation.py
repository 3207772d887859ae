"""The transactions of a truncation after the first one, and the first one of a move.

    - NoteCut and FinishTruncation: the second and third transaction of a truncation,
      after the chunks have been cut.
    - BeginMove: the first one of the move of an inline file's bytes to a chunk, which is a
      truncation to the present length.

Between NoteCut and FinishTruncation the note becomes durable.  From the third transaction on
clients may write behind the end, and what they write must never be cut by somebody who meets the
mark again after a power loss.  He meets the note with it.
"""

from ...kv.api import Transaction
from ...schema.proto import common_pb2 as pb
from ...schema.proto.record_pb2 import InlineRecordPb
from .. import inline, records
from ..content import note_used
from ..damage import inode_record
from ..inodes import store_inode


async def _pending(tr: Transaction, inode_id: int, truncate_ver: int) -> pb.InodePb | None:
    """Return the file if this truncation is still its last one and unfinished."""
    value = await tr.get(records.inode_key(inode_id))
    if value is None:
        return None
    inode = inode_record(inode_id, value)
    is_it = inode.file.truncate_pending and inode.file.truncate_ver == truncate_ver
    return inode if is_it else None


async def begin_move(tr: Transaction, inode_id: int, now_ns: int) -> None:
    """Begin to move the bytes of a file to a chunk, unless they are not inline any more,
    or are being moved.

    Nothing that anybody can see changes: neither times nor `data_ver`,
    nor what writers were promised.

    Raises:
        FsError: METADATA_DAMAGED: bytes that cannot be moved had better stay where a
            truncation to 0 can remove them.
    """
    value = await tr.get(records.inode_key(inode_id))
    if value is None:
        return
    inode = inode_record(inode_id, value)
    if inode.file.is_inline and not inode.file.truncate_pending:
        inline.check_bytes(inode_id, await inline.load(tr, inode))
        inode.file.truncate_ver += 1
        inode.file.truncate_pending = True
        store_inode(tr, inode)
        tr.set(records.truncation_key(inode_id), records.pack_u64(now_ns))


async def find_moving(tr: Transaction, inode_id: int, truncate_ver: int) -> InlineRecordPb | None:
    """Return the bytes that this move has to bring to a chunk;
    None when they are there, or the file is gone.

    Raises:
        FsError: METADATA_DAMAGED.
    """
    inode = await _pending(tr, inode_id, truncate_ver)
    return await inline.load(tr, inode) if inode is not None and inode.file.is_inline else None


async def note_cut(
    tr: Transaction, inode_id: int, truncate_ver: int, used_bytes: int | None
) -> None:
    """Note that the chunks have been cut, unless another truncation has begun meanwhile
    or the file is gone.

    Or that the bytes of an inline file are in its chunk 0.

    `used_bytes`: what is left of a file with holes, as the chains said; None: not asked.
    """
    tr.mark_freeing()
    inode = await _pending(tr, inode_id, truncate_ver)
    if inode is None:
        return
    inode.file.cut_ver = truncate_ver
    if inode.file.is_inline:
        inline.drop(tr, inode)
        inode.file.dyn_stripe = 1
    if used_bytes is not None:
        note_used(inode, used_bytes)
    store_inode(tr, inode)


async def finish_truncation(tr: Transaction, inode_id: int, truncate_ver: int) -> None:
    """Clear the mark, unless as in `note_cut`; the note must be durable."""
    tr.mark_freeing()
    inode = await _pending(tr, inode_id, truncate_ver)
    if inode is None:
        if await tr.get(records.inode_key(inode_id)) is None:
            tr.clear(records.truncation_key(inode_id))
        return
    if inode.file.is_inline:  # the power has taken the note back
        return
    inode.file.truncate_pending = False
    store_inode(tr, inode)
    tr.clear(records.truncation_key(inode_id))
