"""The directory `3fs-virt` in the root of a mount: what programs written for 3FS expect there;
off unless `client.hf3fs_tree` says so.

    3fs-virt            mode 0555
    3fs-virt/rm-rf      mode 0777; a link made here removes what it names, a name moved here is
                        removed (`hf3fs_removal`)
    3fs-virt/iovs       mode 0777; a link made here, of mode 0400, registers the memory that it
                        leads to (`hf3fs_segments`)

Invariants:
    - Its inodes exist in this mount alone: none of their ids reaches a service.
    - Nothing ever stays in `rm-rf`, and a link in `iovs` is there for its user alone; an inode id
      is that of one link for ever.
    - It is found by its name and not listed in the root, so that whoever walks the mount,
      to copy or to remove it, does not come upon it. An entry of that name that the root
      really has is hidden behind it.

Not here: requests of the kernel, which the frontends translate (`holds` and
`is_top` say which are meant).
"""

import itertools
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from ...schema.ids import ROOT_INODE_ID, VIRTUAL_INODE_ID_MIN, InodeId
from ...schema.inode import DirectoryPart, Inode, InodeType
from ...schema.status import FsError, Status
from .asked_names import Place
from .hf3fs_removal import TREE_NAME, Removal
from .hf3fs_segments import Segments
from .ports import Caller

_TOP_ID: Final = VIRTUAL_INODE_ID_MIN
_REMOVAL_ID: Final = InodeId(_TOP_ID + 1)
_SEGMENTS_ID: Final = InodeId(_TOP_ID + 2)
_LINK_ID_MIN: Final = _TOP_ID + 0x1000


@dataclass(frozen=True, slots=True)
class TreeEntry:
    """An entry of one of its directories."""

    name: bytes
    inode: Inode


class Hf3fsTree:
    """Of one mount; see module head."""

    def __init__(self, removal: Removal, segments: Segments, time_ns: int) -> None:
        """Show all as made at `time_ns`."""
        self.removal = removal
        self.segments = segments
        self._time_ns = time_ns
        self._link_ids = itertools.count(_LINK_ID_MIN)
        self._entries = {
            (ROOT_INODE_ID, TREE_NAME): self._directory(_TOP_ID, ROOT_INODE_ID, TREE_NAME, 0o555),
            (_TOP_ID, b"iovs"): self._directory(_SEGMENTS_ID, _TOP_ID, b"iovs", 0o777),
            (_TOP_ID, b"rm-rf"): self._directory(_REMOVAL_ID, _TOP_ID, b"rm-rf", 0o777),
        }
        self._directories = MappingProxyType({one.inode_id: one for one in self._entries.values()})

    @staticmethod
    def holds(inode_id: int) -> bool:
        """Return whether an inode is one of the tree."""
        return inode_id >= VIRTUAL_INODE_ID_MIN

    @staticmethod
    def is_top(parent: int, name: bytes) -> bool:
        """Return whether a name leads to the tree."""
        return parent == ROOT_INODE_ID and name == TREE_NAME

    def lookup(self, parent: InodeId, name: bytes, caller: Caller) -> Inode:
        """Return what a name in one of the directories, or that of the tree, leads to;
        raises FsError(NOT_FOUND).
        """
        if parent == _SEGMENTS_ID:
            return self._registered(name, caller.uid)
        found = self._entries.get((parent, name))
        if found is None:
            raise FsError(Status.NOT_FOUND, f"{name!r} in {parent:#x}")
        return found

    def getattr(self, inode_id: InodeId, caller: Caller) -> Inode:
        """Return attributes; raises FsError(STALE): of a link that is gone, or another user's."""
        found = self._directories.get(inode_id)
        if found is not None:
            return found
        name = self.segments.name_of(inode_id, caller.uid)
        if name is None:
            raise FsError(Status.STALE, f"inode {inode_id:#x} of {TREE_NAME.decode()}")
        return self._registered(name, caller.uid)

    def entries(self, inode_id: InodeId, caller: Caller) -> list[TreeEntry]:
        """Return the entries of a directory, with `.` and `..`; raises FsError(STALE)."""
        directory = self._directories.get(inode_id)
        if directory is None or directory.directory is None:
            raise FsError(Status.STALE, f"inode {inode_id:#x} of {TREE_NAME.decode()}")
        above = self._directories.get(directory.directory.parent_inode_id, directory)
        dots = [TreeEntry(b".", directory), TreeEntry(b"..", above)]
        if inode_id == _SEGMENTS_ID:
            names = self.segments.names(caller.uid)
            return dots + [TreeEntry(name, self._registered(name, caller.uid)) for name in names]
        named = [
            TreeEntry(name, one) for (at, name), one in self._entries.items() if at == inode_id
        ]
        return dots + named

    async def symlink(
        self, parent: InodeId, name: bytes, target: bytes, caller: Caller, thread_id: int
    ) -> Inode:
        """Make a link: in `rm-rf`, remove its target, so that it is not there any more;
        in `iovs`, register it.

        Raises:
            FsError: NOT_PERMITTED: nothing is made there; and as
                `Removal.remove_path` and `Segments.register`.
        """
        if parent == _SEGMENTS_ID:
            inode_id = InodeId(next(self._link_ids))
            await self.segments.register(inode_id, name, target, caller.uid, thread_id)
            return self._registered(name, caller.uid)
        self._require_removal(parent, name)
        await self.removal.remove_path(target, caller, thread_id)
        return self._link(InodeId(next(self._link_ids)), target, caller.uid)

    async def rename(self, old: Place, new: Place, caller: Caller, *, exchange: bool) -> None:
        """Remove what is moved into `rm-rf`.

        Raises:
            FsError: NOT_PERMITTED: it is moved elsewhere in the tree, or out of it; and
                as `Removal.remove_moved`.
        """
        self._require_removal(*new)
        if exchange or self.holds(old[0]) or self.is_top(*old):
            raise FsError(Status.NOT_PERMITTED, f"{old[1]!r} stays where it is")
        await self.removal.remove_moved(old, new, caller)

    def unlink(self, parent: InodeId, name: bytes, caller: Caller) -> None:
        """Remove a link from `iovs`: end its registration;
        raises FsError: NOT_FOUND, NOT_PERMITTED elsewhere.
        """
        if parent != _SEGMENTS_ID:
            raise FsError(Status.NOT_PERMITTED, f"{name!r} stays where it is")
        self.segments.drop(name, caller.uid)

    def _require_removal(self, parent: InodeId, name: bytes) -> None:
        if parent != _REMOVAL_ID:
            raise FsError(Status.NOT_PERMITTED, f"{name!r}: names are made in rm-rf and iovs only")

    # -- inodes -----------------------------------------------------------------------------------

    def _directory(self, inode_id: InodeId, parent: InodeId, name: bytes, mode: int) -> Inode:
        part = DirectoryPart(parent, name)
        return self._inode(inode_id, InodeType.DIRECTORY, mode, 0, directory=part)

    def _registered(self, name: bytes, uid: int) -> Inode:
        """Return the link of a segment; raises FsError(NOT_FOUND)."""
        segment = self.segments.find(name, uid)
        return self._link(segment.inode_id, segment.target, uid)

    def _link(self, inode_id: InodeId, target: bytes, uid: int) -> Inode:
        return self._inode(inode_id, InodeType.SYMLINK, 0o400, uid, target=target)

    def _inode(
        self,
        inode_id: InodeId,
        type_: InodeType,
        mode: int,
        uid: int,
        *,
        directory: DirectoryPart | None = None,
        target: bytes = b"",
    ) -> Inode:
        return Inode(
            inode_id=inode_id,
            type=type_,
            mode=mode,
            uid=uid,
            gid=0,
            nlink=1 if directory is None else 2,
            atime_ns=self._time_ns,
            mtime_ns=self._time_ns,
            ctime_ns=self._time_ns,
            btime_ns=self._time_ns,
            directory=directory,
            symlink_target=target,
            is_bare=True,
        )
