"""Regular files: open, read, write, flush, truncate, release.

Close-to-open: closing reports the length and, with durable_close, waits until bytes and metadata would
survive power loss; opening asks meta, and lets the kernel reuse its pages only when the content is
provably what this mount saw last.
"""

import logging
import os
from dataclasses import dataclass

from ...runtime.ports import Buffer
from ...schema import services
from ...schema.ids import InodeId, SessionId
from ...schema.inode import Inode, inode_from_pb
from ...schema.layout import MAX_FILE_LENGTH_BYTES
from ...schema.proto import meta_pb2
from ...schema.status import FsError, Status
from ..api import FileRead
from .core import VfsCore
from .open_file import FetchedBlock, FileHandle, FileSession, InodeState
from .ports import Caller
from .readahead import Block

_log = logging.getLogger(__name__)

SPACE_COUNT_INTERVAL_S = 5.0
"""What a file with holes takes is found out at each close, and at an fsync this long after the last time."""
_FMODE_EXEC = 0x20
"""Set by the kernel in the flags of an open for execve(2), which needs no read permission."""


@dataclass(frozen=True, slots=True)
class Opened:
    """What the kernel is told of an open file."""

    handle_id: int
    keep_cache: bool
    direct_io: bool


class Files:
    """The file half of `Vfs`."""

    def __init__(self, core: VfsCore) -> None:
        self._core = core
        self._handles: dict[int, FileHandle] = {}

    # -- open and close ---------------------------------------------------------------------------

    async def open(self, inode_id: InodeId, flags: int, caller: Caller) -> Opened:
        """Give out a handle of a regular file; O_ACCMODE, O_APPEND and O_TRUNC of the flags count.

        Raises:
            FsError: ACCESS_DENIED, IS_DIRECTORY, STALE, NOT_FOUND and whatever meta says.
        """
        wants_write = flags & os.O_ACCMODE != os.O_RDONLY
        is_truncate = bool(flags & os.O_TRUNC)
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
            known.listed_as = None  # the next open looks the name up, whatever comes of this one
        state = self._core.states.get(inode_id)
        if is_truncate and state is not None:
            async with state.lock:
                await self._core.drain(state)
                if state.has_unreported:
                    # Meta cuts up to the length it knows: unreported bytes would stay, and come back.
                    await self._core.report(state, is_durable=False)
                inode, is_metered = await self._open_at_meta(request)
                state.absorb(inode)
        else:
            inode, is_metered = await self._open_at_meta(request)
        opened = await self._opened(inode, flags, session, caller)
        if is_metered is not None:
            self._core.states[inode_id].note_metering(is_metered, inode)
        return opened

    async def _open_at_meta(self, request: meta_pb2.OpenReq) -> tuple[Inode, bool | None]:
        reply = await self._core.call(services.META_OPEN, request)
        inode = inode_from_pb(reply.inode)
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
        wants_write = flags & os.O_ACCMODE != os.O_RDONLY
        session = self._new_session(wants_write=wants_write)
        request = meta_pb2.CreateReq(
            caller=caller.to_pb(),
            parent_inode_id=parent,
            name=b"" if is_unnamed else name,
            is_unnamed=is_unnamed,
            mode=mode & 0o7777,
            umask=umask,
            is_exclusive=bool(flags & os.O_EXCL),
            is_truncate=bool(flags & os.O_TRUNC),
            session=session,
            wants_read=flags & os.O_ACCMODE != os.O_WRONLY,
            wants_write=wants_write,
        )
        mark = self._core.told.mark()
        reply = await self._core.call(services.META_CREATE, request)
        self._core.note_told(reply.directories, mark)
        inode = inode_from_pb(reply.inode)
        opened = await self._opened(inode, flags, session, caller)
        state = self._core.states[inode.inode_id]
        if reply.HasField("is_metered"):
            state.note_metering(reply.is_metered, inode)
        if reply.was_created:
            state.durable_seq = max(state.durable_seq, 0)  # there are no bytes yet to make durable
            # Nor extended attributes: saves a call before the first write to every new file.
            state.no_capability_until_s = self._core.now_s() + self._core.section.attr_timeout_s
        return opened, state.present(inode)

    def _new_session(self, *, wants_write: bool) -> meta_pb2.FileSessionPb | None:
        if not wants_write:
            return None
        return meta_pb2.FileSessionPb(session_id=self._core.new_session_id(), is_write=True)

    def _session_of_unnamed(self, inode_id: InodeId) -> meta_pb2.FileSessionPb | None:
        """Return a session that keeps an inode without a name for its readers, too; None when it has a name, or one already."""
        state = self._core.states.get(inode_id)
        if state is None or state.inode.nlink or state.keep_session is not None:
            return None
        state.keep_session = self._core.new_session_id()
        return meta_pb2.FileSessionPb(session_id=state.keep_session)

    async def _opened(
        self,
        inode: Inode,
        flags: int,
        session: meta_pb2.FileSessionPb | None,
        caller: Caller,
    ) -> Opened:
        core = self._core
        state = core.state_of(inode, caller)
        can_write = flags & os.O_ACCMODE != os.O_RDONLY
        is_append = can_write and bool(flags & os.O_APPEND)
        handle = FileHandle(
            handle_id=core.new_handle_id(),
            state=state,
            caller=caller,
            can_read=flags & os.O_ACCMODE != os.O_WRONLY,
            can_write=can_write,
            is_append=is_append,
            file_session=FileSession(SessionId(session.session_id)) if session else None,
            seen_error_count=state.error_count,
        )
        if can_write:
            state.writer = caller
        state.handles[handle.handle_id] = handle
        self._handles[handle.handle_id] = handle
        data_ver = state.file.data_ver
        keep_cache = state.cached_ver == data_ver
        if not keep_cache:
            # The kernel drops its pages now; what others had read ahead must not fill them again.
            state.content_seq += 1
        state.cached_ver = data_ver
        known = core.known.get(inode.inode_id)
        if known is not None and known.given_length not in (-1, state.local_length()):
            known.given_length = state.local_length()
            await core.kernel.invalidate_attributes(inode.inode_id)
        return Opened(handle.handle_id, keep_cache, direct_io=is_append)

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
        base.state.handles[handle.handle_id] = handle
        self._handles[handle.handle_id] = handle
        return handle.handle_id

    async def flush(self, handle_id: int) -> None:
        """What close(2) does: send and report everything; durable when durable_close is set.

        Does nothing when nothing was changed through this handle since it was last done, but that below a quota
        of bytes usage is exact from now on: what only this handle was promised is given back.

        Raises:
            FsError: an earlier write failed, or this one did; once per handle.
        """
        handle = self.handle(handle_id)
        if not handle.can_write:
            return
        state = handle.state
        if handle.is_dirty:
            await self._core.drain(state)
            self._raise_pending_error(handle)
            is_durable = self._core.section.durable_close
            if is_durable or state.has_unreported or state.is_space_unsure:
                await self._report(handle, is_durable=is_durable, gives_back=True)
            handle.is_dirty = state.is_dirty and handle.is_dirty
        else:
            self._raise_pending_error(handle)
        if _has_spare_promise(state):
            try:
                await self._report(handle, is_durable=False, gives_back=True)
            except FsError as error:
                _log.warning("inode %d: promised bytes stay counted: %s", state.inode_id, error)

    def flush_now(self, handle_id: int) -> bool:
        """Do what `flush` does where nothing has to be waited for; else return False, with nothing done.

        Raises:
            FsError: an earlier write failed; once per handle.
        """
        handle = self.handle(handle_id)
        if not handle.can_write:
            return True
        if handle.is_dirty or _has_spare_promise(handle.state):
            return False
        self._raise_pending_error(handle)
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

    async def fsync(self, handle_id: int, *, is_data_only: bool) -> None:
        """Return when all writes to the file through this mount would survive power loss.

        The length is metadata that is needed to read the data back, so `is_data_only` changes nothing.

        Raises:
            FsError: an earlier write failed, or this one did; once per handle.
        """
        del is_data_only
        handle = self.handle(handle_id)
        await self._core.drain(handle.state)
        self._raise_pending_error(handle)
        await self._report(handle, is_durable=True)
        handle.is_dirty = handle.state.is_dirty and handle.is_dirty

    async def release(self, handle_id: int) -> None:
        """Forget an open file description; ends its file session.

        Raises:
            FsError: the rest could not be sent or reported; nobody is left to tell, so callers log it.
        """
        handle = self._handles.pop(handle_id, None)
        if handle is None:
            raise FsError(Status.BAD_FILE, f"no open file {handle_id}")
        core, state = self._core, handle.state
        self._drop_readahead(handle)
        try:
            if handle.can_write:
                await core.drain(state)
            session = handle.file_session
            if session is not None:
                session.handle_count -= 1
                if session.handle_count == 0:
                    await self._close_session(state, session.session_id)
            if len(state.handles) == 1 and state.keep_session is not None:
                session_id, state.keep_session = state.keep_session, None
                await self._close_session(state, session_id)
        finally:
            del state.handles[handle_id]
            core.drop_state_if_unused(state)

    def release_now(self, handle_id: int) -> bool:
        """Do what `release` does where nothing has to be waited for; else return False, with nothing done."""
        handle = self._handles.get(handle_id)
        if handle is None:
            return False
        core, state, session = self._core, handle.state, handle.file_session
        has_report = state.is_dirty or state.has_unreported or state.is_space_unsure
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

    async def _close_session(self, state: InodeState, session_id: SessionId) -> None:
        core = self._core
        has_report = state.is_dirty or state.has_unreported or state.is_space_unsure
        if not (has_report or state.is_metered) and core.ending.end(state.inode_id, session_id):
            return
        async with state.report_lock:
            seq, before_ver = state.acked_seq, state.file.data_ver
            request = meta_pb2.CloseReq(sync=core.sync_request(state), session_id=session_id)
            try:
                reply = await core.call(services.META_CLOSE, request)
            except FsError as error:
                if error.status is Status.QUOTA_EXCEEDED:
                    await core.note_refused(state, seq, error)
                raise
            if reply.HasField("inode"):
                core.note_reported(state, seq, before_ver, inode_from_pb(reply.inode))

    # -- write ------------------------------------------------------------------------------------

    async def write(self, handle_id: int, offset: int, data: Buffer) -> int:
        """Buffer a write and return its length; `data` is kept by reference and must not change.

        An O_APPEND handle ignores `offset`.  Below a quota of bytes that has room for a part, that is written.

        Raises:
            FsError: BAD_FILE, FILE_TOO_LARGE, QUOTA_EXCEEDED, or the error of an earlier write, once per handle.
        """
        handle = self.writable(handle_id)
        return await self.write_through(handle, offset, data, is_append=handle.is_append)

    async def write_through(
        self, handle: FileHandle, offset: int, data: Buffer, *, is_append: bool
    ) -> int:
        """Do what `write` does, through a handle that can write; only with `is_append` at the end."""
        _check_end(handle, offset, len(data))
        core, state = self._core, handle.state
        if len(data) == 0:
            return 0
        if state.is_metered:
            data = await self._fitting(state, None if is_append else offset, data)
        count = len(data)
        await self._prepare(handle, count, is_append=is_append)
        if is_append:
            await self._append(state, offset, data)
        else:
            core.buffer_bytes(state, offset, data)
        core.space.note_written(count)
        if core.space.is_tight(core.now_s()):
            await core.drain(state)
            self._raise_pending_error(handle)
        return count

    async def _prepare(self, handle: FileHandle, count: int, *, is_append: bool) -> None:
        """Take room for `count` bytes, and wait until they may be written."""
        core, state = self._core, handle.state
        if not core.budget.try_acquire(count):
            await core.wait_for_room(count)
        if state.append.length and not is_append:
            # Records appended before this write come before it: they need their place in the file now.
            await core.drain(state)
        while state.lock.locked():
            async with state.lock:
                pass
        handle.is_dirty = True

    async def write_unbuffered(self, handle_id: int, offset: int, data: Buffer) -> int:
        """Write after all that was written before, straight from `data`; return the count when storage has it.

        Cancelled, the write still ends as it would have; `data` is kept until then.
        The kernel may go on to show what it had of these bytes: see `VfsCore.forget_pages`.

        Raises:
            FsError: as `write`; the error of this very write is not told to this handle again.
        """
        handle = self.writable(handle_id)
        _check_end(handle, offset, len(data))
        core, state = self._core, handle.state
        if len(data) == 0:
            return 0
        if state.is_metered:
            data = await self._fitting(state, offset, data)
        await self._prepare(handle, len(data), is_append=False)
        flush = core.send(state, offset, data)
        core.space.note_written(len(data))
        await flush.done.wait()
        if flush.failure is not None:
            handle.seen_error_count = state.error_count
            raise flush.failure
        return len(data)

    async def _fitting(self, state: InodeState, offset: int | None, data: Buffer) -> Buffer:
        """Return as much of `data` as the quotas of bytes above have room for, promised; offset None: at the end.

        Raises:
            FsError: QUOTA_EXCEEDED for not a single byte, and whatever meta says.
        """
        asked_start = -1
        while state.is_metered:
            start = state.local_length() if offset is None else offset
            room = state.promised_length - start
            if room >= len(data):
                break
            if room > 0 and asked_start == start:
                return memoryview(data)[:room]
            await self._core.secure(state, start, start + len(data))
            asked_start = start
        return data

    def write_now(self, handle_id: int, offset: int, data: Buffer) -> int | None:
        """Do what `write` does when nothing has to be waited for; else return None, with nothing done.

        Raises:
            FsError: as `write`.
        """
        handle = self.writable(handle_id)
        _check_end(handle, offset, len(data))
        core, state, count = self._core, handle.state, len(data)
        if count == 0:
            return 0
        if (
            handle.is_append
            or state.append.length
            or state.lock.locked()
            or (state.is_metered and offset + count > state.promised_length)
            or core.space.is_tight(core.now_s(), more_bytes=count)
            or not core.budget.try_acquire(count)
        ):
            return None
        handle.is_dirty = True
        core.buffer_bytes(state, offset, data)
        core.space.note_written(count)
        return count

    async def _append(self, state: InodeState, offset: int, data: Buffer) -> None:
        core, append = self._core, state.append
        if not append.pieces:
            append.assumed_offset = offset
        append.pieces.append(data)
        append.length += len(data)
        state.local_mtime_ns = core.runtime.clock.wall_ns()
        state.content_seq += 1
        if append.length >= core.section.write_buffer_bytes:
            await core.flush_append(state)

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
            if hint is not None:
                request.length_hint.CopyFrom(hint)
            elif state.has_unreported:
                await core.report(state, is_durable=False)
            before_ver, seq = state.file.data_ver, state.acked_seq
            reply = await core.call(services.META_SET_ATTR, request)
            inode = inode_from_pb(reply.inode)
            state.absorb(inode)
            state.forget_length()
            # The request carried what was written before, and a truncation counts as new content.
            state.reported_seq = max(state.reported_seq, seq)
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
            state.content_seq += 1
            state.cached_ver = state.file.data_ver
            await self._core.kernel.invalidate_content(inode_id)

    # -- read -------------------------------------------------------------------------------------

    async def read(self, handle_id: int, offset: int, count: int) -> Buffer:
        """Return the bytes of [offset, offset + count), shorter only at the end of the file.

        The buffer belongs to the caller to read, not to write.

        Raises:
            FsError: BAD_FILE, CHECKSUM_MISMATCH, IO_ERROR and others of ChunkStore.read.
        """
        # 1. who reads
        handle = self.readable(handle_id)
        state = handle.state
        # 2. own writes first
        if state.is_dirty:
            await self._core.wait_written(state, offset, offset + count)
        # 3. clip to the length
        if handle.is_append and offset + count > state.local_length():
            await self._refresh(state, handle.caller)
        length = state.local_length()
        end = min(offset + count, length)
        if end <= offset:
            return b""
        # 4. readahead, else straight from storage
        self._fetch_ahead(handle, offset, end, length)
        blocks = handle.readahead.covering(offset, end)
        found = await _assemble(blocks, offset, end) if blocks else None
        if found is not None:
            return found
        view = memoryview(bytearray(end - offset))
        await self._core.store.read([FileRead(state.ref, offset, view)])
        return view

    def read_now(self, handle_id: int, offset: int, count: int) -> Buffer | None:
        """Do what `read` does when the bytes were read ahead; else return None, with nothing done.

        Raises:
            FsError: BAD_FILE.
        """
        handle = self.readable(handle_id)
        state = handle.state
        if state.is_dirty or handle.is_append or handle.readahead_seq != state.content_seq:
            return None
        length = state.local_length()
        end = min(offset + count, length)
        if end <= offset:
            return b""
        blocks = handle.readahead.covering(offset, end)
        if not blocks or not all(block.content.is_fetched for block in blocks):
            return None
        self._fetch_ahead(handle, offset, end, length)
        return _cut_out(blocks, offset, end)

    async def _refresh(self, state: InodeState, caller: Caller) -> None:
        request = meta_pb2.GetAttrReq(caller=caller.to_pb(), inode_id=state.inode_id)
        reply = await self._core.call(services.META_GET_ATTR, request)
        state.absorb(inode_from_pb(reply.inode))

    def _fetch_ahead(self, handle: FileHandle, offset: int, end: int, length: int) -> None:
        core, state, ahead = self._core, handle.state, handle.readahead
        window_bytes_max = core.section.readahead_bytes_max
        if window_bytes_max == 0 or handle.is_append:
            return
        before = ahead.held_bytes
        if handle.readahead_seq != state.content_seq:
            ahead.clear_blocks()
            handle.readahead_seq = state.content_seq
        ahead.note_read(offset, end, window_bytes_max)
        if not state.is_dirty:
            # What was buffered meanwhile is not on storage yet, so nothing is fetched beside it.
            room = core.section.readahead_total_bytes_max - core.readahead_bytes
            for start, stop in ahead.ranges_to_fetch(length, max(room, 0)):
                block = Block(start, stop, FetchedBlock(stop - start))
                ahead.add(block)
                core.spawn(self._fetch, state, block)
        core.readahead_bytes += ahead.held_bytes - before

    async def _fetch(self, state: InodeState, block: Block[FetchedBlock]) -> None:
        content = block.content
        try:
            await self._core.store.read([FileRead(state.ref, block.offset, content.view)])
        except FsError as error:
            content.error = error
        finally:
            content.done.set()

    def _drop_readahead(self, handle: FileHandle) -> None:
        self._core.readahead_bytes -= handle.readahead.held_bytes
        handle.readahead.clear()

    # -- the rest ---------------------------------------------------------------------------------

    def handle(self, handle_id: int) -> FileHandle:
        """Return what a handle stands for; raises FsError(BAD_FILE)."""
        handle = self._handles.get(handle_id)
        if handle is None:
            raise FsError(Status.BAD_FILE, f"no open file {handle_id}")
        return handle

    def open_state(self, handle_id: int) -> InodeState:
        """Return the state of the file that a handle is for; raises FsError(BAD_FILE)."""
        return self.handle(handle_id).state

    def readable(self, handle_id: int) -> FileHandle:
        """Return a handle that can read; raises FsError(BAD_FILE)."""
        handle = self.handle(handle_id)
        if not handle.can_read:
            inode_id = handle.state.inode_id
            raise FsError(Status.BAD_FILE, f"inode {inode_id} is open for writing only")
        return handle

    def writable(self, handle_id: int) -> FileHandle:
        """Return a handle that can write.

        Raises:
            FsError: BAD_FILE, or the error of an earlier write, once per handle.
        """
        handle = self.handle(handle_id)
        state = handle.state
        if not handle.can_write:
            raise FsError(Status.BAD_FILE, f"inode {state.inode_id} is open for reading only")
        if state.error_count > handle.seen_error_count:
            self._raise_pending_error(handle)
        return handle

    def _raise_pending_error(self, handle: FileHandle) -> None:
        seen, handle.seen_error_count = handle.seen_error_count, handle.state.error_count
        self._core.raise_pending_error(handle.state, seen)

    async def release_all(self) -> None:
        """Release every open file; errors are logged."""
        for handle_id in list(self._handles):
            try:
                await self.release(handle_id)
            except FsError as error:
                _log.error("open file %d: releasing failed: %s", handle_id, error)


def _has_spare_promise(state: InodeState) -> bool:
    """Return whether bytes below a quota are promised to one open file that may not need them any more."""
    if not state.is_metered or state.promised_length <= state.local_length():
        return False
    return sum(handle.can_write for handle in state.handles.values()) == 1


def _check_end(handle: FileHandle, offset: int, count: int) -> None:
    if offset + count > MAX_FILE_LENGTH_BYTES:
        inode_id = handle.state.inode_id
        raise FsError(Status.FILE_TOO_LARGE, f"inode {inode_id}: {offset}+{count}")


async def _assemble(blocks: list[Block[FetchedBlock]], offset: int, end: int) -> Buffer | None:
    """Wait for blocks and return [offset, end) of them; None when one could not be fetched."""
    for block in blocks:
        await block.content.done.wait()
        if block.content.error is not None:
            return None
    return _cut_out(blocks, offset, end)


def _cut_out(blocks: list[Block[FetchedBlock]], offset: int, end: int) -> Buffer:
    parts = []
    for block in blocks:
        start = max(offset, block.offset) - block.offset
        parts.append(block.content.view[start : min(end, block.end) - block.offset])
    return parts[0] if len(parts) == 1 else b"".join(parts)
