"""EndSession: drop one file session, taking over the precise length if it was a writer's.

Used for sessions a client gives up (PruneSessions) and for those of dead clients.
"""

from ...kv.api import Transaction
from ...schema.proto import common_pb2 as pb
from ...schema.proto.record_pb2 import FileSessionRecordPb
from .. import content, records
from ..context import OpContext
from ..damage import decoded, inode_record
from ..inodes import advance_ctime, store_inode
from ..promises import settle


async def end_session(
    tr: Transaction, ctx: OpContext, inode_id: int, session_id: str, client_id: str
) -> bool:
    """Drop a session if it exists and belongs to the client; return whether it did.

    A dead writer's last reports may be missing, so the chains tell the length; of an inline file
    the record does.  He may live, cut off, and write to a chunk that he knows of without asking:
    the file is not made inline any more.

    Raises:
        LengthUnknownError: the chains must be asked.
        TruncationUnfinishedError: an earlier truncation must be finished first.
    """
    key = records.file_session_key(inode_id, session_id)
    value = await tr.get(key)
    if value is None:
        return False
    record = decoded(FileSessionRecordPb, key, value)
    if record.client_id != client_id:
        return False
    tr.mark_freeing()
    tr.clear(key)
    found = await tr.get(records.inode_key(inode_id))
    if found is None or not record.is_write:
        return True
    inode = inode_record(inode_id, found)
    if inode.type != pb.FILE:
        return True
    content.require_truncated(inode)
    stored = pb.InodePb()
    stored.CopyFrom(inode)
    if not inode.file.is_inline:
        content.apply_precise_length(ctx, inode)
    inode.file.data_ver += 1
    await settle(tr, ctx, inode, stored)
    # He may have been told of a chunk that the power has taken from here since; while the
    # bytes are inline he knows of none.
    inode.file.has_lost_writer |= not inode.file.is_inline
    if inode.file.length != stored.file.length:
        inode.mtime_ns = ctx.now_ns
        advance_ctime(ctx, inode)
    store_inode(tr, inode)
    return True
