"""LockDirectory: one client alone may make, remove and rename names in a directory.

For a job that owns a directory and must not be disturbed by a forgotten copy of itself on another
machine.  It holds for names in that very directory, not for content, not below.  Nobody waits for
it: others get NO_LOCK (ENOLCK) at once.

Invariants:
    - The holder stands in the directory's own inode, which every such operation reads with a
      conflict anyway (`inodes.require_changeable`): the check costs no read, and what was begun
      before the lock was taken runs again.
    - DLCK names just the directories that clients hold; by it the lock of a dead
      client is found (sessions.py).

Source: deepseek-ai/3FS, lockDirectory; that only the owner may take a lock away is ours.
"""

import stat
from typing import Final

from ...kv.api import Transaction
from ...schema.proto import common_pb2 as pb
from ...schema.proto import meta_pb2 as meta
from ...schema.services import META_LOCK_DIRECTORY
from ...schema.status import FsError, Status
from .. import permissions, records
from ..context import OpContext
from ..damage import inode_record
from ..idempotency import once
from ..inodes import (
    advance_ctime,
    complete,
    load_directory,
    load_inode,
    require_unlocked,
    store_inode,
)

LOCK_ATTRIBUTE: Final = b"ember.lock"

ACTIONS: Final = {
    b"lock": meta.LOCK_TAKE,
    b"preempt": meta.LOCK_PREEMPT,
    b"unlock": meta.LOCK_FREE,
    b"clear": meta.LOCK_CLEAR,
}
_BY_FORCE: Final = (meta.LOCK_PREEMPT, meta.LOCK_CLEAR)
_TAKING: Final = (meta.LOCK_TAKE, meta.LOCK_PREEMPT)


def _set_holder(tr: Transaction, ctx: OpContext, directory: pb.InodePb, client_id: str) -> None:
    before = directory.directory.lock_client_id
    if before:
        tr.clear(records.directory_lock_key(before, directory.inode_id))
    if client_id:
        key = records.directory_lock_key(client_id, directory.inode_id)
        tr.set(key, records.pack_u64(ctx.now_ns))
    directory.directory.lock_client_id = client_id
    advance_ctime(ctx, directory)
    store_inode(tr, directory)


async def _act(
    tr: Transaction, ctx: OpContext, inode_id: int, action: meta.DirectoryLockAction.ValueType
) -> pb.InodePb:
    if action not in ACTIONS.values() or not ctx.caller.client_id:
        raise FsError(Status.INVALID_ARGUMENT, f"lock action {action} by a nameless client")
    directory = await complete(tr, await load_directory(tr, ctx, inode_id))
    permissions.require(ctx.caller, directory, permissions.WRITE)
    if action in _BY_FORCE or directory.mode & stat.S_ISVTX:
        permissions.require_owner(ctx.caller, directory)
    if action not in _BY_FORCE:
        require_unlocked(ctx, directory)
    holder = ctx.caller.client_id if action in _TAKING else ""
    if holder != directory.directory.lock_client_id:
        if not holder:
            tr.mark_freeing()  # others could not remove anything there
        _set_holder(tr, ctx, directory, holder)
    return directory


@once(META_LOCK_DIRECTORY)
async def lock_directory(
    tr: Transaction, ctx: OpContext, request: meta.LockDirectoryReq
) -> meta.InodeRsp:
    """Take or free the lock of a directory for the calling client; what is so already is done.

    Raises:
        FsError: NO_LOCK (another client holds it), ACCESS_DENIED (no write access),
            NOT_PERMITTED (by one who does not own it: force, and the lock of a sticky
            directory, where write access gives no power over the names of others),
            NOT_DIRECTORY, NOT_FOUND, STALE, INVALID_ARGUMENT.
    """
    return meta.InodeRsp(inode=await _act(tr, ctx, request.inode_id, request.action))


async def lock_by_attribute(tr: Transaction, ctx: OpContext, inode_id: int, value: bytes) -> None:
    """Do what was written to `ember.lock`: lock, preempt, unlock or clear;
    raises as `lock_directory`.
    """
    action = ACTIONS.get(value)
    if action is None:
        raise FsError(Status.INVALID_ARGUMENT, f"ember.lock takes no {value!r}")
    await _act(tr, ctx, inode_id, action)


async def lock_holder(tr: Transaction, inode_id: int) -> bytes:
    """Return the client that holds a directory; raises FsError(NO_ATTRIBUTE or STALE)."""
    inode = await load_inode(tr, inode_id, snapshot=True)
    if not inode.directory.lock_client_id:
        raise FsError(Status.NO_ATTRIBUTE, f"inode {inode_id:#x} is not a locked directory")
    return inode.directory.lock_client_id.encode()


async def end_directory_lock(
    tr: Transaction, ctx: OpContext, inode_id: int, client_id: str
) -> None:
    """Free what a client that is gone holds."""
    tr.mark_freeing()
    tr.clear(records.directory_lock_key(client_id, inode_id))
    stored = await tr.get(records.inode_key(inode_id))
    if stored is None:
        return
    directory = await complete(tr, inode_record(inode_id, stored))
    if directory.directory.lock_client_id == client_id:
        _set_holder(tr, ctx, directory, "")
