"""fallocate(2): lengthening a file, and turning bytes into a hole or into zeros.

Allocating reserves nothing.  Bytes that were never written take no space and read as zeros, so it
can only lengthen the file, and a later write may still meet a full cluster; what there is no space
for at all is refused at once.  It moves the times of the file all the same.

A hole never changes the length:
    - Whole chunks within it, of a file that is not inline, are emptied, each by an
      update that happens exactly once.
    - At its edges zeros are written, also in the chunk where the file ends: another mount
      may be writing behind the end that this one knows.  Where that chunk has no bytes up
      to the end, the zeros are left out.
    - Writers of this mount wait meanwhile, as for a truncation.
"""

from enum import IntFlag

from ...schema import services
from ...schema.layout import MAX_FILE_LENGTH_BYTES
from ...schema.proto import meta_pb2
from ...schema.status import FsError, Status
from ..file_read import FileRead
from .core import VfsCore
from .files import Files
from .open_file import FileHandle, InodeState
from .writing import require_not_append_only


class FallocateMode(IntFlag):
    """Modes of fallocate(2), numbers as in linux/falloc.h."""

    KEEP_SIZE = 0x01
    PUNCH_HOLE = 0x02
    ZERO_RANGE = 0x10


_SUPPORTED = FallocateMode.KEEP_SIZE | FallocateMode.PUNCH_HOLE | FallocateMode.ZERO_RANGE


class Allocation:
    """The fallocate half of `Vfs`."""

    def __init__(self, core: VfsCore, files: Files) -> None:
        self._core = core
        self._files = files

    async def fallocate(self, handle_id: int, mode: int, offset: int, length: int) -> None:
        """Lengthen a file that is open for writing, or clear bytes of it, as the mode says.

        Raises:
            FsError: NOT_SUPPORTED for other modes, INVALID_ARGUMENT, FILE_TOO_LARGE, BAD_FILE,
                NO_SPACE, and what writing and truncating raise.
        """
        if mode & ~_SUPPORTED or (mode & FallocateMode.PUNCH_HOLE and mode != 3):  # noqa: PLR2004
            raise FsError(Status.NOT_SUPPORTED, f"fallocate mode {mode:#x}")
        if length <= 0 or offset < 0:
            raise FsError(Status.INVALID_ARGUMENT, f"fallocate of {offset}+{length}")
        if offset + length > MAX_FILE_LENGTH_BYTES:
            raise FsError(Status.FILE_TOO_LARGE, f"fallocate of {offset}+{length}")
        handle = self._files.writable(handle_id)
        if mode & ~FallocateMode.KEEP_SIZE:
            require_not_append_only(handle.state)
        if handle.state.is_length_unknown:  # it must not be lengthened to less than it has
            await self._core.drain(handle.state)
            await self._core.settle_length(handle.state)
        if not mode & FallocateMode.PUNCH_HOLE:
            await self._require_space(handle, offset, offset + length)
        before = handle.state.content_seq, handle.state.file.truncate_ver
        if mode & (FallocateMode.PUNCH_HOLE | FallocateMode.ZERO_RANGE):
            await self.clear(handle, offset, min(offset + length, handle.state.local_length()))
        if not mode & FallocateMode.KEEP_SIZE:
            await self.lengthen(handle, offset + length)
        if (handle.state.content_seq, handle.state.file.truncate_ver) == before:
            self._note_changed(handle)

    async def _require_space(self, handle: FileHandle, offset: int, end: int) -> None:
        """Refuse what lies behind the end of the file and is more than the cluster has free.

        Raises:
            FsError: NO_SPACE, and that of asking.
        """
        more = end - max(offset, handle.state.local_length())
        if more <= 0 or not self._core.space.may_lack(more):
            return
        request = meta_pb2.StatFsReq(caller=handle.caller.to_pb())
        reply = await self._core.call(services.META_STAT_FS, request)
        if not reply.capacity_bytes:  # no storage was known, or none answered
            return
        self._core.space.note_free(reply.free_bytes)
        if more > reply.free_bytes:
            raise FsError(
                Status.NO_SPACE,
                f"inode {handle.state.inode_id:#x}: {more} bytes are to be allocated, "
                f"{reply.free_bytes} are free",
            )

    def _note_changed(self, handle: FileHandle) -> None:
        """Nothing had to be changed, but counts as changed:
        for times, and for set-id bits and capabilities.
        """
        handle.note_write()
        handle.state.note_changed(self._core.runtime.clock.wall_ns())
        handle.state.acked_seq += 1

    async def lengthen(self, handle: FileHandle, end: int) -> None:
        """Let the file reach at least to `end`, further where others have written or write more;
        raises as truncating.
        """
        state = handle.state
        if end <= state.local_length():
            return
        # A metadata service of an earlier release would cut what others have written.
        await self._files.learn_length(state, handle.caller)
        if end <= state.local_length():
            return
        request = meta_pb2.SetAttrReq(
            caller=handle.caller.to_pb(),
            inode_id=state.inode_id,
            length=end,
            only_lengthens=True,
        )
        await self._files.truncate(state.inode_id, request, handle.handle_id)

    async def clear(self, handle: FileHandle, offset: int, end: int) -> None:
        """Make [offset, end), which lies within the file, read as zeros; raises as `fallocate`."""
        if offset >= end:
            return
        size = handle.state.ref.layout.chunk_size_bytes
        first_whole, end_whole = -(-offset // size), end // size
        if first_whole >= end_whole:
            middle = max(offset, end_whole * size)  # at most one chunk begins in between
            await self._write_zeros(handle, offset, middle)
            await self._write_zeros(handle, middle, end)
            return
        await self._write_zeros(handle, offset, first_whole * size)
        await self._write_zeros(handle, end_whole * size, end)
        if await self._empty_chunks(handle, first_whole, end_whole):
            handle.note_write()
        else:
            end = min(end_whole * size, handle.state.local_length())
            await self._write_zeros(handle, first_whole * size, end)

    async def _write_zeros(self, handle: FileHandle, offset: int, end: int) -> None:
        if offset >= end:
            return
        if await self._ends_in_hole(handle.state, offset, end):
            self._note_changed(handle)
            return
        zeros = bytes(end - offset)
        await self._files.write_through(handle, offset, zeros, is_append=False)

    async def _ends_in_hole(self, state: InodeState, offset: int, end: int) -> bool:
        """Return whether the file ends at `end` and has no bytes from `offset` on:
        who copies holes makes the last one twice.

        Looked at is only that, since it takes what is buffered to be sent first.
        """
        size = state.ref.layout.chunk_size_bytes
        is_last = end == state.local_length() and offset // size == (end - 1) // size
        is_inline = state.inline is not None and state.inline.are_of(state.file)
        if not is_last or is_inline:
            return False
        await self._core.drain(state)
        if end != state.local_length() or state.file.is_inline:
            return False
        probe = FileRead(state.ref, offset, memoryview(bytearray(1)))
        try:
            await self._core.read_stored([probe])
        except FsError:  # also one that the write is going to tell
            return False
        return probe.hole_bytes > 0  # then so is the rest of the chunk

    async def _empty_chunks(self, handle: FileHandle, first: int, end: int) -> bool:
        """Empty chunks [first, end); False: nothing is done, as the file,
        with all that was buffered, is inline: it has none.
        """
        core, state = self._core, handle.state
        async with state.lock:
            # Meta must know the length before the last chunk may be gone: it could
            # not be asked for any more.
            await core.drain(state)
            if state.has_unreported:
                await core.report(state, is_durable=False)
            if state.ref.dyn_stripe < state.ref.layout.stripe_size:
                # Another mount may have written to further chains since, and
                # only those in use are asked.
                await self._files.learn_length(state, handle.caller)
            if state.file.is_inline:
                return False
            state.is_space_unsure = True
            try:
                await core.store.empty_chunks(state.ref, first, end)
            finally:
                state.note_changed(core.runtime.clock.wall_ns())
                state.acked_seq += 1
        return True
