"""Lookup: one name in one directory."""

from typing import Final

from ...kv.api import Transaction
from ...schema.proto import common_pb2 as pb
from ...schema.proto import meta_pb2 as meta
from ...schema.status import FsError, Status
from .. import inline
from ..context import OpContext
from ..dentries import check_name, load_dentry
from ..inodes import complete, load_complete, load_directory
from .open import open_inode

_TO_READ: Final = meta.OpenReq(wants_read=True, takes_inline=True)
_OF_OPEN: Final = frozenset({Status.ACCESS_DENIED, Status.METADATA_DAMAGED})
"""By these an open is refused where a look-up is not."""

_GONE = (Status.NOT_FOUND, Status.STALE)
"""What is said of a directory that was removed: for a while, and once nothing is known of it."""


async def lookup(tr: Transaction, ctx: OpContext, request: meta.LookupReq) -> meta.InodeRsp:
    """Return the inode a name leads to; `.` and `..` work, and the root is its own parent.

    Raises:
        FsError: NOT_FOUND, NOT_DIRECTORY, ACCESS_DENIED, STALE, NAME_TOO_LONG, INVALID_ARGUMENT;
            DIRECTORY_REMOVED to who knows of it.
    """
    check_name(request.name)
    try:
        parent = await load_directory(tr, ctx, request.parent_inode_id, snapshot=True)
    except FsError as error:
        if request.tells_removed and error.status in _GONE:
            raise FsError(Status.DIRECTORY_REMOVED, error.detail) from error
        raise
    if request.name == b".":
        return meta.InodeRsp(inode=await complete(tr, parent, snapshot=True))
    if request.name == b"..":
        inode_id = parent.directory.parent_inode_id
    else:
        dentry = await load_dentry(tr, request.parent_inode_id, request.name, snapshot=True)
        inode_id = dentry.inode_id
    reply = meta.InodeRsp(inode=await load_complete(tr, inode_id, snapshot=True))
    if request.opens and reply.inode.type == pb.FILE:
        await _open(tr, ctx, reply)
    return reply


async def _open(tr: Transaction, ctx: OpContext, reply: meta.InodeRsp) -> None:
    """Make it the reply to Open for reading, too, if that succeeds."""
    try:
        await open_inode(tr, ctx, reply.inode, _TO_READ)
        await inline.tell(tr, ctx, _TO_READ, reply)
    except FsError as error:
        if error.status not in _OF_OPEN:
            raise
        return  # the name is found all the same; whoever opens the file is told
    reply.is_opened = True
