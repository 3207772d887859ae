"""How written bytes reach storage: buffered, sent in the background, their failures remembered.

Which locks, and what a failed flush means: see `core`.
"""

import logging
from typing import Final

from ...runtime.ports import Buffer
from ...schema import services
from ...schema.ids import InodeId
from ...schema.inode import Inode, inode_from_pb
from ...schema.lacks import lack_among, lacking
from ...schema.layout import MAX_FILE_LENGTH_BYTES
from ...schema.proto import meta_pb2
from ...schema.status import FsError, Status
from ..api import GoOn
from ..patience import same_error
from .open_file import InodeState
from .ports import Caller
from .shared import Shared, stopped
from .unsent import AppendBuffer, Flush
from .write_run import WriteRun, flush_unit_bytes

_log = logging.getLogger(__name__)

HELD_BYTES_MAX: Final = 32 << 20
"""Of whole flushes that a long stream gathers,
so that each chain gets several chunks in one request.
"""

HELD_SHARE: Final = 8
"""At most this part of all that may be unsent."""

HELD_RANGES_MAX: Final = 64
"""Of a chunk that is written here and there: an update of so many costs little for each of them."""

HELD_CHUNKS_MAX: Final = 16
"""Of a file: who waits for them in the end waits for no more than is under way
at the same time anyhow.
"""


class WriteBack(Shared):
    """See module head."""

    async def wait_for_room(self, count: int) -> None:
        """Take `count` bytes of the dirty budget, pushing everything buffered out meanwhile."""
        while not self.budget.try_acquire(count):
            for state in list(self.states.values()):
                self.start_flush(state)
                if state.append.pieces and not state.append_lock.locked():
                    self.spawn(self._flush_append_logged, state)
            await self.budget.wait_released()

    async def _flush_append_logged(self, state: InodeState) -> None:
        try:
            await self.flush_append(state)
        except FsError as error:
            _log.warning("inode %d: append failed: %s", state.inode_id, error)

    def buffer_bytes(self, state: InodeState, offset: int, data: Buffer) -> None:
        """Put written bytes into the write buffer; budget already taken.  No checkpoint."""
        over = 0
        if state.run is not None and state.run.end != offset:
            # Two runs for the same bytes are two flushes, one after the other, and then
            # storage has to have the first.
            over = state.run.overlay(offset, data) if state.may_go_inline else 0
            if over:
                self.budget.release(over)
            else:
                self._set_aside(state)
        if state.file.has_holes or offset > state.known_end():
            state.is_space_unsure = True
        run = state.run
        if run is None:
            run = state.run = WriteRun(offset)
        if not over:
            run.append(data)
        held_max = min(HELD_BYTES_MAX, self.section.dirty_bytes_max // HELD_SHARE)
        if run.length >= state.stream.held_bytes(offset, len(data), held_max):
            self._launch_units(state, run)
        if run.length == 0:
            state.run = None
        state.written_end = max(state.written_end, offset + len(data))
        state.note_changed(self.runtime.clock.wall_ns())

    def start_flush(self, state: InodeState, *, is_durable: bool = False) -> None:
        """Send what is buffered on its way; returns at once.

        With `is_durable` somebody waits until it is: where nothing else of the file is left to be
        synced, storage is asked to see to that on the way.
        """
        if state.held:
            self._set_aside(state)
            for flush in list(state.held):
                flush.is_waited = is_durable
                flush.is_durable = is_durable and _is_rest_durable(state, but=flush)
                self._let_go(state, flush)
            return
        run, state.run = state.run, None
        if run is None:
            return
        self._launch_units(state, run)
        if run.length:
            is_flushed = is_durable and _is_rest_durable(state)
            self._launch(state, run, is_durable=is_flushed, is_waited=is_durable)

    def _set_aside(self, state: InodeState) -> None:
        """Have what is buffered go with what else is written to its chunk,
        if that comes before somebody waits for it.
        """
        run, state.run = state.run, None
        if run is None:
            return
        self._launch_units(state, run)
        if run.length:
            self._launch(state, run, may_hold=True)

    def _let_go(self, state: InodeState, flush: Flush) -> None:
        """Send what was held back."""
        flush.is_held = False
        state.held.remove(flush)
        self._send_off(state, flush)

    def _send_off(self, state: InodeState, flush: Flush) -> None:
        """Send a flush, without a task where that can be."""
        if flush.is_waited and state.may_go_inline:
            if not self.begin_inline(state, flush):
                self._send_in_task(state, flush)
        elif not self._is_sent(state, flush):
            self._send_in_task(state, flush)

    def _is_sent(self, state: InodeState, flush: Flush) -> bool:
        """Send a flush to storage without a task, if it is one that somebody waits for, of one run;
        False: nothing is done.
        """
        is_single = len(flush.ranges.runs) == 1
        return flush.is_durable and is_single and self._is_begun(state, flush)

    def _send_in_task(self, state: InodeState, flush: Flush) -> None:
        if self._nursery is None:
            self._end_flush(state, flush, stopped())
        else:
            self.spawn(self._run_flush, state, flush)

    def send_anew(self, state: InodeState, flush: Flush) -> None:
        """Send a flush to storage that meta has refused to take."""
        if not self._is_sent(state, flush):
            self._send_in_task(state, flush)

    def begin_inline(self, state: InodeState, flush: Flush) -> bool:
        """See `InlineFiles`."""
        raise NotImplementedError

    async def settle_length(self, state: InodeState) -> None:
        """See `Reports`."""
        raise NotImplementedError

    async def send_inline(self, state: InodeState, flush: Flush) -> bool:
        """See `InlineFiles`."""
        raise NotImplementedError

    def _launch_units(self, state: InodeState, run: WriteRun) -> None:
        """Send what whole flushes can be made of; the rest stays in `run`."""
        unit = flush_unit_bytes(state.ref.layout.chunk_size_bytes, self.section.write_buffer_bytes)
        boundary = (run.offset // unit + 1) * unit
        while run.end >= boundary:
            self._launch(state, run.cut_before(boundary))
            boundary += unit

    def send(self, state: InodeState, offset: int, data: Buffer) -> Flush:
        """Send bytes on their way, after what is buffered; budget already taken.  No checkpoint."""
        self.start_flush(state)
        if state.file.has_holes or offset > state.known_end():
            state.is_space_unsure = True
        run = WriteRun(offset)
        run.append(data)
        state.written_end = max(state.written_end, run.end)
        state.note_changed(self.runtime.clock.wall_ns())
        return self._launch(state, run)

    def _launch(
        self,
        state: InodeState,
        run: WriteRun,
        *,
        is_durable: bool = False,
        is_waited: bool = False,
        may_hold: bool = False,
    ) -> Flush:
        """Send a run on its way, with what waits for an earlier one of its chunk.

        With `may_hold` it may be held back until as much is to be sent as pays, or somebody calls
        `start_flush`, which whoever waits for a flush does, and each that touches its chunks.
        """
        chunk_size_bytes = state.ref.layout.chunk_size_bytes
        flush = Flush(run, chunk_size_bytes, state.file.truncate_ver, is_durable=is_durable)
        flush.is_waited = is_waited
        flush.waits_for = [f for f in state.flushes if f.touches(flush)]
        if flush.waits_for and flush.joins(flush.waits_for[-1]):
            joined = flush.waits_for[-1]
            is_enough = len(joined.ranges.runs) >= HELD_RANGES_MAX
            if joined.is_held and (is_enough or not may_hold):
                self._let_go(state, joined)
            return joined
        for earlier in flush.waits_for:
            if earlier.is_held:
                self._let_go(state, earlier)
        state.flushes.append(flush)
        if may_hold and flush.is_small:
            flush.is_held = True
            state.held.append(flush)
            if len(state.held) > HELD_CHUNKS_MAX:
                self._let_go(state, state.held[0])
        else:
            self._send_off(state, flush)
        return flush

    def _is_begun(self, state: InodeState, flush: Flush) -> bool:
        """Send the bytes of a flush that is to be durable, and waits for nobody, without a task;
        False: nothing is done.
        """
        needed = min(flush.chunk_end, state.ref.layout.stripe_size)
        if self.begins_writes is None or not self._is_covered(state, needed):
            return False

        def ended(is_durable: bool, go_on: GoOn | None) -> None:
            if go_on is None:
                flush.is_durable = is_durable
                self._end_flush(state, flush, None)
            elif self._nursery is None:
                self._end_flush(state, flush, stopped())
            else:
                try:
                    self.spawn(self._go_on_flush, state, flush, go_on)
                except Exception as error:  # noqa: BLE001 - no task to be had: nobody may take the bytes as stored
                    self._end_flush(state, flush, lacking("a flush", error))

        (run,) = flush.ranges.runs
        flush.is_begun = self.begins_writes.begin_write(state.ref, run.offset, run.joined(), ended)
        if flush.is_begun:
            self.know_inline(state, None)  # bytes are on their way to storage
        return flush.is_begun

    async def _go_on_flush(self, state: InodeState, flush: Flush, go_on: GoOn) -> None:
        failure: FsError | None = stopped()
        try:
            flush.is_durable = await go_on()
            failure = None
        except Exception as error:  # noqa: BLE001 - see `_told`
            failure = _told(error)
        finally:
            self._end_flush(state, flush, failure)

    async def _run_flush(self, state: InodeState, flush: Flush) -> None:
        # Whatever ends this task early, a bug or the end of the mount, nobody
        # may take the bytes as stored.
        failure: FsError | None = stopped()
        is_taken = False
        try:
            # The last one first: the others have mostly ended with it, so that many small
            # writes wake each other once.
            for earlier in reversed(flush.waits_for):
                if not earlier.done.is_set():
                    await earlier.done.wait()
            if flush.is_waited:
                is_taken = await self.send_inline(state, flush)
            if is_taken:
                return
            self.know_inline(state, None)  # bytes will be on their way to storage
            await self._extend_stripe(state, flush)
            if flush.doubted is not None and flush.doubted.was_taken():
                flush.is_durable = True
            else:
                flush.is_begun = True
                flush.is_durable = await self._store_bytes(state, flush)
            failure = None
        except Exception as error:  # noqa: BLE001 - see `_told`
            failure = _told(error)
        finally:
            if not is_taken:
                self._end_flush(state, flush, failure)

    async def _store_bytes(self, state: InodeState, flush: Flush) -> bool:
        """Have storage write the bytes of a flush; returns and raises as `ChunkStore.write`."""
        runs = flush.ranges.joined()
        if len(runs) > 1:
            ranges = [(run.offset, run.pieces) for run in runs]
            return await self.store.write_ranges(state.ref, ranges, is_durable=flush.is_durable)
        (run,) = runs
        return await self.store.write(
            state.ref, run.offset, run.joined(), is_durable=flush.is_durable
        )

    def _end_flush(self, state: InodeState, flush: Flush, failure: FsError | None) -> None:
        self._settle_flush(state, flush, failure)
        self._tell_ended(flush)

    def _settle_flush(self, state: InodeState, flush: Flush, failure: FsError | None) -> None:
        """Note how a flush has ended, before who waits for it is told."""
        ranges = flush.ranges
        state.flushes.remove(flush)
        flush.failure = failure
        if failure is None:
            self._note_acked(state, flush)
        else:
            self.note_failure(state, failure, f"bytes {ranges.offset}..{ranges.end}")
        self.budget.release(ranges.length)
        state.content_seq += 1
        # Nobody keeps the bytes, the flushes before, or what waited for this one any
        # longer by having waited for it.
        ranges.forget_bytes()
        flush.waits_for = []

    @staticmethod
    def _tell_ended(flush: Flush) -> None:
        told, flush.told = flush.told, []
        flush.done.set()
        for tell in told:
            tell()

    def note_failure(self, state: InodeState, error: FsError, what: str) -> None:
        """Remember a failed write for every open file of the inode."""
        _log.error("inode %d: writing %s failed: %s", state.inode_id, what, error)
        if error.status is Status.NO_SPACE:
            self.space.note_full(self.now_s())
        state.last_error = error
        state.error_count += 1
        state.is_length_unknown = True
        state.acked_seq += 1
        state.recompute_written_end()
        self.drop_pages(state)

    async def forget_pages(self, state: InodeState) -> None:
        """Have the kernel forget what it shows of a file;
        waits for its reads, so a request must not await it.
        """
        state.cached_ver = None
        await self.kernel.invalidate_content(state.inode_id)

    def drop_pages(self, state: InodeState) -> None:
        """Have the kernel forget what it shows of an inode: some of it was lost."""
        state.cached_ver = None
        if self._nursery is not None:
            self.spawn(self.kernel.invalidate_content, state.inode_id)

    def _note_acked(self, state: InodeState, flush: Flush) -> None:
        if flush.is_durable and state.durable_seq == state.acked_seq:
            state.durable_seq += 1
        state.acked_seq += 1
        if flush.truncate_ver == state.file.truncate_ver:
            state.acked_end = max(state.acked_end, flush.ranges.end)
        else:
            state.is_length_unknown = True

    def _is_covered(self, state: InodeState, needed: int) -> bool:
        """Return whether bytes may be sent to the chunks of so many slots."""
        # Who asks waits for a truncation that is under way: inline bytes that go to a chunk may
        # have to go there once more.
        is_settled = not state.file.truncate_pending and state.inode_id not in self.unsure_inline
        return is_settled and state.ref.dyn_stripe >= needed

    async def _extend_stripe(self, state: InodeState, flush: Flush) -> None:
        """Have meta know of the chunks of a flush that has not been sent;
        the bytes of an inline file are in its first one afterwards.
        """
        needed = min(flush.chunk_end, state.ref.layout.stripe_size)
        if self._is_covered(state, needed):
            return
        async with state.extend_lock:
            if not self._is_covered(state, needed):
                told = state.file
                inode = await self.have_stripe(state.inode_id, state.writer, needed)
                state.absorb_extended(inode)
                if told.is_inline:
                    # To move its bytes counts as a truncation, which cuts none of what
                    # nobody could send before.
                    state.note_moved(told)
        assert state.ref.dyn_stripe >= needed, (state.inode_id, state.ref.dyn_stripe, needed)

    async def have_stripe(self, inode_id: InodeId, writer: Caller, needed: int) -> Inode:
        """Have meta know of the chunks of so many slots,
        and end the report of the file that is in doubt; return the file.

        Raises:
            FsError: STALE: it is gone, so that nothing is in doubt any more; and others of meta.
        """
        request = meta_pb2.ExtendStripeReq(
            caller=writer.to_pb(), inode_id=inode_id, dyn_stripe_min=needed
        )
        report = self.unsure_inline.get(inode_id)
        if report is not None:
            request.ends_inline, request.report_id = True, report.report_id
        is_ended = False
        try:
            reply = await self.call(services.META_EXTEND_STRIPE, request)
            is_ended = True
            if report is not None:
                report.note_told(reply.inline_outcome, self.now_s())
        except FsError as error:
            is_ended = error.status is Status.STALE
            raise
        finally:
            if is_ended and self.unsure_inline.get(inode_id) is report:
                self.unsure_inline.pop(inode_id, None)
        return inode_from_pb(reply.inode)

    async def flush_append(self, state: InodeState, *, is_durable: bool = False) -> None:
        """Reserve room at the end of the file for the gathered records, and start writing them;
        durably as `start_flush`.

        Raises:
            FsError: the reservation failed; the records are dropped and
                the error is remembered too.
        """
        async with state.append_lock:
            if not state.append.pieces:
                return
            await self._drain_runs(state)
            batch, state.append = state.append, AppendBuffer()
            # The records are in neither buffer while the reservation is under way.
            state.append.begin_reservation(batch.length, state.known_end() + batch.length)
            failure: FsError | None = FsError(Status.IO_ERROR, "the append was interrupted")
            try:
                offset = await self._reserve(state, batch.length)
                failure = None
            except FsError as error:
                failure = same_error(error)
                raise
            finally:
                state.append.end_reservation()
                if failure is not None:
                    self.budget.release(batch.length)
                    self.note_failure(state, failure, f"{batch.length} appended bytes")
            run = WriteRun(offset)
            for piece in batch.pieces:
                run.append(piece)
            if state.file.has_holes:  # who counted since the reservation did not find these bytes
                state.is_space_unsure = True
            state.written_end = max(state.written_end, run.end)
            self._launch(state, run, is_durable=is_durable and _is_rest_durable(state))
            if offset != batch.assumed_offset:
                self.spawn(self.kernel.invalidate_content, state.inode_id)

    async def _reserve(self, state: InodeState, count: int) -> int:
        # Meta would take the end that it was told last for that of the file.
        await self.settle_length(state)
        if state.is_length_unknown and state.has_unreported:
            raise FsError(Status.IO_ERROR, f"inode {state.inode_id}: nobody knows where it ends")
        request = meta_pb2.ReserveAppendReq(
            caller=state.writer.to_pb(),
            inode_id=state.inode_id,
            length=count,
            length_hint=state.length_hint(),
            mtime_ns=state.local_mtime_ns,
        )
        reply = await self.call(services.META_RESERVE_APPEND, request)
        if reply.offset + count > MAX_FILE_LENGTH_BYTES:
            raise FsError(Status.FILE_TOO_LARGE, f"inode {state.inode_id}: {reply.offset}+{count}")
        if reply.HasField("inode"):
            state.absorb(inode_from_pb(reply.inode))
        return reply.offset

    async def _drain_runs(self, state: InodeState, *, is_durable: bool = False) -> None:
        self.start_flush(state, is_durable=is_durable)
        for flush in list(state.flushes):
            await flush.done.wait()

    async def drain(self, state: InodeState, *, is_durable: bool = False) -> None:
        """Return when everything written so far was sent, successfully or not.

        With `is_durable` as `start_flush`: what of it is not durable then, a report sees to.
        """
        if state.append.length:
            try:
                await self.flush_append(state, is_durable=is_durable)
            except FsError:  # remembered by flush_append; the open files learn of it
                _log.debug("inode %d: drained with a failed append", state.inode_id)
        await self._drain_runs(state, is_durable=is_durable)

    async def wait_written(self, state: InodeState, offset: int, end: int) -> None:
        """Return when storage holds all that was written to [offset, end): reads see own writes."""
        if state.append.length:
            await self.drain(state)
            return
        run = state.run
        if run is not None and run.offset < end and offset < run.end:
            self.start_flush(state, is_durable=state.may_go_inline)
        for flush in list(state.flushes):
            if flush.ranges.overlaps(offset, end):
                if flush.is_held:
                    self._let_go(state, flush)
                await flush.done.wait()


def _is_rest_durable(state: InodeState, *, but: Flush | None = None) -> bool:
    """Return whether all that was written to a file, but for a flush,
    has arrived and would survive a power loss.
    """
    is_rest_sent = all(flush is but for flush in state.flushes)
    return is_rest_sent and state.durable_seq == state.acked_seq


def _told(error: Exception) -> FsError:
    """Return what writers are told of a failed flush, without the calls it came through;
    raises what is a bug.
    """
    if isinstance(error, FsError):
        return same_error(error)
    lack = lack_among(error)
    if lack is None:
        raise error
    return lacking("a flush", lack)
