"""The commonest update by itself: one small write to one chunk,
in a chain where nothing is unusual, without a task.

It does what write_path.py does, step by step and in that order, which says why; its invariants hold
here.  No step waits but for the successor and for a flush, and whoever ends such a wait goes on.
No task is made, or woken, and no request is an object of protobuf's.

What it leaves to others:
    - Whatever is not just so before anything has been done: to `run_update`.
    - Whatever goes wrong later: to a task that goes on with the
      functions of write_path.py (`_go_on`).

An error of ours at any step, say no memory, is the answer, and lets go of the chunk: none reaches
the event loop.  The version may be there and stay pending, which the next update settles.

Not ended early: an update that has begun goes on to its end, whether
somebody still waits for it or not.

Concurrency: one event loop; everything up to the request to the successor is done without a
checkpoint, and everything after its reply.
"""

import logging
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import trio
import xxhash
from google.protobuf.message import DecodeError

from ..chunkengine.api import ChunkState, CommitsAtOnce, Note
from ..chunkengine.books import StuckError
from ..rpc.api import Answer, Call, Received, UnderWay
from ..runtime import tracing
from ..runtime.readiness import current_time
from ..schema import services
from ..schema.ids import ChunkId, InodeId
from ..schema.layout import CHUNK_SIZE_BYTES_MAX, CHUNK_SIZE_BYTES_MIN
from ..schema.proto import storage_pb2
from ..schema.routing import LocalState, PublicState
from ..schema.status import FsError, Status
from .answers import answer, done, reply_of
from .channels import Tag, UpdateResult, is_final
from .context import StorageContext
from .disk import AT_ONCE_BYTES_MAX
from .finished_cuts import WHOLE
from .flusher import Flush
from .forward import Failed, note_begun, note_end, result_of
from .preparing import refusal
from .replica import UpdateType
from .standings import is_noted
from .targets import Place
from .update_notes import CLIENT_ID_BYTES_MAX, REQUEST_ID_BYTES_MAX, note_of, pack_tag
from .update_request import Update
from .write_path import pass_on_and_commit

log = logging.getLogger(__name__)

CALL_S_MIN: Final = 0.001


class LoneUpdates:
    """Those of one process."""

    def __init__(self, context: StorageContext) -> None:
        self._context = context
        self._nursery: trio.Nursery | None = None

    async def run(self) -> None:
        """Let updates be begun until cancelled; of those under way nothing more is done then."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            try:
                await trio.sleep_forever()
            finally:
                self._nursery = None  # before the nursery takes no more tasks

    @property
    def is_running(self) -> bool:
        """Whether the process goes on."""
        return self._nursery is not None

    def go_on(self, lone: "_Lone", failed: Failed | None) -> None:
        """Have a task do what is left of an update."""
        assert self._nursery is not None, lone.update
        self._nursery.start_soon(lone.go_on, failed)

    def end_commit(self, lone: "_Lone") -> None:
        """Have a task commit what the event loop could not."""
        assert self._nursery is not None, lone.update
        self._nursery.start_soon(lone.commit_in_thread)

    def begin(self, call: Call, message: bytes, reply: Answer, *, is_from_client: bool) -> bool:
        """See `fs.rpc.api.Begin`."""
        payload, context = call.payload, self._context
        if self._nursery is None or tracing.live.count or len(payload) > AT_ONCE_BYTES_MAX:
            return False
        now_s = current_time()
        deadline_s = min(call.deadline_s, now_s + context.section.forward_timeout_s)
        update = _usual(message, payload, is_from_client=is_from_client, deadline_s=deadline_s)
        if update is None:
            return False
        place = context.place_known(update.request.chain_id, update.request.chain_version)
        if place is None or not _is_ready(context, place, update):
            return False
        try:
            lone = _found(context, place, update)
            if lone is None or not _is_first(lone, now_s):
                return False
        except FsError:  # `run_update` meets it, too, and says what it means
            return False
        lone.owner, lone.reply = self, reply
        lone.begin(now_s)
        return True


def _usual(
    message: bytes, payload: memoryview, *, is_from_client: bool, deadline_s: float
) -> Update | None:
    """Return a request for a write that is nothing but that;
    None: it is not, or something is wrong with it.

    Each field is asked for once: that costs more than looking at it.
    """
    try:
        request = storage_pb2.UpdateReq.FromString(message)
    except DecodeError:  # whoever parses it for `run_update` says so
        return None
    wire, inode_id, version = request.tag, request.inode_id, request.update_ver
    size, offset, count = request.chunk_size_bytes, request.offset, len(payload)
    client_id, channel_id, request_id = wire.client_id, wire.channel_id, wire.request_id
    if (
        request.type != storage_pb2.WRITE
        or request.is_full_replace
        or request.is_damaged
        or request.is_fill
        or request.commit_chain_version
        or request.range_offsets
        or request.range_lengths
        or request.chunk_checksum
        or not inode_id
        or (version == 0) is not is_from_client
        or not CHUNK_SIZE_BYTES_MIN <= size <= CHUNK_SIZE_BYTES_MAX
        or size & (size - 1)
        or not 0 < count == request.length
        or offset + count > size
        or not (client_id and channel_id)
        or not client_id.isascii()
        or len(client_id) > CLIENT_ID_BYTES_MAX
        or len(request_id) > REQUEST_ID_BYTES_MAX
        or xxhash.xxh3_64_intdigest(payload) != request.payload_checksum
    ):
        return None
    tag = Tag(client_id, channel_id, wire.sequence, request_id)
    chunk_id = ChunkId(InodeId(inode_id), request.chunk_index)
    about = tag, pack_tag(tag), is_from_client, deadline_s
    return Update(request, payload, UpdateType.WRITE, chunk_id, *about)


def _is_ready(context: StorageContext, place: Place, update: Update) -> bool:
    """Return whether our place in the chain, and the next one's, are such as they mostly are."""
    target, request = place.target, update.request
    if (
        update.is_from_client is not place.is_head
        or place.public_state is not PublicState.SERVING
        or target.local_state is not LocalState.UPTODATE
        or not context.lease.is_valid()
        or not is_noted(place)
    ):
        return False
    if place.successor is not None and place.successor.public_state is not PublicState.SERVING:
        return False
    return update.is_from_client or (
        (request.chain_version, request.sender_epoch) >= target.epoch_seen
        and request.checksum_block_bytes in {0, target.disk.engine.checksum_block_bytes}
    )


def _found(context: StorageContext, place: Place, update: Update) -> "_Lone | None":
    """Look at the chunk and the disk; None unless it is to be written at once;
    raises FsError as `Disk.run_inline`.
    """
    target, chunk_id, request = place.target, update.chunk_id, update.request
    disk, size = target.disk, len(update.payload)
    if target.locks.is_held(chunk_id) or not disk.may_write_at_once(size):
        return None
    engine = disk.engine
    state = disk.run_inline(engine.get, target.target_id, chunk_id)
    committed = 0
    if state is None:
        if disk.free_bytes < context.section.reject_create_free_bytes_min:
            return None
    else:
        committed = state.commit_ver
        if (
            state.pending_ver
            or state.is_damaged
            or state.chain_version > request.chain_version
            or state.chunk_size_bytes != request.chunk_size_bytes
        ):
            return None
    version = committed + 1
    if not update.is_from_client and request.update_ver != version:
        return None
    about = target.target_id, chunk_id, request.offset, size
    if not disk.run_inline(engine.takes_at_once, *about):
        return None
    return _Lone(context, place, update, version, state)


def _is_first(lone: "_Lone", now_s: float) -> bool:
    """At the head, occupy the client's channel; False: it is a repeat.

    Raises FsError as `ChannelTable.begin`.
    """
    update = lone.update
    assert update.tag is not None
    return not update.is_from_client or lone.place.target.channels.begin(update.tag, now_s) is None


class _Lone:
    """One update, its checks passed."""

    __slots__ = (
        "_context",
        "_flush",
        "_has_left",
        "_is_asking",
        "_is_durable",
        "_is_locked",
        "_prepared",
        "_result",
        "_state",
        "_version",
        "owner",
        "place",
        "reply",
        "update",
    )

    owner: LoneUpdates
    reply: Answer

    def __init__(
        self,
        context: StorageContext,
        place: Place,
        update: Update,
        version: int,
        state: ChunkState | None,
    ) -> None:
        self._context = context
        self.place = place
        self.update = update
        self._version = version
        self._state = state
        """Before it."""
        self._prepared: ChunkState
        self._result: UpdateResult
        self._flush: Flush | None = None
        self._is_durable = False
        """Below us."""
        self._is_locked = True
        self._is_asking = False
        """The successor has yet to answer."""
        self._has_left = False

    def begin(self, now_s: float) -> None:
        """Prepare here, and pass it on or, at the tail, commit;
        raises nothing but what is a bug.
        """
        update, target = self.update, self.place.target
        request, chunk_id = update.request, update.chunk_id
        target.inflight.enter(request.chain_version)
        is_taken = target.locks.take(chunk_id)
        assert is_taken, chunk_id
        if not update.is_from_client:
            target.heard_s = now_s
            target.admit_epoch(request.chain_version, request.sender_epoch)
        target.cuts.note(chunk_id.inode_id, WHOLE, request.truncate_ver)
        target.unsettled[chunk_id] = None
        try:
            self._prepare()
        except FsError as error:
            self._refuse(refusal(self._context, self.place, chunk_id, self._state, error))
            return
        except BaseException:  # a bug: `run_update` is asked, and finds nobody in its way
            self._unlock()
            self._leave()
            raise
        if self.place.successor is None:
            self._try(self._end_at_tail)
        else:
            self._try(self._pass_on, now_s)

    def _try(self, step: Callable[..., None], *args: object) -> None:
        """Do what is next, unless it is over; an error is the answer:
        nobody else would let go of the chunk.
        """
        if self._has_left or not self.owner.is_running:
            return
        try:
            step(*args)
        except Exception as error:  # noqa: BLE001 - no task would end with it, but the event loop
            self._refuse(error)

    def _end_at_tail(self) -> None:
        """It is committed already."""
        target, request = self.place.target, self.update.request
        del target.unsettled[self.update.chunk_id]
        if request.is_durable:
            self._flush = self._context.flusher.begin(target.disk)
            self._is_durable = self._flush is not None
        self._record()
        self._unlock()
        if self._flush is None:
            self._tell()
            self._leave()
        else:
            self._flush.tell(partial(self._try, self._tail_flushed))

    def _tail_flushed(self) -> None:
        self._tell()
        self._leave()

    def _prepare(self) -> None:
        """Make the pending version, or the committed one at the tail; raises FsError."""
        target, disk = self.place.target, self.place.target.disk
        size = len(self.update.payload)
        disk.note_written(size)
        target.written_bytes += size
        self._prepared = disk.write_at_once(size, self._write)
        self._result = result_of(self._prepared)

    def _write(self) -> ChunkState:
        update, target = self.update, self.place.target
        request = update.request
        commits = None
        if self.place.successor is None:
            commits = CommitsAtOnce(request.chain_version, self._note)
        return target.disk.engine.prepare_write(
            target.target_id,
            update.chunk_id,
            version=self._version,
            chunk_size_bytes=request.chunk_size_bytes,
            offset=request.offset,
            data=update.payload,
            tag=update.packed_tag,
            commits=commits,
        )

    def _note(self, state: ChunkState) -> Note:
        assert self.update.tag is not None
        return note_of(self.update.tag, result_of(state))

    def _pass_on(self, now_s: float) -> None:
        """Ask the successor; our own flush begins when the request is on its way."""
        place, update, context = self.place, self.update, self._context
        successor, target = place.successor, place.target
        assert successor is not None
        message = self._message()
        calls: set[UnderWay] = target.forwards.get(successor.target_id, set())
        begun = None
        try:
            begun = context.channel_to(successor.target_id).begin(
                services.STORAGE_UPDATE,
                message,
                self._answered,
                timeout_s=max(CALL_S_MIN, update.deadline_s - now_s),
                under_way=calls,
                payload=(update.payload,),
            )
        except Exception as error:  # noqa: BLE001 - a bug is met again, and told, by the task that goes on
            log.info("target %d: not passed on at once: %r", target.target_id, error)
        if begun is None:  # not an answer: for how long we have waited for one stays as it was
            self.owner.go_on(self, None)
            return
        self._is_asking = True
        note_begun(target, successor.target_id, calls, now_s)
        if update.request.is_durable:
            self._flush = context.flusher.begin(target.disk)

    def _message(self) -> bytes:
        """Return what `request_of` would: the request that came says the same but for this,
        and is not asked for it again.
        """
        target, request = self.place.target, self.update.request
        request.update_ver = self._version
        request.sender_epoch = target.epoch
        request.checksum_block_bytes = target.disk.engine.checksum_block_bytes
        request.truncate_ver = 0
        request.DiscardUnknownFields()
        return request.SerializeToString()

    def _answered(self, received: Received[Any] | None, error: FsError | None) -> None:
        """The call to the successor has ended: it is noted also when this update
        is over already.
        """
        self._is_asking = False
        if not self._has_left:
            self._try(self._replied, received, error)
        elif self.owner.is_running:
            assert self.place.successor is not None
            is_over = error is None or error.definite
            note_end(self.place.target, self.place.successor.target_id, error, is_over=is_over)

    def _replied(self, received: Received[Any] | None, error: FsError | None) -> None:
        """The rest of the chain has it, or we do not know."""
        place, prepared = self.place, self._prepared
        assert place.successor is not None
        is_over = error is None or error.definite
        note_end(place.target, place.successor.target_id, error, is_over=is_over)
        if received is not None:
            said = received.message
            if said.commit_ver == self._version and (
                said.chunk_checksum != prepared.pending_checksum
                or said.chunk_length != prepared.pending_length
            ):
                detail = f"digest of version {self._version} differs"
                error = FsError(Status.CHUNK_DIVERGED, detail)
            self._is_durable = said.is_durable
        if error is not None:
            self.owner.go_on(self, Failed(place.successor.target_id, error))
        elif self._flush is not None and self._is_durable:
            self._flush.tell(partial(self._try, self._commit))
        else:
            self._is_durable = False
            self._commit()

    def _commit(self) -> None:
        """Tell whoever asked, and commit; what fails here fails the disk."""
        is_told = self._context.lease.is_valid()
        if is_told:
            self._tell()
        target = self.place.target
        try:
            target.disk.run_inline(self._commit_here)
        except StuckError:
            self.owner.end_commit(self)
            return
        except Exception as error:  # noqa: BLE001 - as in `go_on`; of a bug the version stays pending, and the next update settles it
            self._refuse(error)
            return
        del target.unsettled[self.update.chunk_id]
        self._record()
        self._unlock()
        if not is_told:
            self._tell()
        self._leave()

    def _commit_here(self) -> ChunkState | None:
        target, update = self.place.target, self.update
        assert update.tag is not None
        return target.disk.engine.commit(
            target.target_id,
            update.chunk_id,
            version=self._version,
            chain_version=update.request.chain_version,
            note=note_of(update.tag, self._result),
        )

    async def commit_in_thread(self) -> None:
        """Commit what the event loop could not: either that comes, or the disk fails."""
        target, update = self.place.target, self.update
        error: Exception | None = None
        try:
            await target.disk.run(self._commit_here)
            del target.unsettled[update.chunk_id]
            self._record()
        except Exception as failure:  # noqa: BLE001 - as in `go_on`
            error = failure
        finally:
            self._unlock()
            self._leave()
        if error is None:
            self._tell()
        else:
            self.reply(error)

    def _tell(self) -> None:
        """Answer: with a flush at its end, and for a client under a valid lease only; once."""
        is_durable = self._is_durable and self._flush is not None and self._flush.is_durable
        if not self._context.lease.is_valid():
            if self.update.is_from_client:
                what = f"the lease of node {self._context.node_id} ran out meanwhile"
                self.reply(FsError(Status.OUTCOME_UNKNOWN, what))
                return
            is_durable = False
        self.reply(reply_of(self.place, self._result, is_durable=is_durable).SerializeToString())

    async def go_on(self, failed: Failed | None) -> None:
        """Do what is left as `run_update` does, after an attempt
        to pass it on that failed, or none.
        """
        context, place, update = self._context, self.place, self.update
        result: bytes | Exception
        try:
            about = place, update, self._version, self._prepared
            flush = await pass_on_and_commit(context, *about, failed=failed)
            executed = await done(place, update, self._result, flush)
            self._unlock()
            result = (await answer(context, update, executed)).SerializeToString()
        except FsError as error:
            self._note_refusal(error)
            result = error
        except Exception as error:  # noqa: BLE001 - the edge, as for all that is served: a bug must not end the process
            result = error
        finally:
            self._unlock()
            self._leave()
        self.reply(result)

    def _refuse(self, error: Exception) -> None:
        """Nothing comes of it here."""
        if self._is_asking:  # what is on its way must not count behind what comes next
            self.place.target.epoch += 1
        if isinstance(error, FsError):
            self._note_refusal(error)
        self._unlock()
        self._leave()
        self.reply(error)

    def _note_refusal(self, error: FsError) -> None:
        tag = self.update.tag
        if self.update.is_from_client and tag is not None and is_final(error):
            self.place.target.channels.refuse(tag, error)

    def _record(self) -> None:
        """Remember it for repeats."""
        assert self.update.tag is not None
        self.place.target.channels.record(self.update.tag, self._result, current_time())

    def _unlock(self) -> None:
        if self._is_locked:
            self._is_locked = False
            self.place.target.locks.release(self.update.chunk_id)

    def _leave(self) -> None:
        if self._has_left:
            return
        self._has_left = True
        target, update = self.place.target, self.update
        target.inflight.leave(update.request.chain_version)
        if update.is_from_client and update.tag is not None:
            target.channels.end(update.tag)
