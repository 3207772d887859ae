"""The pyfuse3 side of the directory `3fs-virt`, where a mount offers it (`vfs.hf3fs_tree`);
all else goes the usual way.

The kernel is told to keep nothing of it: what a link shows depends on
who asks, and some do not stay.
"""

from collections.abc import Sequence
from typing import Any, Final

import msgspec
import pyfuse3

from ...runtime.ports import Runtime
from ...schema.ids import ROOT_INODE_ID, VIRTUAL_INODE_ID_MIN, InodeId
from ...schema.inode import Inode
from ...schema.status import FsError, Status
from ..vfs.hf3fs_tree import Hf3fsTree
from ..vfs.ports import Caller
from ..vfs.vfs import Vfs
from .attributes import entry_attributes
from .operations import Operations, handler

_OWN_ATTRIBUTES: Final = b"ember."


class TreeOperations(Operations):
    """The operations of a mount that offers it; see module head."""

    def __init__(self, vfs: Vfs, runtime: Runtime, tree: Hf3fsTree) -> None:
        super().__init__(vfs, runtime)
        self._tree = tree
        self._opened: dict[int, tuple[InodeId, Caller]] = {}
        # Of its directories; those of others are small.
        self._handle_id_last = int(VIRTUAL_INODE_ID_MIN)
        self._kept_nowhere = msgspec.structs.replace(
            vfs.section, attr_timeout_s=0.0, dir_entry_timeout_s=0.0, entry_timeout_s=0.0
        )

    def _shown(self, inode: Inode) -> pyfuse3.EntryAttributes:
        return entry_attributes(inode, self._kept_nowhere)

    def _is_there(self, inode_id: int, name: bytes | None = None) -> bool:
        return self._tree.holds(inode_id) or (
            name is not None and self._tree.is_top(inode_id, name)
        )

    def _refuse(self, inode_id: int, name: bytes | None = None) -> None:
        if self._is_there(inode_id, name):
            raise FsError(Status.NOT_PERMITTED, "of 3fs-virt")

    @handler
    async def lookup(
        self, parent_inode: int, name: bytes, ctx: pyfuse3.RequestContext
    ) -> pyfuse3.EntryAttributes:
        """See pyfuse3."""
        if self._is_there(parent_inode, name):
            return self._shown(self._tree.lookup(InodeId(parent_inode), name, self._caller(ctx)))
        return await super().lookup(parent_inode, name, ctx)

    @handler
    async def getattr(self, inode: int, ctx: pyfuse3.RequestContext) -> pyfuse3.EntryAttributes:
        """See pyfuse3."""
        if self._is_there(inode):
            return self._shown(self._tree.getattr(InodeId(inode), self._caller(ctx)))
        return await super().getattr(inode, ctx)

    @handler
    async def setattr(self, inode: int, *rest: Any) -> pyfuse3.EntryAttributes:
        """See pyfuse3."""
        self._refuse(inode)
        return await super().setattr(inode, *rest)

    @handler
    async def readlink(self, inode: int, ctx: pyfuse3.RequestContext) -> bytes:
        """See pyfuse3."""
        if self._is_there(inode):
            return self._tree.getattr(InodeId(inode), self._caller(ctx)).symlink_target
        return await super().readlink(inode, ctx)

    @handler
    async def mknod(self, parent_inode: int, name: bytes, *rest: Any) -> pyfuse3.EntryAttributes:
        """See pyfuse3."""
        self._refuse(parent_inode, name)
        return await super().mknod(parent_inode, name, *rest)

    @handler
    async def mkdir(self, parent_inode: int, name: bytes, *rest: Any) -> pyfuse3.EntryAttributes:
        """See pyfuse3."""
        self._refuse(parent_inode, name)
        return await super().mkdir(parent_inode, name, *rest)

    @handler
    async def unlink(self, parent_inode: int, name: bytes, ctx: pyfuse3.RequestContext) -> None:
        """See pyfuse3."""
        if self._is_there(parent_inode, name):
            self._tree.unlink(InodeId(parent_inode), name, self._caller(ctx))
            return
        await super().unlink(parent_inode, name, ctx)

    @handler
    async def rmdir(self, parent_inode: int, name: bytes, ctx: pyfuse3.RequestContext) -> None:
        """See pyfuse3."""
        self._refuse(parent_inode, name)
        await super().rmdir(parent_inode, name, ctx)

    @handler
    async def symlink(
        self, parent_inode: int, name: bytes, target: bytes, ctx: pyfuse3.RequestContext
    ) -> pyfuse3.EntryAttributes:
        """See pyfuse3."""
        if not self._is_there(parent_inode, name):
            return await super().symlink(parent_inode, name, target, ctx)
        parent, caller = InodeId(parent_inode), self._caller(ctx)
        return self._shown(await self._tree.symlink(parent, name, target, caller, ctx.pid))

    @handler
    async def rename(  # noqa: PLR0917 - pyfuse3's signature
        self,
        parent_inode_old: int,
        name_old: bytes,
        parent_inode_new: int,
        name_new: bytes,
        flags: int,
        ctx: pyfuse3.RequestContext,
    ) -> None:
        """See pyfuse3."""
        old, new = (InodeId(parent_inode_old), name_old), (InodeId(parent_inode_new), name_new)
        if not (self._is_there(*old) or self._is_there(*new)):
            await super().rename(*old, *new, flags, ctx)
            return
        is_exchange = bool(flags & pyfuse3.RENAME_EXCHANGE)
        await self._tree.rename(old, new, self._caller(ctx), exchange=is_exchange)

    @handler
    async def link(
        self, inode: int, new_parent_inode: int, new_name: bytes, ctx: pyfuse3.RequestContext
    ) -> pyfuse3.EntryAttributes:
        """See pyfuse3."""
        self._refuse(inode)
        self._refuse(new_parent_inode, new_name)
        return await super().link(inode, new_parent_inode, new_name, ctx)

    @handler
    async def create(
        self, parent_inode: int, name: bytes, *rest: Any
    ) -> tuple[pyfuse3.FileInfo, pyfuse3.EntryAttributes]:
        """See pyfuse3."""
        self._refuse(parent_inode, name)
        return await super().create(parent_inode, name, *rest)

    @handler
    async def opendir(self, inode: int, ctx: pyfuse3.RequestContext) -> int:
        """See pyfuse3."""
        if not self._is_there(inode):
            return await super().opendir(inode, ctx)
        self._handle_id_last += 1
        self._opened[self._handle_id_last] = InodeId(inode), self._caller(ctx)
        return self._handle_id_last

    @handler
    async def readdir(self, fh: int, start_id: int, token: pyfuse3.ReaddirToken) -> None:
        """See pyfuse3."""
        opened = self._opened.get(fh)
        if opened is None:
            await super().readdir(fh, start_id, token)
            return
        entries = self._tree.entries(*opened)
        for cookie, found in enumerate(entries[start_id:], start_id + 1):
            if not pyfuse3.readdir_reply(token, found.name, self._shown(found.inode), cookie):
                return

    @handler
    async def releasedir(self, fh: int) -> None:
        """See pyfuse3."""
        if self._opened.pop(fh, None) is None:
            await super().releasedir(fh)

    @handler
    async def fsyncdir(self, fh: int, datasync: bool) -> None:
        """See pyfuse3."""
        if fh not in self._opened:
            await super().fsyncdir(fh, datasync)

    @handler
    async def setxattr(self, inode: int, *rest: Any) -> None:
        """See pyfuse3."""
        self._refuse(inode)
        await super().setxattr(inode, *rest)

    @handler
    async def getxattr(self, inode: int, name: bytes, ctx: pyfuse3.RequestContext) -> bytes:
        """See pyfuse3."""
        if not self._is_there(inode):
            return await super().getxattr(inode, name, ctx)
        if not name.startswith(_OWN_ATTRIBUTES):
            raise FsError(Status.NO_ATTRIBUTE, f"{name!r}")
        # What a mount tells of itself it tells at all its paths.
        return await super().getxattr(ROOT_INODE_ID, name, ctx)

    @handler
    async def listxattr(self, inode: int, ctx: pyfuse3.RequestContext) -> Sequence[bytes]:
        """See pyfuse3."""
        return () if self._is_there(inode) else await super().listxattr(inode, ctx)

    @handler
    async def removexattr(self, inode: int, *rest: Any) -> None:
        """See pyfuse3."""
        self._refuse(inode)
        await super().removexattr(inode, *rest)


def operations_of(vfs: Vfs, runtime: Runtime) -> Operations:
    """Return the operations of one mount."""
    if vfs.tree is None:
        return Operations(vfs, runtime)
    return TreeOperations(vfs, runtime, vfs.tree)
