"""The way of one update through one replica, top to bottom.

Invariants:
    - A version is forwarded only when it is pending here.  So whatever a reader is shown at the tail is held by every
      target above it, and survives the death of any of them in any order.
    - It is committed here only after everybody below has committed it.
    - A client is told of success only under a valid lease, and at most one success per tag.
    - NO_SPACE means: neither here nor below has anybody the update, nor will anybody get it, not even from an earlier
      copy of the same request that arrives late.

Why dropping a pending version on NO_SPACE is safe (step 9).  The successor answers NO_SPACE only when it holds
nothing of the version itself and, by the same rule, nobody below it does.  Earlier attempts at the same successor
whose outcome stayed unknown are void since its answer (epochs, forward.py).  Earlier attempts at a former successor
do not matter: had it got the version down to a replica that still serves, the present successor, which took its
place and is serving, would have it and would have answered success.  A syncing successor never answers
NO_SPACE: it leaves the chain instead, because the former tail may have committed the version, and shown it.

Concurrency: any number of updates at once; those of one chunk one after the other.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import trio
import xxhash

from ..chunkengine.api import ChunkState
from ..runtime import tracing
from ..schema.ids import ChunkId, InodeId
from ..schema.layout import CHUNK_SIZE_BYTES_MAX, CHUNK_SIZE_BYTES_MIN
from ..schema.proto import storage_pb2
from ..schema.routing import PublicState
from ..schema.status import FsError, Status
from .channels import Tag, UpdateResult, is_final
from .context import StorageContext
from .copies import Repaired, repair_copy
from .damage import note_damage
from .finished_cuts import WHOLE
from .forward import Forwarded, Outgoing, commit, forward, result_of
from .local_state import Hold
from .replica import Action, Decision, Position, UpdateFacts, UpdateType, decide_update
from .settle import settle
from .target import LocalTarget
from .targets import Place
from .update_notes import CLIENT_ID_BYTES_MAX, REQUEST_ID_BYTES_MAX, note_of, pack_tag

log = logging.getLogger(__name__)

_UPDATE_TYPES: Final = frozenset(int(kind) for kind in UpdateType)


@dataclass(frozen=True, slots=True)
class _Update:
    """A checked request."""

    request: storage_pb2.UpdateReq
    payload: memoryview
    kind: UpdateType
    chunk_id: ChunkId
    tag: Tag | None
    packed_tag: bytes
    is_from_client: bool
    deadline_s: float


async def run_update(
    context: StorageContext,
    request: storage_pb2.UpdateReq,
    payload: memoryview,
    *,
    is_from_client: bool,
    deadline_s: float,
) -> storage_pb2.UpdateRsp:
    """Execute one update here and below; return when it is committed on the whole rest of the chain.

    Args:
        context: ports, targets and limits of this process.
        request: from a client (head only; `update_ver` 0) or from the predecessor.
        payload: the bytes of a WRITE; read until return, not kept.
        is_from_client: which of the two.
        deadline_s: trio time at which the sender stops waiting.

    Raises:
        FsError: as the status registry says; a definite status means no replica has the update.
    """
    deadline_s = min(deadline_s, trio.current_time() + context.section.forward_timeout_s)
    # 1. The lease, and our place in the chain at the sender's version of it.
    context.check_lease()
    place = await context.place_at(request.chain_id, request.chain_version)
    target = place.target
    if tracing.live.count:
        _note_place(place)
    # 2. The request's own consistency, and the payload's bytes.
    update = _check(request, payload, is_from_client=is_from_client, deadline_s=deadline_s)
    chunk_id, tag = update.chunk_id, update.tag
    # 3. Exactly once: a repeat gets the first result.
    is_channel_held = is_from_client and tag is not None
    if is_from_client and tag is not None:
        known = target.channels.begin(tag, trio.current_time())
        if known is not None:
            return _done(context, place, update, known)
    target.inflight.enter(request.chain_version)
    try:
        # 4. Updates of one chunk one after the other.
        async with target.locks.hold(chunk_id):
            # 5. Everything may have changed while we waited.
            context.check_lease()
            place = context.place_now(request.chain_id, request.chain_version)
            position = _position(place, is_from_client, request.is_damaged)
            if not is_from_client:
                target.heard_s = trio.current_time()
                target.admit_epoch(request.chain_version, request.sender_epoch)
            # 6. What is to be done?  A leftover pending version is completed first.
            while True:
                state = target.disk.run_inline(target.disk.engine.get, target.target_id, chunk_id)
                if is_from_client and tag is not None:
                    # Completing a leftover, or an update forwarded by a former head, may have been this one.
                    known = target.channels.result_of(tag)
                    if known is not None:
                        return _done(context, place, update, known)
                if update.kind is UpdateType.WRITE:
                    target.cuts.note(chunk_id.inode_id, WHOLE, request.truncate_ver)
                elif target.cuts.is_finished(
                    chunk_id.inode_id, chunk_id.index, request.truncate_ver
                ):
                    return _done(context, place, update, _result_of(0, state))
                decision = decide_update(state, _facts(update, state), position)
                if decision.action is not Action.SETTLE_FIRST:
                    break
                assert state is not None
                await settle(context, target, request.chain_id, state, deadline_s=deadline_s)
            if decision.action is Action.DONE:
                result = _result_of(decision.version, state)
                _note_cut(target, update)
                return _done(context, place, update, result)
            if await _restore_what_is_kept(context, place, update, state):
                state = target.disk.run_inline(target.disk.engine.get, target.target_id, chunk_id)
            _check_new_version(context, place, update, state)
            # 7. From here on readers of this chunk ask the tail.
            target.unsettled[chunk_id] = None
            # 8. Prepare here.  The tail, which waits for nobody, commits in the same call: a successor that
            #    appears meanwhile is syncing, and its resync waits for this update to leave.
            is_tail = place.successor is None and decision.action is not Action.RESUME
            try:
                prepared = await _prepare(place, update, decision, state, commits=is_tail)
            except FsError as error:
                raise _refusal(context, place, update, state, error) from error
            result = result_of(prepared)
            if not is_tail:
                # 9. Pass it on; everybody below has committed it when this returns.
                forwarded = await _pass_on(context, place, update, decision.version, prepared)
                # 10. Commit here.
                commit(target, result, forwarded.chain_version, tag)
            target.unsettled.pop(chunk_id, None)
            _note_cut(target, update)
            # 11. Remember it for repeats; a client is answered under a valid lease only.
            return _done(context, place, update, result)
    except FsError as error:
        if is_channel_held and tag is not None and is_final(error):
            target.channels.refuse(tag, error)
        raise
    finally:
        target.inflight.leave(request.chain_version)
        if is_channel_held and tag is not None:
            target.channels.end(tag)


def _note_place(place: Place) -> None:
    """Say in a trace which part of the chain this is."""
    tracing.note("chain", place.chain.chain_id)
    tracing.note("target", place.target.target_id)
    rank = "head" if place.is_head else "tail" if place.successor is None else "middle"
    tracing.note("position", rank)


def _note_cut(target: LocalTarget, update: _Update) -> None:
    """A truncation has cut this chunk; a write says what it knows before."""
    if update.kind is UpdateType.TRUNCATE:
        chunk_id = update.chunk_id
        target.cuts.note(chunk_id.inode_id, chunk_id.index, update.request.truncate_ver)


async def _restore_what_is_kept(
    context: StorageContext, place: Place, update: _Update, state: ChunkState | None
) -> bool:
    """At the head: an update that keeps bytes of a version known to be damaged needs them first.

    Raises:
        FsError: CHUNK_DAMAGED, before anybody has heard of the update.
    """
    if state is None or not state.is_damaged or not update.is_from_client:
        return False
    request = update.request
    is_all_new = update.kind is UpdateType.REMOVE or (
        request.offset == 0 and request.length >= state.length
        if update.kind is UpdateType.WRITE
        else request.length == 0 and update.kind is UpdateType.TRUNCATE
    )
    if is_all_new:
        return False
    if await repair_copy(context, place, state) is not Repaired.YES:
        raise FsError(Status.CHUNK_DAMAGED, f"chain {place.chain.chain_id}: {update.chunk_id}")
    return True


async def _pass_on(
    context: StorageContext,
    place: Place,
    update: _Update,
    version: int,
    prepared: ChunkState,
) -> Forwarded:
    """Bring the update to the rest of the chain; undo it here if certainly nobody there has it or gets it.

    Raises:
        FsError: as `forward`; but for NO_SPACE the version stays pending: a repeat, the next update or resync
            completes it.
    """
    target, request = place.target, update.request
    outgoing = Outgoing(
        update.chunk_id,
        update.kind,
        version,
        request.chunk_size_bytes,
        request.offset,
        request.length,
        update.payload,
        request.payload_checksum,
        update.tag,
        request.is_full_replace,
    )
    try:
        return await forward(
            context, target, request.chain_id, outgoing, prepared, deadline_s=update.deadline_s
        )
    except FsError as error:
        if error.status is Status.NO_SPACE:
            engine = target.disk.engine
            await target.disk.run(engine.drop_pending, target.target_id, update.chunk_id)
            target.unsettled.pop(update.chunk_id, None)
        raise


def _refusal(
    context: StorageContext,
    place: Place,
    update: _Update,
    state: ChunkState | None,
    error: FsError,
) -> FsError:
    """Clean up after an update that could not be prepared here, so that nobody below has heard of it.

    Returns:
        What the sender is told.
    """
    target, chunk_id = place.target, update.chunk_id
    if place.public_state is PublicState.SYNCING:
        hold = Hold.FULL if error.status is Status.NO_SPACE else Hold.EVICTED
        context.targets.put_offline(target, hold, f"{chunk_id}: {error}")
        return FsError(Status.TARGET_OFFLINE, str(error))
    if state is not None and state.pending_ver:  # an older one, which could still be somewhere
        return FsError(Status.OUTCOME_UNKNOWN, str(error))
    target.unsettled.pop(chunk_id, None)
    if error.status is Status.CHECKSUM_MISMATCH:
        note_damage(target, chunk_id, str(error))
        if place.chain.serving == (target.target_id,):
            return FsError(Status.CHUNK_DAMAGED, str(error))
    return error


async def _prepare(
    place: Place,
    update: _Update,
    decision: Decision,
    state: ChunkState | None,
    *,
    commits: bool = False,
) -> ChunkState:
    """Make the pending version on our disk; with `commits`, commit it in the same blocking call."""
    if decision.action is Action.RESUME:
        assert state is not None
        return state
    disk = place.target.disk
    commit_at = update.request.commit_chain_version or place.chain.chain_version
    work = partial(
        _prepare_blocking,
        place.target,
        update,
        decision.version,
        is_syncing=place.public_state is PublicState.SYNCING,
        commit_at=commit_at if commits else 0,
    )
    if update.kind is UpdateType.REMOVE:  # a metadata batch, as a commit is
        return disk.run_inline(work)
    disk.note_written(len(update.payload))
    place.target.written_bytes += len(update.payload)
    return await disk.write_timed(len(update.payload), work)


def _prepare_blocking(
    target: LocalTarget, update: _Update, version: int, *, is_syncing: bool, commit_at: int
) -> ChunkState:
    """Return the state with the pending version, also if it was committed at once (`commit_at` not 0)."""
    engine, target_id, chunk_id = target.disk.engine, target.target_id, update.chunk_id
    request = update.request
    if request.is_damaged:
        return _put_damaged(target, update, version)
    if update.kind is UpdateType.WRITE:
        state = engine.prepare_write(
            target_id,
            chunk_id,
            version=version,
            chunk_size_bytes=request.chunk_size_bytes,
            offset=request.offset,
            data=update.payload,
            is_full_replace=request.is_full_replace,
            tag=update.packed_tag,
        )
    elif update.kind is UpdateType.REMOVE:
        if is_syncing:
            engine.drop_pending(target_id, chunk_id)
        if commit_at and update.tag is None:
            return engine.remove(target_id, chunk_id, version=version)
        state = engine.prepare_remove(target_id, chunk_id, version=version, tag=update.packed_tag)
    else:
        state = engine.prepare_truncate(
            target_id,
            chunk_id,
            version=version,
            chunk_size_bytes=request.chunk_size_bytes,
            length=request.length,
            tag=update.packed_tag,
        )
    if commit_at:
        engine.commit(
            target_id,
            chunk_id,
            version=version,
            chain_version=commit_at,
            note=note_of(update.tag, result_of(state)) if update.tag is not None else None,
        )
    return state


def _put_damaged(target: LocalTarget, update: _Update, version: int) -> ChunkState:
    """Take a version without bytes; returned as if it had been prepared."""
    request = update.request
    state = target.disk.engine.put_damaged(
        target.target_id,
        update.chunk_id,
        version=version,
        chain_version=request.commit_chain_version,
        length=request.length,
        checksum=request.chunk_checksum,
        chunk_size_bytes=request.chunk_size_bytes,
    )
    return replace(
        state,
        pending_ver=version,
        pending_length=state.length,
        pending_checksum=state.checksum,
    )


def _check(
    request: storage_pb2.UpdateReq,
    payload: memoryview,
    *,
    is_from_client: bool,
    deadline_s: float,
) -> _Update:
    """Check everything that needs no state; raises FsError(RPC_BAD_REQUEST or CHECKSUM_MISMATCH)."""
    size, length = request.chunk_size_bytes, request.length
    where = f"inode {request.inode_id} chunk {request.chunk_index}"
    if request.type not in _UPDATE_TYPES or request.inode_id == 0:
        raise FsError(Status.RPC_BAD_REQUEST, f"{where}: update type {request.type}")
    kind = UpdateType(request.type)
    if kind is not UpdateType.REMOVE:
        if not CHUNK_SIZE_BYTES_MIN <= size <= CHUNK_SIZE_BYTES_MAX or size & (size - 1):
            raise FsError(Status.RPC_BAD_REQUEST, f"{where}: chunk size {size}")
        if request.offset + length > size:
            raise FsError(Status.RPC_BAD_REQUEST, f"{where}: {request.offset} + {length} > {size}")
    if request.truncate_ver and kind is UpdateType.EXTEND:
        raise FsError(Status.RPC_BAD_REQUEST, f"{where}: not of a truncation")
    if request.is_damaged and not (request.is_full_replace and request.commit_chain_version):
        raise FsError(Status.RPC_BAD_REQUEST, f"{where}: only resync hands over damaged chunks")
    if is_from_client and (request.update_ver or request.is_full_replace):
        raise FsError(Status.RPC_BAD_REQUEST, f"{where}: clients do not choose versions")
    if not is_from_client and not request.update_ver:
        raise FsError(Status.RPC_BAD_REQUEST, f"{where}: a forwarded update has a version")
    if request.is_full_replace and (request.offset or kind is not UpdateType.WRITE):
        raise FsError(Status.RPC_BAD_REQUEST, f"{where}: no whole chunk")
    if kind is UpdateType.WRITE:
        if len(payload) != (0 if request.is_damaged else length) or (
            length == 0 and is_from_client
        ):
            raise FsError(Status.RPC_BAD_REQUEST, f"{where}: {len(payload)} bytes for {length}")
        if xxhash.xxh3_64_intdigest(payload) != request.payload_checksum:
            raise FsError(Status.CHECKSUM_MISMATCH, f"{where}: payload changed on its way")
    tag = None
    if request.tag.client_id:
        if not request.tag.channel_id:
            raise FsError(Status.RPC_BAD_REQUEST, f"{where}: channel 0")
        wire = request.tag
        tag = Tag(wire.client_id, wire.channel_id, wire.sequence, wire.request_id)
        if len(tag.client_id.encode()) > CLIENT_ID_BYTES_MAX:
            raise FsError(Status.RPC_BAD_REQUEST, f"{where}: client id {tag.client_id[:80]}...")
        if len(tag.request_id) > REQUEST_ID_BYTES_MAX:
            raise FsError(Status.RPC_BAD_REQUEST, f"{where}: request id too long")
    packed = pack_tag(tag) if tag is not None else b""
    chunk_id = ChunkId(InodeId(request.inode_id), request.chunk_index)
    return _Update(request, payload, kind, chunk_id, tag, packed, is_from_client, deadline_s)


def _position(place: Place, is_from_client: bool, is_damaged: bool) -> Position:
    if not place.can_write:
        raise FsError(
            Status.NOT_SERVING,
            f"target {place.target.target_id} is {place.public_state.name}, here"
            f" {place.target.local_state.name}",
        )
    if place.public_state is PublicState.SYNCING and not is_from_client:
        return Position.SYNCING
    if is_damaged:
        raise FsError(Status.SYNC_REFUSED, f"target {place.target.target_id} is not syncing")
    if is_from_client is not place.is_head:
        head = place.chain.serving[0] if place.chain.serving else 0
        raise FsError(Status.NOT_HEAD, f"chain {place.chain.chain_id}: the head is target {head}")
    return Position.HEAD if is_from_client else Position.INNER


def _check_new_version(
    context: StorageContext, place: Place, update: _Update, state: ChunkState | None
) -> None:
    """Check what depends on the chunk that is there."""
    if update.kind is UpdateType.REMOVE:
        return
    is_syncing = place.public_state is PublicState.SYNCING
    if state is not None and state.commit_ver and not is_syncing:
        size = state.chunk_size_bytes
        if update.request.chunk_size_bytes != size:
            raise FsError(Status.INVALID_ARGUMENT, f"{state.chunk_id}: its chunk size is {size}")
    disk = place.target.disk
    if state is None and disk.free_bytes < context.section.reject_create_free_bytes_min:
        if is_syncing:
            context.targets.put_offline(place.target, Hold.FULL, f"{disk.free_bytes} bytes free")
            raise FsError(Status.TARGET_OFFLINE, f"disk {disk.index} is full")
        raise FsError(Status.NO_SPACE, f"disk {disk.path}: {disk.free_bytes} bytes free")


def _facts(update: _Update, state: ChunkState | None) -> UpdateFacts:
    request = update.request
    return UpdateFacts(
        update.kind,
        request.chain_version,
        request.update_ver,
        request.is_full_replace,
        request.length,
        is_cut=update.kind is UpdateType.TRUNCATE and bool(request.truncate_ver),
        is_pending_request=update.tag is not None
        and state is not None
        and state.pending_tag == update.packed_tag,
    )


def _done(
    context: StorageContext, place: Place, update: _Update, result: UpdateResult
) -> storage_pb2.UpdateRsp:
    """Record a success and make the reply."""
    if update.tag is not None:
        target = place.target
        target.channels.record(update.tag, result, trio.current_time())
        if place.public_state is PublicState.SYNCING and result.chunk_id is not None:
            # A batch of our predecessor's older results may have replaced the note of the commit.
            note = note_of(update.tag, result)
            target.disk.run_inline(target.disk.engine.put_notes, target.target_id, [note])
    if update.is_from_client and not context.lease.is_valid():
        raise FsError(
            Status.OUTCOME_UNKNOWN, f"the lease of node {context.node_id} ran out meanwhile"
        )
    return _reply(result, place.chain.chain_version)


def take_over_updates(target: LocalTarget, known: Sequence[tuple[Tag, UpdateResult]]) -> None:
    """Make a predecessor's results ours, in memory and on disk, unless we know something later of the channel.

    No checkpoint: between looking and storing nobody records anything.  What has been committed but not recorded yet
    is stored again when it is recorded (`_done`).
    """
    for tag, result in known:
        target.channels.record(tag, result, trio.current_time())
    notes = [
        note_of(tag, result)
        for tag, result in known
        if result.chunk_id is not None and target.channels.result_of(tag) == result
    ]
    target.disk.run_inline(target.disk.engine.put_notes, target.target_id, notes)


def _result_of(version: int, state: ChunkState | None) -> UpdateResult:
    return UpdateResult(version, state.length if state else 0, state.checksum if state else 0)


def _reply(result: UpdateResult, chain_version: int) -> storage_pb2.UpdateRsp:
    return storage_pb2.UpdateRsp(
        update_ver=result.update_ver,
        commit_ver=result.update_ver,
        chunk_length=result.chunk_length,
        chunk_checksum=result.chunk_checksum,
        chain_version=chain_version,
    )
