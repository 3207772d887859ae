"""Whether somebody may remove all that lies in a directory, as `rm -r` asks of each name in it.

A removed tree goes in one transaction, and nobody is asked any more when garbage collection
empties it.  So what others own would go with it, and what is immutable or append-only.

Invariants:
    - Root is stopped by these two flags alone.  What cannot be read keeps others from removing a
      tree, but not root, who has no other way to be rid of it.  What others change in the tree
      meanwhile makes nobody who is root try again.
    - At most DIRECTORIES_MAX directories and NAMES_MAX names are looked at, so that removing a
      tree takes the same time for any tree.  What lies behind them is not asked about.

Does not judge the name of the tree itself.
"""

from collections.abc import Callable
from functools import partial
from typing import Final, TypeVar

from ...kv.api import Transaction
from ...schema.proto import common_pb2 as pb
from ...schema.status import FsError, Status
from .. import permissions, records
from ..context import Caller
from ..damage import dentry_record, inode_record

T = TypeVar("T")

DIRECTORIES_MAX: Final = 256
NAMES_MAX: Final = 2048


async def require_tree_removable(tr: Transaction, caller: Caller, top: pb.InodePb) -> None:
    """Check that a caller may remove everything in a directory.

    The owner of a directory may empty it, whatever its mode bits say: he can change them.

    Raises:
        FsError: ACCESS_DENIED for names in a directory of somebody else; NOT_PERMITTED by a
            sticky directory, or an immutable or append-only object; METADATA_DAMAGED.
    """
    waiting, directory_count, left = [top], 0, NAMES_MAX
    while waiting and directory_count < DIRECTORIES_MAX and left:
        directory = waiting.pop()
        directory_count += 1
        found = await _names_in(tr, caller, directory.inode_id, left)
        left -= len(found)
        if not found:
            continue
        if not permissions.is_owner(caller, directory):
            permissions.require(caller, directory, permissions.WRITE | permissions.SEARCH)
        for child in await _inodes_of(tr, caller, found):
            _require_removable(caller, directory, child)
            if child.type == pb.DIRECTORY:
                waiting.append(child)


def _require_removable(caller: Caller, directory: pb.InodePb, child: pb.InodePb) -> None:
    try:
        permissions.require_removable(caller, directory, child)
    except FsError as error:
        where = f"{error.detail}, which lies in the tree"
        raise FsError(Status.NOT_PERMITTED, where) from error


async def _names_in(tr: Transaction, caller: Caller, directory_id: int, limit: int) -> list[int]:
    """Return the inodes that names in a directory lead to."""
    begin, end = records.dentry_prefix(directory_id), records.dentry_end(directory_id)
    pairs = await tr.get_range(begin, end, limit=limit, snapshot=caller.is_root)
    found = [_readable(caller, partial(dentry_record, key, value)) for key, value in pairs]
    return [dentry.inode_id for dentry in found if dentry is not None]


async def _inodes_of(tr: Transaction, caller: Caller, inode_ids: list[int]) -> list[pb.InodePb]:
    keys = [records.inode_key(inode_id) for inode_id in inode_ids]
    values = await tr.get_many(keys, snapshot=caller.is_root)
    found = [
        _readable(caller, partial(inode_record, inode_id, value))
        for inode_id, value in zip(inode_ids, values, strict=True)
        if value is not None
    ]
    return [inode for inode in found if inode is not None]


def _readable(caller: Caller, read: Callable[[], T]) -> T | None:
    """Return what a record says; None: it is damaged, and the caller is root."""
    try:
        return read()
    except FsError:
        if not caller.is_root:
            raise
        return None
