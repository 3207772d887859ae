"""The directory `3fs-virt` in the root of a mount: what programs written for 3FS expect there; off unless `client.hf3fs_tree` says so.

    3fs-virt            mode 0555
    3fs-virt/rm-rf      mode 0777; a link made here removes what it names, a name moved here is removed (`hf3fs_removal`)

Invariants:
    - Its inodes exist in this mount alone: none of their ids reaches a service.
    - Nothing ever stays in `rm-rf`; and an inode id, but for those of the two directories, is shown once.
    - It is found by its name and not listed in the root, so that whoever walks the mount, to copy or to remove it, does not come upon it.
      An entry of that name that the root really has is hidden behind it.

Not here: `iovs`, the registration of memory and rings (`specs/decisions/0185-tree-of-3fs.md`); requests of the kernel, which the frontends
translate (`holds` and `is_top` say which are meant).
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
from .ports import Caller

_TOP_ID: Final = VIRTUAL_INODE_ID_MIN
_REMOVAL_ID: Final = InodeId(_TOP_ID + 1)
_LINK_ID_MIN: Final = _TOP_ID + 0x1000


@dataclass(frozen=True, slots=True)
class TreeEntry:
    """An entry of one of its directories."""

    name: bytes
    inode: Inode


def _directory(inode_id: InodeId, parent: InodeId, name: bytes, mode: int, time_ns: int) -> Inode:
    return Inode(
        inode_id=inode_id,
        type=InodeType.DIRECTORY,
        mode=mode,
        uid=0,
        gid=0,
        nlink=2,
        atime_ns=time_ns,
        mtime_ns=time_ns,
        ctime_ns=time_ns,
        btime_ns=time_ns,
        directory=DirectoryPart(parent, name),
        is_bare=True,
    )


class Hf3fsTree:
    """Of one mount; see module head."""

    def __init__(self, removal: Removal, time_ns: int) -> None:
        """Show directories as made at `time_ns`."""
        self.removal = removal
        self._link_ids = itertools.count(_LINK_ID_MIN)
        top = _directory(_TOP_ID, ROOT_INODE_ID, TREE_NAME, 0o555, time_ns)
        removed = _directory(_REMOVAL_ID, _TOP_ID, b"rm-rf", 0o777, time_ns)
        self._directories = MappingProxyType({_TOP_ID: top, _REMOVAL_ID: removed})
        self._entries = {(ROOT_INODE_ID, TREE_NAME): top, (_TOP_ID, b"rm-rf"): removed}

    @staticmethod
    def holds(inode_id: int) -> bool:
        """Return whether an inode is one of the tree."""
        return inode_id >= VIRTUAL_INODE_ID_MIN

    @staticmethod
    def is_top(parent: int, name: bytes) -> bool:
        """Return whether a name leads to the tree."""
        return parent == ROOT_INODE_ID and name == TREE_NAME

    def lookup(self, parent: InodeId, name: bytes) -> Inode:
        """Return what a name in one of the directories, or that of the tree, leads to; raises FsError(NOT_FOUND)."""
        found = self._entries.get((parent, name))
        if found is None:
            raise FsError(Status.NOT_FOUND, f"{name!r} in {parent:#x}")
        return found

    def getattr(self, inode_id: InodeId) -> Inode:
        """Return attributes; raises FsError(STALE): of a link that is gone, as all are."""
        found = self._directories.get(inode_id)
        if found is None:
            raise FsError(Status.STALE, f"inode {inode_id:#x} of {TREE_NAME.decode()}")
        return found

    def entries(self, inode_id: InodeId) -> list[TreeEntry]:
        """Return the entries of a directory, with `.` and `..`; raises FsError(STALE)."""
        directory = self.getattr(inode_id)
        assert directory.directory is not None
        above = self._directories.get(directory.directory.parent_inode_id, directory)
        named = [
            TreeEntry(name, one) for (at, name), one in self._entries.items() if at == inode_id
        ]
        return [TreeEntry(b".", directory), TreeEntry(b"..", above), *named]

    async def symlink(
        self, parent: InodeId, name: bytes, target: bytes, caller: Caller, thread_id: int
    ) -> Inode:
        """Make a link: in `rm-rf`, remove its target; return what the kernel is told of the link, which is not there any more.

        Raises:
            FsError: NOT_PERMITTED: nothing is made there; EXISTS; and as `Removal.remove_path`.
        """
        self._require_removal(parent, name)
        await self.removal.remove_path(target, caller, thread_id)
        now_ns = self.getattr(_REMOVAL_ID).mtime_ns
        return Inode(
            inode_id=InodeId(next(self._link_ids)),
            type=InodeType.SYMLINK,
            mode=0o400,
            uid=caller.uid,
            gid=caller.gid,
            nlink=1,
            atime_ns=now_ns,
            mtime_ns=now_ns,
            ctime_ns=now_ns,
            btime_ns=now_ns,
            symlink_target=target,
            is_bare=True,
        )

    async def rename(self, old: Place, new: Place, caller: Caller, *, exchange: bool) -> None:
        """Remove what is moved into `rm-rf`.

        Raises:
            FsError: NOT_PERMITTED: it is moved elsewhere in the tree, or out of it; and as `Removal.remove_name`.
        """
        self._require_removal(*new)
        if exchange or self.holds(old[0]) or self.is_top(*old):
            raise FsError(Status.NOT_PERMITTED, f"{old[1]!r} stays where it is")
        await self.removal.remove_moved(old, new, caller)

    def _require_removal(self, parent: InodeId, name: bytes) -> None:
        if parent != _REMOVAL_ID:
            raise FsError(Status.NOT_PERMITTED, f"{name!r}: names are made in rm-rf only")
