"""What becomes of an update that is committed here and below:
it is remembered for repeats, and answered.

Concurrency: the caller may hold the chunk's lock, none is taken here.
"""

from collections.abc import Sequence
from functools import partial

import msgspec
import trio

from ..runtime.readiness import current_time
from ..schema.proto import storage_pb2
from ..schema.routing import PublicState
from ..schema.status import FsError, Status
from .channels import Tag, UpdateResult
from .context import StorageContext
from .flusher import Flush
from .target import LocalTarget
from .targets import Place
from .update_notes import note_of
from .update_request import Update


class Executed(msgspec.Struct, frozen=True):
    """An update that is committed here and below."""

    place: Place
    result: UpdateResult
    flush: Flush | None = None
    """Under way here, while everybody below has flushed it;
    None: it is not durable, or was not asked to be.
    """


async def done(
    place: Place, update: Update, result: UpdateResult, flush: Flush | None = None
) -> Executed:
    """Record a success."""
    executed = recorded(place, update, result, current_time(), flush)
    if (
        update.tag is not None
        and place.public_state is PublicState.SYNCING
        and result.chunk_id is not None
    ):
        # A batch of our predecessor's older results may have replaced the note of the commit.
        await store_notes(place.target, [(update.tag, result)])
    return executed


def recorded(
    place: Place, update: Update, result: UpdateResult, now_s: float, flush: Flush | None = None
) -> Executed:
    """Record a success in memory, which is all of it where our target is not syncing."""
    if update.tag is not None:
        place.target.channels.record(update.tag, result, now_s)
    return Executed(place, result, flush)


async def answer(
    context: StorageContext, update: Update, executed: Executed
) -> storage_pb2.UpdateRsp:
    """Make the reply: with a flush at its end, and for a client under a valid lease only."""
    flush = executed.flush
    is_durable = flush is not None and await flush.wait()
    is_leased = context.lease.is_valid()
    return answered(context, update, executed, is_leased=is_leased, is_durable=is_durable)


def answered(
    context: StorageContext,
    update: Update,
    executed: Executed,
    *,
    is_leased: bool,
    is_durable: bool,
) -> storage_pb2.UpdateRsp:
    """Make the reply, the lease being valid or not since everything was over;
    raises FsError(OUTCOME_UNKNOWN).
    """
    if not is_leased and update.is_from_client:
        what = f"the lease of node {context.node_id} ran out meanwhile"
        raise FsError(Status.OUTCOME_UNKNOWN, what)
    return reply_of(executed.place, executed.result, is_durable=is_durable and is_leased)


def reply_of(place: Place, result: UpdateResult, *, is_durable: bool) -> storage_pb2.UpdateRsp:
    """Make the reply to an update that is committed here and below."""
    return storage_pb2.UpdateRsp(
        update_ver=result.update_ver,
        commit_ver=result.update_ver,
        chunk_length=result.chunk_length,
        chunk_checksum=result.chunk_checksum,
        chain_version=place.chain.chain_version,
        is_durable=is_durable,
    )


async def take_over_updates(target: LocalTarget, known: Sequence[tuple[Tag, UpdateResult]]) -> None:
    """Make a predecessor's results ours, in memory and on disk,
    unless we know something later of the channel.

    What has been committed but not recorded yet is stored again when it is recorded (`done`).
    """
    for tag, result in known:
        target.channels.record(tag, result, trio.current_time())
    await store_notes(target, known)


async def store_notes(target: LocalTarget, known: Sequence[tuple[Tag, UpdateResult]]) -> None:
    """Store the notes of results that are still the last of their channels.

    One batch at a time: of two results of a channel the later one is recorded, and so stored,
    after the other.  Not cancelled in between: on the disk an older note may stand in place of
    one that its commit had stored.
    """
    with trio.CancelScope(shield=True):
        async with target.note_turn:
            notes = [
                note_of(tag, result)
                for tag, result in known
                if result.chunk_id is not None and target.channels.result_of(tag) == result
            ]
            if notes:
                engine = target.disk.engine
                await target.disk.run_quick(partial(engine.put_notes, target.target_id, notes))
