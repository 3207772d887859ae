"""POSIX access control lists as extended attributes of two names.

Source: setfacl(1), Linux fs/posix_acl.c: flags that say whether an attribute must exist do not
count here, and to remove a list that is not there is no error, and changes nothing.
"""

from collections.abc import Iterator

from ...kv.api import Transaction
from ...schema.proto import common_pb2 as pb
from ...schema.status import FsError, Status
from .. import acl, permissions
from ..context import OpContext
from ..inodes import advance_ctime, load_complete, load_inode, store_inode


def _require_can_have(inode: pb.InodePb) -> None:
    if inode.type == pb.SYMLINK:
        what = f"an access control list of the symbolic link {inode.inode_id:#x}"
        raise FsError(Status.NOT_SUPPORTED, what)


async def acl_attribute(tr: Transaction, inode_id: int, name: bytes) -> bytes:
    """Return a list; everybody may see it.

    Raises:
        FsError: NO_ATTRIBUTE: there is none, beyond the mode; NOT_SUPPORTED
            for a symbolic link; STALE.
    """
    inode = await load_inode(tr, inode_id, snapshot=True)
    _require_can_have(inode)
    if name == acl.ACCESS_NAME:
        found = acl.access_acl(inode)
    else:
        found = inode.directory.default_acl if inode.directory.HasField("default_acl") else None
    if found is None:
        raise FsError(Status.NO_ATTRIBUTE, f"attribute {name!r} of inode {inode_id:#x}")
    return acl.pack(found)


def acl_names(inode: pb.InodePb) -> Iterator[bytes]:
    """Yield the names of the lists that an object has."""
    if inode.HasField("acl"):
        yield acl.ACCESS_NAME
    if inode.directory.HasField("default_acl"):
        yield acl.DEFAULT_NAME


async def set_acl_attribute(
    tr: Transaction, ctx: OpContext, inode_id: int, name: bytes, value: bytes
) -> None:
    """Set a list, or remove it: by a value without entries.

    Raises:
        FsError: INVALID_ARGUMENT, NO_SPACE, NOT_SUPPORTED as `acl.unpack` and for a symbolic link;
            NOT_PERMITTED unless the caller owns the object, or when it is immutable or append-only;
            ACCESS_DENIED for a default list of what is no directory; STALE.
    """
    inode = await load_complete(tr, inode_id)
    _require_can_have(inode)
    wanted = acl.unpack(value)
    if name == acl.DEFAULT_NAME and inode.type != pb.DIRECTORY:
        if wanted is not None:
            raise FsError(Status.ACCESS_DENIED, f"a default list of inode {inode_id:#x}")
        return
    permissions.require_unflagged(inode)
    permissions.require_owner(ctx.caller, inode)
    if wanted is None and name not in acl_names(inode):
        return
    if name == acl.ACCESS_NAME:
        acl.set_access_acl(inode, wanted)
        if wanted is not None:
            inode.mode = permissions.mode_after_chmod(ctx.caller, inode, inode.mode)
    elif wanted is None:
        inode.directory.ClearField("default_acl")
    else:
        inode.directory.default_acl.CopyFrom(wanted)
    advance_ctime(ctx, inode)
    store_inode(tr, inode)
