"""Lookup: one name in one directory."""

from ...kv.api import Transaction
from ...schema.proto import meta_pb2 as meta
from ...schema.status import FsError, Status
from ..context import OpContext
from ..dentries import check_name, load_dentry
from ..inodes import complete, load_complete, load_directory

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
    return meta.InodeRsp(inode=await load_complete(tr, inode_id, snapshot=True))
