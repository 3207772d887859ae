"""Batches of reads and writes that go between storage and a caller's own memory,
past the kernel and all buffers.

A program's share of an open file is had by a ticket, which only who holds the file open can ask the
kernel for; see specs/batch.md.  Semantics are those of direct I/O on the same mount: own buffered
writes are seen and stay in order, and the kernel forgets what it shows of a file that was written.

Does not: rings, memory, who may call; fs/client/batchio does.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

import trio

from ...kernels.batches import FILE_END, are_within
from ...rpc.api import UnderWay
from ...runtime.ports import Buffer
from ...runtime.tracing import Tracer
from ...schema.ids import ChainTableId, InodeId
from ...schema.layout import CHUNK_SIZE_BYTES_MIN, FileRef, Layout
from ...schema.status import FsError, Status
from ..file_read import FileRead
from ..holes import CutMeanwhileError
from ..patience import same_error
from ..read_table import ReadTable
from ..side_by_side import each_or_error
from .core import VfsCore
from .files import Files
from .inline_files import OF_OPEN_S
from .namespace import Namespace
from .open_file import FileHandle, InodeState

TICKET_BYTES: Final = 16
NO_FILE: Final = FileRef(InodeId(0), Layout(ChainTableId(0), 0, CHUNK_SIZE_BYTES_MIN, 1, 0, 0), 1)
"""Of what has not been looked at."""
_AT_ONCE_COUNT_MAX: Final = 1024
"""Of what is done one by one, writes and the reads of a batch that failed: a turn of the event loop
with so many takes some 0.1 s, and each write is compared with all that are under way.
"""
BEGUN_ALONE_BYTES_MAX: Final = 64 * 1024
"""Of a read by itself: to copy it once more costs less than a task.  Several reads of so many bytes
are mostly for several nodes.
"""
_TICKET_COUNT_MAX: Final = 65_536
"""Of tickets that were never used, the oldest are forgotten."""


class BatchIo(FileRead):
    """One read or write of a batch, and what became of it;
    a read that is asked of storage as it is.

    `file` is known once it is read.
    """

    handle_id: int = 0
    count: int = 0
    """Bytes that were moved: fewer than wanted at the end of the file, or where a quota ends."""
    error: FsError | None = None


class Batches:
    """The batch half of `Vfs`."""

    def __init__(self, core: VfsCore, files: Files, namespace: Namespace, tracer: Tracer) -> None:
        self.tracer = tracer
        self.profile = core.profile
        self.batch_count = self.entry_count = self.wake_count = self.open_count = 0
        """Of all rings: batches begun, entries taken, bells heard;
        entries taken and not completed, now.
        """
        self._core = core
        self._namespace = namespace
        self._files = files
        self._tickets: dict[bytes, int] = {}
        self._of_root: set[int] = set()
        """Handles that root opened and whose program runs as root."""

    # -- files ------------------------------------------------------------------------------------

    def ticket(self, handle_id: int) -> bytes:
        """Return a secret that stands for an open file, once."""
        if len(self._tickets) >= _TICKET_COUNT_MAX:
            del self._tickets[next(iter(self._tickets))]
        ticket = os.urandom(TICKET_BYTES)  # a secret, unlike what the runtime's generator gives
        self._tickets[ticket] = handle_id
        return ticket

    def open(self, ticket: bytes, *, is_by_root: bool = False) -> int:
        """Return a handle for batches, for a program that is run by root or not.

        Raises:
            FsError: BAD_FILE, for what is no ticket, or of a file closed meanwhile.
        """
        handle_id = self._tickets.pop(ticket, None)
        if handle_id is None:
            raise FsError(Status.BAD_FILE, "this ticket stands for no open file")
        shared_id = self._files.share(handle_id)
        if is_by_root and self._files.handle(shared_id).caller.uid == 0:
            self._of_root.add(shared_id)
        return shared_id

    def rights(self, handle_id: int) -> tuple[bool, bool]:
        """Return whether a handle can (read, write)."""
        handle = self._files.handle(handle_id)
        return handle.can_read, handle.can_write

    def length(self, handle_id: int) -> int:
        """Return the bytes in the file, as this mount knows them."""
        return self._files.open_state(handle_id).local_length()

    async def sync(self, handle_id: int) -> None:
        """Return when all writes to the file through this mount would survive power loss;
        raises FsError.
        """
        await self._files.fsync(handle_id, is_data_only=False)

    async def close(self, handle_id: int) -> None:
        """End a share with all that a program is told when it closes a file.

        Raises:
            FsError: a write failed; the share is gone all the same.
        """
        self._of_root.discard(handle_id)
        try:
            await self._files.flush(handle_id)
        finally:
            with trio.CancelScope(shield=True):
                await self._files.release(handle_id)

    # -- bytes ------------------------------------------------------------------------------------

    async def read(self, ios: Sequence[BatchIo], *, is_relaxed: bool = False) -> None:
        """Fill all buffers, in as few requests as possible; each says for itself how it went."""
        await self._read_once(ios, is_relaxed=is_relaxed)
        await self._read_cut(ios, is_relaxed=is_relaxed)

    async def _read_cut(self, ios: Sequence[BatchIo], *, is_relaxed: bool) -> None:
        """Read once more, by the new length, what was cut off while it was read."""
        while ios := [io for io in ios if isinstance(io.error, CutMeanwhileError)]:
            for io in ios:
                io.error, io.count, io.hole_bytes = None, 0, 0
            await self._read_once(ios, is_relaxed=is_relaxed)

    async def _read_once(self, ios: Sequence[BatchIo], *, is_relaxed: bool) -> None:
        owners: list[BatchIo] = []
        reads: list[FileRead] = []
        inline: dict[InodeState, list[BatchIo]] = {}
        known: dict[int, tuple[InodeState, FileRef, int]] = {}
        for io in ios:
            handle_id, offset, buffer = io.handle_id, io.offset, io.buffer
            end = offset + len(buffer)
            try:
                if handle_id not in known:  # mostly one file for many reads
                    state = self._files.readable(handle_id).state
                    await self._core.settle_length(state)
                    known[handle_id] = (state, state.ref, state.local_length())
                state, ref, length = known[handle_id]
                if state.is_dirty:
                    handle = self._files.readable(handle_id)
                    ref, length = await self._files.settled(handle, offset, len(buffer))
            except FsError as error:
                io.error = same_error(error)
                continue
            if offset < length and state.file.is_inline:
                io.file, io.count = ref, min(end, length) - offset
                inline.setdefault(state, []).append(io)
            elif end <= length:
                io.file = ref
                reads.append(io)
                owners.append(io)
            elif offset < length:
                reads.append(FileRead(ref, offset, buffer[: length - offset]))
                owners.append(io)
        if inline:
            await self._read_inline(inline)
        if reads:
            await self._read_owned(owners, reads, is_relaxed=is_relaxed)

    async def _read_owned(
        self, owners: Sequence[BatchIo], reads: Sequence[FileRead], *, is_relaxed: bool
    ) -> None:
        """Fill buffers from storage; `owners` say of each read how it went."""
        try:
            await self._core.read_stored(reads, is_relaxed=is_relaxed)
        except FsError as error:
            if len(reads) == 1:
                owners[0].error = _own_error(error)
                return
            wanted = list(zip(owners, reads, strict=True))
            await self._read_singly(wanted, is_relaxed=is_relaxed)
        for io, read in zip(owners, reads, strict=True):
            io.count, io.hole_bytes = len(read.buffer), read.hole_bytes

    async def _read_inline(self, inline: Mapping[InodeState, Sequence[BatchIo]]) -> None:
        """Fill what lies within inline files, with bytes that meta has now,
        or told a moment ago to who opened them.
        """
        found: dict[InodeState, Buffer | FsError] = {}
        unknown = []
        for state, ios in inline.items():
            data = self._core.inline_now(state, age_s_max=_age_s_max(state, ios))
            if data is None:
                unknown.append(state)
            else:
                found[state] = data
        if unknown:
            asked = await self._core.ask_inline(unknown)
            found.update(zip(unknown, asked, strict=True))
        for state, ios in inline.items():
            try:
                await self._fill_inline(state, ios, found[state])
            except FsError as error:
                for io in ios:
                    io.error, io.count = _own_error(error), 0

    async def _fill_inline(
        self, state: InodeState, ios: Sequence[BatchIo], data: Buffer | FsError
    ) -> None:
        """Fill what lies within one inline file; raises as `InlineFiles.read_inline`,
        and `data` if it is an error.
        """
        if isinstance(data, FsError):
            raise data
        end = max(io.offset + io.count for io in ios)
        if end > len(data):
            await self._core.meet_short(state, data, end)
        view = memoryview(data)
        for io in ios:
            io.buffer[: io.count] = view[io.offset : io.offset + io.count]

    async def read_table(
        self, table: ReadTable, handles: Mapping[bytes, int], *, is_relaxed: bool
    ) -> list[tuple[int, BatchIo]]:
        """Do as `read`, by rows where all files have all that is asked for and nothing
        that is not in storage yet.

        Args:
            table: what is to be read; its files become known here.
            handles: the handle that each key stands for.
            is_relaxed: as for `read`.

        Returns:
            Of the rows of which there is more to say than that they were read:
            position and what became of it.
        """
        if not self._is_settled(table, handles):
            ios = _ios(table, handles)
            await self.read(ios, is_relaxed=is_relaxed)
            return list(enumerate(ios))
        try:
            await self._core.store.read(table, is_relaxed=is_relaxed)
            await self._core.require_holes(table.made.values())
        except CutMeanwhileError:
            ios = _ios(table, handles)
            await self.read(ios, is_relaxed=is_relaxed)
            return list(enumerate(ios))
        except FsError as error:
            ios = _ios(table, handles)
            for position, io in enumerate(ios):
                io.file, io.count = table[position].file, len(io.buffer)
            if len(ios) == 1:
                ios[0].error = same_error(error)
            else:
                await self._read_singly([(io, io) for io in ios], is_relaxed=is_relaxed)
                await self._read_cut(ios, is_relaxed=is_relaxed)
            return list(enumerate(ios))
        return _with_holes(table)

    def _is_settled(self, table: ReadTable, handles: Mapping[bytes, int]) -> bool:
        ends = []
        for key, handle_id in handles.items():
            try:
                state = self._files.readable(handle_id).state
            except FsError:
                return False
            length = state.settled_length()
            if length < 0 or state.file.is_inline:
                return False
            table.files[key] = state.ref
            ends.append(FILE_END.pack(key, length))
        return are_within(table.entries, b"".join(ends))

    def begin_table(
        self,
        table: ReadTable,
        handles: Mapping[bytes, int],
        on_end: Callable[[Sequence[tuple[int, BatchIo]] | None], None],
        *,
        is_relaxed: bool,
    ) -> UnderWay | None:
        """As `ChunkStore.begin_read`, of rows whose files have nothing that is not in storage yet.

        `on_end` is called with what `read_table` returns; None: that has to be asked.
        """
        if not self._is_settled(table, handles):
            return None

        def end(is_done: bool) -> None:
            made = table.made
            if made:  # holes, or what is not as it was asked for
                # whether what is not there is a hole, has to be asked for
                is_done &= all(
                    not read.hole_bytes or self._core.is_known_hole(read) for read in made.values()
                )
                if not is_done:
                    made.clear()
            on_end((_with_holes(table) if made else ()) if is_done else None)

        begin = partial(self._core.store.begin_read, table, end, is_relaxed=is_relaxed)
        return begin(bytes_max=BEGUN_ALONE_BYTES_MAX) if len(table) == 1 else begin()

    async def _read_singly(
        self, wanted: Sequence[tuple[BatchIo, FileRead]], *, is_relaxed: bool
    ) -> None:
        """Find out which reads of a batch cannot be done, and do the others."""
        read = partial(self._core.read_stored, is_relaxed=is_relaxed)
        calls = [partial(read, [one]) for _, one in wanted]
        done = await each_or_error(calls, at_once_max=_AT_ONCE_COUNT_MAX)
        for (io, _), error in zip(wanted, done, strict=True):
            io.error = error

    async def write(self, ios: Sequence[BatchIo]) -> None:
        """Write all buffers; each says for itself how it went."""
        for handle_id in {io.handle_id for io in ios}:
            try:
                await self._drop_privileges(self._files.writable(handle_id))
            except FsError as error:
                for io in ios:
                    io.error = error if io.handle_id == handle_id else io.error
        ios = [io for io in ios if io.error is None]
        changed: dict[InodeId, InodeState] = {}
        if len(ios) == 1:
            await self._write_one(ios[0], changed)
        else:
            calls = [partial(self._write_one, io, changed) for io in ios]
            await each_or_error(calls, at_once_max=_AT_ONCE_COUNT_MAX)
        for state in changed.values():
            await self._core.forget_pages(state)

    async def _drop_privileges(self, handle: FileHandle) -> None:
        """Do what the kernel does before its own writes:
        a program that was changed runs as nobody else, unless root changed it.
        """
        if handle.handle_id not in self._of_root:
            await self._namespace.drop_set_id(handle)
        await self._namespace.drop_capability(handle.state, handle.caller)

    async def _write_one(self, io: BatchIo, changed: dict[InodeId, InodeState]) -> None:
        try:
            state = self._files.open_state(io.handle_id)
            io.count = await self._files.write_unbuffered(io.handle_id, io.offset, io.buffer)
            changed[state.inode_id] = state
        except FsError as error:
            io.error = same_error(error)


def _age_s_max(state: InodeState, ios: Sequence[BatchIo]) -> float:
    """Return how long ago bytes may have been told that these reads show;
    who opens a file reads what came with that once.
    """
    # Who has closed one meanwhile has his read done all the same, as of bytes that storage has.
    found = [state.handles.get(io.handle_id) for io in ios]
    handles = [handle for handle in found if handle is not None]
    age_s_max = OF_OPEN_S if all(handle.is_new for handle in handles) else 0.0
    for handle in handles:
        handle.is_new = False
    return age_s_max


def _own_error(error: FsError) -> FsError:
    """Return what one of several who share an error is told;
    that it is to be done again stays known.
    """
    if isinstance(error, CutMeanwhileError):
        return error.with_traceback(None)
    return same_error(error)


def _ios(table: ReadTable, handles: Mapping[bytes, int]) -> list[BatchIo]:
    ios = []
    for position in range(len(table)):
        key, offset, buffer = table.window(position)
        ios.append(BatchIo(NO_FILE, offset, buffer, 0, handles[key]))
    return ios


def _with_holes(table: ReadTable) -> list[tuple[int, BatchIo]]:
    """Return what became of the rows that holes are in, by position."""
    return [
        (
            position,
            BatchIo(made.file, made.offset, made.buffer, made.hole_bytes, 0, len(made.buffer)),
        )
        for position, made in sorted(table.made.items())
        if made.hole_bytes
    ]
