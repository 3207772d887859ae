"""Requests of the kernel about open directories; see `operations`."""

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from ....rpc.api import UnderWay
from ....runtime.ports import Runtime
from ....schema.ids import InodeId
from ...vfs.access_times import with_reads
from ...vfs.directory import DirectoryEntry
from ...vfs.handles import TakesTaskError
from ...vfs.listed_file import ListedFile, ListedName
from ...vfs.listers import FIRST_COUNT, TRIED_COUNT, Shows
from ...vfs.vfs import Vfs
from . import protocol as p
from . import records
from .device import Request
from .name_requests import NO_BYTES, Handler, NameRequests, OnReply, Reply, told_by
from .peeks import PEEK_ENTRY_COUNT, Peeks
from .protocol import Opcode

_DIR_MODE = 0o040755
_DOTS = ((1, b"."), (2, b".."))


def _plain(found: DirectoryEntry) -> bytes:
    inode, cookie = found.inode, found.cookie + len(_DOTS)
    return records.dirent(inode.inode_id, cookie, found.name, inode.st_mode)


Dot = Callable[[int, int, bytes, int], bytes]


class _Asked(NamedTuple):
    handle_id: int
    start: int
    """The cookie of the kernel."""
    cookie: int
    size: int
    count_max: int
    is_short: bool
    """More is hardly going to be asked for, or in another way."""
    shows: Shows


def _begun_with(
    asked: _Asked, inode_ids: tuple[InodeId, InodeId] | None, dot: Dot
) -> tuple[list[bytes], int]:
    if inode_ids is None:
        return [], asked.size
    parts = [
        dot(inode_ids[cookie - 1], cookie, name, _DIR_MODE)
        for cookie, name in _DOTS
        if cookie > asked.start
    ]
    return parts, asked.size - sum(map(len, parts))


class DirectoryRequests(NameRequests):
    """See module head."""

    def __init__(self, vfs: Vfs, runtime: Runtime) -> None:
        super().__init__(vfs, runtime)
        self._directories = vfs.directories
        self._peeks = Peeks()
        self._listers = vfs.listers

    def _opendir_now(self, request: Request) -> Reply:
        inode_id = InodeId(request.node_id)
        flags, _ = p.OPEN_IN.unpack_from(request.body)
        handle_id = self._directories.opendir(inode_id, self._caller(request), flags)
        self._peeks.note_open(request.pid, inode_id, handle_id)
        return (p.OPEN_OUT.pack(handle_id, 0, 0),)

    def _releasedir_now(self, request: Request) -> Reply:
        handle_id, *_ = p.RELEASE_IN.unpack_from(request.body)
        self._directories.releasedir(handle_id)
        self._peeks.note_closed(handle_id)
        return NO_BYTES

    async def _readdir(self, request: Request) -> Reply:
        asked = self._asked(request)
        page = await self._directories.readdir(asked.handle_id, asked.cookie, asked.count_max)
        parts, size = await self._dots(asked, records.dirent)
        # The kernel is given no attributes here, so there is nothing to note.
        for found in page:
            part = _plain(found)
            size -= len(part)
            if size < 0:
                break
            parts.append(part)
        return parts

    def _readdirplus_now(self, request: Request) -> Reply | None:
        asked = self._asked(request)
        page = self._directories.readdir_now(
            asked.handle_id, asked.cookie, asked.count_max, is_bare=asked.shows is Shows.NAMES
        )
        dots = None if page is None else self._dots_now(asked, records.dot_direntplus)
        if page is None or dots is None:
            return None
        return self._listed(request, asked, page, *dots)

    def _begin_readdirplus(self, request: Request, on_end: OnReply) -> UnderWay | None:
        asked, directories = self._asked(request), self._directories

        def reply_of(page: list[DirectoryEntry] | None) -> Reply:
            dots = self._dots_now(asked, records.dot_direntplus)
            if page is None or dots is None:
                raise TakesTaskError
            return self._listed(request, asked, page, *dots)

        return directories.begin_readdir(
            asked.handle_id,
            asked.cookie,
            asked.count_max,
            told_by(on_end, reply_of),
            is_short=asked.is_short,
            is_bare=asked.shows is Shows.NAMES,
        )

    def again(self, opcode: int, waited_s: float) -> Handler | None:
        """See NameRequests.again."""
        if opcode == Opcode.READDIRPLUS:
            return partial(self._readdirplus, waited_s=waited_s)
        return super().again(opcode, waited_s)

    async def _readdirplus(self, request: Request, waited_s: float = 0.0) -> Reply:
        asked = self._asked(request)
        page = await self._directories.readdir(
            asked.handle_id,
            asked.cookie,
            asked.count_max,
            is_short=asked.is_short,
            is_bare=asked.shows is Shows.NAMES,
            waited_s=waited_s,
        )
        parts, size = await self._dots(asked, records.dot_direntplus)
        return self._listed(request, asked, page, parts, size)

    def _listed(
        self,
        request: Request,
        asked: _Asked,
        page: list[DirectoryEntry],
        parts: list[bytes],
        size: int,
    ) -> Reply:
        """Return the reply to READDIRPLUS that begins with `parts` and has room
        for `size` bytes more, and note what it shows.
        """
        self._peeks.note_read(asked.handle_id, has_entries=bool(page))
        if not page:
            return parts
        if asked.start == 0 and asked.shows is Shows.ATTRIBUTES and not asked.is_short:
            self._listers.note_begun(request.pid)
        parent, names, reads = InodeId(request.node_id), self._names, self._vfs.reads
        # Nothing is waited for from here on.
        shown, now_s = self._directories.shown_by(asked.handle_id), self._directories.now_s()
        give_file, file_entry = names.give_listed_file, records.direntplus_of_file
        bare_entry = records.dot_direntplus
        told_s, age_s, times, bare_count = math.nan, 0.0, None, 0
        tried_count = TRIED_COUNT if asked.shows is Shows.FIRST else 0
        for found in page:
            name, told = found.name, found.told
            if type(told) is ListedName or (bare_count < tried_count and type(told) is ListedFile):
                part = bare_entry(told.inode_id, found.cookie + len(_DOTS), name, told.st_mode)
                size -= len(part)
                if size < 0:
                    break
                bare_count += 1
                parts.append(part)
                continue
            if times is None or found.told_s != told_s:  # hardly ever but for the first
                told_s = found.told_s
                age_s = now_s - told_s
                times = self._replies.listed_times(age_s)
            cookie = found.cookie + len(_DOTS)
            size -= records.direntplus_bytes(name)
            if size < 0:
                break
            if type(told) is ListedFile:
                may_use = give_file((parent, name), told, shown, age_s=age_s, now_s=now_s)
                if reads.found:
                    told = with_reads(reads, told)
                parts.append(file_entry(told, cookie, name, times, may_use=may_use))
                continue
            inode = found.inode
            may_use = names.listed.may_use(parent, name, inode, shown.listed_s)
            names.give_listed(
                parent, name, inode, age_s=age_s, shown=shown, may_use=may_use, now_s=now_s
            )
            if reads.found:
                inode = with_reads(reads, inode)
            parts.append(records.direntplus(inode, cookie, name, times, may_use=may_use))
        if bare_count:
            self._listers.note_shown(request.pid, parent, bare_count, now_s)
        return parts

    def _asked(self, request: Request) -> _Asked:
        """Return what a request to read an open directory wants.

        Cookies 1 and 2 are "." and "..", the vfs's follow.
        """
        handle_id, start, size, *_ = p.READ_IN.unpack_from(request.body)
        if start == 0:
            self._directories.rewind(handle_id)
        # One page is enough for one reply: the kernel asks again until it gets nothing.
        is_plus = request.opcode == Opcode.READDIRPLUS
        entry_bytes_min = (p.DIRENTPLUS if is_plus else p.DIRENT).size + p.NAME_ALIGNMENT
        count_max, is_short, shows = size // entry_bytes_min + 1, False, Shows.ATTRIBUTES
        if is_plus and start == 0 and self._peeks.is_peek(handle_id):
            count_max, is_short = PEEK_ENTRY_COUNT, True
        elif is_plus:
            shows = self._listers.shows(request.pid, is_first=start == 0)
            # Of a directory without files a thread is not known behind its first reply either.
            if shows is Shows.FIRST and start == 0:
                count_max, is_short = min(count_max, FIRST_COUNT), True
        cookie = max(start - len(_DOTS), 0)
        return _Asked(handle_id, start, cookie, size, count_max, is_short, shows)

    async def _dots(self, asked: _Asked, dot: Dot) -> tuple[list[bytes], int]:
        """Return what a reply begins with, once a page is listed, and the room behind it."""
        is_wanted = asked.start < len(_DOTS)
        inode_ids = await self._directories.parent_of(asked.handle_id) if is_wanted else None
        return _begun_with(asked, inode_ids, dot)

    def _dots_now(self, asked: _Asked, dot: Dot) -> tuple[list[bytes], int] | None:
        """As `_dots`; None: something has to be asked for."""
        if asked.start >= len(_DOTS):
            return [], asked.size
        inode_ids = self._directories.known_parent_of(asked.handle_id)
        return None if inode_ids is None else _begun_with(asked, inode_ids, dot)

    async def _fsyncdir(self, request: Request) -> Reply:
        await self._directories.fsyncdir(p.FSYNC_IN.unpack_from(request.body)[0])
        return NO_BYTES
