"""Mkdir: an empty directory, with the default layout of its parent unless it gets its own."""

from ...kv.api import Transaction
from ...schema.layout import layout_from_pb
from ...schema.proto import common_pb2 as pb
from ...schema.proto import meta_pb2 as meta
from ...schema.services import META_MKDIR
from ..context import OpContext
from ..idempotency import once
from ..making import find_place, new_inode, put


@once(META_MKDIR)
async def mkdir(tr: Transaction, ctx: OpContext, request: meta.MkdirReq) -> meta.InodeRsp:
    """Make a directory.

    Raises:
        FsError: as `find_place`, and INVALID_ARGUMENT for a layout out of range.
    """
    parent = await find_place(tr, ctx, request.parent_inode_id, request.name)
    inode = new_inode(ctx, parent, pb.DIRECTORY, request.mode & 0o7777)
    inode.directory.parent_inode_id = parent.inode_id
    inode.directory.name = request.name
    if request.HasField("default_layout"):
        layout_from_pb(request.default_layout).check()
        inode.directory.default_layout.CopyFrom(request.default_layout)
    else:
        inode.directory.default_layout.CopyFrom(parent.directory.default_layout)
    await put(tr, ctx, parent, request.name, inode)
    return meta.InodeRsp(inode=inode)
