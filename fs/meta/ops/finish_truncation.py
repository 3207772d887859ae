"""FinishTruncation: the second transaction of a truncation, after the chunks have been cut."""

from ...kv.api import Transaction
from ...schema.proto import common_pb2 as pb
from .. import records
from ..content import note_used
from ..damage import decoded
from ..inodes import store_inode


async def finish_truncation(
    tr: Transaction, inode_id: int, truncate_ver: int, used_bytes: int | None
) -> None:
    """Clear the mark, unless another truncation has begun meanwhile or the file is gone.

    `used_bytes`: what is left of a file with holes, as the chains said; None: not asked.
    """
    value = await tr.get(records.inode_key(inode_id))
    if value is None:
        tr.clear(records.truncation_key(inode_id))
        return
    inode = decoded(pb.InodePb, records.inode_key(inode_id), value)
    if not inode.file.truncate_pending or inode.file.truncate_ver != truncate_ver:
        return
    inode.file.truncate_pending = False
    if used_bytes is not None:
        note_used(inode, used_bytes)
    store_inode(tr, inode)
    tr.clear(records.truncation_key(inode_id))
