"""Changes of names in directories that a request gives by path:
whoever knows only paths needs no call before.

The path is walked in the transaction of the change, as by ResolvePath: by snapshot
reads.  The operation then loads the directory itself, with a conflict, so a change
never happens in one that is gone.

Invariant: a request whose effect is there is answered by it, wherever its path leads by then.  That
may be a repeat, or the same try run again after a commit of unknown outcome.
"""

from typing import Any, Final

from google.protobuf.message import Message

from ..kv.api import Transaction
from ..schema.ids import ROOT_INODE_ID
from ..schema.proto import meta_pb2 as meta
from ..schema.status import FsError, Status
from .context import OpContext
from .dentries import told
from .idempotency import is_remembered
from .inodes import load_inode
from .resolve import walk

_ONE: Final = (("directory", "parent_inode_id"),)
_FIELDS: Final[dict[type[Message], tuple[tuple[str, str], ...]]] = {
    meta.CreateReq: _ONE,
    meta.MkdirReq: _ONE,
    meta.SymlinkReq: _ONE,
    meta.LinkReq: _ONE,
    meta.UnlinkReq: _ONE,
    meta.RmdirReq: _ONE,
    meta.RenameReq: (
        ("old_directory", "old_parent_inode_id"),
        ("new_directory", "new_parent_inode_id"),
    ),
}
"""Of each request: where it has a path, and where the inode id belongs that is found."""


def names_path(request: Any) -> bool:
    """Return whether a request gives a directory by path."""
    kind = type(request)
    if kind not in _FIELDS:
        return False
    if kind is meta.RenameReq:
        return bool(request.old_directory or request.new_directory)
    return bool(request.directory)


async def find_directories(tr: Transaction, ctx: OpContext, request: Message) -> None:
    """Put the directories that a request gives by path into it, by inode id.

    To be called where `names_path`.  Of what is done already nothing is looked for: it is answered
    with its first outcome, which takes no directory.

    Raises:
        FsError: NOT_FOUND, NOT_DIRECTORY, ACCESS_DENIED, TOO_MANY_SYMLINKS, NAME_TOO_LONG.
    """
    fields = [pair for pair in _FIELDS[type(request)] if getattr(request, pair[0])]
    # An earlier run of the same try has left inode ids here; it may have
    # committed without anybody knowing.
    is_again = ctx.caller.is_repeat or any(getattr(request, id_field) for _, id_field in fields)
    if is_again and await is_remembered(tr, ctx.caller):
        return
    found: dict[bytes, int] = {}
    for path_field, id_field in fields:
        path: bytes = getattr(request, path_field)
        if path not in found:
            found[path] = await _find(tr, ctx, path)
        setattr(request, id_field, found[path])


async def _find(tr: Transaction, ctx: OpContext, path: bytes) -> int:
    root = await load_inode(tr, ROOT_INODE_ID, snapshot=True)
    here, missing = await walk(tr, ctx, root, path)
    if missing:
        raise FsError(Status.NOT_FOUND, told(missing[0], here.inode_id))
    return here.inode_id
