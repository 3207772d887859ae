"""The pyfuse3 side of a mount: translate, call the vfs, map errors.  No semantics here."""

import errno
import functools
import logging
import math
import stat
from collections.abc import Callable, Coroutine, Sequence
from types import MappingProxyType
from typing import Any, Concatenate, Final, ParamSpec, TypeVar

import pyfuse3
import trio

from ...runtime.ports import Buffer, Runtime
from ...schema.ids import InodeId
from ...schema.inode import NAME_BYTES_MAX, Inode
from ...schema.status import FsError, Status
from ..vfs.access_times import with_reads
from ..vfs.creating import Opened
from ..vfs.vfs import Vfs
from .answers import BLOCK_BYTES, errno_of
from .attributes import attr_change, entry_attributes
from .callers import Callers
from .killed import KilledCallers
from .sent_back import GONE, SentBack

_log = logging.getLogger(__name__)

P = ParamSpec("P")
S = TypeVar("S", bound="Operations")
T = TypeVar("T")
_DOT_COOKIES = 2
_ACL_PREFIX = b"system.posix_acl_"
_OF_WALKS = frozenset({"getattr", "getxattr", "readlink"})
_RENAME_WHITEOUT: Final = 4
"""As Linux has it; pyfuse3 has no name for it."""
_PARENTS_AT: Final = MappingProxyType(
    {
        "create": (0,),
        "mkdir": (0,),
        "mknod": (0,),
        "symlink": (0,),
        "link": (1,),
        "unlink": (0,),
        "rmdir": (0,),
        "rename": (0, 2),
    }
)
"""Which arguments of a change are the directories that it names."""


def handler(
    function: Callable[Concatenate[S, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[S, P], Coroutine[Any, Any, T]]:
    """Map what a handler raises to an errno; a bug becomes EIO and a traceback in the log."""

    async def mapped(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        if self.sent_back.walks.by_thread:
            self.note_second_walk(function.__name__, args)
        try:
            return await function(self, *args, **kwargs)
        except pyfuse3.FUSEError:
            raise
        except Exception as error:
            number = await self.errno_of(function.__name__, args, error)
            raise pyfuse3.FUSEError(number) from error

    functools.update_wrapper(mapped, function)
    return mapped


def killable(
    function: Callable[Concatenate["Operations", P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate["Operations", P], Coroutine[Any, Any, T]]:
    """Give up a request without effect when its caller was killed;
    the last argument is its context.
    """

    async def watched(self: "Operations", /, *args: P.args, **kwargs: P.kwargs) -> T:
        ctx: pyfuse3.RequestContext = args[-1]  # type: ignore[assignment]
        with trio.CancelScope() as scope:
            self.killed.enter(scope, ctx.pid)
            try:
                return await function(self, *args, **kwargs)
            finally:
                self.killed.leave(scope)
        raise pyfuse3.FUSEError(errno.EINTR)

    functools.update_wrapper(watched, function)
    return watched


def _refuse_acl(name: bytes) -> None:
    # The kernel would show a list here, and not go by it.
    if name.startswith(_ACL_PREFIX):
        raise FsError(Status.NOT_SUPPORTED, "access control lists")


def _file_info(opened: Opened) -> pyfuse3.FileInfo:
    return pyfuse3.FileInfo(opened.handle_id, opened.direct_io, opened.keep_cache)


class Operations(pyfuse3.Operations):
    """One mounted file system; see module head."""

    supports_dot_lookup = True
    enable_writeback_cache = False
    enable_acl = False

    def __init__(self, vfs: Vfs, runtime: Runtime) -> None:
        super().__init__()
        self._vfs = vfs
        self._names = vfs.namespace
        self._files = vfs.files
        self._directories = vfs.directories
        self._caller = Callers(runtime.clock.monotonic_s).of
        self.killed = KilledCallers(runtime.clock.monotonic_s)
        self.sent_back = SentBack(self._names)
        self._noted: pyfuse3.RequestContext | None = None
        """Whose request was the last that `note_second_walk` saw."""

    def _entry(self, inode: Inode, age_s: float = 0.0) -> pyfuse3.EntryAttributes:
        return entry_attributes(with_reads(self._vfs.reads, inode), self._vfs.section, age_s)

    def note_second_walk(self, operation: str, args: tuple[Any, ...]) -> None:
        """Note what may be part of a second walk; see `SecondWalks`."""
        ctx = args[-1] if args else None
        if not isinstance(ctx, pyfuse3.RequestContext) or ctx is self._noted:
            return  # of an open file; or one operation calls the other
        self._noted = ctx
        walks = self.sent_back.walks
        if operation == "lookup":
            walks.note_lookup(ctx.pid, (args[0], args[1]))
        else:
            walks.note_other(ctx.pid, only_walks=operation in _OF_WALKS)

    async def errno_of(self, operation: str, args: tuple[Any, ...], error: Exception) -> int:
        """Return the errno for what a request ended with; see also `sent_back`."""
        try:
            if isinstance(error, FsError):
                number = await self._errno_where_removed(operation, args, error)
                if number is not None:
                    return number
        except Exception as failure:  # noqa: BLE001 - an edge, see errno_of
            error = failure
        number = errno_of(error, operation, args[:2])
        if number == errno.ESTALE and isinstance(args[-1], pyfuse3.RequestContext):
            self.sent_back.note_stale(args[-1].pid)
        return number

    async def _errno_where_removed(
        self, operation: str, args: tuple[Any, ...], error: FsError
    ) -> int | None:
        if error.status is Status.DIRECTORY_REMOVED:
            parent, name, ctx = args
            caller = self._caller(ctx)
            return await self.sent_back.errno_of_lookup(ctx.pid, parent, name, caller)
        if operation not in _PARENTS_AT or error.status not in GONE:
            return None
        if operation == "mknod" and stat.S_ISSOCK(args[2]):
            return errno.ENOENT  # bind(2) does not walk again
        parents, ctx = {args[at] for at in _PARENTS_AT[operation]}, args[-1]
        return await self.sent_back.errno_of_change(ctx.pid, parents, self._caller(ctx), error)

    # -- names and attributes ---------------------------------------------------------------------

    @handler
    @killable
    async def lookup(
        self, parent_inode: int, name: bytes, ctx: pyfuse3.RequestContext
    ) -> pyfuse3.EntryAttributes:
        """See pyfuse3."""
        try:
            inode = await self._names.lookup(InodeId(parent_inode), name, self._caller(ctx))
        except FsError as error:
            timeout_s = self._vfs.section.negative_timeout_s
            if error.status is not Status.NOT_FOUND or timeout_s == 0.0:
                raise
            missing = pyfuse3.EntryAttributes()
            missing.entry_timeout = timeout_s
            return missing
        return self._entry(inode)

    async def forget(self, inode_list: Sequence[tuple[int, int]]) -> None:
        """See pyfuse3; must not raise."""
        for inode_id, lookup_count in inode_list:
            self._names.forget(InodeId(inode_id), lookup_count)

    @handler
    @killable
    async def getattr(self, inode: int, ctx: pyfuse3.RequestContext) -> pyfuse3.EntryAttributes:
        """See pyfuse3."""
        return self._entry(await self._names.getattr(InodeId(inode), self._caller(ctx)))

    @handler
    async def setattr(
        self,
        inode: int,
        attr: pyfuse3.EntryAttributes,
        fields: pyfuse3.SetattrFields,
        fh: int | None,
        ctx: pyfuse3.RequestContext,
    ) -> pyfuse3.EntryAttributes:
        """See pyfuse3."""
        change, caller = attr_change(attr, fields), self._caller(ctx)
        entry = self._entry(await self._names.setattr(InodeId(inode), change, fh, caller))
        entry.attr_timeout = self._names.usable_s(InodeId(inode))
        return entry

    @handler
    @killable
    async def access(self, inode: int, mode: int, ctx: pyfuse3.RequestContext) -> bool:
        """See pyfuse3; the kernel checks by itself with default_permissions."""
        await self._names.access(InodeId(inode), mode, self._caller(ctx))
        return True

    @handler
    @killable
    async def readlink(self, inode: int, ctx: pyfuse3.RequestContext) -> bytes:
        """See pyfuse3."""
        return await self._names.readlink(InodeId(inode), self._caller(ctx))

    @handler
    async def mknod(
        self, parent_inode: int, name: bytes, mode: int, rdev: int, ctx: pyfuse3.RequestContext
    ) -> pyfuse3.EntryAttributes:
        """See pyfuse3."""
        parent, caller = InodeId(parent_inode), self._caller(ctx)
        inode = await self._names.mknod(parent, name, mode, caller, rdev=rdev, umask=ctx.umask)
        return self._entry(inode)

    @handler
    async def mkdir(
        self, parent_inode: int, name: bytes, mode: int, ctx: pyfuse3.RequestContext
    ) -> pyfuse3.EntryAttributes:
        """See pyfuse3."""
        parent, caller = InodeId(parent_inode), self._caller(ctx)
        return self._entry(await self._names.mkdir(parent, name, mode, caller, umask=ctx.umask))

    @handler
    async def unlink(self, parent_inode: int, name: bytes, ctx: pyfuse3.RequestContext) -> None:
        """See pyfuse3."""
        await self._names.unlink(InodeId(parent_inode), name, self._caller(ctx))

    @handler
    async def rmdir(self, parent_inode: int, name: bytes, ctx: pyfuse3.RequestContext) -> None:
        """See pyfuse3."""
        await self._names.rmdir(InodeId(parent_inode), name, self._caller(ctx))

    @handler
    async def symlink(
        self, parent_inode: int, name: bytes, target: bytes, ctx: pyfuse3.RequestContext
    ) -> pyfuse3.EntryAttributes:
        """See pyfuse3."""
        parent, caller = InodeId(parent_inode), self._caller(ctx)
        return self._entry(await self._names.symlink(parent, name, target, caller))

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
        if flags & ~(pyfuse3.RENAME_EXCHANGE | pyfuse3.RENAME_NOREPLACE | _RENAME_WHITEOUT):
            raise FsError(Status.INVALID_ARGUMENT, f"rename flags {flags:#x}")
        await self._names.rename(
            (InodeId(parent_inode_old), name_old),
            (InodeId(parent_inode_new), name_new),
            self._caller(ctx),
            no_replace=bool(flags & pyfuse3.RENAME_NOREPLACE),
            exchange=bool(flags & pyfuse3.RENAME_EXCHANGE),
            leaves_whiteout=bool(flags & _RENAME_WHITEOUT),
        )

    @handler
    async def link(
        self, inode: int, new_parent_inode: int, new_name: bytes, ctx: pyfuse3.RequestContext
    ) -> pyfuse3.EntryAttributes:
        """See pyfuse3."""
        parent, caller = InodeId(new_parent_inode), self._caller(ctx)
        return self._entry(await self._names.link(InodeId(inode), parent, new_name, caller))

    # -- open files -------------------------------------------------------------------------------

    @handler
    async def create(
        self, parent_inode: int, name: bytes, mode: int, flags: int, ctx: pyfuse3.RequestContext
    ) -> tuple[pyfuse3.FileInfo, pyfuse3.EntryAttributes]:
        """See pyfuse3."""
        parent, caller = InodeId(parent_inode), self._caller(ctx)
        opened, inode = await self._files.create(parent, name, mode, flags, caller, umask=ctx.umask)
        self._names.remember_dentry(parent, name, inode.inode_id)
        return _file_info(opened), self._entry(self._names.give(inode, lookup_count=1))

    @handler
    async def open(self, inode: int, flags: int, ctx: pyfuse3.RequestContext) -> pyfuse3.FileInfo:
        """See pyfuse3."""
        return _file_info(await self._files.open(InodeId(inode), flags, self._caller(ctx)))

    @handler
    async def read(self, fh: int, off: int, size: int) -> Buffer:  # type: ignore[override]
        """See pyfuse3; any contiguous buffer will do, not just bytes."""
        return await self._files.read(fh, off, size)

    @handler
    async def write(self, fh: int, off: int, buf: bytes) -> int:
        """See pyfuse3; `buf` is ours to keep."""
        return await self._files.write(fh, off, buf)

    @handler
    async def flush(self, fh: int) -> None:
        """See pyfuse3."""
        await self._files.flush(fh)

    @handler
    async def fsync(self, fh: int, datasync: bool) -> None:
        """See pyfuse3."""
        await self._files.fsync(fh, is_data_only=datasync)

    @handler
    async def release(self, fh: int) -> None:
        """See pyfuse3; the kernel tells nobody of an error, so it is logged here."""
        try:
            await self._files.release(fh)
        except FsError as error:
            _log.warning("releasing open file %d: %s", fh, error)
            raise

    # -- directories ------------------------------------------------------------------------------

    @handler
    async def opendir(self, inode: int, ctx: pyfuse3.RequestContext) -> int:
        """See pyfuse3."""
        return self._directories.opendir(InodeId(inode), self._caller(ctx))

    @handler
    async def readdir(self, fh: int, start_id: int, token: pyfuse3.ReaddirToken) -> None:
        """See pyfuse3; cookies 1 and 2 are "." and "..", the vfs's follow."""
        if start_id == 0:
            self._directories.rewind(fh)
        if start_id < _DOT_COOKIES and not await self._reply_dots(fh, start_id, token):
            return
        cookie, asked_s = max(start_id - _DOT_COOKIES, 0), math.inf
        while entries := await self._directories.readdir(fh, cookie):
            # By the first of several pages: the kernel has asked once.
            asked_s = min(asked_s, self._directories.shown_by(fh).asked_s)
            for entry in entries:
                age_s = self._directories.age_s(entry)
                attributes = self._entry(entry.inode, age_s)
                cookie = entry.cookie
                if not pyfuse3.readdir_reply(token, entry.name, attributes, cookie + _DOT_COOKIES):
                    return
                self._names.give(entry.inode, lookup_count=1, age_s=age_s, asked_s=asked_s)

    async def _reply_dots(self, fh: int, start_id: int, token: pyfuse3.ReaddirToken) -> bool:
        # These two are not counted as lookups.
        inode_ids = await self._directories.parent_of(fh)
        for cookie, name in ((1, b"."), (2, b"..")):
            attributes = pyfuse3.EntryAttributes()
            attributes.st_ino = inode_ids[cookie - 1]
            attributes.st_mode = 0o040755
            if cookie > start_id and not pyfuse3.readdir_reply(token, name, attributes, cookie):
                return False
        return True

    @handler
    async def releasedir(self, fh: int) -> None:
        """See pyfuse3."""
        self._directories.releasedir(fh)

    @handler
    async def fsyncdir(self, fh: int, datasync: bool) -> None:  # noqa: ARG002 - names are metadata
        """See pyfuse3."""
        await self._directories.fsyncdir(fh)

    @handler
    @killable
    async def statfs(self, ctx: pyfuse3.RequestContext) -> pyfuse3.StatvfsData:
        """See pyfuse3."""
        space = await self._vfs.statfs(self._caller(ctx))
        data = pyfuse3.StatvfsData()
        data.f_bsize = data.f_frsize = BLOCK_BYTES
        data.f_blocks = space.capacity_bytes // BLOCK_BYTES
        data.f_bfree = data.f_bavail = space.free_bytes // BLOCK_BYTES
        data.f_files = space.inode_count + space.free_inodes
        data.f_ffree = data.f_favail = space.free_inodes
        data.f_namemax = NAME_BYTES_MAX
        return data

    # -- extended attributes ----------------------------------------------------------------------

    @handler
    async def setxattr(
        self, inode: int, name: bytes, value: bytes, ctx: pyfuse3.RequestContext
    ) -> None:
        """See pyfuse3."""
        _refuse_acl(name)
        await self._names.setxattr(InodeId(inode), name, value, self._caller(ctx))

    @handler
    @killable
    async def getxattr(self, inode: int, name: bytes, ctx: pyfuse3.RequestContext) -> bytes:
        """See pyfuse3."""
        _refuse_acl(name)
        return await self._names.getxattr(InodeId(inode), name, self._caller(ctx))

    @handler
    @killable
    async def listxattr(self, inode: int, ctx: pyfuse3.RequestContext) -> Sequence[bytes]:
        """See pyfuse3."""
        names = await self._names.listxattr(InodeId(inode), self._caller(ctx))
        return [name for name in names if not name.startswith(_ACL_PREFIX)]

    @handler
    async def removexattr(self, inode: int, name: bytes, ctx: pyfuse3.RequestContext) -> None:
        """See pyfuse3."""
        _refuse_acl(name)
        await self._names.removexattr(InodeId(inode), name, self._caller(ctx))
