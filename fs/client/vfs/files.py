"""Regular files: open and truncate here, what is done with open ones in `reading`, `writing` and `closing`.

Close-to-open: closing reports the length; opening asks meta, and lets the kernel reuse its pages only when the
content is provably what this mount saw last.
"""

import os
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Any

from ...rpc.api import UnderWay
from ...schema import services
from ...schema.ids import InodeId, SessionId
from ...schema.inode import Inode, inode_from_pb
from ...schema.proto import meta_pb2
from ...schema.status import FsError, Status
from .change import Change, begin, make
from .closing import Closing
from .handles import TakesTaskError
from .open_file import FileHandle, FileSession, InodeState
from .ports import Caller
from .reading import Reading
from .writing import Writing

_OF_MOUNT = Caller(0, 0)
_FMODE_EXEC = 0x20
"""Set by the kernel in the flags of an open for execve(2), which needs no read permission."""


@dataclass(frozen=True, slots=True)
class Opened:
    """What the kernel is told of an open file."""

    handle_id: int
    keep_cache: bool
    direct_io: bool


OnOpened = Callable[[Opened | None, Exception | None], None]
"""Called once, with what was opened or with why nothing was."""

OnCreated = Callable[[tuple[Opened, Inode] | None, Exception | None], None]
"""As `OnOpened`, with the attributes of the file."""


class Files(Reading, Writing, Closing):
    """The file half of `Vfs`."""

    async def open(self, inode_id: InodeId, flags: int, caller: Caller) -> Opened:
        """Give out a handle of a regular file; O_ACCMODE, O_APPEND and O_TRUNC of the flags count.

        Raises:
            FsError: ACCESS_DENIED, IS_DIRECTORY, STALE, NOT_FOUND, BEING_RUN and whatever meta says.
        """
        wants_write = flags & os.O_ACCMODE != os.O_RDONLY
        is_truncate = bool(flags & os.O_TRUNC)
        if is_truncate and not wants_write:
            self._require_not_run(inode_id)
        session = self._new_session(wants_write=wants_write or is_truncate)
        request = meta_pb2.OpenReq(
            caller=caller.to_pb(),
            inode_id=inode_id,
            wants_read=flags & os.O_ACCMODE != os.O_WRONLY and not flags & _FMODE_EXEC,
            wants_write=wants_write or is_truncate,
            is_truncate=is_truncate,
            session=session or self._session_of_unnamed(inode_id),
        )
        known = self._core.known.get(inode_id)
        if known is not None and known.listed_as is not None:
            request.expected_parent_inode_id, request.expected_name = known.listed_as
        state = self._core.states.get(inode_id)
        if is_truncate and state is not None:
            async with state.lock:
                await self._core.drain(state)
                if state.has_unreported:
                    # Meta cuts up to the length it knows: unreported bytes would stay, and come back.
                    await self._core.report(state, is_durable=False)
                with state.cutting():
                    inode, is_metered = await self._open_at_meta(request)
                    state.absorb(inode)
        else:
            inode, is_metered = await self._open_at_meta(request)
        if not request.HasField("session") and self._is_unkept(inode_id):
            # Its last name went through this mount before the reply came: as late as that, a session still keeps it.
            late = meta_pb2.OpenReq(
                caller=caller.to_pb(),
                inode_id=inode_id,
                wants_read=request.wants_read,
                session=self._session_of_unnamed(inode_id),
            )
            request, (inode, is_metered) = late, await self._open_at_meta(late)
        opened = await self._opened(inode, flags, session, caller)
        if session is None and request.HasField("session"):
            self._keep(self._core.states[inode_id], SessionId(request.session.session_id))
        if is_metered is not None:
            self._core.states[inode_id].note_metering(is_metered, inode)
        return opened

    def _require_not_run(self, inode_id: InodeId) -> None:
        """Refuse to cut a program that runs: of an open for reading the kernel judges that only once it is cut.

        Raises:
            FsError: BEING_RUN.
        """
        state = self._core.states.get(inode_id)
        if state is not None and any(handle.is_run for handle in state.handles.values()):
            raise FsError(Status.BEING_RUN, f"inode {inode_id:#x} is not cut")

    def _keep(self, state: InodeState, session_id: SessionId) -> None:
        """Note what keeps an inode without a name; of two that were opened at once, one does."""
        if state.keep_session is None:
            state.keep_session = session_id
        elif state.keep_session != session_id:
            self._core.ending.end(state.inode_id, session_id)

    def begin_open(
        self, inode_id: InodeId, flags: int, caller: Caller, on_end: OnOpened
    ) -> UnderWay | None:
        """Begin what `open` does for reading; None: it is not begun, so `open` has to do it.

        It is tried once: an error that another try may cure is no answer, and TakesTaskError asks for `open`.
        """
        core = self._core
        state, known = core.states.get(inode_id), core.known.get(inode_id)
        if core.begins is None or flags & (os.O_ACCMODE | os.O_TRUNC):
            return None
        is_listed = known is not None and known.listed_as is not None
        if is_listed or (state is not None and not state.inode.nlink):
            return None
        request = meta_pb2.OpenReq(
            caller=caller.to_pb(), inode_id=inode_id, wants_read=not flags & _FMODE_EXEC
        )
        mark = core.changes.mark()

        def end(reply: meta_pb2.InodeRsp | None, error: FsError | None) -> None:
            if reply is None:
                on_end(None, error)
                return
            try:
                opened = self._opened_from(inode_from_pb(reply.inode), mark, flags, caller)
            except Exception as failure:  # noqa: BLE001 - who answers the kernel judges it
                on_end(None, failure)
            else:
                on_end(opened, None)

        return core.begins.begin(services.META_OPEN, request, end)

    def _opened_from(self, inode: Inode, mark: int, flags: int, caller: Caller) -> Opened:
        """Make a handle for reading, of an open that was begun at `mark`.

        Raises:
            TakesTaskError: the kernel has to forget something first, or the file was changed before this reply came, or its last
                name went, and with it maybe the content.
        """
        if inode.file is None:
            raise FsError(Status.NOT_REGULAR, f"inode {inode.inode_id} is a {inode.type.name}")
        state, known = (
            self._core.states.get(inode.inode_id),
            self._core.known.get(inode.inode_id),
        )
        shown = inode
        if state is not None:
            state.absorb(inode)
            shown = state.present(state.inode)
        now_s = self._core.now_s()
        if known is not None and known.may_show_other(shown.length, shown.mtime_ns, now_s):
            raise TakesTaskError
        is_late = state is None and self._core.changes.is_since(mark, inode.inode_id)
        if is_late or self._is_unkept(inode.inode_id):
            raise TakesTaskError
        return self._handed_out(inode, flags, None, caller)[0]

    async def _open_at_meta(self, request: meta_pb2.OpenReq) -> tuple[Inode, bool | None]:
        core = self._core
        mark = core.changes.mark()
        reply = await core.call(services.META_OPEN, request)
        inode = await core.asked_again(inode_from_pb(reply.inode), mark, _OF_MOUNT)
        if request.is_truncate:
            core.changes.note_inode(inode.inode_id)
        if inode.file is None:
            raise FsError(Status.NOT_REGULAR, f"inode {inode.inode_id} is a {inode.type.name}")
        return inode, reply.is_metered if reply.HasField("is_metered") else None

    async def create(
        self,
        parent: InodeId,
        name: bytes,
        mode: int,
        flags: int,
        caller: Caller,
        *,
        umask: int = 0,
        is_unnamed: bool = False,
    ) -> tuple[Opened, Inode]:
        """Create a regular file, or open the existing one unless O_EXCL is set.

        With `is_unnamed` the file has no name; O_EXCL then says that it never gets one, and `name` is ignored.
        A default access control list of the parent counts instead of `umask`.

        Raises:
            FsError: EXISTS with O_EXCL, and whatever meta says.
        """
        request = self._create_request(parent, name, mode, flags, caller, umask)
        if is_unnamed:
            request.name, request.is_unnamed = b"", True
        return await make(self._core, self._creation(request, flags, caller))

    def begin_create(  # noqa: PLR0917 - those of `create`
        self,
        parent: InodeId,
        name: bytes,
        mode: int,
        flags: int,
        caller: Caller,
        umask: int,
        on_end: OnCreated,
    ) -> bool:
        """Begin what `create` does, without a task; False: nothing is done, `create` has to do it.

        Meta is asked once; where that does not settle it a task goes on, under the same request id.
        """
        request = self._create_request(parent, name, mode, flags, caller, umask)
        return begin(self._core, self._creation(request, flags, caller), on_end)

    def _creation(
        self, request: meta_pb2.CreateReq, flags: int, caller: Caller
    ) -> Change[meta_pb2.CreateReq, meta_pb2.CreateRsp, tuple[Opened, Inode]]:
        core = self._core
        place, mark = (InodeId(request.parent_inode_id), request.name), core.told.mark()

        # Quoted: it would be evaluated for every file.
        def take(
            reply: "meta_pb2.CreateRsp",
        ) -> "tuple[Opened, Inode] | Coroutine[Any, Any, tuple[Opened, Inode]]":
            core.changes.note_name(*place)
            opened, inode, must_forget = self._take_created(request, flags, caller, mark, reply)
            if must_forget:
                return self._created_anew(opened, inode)
            return opened, core.states[inode.inode_id].present(inode)

        return Change(services.META_CREATE, request, take, partial(core.changes.note_name, *place))

    async def _created_anew(self, opened: Opened, inode: Inode) -> tuple[Opened, Inode]:
        """What a creation has found the kernel may show otherwise."""
        await self._have_forgotten(inode.inode_id)
        return opened, self._core.states[inode.inode_id].present(inode)

    def _create_request(  # noqa: PLR0917 - those of `create`
        self, parent: InodeId, name: bytes, mode: int, flags: int, caller: Caller, umask: int
    ) -> meta_pb2.CreateReq:
        wants_write = flags & os.O_ACCMODE != os.O_RDONLY
        return meta_pb2.CreateReq(
            caller=caller.to_pb(),
            parent_inode_id=parent,
            name=name,
            mode=mode & 0o7777,
            umask=umask,
            is_exclusive=bool(flags & os.O_EXCL),
            is_truncate=bool(flags & os.O_TRUNC),
            session=self._new_session(wants_write=wants_write),
            wants_read=flags & os.O_ACCMODE != os.O_WRONLY,
            wants_write=wants_write,
        )

    def _take_created(
        self,
        request: meta_pb2.CreateReq,
        flags: int,
        caller: Caller,
        mark: int,
        reply: meta_pb2.CreateRsp,
    ) -> tuple[Opened, Inode, bool]:
        """Take in the reply to a creation; return also whether the kernel has to forget attributes before it is told."""
        core, inode = self._core, inode_from_pb(reply.inode)
        core.changes.note_inode(inode.inode_id)
        core.note_told(reply.directories, mark)
        session = request.session if request.HasField("session") else None
        opened, must_forget = self._handed_out(inode, flags, session, caller)
        state = core.states[inode.inode_id]
        if reply.HasField("is_metered"):
            state.note_metering(reply.is_metered, inode)
        if reply.was_created:
            state.durable_seq = max(state.durable_seq, 0)  # there are no bytes yet to make durable
            # Nor extended attributes: saves a call before the first write to every new file.
            state.no_capability_until_s = core.now_s() + core.section.attr_timeout_s
        return opened, inode, must_forget

    def _new_session(self, *, wants_write: bool) -> meta_pb2.FileSessionPb | None:
        if not wants_write:
            return None
        return meta_pb2.FileSessionPb(session_id=self._core.new_session_id(), is_write=True)

    def _is_unkept(self, inode_id: InodeId) -> bool:
        """Return whether this mount knows that an inode has no name, and has no session yet that keeps it."""
        state, known = self._core.states.get(inode_id), self._core.known.get(inode_id)
        if state is None:
            return known is not None and known.removed is not None
        return not state.inode.nlink and state.keep_session is None

    def _session_of_unnamed(self, inode_id: InodeId) -> meta_pb2.FileSessionPb | None:
        """Return a session that keeps an inode without a name for its readers, too; None when it has a name, or one already."""
        if not self._is_unkept(inode_id):
            return None
        session_id, state = self._core.new_session_id(), self._core.states.get(inode_id)
        if state is not None:
            state.keep_session = session_id
        return meta_pb2.FileSessionPb(session_id=session_id)

    async def _opened(
        self,
        inode: Inode,
        flags: int,
        session: meta_pb2.FileSessionPb | None,
        caller: Caller,
    ) -> Opened:
        opened, must_forget = self._handed_out(inode, flags, session, caller)
        if must_forget:
            await self._have_forgotten(inode.inode_id)
        return opened

    async def _have_forgotten(self, inode_id: InodeId) -> None:
        """Have the kernel forget the attributes of a known inode."""
        known = self._core.known[inode_id]
        given = known.given_count, known.unsure_until_s
        await self._core.kernel.invalidate_attributes(inode_id)
        # Not before: another open must not take it for forgotten.  What was handed out meanwhile counts.
        if (known.given_count, known.unsure_until_s) == given:
            known.given_length, known.unsure_until_s = -1, 0.0

    def _handed_out(
        self,
        inode: Inode,
        flags: int,
        session: meta_pb2.FileSessionPb | None,
        caller: Caller,
    ) -> tuple[Opened, bool]:
        """Make a handle; return also whether the kernel has to forget attributes before it is told."""
        core = self._core
        state = core.state_of(inode, caller)
        can_write = flags & os.O_ACCMODE != os.O_RDONLY
        is_append = can_write and bool(flags & os.O_APPEND)
        # The kernel's own way for O_DIRECT waits for the answer deaf to all signals; this one can be interrupted.
        is_direct = is_append or bool(flags & os.O_DIRECT)
        handle = FileHandle(
            handle_id=core.new_handle_id(),
            state=state,
            caller=caller,
            can_read=flags & os.O_ACCMODE != os.O_WRONLY,
            can_write=can_write,
            is_append=is_append,
            file_session=FileSession(SessionId(session.session_id)) if session else None,
            is_direct=is_direct,
            is_run=bool(flags & _FMODE_EXEC),
            seen_error_count=state.error_count,
        )
        if can_write:
            state.writer = caller
        self._add_handle(handle)
        data_ver = state.file.data_ver
        keep_cache = state.cached_ver == data_ver
        if not keep_cache:
            # The kernel drops its pages now; what others had read ahead must not fill them again.
            state.note_foreign_content()
        state.cached_ver = data_ver
        known, shown = core.known.get(inode.inode_id), state.present(state.inode)
        must_forget = known is not None and known.may_show_other(
            shown.length, shown.mtime_ns, core.now_s()
        )
        return Opened(handle.handle_id, keep_cache, direct_io=is_direct), must_forget

    def share(self, handle_id: int) -> int:
        """Return a further handle of what is open, with the same rights; to be flushed and released as any other.

        Errors of writes are told to each of both.

        Raises:
            FsError: BAD_FILE; NOT_SUPPORTED for a file opened with O_APPEND.
        """
        base = self.handle(handle_id)
        if base.is_append:
            what = f"inode {base.state.inode_id} is open for appending, which batches cannot do"
            raise FsError(Status.NOT_SUPPORTED, what)
        if base.file_session is not None:
            base.file_session.handle_count += 1
        handle = FileHandle(
            handle_id=self._core.new_handle_id(),
            state=base.state,
            caller=base.caller,
            can_read=base.can_read,
            can_write=base.can_write,
            is_append=False,
            file_session=base.file_session,
            seen_error_count=base.state.error_count,
        )
        self._add_handle(handle)
        return handle.handle_id

    async def truncate(
        self, inode_id: InodeId, request: meta_pb2.SetAttrReq, handle_id: int | None
    ) -> Inode:
        """Send a SetAttr that sets the length, after everything written before it.

        Raises:
            FsError: BAD_FILE for a handle that cannot write, and whatever meta says.
        """
        core = self._core
        if handle_id is not None:
            request.has_open_file = self.handle(handle_id).can_write
        state = core.states.get(inode_id)
        if state is None:
            reply = await core.call(services.META_SET_ATTR, request)
            return inode_from_pb(reply.inode)
        async with state.lock:
            await core.drain(state)
            hint = state.length_hint()
            if hint is not None and state.set_times is None:
                request.length_hint.CopyFrom(hint)
            elif state.has_unreported:
                await core.report(state, is_durable=False)
            before_ver, seq = state.file.data_ver, state.acked_seq
            with state.cutting():
                reply = await core.call(services.META_SET_ATTR, request)
                inode = inode_from_pb(reply.inode)
                # The request carried what was written before, and a truncation counts as new content.
                state.reported_seq = max(state.reported_seq, seq)
                state.absorb(inode)
                state.forget_length()
            core.note_own_step(state, before_ver, before_ver + 1)
        for handle in state.handles.values():
            handle.is_dirty = handle.is_dirty or handle.can_write
        return state.present(inode)

    async def settle(self, inode_id: InodeId) -> None:
        """Send and report what was written to an inode, so that a later explicit time stays.

        Raises:
            FsError: meta refused the report.
        """
        state = self._core.states.get(inode_id)
        if state is None or not (state.is_dirty or state.has_unreported):
            return
        await self._core.drain(state)
        if state.has_unreported:
            await self._core.report(state, is_durable=False)

    async def learn_length(self, state: InodeState, caller: Caller) -> None:
        """Ask how long a file is by now, with what others have reported; raises FsError."""
        await self._refresh(state, caller)
        await self._core.settle_length(state)

    async def secure_left(self, state: InodeState) -> None:
        """Make durable what closes have left to a power loss, of a file that gets a name after all; a close that is yet to come does so itself.

        Raises:
            FsError: meta or storage refused, or some of it was lost.
        """
        core, seen_error_count = self._core, state.error_count
        is_kept = any(handle.is_dirty and not handle.is_left for handle in state.handles.values())
        if is_kept or state.durable_seq >= state.acked_seq or not core.section.durable_close:
            return
        await core.drain(state)
        await core.report(state, is_durable=True)
        core.raise_pending_error(state, seen_error_count)
        for handle in state.handles.values():
            handle.is_dirty = handle.is_dirty and not handle.is_left

    async def revalidate(self, inode_id: InodeId) -> None:
        """See what others have reported since, as a fresh open would.

        Raises:
            FsError: STALE, and whatever meta says.
        """
        state = self._core.states.get(inode_id)
        if state is None:
            return
        await self._refresh(state, state.writer)
        if state.cached_ver != state.file.data_ver:
            state.note_foreign_content()
            state.cached_ver = state.file.data_ver
            await self._core.kernel.invalidate_content(inode_id)
