"""The chunk size of new files in a directory, as programs see and set it:
the extended attribute `ember.chunk_size`.

Large chunks suit what is written once from end to end, such as checkpoints: an update costs each
replica nearly the same whatever its size.  Meta decides who may (the owner) and which sizes there
are.  Files and directories that exist keep theirs.

Does not: stripes, chain tables; `ember admin file layout` does.
"""

from emberfs.protocol import CHUNK_SIZE_ATTRIBUTE

from ...schema import services
from ...schema.ids import InodeId
from ...schema.proto import common_pb2, meta_pb2
from ...schema.status import FsError, Status
from .core import VfsCore
from .ports import Caller

NAME = CHUNK_SIZE_ATTRIBUTE.encode()
_DIGITS_MAX = 12


async def get_chunk_size(core: VfsCore, inode_id: InodeId, caller: Caller) -> bytes:
    """Return it; raises FsError(NO_ATTRIBUTE) for what is no directory."""
    return b"%d" % (await _layout(core, inode_id, caller)).chunk_size_bytes


async def set_chunk_size(core: VfsCore, inode_id: InodeId, value: bytes, caller: Caller) -> None:
    """Set it.

    Raises:
        FsError: INVALID_ARGUMENT for what is no number or no size that chunks have;
            NOT_PERMITTED; NO_ATTRIBUTE as above.
    """
    if not value.isdigit() or len(value) > _DIGITS_MAX:
        raise FsError(Status.INVALID_ARGUMENT, f"chunk size {value[:20]!r}: not a number of bytes")
    layout = await _layout(core, inode_id, caller)
    layout.chunk_size_bytes = int(value)
    request = meta_pb2.SetAttrReq(caller=caller.to_pb(), inode_id=inode_id, default_layout=layout)
    await core.call(services.META_SET_ATTR, request)


async def _layout(core: VfsCore, inode_id: InodeId, caller: Caller) -> common_pb2.LayoutPb:
    """Return what new files in a directory get, as meta has it now."""
    request = meta_pb2.GetAttrReq(caller=caller.to_pb(), inode_id=inode_id)
    inode = (await core.call(services.META_GET_ATTR, request)).inode
    if not inode.directory.default_layout.chunk_size_bytes:
        raise FsError(Status.NO_ATTRIBUTE, f"inode {inode_id}: no directory with a layout")
    return inode.directory.default_layout
