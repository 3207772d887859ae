"""SetLock, FindLockConflict and the end of a client's locks:
advisory locks that hold over all mounts.

A lock that cannot be had is an answer, not an error; who waits asks again.  The table of a file is
one record; an index by client finds what a dead one has left.  Locks need no open file here: the
kernel of the mount sees to that, and tells when an owner closes.

Source: fcntl(2), flock(2).
"""

from ...kv.api import Transaction
from ...schema.proto import meta_pb2 as meta
from ...schema.proto.common_pb2 import FileLockPb, LockKindPb
from ...schema.proto.record_pb2 import FileLocksRecordPb
from ...schema.services import META_SET_LOCK
from ...schema.status import FsError, Status
from .. import records
from ..context import OpContext
from ..file_locks import (
    END_MAX,
    LOCK_COUNT_MAX,
    FileLock,
    conflict_of,
    has_client,
    lock_from_pb,
    lock_to_pb,
    with_lock,
    without_client,
    without_converted,
    without_range,
)
from ..idempotency import recall, remember
from ..inodes import load_inode
from ..lock_cycles import LockWait
from .lock_wait import begin_wait, end_wait, load_locks


def _wanted(ctx: OpContext, message: FileLockPb) -> FileLock:
    if message.kind not in LockKindPb.values() or message.kind == LockKindPb.NO_LOCK_KIND:
        raise FsError(Status.RPC_BAD_REQUEST, f"lock of kind {message.kind}")
    if not message.first <= message.last <= END_MAX:
        raise FsError(Status.INVALID_ARGUMENT, f"lock of bytes {message.first} to {message.last}")
    if not ctx.caller.client_id:
        raise FsError(Status.RPC_BAD_REQUEST, "lock without a client id")
    if message.client_id:
        raise FsError(Status.RPC_BAD_REQUEST, "lock for another client")
    mine = FileLockPb()
    mine.CopyFrom(message)
    mine.client_id = ctx.caller.client_id
    return lock_from_pb(mine)


async def _load(tr: Transaction, inode_id: int, *, snapshot: bool = False) -> list[FileLock]:
    return (await load_locks(tr, (inode_id,), snapshot=snapshot))[inode_id]


def _store(tr: Transaction, inode_id: int, locks: list[FileLock]) -> None:
    key = records.file_locks_key(inode_id)
    if not locks:
        tr.clear(key)
        return
    record = FileLocksRecordPb(locks=[lock_to_pb(lock) for lock in locks])
    tr.set(key, record.SerializeToString())


async def set_lock(tr: Transaction, ctx: OpContext, request: meta.SetLockReq) -> meta.SetLockRsp:
    """Take or free bytes for one owner of the calling client.

    Raises:
        FsError: STALE, NOT_REGULAR, INVALID_ARGUMENT, NO_LOCKS_LEFT; DEADLOCK, if it was to wait.
    """
    done = await recall(tr, ctx, META_SET_LOCK)
    if done is not None:
        return done
    wanted = _wanted(ctx, request.lock)
    inode_id = request.inode_id
    may_wait = request.wait_id and wanted.kind == LockKindPb.POSIX_LOCK
    before = await _load(tr, inode_id)
    if request.is_unlock:
        tr.mark_freeing()  # whoever waits for these bytes would wait until there is room
        after = without_range(before, wanted)
    else:
        await load_inode(tr, inode_id)
        conflict = conflict_of(before, wanted)
        if conflict is not None:
            if may_wait:
                await begin_wait(tr, ctx, LockWait(request.wait_id, inode_id, wanted), before)
            return _refuse(tr, ctx, inode_id, wanted, conflict, before)
        after = with_lock(before, wanted)
        if may_wait:
            await end_wait(tr, ctx, wanted.holder, request.wait_id)
    if len(after) > max(LOCK_COUNT_MAX, len(before)):
        raise FsError(Status.NO_LOCKS_LEFT, f"inode {inode_id:#x} has {len(before)} locks")
    reply = meta.SetLockRsp(is_done=True)
    _change(tr, ctx, inode_id, before, after)
    if after != before or ctx.caller.is_repeat:
        remember(tr, ctx, META_SET_LOCK, reply)
    return reply


def _refuse(  # noqa: PLR0917 - all of them are of one attempt
    tr: Transaction,
    ctx: OpContext,
    inode_id: int,
    wanted: FileLock,
    conflict: FileLock,
    before: list[FileLock],
) -> meta.SetLockRsp:
    """Return the answer to an attempt that somebody else's lock forbids."""
    reply = meta.SetLockRsp(conflict=lock_to_pb(conflict))
    after = without_converted(before, wanted)
    reply.has_freed = after != before
    if reply.has_freed:
        tr.mark_freeing()
        _change(tr, ctx, inode_id, before, after)
    if ctx.caller.is_repeat:  # an earlier try may still come, when the bytes are free
        remember(tr, ctx, META_SET_LOCK, reply)
    return reply


def _change(
    tr: Transaction, ctx: OpContext, inode_id: int, before: list[FileLock], after: list[FileLock]
) -> None:
    """Store a table that the calling client has changed, and whether it holds anything there."""
    if after == before:
        return
    client_id = ctx.caller.client_id
    _store(tr, inode_id, after)
    index_key = records.client_locks_key(client_id, inode_id)
    if not has_client(after, client_id):
        tr.clear(index_key)
    elif not has_client(before, client_id):
        tr.set(index_key, records.pack_u64(ctx.now_ns))


async def find_lock_conflict(
    tr: Transaction, ctx: OpContext, request: meta.FindLockConflictReq
) -> meta.FindLockConflictRsp:
    """Return the lock that forbids a wanted one, if there is one.

    Raises:
        FsError: INVALID_ARGUMENT.
    """
    wanted = _wanted(ctx, request.lock)
    conflict = conflict_of(await _load(tr, request.inode_id, snapshot=True), wanted)
    return meta.FindLockConflictRsp(conflict=None if conflict is None else lock_to_pb(conflict))


async def end_client_locks(tr: Transaction, inode_id: int, client_id: str) -> None:
    """Free everything that a client holds on one file."""
    tr.mark_freeing()
    before = await _load(tr, inode_id)
    after = without_client(before, client_id)
    if after != before:
        _store(tr, inode_id, after)
    tr.clear(records.client_locks_key(client_id, inode_id))


async def end_all_locks(tr: Transaction, inode_id: int) -> None:
    """Free everything that anybody holds on what is being deleted:
    who has it open for reading only may hold locks still.
    """
    if await tr.get(records.file_locks_key(inode_id)) is None:
        return
    locks = await _load(tr, inode_id)
    for client_id in {lock.holder.client_id for lock in locks}:
        tr.clear(records.client_locks_key(client_id, inode_id))
    tr.clear(records.file_locks_key(inode_id))
