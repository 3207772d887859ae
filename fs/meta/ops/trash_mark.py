"""Marks of names in the trash: what says where a name came from and until when it is kept.

The mark is part of the dentry: so it goes with the name, however that goes, and no other operation
has to know of the trash.  Beside it stands a key in order of time (TRSH); one whose dentry is gone
or has another mark means nothing.

What is moved to the trash by rename(2) is marked, too; what is made there is not, and
stays until somebody removes it.
"""

from ...kv.api import Transaction
from ...schema.ids import TRASH_ROOT_INODE_ID
from ...schema.proto import common_pb2 as pb
from ...schema.proto.record_pb2 import DentryRecordPb
from ...schema.status import FsError, Status
from ..context import OpContext
from .get_real_path import path_of


def is_users_trash(directory: pb.InodePb) -> bool:
    """Return whether a directory is where a user's trash lies."""
    return directory.directory.parent_inode_id == TRASH_ROOT_INODE_ID


async def _path(tr: Transaction, parent_id: int, name: bytes) -> bytes:
    try:
        return (await path_of(tr, parent_id)).rstrip(b"/") + b"/" + name
    except FsError as error:
        if error.status is not Status.NAME_TOO_LONG:
            raise
        return b""


async def new_mark(
    tr: Transaction, ctx: OpContext, parent_id: int, name: bytes, expiry_s: float = 0.0
) -> pb.TrashMarkPb:
    """Return a mark for what has this name; `expiry_s` 0: as configured.

    Raises what `path_of` raises.
    """
    return pb.TrashMarkPb(
        removed_ns=ctx.now_ns,
        due_ns=ctx.now_ns + int((expiry_s or ctx.config.trash_expiry_s) * 1e9),
        parent_inode_id=parent_id,
        name=name,
        path=await _path(tr, parent_id, name),
        uid=ctx.caller.uid,
    )


async def mark_after_rename(  # noqa: PLR0917 - what, from where, to where
    tr: Transaction,
    ctx: OpContext,
    dentry: DentryRecordPb,
    parent_id: int,
    name: bytes,
    goal: pb.InodePb,
) -> pb.TrashMarkPb | None:
    """Return what a name that is renamed into the directory `goal` is marked with,
    if that is in the trash.
    """
    if not is_users_trash(goal):
        return None
    if dentry.HasField("trash"):
        return dentry.trash
    return await new_mark(tr, ctx, parent_id, name)
