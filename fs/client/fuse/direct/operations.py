"""Requests of the kernel, each translated into one call of the vfs.  No semantics here.

A handler returns the buffers of its reply, () for an empty one, and raises FsError.  Requests
that need no reply, and those that can be answered without waiting, are `quick`: plain
functions that the loop calls at once.
"""

import errno
import fcntl
import os
from collections.abc import Callable
from functools import partial
from types import MappingProxyType

from emberfs.protocol import IOCTL_TICKET

from ....rpc.api import UnderWay
from ....runtime.ports import Buffer, Runtime
from ....schema.ids import InodeId
from ....schema.inode import NAME_BYTES_MAX, Inode
from ....schema.status import FsError, Status
from ...holes import CutMeanwhileError
from ...read_table import ReadTable
from ...vfs.creating import Opened
from ...vfs.handles import TakesTaskError
from ...vfs.locks import LockWish
from ...vfs.vfs import Vfs
from ..lock_owners import waits_as_process
from . import protocol as p
from . import records
from .begun import NO_WAY
from .device import Request
from .directory_requests import DirectoryRequests
from .name_requests import (
    NO_BYTES,
    Begin,
    Handler,
    OnReply,
    Quick,
    Reply,
    WantsErrno,
    names_in,
    told_by,
)
from .protocol import Opcode, OpenFlag
from .together import BEGUN_BYTES_MAX, ReadsTogether, Row

_FSYNC_DATA_ONLY = 1
_DIRECT_IO, _KEEP_CACHE = int(OpenFlag.DIRECT_IO), int(OpenFlag.KEEP_CACHE)
_ASKED = slice(9, 12)
"""Of a READ as it came: handle, offset, bytes."""
_IOCTLS = frozenset(
    {p.IOC_GETFLAGS, p.IOC_SETFLAGS, p.IOC_FSGETXATTR, p.IOC_FSSETXATTR, IOCTL_TICKET}
)


class Operations(DirectoryRequests):
    """The handlers of one mount; see module head."""

    def __init__(self, vfs: Vfs, runtime: Runtime) -> None:
        super().__init__(vfs, runtime)
        self._files = vfs.files
        self.handlers = MappingProxyType(self._table())
        self.quick: MappingProxyType[int, Quick] = MappingProxyType(
            {
                Opcode.LOOKUP: self._lookup_now,
                Opcode.GETATTR: self._getattr_now,
                Opcode.STATX: self._statx_now,
                Opcode.SETATTR: self._setattr_now,
                Opcode.SETXATTR: self._setxattr_now,
                Opcode.READ: self._read_now,
                Opcode.WRITE: self._write_now,
                Opcode.GETXATTR: self._getxattr_now,
                Opcode.LISTXATTR: self._listxattr_now,
                Opcode.OPEN: self._open_now,
                Opcode.FLUSH: self._flush_now,
                Opcode.RELEASE: self._release_now,
                Opcode.OPENDIR: self._opendir_now,
                Opcode.READDIRPLUS: self._readdirplus_now,
                Opcode.RELEASEDIR: self._releasedir_now,
                Opcode.IOCTL: self._ioctl_now,
            }
        )

        self.begin: MappingProxyType[int, Begin] = MappingProxyType(
            {
                Opcode.LOOKUP: self.begin_lookup,
                Opcode.READDIRPLUS: self._begin_readdirplus,
                Opcode.OPEN: self._begin_open,
                Opcode.CREATE: self._begin_create,
                Opcode.FLUSH: self._begin_flush,
                Opcode.FSYNC: self._begin_fsync,
                Opcode.SETATTR: self._begin_setattr,
                Opcode.SETXATTR: self._begin_setxattr,
            }
            | {op: partial(self._begin_making, asked) for op, asked in self.changes.items()}
        )

    def _table(self) -> dict[int, Handler]:
        return {opcode: partial(self._make, asked) for opcode, asked in self.changes.items()} | {
            Opcode.LOOKUP: self._lookup,
            Opcode.GETATTR: self._getattr,
            Opcode.STATX: self._statx,
            Opcode.SETATTR: self._setattr,
            Opcode.READLINK: self._readlink,
            Opcode.MKNOD: self._mknod,
            Opcode.LINK: self._link,
            Opcode.ACCESS: self._access,
            Opcode.CREATE: self._create,
            Opcode.TMPFILE: self._tmpfile,
            Opcode.OPEN: self._open,
            Opcode.READ: self._read,
            Opcode.WRITE: self._write,
            Opcode.FLUSH: self._flush,
            Opcode.FSYNC: self._fsync,
            Opcode.RELEASE: self._release,
            Opcode.READDIR: self._readdir,
            Opcode.READDIRPLUS: self._readdirplus,
            Opcode.FSYNCDIR: self._fsyncdir,
            Opcode.STATFS: self._statfs,
            Opcode.SETXATTR: self._setxattr,
            Opcode.GETXATTR: self._getxattr,
            Opcode.LISTXATTR: self._listxattr,
            Opcode.REMOVEXATTR: self._removexattr,
            Opcode.FALLOCATE: self._fallocate,
            Opcode.LSEEK: self._lseek,
            Opcode.COPY_FILE_RANGE: self._copy_file_range,
            Opcode.IOCTL: self._ioctl,
            Opcode.GETLK: self._getlk,
            Opcode.SETLK: partial(self._setlk, wait=False),
            Opcode.SETLKW: partial(self._setlk, wait=True),
        }

    # -- open files -------------------------------------------------------------------------------

    async def _create(self, request: Request) -> Reply:
        flags, mode, umask, _ = p.CREATE_IN.unpack_from(request.body)
        (name,) = names_in(request.body, p.CREATE_IN.size, 1)
        parent, caller = InodeId(request.node_id), self._caller_with(mode, request)
        made = await self._files.create(parent, name, mode, flags, caller, umask=umask)
        return self._created(parent, name, made, request.pid)

    def _created(
        self, parent: InodeId, name: bytes, made: tuple[Opened, Inode], thread_id: int
    ) -> Reply:
        opened, inode = made
        self._files.note_maker(opened.handle_id, thread_id)
        self._names.remember_dentry(parent, name, inode.inode_id)
        entry = self._replies.entry(self._names.give(inode, lookup_count=1))
        return (entry, _open_out(opened))

    def _begin_create(self, request: Request, on_end: OnReply) -> UnderWay | None:
        flags, mode, umask, _ = p.CREATE_IN.unpack_from(request.body)
        (name,) = names_in(request.body, p.CREATE_IN.size, 1)
        parent, caller = InodeId(request.node_id), self._caller_with(mode, request)

        # Quoted: it would be evaluated for every file.
        def created(made: "tuple[Opened, Inode]") -> Reply:
            return self._created(parent, name, made, request.pid)

        end = told_by(on_end, created)
        is_begun = self._files.begin_create(parent, name, mode, flags, caller, umask, end)
        return NO_WAY if is_begun else None

    async def _tmpfile(self, request: Request) -> Reply:
        flags, mode, umask, _ = p.CREATE_IN.unpack_from(request.body)
        parent, caller = InodeId(request.node_id), self._caller_with(mode, request)
        opened, inode = await self._files.create(
            parent, b"", mode, flags, caller, umask=umask, is_unnamed=True
        )
        return (self._replies.entry(self._names.give(inode, lookup_count=1)), _open_out(opened))

    async def _open(self, request: Request) -> Reply:
        flags, _ = p.OPEN_IN.unpack_from(request.body)
        inode_id, caller = InodeId(request.node_id), self._caller(request)
        return (_open_out(await self._files.open(inode_id, flags, caller)),)

    def _open_now(self, request: Request) -> Reply | None:
        flags, _ = p.OPEN_IN.unpack_from(request.body)
        inode_id, caller = InodeId(request.node_id), self._caller(request)
        answer = self.opens_ahead.take(request.pid, inode_id, flags, caller)
        if answer is None or answer.told_at != self._names.told_once_at(inode_id):
            return None
        opened = self._files.open_ahead(inode_id, flags, caller, answer.reply, answer.asked)
        return None if opened is None else (_open_out(opened),)

    def _begin_open(self, request: Request, on_end: OnReply) -> UnderWay | None:
        def end(opened: Opened | None, error: Exception | None) -> None:
            if opened is None:
                on_end(NO_BYTES, error)
            else:
                on_end((_open_out(opened),), None)

        flags, _ = p.OPEN_IN.unpack_from(request.body)
        inode_id, caller = InodeId(request.node_id), self._caller(request)
        return self._files.begin_open(inode_id, flags, caller, end)

    def _read_now(self, request: Request) -> Reply | None:
        handle_id, offset, size, *_ = p.READ_IN.unpack_from(request.body)
        data = self._files.read_now(handle_id, offset, size)
        return None if data is None else (data,)

    def ahead_now(self, row: Row) -> Buffer | None:
        """Return the answer to a READ, if it was read ahead;
        see `Reading.ahead_now`, also for what is to be done then.
        """
        return self._files.ahead_now(*row[_ASKED])

    def note_ahead(self, row: Row) -> None:
        """A READ was answered with what `ahead_now` returned."""
        self._files.note_ahead(*row[_ASKED])

    def begin_read(self, row: Row, reads: ReadsTogether) -> bool:
        """Add a READ that has only to be asked of storage to others;
        else return False, with nothing done.

        Raises:
            FsError: BAD_FILE.
        """
        found = self._files.begin_read(*row[_ASKED])
        if found is None:
            return False
        if not reads:
            reads.mark = self._files.read_mark()
        reads.add(row, *found)
        return True

    async def read_together(self, table: ReadTable) -> None:
        """Do what `begin_read` added; see `Reading.read_together`."""
        await self._files.read_together(table)

    def begin_together(self, table: ReadTable, on_end: Callable[[bool], None]) -> UnderWay | None:
        """Begin to do what `begin_read` added; see `Reading.begin_together`."""
        return self._files.begin_together(table, on_end, BEGUN_BYTES_MAX)

    async def read_begun(self, request: Request, table: ReadTable, mark: int) -> Reply:
        """Do a READ that `begin_read` added, alone, and that has become the only row of a table;
        it arrived at `mark`.
        """
        try:
            await self._files.read_together(table)
        except CutMeanwhileError:
            return await self.read_since(mark, request)
        return (table.view,)

    def hold_read(self, request: Request) -> Callable[[], None]:
        """See `Reading.hold_read`."""
        handle_id, offset, *_ = p.READ_IN.unpack_from(request.body)
        return self._files.hold_read(handle_id, offset)

    async def read_since(self, mark: int, request: Request) -> Reply:
        """Do a READ that arrived at `mark`."""
        handle_id, offset, size, *_ = p.READ_IN.unpack_from(request.body)
        return (await self._files.read_since(mark, handle_id, offset, size),)

    async def _read(self, request: Request) -> Reply:
        handle_id, offset, size, *_ = p.READ_IN.unpack_from(request.body)
        return (await self._files.read(handle_id, offset, size),)

    def _write_now(self, request: Request) -> Reply | None:
        handle_id, offset, data = _written(request)
        if _kills_set_id(request) and self._names.keeps_set_id(self._files.handle(handle_id)):
            return None
        count = self._files.write_now(handle_id, offset, data)
        if count is None:
            return None
        if _is_mapped(request):
            self._files.note_mapped(handle_id)
        return (p.WRITE_OUT.pack(count, 0),)

    async def _write(self, request: Request) -> Reply:
        handle_id, offset, data = _written(request)
        if _kills_set_id(request):
            await self._names.drop_set_id(self._files.handle(handle_id))
        if _is_mapped(request):
            count = await self._files.write_mapped(handle_id, offset, data)
        else:
            appends = _appends(request)
            count = await self._files.write(handle_id, offset, data, appends=appends)
        return (p.WRITE_OUT.pack(count, 0),)

    def _flush_now(self, request: Request) -> Reply | None:
        handle_id, _, _, owner = p.FLUSH_IN.unpack_from(request.body)
        if self._vfs.locks.may_hold(InodeId(request.node_id), owner, is_flock=False):
            return None
        return NO_BYTES if self._files.flush_now(handle_id) else None

    def _begin_flush(self, request: Request, on_end: OnReply) -> UnderWay | None:
        handle_id, _, _, owner = p.FLUSH_IN.unpack_from(request.body)
        inode_id, locks = InodeId(request.node_id), self._vfs.locks
        if locks.may_hold(inode_id, owner, is_flock=False):
            return None

        # Quoted: it would be evaluated for every close.
        def end(error: "Exception | None") -> None:
            if locks.may_hold(inode_id, owner, is_flock=False):
                # Another thread has locked meanwhile.
                if error is None:
                    error = TakesTaskError()
                elif not isinstance(error, TakesTaskError):
                    locks.free_then(inode_id, owner, partial(on_end, NO_BYTES, error))
                    return
            on_end(NO_BYTES, error)

        return NO_WAY if self._files.begin_flush(handle_id, end) else None

    async def _flush(self, request: Request) -> Reply:
        handle_id, _, _, owner = p.FLUSH_IN.unpack_from(request.body)
        try:
            await self._files.flush(handle_id)
        finally:
            # close(2) of any descriptor frees what the process holds on the file.
            inode_id = InodeId(request.node_id)
            await self._vfs.locks.owner_closes(inode_id, owner, is_flock=False)
        return NO_BYTES

    def _begin_fsync(self, request: Request, on_end: OnReply) -> UnderWay | None:
        handle_id, *_ = p.FSYNC_IN.unpack_from(request.body)
        is_begun = self._files.begin_fsync(handle_id, partial(on_end, NO_BYTES))
        return NO_WAY if is_begun else None

    async def _fsync(self, request: Request) -> Reply:
        handle_id, flags, _ = p.FSYNC_IN.unpack_from(request.body)
        await self._files.fsync(handle_id, is_data_only=bool(flags & _FSYNC_DATA_ONLY))
        return NO_BYTES

    def frees_locks(self, request: Request) -> bool:
        """Return whether a RELEASE may free a lock."""
        handle_id, _, flags, _ = p.RELEASE_IN.unpack_from(request.body)
        by_handle = self._vfs.locks.may_hold_by(InodeId(request.node_id), handle_id)
        return by_handle or bool(flags & p.RELEASE_FLOCK_UNLOCK)

    def _release_now(self, request: Request) -> Reply | None:
        handle_id, *_ = p.RELEASE_IN.unpack_from(request.body)
        if self.frees_locks(request) or not self._files.release_now(handle_id):
            return None
        return NO_BYTES

    async def _release(self, request: Request) -> Reply:
        # The kernel tells nobody of an error here, so the log is all that is left.
        handle_id, _, flags, owner = p.RELEASE_IN.unpack_from(request.body)
        flock_owner = owner if flags & p.RELEASE_FLOCK_UNLOCK else None
        try:
            inode_id = InodeId(request.node_id)
            await self._vfs.locks.handle_closes(inode_id, handle_id, flock_owner)
        finally:
            await self._files.release(handle_id)
        return NO_BYTES

    async def _fallocate(self, request: Request) -> Reply:
        handle_id, offset, length, mode, _ = p.FALLOCATE_IN.unpack_from(request.body)
        await self._vfs.allocation.fallocate(handle_id, mode, offset, length)
        return NO_BYTES

    async def _lseek(self, request: Request) -> Reply:
        handle_id, offset, whence, _ = p.LSEEK_IN.unpack_from(request.body)
        return (p.LSEEK_OUT.pack(await self._vfs.seeking.seek(handle_id, offset, whence)),)

    async def _copy_file_range(self, request: Request) -> Reply:
        fields = p.COPY_FILE_RANGE_IN.unpack_from(request.body)
        source_id, offset, _, target_id, place, length, flags = fields
        if flags:
            raise FsError(Status.INVALID_ARGUMENT, f"flags {flags:#x} of copy_file_range")
        copying = self._vfs.copying
        count = await copying.copy(source_id, offset, target_id, place, length)
        return (p.WRITE_OUT.pack(count, 0),)

    def _ioctl_now(self, request: Request) -> Reply | None:
        # Mostly whether it is a terminal, which Python asks of every file that it opens.
        if p.IOCTL_IN.unpack_from(request.body)[2] not in _IOCTLS:
            raise WantsErrno(errno.ENOTTY)
        return None

    async def _ioctl(self, request: Request) -> Reply:
        handle_id, _, command, _, in_bytes, out_bytes = p.IOCTL_IN.unpack_from(request.body)
        inode_id, caller = InodeId(request.node_id), self._caller(request)
        done = p.IOCTL_OUT.pack(0, 0, 0, 0)
        if command == p.IOC_GETFLAGS and out_bytes >= p.IOC_FLAGS.size:
            inode = await self._names.getattr(inode_id, caller)
            return (done, p.IOC_FLAGS.pack(inode.iflags))
        if command == p.IOC_SETFLAGS and in_bytes >= p.IOC_FLAGS.size:
            (iflags,) = p.IOC_FLAGS.unpack_from(request.body, p.IOCTL_IN.size)
            await self._names.set_iflags(inode_id, iflags, caller)
            return (done,)
        if command == p.IOC_FSGETXATTR and out_bytes >= p.FSXATTR.size:
            inode = await self._names.getattr(inode_id, caller)
            xflags = sum(x for x, flag in p.XFLAGS.items() if inode.iflags & flag)
            return (done, p.FSXATTR.pack(xflags, 0, 0, 0, 0))
        if command == p.IOC_FSSETXATTR and in_bytes >= p.FSXATTR.size:
            iflags = _iflags_of(p.FSXATTR.unpack_from(request.body, p.IOCTL_IN.size))
            await self._names.set_iflags(inode_id, iflags, caller)
            return (done,)
        if command == IOCTL_TICKET and self._vfs.is_serving_batches:
            return (done, self._vfs.batches.ticket(handle_id))
        raise WantsErrno(errno.ENOTTY)

    # -- locks -------------------------------------------------------------------------------------

    async def _getlk(self, request: Request) -> Reply:
        _, wish = _lock_wish(request)
        found = await self._vfs.locks.conflict(InodeId(request.node_id), wish)
        if found is None:
            return (p.LK_OUT.pack(wish.first, wish.last, fcntl.F_UNLCK, 0),)
        type_ = fcntl.F_WRLCK if found.is_write else fcntl.F_RDLCK
        return (p.LK_OUT.pack(found.first, found.last, type_, found.pid),)

    async def _setlk(self, request: Request, *, wait: bool) -> Reply:
        type_, wish = _lock_wish(request)
        handle_id, *_ = p.LK_IN.unpack_from(request.body)
        inode_id = InodeId(request.node_id)
        if type_ == fcntl.F_UNLCK:
            await self._vfs.locks.unlock(inode_id, wish)
        else:
            is_process = partial(waits_as_process, request.pid)
            await self._vfs.locks.lock(
                inode_id, wish, wait=wait, handle_id=handle_id, is_process=is_process
            )
        return NO_BYTES

    async def _statfs(self, request: Request) -> Reply:
        inode_id, caller = InodeId(request.node_id), self._caller(request)
        space = await self._vfs.statfs_at(inode_id, caller)
        sizes = (space.capacity_bytes, space.free_bytes)
        return (records.statfs(*sizes, space.inode_count, space.free_inodes, NAME_BYTES_MAX),)


def _written(request: Request) -> tuple[int, int, memoryview]:
    handle_id, offset, size, *_ = p.WRITE_IN.unpack_from(request.body)
    if request.data:
        return handle_id, offset, request.data[:size]
    start = p.WRITE_IN.size
    return handle_id, offset, memoryview(request.body)[start : start + size]


def _is_mapped(request: Request) -> bool:
    return bool(p.WRITE_IN.unpack_from(request.body)[3] & p.WRITE_CACHE)


def _appends(request: Request) -> bool:
    return bool(p.WRITE_IN.unpack_from(request.body)[5] & os.O_APPEND)


def _kills_set_id(request: Request) -> bool:
    return bool(p.WRITE_IN.unpack_from(request.body)[3] & p.WRITE_KILL_SUIDGID)


def _lock_wish(request: Request) -> tuple[int, LockWish]:
    """Return the type of a lock request, and what is wanted."""
    _, owner, first, last, type_, pid, flags, _ = p.LK_IN.unpack_from(request.body)
    is_flock = bool(flags & p.LK_FLOCK)
    return type_, LockWish(owner, is_flock, type_ == fcntl.F_WRLCK, first, last, pid)


def _iflags_of(fsxattr: tuple[int, ...]) -> int:
    """Return the inode flags that a struct fsxattr sets;
    raises FsError(NOT_SUPPORTED) for whatever else it says.
    """
    xflags, *others = fsxattr
    if xflags & ~sum(p.XFLAGS) or any(others):
        raise FsError(Status.NOT_SUPPORTED, f"attributes {xflags:#x} {others} of FS_IOC_FSSETXATTR")
    return sum(flag for x, flag in p.XFLAGS.items() if xflags & x)


def _open_out(opened: Opened) -> bytes:
    flags = 0
    if opened.direct_io:
        flags |= _DIRECT_IO
    if opened.keep_cache:
        flags |= _KEEP_CACHE
    return p.OPEN_OUT.pack(opened.handle_id, flags, 0)
