"""The part of a batch of reads that needs no wait: committed versions that nobody doubts, out of the page cache.

Most reads of a busy node are such.  They are done by columns, without an object for each, and nothing is said here of those
that are not: read_path.py does them.

Concurrency: event loop only, no checkpoint: between the look at our place in the chain and the bytes nothing can come in.
"""

from collections.abc import Sequence
from functools import partial
from itertools import accumulate

from ..chunkengine.api import ReadRow, RowsRead
from ..schema.ids import ChunkId, TargetId
from ..schema.proto import storage_pb2
from ..schema.status import FsError
from .context import StorageContext
from .target import LocalTarget


def read_at_once(
    context: StorageContext,
    request: storage_pb2.BatchReadReq,
    lengths: Sequence[int],
    view: memoryview,
) -> RowsRead | None:
    """Read what can be read at once, the bytes one after the other in `view`.

    Args:
        context: of the process.
        request: checked.
        lengths: of the request.
        view: as long as all of them.

    Returns:
        None: nothing was done, since our place in a chain or the version of a chunk is in doubt.
    """
    chain_ids, chain_versions = request.chain_ids[:], request.chain_versions[:]
    target_of: dict[tuple[int, int], LocalTarget] = {}
    for pair in dict.fromkeys(zip(chain_ids, chain_versions, strict=True)):
        place = context.place_known(*pair)
        if place is None or not place.can_read:
            return None
        target_of[pair] = place.target
    # 1. What reads of the same chunk have in common.
    inode_ids, chunk_indexes, offsets = (
        request.inode_ids[:],
        request.chunk_indexes[:],
        request.offsets[:],
    )  # as lists: looking into a column of a message costs more than what is done with it
    keys = list(zip(chain_ids, chain_versions, inode_ids, chunk_indexes, strict=True))
    numbers: dict[tuple[int, int, int, int], int] = {}
    chunks: list[tuple[TargetId, ChunkId]] = []
    targets: list[LocalTarget] = []
    for key in dict.fromkeys(keys):
        target = target_of[key[:2]]
        chunk_id = ChunkId(key[2], key[3])  # type: ignore[arg-type]
        if target.unsettled and chunk_id in target.unsettled and not request.is_relaxed:
            return None
        numbers[key] = len(chunks)
        chunks.append((target.target_id, chunk_id))
        targets.append(target)
    # 2. The bytes.
    each = list(map(numbers.__getitem__, keys))
    rows = list(zip(each, offsets, lengths, accumulate(lengths), strict=True))
    try:
        done = _read_disks(targets, chunks, rows, view, want_checksums=request.want_checksums)
    except FsError:  # of a disk; whoever asks it next says so
        return None
    if not done.left:  # else the way that reads the rest counts
        totals = [0] * len(targets)
        for number, length in zip(each, lengths, strict=True):
            totals[number] += length
        for target, total in zip(targets, totals, strict=True):
            target.read_bytes += total
    return done


def _read_disks(
    targets: Sequence[LocalTarget],
    chunks: Sequence[tuple[TargetId, ChunkId]],
    rows: Sequence[ReadRow],
    view: memoryview,
    *,
    want_checksums: bool,
) -> RowsRead:
    """Ask each disk for its rows."""
    disks = {target.disk for target in targets}
    if len(disks) == 1:
        (disk,) = disks
        read = disk.engine.read_cached_rows
        return disk.run_inline(partial(read, chunks, rows, view, want_checksums=want_checksums))
    found = RowsRead([0] * len(rows), [0] * len(rows) if want_checksums else [], [], is_cold=True)
    for disk in disks:
        positions = [n for n, row in enumerate(rows) if targets[row[0]].disk is disk]
        some, read = [rows[n] for n in positions], disk.engine.read_cached_rows
        done = disk.run_inline(partial(read, chunks, some, view, want_checksums=want_checksums))
        for position, version in zip(positions, done.versions, strict=True):
            found.versions[position] = version
        for position, checksum in zip(positions, done.checksums, strict=False):
            found.checksums[position] = checksum
        found.left += [positions[n] for n in done.left]
        found.is_cold &= done.is_cold
    return found
