"""Making, moving and removing names: everything that is one call of meta,
plus what this mount has open.

Looking up: `looking_up`.  Attributes: `changing_attributes`.

When a name is removed or replaced while this mount has the file open, the request carries a
file session ("keep session"), so that the content outlives the name.  The target of a name is
known from the lookup that the kernel made right before; should it have changed in between,
the session is added afterwards.
"""

import logging
import stat
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from ...schema import services
from ...schema.ids import InodeId
from ...schema.inode import Inode, InodeType, inode_from_pb
from ...schema.method import Method, ReqT, RspT
from ...schema.proto import common_pb2, meta_pb2
from ...schema.status import FsError, Status
from .asked_names import AskedNames, Place
from .change import Change, OnMade, begin, make
from .changing_attributes import ChangingAttributes
from .leased_names import ABSENT
from .open_file import InodeState
from .ports import Caller

_log = logging.getLogger(__name__)

ChangeRspT = TypeVar(
    "ChangeRspT", meta_pb2.CreateRsp, meta_pb2.InodeRsp, meta_pb2.RemoveRsp, meta_pb2.RenameRsp
)
MadeRspT = TypeVar("MadeRspT", meta_pb2.CreateRsp, meta_pb2.InodeRsp)
T = TypeVar("T")

_TYPE_OF_MODE = {
    0: InodeType.FILE,
    stat.S_IFREG: InodeType.FILE,
    stat.S_IFIFO: InodeType.FIFO,
    stat.S_IFSOCK: InodeType.SOCKET,
    stat.S_IFCHR: InodeType.CHAR_DEVICE,
    stat.S_IFBLK: InodeType.BLOCK_DEVICE,
}


def _unknown(_: object) -> tuple[InodeId | None]:
    return (None,)


def _made(reply: MadeRspT) -> tuple[InodeId | None]:
    return (InodeId(reply.inode.inode_id),)


def _removed(reply: meta_pb2.RemoveRsp) -> tuple[InodeId | None]:
    return (ABSENT if reply.HasField("removed") else None,)


def _moved(reply: meta_pb2.RenameRsp) -> tuple[InodeId | None, InodeId | None]:
    # Of two names of one file both stay.
    is_only = reply.moved.type == common_pb2.DIRECTORY or reply.moved.nlink == 1
    return ABSENT if is_only else None, InodeId(reply.moved.inode_id)


def _hidden(reply: meta_pb2.RenameRsp) -> tuple[InodeId | None, InodeId | None]:
    # What the old name leads to is asked for by whoever wants it.
    return None, InodeId(reply.moved.inode_id)


def _exchanged(reply: meta_pb2.RenameRsp) -> tuple[InodeId | None, InodeId | None]:
    if not reply.HasField("replaced"):  # two names of one file
        return None, None
    return InodeId(reply.replaced.inode_id), InodeId(reply.moved.inode_id)


class Namespace(ChangingAttributes):
    """The namespace half of `Vfs`."""

    def _change(
        self,
        method: Method[ReqT, ChangeRspT],
        request: ReqT,
        caller: Caller,
        places: Sequence[Place],
        take: Callable[[ChangeRspT], T | Coroutine[Any, Any, T]],
        *,
        leads_to: Callable[[ChangeRspT], Sequence[InodeId | None]],
    ) -> Change[ReqT, ChangeRspT, T]:
        """Return a change of the names at `places`, whose reply `take` makes something of;
        `leads_to` tells of it what `LeasedNames.end` wants.
        """
        names = AskedNames(self._core, caller, places)

        # Quoted: they would be evaluated for every change.
        def take_in(reply: "ChangeRspT") -> "T | Coroutine[Any, Any, T]":
            names.note_reply()
            return take(reply)

        def note(reply: "ChangeRspT") -> None:
            names.note_answered(reply.directories, leads_to(reply))

        return Change(method, request, take_in, names.fail, names.withdraw, note, names.refuse)

    def _making(
        self,
        method: Method[ReqT, MadeRspT],
        request: ReqT,
        parent: InodeId,
        name: bytes,
        caller: Caller,
    ) -> Change[ReqT, MadeRspT, Inode]:
        # Quoted: it would be evaluated for every change.
        def take(reply: "MadeRspT") -> Inode:
            return self._entry(parent, name, reply.inode)

        return self._change(method, request, caller, ((parent, name),), take, leads_to=_made)

    async def make(self, change: Change[ReqT, RspT, T]) -> T:
        """Make what another method has returned; raises what meta says."""
        if self._depends_on_owners(change):
            await self._core.settle_owners()
        for state in self._moved_unreported(change):
            await self._report_before_move(state)
        return await make(self._core, change)

    def begin(self, change: Change[ReqT, RspT, T], on_end: OnMade[T]) -> bool:
        """Begin, without a task, what another method has returned;
        False: nothing is done, `make` has to do it.
        """
        if self._depends_on_owners(change) or self._moved_unreported(change):
            return False
        return begin(self._core, change, on_end)

    def _depends_on_owners(self, change: Change[Any, Any, Any]) -> bool:
        """Return whether meta may judge a change of names by the owner of what they lead to,
        as in a sticky directory, and does not know it yet.
        """
        return bool(self._core.owned) and change.request.caller.uid != 0

    def _moved_unreported(self, change: Change[Any, Any, Any]) -> list[InodeState]:
        """Return the files that a change moves to another directory, and of whose bytes meta does
        not know yet: a quota there is judged by what it knows, and what comes later is dropped.
        """
        if change.method is not services.META_RENAME:
            return []
        request = change.request
        old_id, new_id = InodeId(request.old_parent_inode_id), InodeId(request.new_parent_inode_id)
        if old_id == new_id:
            return []
        states = [self._open_state(old_id, request.old_name)]
        if request.exchange:
            states.append(self._open_state(new_id, request.new_name))
        return [one for one in states if one and (one.is_dirty or one.has_unreported)]

    async def _report_before_move(self, state: InodeState) -> None:
        await self._core.drain(state)
        if not state.has_unreported:
            return
        try:
            await self._core.report(state, is_durable=False)
        except FsError as error:  # every open file is told; the move is judged without these bytes
            _log.debug("inode %d is moved with bytes unreported: %s", state.inode_id, error)

    def making_directory(
        self, parent: InodeId, name: bytes, mode: int, caller: Caller, *, umask: int = 0
    ) -> Change[meta_pb2.MkdirReq, meta_pb2.InodeRsp, Inode]:
        """Return the change that `mkdir` makes."""
        request = meta_pb2.MkdirReq()
        caller.put(request.caller)
        request.parent_inode_id = parent
        request.name = name
        request.mode = mode & 0o7777
        request.umask = umask
        request.wants_name_lease = self._core.leased.is_wanted
        asked = self._core.leased.ask(caller, ())

        # Quoted: it would be evaluated for every change.
        def take(reply: "meta_pb2.InodeRsp") -> Inode:
            self._core.leased.note_made(reply.inode, asked)
            return self._entry(parent, name, reply.inode)

        return self._change(
            services.META_MKDIR, request, caller, ((parent, name),), take, leads_to=_unknown
        )

    async def mkdir(
        self, parent: InodeId, name: bytes, mode: int, caller: Caller, *, umask: int = 0
    ) -> Inode:
        """Create a directory; a default access control list
        of the parent counts instead of `umask`.
        """
        return await self.make(self.making_directory(parent, name, mode, caller, umask=umask))

    def making_symlink(
        self, parent: InodeId, name: bytes, target: bytes, caller: Caller
    ) -> Change[meta_pb2.SymlinkReq, meta_pb2.InodeRsp, Inode]:
        """Return the change that `symlink` makes."""
        request = meta_pb2.SymlinkReq(
            caller=caller.to_pb(), parent_inode_id=parent, name=name, target=target
        )
        return self._making(services.META_SYMLINK, request, parent, name, caller)

    async def symlink(self, parent: InodeId, name: bytes, target: bytes, caller: Caller) -> Inode:
        """Create a symbolic link."""
        return await self.make(self.making_symlink(parent, name, target, caller))

    async def mknod(
        self,
        parent: InodeId,
        name: bytes,
        st_mode: int,
        caller: Caller,
        *,
        rdev: int = 0,
        umask: int = 0,
    ) -> Inode:
        """Create a file, fifo, socket or device node by its st_mode; `umask` as in `mkdir`."""
        type_ = _TYPE_OF_MODE.get(stat.S_IFMT(st_mode))
        if type_ is None:
            raise FsError(Status.INVALID_ARGUMENT, f"mknod with mode {st_mode:o}")
        if type_ is InodeType.FILE:
            return await self._create_closed(parent, name, st_mode, caller, umask=umask)
        request = meta_pb2.MknodReq(
            caller=caller.to_pb(),
            parent_inode_id=parent,
            name=name,
            type=common_pb2.InodeTypePb.ValueType(type_),
            mode=st_mode & 0o7777,
            rdev=rdev,
            umask=umask,
        )
        return await self.make(self._making(services.META_MKNOD, request, parent, name, caller))

    async def _create_closed(
        self, parent: InodeId, name: bytes, mode: int, caller: Caller, *, umask: int
    ) -> Inode:
        request = meta_pb2.CreateReq(
            caller=caller.to_pb(),
            parent_inode_id=parent,
            name=name,
            mode=mode & 0o7777,
            umask=umask,
            is_exclusive=True,
        )
        return await self.make(self._making(services.META_CREATE, request, parent, name, caller))

    async def link(self, inode_id: InodeId, parent: InodeId, name: bytes, caller: Caller) -> Inode:
        """Give an inode one more name, or the first one to what was made without."""
        state = self._core.states.get(inode_id)
        unnamed = state if state is not None and not state.inode.nlink else None
        if unnamed is not None:
            # From then on it counts for quotas, with all that was written so far.
            await self._files.settle(inode_id)
            await self._files.secure_left(unnamed)
        request = meta_pb2.LinkReq(
            caller=caller.to_pb(), inode_id=inode_id, parent_inode_id=parent, name=name
        )
        entry = await self._call_link(request, caller)
        if unnamed is not None:
            await self._files.secure_left(unnamed)  # a close that did not know of the name yet
        return entry

    async def _call_link(self, request: meta_pb2.LinkReq, caller: Caller) -> Inode:
        # The kernel tries again once: looks the name up, if it came by one, and finds what that
        # leads to by now; or comes by the descriptor again.
        core, inode_id = self._core, InodeId(request.inode_id)
        known = core.known.get(inode_id)
        self.listed.expect(request, is_by_name=known is None or not known.is_link_refused)
        place, mark = (InodeId(request.parent_inode_id), request.name), core.changes.mark()

        async def entry_of(reply: meta_pb2.InodeRsp) -> Inode:
            inode = await self._newest_of(reply.inode, mark)
            core.changes.note_inode(inode_id)
            core.held.forget(inode_id)
            return self._entry_of(*place, inode)

        def take(reply: meta_pb2.InodeRsp) -> Inode | Coroutine[Any, Any, Inode]:
            return entry_of(reply)

        try:
            entry = await self.make(
                self._change(services.META_LINK, request, caller, (place,), take, leads_to=_made)
            )
        except FsError as error:
            if known is not None:
                known.is_link_refused = bool(request.expected_name) and error.status is Status.STALE
            raise
        if known is not None:
            known.is_link_refused = False
        return entry

    def removing(
        self, parent: InodeId, name: bytes, caller: Caller
    ) -> Change[meta_pb2.UnlinkReq, meta_pb2.RemoveRsp, None]:
        """Return the change that `unlink` makes."""
        request = meta_pb2.UnlinkReq()
        caller.put(request.caller)
        request.parent_inode_id = parent
        request.name = name
        place = parent, name
        state = self._open_state(*place)
        if state is not None:
            request.keep_session.CopyFrom(self._keep_session(state))
            request.keep_inode_id = state.inode_id

        # Quoted: it would be evaluated for every change.
        def take(reply: "meta_pb2.RemoveRsp") -> "Coroutine[Any, Any, None] | None":
            self._dentries.pop(place, None)
            if not reply.HasField("removed"):
                return None
            return self._note_removed(place, reply.removed, state, caller)

        return self._change(
            services.META_UNLINK, request, caller, (place,), take, leads_to=_removed
        )

    async def unlink(self, parent: InodeId, name: bytes, caller: Caller) -> None:
        """Remove a name; content stays readable through files that this mount has open."""
        await self.make(self.removing(parent, name, caller))

    def removing_directory(
        self, parent: InodeId, name: bytes, caller: Caller
    ) -> Change[meta_pb2.RmdirReq, meta_pb2.RemoveRsp, None]:
        """Return the change that `rmdir` makes."""
        request = meta_pb2.RmdirReq()
        caller.put(request.caller)
        request.parent_inode_id = parent
        request.name = name
        return self._taking_away(services.META_RMDIR, request, (parent, name), caller)

    def removing_tree(
        self, parent: InodeId, name: bytes, inode_id: InodeId, caller: Caller
    ) -> Change[meta_pb2.RemoveTreeReq, meta_pb2.RemoveRsp, None]:
        """Return the change that removes a directory with all below it,
        if the name still leads to it.
        """
        request = meta_pb2.RemoveTreeReq(
            caller=caller.to_pb(), parent_inode_id=parent, name=name, inode_id=inode_id
        )
        return self._taking_away(services.META_REMOVE_TREE, request, (parent, name), caller)

    def _taking_away(
        self, method: Method[ReqT, meta_pb2.RemoveRsp], request: ReqT, place: Place, caller: Caller
    ) -> Change[ReqT, meta_pb2.RemoveRsp, None]:
        # Quoted: it would be evaluated for every change.
        def take(reply: "meta_pb2.RemoveRsp") -> None:
            self._core.told.note_changed(InodeId(reply.removed.inode_id))
            self._core.changes.note_inode(InodeId(reply.removed.inode_id))
            self._note_gone(reply.removed)
            self._dentries.pop(place, None)

        return self._change(method, request, caller, (place,), take, leads_to=_removed)

    async def rmdir(self, parent: InodeId, name: bytes, caller: Caller) -> None:
        """Remove an empty directory."""
        await self.make(self.removing_directory(parent, name, caller))

    def moving(
        self,
        old: Place,
        new: Place,
        caller: Caller,
        *,
        no_replace: bool = False,
        exchange: bool = False,
        leaves_whiteout: bool = False,
    ) -> Change[meta_pb2.RenameReq, meta_pb2.RenameRsp, None]:
        """Return the change that `rename` makes."""
        request = meta_pb2.RenameReq()
        caller.put(request.caller)
        request.old_parent_inode_id, request.old_name = old
        request.new_parent_inode_id, request.new_name = new
        request.no_replace = no_replace
        request.exchange = exchange
        request.leaves_whiteout = leaves_whiteout
        state = None if exchange or no_replace else self._open_state(*new)
        if state is not None:
            request.keep_session.CopyFrom(self._keep_session(state))
            request.keep_inode_id = state.inode_id

        # Quoted: it would be evaluated for every change.
        def take(reply: "meta_pb2.RenameRsp") -> "Coroutine[Any, Any, None] | None":
            self._take_moved(old, new, reply, exchange=exchange)
            if exchange or not reply.HasField("replaced"):
                return None
            return self._note_removed(new, reply.replaced, state, caller)

        moved = _exchanged if exchange else _hidden if leaves_whiteout else _moved
        return self._change(services.META_RENAME, request, caller, (old, new), take, leads_to=moved)

    async def rename(
        self,
        old: Place,
        new: Place,
        caller: Caller,
        *,
        no_replace: bool = False,
        exchange: bool = False,
        leaves_whiteout: bool = False,
    ) -> None:
        """Rename (parent inode id, name) `old` to `new`, atomically.

        Raises:
            FsError: EXISTS with `no_replace`, and whatever meta says.
        """
        change = self.moving(
            old,
            new,
            caller,
            no_replace=no_replace,
            exchange=exchange,
            leaves_whiteout=leaves_whiteout,
        )
        await self.make(change)

    def _take_moved(
        self, old: Place, new: Place, reply: meta_pb2.RenameRsp, *, exchange: bool
    ) -> None:
        self._note_moved(InodeId(reply.moved.inode_id), old, new)
        if exchange and reply.HasField("replaced"):
            self._note_moved(InodeId(reply.replaced.inode_id), new, old)
        for inode in (reply.moved, reply.replaced):
            if inode.type == common_pb2.DIRECTORY:
                self._core.told.note_changed(InodeId(inode.inode_id))
            elif inode.inode_id in self._core.states:
                self._core.absorbed(inode)
        if not exchange:
            # Of two names of one file neither has been replaced where nothing was done.
            is_only = reply.moved.type == common_pb2.DIRECTORY or reply.moved.nlink == 1
            is_new_name = is_only and not reply.HasField("replaced")
            self._core.listings.note(old, new, is_new_name=is_new_name)
        self._dentries.pop(old, None)
        if exchange:
            self._dentries.pop(new, None)
        else:
            self.remember_dentry(*new, InodeId(reply.moved.inode_id))

    def _note_moved(
        self, inode_id: InodeId, old: tuple[InodeId, bytes], new: tuple[InodeId, bytes]
    ) -> None:
        """The kernel takes what it knows of a name along:
        what may be used without asking goes by the new one from now on.
        """
        self._core.changes.note_inode(inode_id)
        self.listed.note_moved(inode_id, old, new)

    def _open_state(self, parent: InodeId, name: bytes) -> InodeState | None:
        inode_id = self._dentries.get((parent, name))
        state = None if inode_id is None else self._core.states.get(inode_id)
        return state if state is not None and state.handles else None

    def _keep_session(self, state: InodeState) -> meta_pb2.FileSessionPb:
        if state.keep_session is None:
            state.keep_session = self._core.new_session_id()
        return meta_pb2.FileSessionPb(session_id=state.keep_session)

    def _note_gone(self, removed: common_pb2.InodePb) -> None:
        known = self._core.known.get(InodeId(removed.inode_id))
        if known is not None:
            known.note_names(removed)

    def _note_removed(
        self, place: Place, removed: common_pb2.InodePb, kept: InodeState | None, caller: Caller
    ) -> Coroutine[Any, Any, None] | None:
        """Take in what has lost the name at a place;
        return what has to be awaited before anybody is told, if anything.
        """
        inode_id = InodeId(removed.inode_id)
        self.listed.note_removed(inode_id, *place)
        self._core.changes.note_inode(inode_id)
        self._note_gone(removed)
        if not removed.HasField("file"):
            return None
        state = self._core.states.get(inode_id)
        if state is None:
            self._core.seen.pop(inode_id, None)
        else:
            state.absorb(inode_from_pb(removed))
        if removed.nlink:
            return None
        if state is None or not state.handles:
            self._core.held.note(inode_id, caller)
        elif state is not kept:
            return self._keep_late(state, caller)
        return None

    async def _keep_late(self, state: InodeState, caller: Caller) -> None:
        """Keep the content of what is open here and has lost its last name:
        another client gave that to it after our last lookup of it.
        """
        request = meta_pb2.OpenReq(
            caller=caller.to_pb(),
            inode_id=state.inode_id,
            session=self._keep_session(state),
        )
        try:
            await self._core.call(services.META_OPEN, request)
        except FsError as error:
            if error.status is not Status.STALE:
                raise
            # The reply came so late that its content is gone.  The name is, too, as
            # asked; its readers are told.
            state.keep_session = None
