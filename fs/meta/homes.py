"""Homes: which of its names an inode counts at, while names come and go, within a transaction.

An inode that is no directory counts once, at its home: the parent of one of its names.  With one
name nothing else is kept.  From the second on every name but the home's has a LINK record, so when
the home's goes another is at hand.

Invariants:
    - An inode with n names has n - 1 LINK records, of all its names but one; that one's parent is
      `home_inode_id`.  With no name, it is 0 and there is no record.

Every function returns what changes at which directory, for `usage.charge`, and leaves
storing the inode to its caller.
"""

from ..kv.api import Transaction
from ..schema.proto import common_pb2 as pb
from . import records
from .damage import damaged
from .usage import Change, usage_of

Place = tuple[int, bytes]
"""(parent, name)."""


def add_name(tr: Transaction, inode: pb.InodePb, place: Place) -> None:
    """Note another name of an inode that has one."""
    tr.set(records.link_key(inode.inode_id, *place), b"")


def _change_home(inode: pb.InodePb, home_id: int) -> list[Change]:
    old_id, inode.home_inode_id = inode.home_inode_id, home_id
    if old_id == home_id:
        return []
    usage = usage_of(inode)
    return [(old_id, -usage), (home_id, usage)] if home_id else [(old_id, -usage)]


async def remove_name(tr: Transaction, inode: pb.InodePb, place: Place) -> list[Change]:
    """Note that a name goes; `nlink` still counts it.  Raises FsError(METADATA_DAMAGED)."""
    if inode.nlink == 1:
        return _change_home(inode, 0)
    key = records.link_key(inode.inode_id, *place)
    if await tr.get(key) is not None:
        tr.clear(key)
        return []
    prefix = records.link_prefix(inode.inode_id)
    pairs = await tr.get_range(prefix, prefix + b"\xff", limit=1)
    if not pairs:
        raise damaged(records.inode_key(inode.inode_id), f"{inode.nlink} names, and no LINK record")
    other_key = pairs[0][0]
    tr.clear(other_key)
    return _change_home(inode, records.link_place(other_key)[0])


async def move_name(tr: Transaction, inode: pb.InodePb, old: Place, new: Place) -> list[Change]:
    """Note that one of the names has become another one."""
    if inode.nlink > 1:
        key = records.link_key(inode.inode_id, *old)
        if await tr.get(key) is not None:
            tr.clear(key)
            add_name(tr, inode, new)
            return []
    return _change_home(inode, new[0])
