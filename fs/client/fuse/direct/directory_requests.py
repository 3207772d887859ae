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
from .peeks import PEEK_ENTRY_COUNT, Peeks

_DIR_MODE = 0o040755
_DOTS = ((1, b"."), (2, b".."))


def _plain(found: DirectoryEntry) -> bytes:
    inode, cookie = found.inode, found.cookie + len(_DOTS)
    return records.dirent(inode.inode_id, cookie, found.name, inode.st_mode)


class DirectoryRequests(NameRequests):
    """See module head."""

    def __init__(self, vfs: Vfs, runtime: Runtime) -> None:
        super().__init__(vfs, runtime)
        self._directories = vfs.directories
        self._peeks = Peeks()

    def _opendir_now(self, request: Request) -> Reply:
        inode_id = InodeId(request.node_id)
        handle_id = self._directories.opendir(inode_id, self._caller(request))
        self._peeks.note_open(request.pid, inode_id, handle_id)
        return (p.OPEN_OUT.pack(handle_id, 0, 0),)

    def _releasedir_now(self, request: Request) -> Reply:
        handle_id, *_ = p.RELEASE_IN.unpack_from(request.body)
        self._directories.releasedir(handle_id)
        self._peeks.note_closed(handle_id)
        return NO_BYTES

    async def _readdir(self, request: Request) -> Reply:
        page, parts, size = await self._listed(request, records.dirent)
        # The kernel is given no attributes here, so there is nothing to note.
        for found in page:
            part = _plain(found)
            size -= len(part)
            if size < 0:
                break
            parts.append(part)
        return parts

    async def _readdirplus(self, request: Request) -> Reply:
        handle_id, start, *_ = p.READ_IN.unpack_from(request.body)
        is_peek = start == 0 and self._peeks.is_peek(handle_id)
        page, parts, size = await self._listed(request, records.dot_direntplus, is_peek=is_peek)
        self._peeks.note_read(handle_id, has_entries=bool(page))
        if not page:
            return parts
        names, parent = self._names, InodeId(request.node_id)
        # Nothing is waited for from here on.
        shown = self._directories.shown_by(handle_id)
        for found in page:
            name, inode, age_s = found.name, found.inode, self._directories.age_s(found)
            may_use = names.listed.may_use(parent, name, inode, shown.listed_s)
            part = self._replies.listed(inode, may_use=may_use, age_s=age_s) + _plain(found)
            size -= len(part)
            if size < 0:
                break
            parts.append(part)
            names.give_listed(parent, name, inode, age_s=age_s, shown=shown, may_use=may_use)
        return parts

    async def _listed(
        self,
        request: Request,
        dot: Callable[[int, int, bytes, int], bytes],
        *,
        is_peek: bool = False,
    ) -> tuple[list[DirectoryEntry], list[bytes], int]:
        """Return what may be shown next, what the reply begins with, and the room behind it.  Cookies 1 and 2 are "." and "..", the vfs's follow."""
        handle_id, start, size, *_ = p.READ_IN.unpack_from(request.body)
        parts: list[bytes] = []
        if start == 0:
            self._directories.rewind(handle_id)
        cookie = max(start - len(_DOTS), 0)
        # One page is enough for one reply: the kernel asks again until it gets nothing.
        count_max = PEEK_ENTRY_COUNT if is_peek else size // p.DIRENT.size + 1
        page = await self._directories.readdir(handle_id, cookie, count_max, is_short=is_peek)
        if start < len(_DOTS):
            inode_ids = await self._directories.parent_of(handle_id)
            parts = [
                dot(inode_ids[cookie - 1], cookie, name, _DIR_MODE)
                for cookie, name in _DOTS
                if cookie > start
            ]
            size -= sum(map(len, parts))
        return page, parts, size

    async def _fsyncdir(self, request: Request) -> Reply:
        await self._directories.fsyncdir(p.FSYNC_IN.unpack_from(request.body)[0])
        return NO_BYTES
