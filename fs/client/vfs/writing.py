"""Writing open files: into the write buffer of the inode, or past it; `VfsCore` sends it on."""

from ...runtime.ports import Buffer
from ...schema.inode import APPEND_ONLY
from ...schema.layout import MAX_FILE_LENGTH_BYTES
from ...schema.status import FsError, Status
from ..patience import same_error
from .attributes import ExtendedAttributes
from .handles import Handles
from .open_file import FileHandle, InodeState


class Writing(Handles):
    """See module head."""

    async def write(
        self, handle_id: int, offset: int, data: Buffer, *, appends: bool = True
    ) -> int:
        """Buffer a write and return its length; `data` is kept by reference and must not change.

        An O_APPEND handle ignores `offset`, unless `appends` tells that the program has
        taken the flag from its descriptor since.  Below a quota of bytes that has room
        for a part, that is written.

        Raises:
            FsError: BAD_FILE, FILE_TOO_LARGE, QUOTA_EXCEEDED, NOT_PERMITTED, or the error of an
                earlier write, once per handle.
        """
        handle = self.writable(handle_id)
        if handle.is_append and not appends:  # Linux cannot refuse to take the flag away
            require_not_append_only(handle.state)
        return await self._write(handle, offset, data, is_append=handle.is_append and appends)

    async def write_mapped(self, handle_id: int, offset: int, data: Buffer) -> int:
        """Do what `write` does with pages that programs have changed through maps;
        the handle is any one by which the inode is mapped.

        So the pages go to `offset` also by one with O_APPEND, and each close has to see to them.
        They are taken of an immutable file, too: the program may have changed them before.  So of
        an append-only one, as long as somebody has it open from before.

        Raises:
            FsError: as `write`; NOT_PERMITTED: the kernel is told to forget what it shows.
        """
        try:
            handle = self.opened_for_writing(handle_id)
            self._require_unbound(handle.state)
            return await self._write(handle, offset, data, is_append=False)
        finally:
            self.note_mapped(handle_id)

    def _require_unbound(self, state: InodeState) -> None:
        writers = [handle for handle in state.handles.values() if handle.can_write]
        if not all(handle.is_bound for handle in writers):
            return
        try:
            require_not_append_only(state)
        except FsError:
            self._core.drop_pages(state)
            raise

    async def _write(
        self, handle: FileHandle, offset: int, data: Buffer, *, is_append: bool
    ) -> int:
        if handle.is_direct:
            await ExtendedAttributes(self._core).drop_capability(handle.state, handle.caller)
        return await self.write_through(handle, offset, data, is_append=is_append)

    async def write_through(
        self, handle: FileHandle, offset: int, data: Buffer, *, is_append: bool
    ) -> int:
        """Do what `write` does, through a handle that can write;
        only with `is_append` at the end.
        """
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
            # Records appended before this write come before it: they need
            # their place in the file now.
            await core.drain(state)
        while state.lock.locked():
            async with state.lock:
                pass
        handle.note_write()

    async def write_unbuffered(self, handle_id: int, offset: int, data: Buffer) -> int:
        """Write after all that was written before, straight from `data`;
        return the count when storage has it.

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
            # Others may be told of it, too, and what is raised comes to know our bytes.
            raise same_error(flush.failure)
        return len(data)

    async def _fitting(self, state: InodeState, offset: int | None, data: Buffer) -> Buffer:
        """Return as much of `data` as the quotas of bytes above have room for, promised;
        offset None: at the end.

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
        """Do what `write` does when nothing has to be waited for;
        else return None, with nothing done.

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
            or (handle.is_direct and core.now_s() >= state.no_capability_until_s)
            or state.append.length
            or state.lock.locked()
            or (state.is_metered and offset + count > state.promised_length)
            or core.space.is_tight(core.now_s(), more_bytes=count)
            or not core.budget.try_acquire(count)
        ):
            return None
        handle.note_write()
        core.buffer_bytes(state, offset, data)
        core.space.note_written(count)
        return count

    def note_mapped(self, handle_id: int) -> None:
        """Pages came through this handle that a program may have changed through a map
        by another one: each close has to see to them.

        Raises:
            FsError: BAD_FILE.
        """
        for handle in self.handle(handle_id).state.handles.values():
            if handle.can_write:
                handle.is_dirty, handle.is_left = True, False

    async def _append(self, state: InodeState, offset: int, data: Buffer) -> None:
        core, append = self._core, state.append
        if not append.pieces:
            append.assumed_offset = offset
        append.pieces.append(data)
        append.length += len(data)
        state.note_changed(core.runtime.clock.wall_ns())
        if append.length >= core.section.write_buffer_bytes:
            await core.flush_append(state)


def require_not_append_only(state: InodeState) -> None:
    """Raise FsError(NOT_PERMITTED) for an append-only file."""
    if state.inode.iflags & APPEND_ONLY:
        raise FsError(Status.NOT_PERMITTED, f"inode {state.inode_id:#x} is append-only")


def _check_end(handle: FileHandle, offset: int, count: int) -> None:
    if offset + count > MAX_FILE_LENGTH_BYTES:
        inode_id = handle.state.inode_id
        raise FsError(Status.FILE_TOO_LARGE, f"inode {inode_id}: {offset}+{count}")
