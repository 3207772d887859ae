"""Which version of a chunk is the committed one, where an update inside leaves it in doubt:
the tail says (read_path.py says why).

Concurrency: one task for each node that is asked; a question ends when the tail it
was for is the tail no longer.
"""

from collections.abc import Sequence
from typing import Final

import trio

from ..chunkengine.read_values import ReadDone, ReadIo
from ..schema import services
from ..schema.ids import ChunkId, TargetId
from ..schema.proto import storage_pb2
from ..schema.status import FsError, Status
from .context import StorageContext
from .read_ios import Batch
from .settle import settle_if_left
from .targets import Place

NOT_HERE: Final = frozenset({Status.MISSING_UPDATE, Status.CHUNK_NOT_FOUND})
"""Of a version that the tail has named: updates went on meanwhile."""


async def committed_version(
    context: StorageContext, place: Place, chunk_id: ChunkId, deadline_s: float
) -> int:
    """Return the committed version of a chunk at the tail, 0 for none; `place` is the tail.

    Waits for an update inside, and completes a leftover; only under the chain version of `place`,
    since by then our target may be the syncing one, which nobody below contradicts.

    Raises:
        FsError: ROUTING_MISMATCH when the chain has moved on; as `settle`.
    """
    target, chain = place.target, place.chain
    engine = target.disk.engine
    if chunk_id in target.unsettled:
        async with target.locks.hold(chunk_id):
            context.place_now(chain.chain_id, chain.chain_version)
            await settle_if_left(context, target, chain, chunk_id, deadline_s)
    state = target.disk.run_inline(engine.get, target.target_id, chunk_id)
    return state.commit_ver if state else 0


async def ask_tails(
    context: StorageContext, batch: Batch, indexes: Sequence[int], deadline_s: float
) -> None:
    """Set the version to read of each named I/O; one call per tail's node."""
    remote: dict[TargetId, list[int]] = {}
    for index in indexes:
        place, io = batch.places[index], batch.ios[index]
        assert place is not None and io is not None
        if not place.is_tail:
            remote.setdefault(place.chain.serving[-1], []).append(index)
            continue
        try:
            await committed_version(context, place, io.chunk_id, deadline_s)
        except FsError as error:
            batch.ios[index], batch.done[index] = None, ReadDone(error.status, 0, 0, error.detail)
    by_node: dict[str, list[int]] = {}
    tails: dict[str, TargetId] = {}
    for tail, asked in remote.items():
        address = context.routing.info.node_of_target(tail).address
        by_node.setdefault(address, []).extend(asked)
        tails[address] = tail
    async with trio.open_nursery() as nursery:
        for address, asked in by_node.items():
            nursery.start_soon(_ask_tail, context, tails[address], batch, asked, deadline_s)


async def _ask_tail(
    context: StorageContext,
    tail: TargetId,
    batch: Batch,
    indexes: Sequence[int],
    deadline_s: float,
) -> None:
    pairs = [(batch.places[index], batch.ios[index]) for index in indexes]
    try:
        answers = await _query_versions(
            context, tail, [(p, io.chunk_id) for p, io in pairs if p and io], deadline_s
        )
    except FsError as error:
        for index in indexes:
            batch.ios[index], batch.done[index] = None, ReadDone(error.status, 0, 0, error.detail)
        return
    for index, answer in zip(indexes, answers, strict=True):
        _take_answer(batch, index, answer)


def _take_answer(batch: Batch, index: int, answer: storage_pb2.VersionResultPb) -> None:
    io = batch.ios[index]
    assert io is not None
    if answer.status:
        detail = "the tail could not name the committed version"
        batch.ios[index], batch.done[index] = None, ReadDone(answer.status, 0, 0, detail)
    elif answer.commit_ver == 0:
        batch.ios[index], batch.done[index] = None, ReadDone(Status.CHUNK_NOT_FOUND, 0, 0)
    else:
        io.version = answer.commit_ver


async def _query_versions(
    context: StorageContext,
    tail: TargetId,
    chunks: Sequence[tuple[Place, ChunkId]],
    deadline_s: float,
) -> Sequence[storage_pb2.VersionResultPb]:
    request = storage_pb2.QueryVersionsReq(
        queries=[
            storage_pb2.VersionQueryPb(
                inode_id=chunk_id.inode_id,
                chunk_index=chunk_id.index,
                chain_id=place.chain.chain_id,
                chain_version=place.chain.chain_version,
            )
            for place, chunk_id in chunks
        ]
    )
    scope = trio.CancelScope()
    chain = chunks[0][0].chain
    context.tail_scopes[scope] = (chain.chain_id, chain.serving[-1])
    try:
        with scope:
            received = await context.channel_to(tail).call(
                services.STORAGE_QUERY_VERSIONS,
                request,
                timeout_s=max(0.001, deadline_s - trio.current_time()),
            )
            if len(received.message.results) != len(chunks):
                raise FsError(Status.RPC_BAD_FRAME, f"target {tail} named too few versions")
            return received.message.results
    finally:
        del context.tail_scopes[scope]
    raise FsError(Status.ROUTING_MISMATCH, f"target {tail} is the tail no longer")


async def read_locked(
    context: StorageContext, place: Place | None, io: ReadIo, deadline_s: float
) -> ReadDone:
    """Read the version that the tail names while no update can come in between."""
    assert place is not None
    target = place.target
    try:
        async with target.locks.hold(io.chunk_id):
            context.place_now(place.chain.chain_id, place.chain.chain_version)
            (answer,) = await _query_versions(
                context, place.chain.serving[-1], [(place, io.chunk_id)], deadline_s
            )
            if answer.status:
                return ReadDone(answer.status, 0, 0, "the tail could not name the version")
            if answer.commit_ver == 0:
                return ReadDone(Status.CHUNK_NOT_FOUND, 0, 0)
            io.version = answer.commit_ver
            async with target.disk.read_limiter:
                (done,) = await target.disk.run(target.disk.engine.read_batch, [io])
    except FsError as error:
        return ReadDone(error.status, 0, 0, error.detail)
    if done.status not in NOT_HERE:
        return done
    # The chain is changing: what the tail has, has not come by here.
    # The client asks another replica.
    return ReadDone(Status.NOT_SERVING, 0, 0, f"version {io.version} is not here: {done.detail}")
