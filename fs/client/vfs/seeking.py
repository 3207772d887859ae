"""lseek(2) with SEEK_DATA and SEEK_HOLE: where a file has bytes, and where it has none.

A chunk holds the bytes from its start up to its own length.  So its data is a prefix, and one byte
tells: if it is a hole, so is the rest of its chunk.  Such bytes are read in batches, without their
content being used.  Where a whole batch is a hole, the chains are asked where there is data again,
for files may be holes of millions of chunks.  An inline file is all data.

What other mounts write meanwhile may be seen or not.

What programs of this mount wrote through maps the kernel does not send by itself before it answers.
Where data is looked for, the kernel is asked for it.  A hole may be told of where such bytes lie;
who goes on from there finds them.
"""

import logging
import os
from collections.abc import Iterable

from ...schema.status import FsError, Status
from ..file_read import FileRead
from ..holes import CutMeanwhileError
from .core import VfsCore
from .files import Files
from .open_file import InodeState

_log = logging.getLogger(__name__)

PROBE_COUNT = 256
"""Chunks that are looked at in one batch."""
GRAIN_BYTES = 4096
"""A hole within a chunk is found to this many bytes; what lies before it counts as data."""


class Seeking:
    """The lseek half of `Vfs`."""

    def __init__(self, core: VfsCore, files: Files) -> None:
        self._core = core
        self._files = files

    async def seek(self, handle_id: int, offset: int, whence: int) -> int:
        """Return the first offset from `offset` on that is data or a hole;
        the end of the file is a hole.

        Raises:
            FsError: BEYOND_END: `offset` is, or there is no data from there on; INVALID_ARGUMENT
                for another `whence`; BAD_FILE, and what reading raises.
        """
        if whence not in (os.SEEK_DATA, os.SEEK_HOLE):
            raise FsError(Status.INVALID_ARGUMENT, f"whence {whence}")
        while True:
            try:
                return await self._seek(self._files.open_state(handle_id), offset, whence)
            except CutMeanwhileError as error:  # by the new length
                _log.debug("%s", error)

    async def _seek(self, state: InodeState, offset: int, whence: int) -> int:
        await self._core.drain(state)
        await self._core.settle_length(state)
        length = state.local_length()
        if not 0 <= offset < length:
            raise FsError(Status.BEYOND_END, f"inode {state.inode_id}: {offset} of {length}")
        if state.file.is_inline:
            return length if whence == os.SEEK_HOLE else offset
        if whence == os.SEEK_HOLE:
            return await self._hole(state, offset, length)
        found = await self._data(state, offset, length)
        if found != offset and _may_be_mapped(state):
            # What programs wrote into that hole through maps the kernel may still have to itself.
            before = state.content_seq
            end = length if found is None else found
            await self._core.kernel.invalidate_content(state.inode_id, offset, end - offset)
            if state.content_seq != before:
                await self._core.drain(state)
                found = await self._data(state, offset, length)
        if found is None:
            raise FsError(Status.BEYOND_END, f"inode {state.inode_id}: no data from {offset} on")
        return found

    async def _data(self, state: InodeState, offset: int, length: int) -> int | None:
        """Return where there is data from an offset on; None: nowhere."""
        size = state.ref.layout.chunk_size_bytes
        index, end_index = offset // size, -(-length // size)
        while index < end_index:
            batch = range(index, min(index + PROBE_COUNT, end_index))
            places = [max(offset, i * size) for i in batch]
            for place, is_hole in zip(places, await self._probe(state, places), strict=True):
                if not is_hole:
                    return place
            if batch.stop == end_index:
                break
            next_index = await self._core.store.next_data(state.ref, batch.stop)
            index = end_index if next_index is None else max(next_index, batch.stop)
        return None

    async def _hole(self, state: InodeState, offset: int, length: int) -> int:
        size = state.ref.layout.chunk_size_bytes
        indices = range(offset // size, -(-length // size))
        for batch in _batches(indices):
            lasts = [min((index + 1) * size, length) - 1 for index in batch]
            for index, is_hole in zip(batch, await self._probe(state, lasts), strict=True):
                if is_hole:
                    start = max(offset, index * size)
                    return await self._first_hole(state, start, min((index + 1) * size, length))
        return length

    async def _first_hole(self, state: InodeState, start: int, end: int) -> int:
        """Return where the hole begins that reaches up to `end`, within one chunk."""
        if (await self._probe(state, [start]))[0]:
            return start
        low, high = start // GRAIN_BYTES, -(-end // GRAIN_BYTES)
        while high - low > 1:  # the byte at `low` is data, that at `high` is not
            middle = (low + high) // 2
            if (await self._probe(state, [middle * GRAIN_BYTES]))[0]:
                high = middle
            else:
                low = middle
        return min(high * GRAIN_BYTES, end)

    async def _probe(self, state: InodeState, places: Iterable[int]) -> list[bool]:
        """Return for each offset whether there is a hole."""
        reads = [FileRead(state.ref, place, memoryview(bytearray(1))) for place in places]
        await self._core.read_stored(reads)
        return [read.hole_bytes > 0 for read in reads]


def _may_be_mapped(state: InodeState) -> bool:
    """Return whether a program may have a map of the file through which it writes:
    whoever maps it so has it open for both.
    """
    return any(handle.can_read and handle.can_write for handle in state.handles.values())


def _batches(indices: range) -> Iterable[range]:
    for start in range(0, len(indices), PROBE_COUNT):
        yield indices[start : start + PROBE_COUNT]
