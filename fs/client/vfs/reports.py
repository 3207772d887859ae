"""What meta is told of written bytes, and what its answers mean for this mount.

Which locks: see `core`.
"""

import logging
from collections.abc import Callable
from dataclasses import replace

import trio

from ...schema import services
from ...schema.inode import FilePart, Inode, inode_from_pb
from ...schema.proto import meta_pb2
from ...schema.status import FsError, Status
from .open_file import InodeState
from .write_back import WriteBack

_log = logging.getLogger(__name__)

OnReported = Callable[[Exception | None], None]


class Reports(WriteBack):
    """See module head."""

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

        Chunks and metadata go to their disks at the same time.  After a power loss before
        both are there, meta may know of bytes that read as zeros, as it may after any report
        of a write that was not synced.

        Acknowledged writes that turn out to be lost are no error here: every open file is told, as
        of a failed write. A length that meta has lost is told again.

        Raises:
            FsError: a service refused; what the other one did stands.  QUOTA_EXCEEDED: the bytes
                are gone, and every open file will be told, as of a failed write.
        """
        lost_count = -1
        while lost_count != state.lost_length_count:
            lost_count = state.lost_length_count
            await self._report_once(
                state, is_durable=is_durable, gives_back=gives_back, counts_space=counts_space
            )

    async def _report_once(
        self, state: InodeState, *, is_durable: bool, gives_back: bool, counts_space: bool
    ) -> None:
        async with state.report_lock:
            seq, truncate_ver = state.acked_seq, state.file.truncate_ver
            foreign_count = state.foreign_count
            request = self.sync_request(state)
            request.is_durable = is_durable
            request.gives_back = gives_back and state.give_back()
            if counts_space and state.is_space_unsure:
                self.ask_space(state, request)
            failures: list[FsError] = []
            # Of an inline file meta keeps what there is.
            if is_durable and state.durable_seq < seq and not state.file.is_inline:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._sync_chunks, state, failures)
                    await self._send_report(state, request, seq, failures)
            else:
                await self._send_report(state, request, seq, failures)
            if failures:
                raise failures[0]
            # What a truncation has cut, or others have written, meanwhile
            # was not there to be flushed.
            is_same = (truncate_ver, foreign_count) == (
                state.file.truncate_ver,
                state.foreign_count,
            )
            if is_durable and is_same:
                state.durable_seq = max(state.durable_seq, seq)

    async def _send_report(
        self,
        state: InodeState,
        request: meta_pb2.SyncReq,
        seq: int,
        failures: list[FsError],
    ) -> None:
        """Call meta with a request made at `acked_seq` = seq, and take in the answer;
        a failure comes first of all.
        """
        told = state.file
        try:
            reply = await self.call(services.META_SYNC, request)
            if self._take_in(state, request, seq, told, reply):
                await self.kernel.invalidate_attributes(state.inode_id)
        except FsError as error:
            self.note_uncounted(state, request)
            failures.insert(0, error)
            if error.status is Status.QUOTA_EXCEEDED:
                await self.note_refused(state, seq, error)

    def _take_in(
        self,
        state: InodeState,
        request: meta_pb2.SyncReq,
        seq: int,
        told: FilePart,
        reply: meta_pb2.InodeRsp,
    ) -> bool:
        """Take in the answer to a report; return whether the kernel has
        to forget the attributes that it has.
        """
        inode, mode = inode_from_pb(reply.inode), state.inode.mode
        self.note_reported(state, seq, told.data_ver, inode)
        state.note_lost_length(told, inode)
        self.note_own_time(request, inode)
        self.note_holes(state, request, inode)
        # The kernel was given times that this mount kept; others have set later ones.
        is_superseded = self.note_owner(state, request, reply)
        is_superseded = state.is_superseded(request, inode) or is_superseded
        has_mode_changed = request.clears_suid and inode.mode != mode
        if reply.HasField("is_metered"):
            state.note_metering(reply.is_metered, inode)
        return request.counts_space or has_mode_changed or is_superseded

    def note_owner(
        self, state: InodeState, request: meta_pb2.SyncReq, reply: meta_pb2.InodeRsp
    ) -> bool:
        """Take in whether meta has set mode and owner as reported;
        return whether somebody has set others since.
        """
        waiting = state.set_owner
        if waiting is None or not request.HasField("owner"):
            return False
        if reply.owner_outcome == meta_pb2.OWNER_NOT_SET:
            state.set_owner = replace(waiting, is_left=True)
            return False
        self.drop_owner(state)
        return reply.owner_outcome == meta_pb2.OWNER_SUPERSEDED

    def drop_owner(self, state: InodeState) -> None:
        """Mode and owner of a file wait no more."""
        state.set_owner = None
        self.owned.pop(state.inode_id, None)

    def ask_space(self, state: InodeState, request: meta_pb2.SyncReq) -> None:
        """Have a report ask what the file takes; what is still on its way
        to the chains leaves that in doubt.
        """
        request.counts_space = True
        state.is_space_unsure, state.space_counted_s = state.is_dirty, self.now_s()

    def note_uncounted(self, state: InodeState, request: meta_pb2.SyncReq) -> None:
        """A report failed: what it asked of the space is as much in doubt as before."""
        state.is_space_unsure = state.is_space_unsure or request.counts_space

    def note_holes(self, state: InodeState, request: meta_pb2.SyncReq, inode: Inode) -> None:
        """Take in the reply to a report: what was written may have filled holes that others made
        and this mount had not heard of.
        """
        assert inode.file is not None
        is_doubted = request.has_new_data and inode.file.has_holes and not request.counts_space
        state.is_space_unsure = state.is_space_unsure or is_doubted

    def begin_report(self, state: InodeState, on_end: OnReported) -> bool:
        """Begin a durable report of what is durable itself, without a task;
        False: `report` has to do it, nothing is done.

        Meta is asked once; where that does not settle it a task goes on, under the same request id.
        When meta had lost the length, there is something to report again, and space to be counted.

        Args:
            state: of what is not metered, and has no holes to be counted.
            on_end: called once, later, in whatever task, with what `report` would have
                raised; neither waits nor raises.
        """
        begins, seq = self.begins_changes, state.acked_seq
        if begins is None or (state.durable_seq < seq and not state.file.is_inline):
            return False
        lock = state.report_lock
        if not lock.take_now():
            return False
        request = self.sync_request(state)
        request.is_durable = True
        told, began_s = state.file, trio.current_time()

        def done(_: object, failure: Exception | None) -> None:
            lock.give_back()
            on_end(failure)

        async def forget() -> None:
            await self.kernel.invalidate_attributes(state.inode_id)

        async def go_on(error: FsError) -> None:
            try:
                reply = await begins.call_again(services.META_SYNC, request, error, began_s)
            except FsError as refused:
                if refused.status is Status.QUOTA_EXCEEDED:
                    await self.note_refused(state, seq, refused)
                raise
            if self._take_in(state, request, seq, told, reply):
                await forget()

        # Quoted: they would be evaluated for every close.
        def ended(reply: "meta_pb2.InodeRsp | None", error: "FsError | None") -> None:
            is_forgotten = False
            try:
                if reply is not None:
                    is_forgotten = self._take_in(state, request, seq, told, reply)
            except Exception as failure:  # noqa: BLE001 - who answers the kernel judges it
                done(None, failure)
                return
            # Outside: the end is told once, also if who is told fails.
            if reply is None:
                assert error is not None
                self.finish_in_task(go_on(error), done)
            elif is_forgotten:
                self.finish_in_task(forget(), done)
            else:
                done(None, None)

        is_begun = begins.begin_change(services.META_SYNC, request, ended)
        if not is_begun:
            lock.give_back()
        return is_begun

    async def settle_length(self, state: InodeState) -> None:
        """Have meta find out how long a file is that was cut elsewhere while this mount wrote it,
        so that its programs see what they wrote.
        """
        if not (state.is_length_unknown and state.has_unreported):
            return
        # By a task of its own: who asks may be interrupted, and half a
        # report could undo a later one.
        is_settled = trio.Event()
        self.spawn(self._settle_length, state, is_settled)
        await is_settled.wait()

    async def _settle_length(self, state: InodeState, is_settled: trio.Event) -> None:
        try:
            if state.is_length_unknown and state.has_unreported:
                await self.report(state, is_durable=False)
        except FsError as error:  # whoever wrote learns of it when he closes
            _log.warning("inode %d: its length is not known: %s", state.inode_id, error)
        finally:
            is_settled.set()
        self.drop_state_if_unused(state)

    async def note_refused(self, state: InodeState, seq: int, error: FsError) -> None:
        """A quota has no room for what was acknowledged up to `acked_seq` = seq; meta has cut it.

        Nobody who asks after this, or was told of it, sees it any more.  There was no quota at
        open; from now on writes themselves are refused.
        """
        _log.error("inode %d: what was written is dropped: %s", state.inode_id, error)
        try:
            request = meta_pb2.GetAttrReq(caller=state.writer.to_pb(), inode_id=state.inode_id)
            reply = await self.call(services.META_GET_ATTR, request)
            state.absorb(inode_from_pb(reply.inode))
        except FsError as failure:
            _log.warning("inode %d: attributes not refreshed: %s", state.inode_id, failure)
        state.forget_refused(seq)
        self.changes.note_inode(state.inode_id)
        state.note_metering(True, state.inode)
        self.drop_pages(state)
        await self.kernel.invalidate_attributes(state.inode_id)
        # Not before: an open file that learns of it lets its program go on, which looks at
        # what the kernel shows. And both at once: what counts as reported and has no error
        # yet would be a close that went well.
        state.reported_seq = max(state.reported_seq, seq)
        state.last_error = error
        state.error_count += 1

    async def secure(self, state: InodeState, start: int, end: int) -> None:
        """Below a quota of bytes, have the growth of a file up to `end` promised
        before it is buffered.

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
            self.add_news(state, request)
            hint = state.length_hint()
            if hint is not None:
                request.length_hint.CopyFrom(hint)
        return request

    @staticmethod
    def add_news(state: InodeState, request: meta_pb2.SyncReq) -> None:
        """Have a report tell of new content, and of what goes with it but the length."""
        request.has_new_data = True
        request.mtime_ns = state.reported_mtime_ns()
        times = state.set_times
        if times is not None and times.atime_ns is not None:
            request.atime_ns, request.atime_seen_ns = times.atime_ns, times.atime_seen_ns
        if times is not None and times.mtime_ns is not None:
            request.mtime_seen_ns = times.mtime_seen_ns
        if times is not None:
            request.times_set_ns = times.set_ns
        request.clears_suid = state.clears_suid
        owner = state.set_owner
        # Meta judges all of a report by who makes it; another one may have opened
        # the file to write it since.
        if owner is not None and not owner.is_left and owner.caller.uid == state.writer.uid:
            request.owner.CopyFrom(owner.to_pb())

    def note_reported(self, state: InodeState, seq: int, before_ver: int, inode: Inode) -> None:
        """Take in the reply to a `sync_request` that was made at `acked_seq` = seq."""
        self.changes.note_inode(state.inode_id)
        known = self.known.get(state.inode_id)
        if known is not None:
            known.own_length = max(known.own_length, state.acked_end, state.written_end)
        has_stepped = seq > state.reported_seq
        state.reported_seq = max(state.reported_seq, seq)
        self.note_inode(state, inode)
        assert inode.file is not None
        own_ver = before_ver + 1 if has_stepped else before_ver
        self.note_own_step(state, before_ver, own_ver)
        if state.set_times is not None:
            state.set_times = state.set_times.reported(inode)
        if has_stepped and not state.is_dirty and state.acked_seq == seq:
            state.is_length_unknown = state.clears_suid = False
            state.set_times = None
            state.acked_end = min(state.acked_end, state.file.length)
            state.written_end = min(state.written_end, state.file.length)

    def note_own_time(self, request: meta_pb2.SyncReq, inode: Inode) -> None:
        """Note the time of change that this mount's own report has set;
        not one that somebody has set since.
        """
        known = self.known.get(inode.inode_id)
        if known is not None and request.mtime_ns == inode.mtime_ns:
            known.own_mtime_ns = inode.mtime_ns

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
