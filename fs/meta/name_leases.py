"""Leases of directories: for a moment nobody but the client that made one changes its names,
and the client is told so.

So it knows what names lead to, and which are absent, and answers look-ups without a call
(fs/client/vfs/leased_names.py; decisions 0152, 0161).

Invariants:
    - While an inode says `lease_client_id`, that client alone has ever changed names of the
      directory.  Only Mkdir sets it.  Who else is about to add, move, replace or remove a name has
      it taken away first, for good.  Garbage collection need not: it takes names of removed
      directories, whose leases went when they were removed.
    - It is taken away in two transactions with `WAIT_S` between them, by the monotonic clock of
      whoever waits.  The first one marks it as ending, and from then on no reply renews the lease.
      A service that dies in between leaves the mark; whoever comes next waits for as long.
    - A reply renews a lease only where the directory has just changed.  So a lease of a directory
      that has not changed for `IDLE_S` may be taken away at once.
    - Nobody waits in a transaction, nor with another lease taken away halfway.

Every operation that changes a name reads the directory's inode with a conflict anyway.  The changes
of the client that has the lease do not write the inode, so they do not conflict because of it.
"""

from collections.abc import Awaitable, Callable
from functools import lru_cache
from typing import Any, Final

import trio

from ..kv.api import Transaction
from ..schema.name_lease import IDLE_S, TOLD_AGE_S_MAX, WAIT_S
from ..schema.proto import common_pb2 as pb
from ..schema.proto import meta_pb2 as meta
from ..schema.proto.record_pb2 import FormatRecordPb
from . import records
from .context import NamesLeasedError, OpContext
from .damage import decoded, inode_record, times
from .turns import Turns

Transact = Callable[[Callable[[Transaction], Awaitable[Any]]], Awaitable[Any]]

_S: Final = 1_000_000_000


async def grant(tr: Transaction, ctx: OpContext, request: meta.MkdirReq, made: pb.InodePb) -> None:
    """Let the client that makes a directory have its lease,
    if it wants it and all services of this store know of leases.
    """
    if not request.wants_name_lease or not ctx.caller.client_id:
        return
    stored = await tr.get(records.FORMAT_KEY, snapshot=True)
    if stored is not None and _may_hold_leases(stored):
        made.directory.lease_client_id = ctx.caller.client_id


@lru_cache(maxsize=8)
def _may_hold_leases(stored: bytes) -> bool:
    """Return whether no service that knows nothing of leases serves a store
    with this format record.
    """
    record = decoded(FormatRecordPb, records.FORMAT_KEY, stored)
    return record.format_version >= records.LEASED_FORMAT


def require_unleased(ctx: OpContext, directory: pb.InodePb) -> None:
    """Raise NamesLeasedError if a name of a directory may not be changed
    before another client's lease is over.
    """
    holder = directory.directory.lease_client_id
    if holder and holder != ctx.caller.client_id:
        raise NamesLeasedError(directory.inode_id)


def hide_old(directory: pb.InodePb, now_ns: int) -> None:
    """Have a reply not renew the lease of a (complete) directory that was not changed just now."""
    if directory.directory.lease_client_id and now_ns - directory.ctime_ns > TOLD_AGE_S_MAX * _S:
        directory.directory.is_lease_ending = True


async def begin_end(tr: Transaction, directory_id: int, now_ns: int) -> float | None:
    """Have a lease end; return for how many seconds to wait before `end`, 0: it has ended, None:
    there was none.
    """
    tr.mark_freeing()  # a name is to be removed, maybe; and on a full disk no lease is given
    key, times_key = records.inode_key(directory_id), records.directory_times_key(directory_id)
    # With a conflict: a change of names renews the lease.
    stored, stored_times = await tr.get_many([key, times_key])
    if stored is None:
        return None
    inode = inode_record(directory_id, stored)
    if not inode.directory.lease_client_id:
        return None
    ctime_ns = inode.ctime_ns
    if stored_times is not None:
        _, ctime_ns = times(times_key, stored_times)
    if now_ns - ctime_ns > IDLE_S * _S:
        _clear(tr, key, inode)
        return 0.0
    if not inode.directory.is_lease_ending:
        inode.directory.is_lease_ending = True
        tr.set(key, inode.SerializeToString())
    return WAIT_S


async def end(tr: Transaction, directory_id: int) -> None:
    """Take a lease away that has been marked as ending for long enough;
    one that is not marked stays.
    """
    tr.mark_freeing()
    key = records.inode_key(directory_id)
    stored = await tr.get(key)
    if stored is None:
        return
    inode = inode_record(directory_id, stored)
    if inode.directory.is_lease_ending:
        _clear(tr, key, inode)


async def end_at_once(tr: Transaction, directory_id: int) -> None:
    """Take a lease away without waiting: its client may take a new name for absent for as long
    as it was told last.
    """
    key = records.inode_key(directory_id)
    stored = await tr.get(key)
    if stored is not None:
        _clear(tr, key, inode_record(directory_id, stored))


def _clear(tr: Transaction, key: bytes, inode: pb.InodePb) -> None:
    inode.directory.ClearField("lease_client_id")
    inode.directory.ClearField("is_lease_ending")
    tr.set(key, inode.SerializeToString())


class NameLeases:
    """Has leases end for the operations of one service."""

    def __init__(self, transact: Transact, now_ns: Callable[[], int]) -> None:
        self._transact = transact
        self._now_ns = now_ns
        self._turns = Turns()
        self.ended_count = self.waited_count = 0
        """Leases that were taken away; those of them that were waited for."""

    async def end(self, directory_id: int) -> None:
        """Return when nobody has a lease of a directory any more, as far as this service knows;
        raises FsError of the store.

        Who comes while another task of this service waits goes on together with that one.
        """
        await self._turns.take(directory_id)
        try:
            await self._end(directory_id)
        finally:
            self._turns.give(directory_id)

    async def _end(self, directory_id: int) -> None:
        wait_s = await self._transact(lambda tr: begin_end(tr, directory_id, self._now_ns()))
        if wait_s is None:
            return
        self.ended_count += 1
        if wait_s:
            self.waited_count += 1
            await trio.sleep(wait_s)
            await self._transact(lambda tr: end(tr, directory_id))
