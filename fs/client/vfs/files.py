"""Regular files: open and truncate here, what is done with open ones in `reading`,
`writing` and `closing`.

Close-to-open: closing reports the length; opening asks meta, and lets the kernel reuse its pages
only when the content is provably what this mount saw last.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from ...rpc.api import UnderWay
from ...schema import services
from ...schema.ids import InodeId, SessionId
from ...schema.inode import Inode, inode_from_pb
from ...schema.proto import meta_pb2
from ...schema.status import FsError, Status
from .closing import Closing
from .creating import FMODE_EXEC, Creating, OnOpened, Opened
from .handles import TakesTaskError
from .looking_up import Moment
from .open_file import FileHandle, InodeState
from .ports import Caller
from .reading import Reading
from .writing import Writing

_OF_MOUNT = Caller(0, 0)
_JUDGED_BEFORE = frozenset({os.O_WRONLY, os.O_RDWR})
"""Opens that the kernel itself refuses for a program that runs, before it asks.

One with both bits is for neither reading nor writing.
"""
_OF_CUTS = frozenset({"caller", "inode_id", "length", "has_open_file"})
"""Fields of a request to set the length of a file that is open, and nothing else."""


class Files(Creating, Reading, Writing, Closing):
    """The file half of `Vfs`."""

    async def open(self, inode_id: InodeId, flags: int, caller: Caller) -> Opened:
        """Give out a handle of a regular file; O_ACCMODE, O_APPEND and O_TRUNC of the flags count.

        Raises:
            FsError: ACCESS_DENIED, IS_DIRECTORY, STALE, NOT_FOUND,
                BEING_RUN and whatever meta says.
        """
        wants_write = flags & os.O_ACCMODE != os.O_RDONLY
        is_truncate = bool(flags & os.O_TRUNC)
        if is_truncate and flags & os.O_ACCMODE not in _JUDGED_BEFORE:
            self._require_not_run(inode_id)
        session = self._new_session(wants_write=wants_write or is_truncate)
        request = meta_pb2.OpenReq(
            caller=caller.to_pb(),
            inode_id=inode_id,
            wants_read=flags & os.O_ACCMODE != os.O_WRONLY and not flags & FMODE_EXEC,
            wants_write=wants_write or is_truncate,
            is_truncate=is_truncate,
            session=session or self._session_of_unnamed(inode_id),
            takes_inline=True,
            is_append=bool(flags & os.O_APPEND),
        )
        known = self._core.known.get(inode_id)
        if known is not None and known.listed_as is not None:
            request.expected_parent_inode_id, request.expected_name = known.listed_as
        state, asked_s = self._core.states.get(inode_id), self._core.now_s()
        if state is not None and state.set_owner is not None:
            await self._core.try_settle_owner(state)
        if is_truncate and state is not None:
            async with state.lock:
                await self._core.drain(state)
                if state.has_unreported:
                    # Meta cuts up to the length it knows: unreported bytes
                    # would stay, and come back.
                    await self._core.report(state, is_durable=False)
                inode, reply = await self._cut_at_meta(request)
        elif is_truncate:
            inode, reply = await self._cut_at_meta(request)
        else:
            inode, reply = await self._open_at_meta(request)
        if not request.HasField("session") and self._is_unkept(inode_id):
            # Its last name went through this mount before the reply came: as late as
            # that, a session still keeps it.
            late = meta_pb2.OpenReq(
                caller=caller.to_pb(),
                inode_id=inode_id,
                wants_read=request.wants_read,
                session=self._session_of_unnamed(inode_id),
                takes_inline=True,
            )
            asked_s = self._core.now_s()
            request, (inode, reply) = late, await self._open_at_meta(late)
        opened = await self._opened(inode, flags, session, caller)
        state = self._core.states[inode_id]
        self._core.note_opened(state, inode, reply, asked_s, can_write=session is not None)
        if session is None and request.HasField("session"):
            self._keep(state, SessionId(request.session.session_id))
        if reply.HasField("is_metered"):
            state.note_metering(reply.is_metered, inode)
        return opened

    def _require_not_run(self, inode_id: InodeId) -> None:
        """Refuse to cut a program that runs: of an open that is not for writing the kernel judges
        that only once it is cut.

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

        It is tried once: an error that another try may cure is no answer, and
        TakesTaskError asks for `open`.
        """
        core = self._core
        if core.begins is None or not self._is_plain(inode_id, flags):
            return None
        request = meta_pb2.OpenReq()
        caller.put(request.caller)
        request.inode_id = inode_id
        request.wants_read = not flags & FMODE_EXEC
        request.takes_inline = True
        asked = Moment(core.changes.mark(), core.now_s())

        def end(reply: meta_pb2.InodeRsp | None, error: FsError | None) -> None:
            if reply is None:
                on_end(None, error)
                return
            try:
                opened = self._opened_to_read(reply, asked, flags, caller)
            except Exception as failure:  # noqa: BLE001 - who answers the kernel judges it
                on_end(None, failure)
            else:
                on_end(opened, None)

        under_way = core.begins.begin(services.META_OPEN, request, end)
        core.opened_alone_count += under_way is not None
        return under_way

    def open_ahead(
        self,
        inode_id: InodeId,
        flags: int,
        caller: Caller,
        reply: meta_pb2.InodeRsp,
        asked: Moment,
    ) -> Opened | None:
        """Do what `open` does for reading with what meta has said of that to `caller`, who was
        about to open the file, since `asked`; None: `open` has to do it.
        """
        if not self._is_plain(inode_id, flags):
            return None
        try:
            opened = self._opened_to_read(reply, asked, flags, caller)
        except TakesTaskError:
            return None
        self._core.opened_ahead_count += 1
        return opened

    def _is_plain(self, inode_id: InodeId, flags: int) -> bool:
        """Return whether an open is for reading, with nothing to be settled or told besides."""
        state, known = self._core.states.get(inode_id), self._core.known.get(inode_id)
        if flags & (os.O_ACCMODE | os.O_TRUNC):
            return False
        if known is not None and known.listed_as is not None:
            return False
        return state is None or bool(state.inode.nlink and state.set_owner is None)

    def _opened_to_read(
        self, reply: meta_pb2.InodeRsp, asked: Moment, flags: int, caller: Caller
    ) -> Opened:
        """Make a handle of what meta has replied to an open; raises as `_opened_from`."""
        core, inode = self._core, inode_from_pb(reply.inode)
        opened = self._opened_from(inode, asked.mark, flags, caller)
        state = core.states[inode.inode_id]
        core.note_opened(state, inode, reply, asked.at_s, can_write=False)
        return opened

    def _opened_from(self, inode: Inode, mark: int, flags: int, caller: Caller) -> Opened:
        """Make a handle for reading, of an open that was begun at `mark`.

        Raises:
            TakesTaskError: the kernel has to forget something first, or the file was changed before
                this reply came, or its last name went, and with it maybe the content.
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

    async def _open_at_meta(self, request: meta_pb2.OpenReq) -> tuple[Inode, meta_pb2.InodeRsp]:
        core = self._core
        mark = core.changes.mark()
        reply = await core.call(services.META_OPEN, request)
        inode = await core.asked_again(inode_from_pb(reply.inode), mark, _OF_MOUNT)
        if request.is_truncate:
            core.changes.note_inode(inode.inode_id)
        if inode.file is None:
            raise FsError(Status.NOT_REGULAR, f"inode {inode.inode_id} is a {inode.type.name}")
        return inode, reply

    async def _cut_at_meta(self, request: meta_pb2.OpenReq) -> tuple[Inode, meta_pb2.InodeRsp]:
        """Open a file so that it is emptied."""
        inode_id = InodeId(request.inode_id)
        with self._cutting(inode_id):
            inode, reply = await self._open_at_meta(request)
            before, state = -1, self._core.states.get(inode_id)
            if state is not None:  # maybe of somebody who has opened it meanwhile
                before = state.local_length()
                state.absorb(inode)
            self._note_cut(inode_id, before, inode.length)
        return inode, reply

    def _is_unkept(self, inode_id: InodeId) -> bool:
        """Return whether this mount knows that an inode has no name,
        and has no session yet that keeps it.
        """
        state, known = self._core.states.get(inode_id), self._core.known.get(inode_id)
        if state is None:
            return known is not None and known.removed is not None
        return not state.inode.nlink and state.keep_session is None

    def _session_of_unnamed(self, inode_id: InodeId) -> meta_pb2.FileSessionPb | None:
        """Return a session that keeps an inode without a name for its readers, too;
        None when it has a name, or one already.
        """
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
        # An open that truncates makes the kernel forget by itself; to be told before it
        # would make it take no notice of how short the answers are to reads that are under
        # way, and show zeros instead.
        if must_forget and not flags & os.O_TRUNC:
            await self._have_forgotten(inode.inode_id)
        return opened

    @contextmanager
    def _cutting(self, inode_id: InodeId) -> Iterator[None]:
        """Have reads wait while a truncation is under way,
        by whoever opens the file meanwhile, too.
        """
        self._core.begin_cut(inode_id)
        try:
            yield
        finally:
            self._core.end_cut(inode_id)

    def _note_cut(self, inode_id: InodeId, before: int, length: int) -> None:
        """Note that a truncation is about to be answered;
        what is read then and ends early waits until the kernel knows of it.
        """
        known = self._core.known.get(inode_id)
        if known is None:
            return
        known.own_length = length
        before = max(before, known.told_length)
        if length < before:
            known.note_truncated(before, length, self._core.now_s())

    def share(self, handle_id: int) -> int:
        """Return a further handle of what is open, with the same rights;
        to be flushed and released as any other.

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
            is_of_batch=True,
            keeps_atime=base.keeps_atime,
            seen_error_count=base.state.error_count,
        )
        self._add_handle(handle)
        return handle.handle_id

    async def truncate(
        self, inode_id: InodeId, request: meta_pb2.SetAttrReq, handle_id: int | None
    ) -> Inode:
        """Send a SetAttr that sets the length, after everything written before it.

        To cut a small file where it ends, by who has written it, takes no SetAttr: it is a change
        that goes with what is buffered.

        Raises:
            FsError: BAD_FILE for a handle that cannot write, and whatever meta says.
        """
        core = self._core
        if handle_id is not None:
            request.has_open_file = self.handle(handle_id).can_write
        await core.settle_owner_of(inode_id)
        state = core.states.get(inode_id)
        if state is None:
            with self._cutting(inode_id):
                mark = core.changes.mark()
                reply = await core.call(services.META_SET_ATTR, request)
                # Somebody may have it open by now, or have written to it and closed it.
                inode = await core.newest_after(core.absorbed(reply.inode), mark)
                self._note_cut(inode_id, -1, inode.length)
                return inode
        async with state.lock:
            if handle_id is not None and await self._cuts_nothing(state, request, handle_id):
                return state.present(state.inode)
            await core.drain(state)
            if state.has_unreported and (state.is_length_unknown or state.set_times is not None):
                await core.report(state, is_durable=False)
            # None beside it: one that meta took later would set the time of change back.
            async with state.report_lock:
                if core.states.get(inode_id) is not state:  # whoever had it open has closed it
                    return await self.truncate(inode_id, request, handle_id)
                hint = state.length_hint() if state.set_times is None else None
                if hint is not None:
                    request.length_hint.CopyFrom(hint)
                before_ver, seq = state.file.data_ver, state.acked_seq
                before = state.local_length()
                with self._cutting(inode_id):
                    reply = await core.call(services.META_SET_ATTR, request)
                    inode = inode_from_pb(reply.inode)
                    # The request carried what was written before, and a
                    # truncation counts as new content.
                    state.reported_seq = max(state.reported_seq, seq)
                    state.absorb(inode)
                    state.forget_length()
                    core.note_empty(state, inode)
                    self._note_cut(inode_id, before, state.local_length())
            core.note_own_step(state, before_ver, before_ver + 1)
        for handle in state.handles.values():
            handle.is_dirty = handle.is_dirty or handle.can_write
        return state.present(state.inode)

    async def _cuts_nothing(
        self, state: InodeState, request: meta_pb2.SetAttrReq, handle_id: int
    ) -> bool:
        """Return whether a file ends where it is to be cut, for certain;
        what is buffered stays then, to be told with its times to meta.

        Programs that unpack end each file so.  What another mount has written and not told meta of
        yet counts as written after this.

        Raises:
            FsError: BAD_FILE, and whatever meta says.
        """
        handle = self.handle(handle_id)
        if not handle.can_write or not _may_cut_nothing(state, request):
            return False
        if state.error_count or state.inode_id in self._core.unsure_inline:
            return False  # what was written before may be there, or not
        await self._refresh(state, handle.caller)  # others may have written
        if not _may_cut_nothing(state, request):
            return False
        handle.note_write()
        state.note_changed(self._core.runtime.clock.wall_ns())
        return True

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
        """Make durable what closes have left to a power loss, of a file that gets a name after all;
        a close that is yet to come does so itself.

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


def _may_cut_nothing(state: InodeState, request: meta_pb2.SetAttrReq) -> bool:
    """Return whether a file, as far as is known, keeps all its bytes, and they go to meta,
    as do its times and what a change takes from it.
    """
    if state.run is None or not state.may_go_inline or request.length != state.local_length():
        return False
    if state.append.length or state.is_length_unknown or state.has_unreported:
        return False
    file, known = state.file, state.inline
    if known is None or not known.are_of(file) or file.truncate_pending or state.cuts_under_way:
        return False
    is_plain = state.inode.is_bare and not state.inode.iflags
    return is_plain and all(field.name in _OF_CUTS for field, _ in request.ListFields())
