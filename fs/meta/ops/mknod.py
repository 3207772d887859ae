"""Mknod: pipes, sockets, device nodes, and regular files without opening them."""

from ...kv.api import Transaction
from ...schema.proto import common_pb2 as pb
from ...schema.proto import meta_pb2 as meta
from ...schema.services import META_MKNOD
from ...schema.status import FsError, Status
from .. import permissions
from ..context import OpContext
from ..idempotency import once
from ..making import find_place, is_whiteout, new_inode, put
from .create import give_file_part

_MAKEABLE = (pb.FILE, pb.FIFO, pb.SOCKET, pb.CHAR_DEVICE, pb.BLOCK_DEVICE)
_DEVICES = (pb.CHAR_DEVICE, pb.BLOCK_DEVICE)


@once(META_MKNOD)
async def mknod(tr: Transaction, ctx: OpContext, request: meta.MknodReq) -> meta.InodeRsp:
    """Make a node.

    Raises:
        FsError: as `find_place`; INVALID_ARGUMENT for another type; NOT_PERMITTED for a device by
            anyone but root, unless it is a whiteout.
    """
    if request.type not in _MAKEABLE:
        raise FsError(Status.INVALID_ARGUMENT, f"mknod of type {request.type}")
    parent = await find_place(tr, ctx, request.parent_inode_id, request.name)
    if request.type in _DEVICES and not is_whiteout(request.type, request.rdev):
        permissions.require_root(ctx.caller, "making a device node")
    inode = new_inode(ctx, parent, request.type, request.mode, umask=request.umask)
    if request.type == pb.FILE:
        give_file_part(ctx, inode, parent.directory.default_layout)
    elif request.type in _DEVICES:
        inode.rdev = request.rdev
    await put(tr, ctx, parent, request.name, inode)
    return meta.InodeRsp(inode=inode)
