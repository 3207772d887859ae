"""What a storage node answers besides reads and updates:
last chunks, removals of ranges, durability, space.

Each chain or range of a request has its own status where the message has room for one.
"""

from collections.abc import Sequence
from functools import partial

import trio

from ..chunkengine.api import ChunkState
from ..schema.ids import CHUNK_ID_BYTES, ChunkId, InodeId
from ..schema.layout import CHUNK_COUNT_MAX
from ..schema.proto import storage_pb2
from ..schema.status import FsError, Status
from .chunk_messages import state_to_pb
from .context import StorageContext
from .finished_cuts import BEHIND
from .read_versions import committed_version
from .replica import UpdateType
from .settle import settle_if_left
from .target import LocalTarget
from .targets import Place
from .write_path import run_update

PAGE_CHUNK_COUNT = 1024
COUNTED_MAX = 4 * PAGE_CHUNK_COUNT
"""Chunks of one file on one chain that are looked at to tell how much space it takes."""
NEXT_PAGE_CHUNK_COUNT = 64
"""Of chunks without bytes, which are rare: most often the first that is listed has some."""
REMOVE_COUNT_MAX = 1024
REMOVE_CONCURRENCY = 8


def _head(context: StorageContext, place: Place) -> LocalTarget:
    context.check_lease()
    if not place.can_read or not place.is_head:
        raise FsError(
            Status.NOT_HEAD, f"target {place.target.target_id} in chain {place.chain.chain_id}"
        )
    return place.target


def _check_tail(place: Place) -> None:
    if not place.can_read or not place.is_tail:
        raise FsError(Status.NOT_SERVING, f"target {place.target.target_id} is not the tail")


async def query_last_chunk(
    context: StorageContext, query: storage_pb2.LastChunkQueryPb
) -> storage_pb2.LastChunkResultPb:
    """Find the last chunk of a file on one chain; what was acknowledged is counted."""
    try:
        place = await context.place_at(query.chain_id, query.chain_version)
        target = _head(context, place)
        last, count, used = await target.disk.run(
            _measure_file, target, query.inode_id, 0 if query.is_length_only else COUNTED_MAX
        )
        next_index = 0
        if query.is_next_wanted:
            next_index = await target.disk.run(
                _next_index, target, query.inode_id, query.first_index
            )
        context.check_lease()
    except FsError as error:
        return storage_pb2.LastChunkResultPb(status=error.status, detail=error.detail)
    return storage_pb2.LastChunkResultPb(
        has_chunk=last is not None,
        chunk_index=last.chunk_id.index if last else 0,
        chunk_length=last.length if last else 0,
        chunk_count=count,
        used_bytes=used,
        next_index=next_index,
    )


def _next_index(target: LocalTarget, inode_id: int, first_index: int) -> int:
    """Return an index such that no chunk from `first_index` on and before it holds a byte;
    0: none at all does.

    It is that of the first chunk that does, or may: of a pending version the tail knows whether it
    is committed, and reading asks it. Behind very many empty ones it is how far was looked.
    """
    next_index = first_index
    for _ in range(COUNTED_MAX // NEXT_PAGE_CHUNK_COUNT):
        page = target.disk.engine.list_file(
            target.target_id,
            inode_id,
            first_index=next_index,
            limit=NEXT_PAGE_CHUNK_COUNT,
        )
        for state in page:
            if state.length or state.pending_ver:
                return state.chunk_id.index
        if len(page) < NEXT_PAGE_CHUNK_COUNT:
            return 0
        next_index = page[-1].chunk_id.index + 1
    return next_index


def _measure_file(
    target: LocalTarget, inode_id: int, counted_max: int
) -> tuple[ChunkState | None, int, int]:
    """Return (last chunk that is not empty, number of chunks, their bytes).

    The last chunk is one seek.  Count and bytes are exact for up to `counted_max` chunks; the rest
    of a longer file is taken to be like its beginning.
    """
    engine = target.disk.engine
    last = engine.last_chunk(target.target_id, inode_id)
    count = used = next_index = 0
    while last is not None and count < counted_max and next_index <= last.chunk_id.index:
        page = engine.list_file(
            target.target_id, inode_id, first_index=next_index, limit=PAGE_CHUNK_COUNT
        )
        committed = [state for state in page if state.commit_ver]
        count += len(committed)
        used += sum(state.length for state in committed)
        if len(page) < PAGE_CHUNK_COUNT:
            return last, count, used
        next_index = page[-1].chunk_id.index + 1
    if last is not None and next_index:
        end_index = max(next_index, last.chunk_id.index + 1)
        count, used = count * end_index // next_index, used * end_index // next_index
    return last, count, used


async def remove_ranges(
    context: StorageContext,
    ranges: Sequence[storage_pb2.RemoveRangePb],
    chunk_count_max: int,
    deadline_s: float,
) -> list[storage_pb2.RemoveResultPb]:
    """Remove chunks of files, some files at a time:
    most removed files have a chunk or two on a chain.
    """
    results = [storage_pb2.RemoveResultPb() for _ in ranges]
    todo = iter(enumerate(ranges))

    async def work() -> None:
        for number, wanted in todo:
            results[number] = await remove_range(context, wanted, chunk_count_max, deadline_s)

    async with trio.open_nursery() as nursery:
        for _ in range(min(REMOVE_CONCURRENCY, len(ranges))):
            nursery.start_soon(work)
    return results


async def remove_range(
    context: StorageContext,
    wanted: storage_pb2.RemoveRangePb,
    chunk_count_max: int,
    deadline_s: float,
) -> storage_pb2.RemoveResultPb:
    """Remove chunks of one file on one chain, each as a replicated update; up to `chunk_count_max`.

    One removal of a file at a time: a repeat begins after an earlier copy of the request has ended,
    so that it cannot remove what is written after the repeat has been answered; a copy that comes
    even later is known by its truncation's number (finished_cuts.py).
    """
    removed: list[ChunkId] = []
    try:
        place = await context.place_at(wanted.chain_id, wanted.chain_version)
        target = _head(context, place)
        async with target.remove_locks.hold(wanted.inode_id):
            context.place_now(wanted.chain_id, wanted.chain_version)
            context.check_lease()
            target.cuts.note_begun(wanted.inode_id, wanted.truncate_ver)
            if target.cuts.is_finished(wanted.inode_id, BEHIND, wanted.truncate_ver):
                return storage_pb2.RemoveResultPb()
            engine = target.disk.engine
            states = await target.disk.run(
                partial(
                    engine.list_file,
                    target.target_id,
                    wanted.inode_id,
                    first_index=wanted.first_index,
                    end_index=min(wanted.end_index or CHUNK_COUNT_MAX, CHUNK_COUNT_MAX),
                    limit=chunk_count_max,
                )
            )
            await _remove_chunks(context, wanted, states, removed, deadline_s)
            context.check_lease()
            if len(states) < chunk_count_max:
                target.cuts.note(wanted.inode_id, BEHIND, wanted.truncate_ver)
    except FsError as error:
        return storage_pb2.RemoveResultPb(
            status=error.status, detail=error.detail, removed_count=len(removed), has_more=True
        )
    return storage_pb2.RemoveResultPb(
        removed_count=len(removed), has_more=len(states) == chunk_count_max
    )


async def _remove_chunks(
    context: StorageContext,
    wanted: storage_pb2.RemoveRangePb,
    states: list[ChunkState],
    removed: list[ChunkId],
    deadline_s: float,
) -> None:
    """Remove the chunks, some at a time; raises the first error after all have ended."""
    todo, errors = iter(states), list[FsError]()

    async def work() -> None:
        for state in todo:
            request = storage_pb2.UpdateReq(
                inode_id=wanted.inode_id,
                chunk_index=state.chunk_id.index,
                chain_id=wanted.chain_id,
                chain_version=wanted.chain_version,
                type=storage_pb2.UpdateTypePb.ValueType(UpdateType.REMOVE),
                truncate_ver=wanted.truncate_ver,
            )
            try:
                await run_update(
                    context, request, memoryview(b""), is_from_client=True, deadline_s=deadline_s
                )
            except FsError as error:
                errors.append(error)
                return
            removed.append(state.chunk_id)

    async with trio.open_nursery() as nursery:
        for _ in range(min(REMOVE_CONCURRENCY, len(states))):
            nursery.start_soon(work)
    if errors:
        raise errors[0]


async def query_version(
    context: StorageContext, query: storage_pb2.VersionQueryPb, deadline_s: float
) -> storage_pb2.VersionResultPb:
    """Tell a replica the committed version of a chunk; we are the tail."""
    chunk_id = ChunkId(InodeId(query.inode_id), query.chunk_index)
    try:
        context.check_lease()
        place = await context.place_at(query.chain_id, query.chain_version)
        _check_tail(place)
        version = await committed_version(context, place, chunk_id, deadline_s)
        context.place_now(query.chain_id, query.chain_version)
        context.check_lease()
    except FsError as error:
        return storage_pb2.VersionResultPb(status=error.status)
    return storage_pb2.VersionResultPb(commit_ver=version)


async def sync_chains(context: StorageContext, request: storage_pb2.SyncChainsReq) -> None:
    """Make what was acknowledged on our targets of these chains durable: one flush per disk.

    Raises:
        FsError: ROUTING_MISMATCH or NOT_SERVING if we are not a writable member; IO_ERROR.
    """
    context.check_lease()
    disks = {}
    for wanted in request.chains:
        place = await context.place_at(wanted.chain_id, wanted.chain_version)
        if not place.can_write:
            raise FsError(Status.NOT_SERVING, f"target {place.target.target_id}")
        disks[place.target.disk.index] = place.target.disk
    if len(disks) == 1:
        await disks.popitem()[1].sync()
    else:
        async with trio.open_nursery() as nursery:
            for disk in disks.values():
                nursery.start_soon(disk.sync)
    context.check_lease()


async def space_info(context: StorageContext) -> storage_pb2.SpaceInfoRsp:
    """Return the space of every disk of this node that works."""
    reply = storage_pb2.SpaceInfoRsp()
    for disk in context.targets.disks:
        if disk.is_failed:
            continue
        space = await disk.run(disk.engine.space)
        reply.disks.append(
            storage_pb2.DiskSpacePb(
                disk_index=disk.index,
                path=disk.path,
                capacity_bytes=space.capacity_bytes,
                free_bytes=space.free_bytes,
                used_bytes=space.used_bytes,
                target_ids=[
                    target.target_id
                    for target in context.targets.targets.values()
                    if target.disk is disk
                ],
            )
        )
    return reply


async def list_chunks(
    context: StorageContext, request: storage_pb2.ListChunksReq, deadline_s: float
) -> storage_pb2.ListChunksRsp:
    """List chunks of one of our targets as they are, whatever its state, for checks.

    A predecessor that names its chain gets what holds for good: no update that it sent before comes
    true later; and if our target serves, what was left over of the chunk is settled first.

    Raises:
        FsError: TARGET_UNKNOWN, RPC_BAD_REQUEST; to a predecessor also LEASE_EXPIRED,
            ROUTING_MISMATCH, NOT_SERVING, SUPERSEDED_UPDATE, and as `settle`.
    """
    if not request.HasField("serving_in"):
        return await _list(context, request)
    target = context.targets.target(request.target_id)
    if not request.inode_id:
        raise FsError(Status.RPC_BAD_REQUEST, "which chunk?")
    chunk_id = ChunkId(InodeId(request.inode_id), _first_index(request))
    chain_version = request.serving_in.chain_version
    target.inflight.enter(chain_version)
    try:
        async with target.locks.hold(chunk_id):
            place = _place_below(context, request)
            target.admit_epoch(chain_version, request.sender_epoch)
            if place.can_read:
                await settle_if_left(context, target, place.chain, chunk_id, deadline_s)
            listed = await _list(context, request)
            _place_below(context, request)
            return listed
    finally:
        target.inflight.leave(chain_version)


def _first_index(request: storage_pb2.ListChunksReq) -> int:
    after = request.after
    if after and len(after) != CHUNK_ID_BYTES:
        raise FsError(Status.RPC_BAD_REQUEST, f"a chunk id of {len(after)} bytes")
    return ChunkId.unpack(after).index + 1 if after else 0


async def _list(
    context: StorageContext, request: storage_pb2.ListChunksReq
) -> storage_pb2.ListChunksRsp:
    target = context.targets.target(request.target_id)
    limit = min(request.chunk_count_max or PAGE_CHUNK_COUNT, PAGE_CHUNK_COUNT)
    engine = target.disk.engine
    if request.inode_id:
        listing = partial(
            engine.list_file,
            target.target_id,
            request.inode_id,
            first_index=_first_index(request),
            limit=limit,
        )
    else:
        listing = partial(engine.list_chunks, target.target_id, after=request.after, limit=limit)
    states = await target.disk.run(listing)
    return storage_pb2.ListChunksRsp(
        chunks=[state_to_pb(state) for state in states], has_more=len(states) == limit
    )


def _place_below(context: StorageContext, request: storage_pb2.ListChunksReq) -> Place:
    """Return our place if our target is in service in the chain that a predecessor names."""
    context.check_lease()
    wanted = request.serving_in
    place = context.place_now(wanted.chain_id, wanted.chain_version)
    if place.target.target_id != request.target_id or not place.can_write:
        raise FsError(Status.NOT_SERVING, f"target {request.target_id}")
    return place
