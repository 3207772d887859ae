"""Reading open files: own writes first, then what was read ahead, else straight from storage."""

import logging
from collections.abc import Callable
from functools import partial

import trio

from ...rpc.api import UnderWay
from ...runtime.ports import Buffer
from ...schema import services
from ...schema.inode import inode_from_pb
from ...schema.lacks import lack_among
from ...schema.layout import KIB, FileRef
from ...schema.proto import meta_pb2
from ...schema.status import FsError, Status
from ..file_read import FileRead, ReadAhead
from ..holes import CutMeanwhileError
from ..read_table import ReadTable
from .handles import Handles
from .inline_files import OF_OPEN_S
from .known import Known
from .open_file import FetchedBlock, FileHandle, InodeState
from .ports import Caller
from .readahead import Block
from .told_lengths import LOOK_AGAIN_S, Patience

_log = logging.getLogger(__name__)

TOGETHER_BYTES_MAX = 128 * KIB
"""Larger reads go by themselves: what they cost grows with their bytes."""

PAGE_BYTES = 4 * KIB
"""READs of the page cache that are larger may be ones that no program waits for yet,
of which the kernel keeps none back.
"""


class Reading(Handles):
    """See module head."""

    async def read(self, handle_id: int, offset: int, count: int) -> Buffer:
        """Return the bytes of [offset, offset + count), shorter only at the end of the file.

        The buffer belongs to the caller to read, not to write.

        Raises:
            FsError: BAD_FILE, STALE, CHECKSUM_MISMATCH, IO_ERROR and others of ChunkStore.read.
        """
        return await self.read_since(self.read_mark(), handle_id, offset, count)

    def read_mark(self) -> int:
        """Return what `read_since` wants to know of the moment in which a READ arrived."""
        return self._core.touch_count

    async def read_since(self, mark: int, handle_id: int, offset: int, count: int) -> Buffer:
        """Do `read` for a READ of the kernel that arrived at `mark`."""
        core, patience = self._core, None
        while True:
            # 1. who reads; he may have gone while he was to read once more
            handle = self.readable(handle_id)
            known = None if handle.is_direct else core.known.get(handle.state.inode_id)
            if known is not None:
                known.held.append(offset)
            try:
                found, length = await self._read(handle, offset, count)
            except CutMeanwhileError as error:  # 5. once more, by the length that is known now
                _log.debug("%s", error)
                continue
            finally:
                if known is not None:
                    known.held.remove(offset)
            if len(found) == count or known is None:
                return found
            # 6. what the kernel may overlook waits
            now_s = core.now_s()
            if not known.may_show_longer(length, now_s):
                return found
            # Not at once: READs that the kernel sent before may be about to arrive.
            if patience is not None and self._is_counted(known, mark, offset, length):
                return found
            patience = patience or Patience()
            is_last = patience.has_ended(known, offset, length, now_s)
            known.held.append(offset)
            try:
                await trio.sleep(known.acts_in_s(now_s) if is_last else LOOK_AGAIN_S)
                while not is_last and patience.waits_for_reads(known, offset, core.now_s()):  # noqa: ASYNC110
                    await trio.sleep(LOOK_AGAIN_S)
            finally:
                known.held.remove(offset)
            if is_last:
                return found

    def hold_read(self, handle_id: int, offset: int) -> Callable[[], None]:
        """Have short answers to READs of what lies behind `offset` wait for a READ that has arrived
        and is not done yet.

        Returns:
            To be called once it is answered.
        """
        handle = self._handles.get(handle_id)
        known = None
        if handle is not None and not handle.is_direct:
            known = self._core.known.get(handle.state.inode_id)
        if known is None:
            return lambda: None
        known.held.append(offset)
        return partial(known.held.remove, offset)

    def _is_counted(self, known: Known, mark: int, offset: int, length: int) -> bool:
        """Return whether the kernel will go by a short answer, which is given at once then,
        to a READ from `offset` on of a file of `length` bytes.
        """
        core = self._core
        known.note_short(length)
        if not known.may_answer(mark, offset, core.now_s()):
            return False
        # It shows the file no shorter than up to where the answer ends.
        known.note_told(max(offset, length), core.now_s())
        core.touch(known)
        return True

    async def _read(self, handle: FileHandle, offset: int, count: int) -> tuple[Buffer, int]:
        """Return what there is, and the length of the file that it went by."""
        unsent = self._unsent(handle, offset, count)
        if unsent is not None:
            begun, length = unsent
            if offset + len(begun) == min(offset + count, length):
                return begun, length
            return await self._read_on(handle, offset, count, begun)
        # 2. clip to the length, 3. own writes up to there first
        ref, length = await self.settled(handle, offset, count)
        end = min(offset + count, length)
        if end <= offset:
            return b"", length
        # 4. from meta, readahead, else straight from storage
        if handle.state.file.is_inline:
            return await self._read_inline(handle, offset, end), length
        self._fetch_ahead(handle, offset, end, length)
        blocks = handle.readahead.covering(offset, end)
        found = await _assemble(blocks, offset, end) if blocks else None
        if found is not None:
            self._core.ahead_hit_count += 1
            return found, length
        self._core.ahead_miss_count += 1
        if handle.is_direct or end - offset <= PAGE_BYTES:
            return await self._read_straight(ref, offset, end), length
        async with self._core.large_reads:
            if handle.state.ref is not ref:  # while it waited: the length goes with that one
                raise CutMeanwhileError(handle.state.inode_id)
            return await self._read_straight(ref, offset, end), length

    async def _read_on(
        self, handle: FileHandle, offset: int, count: int, begun: Buffer
    ) -> tuple[Buffer, int]:
        """Do `_read` where the first bytes are known: the kernel asks for more than a program
        that reads back what it has just written.
        """
        state, ref, place = handle.state, handle.state.ref, offset + len(begun)
        rest, length = await self._read(handle, place, offset + count - place)
        if state.ref is not ref or length < place:
            raise CutMeanwhileError(state.inode_id)
        return b"".join((begun, rest)), length

    def _unsent(self, handle: FileHandle, offset: int, count: int) -> tuple[Buffer, int] | None:
        """Return what of a range was written here and is not on its way yet, from its first byte
        on, with the length of the file; None: that is not so of the first byte.

        Nothing newer is known of those bytes: what is on its way, or stored, was written before.
        So a program that reads back what it has just written need not wait for storage.
        """
        state = handle.state
        run = state.run
        if run is None or handle.is_direct or handle.is_append or state.append.length:
            return None
        if state.is_length_unknown or state.cuts_under_way:
            return None
        length = state.local_length()
        end = min(offset + count, length, run.end)
        if not run.offset <= offset < end:
            return None
        return run.between(offset, end), length

    async def _read_straight(self, ref: FileRef, offset: int, end: int) -> Buffer:
        view = self._core.memory.take(end - offset)
        await self._core.read_stored([FileRead(ref, offset, view)])
        return view

    async def _read_inline(self, handle: FileHandle, offset: int, end: int) -> Buffer:
        """Read of an inline file as `read_inline`;
        past the page cache each read asks, but for the first after the open.
        """
        age_s_max = None
        if handle.is_direct:
            age_s_max, handle.is_new = OF_OPEN_S if handle.is_new else 0.0, False
        core = self._core
        return await core.read_inline(handle.state, offset, end, age_s_max=age_s_max)

    async def settled(self, handle: FileHandle, offset: int, count: int) -> tuple[FileRef, int]:
        """Return by what file and length to read, once storage has what this mount wrote
        to [offset, offset + count) below that length.

        What is written meanwhile is not waited for, and lies beyond it
        where it made the file longer.

        Raises:
            FsError: the length cannot be found out.
        """
        state, core = handle.state, self._core
        while True:
            if state.is_length_unknown:
                await core.settle_length(state)
            while state.cuts_under_way:
                await state.cut_ended.wait()
            if handle.is_append and offset + count > state.local_length():
                await self._refresh(state, handle.caller)
            ref, length = state.ref, state.local_length()
            end = min(offset + count, length)
            if end <= offset or not state.is_dirty:
                return ref, length
            # A report does not settle it while something is buffered; then nothing
            # would come of looking again.
            was_unknown = state.is_length_unknown
            await core.wait_written(state, offset, end)
            is_same = state.ref.truncate_ver == ref.truncate_ver
            is_as_known = was_unknown or not state.is_length_unknown
            if is_same and is_as_known and state.local_length() >= end:
                return state.ref, length

    def read_now(self, handle_id: int, offset: int, count: int) -> Buffer | None:
        """Do what `read` does when the bytes were read ahead, are inline and known, or were written
        here and are not sent yet; else return None, with nothing done.

        Raises:
            FsError: BAD_FILE.
        """
        handle = self.readable(handle_id)
        state = handle.state
        if state.run is not None:
            return self._unsent_now(handle, offset, count)
        is_inline = state.file.is_inline and not handle.is_direct
        if state.is_dirty or handle.is_append or state.is_length_unknown or state.cuts_under_way:
            return None
        if handle.readahead_seq != state.content_seq and not is_inline:
            return None
        length = state.local_length()
        end = min(offset + count, length)
        if end < offset + count and self._may_show_longer(state, length):
            return None
        if end <= offset:
            return b""
        if is_inline:
            data = self._core.inline_now(state)
            return None if data is None or end > len(data) else memoryview(data)[offset:end]
        blocks = handle.readahead.covering(offset, end)
        if not blocks or not all(block.content.is_fetched for block in blocks):
            return None
        self._core.ahead_hit_count += 1
        self._fetch_ahead(handle, offset, end, length)
        return _cut_out(blocks, offset, end)

    def _unsent_now(self, handle: FileHandle, offset: int, count: int) -> Buffer | None:
        unsent = self._unsent(handle, offset, count)
        if unsent is None:
            return None
        found, length = unsent
        if offset + len(found) < min(offset + count, length):
            return None
        is_short = len(found) < count and self._may_show_longer(handle.state, length)
        return None if is_short else found

    def ahead_now(self, handle_id: int, offset: int, count: int) -> memoryview | None:
        """Return what `read_now` would, if one block that was read ahead holds all of it,
        with nothing done but that.

        Whoever gives it to the kernel calls `note_ahead` then: what comes next is
        fetched while the reader works.

        Raises:
            FsError: BAD_FILE.
        """
        handle = self.readable(handle_id)
        blocks, state, end = handle.readahead.blocks, handle.state, offset + count
        if not blocks or handle.is_append or handle.readahead_seq != state.content_seq:
            return None
        if (
            state.is_dirty
            or state.is_length_unknown
            or state.cuts_under_way
            or state.file.is_inline
        ):
            return None
        if end > state.local_length():
            return None
        for block in blocks:
            if offset < block.end:
                is_whole = block.offset <= offset and end <= block.end
                content = block.content
                if is_whole and content.is_fetched:
                    return content.view[offset - block.offset : end - block.offset]
                break
        return None

    def note_ahead(self, handle_id: int, offset: int, count: int) -> None:
        """A READ was answered with what `ahead_now` returned: fetch what comes next."""
        handle = self.readable(handle_id)
        self._core.ahead_hit_count += 1
        self._fetch_ahead(handle, offset, offset + count, handle.state.local_length())

    def begin_read(self, handle_id: int, offset: int, count: int) -> tuple[FileRef, int] | None:
        """Return what `read` would ask of storage, if that is all it would do: file and bytes;
        else None, with nothing done.

        It is to be asked for at once (`read_together`): what is written
        meanwhile may be read or not.

        Raises:
            FsError: BAD_FILE.
        """
        handle = self.readable(handle_id)
        state, ahead = handle.state, handle.readahead
        if handle.is_append or ahead.blocks or state.file.is_inline:
            return None
        length = state.settled_length()
        end = min(offset + count, length)
        if not 0 < end - offset <= TOGETHER_BYTES_MAX:
            return None
        if end < offset + count and self._may_show_longer(state, length):
            return None
        if not handle.is_direct and end - offset > PAGE_BYTES and not self._core.has_room_together:
            return None  # it waits for its turn among the large ones
        self._core.ahead_miss_count += 1
        # what it fetches lies behind: there were no blocks
        self._fetch_ahead(handle, offset, end, length)
        return state.ref, end - offset

    async def read_together(self, table: ReadTable) -> None:
        """Read what `begin_read` returned, of any files, with one request to each storage node.

        Raises:
            CutMeanwhileError: of one the file was truncated meanwhile: `read` has to do each.
            FsError: as `read`, for any of them.
        """
        core = self._core
        read = [core.known[inode_id] for inode_id in table.paged if inode_id in core.known]
        taken = len(table.view) if table.paged else 0
        core.together_bytes += taken
        for known in read:
            known.read_count += 1
        try:
            await core.store.read(table)
            if table.made:
                await core.require_holes(table.made.values())
        finally:
            core.together_bytes -= taken
            for known in read:
                known.read_count -= 1

    def begin_together(
        self, table: ReadTable, on_end: Callable[[bool], None], bytes_max: int
    ) -> UnderWay | None:
        """Begin what `read_together` does, for up to so many bytes, without a task that waits.

        Args:
            table: of what `begin_read` returned.
            on_end: called once, later, in whatever task: True: all is read; False: `read` has to
                do each.  It does not raise.
            bytes_max: of all.

        Returns:
            What can give the reads up, as long as storage has not answered: their memory is not
            touched after that.  None: nothing is begun.
        """
        core = self._core
        read = [core.known[inode_id] for inode_id in table.paged if inode_id in core.known]
        taken = len(table.view) if table.paged else 0

        def end(is_done: bool) -> None:
            core.together_bytes -= taken
            for known in read:
                known.read_count -= 1
            on_end(is_done)

        def have_come(is_done: bool) -> None:
            is_doubted = is_done and not all(
                not one.hole_bytes or core.is_known_hole(one) for one in table.made.values()
            )
            if not is_doubted:
                end(is_done)
                return
            try:
                core.spawn(self._end_with_holes, table, end)
            except Exception as error:  # noqa: BLE001 - no task to be had: `read` meets and tells it
                _log.debug("holes that were read: %r", error)
                end(False)

        begun = core.store.begin_read(table, have_come, bytes_max=bytes_max)
        if begun is not None:
            core.together_bytes += taken
            for known in read:
                known.read_count += 1
        return begun

    async def _end_with_holes(self, table: ReadTable, end: Callable[[bool], None]) -> None:
        """Find out whether the holes of a table are holes, and tell it."""
        are_holes = False
        try:
            await self._core.require_holes(table.made.values())
            are_holes = True
        except Exception as error:  # noqa: BLE001 - `read` meets and tells it
            _log.debug("holes that were read: %r", error)
        finally:
            end(are_holes)

    def _may_show_longer(self, state: InodeState, length: int) -> bool:
        """Return whether the kernel may take a file for longer than it is:
        what it is answered then takes more care.
        """
        known = self._core.known.get(state.inode_id)
        return known is not None and known.may_show_longer(length, self._core.now_s())

    async def _refresh(self, state: InodeState, caller: Caller) -> None:
        request = meta_pb2.GetAttrReq(caller=caller.to_pb(), inode_id=state.inode_id)
        reply = await self._core.call(services.META_GET_ATTR, request)
        state.absorb(inode_from_pb(reply.inode))

    def _fetch_ahead(self, handle: FileHandle, offset: int, end: int, length: int) -> None:
        core, state, ahead = self._core, handle.state, handle.readahead
        window_bytes_max = core.section.readahead_bytes_max
        if window_bytes_max == 0 or handle.is_append:
            ahead.clear()  # from before it was set to that
            core.forget_ahead(ahead)
            return
        if handle.readahead_seq != state.content_seq:
            ahead.clear_blocks()
            handle.readahead_seq = state.content_seq
        ahead.note_read(offset, end, window_bytes_max)
        core.forget_ahead(ahead)
        if not state.is_dirty:
            # What was buffered meanwhile is not on storage yet, so nothing is fetched beside it.
            room = core.section.readahead_total_bytes_max - core.readahead_bytes
            for turn, (start, stop) in enumerate(ahead.ranges_to_fetch(length, max(room, 0))):
                block = Block(start, stop, FetchedBlock(core.ahead_memory.take(stop - start)))
                core.spawn(self._fetch, state.ref, block, turn)  # first: else nobody would fetch it
                ahead.add(block)
                core.readahead_bytes += stop - start
                core.fetched_ahead_bytes += stop - start
            core.forget_ahead(ahead)  # what the reader has overtaken

    async def _fetch(self, ref: FileRef, block: Block[FetchedBlock], turn: int = 0) -> None:
        """Fetch a block, `turn` others that were begun with it being asked for before:
        whoever reads needs them sooner.
        """
        content = block.content
        # Whatever ends this task early, a bug or the end of the mount, nobody may
        # take zeros for the content.
        content.error = FsError(Status.IO_ERROR, "the mount stopped while it read")
        try:
            for _ in range(turn):  # tasks that are begun together run in any order
                await trio.lowlevel.checkpoint()
            read = ReadAhead(ref, block.offset, content.view)
            await self._core.read_stored([read])
            content.error = None
        except FsError as error:
            content.error = error.with_traceback(None)  # which knows the content
        except Exception as error:  # whoever reads meets it, too, if it lasts
            lack = lack_among(error)
            if lack is None:
                raise
            _log.warning("inode %d is not read ahead: %r", ref.inode_id, lack)
        finally:
            content.done.set()
            if block.is_dropped:
                self._core.readahead_bytes -= block.end - block.offset


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
