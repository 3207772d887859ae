"""Loading and storing inodes within a transaction.

Invariants:
    - A directory's times and link count are spread over INOD, DTIM and DCNT.  Only an inode that
      `complete` has seen may be stored, else newer times would be lost.
    - nlink 0 means: no name leads here any more.  Such an inode serves those who hold it open until
      garbage collection deletes it.
    - Every change of extended attributes grows ctime, also by releases that know nothing of
      `bare_ctime_ns`.  So a change by such a release makes void what it says.  Who knows of it
      sets ctime by `set_ctime` alone.
    - ctime of an inode never goes back, and every change of what a file is grows it.  Of two
      replies that tell of one file, a client takes the one with the larger ctime for the newer one.
"""

from collections.abc import Sequence
from typing import Final

from ..kv.api import Transaction
from ..schema.inode import is_bare
from ..schema.layout import MIB
from ..schema.proto import common_pb2 as pb
from ..schema.proto.record_pb2 import GcRecordPb
from ..schema.status import FsError, Status
from . import permissions, records
from .context import OpContext
from .damage import count, damaged, inode_record, times
from .homes import remove_name
from .read_ahead import directory_keys
from .usage import Change
from .usage_sum import ONE_DIRECTORY, Usage

SUBDIRECTORIES_MAX: Final = 2**31
"""What is said to have more has not: that many names are of no use to anybody."""

LARGE_BYTES_MIN: Final = 64 * MIB
"""With so many bytes for each of its names what is removed is large: it gives back more space,
for the work that it makes, than what it does not wait for (specs/decisions/0224).
"""


async def load_inode(tr: Transaction, inode_id: int, *, snapshot: bool = False) -> pb.InodePb:
    """Return an inode as stored; raises FsError(STALE) when there is none,
    METADATA_DAMAGED, and KV_BAD_FORMAT when a newer release made it.
    """
    value = await tr.get(records.inode_key(inode_id), snapshot=snapshot)
    if value is None:
        raise FsError(Status.STALE, f"inode {inode_id:#x}")
    return inode_record(inode_id, value)


async def complete(tr: Transaction, inode: pb.InodePb, *, snapshot: bool = False) -> pb.InodePb:
    """Fill in what a directory keeps beside its inode record; return the same object."""
    if inode.type == pb.DIRECTORY:
        keys = directory_keys(inode.inode_id)
        wanted = keys if inode.nlink else keys[:1]
        _fill_in(inode, keys, *await tr.get_many(wanted, snapshot=snapshot))
    return inode


def _fill_in(
    inode: pb.InodePb,
    keys: Sequence[bytes],
    stored_times: bytes | None,
    counter: bytes | None = None,
) -> None:
    times_key, counter_key = keys
    if stored_times is not None:
        inode.mtime_ns, ctime_ns = times(times_key, stored_times)
        set_ctime(inode, ctime_ns)
    if inode.nlink:
        subdirectory_count = count(counter_key, counter)
        if not 0 <= subdirectory_count < SUBDIRECTORIES_MAX:
            raise damaged(counter_key, f"{subdirectory_count} subdirectories")
        inode.nlink = 2 + subdirectory_count


async def find_directory(tr: Transaction, inode_id: int) -> pb.InodePb | None:
    """Return a directory as users see it, by snapshot reads; None when there is none."""
    rows = records.directory_rows(inode_id)
    stored, stored_times, counter = await tr.get_many(rows, snapshot=True)
    if stored is None:
        return None
    inode = inode_record(inode_id, stored)
    if inode.type == pb.DIRECTORY:
        _fill_in(inode, rows[1:], stored_times, counter)
    return inode


async def load_complete(tr: Transaction, inode_id: int, *, snapshot: bool = False) -> pb.InodePb:
    """Return an inode as users see it; raises FsError(STALE) when there is none."""
    return await complete(tr, await load_inode(tr, inode_id, snapshot=snapshot), snapshot=snapshot)


async def load_file(tr: Transaction, inode_id: int) -> pb.InodePb:
    """Return a regular file; raises FsError(STALE, IS_DIRECTORY or NOT_REGULAR)."""
    inode = await load_inode(tr, inode_id)
    if inode.type != pb.FILE:
        status = Status.IS_DIRECTORY if inode.type == pb.DIRECTORY else Status.NOT_REGULAR
        raise FsError(status, f"inode {inode_id:#x}")
    return inode


async def load_directory(
    tr: Transaction,
    ctx: OpContext,
    inode_id: int,
    *,
    right: int = permissions.SEARCH,
    snapshot: bool = False,
) -> pb.InodePb:
    """Return a directory that has a name and on which the caller has a right; not `complete`d.

    Raises:
        FsError: STALE, NOT_DIRECTORY, NOT_FOUND (it was removed), ACCESS_DENIED.
    """
    inode = await load_inode(tr, inode_id, snapshot=snapshot)
    if inode.type != pb.DIRECTORY:
        raise FsError(Status.NOT_DIRECTORY, f"inode {inode_id:#x}")
    if inode.nlink == 0:
        raise FsError(Status.NOT_FOUND, f"directory {inode_id:#x} was removed")
    permissions.require(ctx.caller, inode, right)
    return inode


def require_unlocked(ctx: OpContext, directory: pb.InodePb) -> None:
    """Raise FsError(NO_LOCK) when another client has locked a directory."""
    holder = directory.directory.lock_client_id
    if holder and holder != ctx.caller.client_id:
        what = f"directory {directory.inode_id:#x} is locked by client {holder}"
        raise FsError(Status.NO_LOCK, what)


def require_changeable(ctx: OpContext, directory: pb.InodePb) -> None:
    """Raise FsError unless the caller may add and remove names in `directory`."""
    permissions.require(ctx.caller, directory, permissions.WRITE | permissions.SEARCH)
    permissions.require_mutable(directory)
    require_unlocked(ctx, directory)


def store_inode(tr: Transaction, inode: pb.InodePb) -> None:
    """Write an inode; a directory must be `complete`."""
    if inode.type == pb.DIRECTORY:
        key = records.directory_times_key(inode.inode_id)
        tr.set(key, records.pack_times(inode.mtime_ns, inode.ctime_ns))
    tr.set(records.inode_key(inode.inode_id), inode.SerializeToString())


def advance_ctime(ctx: OpContext, inode: pb.InodePb) -> None:
    """Note in a (complete) inode that it changed now,
    or right after its last change if that seems to lie ahead.

    An operation that ran again after a conflict has a time from before what it lost against,
    and clocks of services differ.
    """
    set_ctime(inode, max(inode.ctime_ns + 1, ctx.now_ns))


def set_ctime(inode: pb.InodePb, ctime_ns: int) -> None:
    """Note when an inode changed; whether it has extended attributes stays known."""
    if is_bare(inode):
        inode.bare_ctime_ns = ctime_ns
    inode.ctime_ns = ctime_ns


async def stamp_directory(tr: Transaction, ctx: OpContext, directory: pb.InodePb) -> None:
    """Note that names in a directory changed now, without a conflict among those who do so.

    After the last change, as far as it is seen; of those that overlap the latest
    stays, whichever commits last.
    """
    _, key, _ = records.directory_rows(directory.inode_id)
    stored = await tr.get(key, snapshot=True)
    _, seen_ns = times(key, stored) if stored is not None else (0, directory.ctime_ns)
    now_ns = max(ctx.now_ns, seen_ns + 1)
    tr.atomic_max(key, records.pack_times(now_ns, now_ns))


def add_subdirectories(tr: Transaction, directory_id: int, delta: int) -> None:
    """Change the number of a directory's subdirectories."""
    if delta:
        tr.atomic_add(records.subdirectory_count_key(directory_id), delta)


def held_by(inode: pb.InodePb) -> Usage:
    """Return what an inode gives back when it is deleted, as far as that is known."""
    part = inode.file
    length = max(part.length, part.charged_length)
    return Usage(inode.used_bytes if part.has_holes else length, 1)


def is_large(removed: Usage) -> bool:
    """Return in which lane it is collected."""
    return removed.byte_count >= LARGE_BYTES_MIN * max(removed.inode_count, 1)


def hand_to_gc(
    tr: Transaction,
    ctx: OpContext,
    inode: pb.InodePb,
    *,
    tree: Usage | None = None,
    due_ns: int | None = None,
) -> int:
    """Queue an inode that just lost its last name.

    Args:
        tr: the transaction that takes the name.
        ctx: who takes it, and when.
        inode: what is queued.
        tree: it is a directory with entries: with all of them, this is it.
        due_ns: when it is due; None: at once a tree, anything else after a delay.

    Returns:
        The turn of its record.
    """
    held = held_by(inode) if tree is None else tree
    delay_ns = int(ctx.config.gc_delay_s * 1e9) if tree is None else 0
    prefix = records.GC_FILE if tree is None else records.GC_DIRECTORY
    record = GcRecordPb(
        inode_id=inode.inode_id,
        type=inode.type,
        removed_ns=ctx.now_ns,
        uid=inode.uid,
        gid=inode.gid,
        byte_count=held.byte_count if tree is None else 0,
    )
    if due_ns is None:
        due_ns = ctx.now_ns + delay_ns
    turn = records.gc_turn(due_ns, is_large=is_large(held))
    tr.set(records.gc_key(prefix, turn, inode.inode_id), record.SerializeToString())
    return turn


async def drop_link(
    tr: Transaction, ctx: OpContext, inode: pb.InodePb, parent_id: int, name: bytes
) -> list[Change]:
    """Take one name off a (complete) inode; the last one hands it to garbage collection.

    A directory must be empty.  Returns what changes of the usage, for the caller to `charge`.
    """
    if inode.type == pb.DIRECTORY:
        changes = [(parent_id, -ONE_DIRECTORY)]
    else:
        changes = await remove_name(tr, inode, (parent_id, name))
    inode.nlink = 0 if inode.type == pb.DIRECTORY else inode.nlink - 1
    advance_ctime(ctx, inode)
    store_inode(tr, inode)
    if inode.nlink == 0:
        hand_to_gc(tr, ctx, inode)
    return changes
