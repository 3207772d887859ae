"""The way of one batch of reads through one replica, top to bottom (CRAQ reads).

A read may return the committed version here unless an update of its chunk is inside (`LocalTarget.unsettled`): then
the tail may already have committed, and shown, a newer one.  So:
    - not the tail: ask the tail which version is committed, serve that one, committed or pending here;
    - the tail: wait for the update inside; a leftover pending version is completed before the read, since a
      former tail may have shown it.
If the version named by the tail is not here (updates went on meanwhile), the read is repeated under the chunk
lock, where nothing moves.

Concurrency: no lock on the usual way.  What the page cache holds is read right here (read_at_once.py), since handing a
small read to a thread costs more than the read; for the rest there is one blocking call per disk and batch.
"""

import logging
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate
from operator import add
from typing import Any

import msgspec
import trio
import xxhash

from ..chunkengine.api import ReadDone, ReadIo, RowsRead
from ..chunkengine.books import StuckError
from ..kernels.reads import row_checksums
from ..rpc.api import Reply
from ..rpc.buffer_pool import Lease
from ..schema import services
from ..schema.ids import ChunkId, TargetId
from ..schema.layout import CHUNK_SIZE_BYTES_MAX
from ..schema.proto import storage_pb2
from ..schema.status import FsError, Status
from .context import StorageContext
from .damage import note_damage
from .disk import Disk
from .read_at_once import RowsWanted, find_rows, read_at_once, read_the_rest
from .read_elsewhere import DAMAGED, BadRead, read_elsewhere
from .settle import settle_if_left
from .targets import Place

log = logging.getLogger(__name__)

IO_COUNT_MAX = 4096
INLINE_BYTES_MAX = 1024 * 1024
"""More than this is not copied and hashed on the event loop in one go."""
_NOT_HERE = {Status.MISSING_UPDATE, Status.CHUNK_NOT_FOUND}


Key = tuple[int, int, int, int]
"""What a read wants, as its sender names it: chain id, chain version, inode id, chunk index."""

Found = tuple[Place | None, ReadDone | None]
"""Our place in a chain, or why there is nothing to be read there."""


@dataclass(slots=True)
class _Batch:
    """The I/Os of a request on their way: `ios[i]` is None once `done[i]` is set without reading."""

    places: list[Place | None] = field(default_factory=list)
    ios: list[ReadIo | None] = field(default_factory=list)
    done: list[ReadDone | None] = field(default_factory=list)
    bad: list[int] = field(default_factory=list)
    """Indexes of the I/Os whose copy here is damaged."""
    disks: set[Disk] = field(default_factory=set)
    """Where there is something to be read."""


def read_batch(
    context: StorageContext,
    request: storage_pb2.BatchReadReq,
    *,
    deadline_s: float,
    is_cold: bool = False,
) -> Reply[storage_pb2.BatchReadRsp] | Coroutine[Any, Any, Reply[storage_pb2.BatchReadRsp]]:
    """Read a batch; each I/O has its own status, the reply's payload holds the bytes of all in order.

    Args:
        context: of the process.
        request: by columns.
        deadline_s: when its sender gives up, in trio's time.
        is_cold: it has been tried without waiting, and the disk has to be waited for.

    Returns:
        The reply, if nothing had to be waited for; else what waits for it, which has to be awaited.

    Raises:
        FsError: LEASE_EXPIRED; RPC_BAD_REQUEST or RPC_TOO_LARGE for the whole batch.
    """
    context.check_lease()
    wanted = request.lengths[:]
    size = _check_request(context, request, wanted)
    buffers = context.buffers
    lease = buffers.acquire_now(size)
    if lease is None:
        return _read_batch(context, request, None, None, deadline_s=deadline_s)
    is_given = False
    try:
        rows = find_rows(context, request, wanted)
        if rows is None:
            is_given = True
            return _read_batch(context, request, lease, None, deadline_s=deadline_s)
        may_pay = is_cold or size > INLINE_BYTES_MAX or read_at_once(rows, lease.view)
        if rows.done.left:
            is_given = True
            if may_pay:
                return _read_rows(context, request, lease, rows, deadline_s=deadline_s)
            return _read_batch(context, request, lease, rows.done, deadline_s=deadline_s)
        reply = _reply_of(context, rows, lease)
        is_given = True
        return reply
    finally:
        if not is_given:
            buffers.release(lease)


def _reply_of(
    context: StorageContext, rows: RowsWanted, lease: Lease
) -> Reply[storage_pb2.BatchReadRsp]:
    """Return the reply when all has been read; `lease` is taken over unless this raises LEASE_EXPIRED."""
    context.check_lease()
    rows.count_bytes()
    message = storage_pb2.BatchReadRsp(
        lengths=rows.rows.lengths, commit_vers=rows.done.versions, checksums=rows.done.checksums
    )
    return Reply(message, [lease.view], partial(context.buffers.release, lease))


async def _read_rows(
    context: StorageContext,
    request: storage_pb2.BatchReadReq,
    lease: Lease,
    rows: RowsWanted,
    *,
    deadline_s: float,
) -> Reply[storage_pb2.BatchReadRsp]:
    """Read what has to wait for the disk, and then what is unusual; `lease` is taken over."""
    is_given = False
    try:
        may_pass = len(lease.view) > INLINE_BYTES_MAX and not request.fills_cache
        await read_the_rest(rows, lease.view, may_pass_cache=may_pass)
        if not rows.done.left:
            reply = _reply_of(context, rows, lease)
            is_given = True
            return reply
        is_given = True
        return await _read_batch(context, request, lease, rows.done, deadline_s=deadline_s)
    finally:
        if not is_given:
            context.buffers.release(lease)


async def _read_batch(
    context: StorageContext,
    request: storage_pb2.BatchReadReq,
    lease: Lease | None,
    read: RowsRead | None,
    *,
    deadline_s: float,
) -> Reply[storage_pb2.BatchReadRsp]:
    """Read a batch, or what is left of it; `lease` is taken over."""
    # 1. Room, and the limits.
    wanted = request.lengths[:]
    if lease is None:
        lease = await context.buffers.acquire(sum(wanted))
    is_given = False
    try:
        # 2. Our place in each chain, at the sender's version; a trouble concerns its I/Os only.
        columns = (request.chain_ids, request.chain_versions)
        pairs = dict.fromkeys(zip(*columns, strict=True))
        known = {pair: await _place_of(context, *pair) for pair in pairs}
        # 3. Which of them want a chunk whose committed version here is in doubt?
        keys = list(zip(*columns, request.inode_ids, request.chunk_indexes, strict=True))
        batch, unsettled = _begin(request, keys, known, lease.view)
        if read is not None:
            _take_read(batch, wanted, read)
            unsettled = [n for n in unsettled if batch.done[n] is None]
        # 4. Find out which version is the committed one.
        if unsettled:
            await _ask_tails(context, batch, unsettled, deadline_s)
        # 5. Read and verify, one blocking call per disk.
        await _read_disks(batch, may_be_cached=read is None or not read.is_cold)
        # 6. Versions that moved on meanwhile: again, under the chunk lock.
        for index in unsettled:
            done, asked = batch.done[index], batch.ios[index]
            if asked and asked.version and done is not None and done.status in _NOT_HERE:
                done = await _read_locked(context, batch.places[index], asked, deadline_s)
                _take_result(batch, index, done)
        # 7. Copies that are bad here: from another replica.
        if batch.bad and not request.is_passed_on:
            await _read_bad_elsewhere(context, batch, request.is_relaxed, deadline_s)
        # 8. What was read counts only if the lease held until now.
        context.check_lease()
        message, payload = _make_reply(
            batch, wanted, lease.view, want_checksums=request.want_checksums
        )
        is_given = True
        return Reply(message, payload, partial(context.buffers.release, lease))
    finally:
        if not is_given:
            context.buffers.release(lease)


async def committed_version(
    context: StorageContext, place: Place, chunk_id: ChunkId, deadline_s: float
) -> int:
    """Return the committed version of a chunk at the tail, 0 for none; `place` is the tail.

    Waits for an update inside, and completes a leftover; only under the chain version of `place`, since by then
    our target may be the syncing one, which nobody below contradicts.

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


def _check_request(
    context: StorageContext, request: storage_pb2.BatchReadReq, lengths: Sequence[int]
) -> int:
    """Return how many bytes of buffer the batch needs."""
    count = len(lengths)
    if not 0 < count <= IO_COUNT_MAX:
        raise FsError(Status.RPC_BAD_REQUEST, f"{count} reads in a batch")
    columns = (request.inode_ids, request.chunk_indexes, request.chain_ids, request.chain_versions)
    if set(map(len, (*columns, request.offsets))) != {count}:
        raise FsError(Status.RPC_BAD_REQUEST, f"{count} lengths, and other columns of other sizes")
    if not all(lengths) or max(map(add, request.offsets[:], lengths)) > CHUNK_SIZE_BYTES_MAX:
        raise FsError(Status.RPC_BAD_REQUEST, "a read of 0 bytes, or beyond any chunk")
    size = sum(lengths)
    if size > context.payload_bytes_max:
        raise FsError(Status.RPC_TOO_LARGE, f"{size} bytes in a batch of reads")
    return size


class _Chunk(msgspec.Struct):
    """What all reads of a chunk have in common."""

    place: Place | None
    trouble: ReadDone | None
    chunk_id: ChunkId
    target_id: TargetId


def _begin(
    request: storage_pb2.BatchReadReq,
    keys: Sequence[Key],
    known: Mapping[tuple[int, int], Found],
    view: memoryview,
) -> tuple[_Batch, list[int]]:
    """Return what is to be read where, the bytes one after the other in `view`, and the I/Os whose version is in doubt."""
    chunks: dict[Key, _Chunk] = {}
    in_doubt: set[Key] = set()
    batch, has_trouble = _Batch(), False
    for key in dict.fromkeys(keys):
        chain_id, chain_version, inode_id, chunk_index = key
        place, trouble = known[chain_id, chain_version]
        chunk_id = ChunkId(inode_id, chunk_index)  # type: ignore[arg-type]
        if place is None or trouble is not None:
            has_trouble = True
            chunks[key] = _Chunk(place, trouble, chunk_id, TargetId(0))
            continue
        target = place.target
        chunks[key] = _Chunk(place, trouble, chunk_id, target.target_id)
        batch.disks.add(target.disk)
        if target.unsettled and chunk_id in target.unsettled and not request.is_relaxed:
            in_doubt.add(key)
    each = [chunks[key] for key in keys]
    lengths = request.lengths[:]
    rows = zip(each, request.offsets, lengths, accumulate(lengths), strict=True)
    batch.places = [chunk.place for chunk in each]
    batch.ios = [
        ReadIo(chunk.target_id, chunk.chunk_id, offset, length, view[end - length : end])
        for chunk, offset, length, end in rows
    ]
    batch.done = [None] * len(keys)
    if has_trouble:
        batch.done = [chunk.trouble for chunk in each]
        batch.ios = [
            io if done is None else None for io, done in zip(batch.ios, batch.done, strict=True)
        ]
    unsettled = [n for n, key in enumerate(keys) if key in in_doubt] if in_doubt else []
    return batch, unsettled


async def _place_of(
    context: StorageContext, chain_id: int, chain_version: int
) -> tuple[Place | None, ReadDone | None]:
    """Return our place in a chain and None, or why it cannot be read there."""
    try:
        place = await context.place_at(chain_id, chain_version)
    except FsError as error:
        return None, ReadDone(error.status, 0, 0, error.detail)
    if place.can_read:
        return place, None
    return place, ReadDone(
        Status.NOT_SERVING,
        0,
        0,
        f"target {place.target.target_id} is {place.public_state.name},"
        f" here {place.target.local_state.name}",
    )


async def _ask_tails(
    context: StorageContext, batch: _Batch, indexes: Sequence[int], deadline_s: float
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
    batch: _Batch,
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


def _take_answer(batch: _Batch, index: int, answer: storage_pb2.VersionResultPb) -> None:
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


def _take_read(batch: _Batch, lengths: Sequence[int], read: RowsRead) -> None:
    """Take in what has been read, but for what came into trouble since."""
    rows = zip(batch.done, lengths, read.versions, strict=True)
    batch.done = [
        trouble or (ReadDone(0, length, version) if version else None)
        for trouble, length, version in rows
    ]


async def _read_disks(batch: _Batch, *, may_be_cached: bool) -> None:
    rows = enumerate(zip(batch.ios, batch.done, strict=True))
    indexes = [n for n, (io, done) in rows if io is not None and done is None]
    if len(batch.disks) == 1:
        await _read_disk(batch, batch.disks.pop(), indexes, may_be_cached)
        return
    by_disk: dict[Disk, list[int]] = {}
    for index in indexes:
        place = batch.places[index]
        assert place is not None
        by_disk.setdefault(place.target.disk, []).append(index)
    async with trio.open_nursery() as nursery:
        for disk, some in by_disk.items():
            nursery.start_soon(_read_disk, batch, disk, some, may_be_cached)


async def _read_disk(
    batch: _Batch, disk: Disk, indexes: Sequence[int], may_be_cached: bool
) -> None:
    ios = [io for index in indexes if (io := batch.ios[index]) is not None]
    if may_be_cached and sum([io.length for io in ios]) <= INLINE_BYTES_MAX:
        indexes = _read_cached(batch, disk, indexes, ios)
        if not indexes:
            return
        ios = [io for index in indexes if (io := batch.ios[index]) is not None]
    try:
        async with disk.read_limiter:
            byte_count = sum([io.length for io in ios])
            results = await disk.run_timed(byte_count, disk.engine.read_batch, ios)
    except FsError as error:
        results = [ReadDone(error.status, 0, 0, error.detail)] * len(ios)
    for index, done in zip(indexes, results, strict=True):
        _take_result(batch, index, done)


def _read_cached(
    batch: _Batch, disk: Disk, indexes: Sequence[int], ios: Sequence[ReadIo]
) -> list[int]:
    """Do the reads that need no wait for the disk; return the indexes of the others."""
    try:
        results = disk.run_inline(disk.engine.read_cached, ios)
    except StuckError:  # it says nothing of the bytes: a thread can wait
        return list(indexes)
    except FsError as error:
        results = [ReadDone(error.status, 0, 0, error.detail)] * len(ios)
    left, done_of = [], batch.done
    for index, done in zip(indexes, results, strict=True):
        if done is None:
            left.append(index)
        elif done.status:
            _take_result(batch, index, done)
        else:
            done_of[index] = done
    return left


def _take_result(batch: _Batch, index: int, done: ReadDone) -> None:
    batch.done[index] = done
    if done.status in DAMAGED:
        batch.bad.append(index)
        place, io = batch.places[index], batch.ios[index]
        assert place is not None and io is not None
        note_damage(place.target, io.chunk_id, done.detail)


async def _read_bad_elsewhere(
    context: StorageContext, batch: _Batch, is_relaxed: bool, deadline_s: float
) -> None:
    reads = []
    for index in batch.bad:
        place, io, done = batch.places[index], batch.ios[index], batch.done[index]
        assert place is not None and io is not None and done is not None
        reads.append(BadRead(place, io, done))
    await read_elsewhere(context, reads, is_relaxed=is_relaxed, deadline_s=deadline_s)
    for index, read in zip(batch.bad, reads, strict=True):
        batch.done[index] = read.done


async def _read_locked(
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
    if done.status not in _NOT_HERE:
        return done
    # The chain is changing: what the tail has, has not come by here.  The client asks another replica.
    return ReadDone(Status.NOT_SERVING, 0, 0, f"version {io.version} is not here: {done.detail}")


def _make_reply(
    batch: _Batch, wanted: list[int], view: memoryview, *, want_checksums: bool
) -> tuple[storage_pb2.BatchReadRsp, list[memoryview]]:
    """Return the reply and its payload: the fewest pieces of `view`, where each read has as many bytes as it wanted."""
    versions = [done.commit_ver for done in batch.done if done is not None]
    if [done.length for done in batch.done if done is not None] == wanted:  # mostly: all is there
        reply = storage_pb2.BatchReadRsp(lengths=wanted, commit_vers=versions)
        if want_checksums:
            reply.checksums.extend(row_checksums(view, list(accumulate(wanted))))
        for place, length in zip(batch.places, wanted, strict=True):
            if place is not None:
                place.target.read_bytes += length
        return reply, [view]
    reply = storage_pb2.BatchReadRsp(commit_vers=versions)
    payload, start, run_start, run_end = list[memoryview](), 0, 0, 0
    rows = zip(batch.places, batch.done, wanted, strict=True)
    for index, (place, done, room) in enumerate(rows):
        assert done is not None
        length = 0 if done.status else done.length
        if done.status:
            reply.failures.add(position=index, status=done.status, detail=done.detail)
        if length:
            assert place is not None
            if start != run_end:
                if run_end:
                    payload.append(view[run_start:run_end])
                run_start = start
            run_end = start + length
            place.target.read_bytes += length
        if want_checksums:
            piece = view[start : start + length]
            reply.checksums.append(xxhash.xxh3_64_intdigest(piece) if length else 0)
        reply.lengths.append(length)
        start += room
    if run_end:
        payload.append(view[run_start:run_end])
    return reply, payload
