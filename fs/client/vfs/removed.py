"""Directories that were removed elsewhere: what meta says of them,
and of those that have their names by now.

Asked for only where something has failed.
"""

from ...schema import services
from ...schema.ids import ROOT_INODE_ID, VIRTUAL_INODE_ID_MIN, InodeId
from ...schema.proto import common_pb2, meta_pb2
from ...schema.status import FsError, Status
from .core import VfsCore
from .ports import Caller

_GONE = (Status.NOT_FOUND, Status.STALE)


class Removed:
    """Of one mount."""

    def __init__(self, core: VfsCore) -> None:
        self._core = core

    async def is_removed(self, inode_id: InodeId, caller: Caller) -> bool:
        """Return whether a directory was removed; raises FsError: that could not be learned."""
        if inode_id == ROOT_INODE_ID or inode_id >= VIRTUAL_INODE_ID_MIN:
            return False  # of those that only a mount has meta knows nothing
        inode = await self._find(inode_id, caller)
        return inode is None or not inode.nlink

    async def is_there_again(self, inode_id: InodeId, name: bytes, caller: Caller) -> bool:
        """Return whether the directory that has the place of a removed one by now has a name;
        raises FsError: that could not be learned.
        """
        removed = await self._find(inode_id, caller)
        if removed is None:
            return False
        place = removed.directory
        made = await self._look_up(place.parent_inode_id, place.name, caller)
        return made is not None and await self._look_up(made.inode_id, name, caller) is not None

    async def _find(self, inode_id: int, caller: Caller) -> common_pb2.InodePb | None:
        request = meta_pb2.GetAttrReq(caller=caller.to_pb(), inode_id=inode_id)
        try:
            return (await self._core.call(services.META_GET_ATTR, request)).inode
        except FsError as error:
            if error.status not in _GONE:
                raise
            return None

    async def _look_up(self, parent: int, name: bytes, caller: Caller) -> common_pb2.InodePb | None:
        request = meta_pb2.LookupReq(caller=caller.to_pb(), parent_inode_id=parent, name=name)
        try:
            return (await self._core.call(services.META_LOOKUP, request)).inode
        except FsError as error:
            if error.status not in _GONE:
                raise
            return None
