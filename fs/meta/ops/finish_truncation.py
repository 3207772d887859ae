"""NoteCut and FinishTruncation: the second and third transaction of a truncation, after the chunks have been cut.

Between them the note becomes durable: from the third on clients may write behind the end, and what they write must
never be cut by somebody who meets the mark again after a power loss.  He meets the note with it.
"""

from ...kv.api import Transaction
from ...schema.proto import common_pb2 as pb
from .. import records
from ..content import note_used
from ..damage import decoded
from ..inodes import store_inode


async def _pending(tr: Transaction, inode_id: int, truncate_ver: int) -> pb.InodePb | None:
    """Return the file if this truncation is still its last one and unfinished; forget the mark of one that is gone."""
    value = await tr.get(records.inode_key(inode_id))
    if value is None:
        tr.clear(records.truncation_key(inode_id))
        return None
    inode = decoded(pb.InodePb, records.inode_key(inode_id), value)
    is_it = inode.file.truncate_pending and inode.file.truncate_ver == truncate_ver
    return inode if is_it else None


async def note_cut(
    tr: Transaction, inode_id: int, truncate_ver: int, used_bytes: int | None
) -> None:
    """Note that the chunks have been cut, unless another truncation has begun meanwhile or the file is gone.

    `used_bytes`: what is left of a file with holes, as the chains said; None: not asked.
    """
    inode = await _pending(tr, inode_id, truncate_ver)
    if inode is None:
        return
    inode.file.cut_ver = truncate_ver
    if used_bytes is not None:
        note_used(inode, used_bytes)
    store_inode(tr, inode)


async def finish_truncation(tr: Transaction, inode_id: int, truncate_ver: int) -> None:
    """Clear the mark, unless as in `note_cut`; the note must be durable."""
    inode = await _pending(tr, inode_id, truncate_ver)
    if inode is None:
        return
    inode.file.truncate_pending = False
    store_inode(tr, inode)
    tr.clear(records.truncation_key(inode_id))
