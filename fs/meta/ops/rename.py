"""Rename: move a name, replace what the new name led to, or exchange the two.  All or nothing.

The rules are those of rename(2) and renameat2(2) on Linux.

Invariants:
    - No directory becomes its own ancestor.  Every ancestor of the new parent is read with a
      conflict, so of two concurrent renames that would close a loop together one is rerun.
    - A directory's parent pointer, its dentry and the parents' counters change together.  So does
      the usage of all directories above both places.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain

from ...kv.api import Transaction
from ...schema.ids import ROOT_INODE_ID
from ...schema.proto import common_pb2 as pb
from ...schema.proto import meta_pb2 as meta
from ...schema.proto.record_pb2 import DentryRecordPb
from ...schema.services import META_RENAME
from ...schema.status import FsError, Status
from .. import permissions
from ..context import OpContext
from ..dentries import (
    check_name,
    clear_dentry,
    find_dentry,
    is_dot,
    is_empty,
    load_dentry,
    store_dentry,
)
from ..homes import move_name
from ..idempotency import once
from ..inodes import (
    add_subdirectories,
    advance_ctime,
    drop_link,
    load_complete,
    load_directory,
    load_inode,
    require_changeable,
    stamp_directory,
    store_inode,
)
from ..making import new_inode, put_uncounted
from ..name_leases import require_unleased
from ..read_ahead import name_keys
from ..usage import Change, charge, usage_of, whole_tree
from .trash_mark import mark_after_rename
from .unlink import keep_open

DEPTH_MAX = 4096


@dataclass(frozen=True, slots=True)
class Place:
    """A name in a directory."""

    parent: pb.InodePb
    name: bytes


@dataclass(frozen=True, slots=True)
class _Move:
    old: Place
    new: Place
    source: pb.InodePb
    target: pb.InodePb | None
    """What the new name leads to before."""
    is_exchange: bool


def _check_request(request: meta.RenameReq) -> None:
    check_name(request.old_name)
    check_name(request.new_name)
    if request.exchange and (request.no_replace or request.leaves_whiteout):
        raise FsError(Status.INVALID_ARGUMENT, "EXCHANGE together with NOREPLACE or WHITEOUT")
    if is_dot(request.old_name):
        raise FsError(Status.BUSY, f"rename of {request.old_name!r}")
    if is_dot(request.new_name):
        status = Status.EXISTS if request.no_replace else Status.BUSY
        raise FsError(status, f"rename to {request.new_name!r}")


async def _load_parents(
    tr: Transaction, ctx: OpContext, request: meta.RenameReq
) -> tuple[pb.InodePb, pb.InodePb]:
    old = await load_directory(tr, ctx, request.old_parent_inode_id)
    if request.new_parent_inode_id == request.old_parent_inode_id:
        return old, old
    return old, await load_directory(tr, ctx, request.new_parent_inode_id)


async def _is_at_or_below(tr: Transaction, start: pb.InodePb, ancestor_id: int) -> bool:
    """Return whether a directory or one above it is the inode `ancestor_id`.

    Raises:
        FsError: NOT_FOUND when the path upward leads into a removed tree.
    """
    inode = start
    for _ in range(DEPTH_MAX):
        if inode.inode_id == ancestor_id:
            return True
        if inode.inode_id == ROOT_INODE_ID:
            return False
        if inode.nlink == 0:
            raise FsError(Status.NOT_FOUND, f"directory {inode.inode_id:#x} was removed")
        inode = await load_inode(tr, inode.directory.parent_inode_id)
    raise FsError(Status.INVALID_ARGUMENT, f"more than {DEPTH_MAX} directories deep")


async def _check_no_loop(tr: Transaction, move: _Move) -> None:
    source, target = move.source, move.target
    if source.type == pb.DIRECTORY and await _is_at_or_below(tr, move.new.parent, source.inode_id):
        raise FsError(
            Status.INVALID_ARGUMENT, f"directory {source.inode_id:#x} would move into itself"
        )
    if not move.is_exchange or target is None or target.type != pb.DIRECTORY:
        return
    if await _is_at_or_below(tr, move.old.parent, target.inode_id):
        raise FsError(
            Status.INVALID_ARGUMENT, f"directory {target.inode_id:#x} would move into itself"
        )


async def _require_not_removed(tr: Transaction, ctx: OpContext, directory: pb.InodePb) -> None:
    """Refuse to take a directory out of a removed tree, in which nothing is counted any more."""
    if not await ctx.lineages.above(tr, directory.inode_id):
        raise FsError(Status.NOT_FOUND, f"directory {directory.inode_id:#x} was removed")


def _check_replaceable(source: pb.InodePb, target: pb.InodePb) -> None:
    if source.type == pb.DIRECTORY and target.type != pb.DIRECTORY:
        raise FsError(Status.NOT_DIRECTORY, f"inode {target.inode_id:#x} is no directory")
    if source.type != pb.DIRECTORY and target.type == pb.DIRECTORY:
        raise FsError(Status.IS_DIRECTORY, f"inode {target.inode_id:#x}")


async def _leave_whiteout(
    tr: Transaction, ctx: OpContext, request: meta.RenameReq, old: Place
) -> tuple[int, list[Change]]:
    """Put a whiteout in place of what moves away, if one is asked for.

    Returns:
        Its inode id (0: none), and what it counts for.
    """
    if not request.leaves_whiteout:
        return 0, []
    node = new_inode(ctx, old.parent, pb.CHAR_DEVICE, 0)
    node.home_inode_id = old.parent.inode_id
    await put_uncounted(tr, ctx, old.parent, old.name, node)
    return node.inode_id, [(old.parent.inode_id, usage_of(node))]


def _require_parent_change(ctx: OpContext, inode: pb.InodePb) -> None:
    """Require write access to a directory that is moved: the move rewrites its `..`."""
    if inode.type == pb.DIRECTORY:
        permissions.require(ctx.caller, inode, permissions.WRITE)


def _settle(
    tr: Transaction,
    ctx: OpContext,
    inode: pb.InodePb,
    place: Place,
    trash: pb.TrashMarkPb | None,
) -> None:
    """Give a (complete) inode the name it moves to."""
    if inode.type == pb.DIRECTORY:
        inode.directory.parent_inode_id = place.parent.inode_id
        inode.directory.name = place.name
    advance_ctime(ctx, inode)
    store_inode(tr, inode)
    store_dentry(tr, place.parent.inode_id, place.name, inode, trash=trash)


async def _replace(
    tr: Transaction, ctx: OpContext, request: meta.RenameReq, new: Place, target: pb.InodePb
) -> list[Change]:
    if target.type == pb.DIRECTORY:
        if not await is_empty(tr, target.inode_id):
            raise FsError(Status.NOT_EMPTY, f"directory {target.inode_id:#x}")
        add_subdirectories(tr, new.parent.inode_id, -1)
    changes = await drop_link(tr, ctx, target, new.parent.inode_id, new.name)
    if target.nlink == 0:
        keep_open(tr, ctx, request, target)
    return changes


async def _move_usage(
    tr: Transaction, ctx: OpContext, inode: pb.InodePb, origin: Place, goal: Place
) -> list[Change]:
    old_id, new_id = origin.parent.inode_id, goal.parent.inode_id
    if inode.type != pb.DIRECTORY:
        return await move_name(tr, inode, (old_id, origin.name), (new_id, goal.name))
    if old_id == new_id:
        return []
    add_subdirectories(tr, old_id, -1)
    add_subdirectories(tr, new_id, 1)
    total = await whole_tree(tr, ctx, inode.inode_id)
    return [(old_id, -total), (new_id, total)]


async def relocate(  # noqa: PLR0917 - what, from where, to where
    tr: Transaction,
    ctx: OpContext,
    inode: pb.InodePb,
    old: Place,
    new: Place,
    changes: Iterable[Change] = (),
    *,
    trash: pb.TrashMarkPb | None,
) -> None:
    """Move a (complete) inode to a name.

    The caller has dealt with what the new name led to, and with the old name.

    Args:
        tr: the transaction.
        ctx: who moves.
        inode: what is moved.
        old: where it was.
        new: where it is to be.
        changes: of the usage, by what the caller has done.
        trash: the mark of the new name, if it lies in the trash.

    Raises:
        FsError: as `charge`.
        NamesLeasedError: another client may know what the old name or the new one leads to.
    """
    require_unleased(ctx, old.parent)
    require_unleased(ctx, new.parent)
    await charge(tr, ctx, *changes, *await _move_usage(tr, ctx, inode, old, new))
    _settle(tr, ctx, inode, new, trash)
    await stamp_directory(tr, ctx, old.parent)
    if new.parent.inode_id != old.parent.inode_id:
        await stamp_directory(tr, ctx, new.parent)


async def _load_target(
    tr: Transaction, request: meta.RenameReq, dentry: DentryRecordPb | None
) -> pb.InodePb | None:
    if dentry is None:
        if request.exchange:
            raise FsError(Status.NOT_FOUND, f"{request.new_name!r}, to be exchanged")
        return None
    if request.no_replace:
        raise FsError(Status.EXISTS, f"{request.new_name!r}")
    return await load_complete(tr, dentry.inode_id)


async def _check_move(tr: Transaction, ctx: OpContext, move: _Move) -> None:
    old_parent, new_parent = move.old.parent, move.new.parent
    require_changeable(ctx, old_parent)
    require_changeable(ctx, new_parent)
    permissions.require_removable(ctx.caller, old_parent, move.source)
    if move.target is not None:
        permissions.require_removable(ctx.caller, new_parent, move.target)
        if not move.is_exchange:
            _check_replaceable(move.source, move.target)
    if old_parent.inode_id == new_parent.inode_id:
        return
    _require_parent_change(ctx, move.source)
    if move.is_exchange and move.target is not None:
        _require_parent_change(ctx, move.target)
    await _check_no_loop(tr, move)
    if pb.DIRECTORY in {move.source.type, move.target.type if move.target else 0}:
        await _require_not_removed(tr, ctx, old_parent)
        await _require_not_removed(tr, ctx, new_parent)


@once(META_RENAME)
async def rename(tr: Transaction, ctx: OpContext, request: meta.RenameReq) -> meta.RenameRsp:
    """Move `old_name` to `new_name`.

    Two names of one inode: nothing happens, as POSIX wants.

    Raises:
        FsError: NOT_FOUND, EXISTS, NOT_EMPTY, NOT_DIRECTORY, IS_DIRECTORY, INVALID_ARGUMENT,
            BUSY, ACCESS_DENIED, NOT_PERMITTED, STALE, NAME_TOO_LONG.
    """
    _check_request(request)
    old_parent, new_parent = await _load_parents(tr, ctx, request)
    old, new = Place(old_parent, request.old_name), Place(new_parent, request.new_name)
    source_dentry = await load_dentry(tr, old_parent.inode_id, old.name)
    target_dentry = await find_dentry(tr, new_parent.inode_id, new.name)
    source_keys = name_keys(source_dentry, old_parent.inode_id, old.name)
    await tr.prefetch(chain(source_keys, name_keys(target_dentry, new_parent.inode_id, new.name)))
    source = await load_complete(tr, source_dentry.inode_id)
    target = await _load_target(tr, request, target_dentry)
    if target is not None and target.inode_id == source.inode_id:
        return meta.RenameRsp(moved=source)
    await _check_move(tr, ctx, _Move(old, new, source, target, request.exchange))
    changes: list[Change] = []
    whiteout_id = 0
    if request.exchange:
        assert target is not None and target_dentry is not None
        changes += await _move_usage(tr, ctx, target, new, old)
        mark = await mark_after_rename(
            tr, ctx, target_dentry, new_parent.inode_id, new.name, old_parent
        )
        _settle(tr, ctx, target, old, mark)
    else:
        if target is not None:
            changes += await _replace(tr, ctx, request, new, target)
        clear_dentry(tr, old_parent.inode_id, old.name)
        whiteout_id, counted = await _leave_whiteout(tr, ctx, request, old)
        changes += counted
    mark = await mark_after_rename(
        tr, ctx, source_dentry, old_parent.inode_id, old.name, new_parent
    )
    await relocate(tr, ctx, source, old, new, changes, trash=mark)
    return meta.RenameRsp(moved=source, replaced=target, whiteout_inode_id=whiteout_id)
