"""Removing, at once and with all below, what a program of 3FS names by a link or by a move
into `3fs-virt/rm-rf`.

What is removed is what the path means to the caller: where this mount stands in his view of the
machine.  Only names count that lead there themselves: a symbolic link on the way means to meta
another thing than to the kernel.

Who may remove what is for meta to say: by the rules of RemoveTree for a directory (it has to be the
caller's own), and of unlink for a file.  Nothing goes to the trash.

Failures leave everything as it was; where the outcome of the one change is not
known, it is what the status says.

Not here: what the links look like to the kernel (`hf3fs_tree`).
"""

from typing import Final, Protocol

import trio

from ...schema import services
from ...schema.ids import ROOT_INODE_ID, InodeId
from ...schema.inode import PATH_BYTES_MAX
from ...schema.proto import common_pb2, meta_pb2
from ...schema.status import FsError, Status
from .asked_names import Place
from .core import VfsCore
from .namespace import Namespace
from .ports import Caller

TREE_NAME: Final = b"3fs-virt"

FORGET_S_MAX: Final = 1.0
"""How long an answer waits for the kernel to forget the name:
whoever moves that directory meanwhile, and waits for the answer, makes it wait.
"""


class MountPlaces(Protocol):
    """Where the mount stands, and what the kernel knows of its names."""

    async def path_inside(self, path: bytes, thread_id: int) -> bytes:
        """Return where on the mount, from its root, an absolute path leads as a thread sees it,
        unless a link is on the way.

        Raises:
            FsError: INVALID_ARGUMENT: not on this mount, or the very place where it is mounted.
        """
        ...

    async def forget_name(self, parent: InodeId, name: bytes) -> None:
        """Have the kernel forget a name; waits for what it has under way in the directory."""
        ...


def names_of(path: bytes) -> list[bytes]:
    """Return the names of a path; raises FsError(INVALID_ARGUMENT,
    NAME_TOO_LONG) for one that may not be removed by.
    """
    if len(path) >= PATH_BYTES_MAX:
        raise FsError(Status.NAME_TOO_LONG, f"a path of {len(path)} bytes")
    names = [name for name in path.split(b"/") if name]
    if not path.startswith(b"/"):
        raise FsError(Status.INVALID_ARGUMENT, f"{path!r} is not absolute")
    if b"." in names or b".." in names:
        raise FsError(Status.INVALID_ARGUMENT, f"{path!r} has . or .. in it")
    return names


class Removal:
    """Of one mount; see module head."""

    def __init__(self, core: VfsCore, names: Namespace) -> None:
        self._core = core
        self._names = names
        self._places: MountPlaces | None = None

    def attach(self, places: MountPlaces) -> None:
        """Say where the mount stands; before, nothing is removed."""
        self._places = places

    async def remove_path(self, path: bytes, caller: Caller, thread_id: int) -> None:
        """Remove what an absolute path names to a thread.

        Raises:
            FsError: INVALID_ARGUMENT: relative, with `.` or `..`, not on this mount, its
                root, a symbolic link or behind one; NOT_PERMITTED: part of the tree
                itself; and what meta says.
        """
        places = self._places
        names_of(path)
        if places is None:
            raise FsError(Status.BUSY, "the mount is not ready")
        *above, name = names_of(await places.path_inside(path, thread_id)) or [b""]
        if not name:
            raise FsError(Status.INVALID_ARGUMENT, "the root is not removed")
        if (above or [name])[0] == TREE_NAME:
            raise FsError(Status.NOT_PERMITTED, f"{TREE_NAME.decode()} is not removed")
        parent = ROOT_INODE_ID
        for one in above:
            found = await self._look_up(parent, one, caller)
            parent = InodeId(found.inode_id)
        await self._remove((parent, name), caller)
        with trio.move_on_after(FORGET_S_MAX):
            await places.forget_name(parent, name)

    async def remove_moved(self, old: Place, new: Place, caller: Caller) -> None:
        """Remove what is moved from one name to another;
        the kernel is told to forget the new one once it has moved it.

        Raises:
            FsError: INVALID_ARGUMENT: a symbolic link; and what meta says.
        """
        await self._remove(old, caller)
        if self._places is not None:
            self._core.spawn(self._places.forget_name, *new)

    async def _look_up(self, parent: InodeId, name: bytes, caller: Caller) -> common_pb2.InodePb:
        """Return what a name leads to; not to be handed to the kernel.

        Raises FsError(INVALID_ARGUMENT) for a symbolic link.
        """
        request = meta_pb2.LookupReq(caller=caller.to_pb(), parent_inode_id=parent, name=name)
        found = (await self._core.call(services.META_LOOKUP, request)).inode
        if found.type == common_pb2.SYMLINK:
            raise FsError(Status.INVALID_ARGUMENT, f"{name!r} is a symbolic link")
        return found

    async def _remove(self, place: Place, caller: Caller) -> None:
        found = await self._look_up(*place, caller)
        if found.type == common_pb2.DIRECTORY:
            inode_id = InodeId(found.inode_id)
            await self._names.make(self._names.removing_tree(*place, inode_id, caller))
        else:
            await self._names.unlink(*place, caller)
