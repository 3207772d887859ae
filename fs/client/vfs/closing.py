"""The ends of open files: flush, fsync, release.

Closing reports the length and, with durable_close, waits until bytes and
metadata would survive power loss.
"""

import logging
from collections.abc import Callable
from functools import partial

from ...schema import services
from ...schema.ids import SessionId
from ...schema.inode import inode_from_pb
from ...schema.proto import meta_pb2
from ...schema.status import FsError, Status
from ..ending import is_final
from .handles import Handles, TakesTaskError
from .open_file import FileHandle, InodeState
from .unsent import Flush

_log = logging.getLogger(__name__)

SPACE_COUNT_INTERVAL_S = 5.0
"""What a file with holes takes is found out at each close,
and at an fsync this long after the last time.
"""


OnFlushed = Callable[[Exception | None], None]


class Closing(Handles):
    """See module head."""

    async def flush(self, handle_id: int) -> None:
        """What close(2) does: send and report everything;
        durable when durable_close is set and the file has a name.

        Without one it is gone after a power loss.  It may get one yet, through another descriptor:
        that makes it durable (`secure_left`).

        Does nothing when nothing was changed through this handle since it was last done, but that
        below a quota of bytes usage is exact from now on: what only this handle was promised is
        given back.  And what the file takes is counted if it is in doubt, whoever changed it: an
        fsync may have left that, and pages of a map may come by any handle.

        Raises:
            FsError: an earlier write failed, or this one did; once per handle.
        """
        handle = self.handle(handle_id)
        if not handle.can_write:
            if handle.is_read_by_kernel:
                self._note_unseen_read(handle)
            return
        state = handle.state
        if handle.is_dirty or state.is_space_unsure:
            is_wanted = self._core.section.durable_close
            is_durable = is_wanted and state.inode.nlink > 0
            handle.is_left = is_wanted and not is_durable
            is_told = await self._drain(state, is_durable=is_durable)
            self._raise_pending_error(handle)
            if not is_told and (is_durable or state.has_unreported or state.is_space_unsure):
                await self._report(handle, is_durable=is_durable, gives_back=True)
                if state.is_space_unsure and not state.is_dirty:  # the answer told of holes
                    await self._report(handle, is_durable=is_durable, gives_back=True)
            has_rest = is_durable is not is_wanted or _has_more(state, is_durable=is_durable)
            handle.is_dirty = handle.is_dirty and has_rest
        else:
            self._raise_pending_error(handle)
        if state.set_owner is not None:
            await self._settle_owner(handle, is_durable=self._core.section.durable_close)
        self._raise_owner_error(handle)
        if _has_spare_promise(state):
            try:
                await self._report(handle, is_durable=False, gives_back=True)
            except FsError as error:
                _log.warning("inode %d: promised bytes stay counted: %s", state.inode_id, error)

    async def _drain(self, state: InodeState, *, is_durable: bool) -> bool:
        """Send what is buffered; return whether meta has taken all of it meanwhile, durably,
        so that there is nothing to report.
        """
        count, is_waited = state.inline_count, is_durable or state.may_go_inline
        await self._core.drain(state, is_durable=is_waited)
        return _is_all_inline(state, count)

    def begin_flush(self, handle_id: int, on_end: OnFlushed) -> bool:
        """Begin what `flush` does, without a task, for a file with a name that is to be durable;
        False: `flush` has to do it.

        Args:
            handle_id: of an open file.
            on_end: called once, later, in whatever task, with what `flush` would have raised, or
                TakesTaskError: `flush` has to do the rest.  It neither waits nor raises.

        Raises:
            FsError: BAD_FILE.
        """
        core, handle = self._core, self.handle(handle_id)
        state = handle.state
        if not (handle.is_dirty and core.begins_changes is not None and _is_plain(state)):
            return False
        if not (core.section.durable_close and state.inode.nlink > 0):
            return False
        handle.is_left = False
        return self._is_begun(handle, on_end)

    def begin_fsync(self, handle_id: int, on_end: OnFlushed) -> bool:
        """Begin what `fsync` does, without a task; as `begin_flush`."""
        core, handle = self._core, self.handle(handle_id)
        if core.begins_changes is None or not _is_plain(handle.state):
            return False
        return self._is_begun(handle, on_end)

    def _is_begun(self, handle: FileHandle, on_end: OnFlushed) -> bool:
        """Begin to send what is buffered, durably, and then to report it;
        False: it takes a task.
        """
        state = handle.state
        count = state.inline_count
        self._core.start_flush(state, is_durable=True)
        if state.flushes:
            self._go_on(handle, list(state.flushes), count, on_end)
            return True
        return self._is_report_begun(handle, count, on_end)

    def _go_on(
        self, handle: FileHandle, flushes: list[Flush], inline_count: int, on_end: OnFlushed
    ) -> None:
        """Begin to report once these have ended."""
        left = next((flush for flush in flushes if not flush.done.is_set()), None)
        if left is not None:
            # Not a closure that names itself: only the garbage collector would ever free
            # it, and what it refers to.
            left.told.append(partial(self._go_on, handle, flushes, inline_count, on_end))
            return
        try:
            is_begun = self._is_report_begun(handle, inline_count, on_end)
        except Exception as error:  # noqa: BLE001 - who answers the kernel judges it
            on_end(error)
        else:
            if not is_begun:
                on_end(TakesTaskError())

    def _is_report_begun(self, handle: FileHandle, inline_count: int, on_end: OnFlushed) -> bool:
        """Begin to report what was sent, or tell that meta has taken it since `inline_count`;
        False: it takes a task, also to tell of an error.
        """
        state = handle.state

        def ended(failure: Exception | None) -> None:
            try:
                if failure is None:
                    self._raise_pending_error(handle)
                elif isinstance(failure, FsError) and failure.status is Status.QUOTA_EXCEEDED:
                    handle.seen_error_count = state.error_count
            except FsError as pending:
                failure = pending
            if failure is None:
                handle.is_dirty = handle.is_dirty and _has_more(state, is_durable=True)
                has_rest = state.is_space_unsure or state.set_owner is not None
                has_rest = has_rest or handle.owner_error is not None
                if has_rest or _has_spare_promise(state):
                    failure = TakesTaskError()
            on_end(failure)

        if state.error_count > handle.seen_error_count or not _is_plain(state):
            return False
        if _is_all_inline(state, inline_count):
            ended(None)
            return True
        return self._core.begin_report(state, ended)

    def flush_now(self, handle_id: int) -> bool:
        """Do what `flush` does where nothing has to be waited for;
        else return False, with nothing done.

        Raises:
            FsError: an earlier write failed; once per handle.
        """
        handle = self.handle(handle_id)
        if not handle.can_write:
            if handle.is_read_by_kernel:
                self._note_unseen_read(handle)
            return True
        state = handle.state
        if handle.is_dirty or state.is_space_unsure or _has_spare_promise(state):
            return False
        if state.set_owner is not None:
            return False
        self._raise_pending_error(handle)
        self._raise_owner_error(handle)
        return True

    async def _report(
        self, handle: FileHandle, *, is_durable: bool, gives_back: bool = False
    ) -> None:
        """Report for one handle; an error that is raised counts as told to it."""
        core, state = self._core, handle.state
        age_s = core.now_s() - state.space_counted_s
        counts_space = gives_back or age_s >= SPACE_COUNT_INTERVAL_S
        try:
            if gives_back and _has_spare_promise(state):
                async with state.promise_lock:
                    await core.report(
                        state, is_durable=is_durable, gives_back=True, counts_space=counts_space
                    )
            else:
                await core.report(state, is_durable=is_durable, counts_space=counts_space)
        except FsError as error:
            if error.status is Status.QUOTA_EXCEEDED:
                handle.seen_error_count = state.error_count
            raise
        self._raise_pending_error(handle)

    async def _settle_owner(self, handle: FileHandle, *, is_durable: bool) -> None:
        """Have meta know mode and owner that its report has not settled.

        Who set them hears of an error, whoever closes first: not who has the file
        open, too, and knows of nothing.
        """
        core, state = self._core, handle.state
        try:
            await core.settle_owner(state, is_durable=is_durable)
        except FsError as error:
            core.drop_owner(state)
            core.forget_told(state.inode_id)
            for one in [one for one in state.handles.values() if one.maker_id] or [handle]:
                one.owner_error = error
            _log.warning("inode %d: mode and owner are not set: %s", state.inode_id, error)
            await core.kernel.invalidate_attributes(state.inode_id)

    @staticmethod
    def _raise_owner_error(handle: FileHandle) -> None:
        error, handle.owner_error = handle.owner_error, None
        if error is not None:
            raise FsError(error.status, error.detail)

    async def fsync(self, handle_id: int, *, is_data_only: bool) -> None:
        """Return when all writes to the file through this mount would survive power loss.

        The length is metadata that is needed to read the data back, so
        `is_data_only` changes nothing.

        Raises:
            FsError: an earlier write failed, or this one did; once per handle.
        """
        del is_data_only
        handle = self.handle(handle_id)
        is_told = await self._drain(handle.state, is_durable=True)
        self._raise_pending_error(handle)
        if not is_told:
            await self._report(handle, is_durable=True)
        if handle.state.set_owner is not None:
            await self._settle_owner(handle, is_durable=True)
        self._raise_owner_error(handle)
        handle.is_dirty = handle.is_dirty and _has_more(handle.state, is_durable=True)

    async def release(self, handle_id: int) -> None:
        """Forget an open file description; ends its file session.

        Raises:
            FsError: the rest could not be sent or reported; nobody is left
                to tell, so callers log it.
        """
        handle = self._handles.pop(handle_id, None)
        if handle is None:
            raise FsError(Status.BAD_FILE, f"no open file {handle_id}")
        if handle.is_read_by_kernel:
            self._note_unseen_read(handle)
        handle.maker_id = 0  # what it set is not its to hear of any more: nobody asks it again
        core, state = self._core, handle.state
        self._drop_readahead(handle)
        try:
            if handle.can_write:
                await core.drain(state)
            if handle.can_write and state.set_owner is not None:
                await core.try_settle_owner(state)
            session = handle.file_session
            if session is not None:
                session.handle_count -= 1
                if session.handle_count == 0:
                    counts_space = handle.can_write and _is_to_be_counted(state)
                    await self._close_session(state, session.session_id, counts_space=counts_space)
            if len(state.handles) == 1 and state.keep_session is not None:
                session_id, state.keep_session = state.keep_session, None
                has_report = state.is_dirty or state.has_unreported or state.is_space_unsure
                if has_report or not core.held.take_over(state.inode_id, session_id):
                    await self._close_session(state, session_id)
        finally:
            del state.handles[handle_id]
            core.drop_state_if_unused(state)

    def release_now(self, handle_id: int) -> bool:
        """Do what `release` does where nothing has to be waited for;
        else return False, with nothing done.
        """
        handle = self._handles.get(handle_id)
        if handle is None:
            return False
        core, state, session = self._core, handle.state, handle.file_session
        if handle.is_read_by_kernel:
            self._note_unseen_read(handle)
        has_report = state.is_dirty or state.has_unreported or state.is_space_unsure
        has_report = has_report or state.set_owner is not None
        if has_report or state.is_metered or state.keep_session is not None:
            return False
        if session is not None:
            if session.handle_count > 1 or not core.ending.end(state.inode_id, session.session_id):
                return False
            session.handle_count = 0
        del self._handles[handle_id]
        self._drop_readahead(handle)
        del state.handles[handle_id]
        core.drop_state_if_unused(state)
        return True

    async def _close_session(
        self, state: InodeState, session_id: SessionId, *, counts_space: bool = False
    ) -> None:
        """End a session, with the report of what meta was not told yet.

        With `counts_space`, of a session for writing, meta finds out what the file takes: pages of
        a map that outlived its descriptor come after the flush.
        """
        core = self._core
        has_report = state.is_dirty or state.has_unreported or state.is_space_unsure
        if not (has_report or state.is_metered) and core.ending.end(state.inode_id, session_id):
            return
        async with state.report_lock:
            seq, before_ver = state.acked_seq, state.file.data_ver
            request = meta_pb2.CloseReq(sync=core.sync_request(state), session_id=session_id)
            request.sync.ClearField("owner")  # meta has refused it, or not answered
            if counts_space:
                core.ask_space(state, request.sync)
            try:
                reply = await core.call(services.META_CLOSE, request)
            except FsError as error:
                core.note_uncounted(state, request.sync)
                if error.status is Status.QUOTA_EXCEEDED:
                    await core.note_refused(state, seq, error)
                if not is_final(error):
                    core.ending.end(state.inode_id, session_id, is_reported=False)
                raise
            if reply.HasField("inode"):
                inode = inode_from_pb(reply.inode)
                core.note_reported(state, seq, before_ver, inode)
                core.note_own_time(request.sync, inode)
                core.note_holes(state, request.sync, inode)
        if request.sync.counts_space:
            await core.kernel.invalidate_attributes(state.inode_id)

    def _drop_readahead(self, handle: FileHandle) -> None:
        if handle.readahead.blocks:
            handle.readahead.clear_blocks()
        self._core.forget_ahead(handle.readahead)

    async def release_all(self) -> None:
        """Release every open file; errors are logged."""
        for handle_id in list(self._handles):
            try:
                await self.release(handle_id)
            except FsError as error:
                _log.error("open file %d: releasing failed: %s", handle_id, error)


def _is_plain(state: InodeState) -> bool:
    """Return whether meta need be told no more than times and length,
    and no record waits for its place.
    """
    return not (state.append.length or state.is_metered or state.is_space_unsure)


def _is_all_inline(state: InodeState, inline_count: int) -> bool:
    """Return whether meta has taken all bytes of a file, durably, since `inline_count`,
    and nothing was written after that.
    """
    is_taken = state.inline_count > inline_count and not state.is_space_unsure
    return is_taken and not _has_more(state, is_durable=True)


def _has_more(state: InodeState, *, is_durable: bool) -> bool:
    """Return whether a report that has just ended lacks anything, as what was written, and stored,
    while it was under way.
    """
    is_volatile = is_durable and state.durable_seq < state.acked_seq
    return is_volatile or state.is_dirty or state.has_unreported


def _is_to_be_counted(state: InodeState) -> bool:
    """Return whether what the chains said last of the space of a file may not be so any more."""
    return state.is_space_unsure or (state.has_unreported and state.file.has_holes)


def _has_spare_promise(state: InodeState) -> bool:
    """Return whether bytes below a quota are promised to one open file
    that may not need them any more.
    """
    if not state.is_metered or state.promised_length <= state.local_length():
        return False
    return sum(handle.can_write for handle in state.handles.values()) == 1
