"""NoteReads: when clients have read files, directories and links, as times of access.

A time of access is no change of an inode: ctime and data_ver stay, so that no client takes what
it knows for outdated, and nothing is said in the event log.  A directory keeps its time of
access in its inode record, but its other times and its link count beside it (see
fs/meta/inodes.py).  The record is stored as it was loaded, so these need not be looked at, and
no change of names conflicts because of them.

Invariants:
    - Whatever is asked for, nothing but times of access changes: they go forward, and never beyond
      this service's time.  Only one that lies ahead of that goes back, to that.
    - A read is noted only where the inode still has the time of access that the client saw.
      So a repeat that comes late, or from a client that knows nothing of what another one
      has set since, changes nothing; unless that was the very time that the client saw.
"""

from collections.abc import Sequence
from typing import Final

from ...kv.api import Transaction
from ...schema.proto import common_pb2 as pb
from ...schema.proto import meta_pb2 as meta
from ...schema.status import FsError
from .. import permissions, records
from ..context import Caller, OpContext
from ..damage import inode_record

TOGETHER_MAX: Final = 64
"""Reads noted in one transaction."""


def _may_have_read(caller: Caller, inode: pb.InodePb) -> bool:
    """Return whether a caller may read an inode now;
    programs may be run without, and links are anybody's.
    """
    if inode.type == pb.SYMLINK or permissions.is_owner(caller, inode):
        return True
    is_run = inode.type == pb.FILE and permissions.is_allowed(caller, inode, permissions.SEARCH)
    return is_run or permissions.is_allowed(caller, inode, permissions.READ)


def time_noted(now_ns: int, had_ns: int, read: meta.NotedReadPb) -> int:
    """Return the time of access that an inode has after a read is noted,
    by what it had before and the time of the service.
    """
    if had_ns != read.atime_seen_ns:
        return had_ns
    if had_ns > now_ns:  # somebody has set it, and it is over with the next read
        return now_ns
    if read.atime_ns <= had_ns:  # it came after that all the same: the client's clock is behind
        return now_ns
    return min(read.atime_ns, now_ns)


def _known(inode_id: int, stored: bytes | None) -> pb.InodePb | None:
    if stored is None:
        return None
    try:
        return inode_record(inode_id, stored)
    except FsError:  # who opens it is told, and the other reads are none the worse
        return None


async def note_reads(
    tr: Transaction, ctx: OpContext, reads: Sequence[meta.NotedReadPb]
) -> list[int]:
    """Note TOGETHER_MAX reads at the most; return the time of access of each inode afterwards,
    0 where nothing is known of it.
    """
    assert len(reads) <= TOGETHER_MAX, len(reads)
    keys = {read.inode_id: records.inode_key(read.inode_id) for read in reads}
    stored = await tr.get_many(list(keys.values()))
    inodes = {i: _known(i, value) for i, value in zip(keys, stored, strict=True)}
    times: list[int] = []
    for read in reads:
        inode = inodes[read.inode_id]
        if inode is None:
            times.append(0)
            continue
        time_ns = time_noted(ctx.now_ns, inode.atime_ns, read)
        if time_ns != inode.atime_ns and _may_have_read(ctx.caller, inode):
            inode.atime_ns = time_ns
            tr.set(keys[read.inode_id], inode.SerializeToString())
        times.append(inode.atime_ns)
    return times
