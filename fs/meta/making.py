"""Making a new object under a name: what create, mkdir, mknod, symlink and link share."""

from ..kv.api import Transaction
from ..schema.proto import common_pb2 as pb
from ..schema.status import FsError, Status
from . import acl, permissions, records
from .context import OpContext
from .dentries import check_name, find_dentry, is_dot, store_dentry, told
from .inodes import (
    add_subdirectories,
    load_directory,
    require_changeable,
    stamp_directory,
    store_inode,
)
from .name_leases import require_unleased
from .usage import charge, usage_of


async def find_place(tr: Transaction, ctx: OpContext, parent_id: int, name: bytes) -> pb.InodePb:
    """Return the parent when `name` is free to be made there.

    Raises:
        FsError: INVALID_ARGUMENT, NAME_TOO_LONG, EXISTS, ACCESS_DENIED, NOT_PERMITTED, and what
            `load_directory` raises.
    """
    check_name(name)
    parent = await load_directory(tr, ctx, parent_id)
    if is_dot(name):
        raise FsError(Status.EXISTS, f"name {name!r}")
    if await find_dentry(tr, parent_id, name) is not None:
        raise FsError(Status.EXISTS, told(name, parent_id))
    require_changeable(ctx, parent)
    return parent


def new_inode(
    ctx: OpContext,
    parent: pb.InodePb,
    type_: pb.InodeTypePb.ValueType,
    mode: int,
    *,
    umask: int = 0,
) -> pb.InodePb:
    """Return a fresh inode owned by the caller; nothing is stored.

    A default access control list of the parent counts instead of
    `umask`, but not for symbolic links.
    """
    inherits = parent.directory.HasField("default_acl") and type_ != pb.SYMLINK
    mode &= 0o7777 if inherits else 0o7777 & ~umask
    is_directory = type_ == pb.DIRECTORY
    mode, gid = permissions.new_mode_and_gid(ctx.caller, parent, mode, is_directory=is_directory)
    assert ctx.new_inode_id, "the service reserves an id for operations that make inodes"
    now_ns = ctx.now_ns
    inode = pb.InodePb(
        inode_id=ctx.new_inode_id,
        type=type_,
        mode=mode,
        uid=ctx.caller.uid,
        gid=gid,
        nlink=2 if is_directory else 1,
        atime_ns=now_ns,
        mtime_ns=now_ns,
        ctime_ns=now_ns,
        btime_ns=now_ns,
        bare_ctime_ns=now_ns,
    )
    if inherits:
        acl.inherit(inode, parent.directory.default_acl)
    return inode


def is_whiteout(type_: int, rdev: int) -> bool:
    """Return whether a node is one with which overlays hide names: of no device, so that on Linux
    anybody may make it.
    """
    return type_ == pb.CHAR_DEVICE and not rdev


async def put_uncounted(
    tr: Transaction, ctx: OpContext, parent: pb.InodePb, name: bytes, inode: pb.InodePb
) -> None:
    """Store a new inode under its name; the caller counts it.

    Raises:
        NamesLeasedError: another client may take the name for absent.
    """
    require_unleased(ctx, parent)
    store_inode(tr, inode)
    store_dentry(tr, parent.inode_id, name, inode)
    await stamp_directory(tr, ctx, parent)
    tr.atomic_add(records.INODE_COUNT_KEY, 1)
    if inode.type == pb.DIRECTORY:
        add_subdirectories(tr, parent.inode_id, 1)


async def put(
    tr: Transaction, ctx: OpContext, parent: pb.InodePb, name: bytes, inode: pb.InodePb
) -> None:
    """Store a new inode under its name; raises what `charge` raises."""
    if inode.type != pb.DIRECTORY:
        inode.home_inode_id = parent.inode_id
    await charge(tr, ctx, (parent.inode_id, usage_of(inode)))
    await put_uncounted(tr, ctx, parent, name, inode)
