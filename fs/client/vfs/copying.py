"""copy_file_range(2): bytes go from one file to another within this process,
without passing through the kernel.

The bytes are read from storage, or are inline, and put into the write buffer, so what
holds for writes holds for them.

Holes stay holes.  What the source's chunks do not hold is not written; where the target
has bytes, it is punched as by fallocate.  The target reaches to the end of what was
copied, also when that is a hole.

Not atomic: others may see a part, and what they write to either file
meanwhile may be copied or not.
"""

from dataclasses import dataclass

from ...schema.layout import MIB, FileRef
from ...schema.status import FsError, Status
from ..file_read import FileRead
from ..holes import CutMeanwhileError
from .allocation import Allocation
from .core import VfsCore
from .files import Files
from .open_file import FileHandle, InodeState

COPY_BYTES_MAX = 64 * MIB
"""Of one call; it cannot be interrupted."""
_BATCH_BYTES = 4 * MIB
_PIECE_BYTES_MAX = 1 * MIB


class Copying:
    """The copy_file_range half of `Vfs`."""

    def __init__(self, core: VfsCore, files: Files, allocation: Allocation) -> None:
        self._core = core
        self._files = files
        self._allocation = allocation

    async def copy(
        self, source_id: int, offset: int, target_id: int, place: int, count: int
    ) -> int:
        """Copy up to `count` bytes between two open files and return how many;
        0: `offset` is at the end or behind it.

        Fewer are copied at the end of the source, beyond COPY_BYTES_MAX, or when an error
        comes later than the first byte.

        Raises:
            FsError: BAD_FILE; INVALID_ARGUMENT for overlapping ranges of one file; and what
                reading and writing raise.  (A target with O_APPEND is refused by Linux, which
                alone knows whether the descriptor still has the flag.)
        """
        while True:
            copied = await self._copied(source_id, offset, target_id, place, count)
            if copied is not None:
                return copied

    async def _copied(
        self, source_id: int, offset: int, target_id: int, place: int, count: int
    ) -> int | None:
        """Do `copy`; None: the source was cut before the first byte,
        and has another length by now.
        """
        source, target = self._files.readable(source_id), self._files.writable(target_id)
        await self._core.drain(source.state)
        await self._core.settle_length(source.state)
        ref, length = source.state.ref, source.state.local_length()
        count = min(count, COPY_BYTES_MAX, length - offset)
        if count <= 0:
            return 0
        if source.state is target.state and abs(offset - place) < count:
            what = f"inode {source.state.inode_id}: {offset}+{count} onto {place}"
            raise FsError(Status.INVALID_ARGUMENT, what)
        seen, progress = target.seen_error_count, _Progress(target, place, place)
        try:
            while progress.reached < place + count and not progress.is_stopped:
                start = offset + progress.reached - place
                wanted = min(_BATCH_BYTES, offset + count - start)
                await self._copy_batch(await self._read(source.state, ref, start, wanted), progress)
            await self._make_hole(progress)
        except CutMeanwhileError:
            if progress.settled == place:  # 0 bytes would say that the source has ended
                return None
        except FsError:
            # An error of an earlier write is told once: it must not get lost.
            if progress.settled == place or target.seen_error_count != seen:
                raise
        return progress.settled - place

    async def _read(
        self, state: InodeState, ref: FileRef, offset: int, count: int
    ) -> list[FileRead]:
        """Return what the source has there, in pieces;
        raises as reading, CutMeanwhileError also where it is inline no more.
        """
        if not state.file.is_inline:
            reads = _pieces(ref, offset, count)
            await self._core.read_stored(reads)
            return reads
        data = await self._core.read_inline(state, offset, offset + count)
        return [FileRead(ref, offset, memoryview(data))]

    async def _copy_batch(self, reads: list[FileRead], progress: "_Progress") -> None:
        for read in reads:
            size = len(read.buffer)
            data, target = read.buffer[: size - read.hole_bytes], progress.target
            if data:
                await self._make_hole(progress)
                start = progress.settled
                written = await self._files.write_through(target, start, data, is_append=False)
                progress.settled = progress.reached = start + written
                if written < len(data):
                    progress.is_stopped = True
                    return
            progress.reached += read.hole_bytes

    async def _make_hole(self, progress: "_Progress") -> None:
        """Make a hole of what lies between `settled` and `reached`:
        all at once, for whole chunks are then emptied.
        """
        target, start, end = progress.target, progress.settled, progress.reached
        if start == end:
            return
        await self._allocation.clear(target, start, min(end, target.state.local_length()))
        await self._allocation.lengthen(target, end)
        progress.settled = end


@dataclass(slots=True)
class _Progress:
    """How far the target is as it shall be; between `settled` and `reached` there
    is to be a hole.
    """

    target: FileHandle
    settled: int
    reached: int
    is_stopped: bool = False


def _pieces(ref: FileRef, offset: int, count: int) -> list[FileRead]:
    """Return reads that lie within one chunk each:
    what they find there begins with all its data.
    """
    unit = min(ref.layout.chunk_size_bytes, _PIECE_BYTES_MAX)
    reads, end = [], offset + count
    while offset < end:
        stop = min((offset // unit + 1) * unit, end)
        reads.append(FileRead(ref, offset, memoryview(bytearray(stop - offset))))
        offset = stop
    return reads
