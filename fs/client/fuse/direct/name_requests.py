"""Requests of the kernel about names, attributes and extended attributes; see `operations`."""

import errno
import os
import stat
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, ClassVar, Final, NamedTuple, TypeVar

from ....rpc.api import UnderWay
from ....runtime.ports import Buffer, Runtime
from ....schema.ids import InodeId
from ....schema.inode import Inode
from ....schema.proto import meta_pb2
from ....schema.status import FsError, Status
from ...vfs.change import Change, OnMade
from ...vfs.ports import Caller
from ...vfs.vfs import Vfs
from ..callers import Callers
from ..sent_back import GONE, SentBack
from . import protocol as p
from . import records
from .begun import NO_WAY
from .device import Request
from .opens_ahead import Answer, OpensAhead
from .protocol import Opcode
from .purposes import Purposes

T = TypeVar("T")
Reply = Sequence[Buffer]
Handler = Callable[[Request], Awaitable[Reply]]
Quick = Callable[[Request], Reply | None]
OnReply = Callable[[Reply, Exception | None], None]
"""Called once, with the reply or with why there is none."""
Begin = Callable[[Request, OnReply], UnderWay | None]
"""Begins a request without a task that waits for its end; None: it is not begun."""
NO_BYTES: Final[Reply] = ()
NO_ENTRY: Final[Reply] = (memoryview(b""),)
"""In the place of a reply: the name is absent.

An error would take longer, and most names that are made are looked up first.
"""

_RENAME_NOREPLACE, _RENAME_EXCHANGE, _RENAME_WHITEOUT = 1, 2, 4
_XATTR_CREATE, _XATTR_REPLACE = 1, 2
_OF_WALKS = frozenset({Opcode.GETATTR, Opcode.GETXATTR, Opcode.READLINK, Opcode.FORGET})
_MOVES = frozenset({Opcode.RENAME, Opcode.RENAME2})
_CHANGES = _MOVES | {
    Opcode.CREATE,
    Opcode.TMPFILE,
    Opcode.MKDIR,
    Opcode.MKNOD,
    Opcode.SYMLINK,
    Opcode.LINK,
    Opcode.UNLINK,
    Opcode.RMDIR,
}
"""Of names in a directory."""
_BY_RIGHTS = frozenset({Status.ACCESS_DENIED, Status.NOT_PERMITTED})


class WantsErrno(Exception):  # noqa: N818 - no failure of the system: what the kernel is to be told
    """A reply that is an errno of the FUSE protocol itself and no status of EmberFS."""

    def __init__(self, error_number: int) -> None:
        super().__init__(os.strerror(error_number))
        self.errno = error_number


def _nothing() -> None:
    """Nothing was left."""


def names_in(body: bytes, start: int, count: int) -> list[bytes]:
    """Return `count` strings that end with a zero byte each."""
    names = body[start:].split(b"\0")
    if len(names) <= count:
        raise WantsErrno(errno.EINVAL)
    return names[:count]


def told_by(on_end: OnReply, reply_of: Callable[[T], Reply]) -> OnMade[T]:
    """Return what is told of the end of a change and has `on_end` told of it."""

    # Quoted: they would be evaluated for every change.
    def end(made: "T | None", error: "Exception | None") -> None:
        if error is not None:
            on_end(NO_BYTES, error)
            return
        try:
            reply = reply_of(made)  # type: ignore[arg-type]
        except Exception as failure:  # noqa: BLE001 - who answers the kernel judges it
            on_end(NO_BYTES, failure)
        else:
            on_end(reply, None)

    return end


class AskedChange(NamedTuple):
    """What is to be done for requests of one kind, by methods of `NameRequests`."""

    change: Callable[["NameRequests", Request], Change[Any, Any, Any]]
    reply: Callable[["NameRequests", Any], Reply]
    """Makes the answer to the kernel of the result."""


class NameRequests:
    """See module head."""

    def __init__(self, vfs: Vfs, runtime: Runtime) -> None:
        self._vfs = vfs
        self._names = vfs.namespace
        self._replies = records.Replies(vfs.section, vfs.reads)
        self._callers = Callers(runtime.clock.monotonic_s)
        self._caller = self._callers.of
        self._purposes = Purposes()
        self.opens_ahead = OpensAhead()
        self._keeps_names = vfs.section.entry_timeout_s > 0.0
        self.sent_back = SentBack(self._names)
        self._noted_unique = 0
        """Of the last request that `note_second_walk` saw."""
        self._keeps_negatives = vfs.section.negative_timeout_s > 0.0
        self.setxattr_head = p.SETXATTR_IN.size
        """Length of the head of SETXATTR, which INIT settles."""
        self.end_releases: Callable[[], None] = _nothing
        """Does what was left of files that are closed; see `late_releases`."""

    def _caller_with(self, mode: int | None, request: Request) -> Caller:
        """Return the caller of a request that sets a mode:
        who asks for set-group-id has to be in that group now.
        """
        return (self._callers.anew if (mode or 0) & stat.S_ISGID else self._caller)(request)

    def is_worth_another(self, request: Request, error: Exception) -> bool:
        """Return whether a request was refused by groups that its caller had before."""
        is_by_rights = isinstance(error, FsError) and error.status in _BY_RIGHTS
        return is_by_rights and self._callers.has_other_groups(request)

    def note_second_walk(self, request: Request) -> None:
        """Note what may be part of a second walk; see `SecondWalks`."""
        if request.unique == self._noted_unique:
            return  # it was left for later
        self._noted_unique = request.unique
        walks, thread_id = self.sent_back.walks, request.pid
        if request.opcode == Opcode.LOOKUP:
            (name,) = names_in(request.body, 0, 1)
            walks.note_lookup(thread_id, (InodeId(request.node_id), name))
        else:
            walks.note_other(thread_id, only_walks=request.opcode in _OF_WALKS)

    def may_be_sent_back(self, request: Request, error: Exception) -> bool:
        """Return whether a directory that a request names may have been removed elsewhere."""
        if not isinstance(error, FsError):
            return False
        if request.opcode == Opcode.LOOKUP:
            return error.status is Status.DIRECTORY_REMOVED
        return request.opcode in _CHANGES and error.status in GONE

    async def errno_where_removed(self, request: Request, error: FsError) -> int:
        """Return what such a request is answered with; see `SentBack`."""
        parent, caller = InodeId(request.node_id), self._caller(request)
        opcode, body = request.opcode, request.body
        if opcode == Opcode.LOOKUP:
            (name,) = names_in(body, 0, 1)
            return await self.sent_back.errno_of_lookup(request.pid, parent, name, caller)
        if opcode == Opcode.MKNOD and stat.S_ISSOCK(p.MKNOD_IN.unpack_from(body)[0]):
            return errno.ENOENT  # bind(2) does not walk again
        parents = {parent}
        if opcode in _MOVES:
            parents.add(InodeId(p.RENAME_IN.unpack_from(body)[0]))
        return await self.sent_back.errno_of_change(request.pid, parents, caller, error)

    def forget(self, request: Request) -> None:
        """FORGET: the kernel drops references."""
        self._names.forget(InodeId(request.node_id), *p.FORGET_IN.unpack_from(request.body))

    def batch_forget(self, request: Request) -> None:
        """BATCH_FORGET: the same for many."""
        count, _ = p.BATCH_FORGET_IN.unpack_from(request.body)
        start = p.BATCH_FORGET_IN.size
        items = memoryview(request.body)[start : start + count * p.FORGET_ONE.size]
        for node_id, lookup_count in p.FORGET_ONE.iter_unpack(items):
            self._names.forget(InodeId(node_id), lookup_count)

    def _lookup_now(self, request: Request) -> Reply | None:
        parent = InodeId(request.node_id)
        if self._names.may_be_ahead(parent):
            (name,) = names_in(request.body, 0, 1)
            found = self._names.entry_ahead(parent, name, self._caller(request))
            if found is not None:
                return (self._replies.entry_listed(*found),)
        if not self._names.may_know_names(parent):
            return None
        (name,) = names_in(request.body, 0, 1)
        caller = self._caller(request)
        if self._names.is_absent(parent, name, caller):
            return (self._replies.no_entry(),) if self._keeps_negatives else NO_ENTRY
        if not self._purposes.is_removal(request.pid, (parent, name)):
            return None
        self.end_releases()  # of what is open here nothing is at hand
        shown = self._names.entry_at_hand(parent, name, caller)
        return None if shown is None else (self._replies.entry_shown(shown),)

    def again(self, opcode: int, waited_s: float) -> Handler | None:
        """Return what does a request that was begun in vain `waited_s` ago;
        None: what does others.
        """
        return partial(self._lookup, waited_s=waited_s) if opcode == Opcode.LOOKUP else None

    async def _lookup(self, request: Request, waited_s: float = 0.0) -> Reply:
        (name,) = names_in(request.body, 0, 1)
        parent, caller = InodeId(request.node_id), self._caller(request)
        try:
            inode = await self._names.lookup(parent, name, caller, waited_s=waited_s)
        except FsError as error:
            if error.status is not Status.NOT_FOUND or not self._keeps_negatives:
                raise
            return (self._replies.no_entry(),)
        return (self._replies.entry(inode),)

    def begin_lookup(self, request: Request, on_end: OnReply) -> UnderWay | None:
        """Begin LOOKUP without a task that waits; `on_end` gets the reply or the error.

        None: it is not begun.
        """
        (name,) = names_in(request.body, 0, 1)
        parent, asked = InodeId(request.node_id), self._names.mark_now()
        thread_id, caller, ahead = request.pid, self._caller(request), self.opens_ahead
        may_open = not self._keeps_names and self._names.may_be_new(parent, name)
        opens = may_open and ahead.is_expected(thread_id)

        def end(found: meta_pb2.InodeRsp | None, error: FsError | None) -> None:
            if found is None:
                if self._keeps_negatives and error and error.status is Status.NOT_FOUND:
                    on_end((self._replies.no_entry(),), None)
                else:
                    on_end(NO_BYTES, error)
                return
            try:
                inode = self._names.looked_up(parent, name, found, asked)
                reply = self._replies.entry(inode)
            except Exception as failure:  # noqa: BLE001 - who answers the kernel judges it
                on_end(NO_BYTES, failure)
            else:
                on_end((reply,), None)
                # The program goes on meanwhile, and what it asks next is looked at after this.
                self._names.note_entry(parent, name, inode, asked)
                if not may_open or inode.file is None or not thread_id:
                    return
                told_at = self._names.told_once_at(inode.inode_id)
                if told_at is None:
                    ahead.note_vain(thread_id)
                    return
                ahead.note_found(thread_id, inode.inode_id)
                if opens and found.is_opened:
                    ahead.keep(thread_id, Answer(found, asked, caller, told_at))

        return self._names.begin_lookup(parent, name, caller, end, opens=opens)

    def _getattr_now(self, request: Request) -> Reply | None:
        told = self._names.told(InodeId(request.node_id))
        return None if told is None else (self._replies.told(*told),)

    async def _getattr(self, request: Request) -> Reply:
        inode = await self._names.getattr(InodeId(request.node_id), self._caller(request))
        return (self._replies.attr(inode),)

    def _statx_now(self, request: Request) -> Reply | None:
        told = self._names.told_with_birth(InodeId(request.node_id))
        return None if told is None else (self._replies.statx(*told),)

    async def _statx(self, request: Request) -> Reply:
        inode = await self._names.getattr_with_birth(
            InodeId(request.node_id), self._caller(request)
        )
        return (self._replies.statx(inode, self._vfs.section.attr_timeout_s),)

    async def _setattr(self, request: Request) -> Reply:
        change, handle_id = records.attr_change(request.body)
        inode_id, caller = InodeId(request.node_id), self._caller_with(change.mode, request)
        return self._shown(inode_id, await self._names.setattr(inode_id, change, handle_id, caller))

    def _setattr_now(self, request: Request) -> Reply | None:
        inode_id = InodeId(request.node_id)
        if not self._names.is_open(inode_id):
            return None
        change, _ = records.attr_change(request.body)
        caller = self._caller_with(change.mode, request)
        inode = self._names.set_now(inode_id, change, caller, request.pid)
        return None if inode is None else self._shown(inode_id, inode)

    def _begin_setattr(self, request: Request, on_end: OnReply) -> UnderWay | None:
        change, _ = records.attr_change(request.body)
        inode_id, caller = InodeId(request.node_id), self._caller_with(change.mode, request)
        end = told_by(on_end, partial(self._shown, inode_id))
        return NO_WAY if self._names.begin_setattr(inode_id, change, caller, end) else None

    def _shown(self, inode_id: InodeId, inode: Inode) -> Reply:
        return (self._replies.told(inode, self._names.usable_s(inode_id)),)

    async def _access(self, request: Request) -> Reply:
        mask, _ = p.ACCESS_IN.unpack_from(request.body)
        await self._names.access(InodeId(request.node_id), mask, self._caller(request))
        return NO_BYTES

    async def _readlink(self, request: Request) -> Reply:
        return (await self._names.readlink(InodeId(request.node_id), self._caller(request)),)

    async def _mknod(self, request: Request) -> Reply:
        mode, rdev, umask, _ = p.MKNOD_IN.unpack_from(request.body)
        (name,) = names_in(request.body, p.MKNOD_IN.size, 1)
        parent, caller = InodeId(request.node_id), self._caller_with(mode, request)
        inode = await self._names.mknod(parent, name, mode, caller, rdev=rdev, umask=umask)
        return (self._replies.entry(inode),)

    async def _make(self, asked: AskedChange, request: Request) -> Reply:
        change = asked.change(self, request)
        return asked.reply(self, await self._names.make(change))

    def _begin_making(
        self, asked: AskedChange, request: Request, on_end: OnReply
    ) -> UnderWay | None:
        """Begin a change of names without a task that waits; None: it is not begun."""
        change = asked.change(self, request)
        reply_of = partial(asked.reply, self)
        return NO_WAY if self._names.begin(change, told_by(on_end, reply_of)) else None

    def _mkdir(self, request: Request) -> Change[Any, Any, Inode]:
        mode, umask = p.MKDIR_IN.unpack_from(request.body)
        (name,) = names_in(request.body, p.MKDIR_IN.size, 1)
        parent, caller = InodeId(request.node_id), self._caller(request)
        return self._names.making_directory(parent, name, mode, caller, umask=umask)

    def _symlink(self, request: Request) -> Change[Any, Any, Inode]:
        name, target = names_in(request.body, 0, 2)
        parent, caller = InodeId(request.node_id), self._caller(request)
        return self._names.making_symlink(parent, name, target, caller)

    def _unlink(self, request: Request) -> Change[Any, Any, None]:
        (name,) = names_in(request.body, 0, 1)
        parent = InodeId(request.node_id)
        self._purposes.note_removal(request.pid, (parent, name))
        return self._names.removing(parent, name, self._caller(request))

    def _rmdir(self, request: Request) -> Change[Any, Any, None]:
        (name,) = names_in(request.body, 0, 1)
        parent = InodeId(request.node_id)
        self._purposes.note_removal(request.pid, (parent, name))
        return self._names.removing_directory(parent, name, self._caller(request))

    def _rename(self, request: Request) -> Change[Any, Any, None]:
        (new_parent,) = p.RENAME_IN.unpack_from(request.body)
        return self._rename_to(request, new_parent, 0, p.RENAME_IN.size)

    def _rename2(self, request: Request) -> Change[Any, Any, None]:
        new_parent, flags, _ = p.RENAME2_IN.unpack_from(request.body)
        return self._rename_to(request, new_parent, flags, p.RENAME2_IN.size)

    def _rename_to(
        self, request: Request, new_parent: int, flags: int, start: int
    ) -> Change[Any, Any, None]:
        if flags & ~(_RENAME_EXCHANGE | _RENAME_NOREPLACE | _RENAME_WHITEOUT):
            raise FsError(Status.INVALID_ARGUMENT, f"rename flags {flags:#x}")
        old_name, new_name = names_in(request.body, start, 2)
        old, new = (InodeId(request.node_id), old_name), (InodeId(new_parent), new_name)
        self._purposes.note_removal(request.pid, old, new)
        return self._names.moving(
            old,
            new,
            self._caller(request),
            no_replace=bool(flags & _RENAME_NOREPLACE),
            exchange=bool(flags & _RENAME_EXCHANGE),
            leaves_whiteout=bool(flags & _RENAME_WHITEOUT),
        )

    def _made(self, inode: Inode) -> Reply:
        return (self._replies.entry(inode),)

    def _done(self, _: None) -> Reply:
        return NO_BYTES

    changes: ClassVar[MappingProxyType[int, AskedChange]] = MappingProxyType(
        {
            Opcode.MKDIR: AskedChange(_mkdir, _made),
            Opcode.SYMLINK: AskedChange(_symlink, _made),
            Opcode.UNLINK: AskedChange(_unlink, _done),
            Opcode.RMDIR: AskedChange(_rmdir, _done),
            Opcode.RENAME: AskedChange(_rename, _done),
            Opcode.RENAME2: AskedChange(_rename2, _done),
        }
    )
    """Of names, by what the kernel asks."""

    async def _link(self, request: Request) -> Reply:
        (node_id,) = p.LINK_IN.unpack_from(request.body)
        (name,) = names_in(request.body, p.LINK_IN.size, 1)
        parent, caller = InodeId(request.node_id), self._caller(request)
        return (
            self._replies.entry(await self._names.link(InodeId(node_id), parent, name, caller)),
        )

    def _asked_to_set(self, request: Request) -> tuple[int, bytes, bytes]:
        """Return flags, name and value of a SETXATTR."""
        size, flags = p.GETXATTR_IN.unpack_from(request.body)
        name, *_ = names_in(request.body, self.setxattr_head, 1)
        start = self.setxattr_head + len(name) + 1
        return flags, name, request.body[start : start + size]

    async def _setxattr(self, request: Request) -> Reply:
        flags, name, value = self._asked_to_set(request)
        await self._names.setxattr(
            InodeId(request.node_id),
            name,
            value,
            self._caller(request),
            must_be_new=bool(flags & _XATTR_CREATE),
            must_exist=bool(flags & _XATTR_REPLACE),
        )
        return NO_BYTES

    def _setxattr_now(self, request: Request) -> Reply | None:
        inode_id = InodeId(request.node_id)
        if not self._names.is_open(inode_id):
            return None
        flags, name, value = self._asked_to_set(request)
        if flags:
            return None
        caller = self._caller(request)
        is_set = self._names.set_list_now(inode_id, name, value, caller, request.pid)
        return NO_BYTES if is_set else None

    def _begin_setxattr(self, request: Request, on_end: OnReply) -> UnderWay | None:
        flags, name, value = self._asked_to_set(request)
        if flags & (_XATTR_CREATE | _XATTR_REPLACE):
            return None
        inode_id, end = InodeId(request.node_id), told_by(on_end, self._done)
        is_begun = self._names.begin_setxattr(inode_id, name, value, self._caller(request), end)
        return NO_WAY if is_begun else None

    def _getxattr_now(self, request: Request) -> Reply | None:
        (name,) = names_in(request.body, p.GETXATTR_IN.size, 1)
        self._names.require_maybe_there(InodeId(request.node_id), name)
        return None

    async def _getxattr(self, request: Request) -> Reply:
        size, _ = p.GETXATTR_IN.unpack_from(request.body)
        (name,) = names_in(request.body, p.GETXATTR_IN.size, 1)
        value = await self._names.getxattr(InodeId(request.node_id), name, self._caller(request))
        return _sized(value, size)

    def _listxattr_now(self, request: Request) -> Reply | None:
        if not self._names.has_none(InodeId(request.node_id)):
            return None
        size, _ = p.GETXATTR_IN.unpack_from(request.body)
        return _sized(b"", size)

    async def _listxattr(self, request: Request) -> Reply:
        size, _ = p.GETXATTR_IN.unpack_from(request.body)
        names = await self._names.listxattr(InodeId(request.node_id), self._caller(request))
        return _sized(b"".join(name + b"\0" for name in names), size)

    async def _removexattr(self, request: Request) -> Reply:
        (name,) = names_in(request.body, 0, 1)
        await self._names.removexattr(InodeId(request.node_id), name, self._caller(request))
        return NO_BYTES


def _sized(value: bytes, size: int) -> Reply:
    if size == 0:
        return (p.GETXATTR_OUT.pack(len(value), 0),)
    if len(value) > size:
        raise WantsErrno(errno.ERANGE)
    return (value,)
