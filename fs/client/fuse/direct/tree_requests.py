"""Requests of the kernel about the directory `3fs-virt`,
where a mount offers it (`vfs.hf3fs_tree`); all others go the usual way.

The kernel is told to keep nothing of it: what a link shows depends on
who asks, and some do not stay.
"""

import errno
from collections.abc import Callable
from functools import partial
from types import MappingProxyType
from typing import Final

import msgspec

from ....rpc.api import UnderWay
from ....runtime.ports import Runtime
from ....schema.ids import ROOT_INODE_ID, InodeId
from ....schema.inode import Inode
from ....schema.status import FsError, Status
from ...vfs.hf3fs_tree import Hf3fsTree
from ...vfs.vfs import Vfs
from . import protocol as p
from . import records
from .device import Request
from .name_requests import NO_BYTES, Begin, Handler, OnReply, Quick, Reply, WantsErrno, names_in
from .operations import Operations
from .protocol import Opcode

_NAME_AT: Final = MappingProxyType[int, int](
    {
        Opcode.LOOKUP: 0,
        Opcode.MKDIR: p.MKDIR_IN.size,
        Opcode.MKNOD: p.MKNOD_IN.size,
        Opcode.CREATE: p.CREATE_IN.size,
        Opcode.SYMLINK: 0,
        Opcode.UNLINK: 0,
        Opcode.RMDIR: 0,
        Opcode.LINK: p.LINK_IN.size,
        Opcode.RENAME: p.RENAME_IN.size,
        Opcode.RENAME2: p.RENAME2_IN.size,
    }
)
"""Where the name in the directory that a request is about begins."""
_NODE_FIRST: Final = frozenset({Opcode.LINK, Opcode.RENAME, Opcode.RENAME2})
"""Requests about a second node."""
_MOVES: Final = frozenset({Opcode.RENAME, Opcode.RENAME2})
_OWN_ATTRIBUTES: Final = b"ember."
_RENAME_EXCHANGE: Final = 2


class TreeOperations(Operations):
    """The handlers of a mount that offers it; see module head."""

    def __init__(self, vfs: Vfs, runtime: Runtime, tree: Hf3fsTree) -> None:
        super().__init__(vfs, runtime)
        self._tree = tree
        kept_nowhere = msgspec.structs.replace(
            vfs.section, attr_timeout_s=0.0, dir_entry_timeout_s=0.0, entry_timeout_s=0.0
        )
        self._shown_once = records.Replies(kept_nowhere, vfs.reads)
        usual = self.handlers
        self._of_tree: dict[int, Callable[[Request], Reply]] = {
            Opcode.LOOKUP: self._lookup_there,
            Opcode.GETATTR: self._getattr_there,
            Opcode.STATX: self._statx_there,
            Opcode.READLINK: self._readlink_there,
            Opcode.UNLINK: self._unlink_there,
            Opcode.OPENDIR: lambda _: (p.OPEN_OUT.pack(0, 0, 0),),
            Opcode.READDIR: partial(self._listed_there, records.dirent),
            Opcode.READDIRPLUS: partial(self._listed_there, records.dot_direntplus),
            Opcode.RELEASEDIR: lambda _: NO_BYTES,
            Opcode.FSYNCDIR: lambda _: NO_BYTES,
            Opcode.ACCESS: lambda _: NO_BYTES,
            Opcode.LISTXATTR: self._listxattr_there,
            Opcode.IOCTL: self._ioctl_there,
        }
        self._of_tree_in_task: dict[int, Handler] = {
            Opcode.SYMLINK: self._symlink_there,
            Opcode.RENAME: self._rename_there,
            Opcode.RENAME2: self._rename_there,
            Opcode.GETXATTR: self._getxattr_there,
            Opcode.STATFS: lambda request: usual[Opcode.STATFS](_of_root(request)),
        }
        opcodes = usual.keys() | self._of_tree.keys()
        self.handlers = MappingProxyType(
            {opcode: partial(self._choose, usual.get(opcode)) for opcode in opcodes}
        )
        self.quick = MappingProxyType(
            {opcode: partial(self._now, quick) for opcode, quick in self.quick.items()}
        )
        self.begin = MappingProxyType(
            {opcode: partial(self._begun, begin) for opcode, begin in self.begin.items()}
        )

    def _is_there(self, request: Request) -> bool:
        """Return whether a request is about the tree."""
        node_id, opcode = request.node_id, request.opcode
        holds, is_top = self._tree.holds, self._tree.is_top
        if holds(node_id):
            return True
        start = _NAME_AT.get(opcode)
        if start is None:
            return False
        other_id = node_id
        if opcode in _NODE_FIRST:
            (other_id,) = p.LINK_IN.unpack_from(request.body)
            if holds(other_id):
                return True
        if ROOT_INODE_ID not in (node_id, other_id):
            return False
        name, *more = names_in(request.body, start, 2 if opcode in _MOVES else 1)
        return is_top(node_id, name) or bool(more and is_top(other_id, more[0]))

    def _now(self, quick: Quick, request: Request) -> Reply | None:
        return None if self._is_there(request) else quick(request)

    def _begun(self, begin: Begin, request: Request, on_end: OnReply) -> UnderWay | None:
        return None if self._is_there(request) else begin(request, on_end)

    async def _choose(self, usual: Handler | None, request: Request) -> Reply:
        if not self._is_there(request):
            assert usual is not None, "what has no handler is always answered at once"
            return await usual(request)
        answer = self._of_tree.get(request.opcode)
        if answer is not None:
            return answer(request)
        work = self._of_tree_in_task.get(request.opcode)
        if work is None:
            raise FsError(Status.NOT_PERMITTED, "of 3fs-virt")
        return await work(request)

    # -- requests about the tree -------------------------------------------------------------------

    def _lookup_there(self, request: Request) -> Reply:
        (name,) = names_in(request.body, 0, 1)
        inode = self._tree.lookup(InodeId(request.node_id), name, self._caller(request))
        return (self._shown_once.entry(inode),)

    def _found(self, request: Request) -> Inode:
        return self._tree.getattr(InodeId(request.node_id), self._caller(request))

    def _getattr_there(self, request: Request) -> Reply:
        return (self._shown_once.attr(self._found(request)),)

    def _statx_there(self, request: Request) -> Reply:
        return (self._shown_once.statx(self._found(request), 0.0),)

    def _readlink_there(self, request: Request) -> Reply:
        return (self._found(request).symlink_target,)

    def _unlink_there(self, request: Request) -> Reply:
        (name,) = names_in(request.body, 0, 1)
        self._tree.unlink(InodeId(request.node_id), name, self._caller(request))
        return NO_BYTES

    def _listed_there(
        self, shown: Callable[[int, int, bytes, int], bytes], request: Request
    ) -> Reply:
        _, start, size, *_ = p.READ_IN.unpack_from(request.body)
        parts = []
        entries = self._tree.entries(InodeId(request.node_id), self._caller(request))
        for cookie, found in enumerate(entries[start:], start + 1):
            part = shown(found.inode.inode_id, cookie, found.name, found.inode.st_mode)
            size -= len(part)
            if size < 0:
                break
            parts.append(part)
        return parts

    def _listxattr_there(self, request: Request) -> Reply:
        size, _ = p.GETXATTR_IN.unpack_from(request.body)
        return NO_BYTES if size else (p.GETXATTR_OUT.pack(0, 0),)

    def _ioctl_there(self, _: Request) -> Reply:
        raise WantsErrno(errno.ENOTTY)

    async def _getxattr_there(self, request: Request) -> Reply:
        (name,) = names_in(request.body, p.GETXATTR_IN.size, 1)
        if not name.startswith(_OWN_ATTRIBUTES):
            raise FsError(Status.NO_ATTRIBUTE, f"{name!r}")
        # What a mount tells of itself it tells at all its paths.
        return await self._getxattr(_of_root(request))

    async def _symlink_there(self, request: Request) -> Reply:
        name, target = names_in(request.body, 0, 2)
        parent, caller = InodeId(request.node_id), self._caller(request)
        made = await self._tree.symlink(parent, name, target, caller, request.pid)
        return (self._shown_once.entry(made),)

    async def _rename_there(self, request: Request) -> Reply:
        new_parent, flags = p.RENAME_IN.unpack_from(request.body)[0], 0
        if request.opcode == Opcode.RENAME2:
            new_parent, flags, _ = p.RENAME2_IN.unpack_from(request.body)
        old_name, new_name = names_in(request.body, _NAME_AT[request.opcode], 2)
        old, new = (InodeId(request.node_id), old_name), (InodeId(new_parent), new_name)
        is_exchange = bool(flags & _RENAME_EXCHANGE)
        await self._tree.rename(old, new, self._caller(request), exchange=is_exchange)
        return NO_BYTES


def _of_root(request: Request) -> Request:
    return request._replace(node_id=ROOT_INODE_ID)


def operations_of(vfs: Vfs, runtime: Runtime) -> Operations:
    """Return the handlers of one mount."""
    if vfs.tree is None:
        return Operations(vfs, runtime)
    return TreeOperations(vfs, runtime, vfs.tree)
