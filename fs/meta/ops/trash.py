"""MoveToTrash: a removal that can be taken back; and its end, when the time is over.

What is removed goes to /.trash/UID of who removes it: a directory that nobody else may search.  It
is a rename, so it takes the same time for any tree, and what a rename means for usage, links and
open files holds.  To bring something back is a rename, too.

Invariants:
    - The move and the record of until when (trash_mark.py) are one transaction; so are
      removal and end of the record.
    - Who may remove may move to the trash: as for Unlink, and as for RemoveTree of
      directories, also empty ones.
"""

from collections.abc import Iterator
from itertools import chain
from typing import Final

from ...kv.api import Transaction
from ...schema.ids import ROOT_INODE_ID, TRASH_ROOT_INODE_ID
from ...schema.inode import NAME_BYTES_MAX
from ...schema.proto import common_pb2 as pb
from ...schema.proto import meta_pb2 as meta
from ...schema.services import META_MOVE_TO_TRASH
from ...schema.status import FsError, Status
from .. import permissions, records
from ..context import OpContext
from ..damage import inode_record
from ..dentries import check_name, clear_dentry, find_dentry, is_dot, load_dentry, require_same
from ..idempotency import once
from ..inodes import (
    load_complete,
    load_directory,
    load_inode,
    require_changeable,
    store_inode,
)
from ..read_ahead import name_keys
from .mkdir import make_directory
from .remove_tree import take_tree
from .rename import Place, relocate
from .trash_mark import new_mark
from .tree_rights import require_tree_removable
from .unlink import take_name

EXPIRY_S_MAX: Final = 30 * 86_400
NAME: Final = b".trash"
"""In the root directory."""

_OWNER: Final = 0


async def _make_directory(  # noqa: PLR0917 - whose, where, what
    tr: Transaction, ctx: OpContext, parent: pb.InodePb, name: bytes, inode_id: int, mode: int
) -> pb.InodePb:
    made_by = ctx._replace(new_inode_id=inode_id)
    inode = await make_directory(tr, made_by, parent, name, mode)
    # Whatever the root directory says with its set-group-id bit and
    # its default access control list.
    inode.mode = mode
    inode.ClearField("acl")
    inode.directory.ClearField("default_acl")
    store_inode(tr, inode)
    return inode


async def _trash_root(tr: Transaction, ctx: OpContext) -> pb.InodePb:
    stored = await tr.get(records.inode_key(TRASH_ROOT_INODE_ID))
    if stored is not None:
        return inode_record(TRASH_ROOT_INODE_ID, stored)
    if await find_dentry(tr, ROOT_INODE_ID, NAME) is not None:
        raise FsError(
            Status.EXISTS, "/.trash is not the trash: rename it, so that the trash can be made"
        )
    as_root = ctx._replace(caller=ctx.caller._replace(uid=_OWNER, gid=_OWNER))
    root = await load_complete(tr, ROOT_INODE_ID)
    return await _make_directory(tr, as_root, root, NAME, TRASH_ROOT_INODE_ID, 0o755)


def _users_name(ctx: OpContext) -> bytes:
    return b"%d" % ctx.caller.uid


def _keys_in_trash(directory_id: int, name: bytes) -> Iterator[bytes]:
    yield records.inode_key(directory_id)
    yield records.directory_times_key(directory_id)
    yield records.dentry_key(directory_id, name)


async def _users_directory(tr: Transaction, ctx: OpContext) -> pb.InodePb:
    """Return where the caller's trash lies, made if need be."""
    name = _users_name(ctx)
    dentry = await find_dentry(tr, TRASH_ROOT_INODE_ID, name)
    if dentry is not None:
        if dentry.type != pb.DIRECTORY:
            what = (
                f"/.trash/{name.decode()} is no directory: rename it, so that the trash can be made"
            )
            raise FsError(Status.EXISTS, what)
        return await load_inode(tr, dentry.inode_id)
    trash_root = await _trash_root(tr, ctx)
    return await _make_directory(tr, ctx, trash_root, name, ctx.new_inode_id, 0o700)


async def _free_name(tr: Transaction, ctx: OpContext, directory_id: int, name: bytes) -> bytes:
    """Return `name`, or, when the trash has one of that name, the name and a time."""
    free, now_ns = name, ctx.now_ns
    while await find_dentry(tr, directory_id, free) is not None:
        suffix = b".%d" % now_ns
        free, now_ns = name[: NAME_BYTES_MAX - len(suffix)] + suffix, now_ns + 1
    return free


async def _is_in_trash(tr: Transaction, ctx: OpContext, parent_id: int) -> bool:
    lineage = await ctx.lineages.above(tr, parent_id)
    if not lineage:
        raise FsError(Status.NOT_FOUND, f"directory {parent_id:#x} was removed")
    return any(place.directory_id == TRASH_ROOT_INODE_ID for place in lineage)


async def _remove(
    tr: Transaction, ctx: OpContext, parent: pb.InodePb, name: bytes, inode: pb.InodePb
) -> None:
    take = take_tree if inode.type == pb.DIRECTORY else take_name
    await take(tr, ctx, parent, name, inode)


def _check_request(request: meta.MoveToTrashReq) -> None:
    check_name(request.name)
    if is_dot(request.name):
        raise FsError(Status.INVALID_ARGUMENT, f"removal of {request.name!r}")
    if request.expire_s > EXPIRY_S_MAX:
        what = f"the trash keeps nothing for {request.expire_s} s, at most {EXPIRY_S_MAX}"
        raise FsError(Status.INVALID_ARGUMENT, what)


@once(META_MOVE_TO_TRASH)
async def move_to_trash(
    tr: Transaction, ctx: OpContext, request: meta.MoveToTrashReq
) -> meta.MoveToTrashRsp:
    """Move a name to the caller's trash; what lies in the trash, anybody's, is removed for good.

    Raises:
        FsError: NOT_FOUND (also when the name leads to another inode than the request says),
            ACCESS_DENIED, NOT_PERMITTED, INVALID_ARGUMENT, NAME_TOO_LONG, NOT_DIRECTORY, STALE,
            EXISTS (/.trash is something else), QUOTA_EXCEEDED (of the trash itself).
    """
    _check_request(request)
    parent = await load_directory(tr, ctx, request.parent_inode_id)
    dentry = await load_dentry(tr, parent.inode_id, request.name)
    require_same(request.name, dentry.inode_id, request.inode_id)
    require_changeable(ctx, parent)
    users = await find_dentry(tr, TRASH_ROOT_INODE_ID, _users_name(ctx))
    keys = chain(
        name_keys(dentry, parent.inode_id, request.name),
        (records.inode_key(parent.directory.parent_inode_id),),
        () if users is None else _keys_in_trash(users.inode_id, request.name),
    )
    await tr.prefetch(keys)
    inode = await load_complete(tr, dentry.inode_id)
    permissions.require_removable(ctx.caller, parent, inode)
    if inode.type == pb.DIRECTORY:
        permissions.require_owner(ctx.caller, inode)
        await require_tree_removable(tr, ctx.caller, inode)
    if await _is_in_trash(tr, ctx, parent.inode_id):
        await _remove(tr, ctx, parent, request.name, inode)
        return meta.MoveToTrashRsp(moved=inode)
    mark = await new_mark(tr, ctx, parent.inode_id, request.name, request.expire_s)
    trash = await _users_directory(tr, ctx)
    name = await _free_name(tr, ctx, trash.inode_id, request.name)
    clear_dentry(tr, parent.inode_id, request.name)
    old, new = Place(parent, request.name), Place(trash, name)
    await relocate(tr, ctx, inode, old, new, trash=mark)
    return meta.MoveToTrashRsp(
        moved=inode, trash_inode_id=trash.inode_id, trash_name=name, due_ns=mark.due_ns
    )


async def expire(tr: Transaction, ctx: OpContext, key: bytes) -> bool:
    """Remove for good what a TRSH key is about;
    return whether it was still there, and of that mark.
    """
    tr.mark_freeing()
    if await tr.get(key) is None:
        return False  # another service was quicker
    tr.clear(key)
    due_ns, parent_id, name = records.trash_parts(key)
    dentry = await find_dentry(tr, parent_id, name)
    if dentry is None or dentry.trash.due_ns != due_ns:
        return False
    parent = await load_inode(tr, parent_id)
    await _remove(tr, ctx, parent, name, await load_complete(tr, dentry.inode_id))
    return True
