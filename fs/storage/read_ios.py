"""A batch of reads as one object for each:
what is to be read where, what has become of it, and the reply.

The ordinary way of read_path.py, for batches of which something is unusual; it alone
says what is wrong with a read.

Concurrency: one task for each disk that is read from.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Final

import msgspec
import trio
import xxhash

from ..chunkengine.books import StuckError
from ..chunkengine.read_values import ReadDone, ReadIo, RowsRead
from ..kernels.reads import row_checksums
from ..schema.ids import ChunkId, TargetId
from ..schema.proto import storage_pb2
from ..schema.status import FsError
from .damage import note_damage
from .disk import Disk
from .read_elsewhere import DAMAGED
from .targets import Place

INLINE_BYTES_MAX: Final = 1024 * 1024
"""More than this is not copied and hashed on the event loop in one go."""

Key = tuple[int, int, int, int]
"""What a read wants, as its sender names it: chain id, chain version, inode id, chunk index."""

Found = tuple[Place | None, ReadDone | None]
"""Our place in a chain, or why there is nothing to be read there."""


@dataclass(slots=True)
class Batch:
    """The I/Os of a request on their way: `ios[i]` is None once `done[i]` is set
    without reading.
    """

    places: list[Place | None] = field(default_factory=list)
    ios: list[ReadIo | None] = field(default_factory=list)
    done: list[ReadDone | None] = field(default_factory=list)
    bad: list[int] = field(default_factory=list)
    """Indexes of the I/Os whose copy here is damaged."""
    disks: set[Disk] = field(default_factory=set)
    """Where there is something to be read."""


class _Chunk(msgspec.Struct):
    """What all reads of a chunk have in common."""

    place: Place | None
    trouble: ReadDone | None
    chunk_id: ChunkId
    target_id: TargetId


def begin(
    request: storage_pb2.BatchReadReq,
    keys: Sequence[Key],
    known: Mapping[tuple[int, int], Found],
    view: memoryview,
) -> tuple[Batch, list[int]]:
    """Return what is to be read where, the bytes one after the other in `view`,
    and the I/Os whose version is in doubt.
    """
    chunks: dict[Key, _Chunk] = {}
    in_doubt: set[Key] = set()
    batch, has_trouble = Batch(), False
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


def take_read(batch: Batch, lengths: Sequence[int], read: RowsRead) -> None:
    """Take in what has been read, but for what came into trouble since."""
    rows = zip(batch.done, lengths, read.versions, strict=True)
    batch.done = [
        trouble or (ReadDone(0, length, version) if version else None)
        for trouble, length, version in rows
    ]


async def read_disks(batch: Batch, *, may_be_cached: bool) -> None:
    """Read what is not done yet, one blocking call for each disk;
    where `may_be_cached`, what needs no wait first, without one.
    """
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


async def _read_disk(batch: Batch, disk: Disk, indexes: Sequence[int], may_be_cached: bool) -> None:
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
        take_result(batch, index, done)


def _read_cached(
    batch: Batch, disk: Disk, indexes: Sequence[int], ios: Sequence[ReadIo]
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
            take_result(batch, index, done)
        else:
            done_of[index] = done
    return left


def take_result(batch: Batch, index: int, done: ReadDone) -> None:
    """Enter what has become of an I/O; of a copy that is damaged notice is taken."""
    batch.done[index] = done
    if done.status in DAMAGED:
        batch.bad.append(index)
        place, io = batch.places[index], batch.ios[index]
        assert place is not None and io is not None
        note_damage(place.target, io.chunk_id, done.detail)


def make_reply(
    batch: Batch, wanted: list[int], view: memoryview, *, want_checksums: bool
) -> tuple[storage_pb2.BatchReadRsp, list[memoryview]]:
    """Return the reply and its payload: the fewest pieces of `view`,
    where each read has as many bytes as it wanted.
    """
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
