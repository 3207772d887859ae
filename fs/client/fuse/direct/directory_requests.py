"""Requests of the kernel about open directories; see `operations`."""

from collections.abc import Callable

from ....runtime.ports import Runtime
from ....schema.ids import InodeId
from ...vfs.directory import DirectoryEntry
from ...vfs.vfs import Vfs
from . import protocol as p
from . import records
from .device import Request
from .name_requests import NO_BYTES, NameRequests, Reply

_DIR_MODE = 0o040755
_DOTS = ((1, b"."), (2, b".."))


class DirectoryRequests(NameRequests):
    """See module head."""

    def __init__(self, vfs: Vfs, runtime: Runtime) -> None:
        super().__init__(vfs, runtime)
        self._directories = vfs.directories

    def _opendir_now(self, request: Request) -> Reply:
        inode_id = InodeId(request.node_id)
        handle_id = self._directories.opendir(inode_id, self._caller(request))
        return (p.OPEN_OUT.pack(handle_id, 0, 0),)

    def _releasedir_now(self, request: Request) -> Reply:
        self._directories.releasedir(p.RELEASE_IN.unpack_from(request.body)[0])
        return NO_BYTES

    async def _readdir(self, request: Request) -> Reply:
        def entry(found: DirectoryEntry) -> bytes:
            inode = found.inode
            cookie = found.cookie + len(_DOTS)
            return records.dirent(inode.inode_id, cookie, found.name, inode.st_mode)

        # The kernel is given no attributes here, so there is nothing to note.
        return await self._listing(request, records.dirent, entry, lambda _: None)

    async def _readdirplus(self, request: Request) -> Reply:
        names, directories, parent = self._names, self._directories, InodeId(request.node_id)
        handle_id, *_ = p.READ_IN.unpack_from(request.body)

        def entry(found: DirectoryEntry) -> bytes:
            inode = found.inode
            cookie = found.cookie + len(_DOTS)
            plain = records.dirent(inode.inode_id, cookie, found.name, inode.st_mode)
            listed_s = directories.shown_by(handle_id).listed_s
            may_use = names.listed.may_use(parent, found.name, inode, listed_s)
            age_s = directories.age_s(found)
            return self._replies.listed(inode, may_use=may_use, age_s=age_s) + plain

        def give(found: DirectoryEntry) -> None:
            age_s, shown = directories.age_s(found), directories.shown_by(handle_id)
            names.give_listed(parent, found.name, found.inode, age_s=age_s, shown=shown)

        return await self._listing(request, records.dot_direntplus, entry, give)

    async def _listing(
        self,
        request: Request,
        dot: Callable[[int, int, bytes, int], bytes],
        entry: Callable[[DirectoryEntry], bytes],
        note: Callable[[DirectoryEntry], None],
    ) -> Reply:
        """Return as many entries as fit; cookies 1 and 2 are "." and "..", the vfs's follow."""
        handle_id, start, size, *_ = p.READ_IN.unpack_from(request.body)
        parts: list[bytes] = []
        if start == 0:
            self._directories.rewind(handle_id)
        cookie = max(start - len(_DOTS), 0)
        # One page is enough for one reply: the kernel asks again until it gets nothing.
        page = await self._directories.readdir(handle_id, cookie, size // p.DIRENT.size + 1)
        if start < len(_DOTS):
            inode_ids = await self._directories.parent_of(handle_id)
            parts = [
                dot(inode_ids[cookie - 1], cookie, name, _DIR_MODE)
                for cookie, name in _DOTS
                if cookie > start
            ]
            size -= sum(map(len, parts))
        for found in page:
            part = entry(found)
            if len(part) > size:
                break
            size -= len(part)
            parts.append(part)
            note(found)
        return parts

    async def _fsyncdir(self, request: Request) -> Reply:
        await self._directories.fsyncdir(p.FSYNC_IN.unpack_from(request.body)[0])
        return NO_BYTES
