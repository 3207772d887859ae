"""What all parts of the vfs share: the ports, the open inodes, and how dirty bytes reach storage.

Locks of one inode, always taken in this order, each optional:
    `lock`         truncation against writing: a truncation holds it from draining to its reply, and
                   writers wait for it before they buffer anything;
    `append_lock`  one reservation at the end of the file at a time, so that records keep their order;
    `promise_lock` below a quota of bytes: no promise is asked for while what is left of one is given back;
    `report_lock`  one Sync at a time, so that this mount recognises its own steps of data_ver;
    `extend_lock`  one ExtendStripe at a time.
Buffering itself has no checkpoint and needs no lock.

Flushes run in the background.  Two flushes of one inode that touch the same chunk never overlap in time:
the later one waits for the earlier.  The bytes they hold over the whole mount are bounded by
dirty_bytes_max: a writer waits for room, and meanwhile everything buffered is sent.

A flush that fails is remembered at its inode and raised once at every open file that can write, by the
next write, fsync or close.  Its bytes are dropped.  Its outcome may be unknown, so from then on the
length is asked from the chains.  Bytes of which meta says that no quota has room for them are dropped and told
of in the same way; meta cuts them, so the length is known then.

Many programs look at the result of write but not at that of close.  So while space is tight, a write
returns only when storage has taken it, and fails itself when there is no room.
"""

import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass

import trio

from ...runtime.ports import Buffer, Runtime
from ...schema import services
from ...schema.config import ClientSection
from ...schema.ids import InodeId, SessionId
from ...schema.inode import Inode, inode_from_pb
from ...schema.layout import MAX_FILE_LENGTH_BYTES
from ...schema.method import Method, ReqT, RspT
from ...schema.proto import common_pb2, meta_pb2
from ...schema.status import FsError, Status
from ..api import ChunkStore, MetaCaller
from .ending import EndingSessions
from .open_file import AppendBuffer, Flush, InodeState
from .ports import Caller, KernelCache
from .told import ToldDirectories
from .write_run import WriteRun, flush_unit_bytes

_log = logging.getLogger(__name__)

SEEN_COUNT_MAX = 65_536
"""How many closed inodes keep the mark that lets the kernel reuse its page cache."""


TIGHT_S = 30.0
"""How long space counts as tight after a write met NO_SPACE."""


class SpaceWatch:
    """Whether the bytes that may be buffered could meet a full disk.  No I/O."""

    def __init__(self, margin_bytes: int) -> None:
        self._margin_bytes = margin_bytes
        self._free_bytes = 0
        self._is_known = False
        self._tight_until_s = 0.0

    def note_free(self, free_bytes: int) -> None:
        """Take in what the cluster says; what is written afterwards is counted down from it."""
        self._free_bytes = free_bytes
        self._is_known = True

    def note_written(self, count: int) -> None:
        """Count bytes that this mount writes."""
        self._free_bytes -= count

    def note_full(self, now_s: float) -> None:
        """A write met NO_SPACE."""
        self._tight_until_s = now_s + TIGHT_S

    def is_tight(self, now_s: float, *, more_bytes: int = 0) -> bool:
        """True when writes, now or after `more_bytes`, must not be acknowledged before storage has them."""
        return now_s < self._tight_until_s or (
            self._is_known and self._free_bytes - more_bytes < self._margin_bytes
        )


class DirtyBudget:
    """Bytes that may be buffered or on their way over the whole mount."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self.used_bytes = 0
        self._released = trio.Event()

    def try_acquire(self, count: int) -> bool:
        """Take `count` bytes; False when there is no room.  A lone large write always fits."""
        if self.used_bytes and self.used_bytes + count > self._bytes_max:
            return False
        self.used_bytes += count
        return True

    def release(self, count: int) -> None:
        """Give bytes back."""
        assert count <= self.used_bytes, (count, self.used_bytes)
        self.used_bytes -= count
        self._released.set()
        self._released = trio.Event()

    async def wait_released(self) -> None:
        """Wait until somebody gives bytes back."""
        await self._released.wait()


@dataclass(slots=True)
class Known:
    """An inode that the kernel holds."""

    lookup_count: int = 0
    given_length: int = -1
    """Length in the last attributes handed out; -1: no regular file."""
    listed_as: tuple[InodeId, bytes] | None = None
    """The (parent, name) under which the kernel may take this inode without asking again; see `give_listed`."""
    symlink_target: bytes = b""
    """Of a symbolic link; it never changes."""
    no_acl_until_s: float = 0.0
    """Until then it counts as known that there is no access control list."""
    acl_unsure_until_s: float = 0.0
    """Until then attributes from before a change of the list may still arrive."""

    def note_acl(self, inode: Inode, now_s: float, age_s_max: float) -> None:
        """Take in what attributes from meta say of access control lists."""
        is_sure = not inode.has_acl and now_s >= self.acl_unsure_until_s
        self.no_acl_until_s = now_s + age_s_max if is_sure else 0.0


class VfsCore:
    """See module head."""

    def __init__(
        self,
        meta: MetaCaller,
        store: ChunkStore,
        runtime: Runtime,
        section: ClientSection,
        kernel: KernelCache,
    ) -> None:
        self.meta = meta
        self.store = store
        self.runtime = runtime
        self.section = section
        self.kernel = kernel
        self.budget = DirtyBudget(section.dirty_bytes_max)
        self.space = SpaceWatch(section.dirty_bytes_max)
        self.states: dict[InodeId, InodeState] = {}
        self.known: dict[InodeId, Known] = {}
        self.seen: dict[InodeId, tuple[int, int]] = {}
        self.ending = EndingSessions(meta)
        self.told = ToldDirectories(section.attr_timeout_s, self.now_s)
        self.readahead_bytes = 0
        self.batch_socket_name = b""
        """Where programs find the server of batches; empty: there is none."""
        self._nursery: trio.Nursery | None = None
        self._handle_id_last = 0

    # -- small things ---------------------------------------------------------------------------

    def attach(self, nursery: trio.Nursery | None) -> None:
        """Say where background work runs; None: nowhere any more."""
        self._nursery = nursery

    def spawn(self, function: Callable[..., Awaitable[object]], *args: object) -> None:
        """Run something in the background until the vfs is shut down."""
        assert self._nursery is not None, "the vfs is not running"
        self._nursery.start_soon(function, *args)

    def new_handle_id(self) -> int:
        """Return a number for an open file or directory, never reused."""
        self._handle_id_last += 1
        return self._handle_id_last

    def new_session_id(self) -> SessionId:
        """Return an id for a file session."""
        return SessionId(f"{self.runtime.random.getrandbits(128):032x}")

    def now_s(self) -> float:
        """Monotonic seconds."""
        return self.runtime.clock.monotonic_s()

    async def call(self, method: Method[ReqT, RspT], request: ReqT) -> RspT:
        """Call meta."""
        return await self.meta.call(method, request)

    def note_told(self, directories: Iterable[common_pb2.InodePb], mark: int) -> None:
        """Take in the directories of a reply to a change of names, whose request was made at `mark`."""
        now_s, age_s_max = self.now_s(), self.section.attr_timeout_s
        for inode in self.told.note(directories, mark):
            known = self.known.get(inode.inode_id)
            if known is not None:
                known.note_acl(inode, now_s, age_s_max)

    def absorbed(self, message: common_pb2.InodePb) -> Inode:
        """Return an inode from meta, merged with what this mount knows better."""
        inode = inode_from_pb(message)
        state = self.states.get(inode.inode_id)
        return inode if state is None or inode.file is None else state.present(inode)

    def state_of(self, inode: Inode, caller: Caller) -> InodeState:
        """Return the state of a regular file, made when it is not open yet."""
        state = self.states.get(inode.inode_id)
        if state is None:
            state = self.states[inode.inode_id] = InodeState(inode, caller)
            self._recall_cached(state, inode)
        else:
            state.absorb(inode)
        return state

    def _recall_cached(self, state: InodeState, inode: Inode) -> None:
        seen = self.seen.pop(inode.inode_id, None)
        assert inode.file is not None
        if seen == (inode.file.data_ver, inode.file.length):
            state.cached_ver = inode.file.data_ver

    def drop_state_if_unused(self, state: InodeState) -> None:
        """Forget an inode that nobody has open and whose data is all reported."""
        is_used = state.handles or state.is_dirty or state.has_unreported
        if is_used or self.states.get(state.inode_id) is not state:
            return
        del self.states[state.inode_id]
        if state.cached_ver is not None and state.cached_ver == state.file.data_ver:
            self.seen[state.inode_id] = (state.cached_ver, state.file.length)
            if len(self.seen) > SEEN_COUNT_MAX:
                del self.seen[next(iter(self.seen))]

    # -- from the write buffer to storage ---------------------------------------------------------

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
        if state.run is not None and state.run.end != offset:
            self.start_flush(state)
        if state.file.has_holes or offset > state.known_end():
            state.is_space_unsure = True
        run = state.run
        if run is None:
            run = state.run = WriteRun(offset)
        run.append(data)
        unit = flush_unit_bytes(state.ref.layout.chunk_size_bytes, self.section.write_buffer_bytes)
        boundary = (run.offset // unit + 1) * unit
        while run.end >= boundary:
            self._launch(state, run.cut_before(boundary))
            boundary += unit
        if run.length == 0:
            state.run = None
        state.written_end = max(state.written_end, offset + len(data))
        state.local_mtime_ns = self.runtime.clock.wall_ns()
        state.content_seq += 1

    def start_flush(self, state: InodeState) -> None:
        """Send what is buffered on its way; returns at once."""
        run, state.run = state.run, None
        if run is not None:
            self._launch(state, run)

    def send(self, state: InodeState, offset: int, data: Buffer) -> Flush:
        """Send bytes on their way, after what is buffered; budget already taken.  No checkpoint."""
        self.start_flush(state)
        if state.file.has_holes or offset > state.known_end():
            state.is_space_unsure = True
        run = WriteRun(offset)
        run.append(data)
        state.written_end = max(state.written_end, run.end)
        state.local_mtime_ns = self.runtime.clock.wall_ns()
        state.content_seq += 1
        return self._launch(state, run)

    def _launch(self, state: InodeState, run: WriteRun) -> Flush:
        flush = Flush(run, state.ref.layout.chunk_size_bytes, state.file.truncate_ver)
        flush.waits_for = [f for f in state.flushes if f.touches(flush)]
        state.flushes.append(flush)
        self.spawn(self._run_flush, state, flush)
        return flush

    async def _run_flush(self, state: InodeState, flush: Flush) -> None:
        run = flush.run
        # Whatever ends this task early, a bug or the end of the mount, nobody may take the bytes as stored.
        failure: FsError | None = FsError(Status.IO_ERROR, "the mount stopped while it wrote")
        try:
            for earlier in flush.waits_for:
                await earlier.done.wait()
            await self._extend_stripe(state, flush.chunk_end)
            await self.store.write(state.ref, run.offset, run.joined())
            failure = None
        except FsError as error:
            failure = error
        finally:
            state.flushes.remove(flush)
            flush.failure = failure
            if failure is None:
                self._note_acked(state, flush)
            else:
                self.note_failure(state, failure, f"bytes {run.offset}..{run.end}")
            self.budget.release(run.length)
            state.content_seq += 1
            flush.done.set()

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
        self._drop_pages(state)

    async def forget_pages(self, state: InodeState) -> None:
        """Have the kernel forget what it shows of a file; waits for its reads, so a request must not await it."""
        state.cached_ver = None
        await self.kernel.invalidate_content(state.inode_id)

    def _drop_pages(self, state: InodeState) -> None:
        """Have the kernel forget what it shows of an inode: some of it was lost."""
        state.cached_ver = None
        if self._nursery is not None:
            self.spawn(self.kernel.invalidate_content, state.inode_id)

    def _note_acked(self, state: InodeState, flush: Flush) -> None:
        state.acked_seq += 1
        if flush.truncate_ver == state.file.truncate_ver:
            state.acked_end = max(state.acked_end, flush.run.end)
        else:
            state.is_length_unknown = True

    async def _extend_stripe(self, state: InodeState, chunk_end: int) -> None:
        needed = min(chunk_end, state.ref.layout.stripe_size)
        if state.ref.dyn_stripe >= needed:
            return
        async with state.extend_lock:
            if state.ref.dyn_stripe >= needed:
                return
            request = meta_pb2.ExtendStripeReq(
                caller=state.writer.to_pb(), inode_id=state.inode_id, dyn_stripe_min=needed
            )
            reply = await self.call(services.META_EXTEND_STRIPE, request)
            state.absorb(inode_from_pb(reply.inode))
        assert state.ref.dyn_stripe >= needed, (state.inode_id, state.ref.dyn_stripe, needed)

    async def flush_append(self, state: InodeState) -> None:
        """Reserve room at the end of the file for the gathered records, and start writing them.

        Raises:
            FsError: the reservation failed; the records are dropped and the error is remembered too.
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
                failure = error
                raise
            finally:
                state.append.end_reservation()
                if failure is not None:
                    self.budget.release(batch.length)
                    self.note_failure(state, failure, f"{batch.length} appended bytes")
            run = WriteRun(offset)
            for piece in batch.pieces:
                run.append(piece)
            state.written_end = max(state.written_end, run.end)
            self._launch(state, run)
            if offset != batch.assumed_offset:
                self.spawn(self.kernel.invalidate_content, state.inode_id)

    async def _reserve(self, state: InodeState, count: int) -> int:
        request = meta_pb2.ReserveAppendReq(
            caller=state.writer.to_pb(),
            inode_id=state.inode_id,
            length=count,
            length_hint=state.length_hint(),
        )
        reply = await self.call(services.META_RESERVE_APPEND, request)
        if reply.offset + count > MAX_FILE_LENGTH_BYTES:
            raise FsError(Status.FILE_TOO_LARGE, f"inode {state.inode_id}: {reply.offset}+{count}")
        if reply.HasField("inode"):
            state.absorb(inode_from_pb(reply.inode))
        return reply.offset

    async def _drain_runs(self, state: InodeState) -> None:
        self.start_flush(state)
        for flush in list(state.flushes):
            await flush.done.wait()

    async def drain(self, state: InodeState) -> None:
        """Return when everything written so far was sent, successfully or not."""
        if state.append.length:
            try:
                await self.flush_append(state)
            except FsError:  # remembered by flush_append; the open files learn of it
                _log.debug("inode %d: drained with a failed append", state.inode_id)
        await self._drain_runs(state)

    async def wait_written(self, state: InodeState, offset: int, end: int) -> None:
        """Return when storage holds all that was written to [offset, end): reads see own writes."""
        if state.append.length:
            await self.drain(state)
            return
        run = state.run
        if run is not None and run.offset < end and offset < run.end:
            self.start_flush(state)
        for flush in list(state.flushes):
            if flush.run.offset < end and offset < flush.run.end:
                await flush.done.wait()

    # -- reports to meta --------------------------------------------------------------------------

    async def report(
        self,
        state: InodeState,
        *,
        is_durable: bool,
        gives_back: bool = False,
        counts_space: bool = False,
    ) -> None:
        """Tell meta of acknowledged writes; with `is_durable` make them survive power loss.

        With `counts_space` meta finds out what a file takes whose holes may have changed.

        With `gives_back`, under `promise_lock`, also what was promised and is not needed for them.

        Chunks and metadata go to their disks at the same time.  After a power loss before both are there,
        meta may know of bytes that read as zeros, as it may after any report of a write that was not synced.

        Acknowledged writes that turn out to be lost are no error here: every open file is told, as of a failed write.

        Raises:
            FsError: a service refused; what the other one did stands.  QUOTA_EXCEEDED: the bytes are gone, and
                every open file will be told, as of a failed write.
        """
        async with state.report_lock:
            seq = state.acked_seq
            request = self.sync_request(state)
            request.is_durable = is_durable
            request.gives_back = gives_back and state.give_back()
            request.counts_space = counts_space and state.is_space_unsure
            if request.counts_space:
                state.is_space_unsure, state.space_counted_s = False, self.now_s()
            before_ver = state.file.data_ver
            failures: list[FsError] = []
            async with trio.open_nursery() as nursery:
                if is_durable and state.durable_seq < seq:
                    nursery.start_soon(self._sync_chunks, state, failures)
                try:
                    reply = await self.call(services.META_SYNC, request)
                    inode = inode_from_pb(reply.inode)
                    self.note_reported(state, seq, before_ver, inode)
                    if request.counts_space:
                        await self.kernel.invalidate_attributes(state.inode_id)
                    if reply.HasField("is_metered"):
                        state.note_metering(reply.is_metered, inode)
                except FsError as error:
                    state.is_space_unsure = state.is_space_unsure or request.counts_space
                    failures.insert(0, error)
                    if error.status is Status.QUOTA_EXCEEDED:
                        await self.note_refused(state, seq, error)
            if failures:
                raise failures[0]
            if is_durable:
                state.durable_seq = max(state.durable_seq, seq)

    async def note_refused(self, state: InodeState, seq: int, error: FsError) -> None:
        """A quota has no room for what was acknowledged up to `acked_seq` = seq; meta has cut it.

        Nobody who asks after this sees it any more.  There was no quota at open; from now on writes themselves
        are refused.
        """
        _log.error("inode %d: what was written is dropped: %s", state.inode_id, error)
        try:
            request = meta_pb2.GetAttrReq(caller=state.writer.to_pb(), inode_id=state.inode_id)
            reply = await self.call(services.META_GET_ATTR, request)
            state.absorb(inode_from_pb(reply.inode))
        except FsError as failure:
            _log.warning("inode %d: attributes not refreshed: %s", state.inode_id, failure)
        state.forget_refused(seq)
        state.note_metering(True, state.inode)
        state.last_error = error
        state.error_count += 1
        self._drop_pages(state)
        await self.kernel.invalidate_attributes(state.inode_id)

    async def secure(self, state: InodeState, start: int, end: int) -> None:
        """Below a quota of bytes, have the growth of a file up to `end` promised before it is buffered.

        When that does not fit: up to what does, if that is beyond `start`.

        Raises:
            FsError: QUOTA_EXCEEDED, and whatever meta says.
        """
        async with state.promise_lock:
            request = meta_pb2.ReserveSpaceReq(
                caller=state.writer.to_pb(),
                inode_id=state.inode_id,
                length=end,
                length_min=start + 1,
            )
            reply = await self.call(services.META_RESERVE_SPACE, request)
            inode = inode_from_pb(reply.inode)
            state.absorb(inode)
            state.note_metering(reply.is_metered, inode)

    async def _sync_chunks(self, state: InodeState, failures: list[FsError]) -> None:
        try:
            await self.store.sync([state.ref])
        except FsError as error:
            if error.status is Status.WRITES_LOST:
                self.note_failure(state, error, "durably")
            else:
                failures.append(error)

    def sync_request(self, state: InodeState) -> meta_pb2.SyncReq:
        """Return a SyncReq that carries what meta does not know yet."""
        request = meta_pb2.SyncReq(caller=state.writer.to_pb(), inode_id=state.inode_id)
        if state.has_unreported:
            request.has_new_data = True
            request.mtime_ns = state.local_mtime_ns
            request.clears_suid = bool(state.inode.mode & 0o6000) and state.writer.uid != 0
            hint = state.length_hint()
            if hint is not None:
                request.length_hint.CopyFrom(hint)
        return request

    def note_reported(self, state: InodeState, seq: int, before_ver: int, inode: Inode) -> None:
        """Take in the reply to a `sync_request` that was made at `acked_seq` = seq."""
        has_stepped = seq > state.reported_seq
        state.reported_seq = max(state.reported_seq, seq)
        state.absorb(inode)
        assert inode.file is not None
        own_ver = before_ver + 1 if has_stepped else before_ver
        self.note_own_step(state, before_ver, own_ver)
        if has_stepped and not state.is_dirty and state.acked_seq == seq:
            state.is_length_unknown = False
            state.acked_end = min(state.acked_end, state.file.length)
            state.written_end = min(state.written_end, state.file.length)

    def note_own_step(self, state: InodeState, before_ver: int, own_ver: int) -> None:
        """Keep the kernel's pages valid over a change of data_ver that was this mount's own.

        Any other step means that another client reported content as well: the pages are dropped at
        the next open.
        """
        is_own = state.cached_ver == before_ver and state.file.data_ver == own_ver
        state.cached_ver = own_ver if is_own else None

    def raise_pending_error(self, state: InodeState, seen_error_count: int) -> int:
        """Return the inode's error count, or raise the last error when it grew.

        The caller stores the count at its open file before it lets the error pass.
        """
        if state.error_count > seen_error_count:
            assert state.last_error is not None
            raise FsError(state.last_error.status, state.last_error.detail)
        return state.error_count
