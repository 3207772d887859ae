"""GetRealPath: where a directory is, by its parent pointers.

A name is told to who may search the directory it is in, as if he had walked there.
"""

from ...kv.api import Transaction
from ...schema.ids import ROOT_INODE_ID
from ...schema.inode import PATH_BYTES_MAX
from ...schema.proto import common_pb2 as pb
from ...schema.proto import meta_pb2 as meta
from ...schema.status import FsError, Status
from .. import permissions
from ..context import Caller, OpContext
from ..inodes import load_inode


async def path_of(tr: Transaction, directory_id: int, *, caller: Caller | None = None) -> bytes:
    """Return the absolute path of a directory in the file system, of one snapshot.

    Args:
        tr: the transaction.
        directory_id: the directory.
        caller: who is to be told; None: nobody.

    Raises:
        FsError: STALE, NOT_DIRECTORY (only directories know their parent), NOT_FOUND
            (it or one above it was removed), NAME_TOO_LONG, ACCESS_DENIED (the caller
            may not search one above it).
    """
    names: list[bytes] = []
    length = 0
    inode = await load_inode(tr, directory_id, snapshot=True)
    while inode.inode_id != ROOT_INODE_ID:
        if inode.type != pb.DIRECTORY:
            raise FsError(Status.NOT_DIRECTORY, f"inode {inode.inode_id:#x}")
        if inode.nlink == 0:
            raise FsError(Status.NOT_FOUND, f"directory {inode.inode_id:#x} was removed")
        names.append(inode.directory.name)
        length += len(inode.directory.name) + 1
        if length > PATH_BYTES_MAX:
            raise FsError(Status.NAME_TOO_LONG, f"path of directory {directory_id:#x}")
        inode = await load_inode(tr, inode.directory.parent_inode_id, snapshot=True)
        if caller is not None:
            permissions.require(caller, inode, permissions.SEARCH)
    return b"/" + b"/".join(reversed(names))


async def get_real_path(
    tr: Transaction, ctx: OpContext, request: meta.GetRealPathReq
) -> meta.GetRealPathRsp:
    """Return the path of a directory; raises what `path_of` raises."""
    return meta.GetRealPathRsp(path=await path_of(tr, request.inode_id, caller=ctx.caller))
