"""An open file of the native client: unbuffered reads and writes, lengths, fsync, close.

Invariants:
    - A write is replicated when it returns, and durable after `fsync` or `close`.
    - What was written is reported with its length at the latest by `close`, and once.
    - Bytes go to the metadata service instead of a chunk only as all of a file, with one
      call that is the report, too.

Does not: cache, read ahead, or gather small writes.
"""

from collections.abc import Awaitable
from types import TracebackType
from typing import Self

import trio

from ..runtime.ports import Buffer
from ..schema import services
from ..schema.ids import SessionId
from ..schema.inode import Inode, inode_from_pb
from ..schema.layout import MAX_FILE_LENGTH_BYTES
from ..schema.proto import meta_pb2
from ..schema.status import FsError, Status
from .api import ChunkStore, MetaCaller
from .ending import EndingSessions, is_final
from .entries import Identity
from .inline_bytes import add_bytes
from .inline_report import InlineReport
from .native_content import FileContent, byte_view, check_offset
from .own_changes import OwnChanges


class EmberFile(FileContent):
    """An open file.  Tasks may read at once; writes of overlapping ranges
    are the caller's to order.
    """

    def __init__(
        self,
        inode: Inode,
        path: str,
        meta: MetaCaller,
        chunks: ChunkStore,
        *,
        identity: Identity,
        changes: OwnChanges,
        session_id: str,
        ending: EndingSessions | None = None,
    ) -> None:
        super().__init__(inode, path, meta, chunks, identity, changes)
        self._session_id = session_id
        if session_id:
            changes.began(inode.inode_id)
        self._ending = ending
        self._is_new = False
        """It was made by this open."""
        self._inline_bytes_max = 0
        """How long a file may be to be made inline."""
        self._has_sent = False
        """Something was written through this object, or is on its way."""
        self._may_become_inline = False
        """A report with bytes may still be taken: it is to be refused before anything
        is written to a chunk.
        """
        self._is_length_unknown = False
        self._is_space_unsure = False
        """Bytes were left out, or written to a file with holes:
        the close has meta ask the chains what it takes.
        """
        self._write_count = 0
        self.is_metered = False
        """A quota of bytes lies above: growth must be promised first."""
        self._promised_length = self._part.promised_length
        self._reported_count = 0
        """Of `_write_count`: a write that ends during a report is not taken for reported."""
        self._unsynced_count = 0
        """Writes that were not durable when they returned."""
        self._synced_count = -1
        """Of `_unsynced_count`: what a sync of the chunks has covered;
        before the first one, others may have written, too.
        """

    def _require_writable(self) -> None:
        """Raise ValueError if the file was closed,
        FsError(BAD_FILE) if it is open for reading only.
        """
        self.require_open()
        if not self._session_id:
            raise FsError(Status.BAD_FILE, f"{self.path} is open for reading only")

    def note_writable(self, inline_bytes_max: int, *, is_new: bool, may_be_inline: bool) -> None:
        """Take in what the open for writing has told.

        Args:
            inline_bytes_max: how long a file may be to be made inline.
            is_new: the open has made it: there are no bytes yet to make
                durable, nor any on their way.
            may_be_inline: it is or becomes inline, perhaps, whatever its inode says.
        """
        self._inline_bytes_max, self._is_new = inline_bytes_max, is_new
        if is_new:
            self._synced_count = 0
        if may_be_inline:
            self._dyn_stripe, self._may_become_inline = 0, True

    async def write(self, offset: int, data: Buffer, *, is_last: bool = False) -> None:
        """Write bytes; replicated when it returns, durable after `fsync`.

        With `is_last` an `fsync` or `close` follows at once, which this makes cheaper.
        Should it be cancelled, what of it is on its way is made first, which takes a few seconds at
        the most, and whether all of it is there stays open.

        Raises:
            FsError: QUOTA_EXCEEDED: nothing was written; NO_SPACE and others: some of the bytes may
                have been, or all of them and be gone, as others have written since.
            TypeError: no memory, or one with gaps.
        """
        check_offset(self.path, offset)
        self._require_writable()
        view = byte_view(data)
        end = offset + len(view)
        if end > MAX_FILE_LENGTH_BYTES:
            raise FsError(Status.FILE_TOO_LARGE, f"{self.path}: {end} bytes")
        self._changes.note_changed(self._inode.inode_id)
        report: InlineReport | None = None
        if is_last and offset == 0 and self._may_send(len(view)):
            report = await self._send(view)
            if report is None:
                return
        self._has_sent = True
        await self._cover(end, report)  # which voids promises where it has bytes moved to a chunk
        if report is not None and report.was_taken():  # and moved since, by others or just now
            self._length = max(self._length, end)
            return
        if self.is_metered and end > self._promised_length:
            await self._secure(end)
        if self._part.has_holes or offset > self._length:
            self._is_space_unsure = True
        is_written = is_durable = False
        asks_durable = is_last and self._synced_count == self._unsynced_count
        try:
            is_durable = await self._chunks.write(self.ref, offset, view, is_durable=asks_durable)
            is_written = True
        finally:
            self._changes.note_changed(self._inode.inode_id)
            self._write_count += 1
            self._unsynced_count += not is_durable
            # Bytes of a failed write may be there, beyond what is known, or be missing before
            # others: the chains must tell the length, and what it takes.
            self._is_length_unknown = self._is_length_unknown or not is_written
            self._is_space_unsure = self._is_space_unsure or not is_written
        self._written_end = max(self._written_end, end)
        self._length = max(self._length, end)

    def _may_send(self, length: int) -> bool:
        """Return whether `length` bytes may be sent inline as all of the file:
        this client has certainly sent none of it to a chunk.
        """
        if not 0 < length <= self._inline_bytes_max or length < self._length or self.is_metered:
            return False
        if self._has_sent or self._may_become_inline or not (self._is_new or not self._dyn_stripe):
            return False
        return self._changes.may_send(self._inode.inode_id)

    async def _send(self, view: memoryview) -> InlineReport | None:
        """Have meta keep all bytes of the file, durably;
        else return the report: unless it turns out to have been taken they have to go to a chunk.

        Raises:
            FsError: as meta says; nobody knows then whether it keeps them.
        """
        request = meta_pb2.SyncReq(
            caller=self._identity.caller(), inode_id=self._inode.inode_id, is_durable=True
        )
        add_bytes(request, bytes(view), self._part)
        # Whoever writes through this object meanwhile has this report
        # refused, or the bytes moved, first.
        self._dyn_stripe = 0
        self._has_sent = self._may_become_inline = True
        report = InlineReport(request, self._changes.now_s())
        self._changes.note_sent(self._inode.inode_id, report)
        reply: meta_pb2.InodeRsp | None = None
        try:
            reply = await self._meta.call(services.META_SYNC, request)
        finally:
            self._changes.note_changed(self._inode.inode_id)
            report.forget_bytes()
            if reply is None:
                self._write_count += 1
                self._is_length_unknown = True
        report.note_reply(reply, is_repeat=request.caller.is_repeat)
        if reply.is_inline_refused:  # of a repeat the first try may be yet to come
            return report
        self._note_told()
        self._learn(inode_from_pb(reply.inode), is_brought=True)
        return None

    def _note_told(self) -> None:
        """No report with bytes can be taken any more that has not been."""
        self._may_become_inline = False
        self._changes.note_told(self._inode.inode_id)

    async def append(self, data: Buffer) -> int:
        """Write bytes at the end of the file, wherever others have moved it,
        and return where that was.

        Nobody else's append gets the same place; when the write fails, the place reads as zeros.

        Raises:
            FsError: as `write`.
        """
        self.require_open()
        view = byte_view(data)
        if not view:
            return self._length
        self._require_writable()
        try:
            offset = await self._reserve(len(view))
            await self.write(offset, view)
        except BaseException:
            self._is_space_unsure = True  # its place may stay a hole
            raise
        return offset

    async def _reserve(self, length: int) -> int:
        """Have meta lengthen the file by so much; return where it ended before."""
        self._has_sent = True
        if self._has_new_data and self._is_length_unknown:
            await self.fsync()
        request = meta_pb2.ReserveAppendReq(
            caller=self._identity.caller(), inode_id=self._inode.inode_id, length=length
        )
        if self._has_new_data:
            request.length_hint.CopyFrom(self._length_hint())
        reply = await self._meta.call(services.META_RESERVE_APPEND, request)
        inode = inode_from_pb(reply.inode)
        assert inode.file is not None
        self._take_over(inode)
        if inode.file.truncate_ver != self._truncate_ver:  # cut by others: what was known is void
            self._truncate_ver, self._written_end = inode.file.truncate_ver, 0
        self._length = inode.file.length
        self._promised_length = max(self._promised_length, inode.file.promised_length)
        return reply.offset

    async def truncate(self, length: int) -> None:
        """Cut the file or, with a hole, lengthen it to `length` bytes;
        durable after `fsync` or `close`.

        Raises:
            FsError: BAD_FILE, INVALID_ARGUMENT, FILE_TOO_LARGE, QUOTA_EXCEEDED.
        """
        check_offset(self.path, length)
        self._require_writable()
        self._has_sent = True
        self._changes.note_changed(self._inode.inode_id)
        if self._has_new_data and self._is_length_unknown:
            await self.fsync()
        request = meta_pb2.SetAttrReq(
            caller=self._identity.caller(),
            inode_id=self._inode.inode_id,
            length=length,
            has_open_file=True,
        )
        write_count = self._write_count
        if self._has_new_data:
            request.length_hint.CopyFrom(self._length_hint())
        inode = inode_from_pb((await self._meta.call(services.META_SET_ATTR, request)).inode)
        assert inode.file is not None
        self._take_over(inode)
        self._changes.note_changed(self._inode.inode_id)
        self._truncate_ver, self._length = inode.file.truncate_ver, inode.file.length
        # The next report makes it durable, and tells it again in case meta
        # has lost it with its power.
        self._written_end, self._promised_length = inode.length, inode.file.promised_length
        self._reported_count = max(self._reported_count, write_count)
        self._write_count += 1
        self._unsynced_count += 1

    def _take_over(self, inode: Inode) -> None:
        """Take in the file after a change of this client;
        a stripe that may still become none again stays none.
        """
        assert inode.file is not None
        self._inode = inode
        if not self._may_become_inline:
            self._dyn_stripe = max(self._dyn_stripe, inode.file.dyn_stripe)

    async def _secure(self, end: int) -> None:
        request = meta_pb2.ReserveSpaceReq(
            caller=self._identity.caller(), inode_id=self._inode.inode_id, length=end
        )
        reply = await self._meta.call(services.META_RESERVE_SPACE, request)
        inode = inode_from_pb(reply.inode)
        assert inode.file is not None
        self.is_metered, self._promised_length = reply.is_metered, inode.file.promised_length

    async def _cover(self, end: int, report: InlineReport | None = None) -> None:
        """Extend the dynamic stripe so that chunks up to byte `end` may exist;
        bytes that are inline are in a chunk then, and `report` is settled.
        """
        chunk_count = -(-end // self.layout.chunk_size_bytes)
        needed = min(chunk_count, self.layout.stripe_size)
        is_doubted = report is not None and not report.is_settled
        if needed <= self._dyn_stripe and not is_doubted:
            return
        request = meta_pb2.ExtendStripeReq(
            caller=self._identity.caller(),
            inode_id=self._inode.inode_id,
            dyn_stripe_min=needed,
            ends_inline=self._may_become_inline or is_doubted,
        )
        if request.ends_inline:
            report = report or self._changes.report_in_doubt(self._inode.inode_id)
            request.report_id = b"" if report is None else report.report_id
        reply = await self._meta.call(services.META_EXTEND_STRIPE, request)
        inode = inode_from_pb(reply.inode)
        assert inode.file is not None
        if request.ends_inline:
            if report is not None:
                report.note_told(reply.inline_outcome, self._changes.now_s())
            self._note_told()
        if not self._dyn_stripe and inode.file.truncate_ver > self._truncate_ver:
            # Moving bytes to a chunk counts as a truncation, before which
            # nothing was written to chunks.
            self._inode, self._truncate_ver, self._written_end = inode, inode.file.truncate_ver, 0
            self._promised_length = inode.file.promised_length
        elif self.is_inline:
            self._inode = inode
        # Replies may pass each other, and it only grows.
        self._dyn_stripe = max(self._dyn_stripe, inode.file.dyn_stripe)

    @property
    def _has_new_data(self) -> bool:
        return self._write_count > self._reported_count

    def _sync_request(self, *, is_durable: bool = True) -> meta_pb2.SyncReq:
        request = meta_pb2.SyncReq(
            caller=self._identity.caller(),
            inode_id=self._inode.inode_id,
            has_new_data=self._has_new_data,
            is_durable=is_durable,
        )
        if self._has_new_data and not self._is_length_unknown:
            request.length_hint.CopyFrom(self._length_hint())
        return request

    def _length_hint(self) -> meta_pb2.LengthHintPb:
        return meta_pb2.LengthHintPb(length=self._written_end, truncate_ver=self._truncate_ver)

    async def fsync(self) -> None:
        """Return when everything written so far, and the length, would survive a power loss.

        Raises:
            FsError: QUOTA_EXCEEDED: a limit was set after the file was opened, and what was written
                since the last fsync is dropped; and others.
            ValueError: the file was closed.
        """
        self.require_open()
        if not self._session_id:
            return
        request, write_count = self._sync_request(), self._write_count
        try:
            reply = await self._durable(self._meta.call(services.META_SYNC, request))
        except FsError as error:
            if error.status is Status.QUOTA_EXCEEDED:
                await self._forget_refused(write_count)
            raise
        self._reported_count = max(self._reported_count, write_count)
        self._length = max(self._written_end, reply.inode.file.length)
        if request.has_new_data and self._may_become_inline:
            self._note_told()

    async def _forget_refused(self, write_count: int) -> None:
        request = meta_pb2.GetAttrReq(caller=self._identity.caller(), inode_id=self._inode.inode_id)
        inode = inode_from_pb((await self._meta.call(services.META_GET_ATTR, request)).inode)
        assert inode.file is not None
        self._reported_count = max(self._reported_count, write_count)
        self._truncate_ver, self._length = inode.file.truncate_ver, inode.file.length
        # What has been written meanwhile may be there; only the chains can tell.
        self._written_end, self._is_length_unknown = 0, self._write_count > write_count
        self.is_metered, self._promised_length = True, inode.file.promised_length

    async def close(self) -> None:
        """Make a written file durable and visible, and end its session; repeating does nothing.

        Should it be cancelled, the session is ended a moment later as one of a client that is gone:
        meta asks the chains how far the file reaches.  Nothing is made durable then.

        Of a file to which nothing was written since it was opened, or since the last
        `fsync`, nothing is made durable, not even its name; its session ends a moment
        later, together with others.
        """
        self._is_closed = True
        self._forget_opened()
        if not self._session_id:
            return
        session_id, self._session_id = SessionId(self._session_id), ""
        try:
            await self._end(session_id)
        finally:
            self._changes.ended(self._inode.inode_id)

    async def _end(self, session_id: SessionId) -> None:
        has_new_data = self._has_new_data
        has_report = has_new_data or self._is_length_unknown or self._is_space_unsure
        if not (has_report or self.is_metered) and (
            self._ending is not None and self._ending.end(self._inode.inode_id, session_id)
        ):
            return
        report = self._sync_request(is_durable=has_new_data)
        report.counts_space = self._is_space_unsure
        request = meta_pb2.CloseReq(sync=report, session_id=session_id)
        call = self._meta.call(services.META_CLOSE, request)
        try:
            await (self._durable(call) if has_new_data else call)
        except BaseException as error:
            is_refused = isinstance(error, FsError) and is_final(error)
            if self._ending is not None and not is_refused:
                self._ending.end(self._inode.inode_id, session_id, is_reported=False)
            raise
        if has_new_data and self._may_become_inline:
            self._note_told()

    async def _durable(self, report: Awaitable[meta_pb2.InodeRsp]) -> meta_pb2.InodeRsp:
        """Make the chunks durable, if they are not, while the metadata is reported;
        return the reply.
        """
        count = self._unsynced_count
        if self._synced_count == count:
            return await report
        failures: list[FsError] = []

        async def sync_chunks() -> None:
            try:
                await self._chunks.sync([self.ref])
                self._synced_count = max(self._synced_count, count)
            except FsError as error:
                failures.append(error)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(sync_chunks)
            try:
                reply = await report
            except FsError as error:
                failures.insert(0, error)
        if failures:
            raise failures[0]
        return reply  # type: ignore[possibly-undefined]  # set unless a failure was noted

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()
