"""The transactions of garbage collection: emptying removed trees, deleting inodes, forgetting.

An inode goes before its chunks do.  Once it is deleted nobody can open the file.  The GC record,
which then carries the file part, leads to the chunks until they are gone.

A damaged record is left alone: everything is judged before anything of it is changed.

Hardly a range is cleared.  With one the embedded store forgets all rows that it remembers
(fs/kv/rocksdb_view.py), and those who work meanwhile read theirs anew.  What a range may hold is
read, and cleared row by row, as far as that is few: a user may have made any number of rows, and a
transaction that is too large would be so for ever.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from ...kv.api import Transaction
from ...schema.inode import is_bare
from ...schema.proto import common_pb2 as pb
from ...schema.proto.record_pb2 import DentryRecordPb, GcRecordPb
from ...schema.status import FsError, Status
from .. import inline, records
from ..context import OpContext
from ..damage import (
    count,
    damaged,
    dentry_record,
    gc_record,
    inode_record,
    is_spread,
    require_spread,
)
from ..dentries import clear_dentry
from ..inodes import LARGE_BYTES_MIN, complete, drop_link, held_by, is_large, load_complete
from ..read_ahead import directory_keys, object_keys
from ..usage import charge, clear_usage, load_usage
from ..usage_sum import ONE_DIRECTORY, Usage
from .lock import end_all_locks
from .remove_tree import detach_tree
from .unnamed import follow_record

PATIENCE_S_MAX: Final = 30.0
"""What is due waits no longer for users to be gone."""

DAMAGED_RETRY_S: Final = 60.0
"""A damaged record is looked at again after this long: it may have been repaired."""

SESSIONS_MAX: Final = 64
"""So many file sessions are read at once, to know of a run of inodes which are open;
where there are more each inode is looked at by itself.
"""

ROWS_MAX: Final = 16
"""So many rows of one object are cleared one by one."""


class Retired(NamedTuple):
    """What became of some GC records."""

    gone: list[tuple[bytes, GcRecordPb]]
    """Key and record of those whose chunks are to be removed next."""
    without_chunks: list[GcRecordPb]
    """Of inline files: nothing is left of them."""
    opened: list[bytes]
    """Keys of those that somebody has open."""
    damaged: list[tuple[bytes, FsError]]
    """Keys of others, and what is wrong with them."""


class Emptied(NamedTuple):
    """What became of a removed directory."""

    gone_count: int
    """Names and directories that went; 0: somebody else did the work,
    or nothing was left where it was looked.
    """
    after: bytes = b""
    """The last name that went, if more are behind it;
    empty: it is to be looked from the beginning, if at all.
    """


async def _clear_all(tr: Transaction, prefix: bytes) -> None:
    pairs = await tr.get_range(prefix, prefix + b"\xff", limit=ROWS_MAX + 1)
    if len(pairs) > ROWS_MAX:
        tr.clear_range(prefix, prefix + b"\xff")
        return
    for key, _ in pairs:
        tr.clear(key)


async def _delete_inode(tr: Transaction, inode: pb.InodePb) -> None:
    """Delete an inode, of which no file session is left."""
    inode_id = inode.inode_id
    await end_all_locks(tr, inode_id)
    tr.clear(records.inode_key(inode_id))
    if not is_bare(inode):
        await _clear_all(tr, records.xattr_prefix(inode_id))
    tr.atomic_add(records.INODE_COUNT_KEY, -1)
    if inode.type == pb.DIRECTORY:
        tr.clear(records.directory_times_key(inode_id))
        tr.clear(records.subdirectory_count_key(inode_id))
        clear_usage(tr, inode_id)
        if inode.directory.lock_client_id:
            tr.clear(records.directory_lock_key(inode.directory.lock_client_id, inode_id))
    elif inode.type == pb.FILE:
        tr.clear(records.truncation_key(inode_id))
        if inode.file.is_inline:
            inline.drop(tr, inode)


async def _open_in_run(tr: Transaction, run: Sequence[int]) -> set[int]:
    begin, end = records.file_session_prefix(run[0]), records.file_session_prefix(run[-1])
    pairs = await tr.get_range(begin, end + b"\xff", limit=SESSIONS_MAX, snapshot=True)
    if len(pairs) < SESSIONS_MAX:
        # Who opens or closes what lies between them is none of our business.
        for inode_id in run:
            prefix = records.file_session_prefix(inode_id)
            tr.add_read_conflict_range(prefix, prefix + b"\xff")
        return {records.file_session_inode(key) for key, _ in pairs}
    found = set()
    for inode_id in run:
        prefix = records.file_session_prefix(inode_id)
        if await tr.get_range(prefix, prefix + b"\xff", limit=1):
            found.add(inode_id)
    return found


async def open_among(tr: Transaction, inode_ids: Sequence[int]) -> Collection[int]:
    """Return inodes that somebody has open, all those of `inode_ids` among them;
    conflicts with whoever opens or closes one of these.
    """
    found: set[int] = set()
    for run in records.runs(inode_ids):
        found |= await _open_in_run(tr, run)
    return found


async def _removed_inode(tr: Transaction, gc_key: bytes, inode_id: int) -> pb.InodePb:
    """Return the inode of a GC record (of a directory: as stored);
    raises FsError(METADATA_DAMAGED).
    """
    stored = await tr.get(records.inode_key(inode_id))
    if stored is None:
        raise damaged(gc_key, f"inode {inode_id:#x} does not exist")
    inode = inode_record(inode_id, stored)
    if inode.nlink:
        raise damaged(gc_key, f"inode {inode_id:#x} has {inode.nlink} names")
    return inode


async def _retire_one(tr: Transaction, key: bytes, opened: Collection[int], found: Retired) -> None:
    value = await tr.get(key)
    if value is None:
        return
    record = gc_record(key, value)
    if record.HasField("file"):
        if not is_spread(record.file):
            raise damaged(key, "chunks of no size, or nowhere")
        found.gone.append((key, record))
        return
    inode = await _removed_inode(tr, key, record.inode_id)
    if record.type not in {inode.type, pb.TYPE_NONE}:  # of a file the chunks would stay
        raise damaged(key, f"inode {inode.inode_id:#x} is of type {inode.type}, not {record.type}")
    if record.inode_id in opened:
        found.opened.append(key)
        return
    if inode.type == pb.FILE:
        require_spread(inode)
    # Of bytes that are being moved there may be a chunk already.
    has_chunks = not inode.file.is_inline or inode.file.truncate_pending
    await _delete_inode(tr, inode)
    if inode.type != pb.FILE:
        tr.clear(key)
        return
    record.file.CopyFrom(inode.file)
    if not has_chunks:
        tr.clear(key)
        record.file.is_inline = True
        found.without_chunks.append(record)
        return
    tr.set(key, record.SerializeToString())
    found.gone.append((key, record))


async def retire(tr: Transaction, keys: Sequence[bytes]) -> Retired:
    """Delete the inodes of due GC records that nobody has open;
    others, and damaged ones, the caller makes due later.
    """
    found = Retired([], [], [], [])
    tr.mark_freeing()
    await tr.prefetch(keys)
    inode_ids = [records.gc_inode_id(key) for key in keys]
    await tr.prefetch(
        key_of(inode_id)
        for inode_id in inode_ids
        for key_of in (records.inode_key, records.file_locks_key)
    )
    opened = await open_among(tr, inode_ids)
    for key in keys:
        try:
            await _retire_one(tr, key, opened, found)
        except FsError as error:
            if error.status is not Status.METADATA_DAMAGED:
                raise
            found.damaged.append((key, error))
    return found


async def _move(tr: Transaction, key: bytes, turn: int) -> None:
    value = await tr.get(key)
    if value is not None:
        tr.clear(key)
        tr.set(records.gc_key(records.gc_prefix(key), turn, records.gc_inode_id(key)), value)


async def put_off(tr: Transaction, keys: Sequence[bytes], due_ns: int) -> None:
    """Have damaged records looked at again later, whatever they hold,
    so that they stand in nobody's way.
    """
    await tr.prefetch(keys)
    for key in keys:
        await _move(tr, key, records.gc_turn(due_ns, is_large=records.is_gc_large(key)))


async def postpone(tr: Transaction, keys: Sequence[bytes], due_ns: int) -> None:
    """Make GC records due at another time; damaged ones too.

    What has grown large since it was removed changes its lane.
    """
    await tr.prefetch(keys)
    for key in keys:
        inode_id, has_grown, inode = records.gc_inode_id(key), False, None
        if records.gc_prefix(key) == records.GC_FILE:
            stored = await tr.get(records.inode_key(inode_id))
            if stored is not None:  # else its chunks are being removed
                inode = inode_record(inode_id, stored)
                has_grown = is_large(held_by(inode))
        turn = records.gc_turn(due_ns, is_large=records.is_gc_large(key) or has_grown)
        await _move(tr, key, turn)
        if inode is not None:
            follow_record(tr, inode, records.gc_turn_of(key), turn)


async def pull_in(tr: Transaction, keys: Sequence[bytes], due_ns: int) -> None:
    """As `postpone`, of what would not be collected for long otherwise."""
    tr.mark_freeing()
    await postpone(tr, keys, due_ns)


async def forget(tr: Transaction, keys: Sequence[bytes]) -> None:
    """Drop records that have done their duty."""
    tr.mark_freeing()
    for key in keys:
        tr.clear(key)


def _child_keys(dentries: Iterable[DentryRecordPb]) -> Iterator[bytes]:
    """Yield what is read of each name that is taken out of a removed directory."""
    for dentry in dentries:
        yield from object_keys([dentry])
        if dentry.type == pb.DIRECTORY:
            yield records.usage_key(dentry.inode_id, records.KIND_BYTES)


async def _whole_tree(tr: Transaction, directory_id: int) -> Usage:
    """Return what a directory below a removed one counted for, if that is much and known."""
    try:
        key = records.usage_key(directory_id, records.KIND_BYTES)
        if count(key, await tr.get(key, snapshot=True)) < LARGE_BYTES_MIN:
            return ONE_DIRECTORY
        return ONE_DIRECTORY + await load_usage(tr, directory_id, snapshot=True)
    except FsError as error:
        if error.status is not Status.METADATA_DAMAGED:
            raise
        return ONE_DIRECTORY  # it goes all the same; `ember fsck` names what is damaged


async def _detach_child(
    tr: Transaction, ctx: OpContext, gc_key: bytes, name: bytes, record: DentryRecordPb
) -> None:
    directory_id = records.gc_inode_id(gc_key)
    clear_dentry(tr, directory_id, name)
    try:
        child = await load_complete(tr, record.inode_id)
    except FsError as error:
        if error.status is not Status.STALE:
            raise
        return  # the name leads to nothing
    if child.type == pb.DIRECTORY:
        place = child.directory.parent_inode_id, child.directory.name
        if place != (directory_id, name):
            key = records.inode_key(child.inode_id)
            raise damaged(key, f"is not {name!r} in the removed directory {directory_id:#x}")
        # It has waited for users together with the directory above it.  Not for longer than
        # anything waits: what was removed since by others comes in between.
        due_ns = max(records.gc_due_ns(gc_key), ctx.now_ns - int(PATIENCE_S_MAX * 1e9))
        tree = await _whole_tree(tr, child.inode_id)
        detach_tree(tr, ctx, child, tree, due_ns=min(due_ns, ctx.now_ns))
    else:
        changes = await drop_link(tr, ctx, child, directory_id, name)
        await charge(tr, ctx, *changes, is_limited=False)


async def empty_tree(
    tr: Transaction, ctx: OpContext, key: bytes, entry_count_max: int, after: bytes = b""
) -> Emptied:
    """Take some names out of a removed directory; delete it when none is left.

    Those behind `after` first, since none before it is expected to be left: a search from the
    beginning passes over all that were taken out.

    Raises:
        FsError: METADATA_DAMAGED; nothing is changed.
    """
    tr.mark_freeing()
    directory_id = records.gc_inode_id(key)
    wanted = (records.inode_key(directory_id), records.file_locks_key(directory_id))
    await tr.prefetch((key, *wanted, *directory_keys(directory_id)))
    value = await tr.get(key)
    if value is None:
        return Emptied(0)
    gc_record(key, value)  # judges it
    directory = await _removed_inode(tr, key, directory_id)
    begin, end = records.dentry_prefix(directory_id), records.dentry_end(directory_id)
    place = records.dentry_key(directory_id, after) + b"\x00" if after else begin
    # Not cut by the limit, this read also conflicts with names being added.
    pairs = await tr.get_range(place, end, limit=entry_count_max + 1)
    children = [
        (records.dentry_name(key), dentry_record(key, value))
        for key, value in pairs[:entry_count_max]
    ]
    await tr.prefetch(_child_keys(record for _, record in children))
    for name, record in children:
        await _detach_child(tr, ctx, key, name, record)
    if len(pairs) > entry_count_max:
        return Emptied(entry_count_max, children[-1][0])
    if after and await tr.get_range(begin, place, limit=1):
        return Emptied(len(pairs))
    # A removed tree does not wait for those who opened a directory with a session.
    await _clear_all(tr, records.file_session_prefix(directory_id))
    await _delete_inode(tr, await complete(tr, directory))
    tr.clear(key)
    return Emptied(len(pairs) + 1)
