"""Inline files: small ones, whose bytes meta keeps (specs/decisions/0149-inline-files.md).

Sending the whole content to meta does two things at once: a flush that somebody waits for, and its
report.  What else is written meanwhile waits for it, of whatever chunk.  Who reads gets what meta
told last, for as long as attributes may be used.

Invariants:
    - Content is sent so only while it is known whole (`InodeState.inline`), and no byte
      of it is on its way to storage.
    - Bytes go to storage only where `InodeState.ref` covers their chunk, which that of an inline
      file never does. After an inline flush of which nobody knows what became, they go there only
      once meta takes that flush no more (`Shared.unsure_inline`).
    - What meta took would survive a power loss.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

import trio

from ...runtime.ports import Buffer
from ...schema import services
from ...schema.inode import FilePart, Inode, inode_from_pb
from ...schema.proto import meta_pb2
from ...schema.proto.common_pb2 import FilePartPb
from ...schema.status import FsError, Status
from ..holes import CutMeanwhileError
from ..inline_report import InlineReport
from ..many_inline import Told, Wanted, ask_many
from ..patience import same_error
from .inline_bytes import InlineBytes, checksum_of, overlaid, require_intact
from .open_file import InodeState
from .ports import Caller
from .reports import Reports
from .unsent import Flush

_log = logging.getLogger(__name__)

OF_OPEN_S = 0.05
"""So long what came with an open may be what a program reads first by it, however it was opened."""


@dataclass(frozen=True, slots=True)
class Sent:
    """Content that meta is asked to take."""

    data: bytes
    request: meta_pb2.SyncReq
    report: InlineReport
    told: FilePart
    seq: int
    """`acked_seq` before it."""


class InlineFiles(Reports):
    """See module head."""

    # -- what is known -----------------------------------------------------------------------------

    def note_opened(
        self,
        state: InodeState,
        inode: Inode,
        reply: meta_pb2.InodeRsp | meta_pb2.CreateRsp,
        asked_s: float,
        *,
        can_write: bool,
    ) -> None:
        """Take in what the reply to an open that was asked for at `asked_s` tells of inline bytes;
        it told `inode`, which is absorbed.

        Bytes that are not those of their checksum are left alone: who
        reads asks again, and is told.
        """
        if can_write:
            state.inline_bytes_max = reply.inline_bytes_max
            self.note_empty(state, inode)
        if not reply.inline_data:
            return
        told, data = reply.inode.file, reply.inline_data
        try:
            require_intact(state.inode_id, told.length, data, reply.inline_checksum)
        except FsError as error:
            _log.error("%s", error)
        else:
            self._take_bytes(state, told, data, asked_s)

    def note_empty(self, state: InodeState, inode: Inode) -> None:
        """Know a file to have no bytes, where meta says so in `inode`, which is absorbed,
        and none can be on their way.
        """
        file = inode.file
        if file is None or file.length or file.is_inline or file.truncate_pending:
            return
        is_newest = (file.truncate_ver, file.data_ver) == (
            state.file.truncate_ver,
            state.file.data_ver,
        )
        is_sent = state.is_dirty or state.has_unreported or state.is_length_unknown
        if is_newest and not (is_sent or state.error_count):
            known = InlineBytes(b"", file.truncate_ver, file.data_ver, self.now_s())
            self.know_inline(state, known)

    def _take_bytes(
        self, state: InodeState, file: FilePartPb, data: bytes, asked_s: float
    ) -> InlineBytes | None:
        """Take in, and return, intact bytes as those of the attributes that came with them;
        None: others were told of since.
        """
        told = InlineBytes(data, file.truncate_ver, file.data_ver, asked_s)
        if not told.are_of(state.file):
            return None
        self.know_inline(state, told)
        return told

    # -- reading -----------------------------------------------------------------------------------

    def inline_now(self, state: InodeState, *, age_s_max: float | None = None) -> bytes | None:
        """Return all bytes of an inline file, without what was written and not sent yet;
        None: meta is to be asked.

        Args:
            state: of the file.
            age_s_max: how long ago they may have been told; default: as long as attributes may be
                used, and a moment after an open.
        """
        known, file = state.inline, state.inode.file
        assert file is not None
        if known is None or not file.is_inline or not known.are_of(file):
            return None
        if age_s_max is None:
            age_s_max = max(self.section.attr_timeout_s, OF_OPEN_S)
        return known.data if self.now_s() < known.told_s + age_s_max else None

    async def read_inline(
        self, state: InodeState, offset: int, end: int, *, age_s_max: float | None = None
    ) -> Buffer:
        """Return bytes of an inline file that meta told at most so long ago, as for `inline_now`.

        Args:
            state: of the file; storage, and so meta, has what is to be seen of its own writes.
            offset: of the first byte.
            end: of the byte after the last one, at most `InodeState.local_length`.
            age_s_max: as for `inline_now`.

        Raises:
            CutMeanwhileError: it is inline no more, or shorter, which `state` knows by then: the
                read has to be done again.
            FsError: CHECKSUM_MISMATCH, STALE, and whatever meta says.
        """
        data: Buffer | None = self.inline_now(state, age_s_max=age_s_max)
        if data is None:
            data = await self._asked(state)
        if end > len(data):
            await self.meet_short(state, data, end)
        return memoryview(data)[offset:end]

    async def meet_short(self, state: InodeState, data: Buffer, end: int) -> NoReturn:
        """Find out why the bytes that meta told of an inline file do not reach `end`;
        raises as `read_inline`.
        """
        if state.is_dirty or state.has_unreported:
            # Something of this mount lies behind.  With that in its place it
            # is told what lies between.
            await self.drain(state)
            await self.report(state, is_durable=False)
        elif state.local_length() >= end:
            what = f"inode {state.inode_id}: {len(data)} bytes inline of {state.local_length()}"
            raise FsError(Status.IO_ERROR, what)
        raise CutMeanwhileError(state.inode_id)

    async def _asked(self, state: InodeState) -> Buffer:
        """Ask meta for all bytes of a file; raises as `read_inline`."""
        (found,) = await self.ask_inline([state])
        if isinstance(found, FsError):
            raise found
        return found

    async def ask_inline(self, states: Sequence[InodeState]) -> list[Buffer | FsError]:
        """Ask meta for all bytes of files, of many with few calls;
        return those of each, not to be kept, or what `read_inline` raises.
        """
        # Who reads was allowed to when he opened it.
        asked_s, found = self.now_s(), list[Buffer | FsError]()
        wanted = [Wanted(s.inode_id, s.file.length) for s in states]
        for state, told in zip(
            states, await ask_many(self.meta, Caller(0, 0).to_pb, wanted), strict=True
        ):
            try:
                found.append(
                    told if isinstance(told, FsError) else self._told(state, told, asked_s)
                )
            except CutMeanwhileError as error:
                found.append(error.with_traceback(None))
        return found

    def _told(self, state: InodeState, told: Told, asked_s: float) -> Buffer:
        """Take in what meta tells of a file, with all its bytes if it is inline, and return these;
        raises CutMeanwhileError as `read_inline`.
        """
        file, data, known = told.inode.file, told.data, state.inline
        if data is not None and known is not None and known.are_of(state.file):
            versions = file.truncate_ver, file.data_ver
            is_as_known = versions == (known.truncate_ver, known.data_ver)
            if is_as_known and told.inode.ctime_ns == state.inode.ctime_ns:
                return data  # mostly there is nothing to learn
        self.note_inode(state, inode_from_pb(told.inode))
        taken = None if data is None else self._take_bytes(state, file, bytes(data), asked_s)
        known = taken or state.inline  # there may be no room to keep them
        if known is None or not state.file.is_inline or not known.are_of(state.file):
            raise CutMeanwhileError(state.inode_id)
        return known.data

    # -- writing -----------------------------------------------------------------------------------

    def _content(self, state: InodeState, flush: Flush) -> bytes | None:
        """Return the whole content of a file after a flush, if that may be sent to meta."""
        known, ranges = state.inline, flush.ranges
        if known is None or ranges.end > state.inline_bytes_max or not state.may_go_inline:
            return None
        is_alone = len(state.flushes) == 1 and not state.append.length
        is_plain = not (state.is_metered or state.is_space_unsure or state.is_length_unknown)
        has_lost = state.error_count > 0 or state.inode_id in self.unsure_inline
        file = state.file
        if not is_alone or not is_plain or has_lost or state.has_unreported:
            return None
        if file.truncate_pending or file.has_holes or state.cuts_under_way:
            return None
        if flush.truncate_ver != file.truncate_ver or not known.are_of(file):
            return None
        return overlaid(known.data, ranges.runs)

    def _made(self, state: InodeState, flush: Flush) -> Sent | None:
        """Return what is to be asked of meta for a flush; None: it has to go to storage."""
        data = self._content(state, flush)
        if data is None:
            return None
        request = meta_pb2.SyncReq(
            caller=state.writer.to_pb(),
            inode_id=state.inode_id,
            is_durable=True,
            inline_data=data,
            inline_checksum=checksum_of(data),
            inline_data_ver=state.file.data_ver,
        )
        self.add_news(state, request)
        request.length_hint.length, request.length_hint.truncate_ver = len(data), flush.truncate_ver
        flush.is_begun = flush.is_inline = True
        report = InlineReport(request, self.now_s())
        return Sent(data, request, report, state.file, state.acked_seq)

    def begin_inline(self, state: InodeState, flush: Flush) -> bool:
        """Begin to send the content of a file to meta, without a task; False: nothing is done.

        Meta is asked once; where that does not settle it a task goes on, under the same request id.
        What it refuses goes to storage.
        """
        begins, lock = self.begins_changes, state.report_lock
        if begins is None or lock.locked():
            return False
        sent = self._made(state, flush)
        if sent is None:
            return False
        lock.take_now()
        began_s = trio.current_time()

        async def go_on(error: FsError) -> meta_pb2.InodeRsp:
            return await begins.call_again(services.META_SYNC, sent.request, error, began_s)

        def gone_on(reply: meta_pb2.InodeRsp | None, error: Exception | None) -> None:
            self._note_unsure(state, sent, reply, is_repeat=True)
            self._end_inline(state, flush, sent, reply, error)

        # Quoted: they would be evaluated for every close.
        def ended(reply: "meta_pb2.InodeRsp | None", error: "FsError | None") -> None:
            if reply is None:
                assert error is not None
                self.finish_in_task(go_on(error), gone_on)
            else:
                self._end_inline(state, flush, sent, reply, None)

        is_begun = begins.begin_change(services.META_SYNC, sent.request, ended)
        if not is_begun:
            flush.is_begun = flush.is_inline = False
            lock.give_back()
        return is_begun

    def _end_inline(
        self,
        state: InodeState,
        flush: Flush,
        sent: Sent,
        reply: meta_pb2.InodeRsp | None,
        error: Exception | None,
    ) -> None:
        """End what `begin_inline` has begun; neither waits nor raises."""
        failure = error if isinstance(error, FsError) else FsError(Status.IO_ERROR, f"{error!r}")
        is_forgotten = False
        try:
            if reply is not None and reply.is_inline_refused:
                self._note_refusal(state, flush, reply)
                self.send_anew(state, flush)
                return
            if reply is not None:
                is_forgotten = self._take_taken(state, flush, sent, reply)
        except Exception as bug:  # noqa: BLE001 - nobody who waits may wait for ever
            _log.exception(
                "inode %d: what meta said of its bytes is not understood", state.inode_id
            )
            failure, reply = FsError(Status.IO_ERROR, f"{bug!r}"), None
            self._note_unsure(state, sent, None, is_repeat=True)
        finally:
            state.report_lock.give_back()
        if reply is None:
            self._end_flush(state, flush, same_error(failure))
        elif is_forgotten:
            forget = self._forget_attributes(state)
            self.finish_in_task(forget, lambda *_: self._tell_ended(flush))
        else:
            self._tell_ended(flush)

    async def _forget_attributes(self, state: InodeState) -> None:
        await self.kernel.invalidate_attributes(state.inode_id)

    async def send_inline(self, state: InodeState, flush: Flush) -> bool:
        """Send the content of a file to meta, and end the flush;
        False: nothing is done, it has to go to storage.

        Raises:
            FsError: what meta says; the flush has not ended then.
        """
        if self._content(state, flush) is None:
            return False
        async with state.report_lock:
            sent = self._made(state, flush)  # things may have changed meanwhile
            if sent is None:
                return False
            reply: meta_pb2.InodeRsp | None = None
            try:
                reply = await self.call(services.META_SYNC, sent.request)
            finally:
                is_repeat = sent.request.caller.is_repeat
                self._note_unsure(state, sent, reply, is_repeat=is_repeat)
            if reply.is_inline_refused:
                self._note_refusal(state, flush, reply)
                return False
            is_forgotten = self._take_taken(state, flush, sent, reply)
        try:
            if is_forgotten:
                await self._forget_attributes(state)
        finally:
            self._tell_ended(flush)
        return True

    def _note_unsure(
        self, state: InodeState, sent: Sent, reply: meta_pb2.InodeRsp | None, *, is_repeat: bool
    ) -> None:
        """Take in what meta has answered, perhaps to a repeat; None: nothing.

        An earlier try may be on its way yet, unless it was taken.
        """
        if reply is not None:
            sent.report.note_reply(reply, is_repeat=is_repeat)
        if not sent.report.is_settled:
            self.know_inline(state, None)
            sent.report.forget_bytes()
            self.unsure_inline[state.inode_id] = sent.report

    async def settle_unsure(self) -> None:
        """Have meta take no late report of files that nobody has open any more,
        so that they need not be remembered.

        What it does not answer for is asked for with the next call; there is one at a time.
        """
        for inode_id in [i for i in self.unsure_inline if i not in self.states]:
            try:
                await self.have_stripe(inode_id, Caller(0, 0), 1)
            except FsError as error:
                if error.status is not Status.STALE:
                    _log.warning("inode %d: may become inline yet: %s", inode_id, error)

    def _note_refusal(self, state: InodeState, flush: Flush, reply: meta_pb2.InodeRsp) -> None:
        """Somebody else writes, or there is no room: this open file tries it no more."""
        flush.is_begun = flush.is_inline = False
        flush.doubted = self.unsure_inline.get(state.inode_id)
        state.inline_bytes_max = 0
        self.know_inline(state, None)
        self.note_inode(state, inode_from_pb(reply.inode))

    def _take_taken(
        self, state: InodeState, flush: Flush, sent: Sent, reply: meta_pb2.InodeRsp
    ) -> bool:
        """Take in that meta has taken the content, also as a report;
        the flush has only to be told of as ended.

        Returns:
            Whether the kernel has to forget the attributes that it has before that.

        Raises:
            FsError: IO_ERROR: it says neither that it has taken the bytes, nor that it refused.
        """
        file = reply.inode.file
        is_moved = file.truncate_ver > flush.truncate_ver  # by somebody, before it was asked again
        if not (file.is_inline or is_moved):
            what = f"inode {state.inode_id}: {len(sent.data)} bytes were neither taken nor refused"
            raise FsError(Status.IO_ERROR, what)
        flush.is_durable = True
        self._settle_flush(state, flush, None)
        # What counts as written since, without bytes, is to be reported by itself.
        is_all = state.acked_seq == sent.seq + 1
        seq = state.acked_seq if is_all else sent.seq
        is_forgotten = self._take_in(state, sent.request, seq, sent.told, reply)
        if is_all:
            state.durable_seq = state.acked_seq
        # Of a repeat meta tells what others have made of the file since: these bytes are those of
        # the number that they were given.
        taken_ver = sent.request.inline_data_ver + 1
        told = InlineBytes(sent.data, flush.truncate_ver, taken_ver, self.now_s())
        self.know_inline(state, told if told.are_of(state.file) else None)
        state.inline_count += 1
        state.inline_sent_bytes += len(sent.data)
        return is_forgotten
