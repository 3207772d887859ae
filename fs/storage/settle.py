"""Completing pending versions that were left over by a fault.

When one may be dropped instead.  An update passes through every target from its head down before
the tail commits it first, and a target comes to serve only with all that was committed.  So a
successor that serves, and holds neither this version nor a newer one, proves two things:
    - Nobody has committed it: nobody was shown it or told that it is done.
    - It will not come true later: the successor answers under its chunk lock, and refuses what we
      sent it before (epochs, forward.py).

Nothing of the kind holds for targets further down: the one between may be passing the version on at
this moment.  When that one is asked, it first settles, by the same rules, what it has left over
itself.  So the lowest that holds a version drops it first.

The question comes before the search for bytes elsewhere: from the answer on, what is not found
cannot arrive any more.  For that it goes to a syncing successor, too, whose answer proves nothing.
Decision: specs/decisions/0048-rotten-leftovers.md.

Concurrency: the caller holds the chunk lock on our target, so we send
nothing of this chunk meanwhile.
"""

import logging
from functools import partial

import trio
from msgspec.structs import replace

from ..chunkengine.api import ChunkState
from ..schema.ids import ChunkId
from ..schema.routing import Chain, PublicState
from ..schema.status import FsError, Status
from .context import StorageContext
from .copies import find_bytes
from .forward import commit, forward, result_of, take_back
from .outgoing import Outgoing, made_whole, whole
from .replica import UpdateType
from .target import LocalTarget
from .targets import Place
from .there import state_there
from .update_notes import unpack_tag

log = logging.getLogger(__name__)


async def settle(
    context: StorageContext,
    target: LocalTarget,
    chain_id: int,
    state: ChunkState,
    *,
    deadline_s: float,
    only_version: int = 0,
) -> bool:
    """Complete a leftover pending version down the chain,
    or drop it when NO_SPACE proves it absent below.

    Any replica may do it: everybody below gets it first, and predecessors that have it
    pending will be answered "already committed".  If its bytes are damaged the successor is
    asked for the version: when it serves and lacks it, it was never committed, and is
    dropped.  Otherwise it may have been shown: its bytes are fetched from whoever has them;
    if nobody has, it is committed here as damaged.

    Returns:
        Whether everybody below has it now.

    Raises:
        FsError: as `forward`, except NO_SPACE; if the bytes are damaged, also as `state_there`,
            OUTCOME_UNKNOWN when somebody who may have them does not answer, and ROUTING_MISMATCH
            when the chain changes meanwhile.
    """
    engine, chunk_id, version = target.disk.engine, state.chunk_id, state.pending_ver
    assert version > 0, state
    tag = unpack_tag(state.pending_tag) if state.pending_tag else None
    update = Outgoing(
        chunk_id,
        UpdateType.REMOVE if state.pending_is_remove else UpdateType.WRITE,
        version,
        state.chunk_size_bytes,
        tag=tag,
    )
    if not state.pending_is_remove:
        with_bytes = await _whole_or_found(context, target, chain_id, update, state)
        if with_bytes is None:
            return False
        update = with_bytes
    try:
        forwarded = await forward(
            context,
            target,
            chain_id,
            update,
            state,
            deadline_s=deadline_s,
            only_version=only_version,
        )
    except FsError as error:
        if error.status is not Status.NO_SPACE:
            raise
        await take_back(target, chunk_id)
        return False
    result = result_of(state)
    await commit(target, result, forwarded.chain_version, tag)
    if update.is_found:
        repair = partial(engine.repair, target.target_id, chunk_id)
        await target.disk.run(partial(repair, version=version, data=update.payload))
    log.info("target %d chunk %s: completed leftover %d", target.target_id, chunk_id, version)
    if tag is not None:
        target.channels.record(tag, result, trio.current_time())
    return True


async def settle_if_left(
    context: StorageContext, target: LocalTarget, chain: Chain, chunk_id: ChunkId, deadline_s: float
) -> None:
    """Settle what is left over of a chunk, if anything, under this version of the chain only;
    raises as `settle`.
    """
    state = target.disk.run_inline(target.disk.engine.get, target.target_id, chunk_id)
    if state is None or not state.pending_ver:
        target.unsettled.pop(chunk_id, None)
        return
    await settle(
        context,
        target,
        chain.chain_id,
        state,
        deadline_s=deadline_s,
        only_version=chain.chain_version,
    )


async def _whole_or_found(
    context: StorageContext,
    target: LocalTarget,
    chain_id: int,
    update: Outgoing,
    state: ChunkState,
) -> Outgoing | None:
    """As `whole`, of a leftover; damaged bytes are looked for elsewhere.

    None: dropped, or committed as damaged.
    """
    try:
        return await whole(target, update, state)
    except FsError as error:
        if error.status is not Status.CHECKSUM_MISMATCH:
            raise
    place = context.targets.place(chain_id)
    if await _was_never_committed(context, place, update.chunk_id, update.version):
        log.warning(
            "target %d chunk %s: dropped leftover %d, whose bytes rotted: it was never committed",
            target.target_id,
            update.chunk_id,
            update.version,
        )
        await _drop(target, update.chunk_id)
        return None
    data, have_all_answered = await find_bytes(
        context, place, update.chunk_id, state.pending_length, state.pending_checksum
    )
    if data is not None:
        return replace(made_whole(update, state, data), is_found=True)
    if not have_all_answered:
        raise FsError(Status.OUTCOME_UNKNOWN, f"{update.chunk_id}: leftover is damaged here")
    _check_unchanged(context, place)
    await _commit_as_damaged(target, state, place.chain.chain_version)
    return None


async def _commit_as_damaged(target: LocalTarget, state: ChunkState, chain_version: int) -> None:
    log.error(
        "target %d chunk %s version %d: no target of the chain has its bytes; write it anew or "
        "remove it",
        target.target_id,
        state.chunk_id,
        state.pending_ver,
    )
    await target.disk.run(
        partial(
            target.disk.engine.put_damaged,
            target.target_id,
            state.chunk_id,
            version=state.pending_ver,
            chain_version=chain_version,
            length=state.pending_length,
            checksum=state.pending_checksum,
            chunk_size_bytes=state.chunk_size_bytes,
        )
    )
    target.lost_count += 1
    target.unsettled.pop(state.chunk_id, None)


async def _was_never_committed(
    context: StorageContext, place: Place, chunk_id: ChunkId, version: int
) -> bool:
    """Return whether the serving successor knows neither this version nor a newer one,
    and will not by our doing.

    A syncing successor is asked, too: it proves nothing, but what we sent it
    before is void after its answer.

    Raises:
        FsError: it does not say so; ROUTING_MISMATCH: the chain has changed meanwhile.
    """
    successor = place.successor
    if successor is None:
        return False
    there = await state_there(
        context,
        successor.target_id,
        chunk_id,
        serving_in=place.chain,
        sender_epoch=place.target.epoch,
    )
    _check_unchanged(context, place)
    is_proof = successor.public_state is PublicState.SERVING
    return is_proof and (there is None or max(there.commit_ver, there.pending_ver) < version)


def _check_unchanged(context: StorageContext, place: Place) -> None:
    """Raise FsError(ROUTING_MISMATCH or LEASE_EXPIRED) unless the chain is as it was
    when the questions were asked.
    """
    context.check_lease()
    context.place_now(place.chain.chain_id, place.chain.chain_version)


async def _drop(target: LocalTarget, chunk_id: ChunkId) -> None:
    await target.disk.run(target.disk.engine.drop_pending, target.target_id, chunk_id)
    target.unsettled.pop(chunk_id, None)
