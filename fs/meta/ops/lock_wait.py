"""Waits for locks as records, so that any service sees a circle of them;
EndLockWait, and the end of a client's waits.

One record for each owner that waits holds what its threads wait for.  It is written in the
transaction that found the lock held, which has read all that speaks against a circle.  So of two
waits that would close one together, the later one is run again and sees the other.

Only a new wait is looked at.  A circle may also be closed by a lock that another thread gets; then
the next try of whoever waits in it tells.

A record that nobody ends, because its mount died, goes with the locks of that
client, and means as little as these.
"""

from collections.abc import Iterable, Sequence

from ...kv.api import Transaction
from ...schema.proto import meta_pb2 as meta
from ...schema.proto.record_pb2 import FileLocksRecordPb, LockWaitPb, LockWaitsRecordPb
from ...schema.status import FsError, Status
from .. import records
from ..context import OpContext
from ..damage import decoded
from ..file_locks import FileLock, Holder, lock_from_pb, lock_to_pb
from ..lock_cycles import CycleSearch, LockWait

WAIT_COUNT_MAX = 256
"""Of one owner; what more of its threads wait for is not looked at."""
_TIME_BYTES = 8


async def load_locks(
    tr: Transaction, inode_ids: Iterable[int], *, snapshot: bool = False
) -> dict[int, list[FileLock]]:
    """Return the locks of files, by inode; raises FsError(METADATA_DAMAGED)."""
    wanted = list(inode_ids)
    keys = [records.file_locks_key(inode_id) for inode_id in wanted]
    values = await tr.get_many(keys, snapshot=snapshot)
    return {
        inode_id: [
            lock_from_pb(lock) for lock in decoded(FileLocksRecordPb, key, value or b"").locks
        ]
        for inode_id, key, value in zip(wanted, keys, values, strict=True)
    }


async def _load_waits(tr: Transaction, owners: Sequence[Holder]) -> list[LockWaitPb]:
    keys = [records.lock_waits_key(one.client_id, one.owner) for one in owners]
    values = await tr.get_many(keys)
    return [
        wait
        for key, value in zip(keys, values, strict=True)
        if value is not None
        for wait in decoded(LockWaitsRecordPb, key, value[_TIME_BYTES:]).waits
    ]


def _store(tr: Transaction, ctx: OpContext, owner: Holder, waits: Sequence[LockWaitPb]) -> None:
    key = records.lock_waits_key(owner.client_id, owner.owner)
    if not waits:
        tr.clear(key)
        return
    record = LockWaitsRecordPb(waits=waits)
    tr.set(key, records.pack_u64(ctx.now_ns) + record.SerializeToString())


async def begin_wait(
    tr: Transaction, ctx: OpContext, wait: LockWait, locks: Sequence[FileLock]
) -> None:
    """Note that an owner waits for a lock that others forbid; `locks` are all of that file.

    Raises:
        FsError: DEADLOCK: the owner would wait for itself.  Nothing is noted then.
    """
    search = CycleSearch(wait.lock, locks)
    while search.owners:
        waits = [_from_pb(one) for one in await _load_waits(tr, search.owners)]
        search.step(waits, await load_locks(tr, sorted({one.inode_id for one in waits})))
    if search.is_found:
        owner = wait.lock.holder
        detail = f"inode {wait.inode_id:#x}: owner {owner.owner:#x} of client {owner.client_id}"
        raise FsError(Status.DEADLOCK, f"{detail} would wait for itself")
    waiting = await _load_waits(tr, [wait.lock.holder])
    if wait.wait_id not in {one.wait_id for one in waiting} and len(waiting) < WAIT_COUNT_MAX:
        _store(tr, ctx, wait.lock.holder, [*waiting, _to_pb(wait)])


async def end_wait(tr: Transaction, ctx: OpContext, owner: Holder, wait_id: int) -> None:
    """Forget that an owner waits; without effect when it does not."""
    waiting = await _load_waits(tr, [owner])
    left = [one for one in waiting if one.wait_id != wait_id]
    if len(left) < len(waiting):
        _store(tr, ctx, owner, left)


async def end_lock_wait(
    tr: Transaction, ctx: OpContext, request: meta.EndLockWaitReq
) -> meta.EndLockWaitRsp:
    """Forget that an owner of the calling client waits."""
    tr.mark_freeing()
    await end_wait(tr, ctx, Holder(ctx.caller.client_id, request.owner), request.wait_id)
    return meta.EndLockWaitRsp()


async def end_owner_waits(tr: Transaction, owner: int, client_id: str) -> None:
    """Forget all that an owner of a client that is gone waited for."""
    tr.mark_freeing()
    tr.clear(records.lock_waits_key(client_id, owner))


def _from_pb(message: LockWaitPb) -> LockWait:
    return LockWait(message.wait_id, message.inode_id, lock_from_pb(message.lock))


def _to_pb(wait: LockWait) -> LockWaitPb:
    return LockWaitPb(wait_id=wait.wait_id, inode_id=wait.inode_id, lock=lock_to_pb(wait.lock))
