"""Files that are made without a name, as by O_TMPFILE, and the first name they may get.

Such a file is like one that was removed and is still open: `nlink` 0, and a record of garbage
collection that comes true once no session keeps the file any more.  `unnamed_due_ns` in it is the
turn of that record (fs/meta/records.py), so that a name can take it away.

Invariant: `unnamed_due_ns` is 0, or the file has no name and may get one.
"""

from ...kv.api import Transaction
from ...schema.proto import common_pb2 as pb
from ...schema.proto import meta_pb2 as meta
from ...schema.status import FsError, Status
from .. import content, records
from ..context import OpContext
from ..inodes import hand_to_gc, store_inode
from ..usage import charge, usage_of


def store_unnamed(
    tr: Transaction, ctx: OpContext, inode: pb.InodePb, request: meta.CreateReq
) -> None:
    """Store a new file without a name, open for who made it; with O_EXCL it never gets one.

    Raises:
        FsError: INVALID_ARGUMENT without a session for writing.
    """
    if not (request.wants_write and request.session.is_write):
        raise FsError(Status.INVALID_ARGUMENT, "a file without a name is opened for writing")
    inode.nlink = 0
    turn = hand_to_gc(tr, ctx, inode)
    if not request.is_exclusive:
        inode.file.unnamed_due_ns = turn
    store_inode(tr, inode)
    content.store_session(tr, ctx, inode.inode_id, request.session)
    tr.atomic_add(records.INODE_COUNT_KEY, 1)


async def give_first_name(
    tr: Transaction, ctx: OpContext, inode: pb.InodePb, parent_id: int
) -> None:
    """Let a file without a name have its first; the caller counts and stores it.

    Raises:
        FsError: NOT_FOUND: it had one, or was not to get one; QUOTA_EXCEEDED.
    """
    key = records.gc_key(records.GC_FILE, inode.file.unnamed_due_ns, inode.inode_id)
    if not inode.file.unnamed_due_ns or await tr.get(key) is None:
        raise FsError(Status.NOT_FOUND, f"inode {inode.inode_id:#x} has no name any more")
    tr.clear(key)
    inode.file.unnamed_due_ns = 0
    inode.home_inode_id = parent_id
    await charge(tr, ctx, (parent_id, usage_of(inode)))


def follow_record(tr: Transaction, inode: pb.InodePb, old_turn: int, turn: int) -> None:
    """Note that the record of garbage collection of an inode has another turn."""
    if inode.type == pb.FILE and inode.file.unnamed_due_ns == old_turn:
        inode.file.unnamed_due_ns = turn
        store_inode(tr, inode)
