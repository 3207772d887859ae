"""Passing an update on to the successor.

Every attempt acts on the newest routing info, so an update follows its chain through
changes: the successor may disappear (then we are the tail), be replaced, or be syncing
(then it gets the whole chunk).

Late copies: an attempt of unknown outcome may still be under way when the next one is
made.  Each such outcome raises the target's epoch; the receiver, holding its chunk lock,
refuses lower epochs of the same chain version.  So once a later attempt has been
answered, no earlier copy can take effect.

Concurrency: the caller holds the chunk lock of the update's chunk on our target.
"""

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import msgspec
import trio

from ..chunkengine.api import ChunkState
from ..chunkengine.books import StuckError
from ..rpc.api import ConnectionRefused, UnderWay
from ..rpc.frame import decode_error
from ..runtime.ports import Buffer
from ..runtime.readiness import current_time
from ..schema import services
from ..schema.ids import ChunkId, NodeId, TargetId
from ..schema.method import Method, ReqT, RspT
from ..schema.proto import mgmtd_pb2, storage_pb2
from ..schema.routing import ChainTarget, PublicState
from ..schema.status import FsError, Status
from .channels import Tag, UpdateResult
from .context import StorageContext
from .outgoing import Outgoing, request_of, whole
from .replica import UpdateType
from .standings import is_noted, wait_noted
from .target import LocalTarget
from .targets import Place
from .update_notes import note_of

log = logging.getLogger(__name__)

PAUSE_S_MAX = 1.0
EVICT_TIMEOUT_S = 2.0
_NO_ANSWER = {
    Status.RPC_CONNECT_FAILED,
    Status.RPC_CONNECTION_LOST,
    Status.RPC_TIMEOUT,
    Status.RPC_CANCELLED,
}
"""Not said by the successor: there may be no link to it."""


class NotSuccessorError(FsError):
    """A call was given up because its callee is not our successor any more:
    nobody waits for its answer.
    """

    def __init__(self, target_id: TargetId) -> None:
        super().__init__(Status.RPC_CANCELLED, f"target {target_id} is no longer successor")


_CONTRADICTIONS = {Status.MISSING_UPDATE, Status.CHUNK_DIVERGED}


class Forwarded(msgspec.Struct, frozen=True):
    """The rest of the chain has the update."""

    chain_version: int
    """The one that the successful attempt was made under."""
    reply: storage_pb2.UpdateRsp | None
    """None: there is no successor."""

    def is_durable_at(self, chain_version: int) -> bool:
        """Return whether all others have flushed it,
        as the members that the chain has at this version.
        """
        if self.chain_version != chain_version:
            return False
        return self.reply is None or self.reply.is_durable


class Failed(NamedTuple):
    """An attempt to bring an update to the successor."""

    successor_id: TargetId
    error: FsError


async def forward(
    context: StorageContext,
    target: LocalTarget,
    chain_id: int,
    update: Outgoing,
    prepared: ChunkState | None,
    *,
    deadline_s: float,
    only_version: int = 0,
    failed: Failed | None = None,
) -> Forwarded:
    """Bring an update to the successor, whoever that is by then; return when it is committed there.

    Args:
        context: ports, targets and limits of this process.
        target: ours; the caller holds the chunk's lock on it.
        chain_id: the chain to follow.
        update: what to bring there.
        prepared: the chunk with the pending version here; None for the removal of what is not here.
        deadline_s: trio time after which to give up.
        only_version: if not 0, stop as soon as the chain has another version (resync).
        failed: an attempt that has been made already; it counts as the first, if its
            callee is the successor still.

    Raises:
        FsError: NO_SPACE: nobody below has the update or will get it; ROUTING_MISMATCH:
            `only_version` is over; OUTCOME_UNKNOWN: gave up, or our target has left its chain;
            CHECKSUM_MISMATCH: the whole content was needed, and is damaged here.
    """
    pause_s = context.section.forward_retry_s
    is_whole_wanted = False
    trouble: FsError | None = None
    while True:
        place = _place_to_forward(context, target, chain_id, only_version, trouble)
        if not is_noted(place):
            await wait_noted(context.targets, deadline_s)
            continue
        successor = place.successor
        if successor is None:
            return Forwarded(place.chain.chain_version, None)
        is_whole = is_whole_wanted or successor.public_state is PublicState.SYNCING
        info = context.targets.look()
        try:
            earlier, failed = failed, None
            _raise_again(earlier, successor)
            is_whole = is_whole or _knows_no_ranges_of(update, context, successor)
            sent = await whole(target, update, prepared) if is_whole else update
            reply = await _attempt(context, place, successor, sent, deadline_s)
            if _agrees(reply, update, prepared):
                return Forwarded(place.chain.chain_version, reply)
            trouble = FsError(Status.CHUNK_DIVERGED, f"digest of version {update.version} differs")
        except FsError as error:
            if error.status is Status.NO_SPACE:
                raise
            trouble = error
        # A damaged committed copy over there is replaced by sending the whole chunk.
        is_whole_wanted |= trouble.status is Status.CHECKSUM_MISMATCH
        _log_trouble(target, update, successor, place, trouble)
        await _react(context, successor, trouble)
        if trio.current_time() + pause_s >= deadline_s:
            raise FsError(Status.OUTCOME_UNKNOWN, f"gave up forwarding: {trouble}")
        with trio.move_on_after(pause_s):
            await context.routing.wait_newer(info.routing_version)
        pause_s = min(2 * pause_s, PAUSE_S_MAX)


def result_of(prepared: ChunkState) -> UpdateResult:
    """Return what the client of a pending version is told once it is committed."""
    return UpdateResult(
        prepared.pending_ver,
        prepared.pending_length,
        prepared.pending_checksum,
        prepared.chunk_id,
        prepared.pending_is_remove,
    )


async def commit(
    target: LocalTarget,
    result: UpdateResult,
    chain_version: int,
    tag: Tag | None,
    *,
    is_told: bool = False,
) -> ChunkState | None:
    """Commit a pending version here, noting its result; the chunk is settled then.

    A commit is one unsynced metadata batch, and quicker than the way to a thread.  Whoever calls
    this holds the chunk's lock.  If somebody `is_told` of it already, a thread waits where the
    event loop cannot: either the commit comes, or the disk fails.
    """
    chunk_id = result.chunk_id
    assert chunk_id is not None, result
    work = partial(
        target.disk.engine.commit,
        target.target_id,
        chunk_id,
        version=result.update_ver,
        chain_version=chain_version,
        note=note_of(tag, result) if tag is not None else None,
    )
    try:
        state = await target.disk.run_quick(work)
    except StuckError:
        if not is_told:  # whoever asked asks again
            raise
        state = await target.disk.run(work)
    target.unsettled.pop(chunk_id, None)
    return state


async def take_back(target: LocalTarget, chunk_id: ChunkId) -> None:
    """Drop a pending version that was refused for lack of space below,
    so that no power loss brings it back.

    It may be durable: others have their updates flushed at any time.
    """
    await target.disk.run(target.disk.engine.drop_pending, target.target_id, chunk_id)
    await target.disk.sync()
    target.unsettled.pop(chunk_id, None)


def _place_to_forward(
    context: StorageContext,
    target: LocalTarget,
    chain_id: int,
    only_version: int,
    trouble: FsError | None,
) -> Place:
    try:
        place = context.targets.place(chain_id)
    except FsError as error:
        raise FsError(Status.OUTCOME_UNKNOWN, str(error)) from error
    if only_version and place.chain.chain_version != only_version:
        raise FsError(Status.ROUTING_MISMATCH, f"chain {chain_id} left version {only_version}")
    if place.target is not target or not place.can_write:
        raise FsError(
            Status.OUTCOME_UNKNOWN,
            f"target {target.target_id} is {place.public_state.name} here"
            f" {target.local_state.name}; last trouble: {trouble}",
        )
    return place


def _raise_again(failed: Failed | None, successor: ChainTarget) -> None:
    """Raise why an attempt failed, if it was made at this successor."""
    if failed is not None and failed.successor_id == successor.target_id:
        raise failed.error


async def _attempt(
    context: StorageContext,
    place: Place,
    successor: ChainTarget,
    update: Outgoing,
    deadline_s: float,
) -> storage_pb2.UpdateRsp:
    """Make one call; an unknown outcome raises the epoch before anybody else can act on it."""
    method = services.STORAGE_UPDATE_RANGES if update.ranges else services.STORAGE_UPDATE
    try:
        return await _ask(
            context,
            place.target,
            successor,
            method=method,
            request=request_of(place, update),
            payload=[update.payload] if len(update.payload) else (),
            deadline_s=deadline_s,
            is_known=lambda _reply: True,
        )
    except FsError as error:
        if error.status is Status.RPC_UNKNOWN_METHOD and update.ranges:
            context.without_ranges.add(_process_of(context, successor))
        raise


def _knows_no_ranges_of(update: Outgoing, context: StorageContext, successor: ChainTarget) -> bool:
    """Return whether an update has ranges, and the successor's release is known
    to take whole chunks only instead.
    """
    return (
        bool(update.ranges)
        and bool(context.without_ranges)
        and _process_of(context, successor) in context.without_ranges
    )


def _process_of(context: StorageContext, successor: ChainTarget) -> tuple[NodeId, str]:
    """Return the node and incarnation of a successor;
    raises FsError(TARGET_UNKNOWN or NODE_UNKNOWN).
    """
    node = context.routing.info.node_of_target(successor.target_id)
    return node.node_id, node.incarnation


async def _ask(
    context: StorageContext,
    target: LocalTarget,
    successor: ChainTarget,
    *,
    method: Method[ReqT, RspT],
    request: ReqT,
    payload: Sequence[Buffer],
    deadline_s: float,
    is_known: Callable[[RspT], bool],
) -> RspT:
    """Ask our successor to execute something; the epoch grows unless its outcome is known then.

    Args:
        context: ports and targets of this process.
        target: ours.
        successor: asked.
        method: of the service of storage.
        request: of that.
        payload: bytes that come with it.
        deadline_s: trio time.
        is_known: tells whether a reply says what has become of all that was asked for.
    """
    is_over = False
    trouble: FsError | None = FsError(Status.RPC_CANCELLED, "given up")
    now_s = current_time()
    calls = calls_to(target, successor.target_id, now_s)
    try:
        received = await context.channel_to(successor.target_id).call(
            method,
            request,
            payload=payload,
            timeout_s=max(0.001, deadline_s - now_s),
            under_way=calls,
        )
        trouble = None
        is_over = is_known(received.message)
    except FsError as error:
        trouble, is_over = error, error.definite
        raise
    finally:
        note_end(target, successor.target_id, trouble, is_over=is_over)
    return received.message


def calls_to(target: LocalTarget, successor_id: TargetId, now_s: float) -> set[UnderWay]:
    """Return the calls under way to our successor; another one is begun."""
    calls: set[UnderWay] = target.forwards.get(successor_id, set())
    note_begun(target, successor_id, calls, now_s)
    return calls


def note_begun(
    target: LocalTarget, successor_id: TargetId, calls: set[UnderWay], now_s: float
) -> None:
    """One of the calls to our successor, which are all of these, has begun."""
    target.unanswered_since_s = target.unanswered_since_s or now_s
    target.forwards[successor_id] = calls


def note_end(
    target: LocalTarget, successor_id: TargetId, trouble: FsError | None, *, is_over: bool
) -> None:
    """A call to our successor has ended, and is not under way any more;
    the epoch grows unless its outcome is known.
    """
    if not target.forwards.get(successor_id, True):
        del target.forwards[successor_id]
    if (
        trouble is None
        or trouble.status not in _NO_ANSWER
        or isinstance(trouble, NotSuccessorError)
    ):
        # Whoever else waits for the successor begins to wait now.
        target.unanswered_since_s = current_time() if target.forwards else 0.0
    if not is_over:
        target.epoch += 1


async def forward_together(
    context: StorageContext,
    target: LocalTarget,
    chain_id: int,
    updates: Sequence[tuple[Outgoing, ChunkState]],
    *,
    deadline_s: float,
    only_version: int = 0,
) -> list[Forwarded | None]:
    """Bring several updates to the successor in one request, once.

    Args:
        context: ports, targets and limits of this process.
        target: ours; the caller holds the locks of all these chunks on it.
        chain_id: the chain to follow.
        updates: with their pending versions here; no chunk twice.
        deadline_s: trio time after which to give up.
        only_version: not 0: these are whole chunks for a syncing successor,
            at this version of the chain.

    Returns:
        Of each in turn that everybody below has committed it, as `forward`; None: it is to be
        passed on by itself, which takes care of whatever there is.
    """
    peer = None
    unable = context.without_replace_groups if only_version else context.without_groups
    try:
        place = _place_to_forward(context, target, chain_id, only_version, None)
        successor = place.successor
        if successor is None:
            return [Forwarded(place.chain.chain_version, None)] * len(updates)
        peer = _process_of(context, successor)
        is_ready = successor.public_state is (
            PublicState.SYNCING if only_version else PublicState.SERVING
        )
        if not is_noted(place) or not is_ready or peer in unable:
            return [None] * len(updates)
        reply = await _ask(
            context,
            target,
            successor,
            method=services.STORAGE_REPLACE_GROUP
            if only_version
            else services.STORAGE_UPDATE_GROUP,
            request=storage_pb2.UpdateGroupReq(
                updates=[request_of(place, one) for one, _ in updates]
            ),
            payload=[one.payload for one, _ in updates],
            deadline_s=deadline_s,
            is_known=partial(_are_known, len(updates)),
        )
    except FsError as error:
        if error.status is Status.RPC_UNKNOWN_METHOD and peer is not None:
            unable.add(peer)
        log.info(
            "target %d: %d updates were not passed on together: %s",
            target.target_id,
            len(updates),
            error,
        )
        return [None] * len(updates)
    if len(reply.outcomes) != len(updates):
        return [None] * len(updates)
    chain_version = place.chain.chain_version
    return [
        Forwarded(chain_version, outcome.reply)
        if not outcome.status and _agrees(outcome.reply, one, prepared)
        else None
        for outcome, (one, prepared) in zip(reply.outcomes, updates, strict=True)
    ]


def _are_known(count: int, reply: storage_pb2.UpdateGroupRsp) -> bool:
    """Return whether a reply says of each of so many updates whether it has been executed."""
    outcomes = reply.outcomes
    return len(outcomes) == count and all(
        not outcome.status or decode_error(outcome.status, b"").definite for outcome in outcomes
    )


def _agrees(reply: storage_pb2.UpdateRsp, update: Outgoing, prepared: ChunkState | None) -> bool:
    """Compare the successor's digest with ours, where both are of the same version."""
    if prepared is None or update.type is UpdateType.REMOVE:
        return True
    if reply.commit_ver != update.version:
        return True
    return (
        reply.chunk_checksum == prepared.pending_checksum
        and reply.chunk_length == prepared.pending_length
    )


async def evict(context: StorageContext, target_id: TargetId) -> None:
    """Have a successor that contradicts us leave the chain and come back through resync;
    raises FsError.
    """
    await context.channel_to(target_id).call(
        services.STORAGE_OFFLINE_TARGET,
        storage_pb2.OfflineTargetReq(target_id=target_id, is_forced=True, is_for_resync=True),
        timeout_s=EVICT_TIMEOUT_S,
    )


def _log_trouble(
    target: LocalTarget, update: Outgoing, successor: ChainTarget, place: Place, trouble: FsError
) -> None:
    log.warning(
        "target %d chunk %s version %d: successor target %d (chain %d version %d): %s",
        target.target_id,
        update.chunk_id,
        update.version,
        successor.target_id,
        place.chain.chain_id,
        place.chain.chain_version,
        trouble,
    )


async def _react(context: StorageContext, successor: ChainTarget, trouble: FsError) -> None:
    """Do what helps the next attempt; a failure to do it is only logged, the attempts go on."""
    try:
        if trouble.status in _CONTRADICTIONS:
            await evict(context, successor.target_id)
        elif isinstance(trouble, ConnectionRefused):
            node = context.routing.info.node_of_target(successor.target_id)
            await context.mgmtd.call(
                services.MGMTD_REPORT_UNREACHABLE,
                mgmtd_pb2.ReportUnreachableReq(node_id=node.node_id, incarnation=node.incarnation),
                timeout_s=EVICT_TIMEOUT_S,
            )
        elif trouble.status is Status.ROUTING_MISMATCH:
            await context.routing.refresh()
    except FsError as error:
        log.warning("target %d: reaction to %s failed: %s", successor.target_id, trouble, error)
