"""Several writes of one chain that came in one request: what a replica does once for all of them.

What the work of an update costs hardly depends on its size, and most of it is not the
update's own: a request, a way into a thread and back, two batches of the metadata
store, some turns of the event loop.

Here those go together whose way is plain, their chunk free and nothing left over: one call to the
disk with one batch for all pending versions, one request to the successor, one batch with all
commits.  All others, and whatever fails, go the way of single updates (write_path.py).  The
invariants of write_path.py hold for each of them.

Invariants:
    - Each update has its own tag, version, result and failure; nobody can tell from
      them that it came with others.
    - A group waits for no lock of a chunk: it takes those that are free, and so do single updates.
      Whoever is left holds one lock, or waits for one.
    - Together means all or none on each replica: one that cannot be prepared leaves nothing of the
      others, and nobody below has heard of them.
    - What the successor has not acknowledged is pending here, and is passed on by
      itself, as after any lost reply.

Concurrency: as write_path.py.
"""

import logging
from collections.abc import Sequence
from functools import partial
from typing import Final

import msgspec
import trio

from ..chunkengine.api import ChunkCommit, ChunkState, ChunkWrite, CommitsAtOnce, Note
from ..runtime import tracing
from ..runtime.readiness import current_time
from ..schema.ids import ChunkId
from ..schema.proto import storage_pb2
from ..schema.routing import PublicState
from ..schema.status import FsError, Status
from .answers import Executed, answered, done, recorded
from .channels import UpdateResult, is_final
from .context import StorageContext
from .finished_cuts import WHOLE
from .forward import Forwarded, forward_together, result_of
from .outgoing import outgoing_of
from .preparing import check_new_version
from .replica import Action, Position, decide_update
from .standings import is_noted
from .target import LocalTarget
from .targets import Place
from .update_notes import note_of
from .update_request import Update, check, facts
from .write_path import (
    execute,
    note_place,
    pass_on_and_commit,
    position_in,
)

log = logging.getLogger(__name__)

_WRITE: Final = storage_pb2.UpdateTypePb.WRITE

PLAIN_COUNT_MIN: Final = 2
"""Fewer are no group."""

WHOLE_BYTES_MAX: Final = 64 << 20
"""Of chunks of one group whose updates are under way one by one:
a syncing successor gets each as a whole, by way of our memory.
"""


class _Member(msgspec.Struct, eq=False):
    """One update of a group, and what becomes of it."""

    update: Update
    known: UpdateResult | None = None
    """It is a repeat of what had this result."""
    executed: Executed | None = None
    error: FsError | None = None

    @property
    def is_over(self) -> bool:
        return self.executed is not None or self.error is not None


class _Plain(msgspec.Struct, frozen=True):
    """A member whose way is plain, as the next version of its chunk."""

    member: _Member
    version: int

    @property
    def write(self) -> ChunkWrite:
        """Return what the engine is to prepare."""
        update = self.member.update
        request = update.request
        return ChunkWrite(
            update.chunk_id,
            self.version,
            request.chunk_size_bytes,
            request.offset,
            update.payload,
            update.packed_tag,
            request.is_full_replace,
        )


async def run_group(
    context: StorageContext,
    request: storage_pb2.UpdateGroupReq,
    payload: memoryview,
    *,
    is_from_client: bool,
    is_replacing: bool = False,
    deadline_s: float,
) -> storage_pb2.UpdateGroupRsp:
    """Execute some writes here and below; return when each is committed on the whole rest
    of the chain, or has failed.

    Args:
        context: ports, targets and limits of this process.
        request: from a client (head only), or from the predecessor; all
            at one version of one chain.
        payload: the bytes of all, in their order; read until return, not kept.
        is_from_client: which of the two.
        is_replacing: whole chunks for a syncing target, each with the chain version
            that it was committed under.
        deadline_s: trio time at which the sender stops waiting.

    Raises:
        FsError: nothing of it was begun; what happens to single ones is in the reply.
    """
    now_s = current_time()
    deadline_s = min(deadline_s, now_s + context.section.forward_timeout_s)
    parts = _cut(request.updates, payload, is_replacing)
    chain_id, chain_version = request.updates[0].chain_id, request.updates[0].chain_version
    context.check_lease()
    place = await context.place_at(chain_id, chain_version)
    target = place.target
    if tracing.live.count:
        note_place(place)
    outcomes: list[_Member | FsError] = []
    begun: list[_Member] = []
    try:
        for one, part in zip(request.updates, parts, strict=True):
            found = _begin(
                place, one, part, is_from_client=is_from_client, deadline_s=deadline_s, now_s=now_s
            )
            outcomes.append(found)
            if isinstance(found, _Member) and found.known is None:
                target.inflight.enter(chain_version)
                begun.append(found)
        for member in outcomes:
            if isinstance(member, _Member) and member.known is not None:
                member.executed = await done(place, member.update, member.known)
        await _execute_all(context, target, begun)
        is_leased = context.lease.is_valid()  # nothing is waited for from here on
        return storage_pb2.UpdateGroupRsp(
            outcomes=[_outcome(context, one, is_leased=is_leased) for one in outcomes]
        )
    finally:
        for member in begun:
            target.inflight.leave(chain_version)
            _end(target, member)


def _cut(
    updates: Sequence[storage_pb2.UpdateReq], payload: memoryview, is_replacing: bool
) -> list[memoryview]:
    """Return the bytes of each; raises FsError(RPC_BAD_REQUEST)."""
    if not updates:
        raise FsError(Status.RPC_BAD_REQUEST, "a group of no updates")
    first = updates[0]
    key = first.chain_id, first.chain_version, first.sender_epoch
    parts: list[memoryview] = []
    start = 0
    for one in updates:
        if (one.chain_id, one.chain_version, one.sender_epoch) != key:
            raise FsError(Status.RPC_BAD_REQUEST, f"a group of chains {key[0]} and {one.chain_id}")
        is_write = one.type == _WRITE
        if not is_write or one.is_damaged or one.is_durable or one.range_offsets or one.is_fill:
            raise FsError(Status.RPC_BAD_REQUEST, "a group takes plain writes only")
        if (one.is_full_replace, bool(one.commit_chain_version)) != (is_replacing, is_replacing):
            raise FsError(Status.RPC_BAD_REQUEST, "whole chunks go with whole chunks only")
        parts.append(payload[start : start + one.length])
        start += one.length
    if start != len(payload):
        raise FsError(Status.RPC_BAD_REQUEST, f"{len(payload)} bytes for {start}")
    return parts


def _begin(
    place: Place,
    request: storage_pb2.UpdateReq,
    payload: memoryview,
    *,
    is_from_client: bool,
    deadline_s: float,
    now_s: float,
) -> _Member | FsError:
    """Check one update and occupy its channel, until `_end`;
    but not for a repeat whose result is known.
    """
    try:
        update = check(request, payload, is_from_client=is_from_client, deadline_s=deadline_s)
        if not is_from_client or update.tag is None:
            return _Member(update)
        known = place.target.channels.begin(update.tag, now_s)
    except FsError as error:
        return error
    return _Member(update, known)


def _end(target: LocalTarget, member: _Member) -> None:
    """End of `_begin` for one whose result was not known then."""
    update = member.update
    if not update.is_from_client or update.tag is None:
        return
    if member.error is not None and is_final(member.error):
        target.channels.refuse(update.tag, member.error)
    target.channels.end(update.tag)


def _outcome(
    context: StorageContext, one: _Member | FsError, *, is_leased: bool
) -> storage_pb2.UpdateOutcomePb:
    error = one if isinstance(one, FsError) else one.error
    if isinstance(one, _Member) and one.executed is not None:
        try:
            reply = answered(
                context, one.update, one.executed, is_leased=is_leased, is_durable=False
            )
            return storage_pb2.UpdateOutcomePb(reply=reply)
        except FsError as refusal:
            error = refusal
    assert error is not None, one
    return storage_pb2.UpdateOutcomePb(status=error.status, detail=error.detail)


async def _execute_all(
    context: StorageContext, target: LocalTarget, members: Sequence[_Member]
) -> None:
    """Have all of them end: those together that can, each other one by itself."""
    held = [member for member in members if target.locks.take(member.update.chunk_id)]
    waiting = [member for member in members if member not in held]
    try:
        await _execute_together(context, target, held)
        for member in [member for member in held if member.is_over]:
            held.remove(member)
            target.locks.release(member.update.chunk_id)
        left = [*held, *waiting]
        if not left:
            return
        places = _places(left)
        if len(left) == 1:
            await _execute_alone(context, target, left[0], held, places)
        else:
            async with trio.open_nursery() as nursery:
                for member in left:
                    nursery.start_soon(_execute_alone, context, target, member, held, places)
    finally:
        for member in held:
            target.locks.release(member.update.chunk_id)


def _places(members: Sequence[_Member]) -> trio.Semaphore:
    """Return what each of these takes one of while it is under way by itself.

    It has its chunk's lock by then: who waits for a lock keeps nobody from a place.
    """
    size = max((member.update.request.chunk_size_bytes for member in members), default=1)
    return trio.Semaphore(max(1, WHOLE_BYTES_MAX // size))


async def _execute_alone(
    context: StorageContext,
    target: LocalTarget,
    member: _Member,
    held: list[_Member],
    places: trio.Semaphore,
) -> None:
    """Do one as if it had come by itself; its lock is released then,
    also if it is one of those that are `held`.
    """
    chunk_id = member.update.chunk_id
    try:
        if member in held:
            async with places:
                member.executed = await execute(context, target, member.update)
            return
        async with target.locks.hold(chunk_id), places:
            member.executed = await execute(context, target, member.update)
    except FsError as error:
        member.error = error
    finally:
        if member in held:
            held.remove(member)
            target.locks.release(chunk_id)


async def _execute_together(
    context: StorageContext, target: LocalTarget, members: Sequence[_Member]
) -> None:
    """Do those whose way is plain; what is not over then has had no effect, here or below.

    Their locks are held.  The steps are those of write_path.py.
    """
    if len(members) < PLAIN_COUNT_MIN:
        return
    request = members[0].update.request
    try:
        # 5. Everything may have changed.
        context.check_lease()
        place = context.place_now(request.chain_id, request.chain_version)
        plain = _plain(context, place, members)
        if request.is_full_replace and place.successor is not None:
            return  # a syncing target is the tail
    except FsError as error:
        log.debug("target %d: no group: %s", target.target_id, error)
        return
    if len(plain) < PLAIN_COUNT_MIN:
        return
    # 7. From here on readers of these chunks ask the tail.
    for one in plain:
        target.unsettled[one.member.update.chunk_id] = None
    # 8. Prepare here; the tail commits with it.
    try:
        states = await _prepare(place, plain)
    except FsError as error:
        log.info("target %d: %d updates not together: %s", target.target_id, len(plain), error)
        for one in plain:
            target.unsettled.pop(one.member.update.chunk_id, None)
        return
    if place.successor is None:
        await _finish(
            place, [(one, result_of(state)) for one, state in zip(plain, states, strict=True)]
        )
        return
    # 9. Pass them on.
    sent = [
        (outgoing_of(one.member.update, one.version), state)
        for one, state in zip(plain, states, strict=True)
    ]
    deadline_s = members[0].update.deadline_s
    forwarded = await forward_together(
        context, target, request.chain_id, sent, deadline_s=deadline_s
    )
    # 10. Commit here.
    ended = list(zip(plain, states, forwarded, strict=True))
    await _commit(place, [(p, s, f) for p, s, f in ended if f is not None])
    left = [(one, state) for one, state, at in ended if at is None]
    if left:
        places = _places([one.member for one, _ in left])
        async with trio.open_nursery() as nursery:
            for one, state in left:
                nursery.start_soon(_pass_on_alone, context, place, one, state, places)


def _plain(context: StorageContext, place: Place, members: Sequence[_Member]) -> list[_Plain]:
    """Return those whose way is plain: a next version on top of a whole one,
    of which nobody here knows anything yet.

    Raises:
        FsError: as step 5 of a single update does.
    """
    target, first = place.target, members[0].update
    if not is_noted(place):
        return []
    position = position_in(place, first.is_from_client, is_damaged=False)
    is_replacing = first.request.is_full_replace
    if (position is Position.SYNCING) is not is_replacing:
        return []
    if not first.is_from_client:
        target.heard_s = current_time()
        target.admit_epoch(first.request.chain_version, first.request.sender_epoch)
        context.targets.check_blocks(target, first.request.checksum_block_bytes)
    plain: list[_Plain] = []
    for member in members:
        update = member.update
        state = target.disk.run_inline(target.disk.engine.get, target.target_id, update.chunk_id)
        is_left_over = state is not None and (state.pending_ver or state.is_damaged)
        if (is_left_over and not is_replacing) or (
            update.tag is not None and target.channels.result_of(update.tag) is not None
        ):
            continue
        target.cuts.note(update.chunk_id.inode_id, WHOLE, update.request.truncate_ver)
        try:
            decision = decide_update(state, facts(update, state), position)
            check_new_version(context, place, update, state)
        except FsError as error:
            log.debug("target %d: not in a group: %s", target.target_id, error)
            continue
        if decision.action is Action.EXECUTE:
            plain.append(_Plain(member, decision.version))
    return plain


async def _prepare(place: Place, plain: Sequence[_Plain]) -> list[ChunkState]:
    """Make the pending versions on our disk, at the tail the committed ones, in one batch;
    raises FsError with nothing done.

    Whole chunks are as many batches as chain versions that they were committed under, and some may
    be there after an FsError: each is what it would have been by itself, and may come again.
    """
    target = place.target
    tags = {one.member.update.chunk_id: one.member.update.tag for one in plain}

    def note(state: ChunkState) -> Note | None:
        tag = tags[state.chunk_id]
        return note_of(tag, result_of(state)) if tag is not None else None

    commit_at = 0 if place.successor is not None else place.chain.chain_version
    byte_count = sum(len(one.member.update.payload) for one in plain)
    target.disk.note_written(byte_count)
    target.written_bytes += byte_count

    def work() -> list[ChunkState]:
        made: dict[ChunkId, ChunkState] = {}
        for version, writes in _by_chain_version(plain, commit_at).items():
            commits = CommitsAtOnce(version, note) if version else None
            for state in target.disk.engine.prepare_writes(
                target.target_id, writes, commits=commits
            ):
                made[state.chunk_id] = state
        return [made[one.member.update.chunk_id] for one in plain]

    return await target.disk.write_timed(byte_count, work, part_count=len(plain))


def _by_chain_version(plain: Sequence[_Plain], commit_at: int) -> dict[int, list[ChunkWrite]]:
    """Return what is to be prepared, by the chain version under which it is committed
    at once (0: it is not).
    """
    writes: dict[int, list[ChunkWrite]] = {}
    for one in plain:
        version = one.member.update.request.commit_chain_version or commit_at
        writes.setdefault(version, []).append(one.write)
    return writes


async def _commit(place: Place, ended: Sequence[tuple[_Plain, ChunkState, Forwarded]]) -> None:
    """Commit what everybody below has, in one batch."""
    if not ended:
        return
    target = place.target
    commits, results = [], []
    for one, state, _ in ended:
        tag, result = one.member.update.tag, result_of(state)
        note = note_of(tag, result) if tag is not None else None
        commits.append(ChunkCommit(state.chunk_id, one.version, note))
        results.append((one, result))
    chain_version = ended[0][2].chain_version  # they went in one request
    work = partial(
        target.disk.engine.commit_writes, target.target_id, commits, chain_version=chain_version
    )
    try:
        await target.disk.run_quick(work)
    except FsError as error:
        for one, _, _ in ended:
            one.member.error = error
        return
    await _finish(place, results)


async def _finish(place: Place, results: Sequence[tuple[_Plain, UpdateResult]]) -> None:
    """Note that updates are committed here and below."""
    now_s, is_syncing = current_time(), place.public_state is PublicState.SYNCING
    for one, result in results:
        update = one.member.update
        place.target.unsettled.pop(update.chunk_id, None)
        # 11. Remember it for repeats.
        if is_syncing:
            one.member.executed = await done(place, update, result)
        else:
            one.member.executed = recorded(place, update, result, now_s)


async def _pass_on_alone(
    context: StorageContext, place: Place, one: _Plain, state: ChunkState, places: trio.Semaphore
) -> None:
    member = one.member
    try:
        async with places:
            await pass_on_and_commit(context, place, member.update, one.version, state)
        await _finish(place, [(one, result_of(state))])
    except FsError as error:
        member.error = error
