"""Symlink: a name that stands for a path."""

from ...kv.api import Transaction
from ...schema.inode import SYMLINK_TARGET_BYTES_MAX
from ...schema.proto import common_pb2 as pb
from ...schema.proto import meta_pb2 as meta
from ...schema.services import META_SYMLINK
from ...schema.status import FsError, Status
from ..context import OpContext
from ..idempotency import once
from ..making import find_place, new_inode, put


def _check_target(target: bytes) -> None:
    if not target:
        raise FsError(Status.NOT_FOUND, "a symbolic link to an empty path")
    if len(target) > SYMLINK_TARGET_BYTES_MAX:
        raise FsError(Status.NAME_TOO_LONG, f"symbolic link of {len(target)} bytes")
    if b"\x00" in target:
        raise FsError(Status.INVALID_ARGUMENT, "a symbolic link with a zero byte")


@once(META_SYMLINK)
async def symlink(tr: Transaction, ctx: OpContext, request: meta.SymlinkReq) -> meta.InodeRsp:
    """Make a symbolic link.

    Raises:
        FsError: as `find_place`; NOT_FOUND for an empty target, NAME_TOO_LONG for a long one.
    """
    _check_target(request.target)
    parent = await find_place(tr, ctx, request.parent_inode_id, request.name)
    inode = new_inode(ctx, parent, pb.SYMLINK, 0o777)
    inode.symlink_target = request.target
    await put(tr, ctx, parent, request.name, inode)
    return meta.InodeRsp(inode=inode)
