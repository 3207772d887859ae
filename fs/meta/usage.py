"""Usage: how many bytes, files and directories lie below every directory, kept without a scan.

Each directory has three counters of all below it, itself not counted.  A transaction that changes
what they count adds to them blindly, at every directory from the changed one up to the root.  So
changes do not conflict with each other.

What is counted (`usage_of`):
    - a directory: once, at its parent;
    - anything else: once, at its home, the directory of one of its names (fs/meta/homes.py),
      however many names it has; nowhere when it has none, also while it is open;
    - bytes: of regular files the length, or what a writer was promised beyond it.  Lengths, not
      space: holes count, replicas do not.

Invariants:
    - A counter equals the sum over what is below (fs/meta/fsck_tree.py), at every commit.  The
      exception is below a removed directory: nothing there is counted any more.  An inode whose
      home was there counts again at another of its names once garbage collection has come by.
    - Whoever adds has read the epoch (fs/meta/lineage.py).
    - Whoever moves a directory to another parent reads its counters, so none of its changes is
      lost.  He writes the epoch, so that no addition goes to where the directory was before.

Does not: decide who may; the limits are in fs/meta/quota.py.
"""

from collections.abc import Iterable

from ..kv.api import Transaction
from ..schema.proto import common_pb2 as pb
from . import records
from .context import OpContext, UsageFencedError
from .damage import count
from .lineage import Ancestor, begin_epoch
from .quota import require_room
from .usage_sum import NOTHING, ONE_DIRECTORY, ONE_EMPTY, Usage

Change = tuple[int, Usage]
"""(home, what is added there and above)."""


def usage_of(inode: pb.InodePb) -> Usage:
    """Return what an inode itself counts for at its home."""
    if inode.type == pb.DIRECTORY:
        return ONE_DIRECTORY
    part = inode.file
    byte_count = max(part.length, part.charged_length)
    return Usage(byte_count, 1, 0) if byte_count else ONE_EMPTY


async def load_usage(tr: Transaction, directory_id: int, *, snapshot: bool = False) -> Usage:
    """Return the counters of a directory; raises FsError(METADATA_DAMAGED)."""
    keys = [
        records.usage_key(directory_id, records.KIND_BYTES),
        records.usage_key(directory_id, records.KIND_FILES),
        records.usage_key(directory_id, records.KIND_DIRECTORIES),
    ]
    return Usage(*map(count, keys, await tr.get_many(keys, snapshot=snapshot)))


def clear_usage(tr: Transaction, directory_id: int) -> None:
    """Forget everything about the usage of a directory that is deleted."""
    for kind in (records.KIND_BYTES, records.KIND_FILES, records.KIND_DIRECTORIES):
        tr.clear(records.usage_key(directory_id, kind))
    for kind in (records.KIND_BYTES, records.KIND_INODES):
        tr.clear(records.quota_near_key(directory_id, kind))
    tr.clear(records.quota_key(directory_id))
    tr.clear(records.usage_fence_key(directory_id))


async def _one(
    tr: Transaction, ctx: OpContext, home_id: int, usage: Usage
) -> list[tuple[Ancestor, Usage]]:
    if usage == NOTHING or not home_id:
        return []
    return [(ancestor, usage) for ancestor in await ctx.lineages.above(tr, home_id)]


async def _sum(
    tr: Transaction, ctx: OpContext, changes: Iterable[Change]
) -> list[tuple[Ancestor, Usage]]:
    totals: dict[int, tuple[Ancestor, Usage]] = {}
    for home_id, usage in changes:
        if usage == NOTHING or not home_id:
            continue
        for ancestor in await ctx.lineages.above(tr, home_id):
            before = totals.get(ancestor.directory_id)
            total = usage if before is None else before[1] + usage
            totals[ancestor.directory_id] = ancestor, total
    return list(totals.values())


def _require_no_fence(ctx: OpContext, totals: Iterable[tuple[Ancestor, Usage]]) -> None:
    for ancestor, _ in totals:
        if ancestor.fence is None:
            continue
        # Work that the service does by itself has no request and waits for nobody.
        if ctx.caller.request_id and ancestor.fence.binds(ctx.caller.request_id, ctx.now_ns):
            raise UsageFencedError(ancestor.directory_id)


async def charge(
    tr: Transaction, ctx: OpContext, *changes: Change, is_limited: bool = True
) -> None:
    """Count changes; what cancels out at a directory touches nothing there.

    Args:
        tr: the transaction that makes the changes.
        ctx: whose request it is: a fence of its own does not stop it.
        changes: all changes of this transaction, so that limits judge their sum.
        is_limited: False for what must not fail: removals, and what the service does by itself.

    Raises:
        FsError: QUOTA_EXCEEDED; nothing has been written then.
        UsageFencedError: a directory above is about to be moved.
    """
    if not changes:
        return
    if len(changes) == 1:
        totals = await _one(tr, ctx, *changes[0])
    else:
        totals = await _sum(tr, ctx, changes)
    _require_no_fence(ctx, totals)
    if is_limited:
        await require_room(tr, totals)
    add = tr.atomic_add
    for ancestor, total in totals:
        if total.file_count:
            add(ancestor.files_key, total.file_count)
        if total.byte_count:
            add(ancestor.bytes_key, total.byte_count)
        if total.directory_count:
            add(ancestor.directories_key, total.directory_count)


async def recharge(tr: Transaction, ctx: OpContext, inode: pb.InodePb, before: Usage) -> None:
    """Count that an inode, which counted for `before`, has changed; raises as `charge`."""
    change = usage_of(inode) - before
    if change != NOTHING and inode.home_inode_id:
        await charge(tr, ctx, (inode.home_inode_id, change))


async def whole_tree(tr: Transaction, ctx: OpContext, directory_id: int) -> Usage:
    """Return what a directory with all below it counts for at its parent; the caller moves it.

    Begins a new epoch.
    """
    total = ONE_DIRECTORY + await load_usage(tr, directory_id)
    begin_epoch(tr, ctx.caller.request_id, ctx.now_ns)
    tr.clear(records.usage_fence_key(directory_id))
    return total
