"""The way of one update through one replica, top to bottom.

`run_update` takes the steps 1 to 4, `execute` 5 to 8 and 11, `pass_on_and_commit` 9 and 10.

Invariants:
    - A version is forwarded only when it is pending here.  So whatever a reader is shown at the
      tail is held by every target above it, and survives the death of any of them in any order.
    - It is committed here only after everybody below has committed it.
    - A client is told of success only under a valid lease, and at most one success per tag.
    - NO_SPACE means that nobody has the update, neither here nor below.  Nor will anybody get it,
      not even from an earlier copy of the same request that arrives late.

Why a pending version may be dropped on NO_SPACE (step 9):
    - The successor answers NO_SPACE only when it holds nothing of the version itself.  By the same
      rule nobody below it holds anything of it.
    - Earlier attempts at the same successor whose outcome stayed unknown are void since
      that answer (epochs, forward.py).
    - Earlier attempts at a former successor do not matter.  Suppose that one had got the version
      down to a replica that still serves.  Then the present successor, which took the former one's
      place and is serving, would have the version and would have answered success.
    - A syncing successor never answers NO_SPACE.  It leaves the chain instead, because the former
      tail may have committed the version, and shown it.

Concurrency: any number of updates at once; those of one chunk one after the other.
"""

import logging
from collections.abc import Callable
from contextvars import copy_context

import trio

from ..chunkengine.api import ChunkState
from ..runtime import tracing
from ..runtime.until_wait import until_wait
from ..schema.proto import storage_pb2
from ..schema.routing import PublicState
from ..schema.status import FsError, Status
from .answers import Executed, answer, done, reply_of
from .channels import UpdateResult, is_final
from .context import StorageContext
from .copies import Repaired, repair_copy
from .finished_cuts import WHOLE
from .flusher import Flush
from .forward import Failed, Forwarded, commit, forward, result_of, take_back
from .outgoing import outgoing_of
from .preparing import check_new_version, prepare, refusal
from .replica import Action, Decision, Position, UpdateType, decide_update
from .settle import settle
from .standings import is_noted, wait_noted
from .target import LocalTarget
from .targets import Place
from .update_request import Update, check, facts

log = logging.getLogger(__name__)

Tell = Callable[[storage_pb2.UpdateRsp], bool]
"""As `fs.rpc.api.Call.tell`."""


async def run_update(
    context: StorageContext,
    request: storage_pb2.UpdateReq,
    payload: memoryview,
    *,
    is_from_client: bool,
    deadline_s: float,
    tell: Tell | None = None,
) -> storage_pb2.UpdateRsp:
    """Execute one update here and below; return once the whole rest of the chain has committed it.

    Args:
        context: ports, targets and limits of this process.
        request: from a client (head only; `update_ver` 0) or from the predecessor.
        payload: the bytes of a WRITE; read until return, not kept.
        is_from_client: which of the two.
        deadline_s: trio time at which the sender stops waiting.
        tell: may be given the reply before this returns, see `pass_on_and_commit`.

    Raises:
        FsError: as the status registry says; a definite status means no replica has the update.
    """
    deadline_s = min(deadline_s, trio.current_time() + context.section.forward_timeout_s)
    # 1. The lease, and our place in the chain at the sender's version of it.
    context.check_lease()
    place = await context.place_at(request.chain_id, request.chain_version)
    target = place.target
    if tracing.live.count:
        note_place(place)
    # 2. The request's own consistency, and the payload's bytes.
    update = check(request, payload, is_from_client=is_from_client, deadline_s=deadline_s)
    # 3. Exactly once: a repeat gets the first result.
    tag = update.tag if is_from_client else None
    if tag is not None:
        known = target.channels.begin(tag, trio.current_time())
        if known is not None:
            return await answer(context, update, await done(place, update, known))
    target.inflight.enter(request.chain_version)
    try:
        # 4. Updates of one chunk one after the other.
        async with target.locks.hold(update.chunk_id):
            executed = await execute(context, target, update, tell)
        return await answer(context, update, executed)
    except FsError as error:
        if tag is not None and is_final(error):
            target.channels.refuse(tag, error)
        raise
    finally:
        target.inflight.leave(request.chain_version)
        if tag is not None:
            target.channels.end(tag)


async def execute(
    context: StorageContext, target: LocalTarget, update: Update, tell: Tell | None = None
) -> Executed:
    """Execute a checked update here and below; the caller holds the chunk's lock.

    Raises:
        FsError: as `run_update`.
    """
    request, chunk_id = update.request, update.chunk_id
    # 5. Everything may have changed while we waited.
    context.check_lease()
    place = context.place_now(request.chain_id, request.chain_version)
    while not is_noted(place):
        await wait_noted(context.targets, update.deadline_s)
        context.check_lease()
        place = context.place_now(request.chain_id, request.chain_version)
    position = position_in(place, update.is_from_client, request.is_damaged)
    if not update.is_from_client:
        target.heard_s = trio.current_time()
        target.admit_epoch(request.chain_version, request.sender_epoch)
        context.targets.check_blocks(target, request.checksum_block_bytes)
    # 6. What is to be done?
    decided = await _decide(context, target, update, position)
    if isinstance(decided, UpdateResult):
        return await done(place, update, decided)
    state, decision = decided
    if await _restore_what_is_kept(context, place, update, state):
        state = target.disk.run_inline(target.disk.engine.get, target.target_id, chunk_id)
    check_new_version(context, place, update, state)
    # 7. From here on readers of this chunk ask the tail.
    target.unsettled[chunk_id] = None
    # 8. Prepare here.  The tail, which waits for nobody, commits in the same call: a successor that
    #    appears meanwhile is syncing, and its resync waits for this update to leave.
    is_tail = place.successor is None and decision.action is not Action.RESUME
    try:
        prepared = await prepare(place, update, decision, state, commits=is_tail)
    except FsError as error:
        raise refusal(context, place, chunk_id, state, error) from error
    if is_tail:
        target.unsettled.pop(chunk_id, None)
        flush = context.flusher.begin(target.disk) if request.is_durable else None
    else:
        flush = await pass_on_and_commit(
            context, place, update, decision.version, prepared, tell=tell
        )
    _note_cut(target, update)
    # 11. Remember it for repeats.
    return await done(place, update, result_of(prepared), flush)


async def pass_on_and_commit(
    context: StorageContext,
    place: Place,
    update: Update,
    version: int,
    prepared: ChunkState,
    *,
    tell: Tell | None = None,
    failed: Failed | None = None,
) -> Flush | None:
    """Bring a pending version to the rest of the chain, and commit it here;
    the caller holds the chunk's lock.

    `tell` gives the reply right before the commit here, if nothing can come in between.
    That is safe.  Until the commit readers here ask the tail, which has committed.  A
    death leaves a pending version of which the rest of the chain knows that it is
    committed, as after an unsynced commit.

    Args:
        context: ports, targets and limits of this process.
        place: ours in the chain.
        update: what was asked for.
        version: the number that the update gives to the chunk.
        prepared: the chunk with that version pending.
        tell: gives the reply to whoever asked, see above.
        failed: the first attempt to pass it on, if one has been made.

    Returns:
        A flush that has ended well here, if one was asked for and everybody below has flushed
        the version, too. Else None.

    Raises:
        FsError: as `forward`.
    """
    begun: list[Flush | None] = []
    # Of our own span: where the flush begins, the call to the successor is the current one.
    ours = copy_context()

    def begin_flush() -> None:
        begun.append(ours.run(context.flusher.begin, place.target.disk))

    # 9. Pass it on; everybody below has committed it when this returns.  Our own flush begins when
    #    the request is on its way: the successor waits for that, and nobody yet for the flush.
    passing = _pass_on(context, place, update, version, prepared, failed=failed)
    forwarded = await (until_wait(passing, begin_flush) if update.request.is_durable else passing)
    flush = begun[0] if begun else None
    if flush is not None and not (
        forwarded.is_durable_at(update.request.chain_version)
        and await flush.wait()  # before the commit: see flusher.py
    ):
        flush = None
    result = result_of(prepared)
    is_at_once = place.target.disk.writes_on_loop and place.public_state is PublicState.SERVING
    is_told = (
        tell is not None
        and is_at_once
        and context.lease.is_valid()
        and tell(reply_of(place, result, is_durable=flush is not None))
    )
    # 10. Commit here.
    await commit(place.target, result, forwarded.chain_version, update.tag, is_told=is_told)
    return flush


async def _decide(
    context: StorageContext, target: LocalTarget, update: Update, position: Position
) -> UpdateResult | tuple[ChunkState | None, Decision]:
    """Return the chunk's state and what to do on top of it;
    or the result, where nothing is to be done.

    A leftover pending version is completed first.
    """
    request, chunk_id = update.request, update.chunk_id
    while True:
        state = target.disk.run_inline(target.disk.engine.get, target.target_id, chunk_id)
        if update.is_from_client and update.tag is not None:
            # Completing a leftover, or an update forwarded by a former
            # head, may have been this one.
            known = target.channels.result_of(update.tag)
            if known is not None:
                return known
        if update.kind is UpdateType.WRITE and not request.is_fill:
            target.cuts.note(chunk_id.inode_id, WHOLE, request.truncate_ver)
        elif target.cuts.is_finished(chunk_id.inode_id, chunk_id.index, request.truncate_ver):
            return _result_of(0, state)
        decision = decide_update(state, facts(update, state), position)
        if decision.action is Action.DONE:
            _note_cut(target, update)
            return _result_of(decision.version, state)
        if decision.action is not Action.SETTLE_FIRST:
            return state, decision
        assert state is not None
        await settle(context, target, request.chain_id, state, deadline_s=update.deadline_s)


def note_place(place: Place) -> None:
    """Say in a trace which part of the chain this is."""
    tracing.note("chain", place.chain.chain_id)
    tracing.note("target", place.target.target_id)
    rank = "head" if place.is_head else "tail" if place.successor is None else "middle"
    tracing.note("position", rank)


def _note_cut(target: LocalTarget, update: Update) -> None:
    """Remember that a truncation has cut or filled this chunk;
    what a client's write knows of it is noted before.
    """
    if update.kind is UpdateType.TRUNCATE or update.request.is_fill:
        chunk_id = update.chunk_id
        target.cuts.note(chunk_id.inode_id, chunk_id.index, update.request.truncate_ver)


async def _restore_what_is_kept(
    context: StorageContext, place: Place, update: Update, state: ChunkState | None
) -> bool:
    """Repair a damaged version at the head before an update that keeps some of its bytes.

    Returns:
        Whether the chunk has been repaired.

    Raises:
        FsError: CHUNK_DAMAGED, before anybody has heard of the update.
    """
    if state is None or not state.is_damaged or not update.is_from_client:
        return False
    request = update.request
    is_all_new = update.kind is UpdateType.REMOVE or (
        update.is_whole or (request.offset == 0 and update.first_end >= state.length)
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
    update: Update,
    version: int,
    prepared: ChunkState,
    *,
    failed: Failed | None,
) -> Forwarded:
    """Bring the update to the rest of the chain;
    undo it here if it is certain that nobody there has it or gets it.

    Raises:
        FsError: as `forward`.  Except for NO_SPACE the version stays pending: a repeat, the next
            update or resync completes it.
    """
    target, outgoing = place.target, outgoing_of(update, version)
    try:
        return await forward(
            context,
            target,
            update.request.chain_id,
            outgoing,
            prepared,
            deadline_s=update.deadline_s,
            failed=failed,
        )
    except FsError as error:
        if error.status is Status.NO_SPACE:
            await take_back(target, update.chunk_id)
        raise


def position_in(place: Place, is_from_client: bool, is_damaged: bool) -> Position:
    """Return where in its chain an update finds us;
    raises FsError(NOT_SERVING, NOT_HEAD or SYNC_REFUSED).
    """
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


def _result_of(version: int, state: ChunkState | None) -> UpdateResult:
    return UpdateResult(version, state.length if state else 0, state.checksum if state else 0)
