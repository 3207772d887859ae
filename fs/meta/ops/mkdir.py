"""Mkdir: an empty directory, with the default layout of its parent unless it gets its own."""

from ...kv.api import Transaction
from ...schema.layout import layout_from_pb
from ...schema.proto import common_pb2 as pb
from ...schema.proto import meta_pb2 as meta
from ...schema.services import META_MKDIR
from ..context import OpContext
from ..idempotency import once
from ..making import find_place, new_inode, put
from ..name_leases import grant


def new_directory(
    ctx: OpContext,
    parent: pb.InodePb,
    name: bytes,
    mode: int,
    layout: pb.LayoutPb | None = None,
    *,
    umask: int = 0,
) -> pb.InodePb:
    """Return an empty directory that is to be made; nothing is stored."""
    inode = new_inode(ctx, parent, pb.DIRECTORY, mode, umask=umask)
    inode.directory.parent_inode_id = parent.inode_id
    inode.directory.name = name
    inode.directory.default_layout.CopyFrom(
        parent.directory.default_layout if layout is None else layout
    )
    return inode


async def make_directory(
    tr: Transaction, ctx: OpContext, parent: pb.InodePb, name: bytes, mode: int
) -> pb.InodePb:
    """Make an empty directory under a free name, with exactly this mode;
    raises what `put` raises.
    """
    inode = new_directory(ctx, parent, name, mode)
    await put(tr, ctx, parent, name, inode)
    return inode


@once(META_MKDIR)
async def mkdir(tr: Transaction, ctx: OpContext, request: meta.MkdirReq) -> meta.InodeRsp:
    """Make a directory; whoever makes it may get the lease of its names.

    Raises:
        FsError: as `find_place`, and INVALID_ARGUMENT for a layout out of range.
    """
    parent = await find_place(tr, ctx, request.parent_inode_id, request.name)
    layout = None
    if request.HasField("default_layout"):
        layout = request.default_layout
        layout_from_pb(layout).check()
    inode = new_directory(ctx, parent, request.name, request.mode, layout, umask=request.umask)
    await grant(tr, ctx, request, inode)
    await put(tr, ctx, parent, request.name, inode)
    return meta.InodeRsp(inode=inode)
