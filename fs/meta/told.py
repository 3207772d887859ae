"""What replies to changes of names tell of the directories: their attributes afterwards.

Kernels forget the attributes of a directory at every change that goes through them, and ask at the
next step of a path. What the reply brings along saves that call.

It is read anew for every reply, in the transaction of the change: also the reply to a repeat, which
is a remembered one, tells what is there now.  Snapshot reads: nobody conflicts because of them.
"""

from typing import Any, Final

from google.protobuf.message import Message

from ..kv.api import Transaction
from ..schema.proto import meta_pb2 as meta
from .context import OpContext
from .inodes import find_directory
from .name_leases import hide_old

_OF_ONE: Final[frozenset[type[Message]]] = frozenset(
    {
        meta.CreateReq,
        meta.MkdirReq,
        meta.SymlinkReq,
        meta.MknodReq,
        meta.LinkReq,
        meta.UnlinkReq,
        meta.RmdirReq,
        meta.RemoveTreeReq,
    }
)
_MAY_NAME_PATH: Final = frozenset(
    kind for kind in _OF_ONE if "directory" in kind.DESCRIPTOR.fields_by_name
)
_TOLD: Final = _OF_ONE | {meta.RenameReq}


def is_told(kind: type[Message]) -> bool:
    """Return whether the reply to a request of this type may tell of directories."""
    return kind in _TOLD


def _directory_ids(request: Any) -> tuple[int, ...]:
    """Return whose attributes the reply tells; who asks by path keeps no directories."""
    kind = type(request)
    if kind in _OF_ONE:
        by_path = kind in _MAY_NAME_PATH and request.directory
        return () if by_path else (request.parent_inode_id,)
    if kind is not meta.RenameReq or request.old_directory or request.new_directory:
        return ()
    old_id, new_id = request.old_parent_inode_id, request.new_parent_inode_id
    return (old_id,) if old_id == new_id else (old_id, new_id)


async def tell_directories(tr: Transaction, ctx: OpContext, request: Message, reply: Any) -> None:
    """Put into a reply the directories whose names the request changed, or found as they were."""
    for directory_id in _directory_ids(request):
        directory = await find_directory(tr, directory_id)
        if directory is not None:  # a repeat may come when the directory is gone
            hide_old(directory, ctx.now_ns)
            reply.directories.append(directory)
