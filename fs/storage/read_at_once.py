"""The usual part of a batch of reads: committed versions that nobody doubts, whole,
out of the page cache or the disk.

Most reads of a busy node are such.  They are done by columns, without an object for each.  Of those
that are not such, or that fail, nothing is said here: read_path.py does them.

Concurrency: `find_rows` and `read_at_once` have no checkpoint: between the look at our place in the
chain and the bytes nothing can come in.  `read_the_rest` waits for the disk.  An update that comes
in meanwhile came after the read, which may return what was committed before it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, cast

import trio

from ..chunkengine.format import ChunkKey, chunk_id_of_key, target_of_key
from ..chunkengine.read_values import ReadRows, RowsRead
from ..kernels.read_messages import chunk_keys, take_rows
from ..schema.layout import CHUNK_SIZE_BYTES_MAX
from ..schema.status import FsError
from .context import StorageContext
from .disk import Disk
from .read_one import COLUMNS, FILLS_CACHE, IS_RELAXED, MANY_FLAGS, WANTS_CHECKSUMS
from .target import LocalTarget

IO_COUNT_MAX: Final = 4096


@dataclass(slots=True)
class RowsWanted:
    """The reads of a request, by columns, and what has become of them."""

    targets: Sequence[LocalTarget]
    """Of the chains that are named."""
    totals: Sequence[int]
    """Bytes that are wanted of each of these."""
    chains: Sequence[int]
    """Which of them each row is of."""
    keys: Sequence[ChunkKey]
    rows: ReadRows
    want_checksums: bool
    fills_cache: bool
    done: RowsRead

    @property
    def size(self) -> int:
        """Bytes that are wanted of all."""
        return self.rows.ends[-1]

    def by_disk(self, positions: Iterable[int]) -> dict[Disk, list[int]]:
        """Return which of some rows each disk has."""
        found: dict[Disk, list[int]] = {}
        for position in positions:
            found.setdefault(self.targets[self.chains[position]].disk, []).append(position)
        return found

    def count_bytes(self) -> None:
        """Enter in the figures of the targets that all has been read."""
        for target, total in zip(self.targets, self.totals, strict=True):
            target.read_bytes += total


def find_rows(context: StorageContext, message: bytes) -> RowsWanted | None:
    """Return what a request wants; None: it is not usual, or not right,
    or our place in a chain or the version of a chunk is in doubt.
    """
    taken = take_rows(message, COLUMNS, MANY_FLAGS, IO_COUNT_MAX, CHUNK_SIZE_BYTES_MAX)
    if taken is None:
        return None
    pairs, chains, chunks, numbers, offsets, lengths, ends, flags = taken
    if ends[-1] > context.payload_bytes_max:
        return None
    # 1. Our places in the chains.
    targets: list[LocalTarget] = []
    totals: list[int] = []
    for chain_id, chain_version, total in pairs:
        target = context.targets.readable(chain_id, chain_version)
        if target is None:
            return None
        targets.append(target)
        totals.append(total)
    # 2. The chunks, and whether an update of one is inside.
    owners: list[int] = [target.target_id for target in targets]
    keys = cast("list[ChunkKey]", chunk_keys(chunks, owners))
    if not flags & IS_RELAXED and _is_one_unsettled(targets, keys):
        return None
    rows = ReadRows(numbers, offsets, lengths, ends)
    want_checksums = bool(flags & WANTS_CHECKSUMS)
    done = RowsRead.none_of(len(lengths), want_checksums=want_checksums)
    done.left += range(len(lengths))
    fills_cache = bool(flags & FILLS_CACHE)
    return RowsWanted(targets, totals, chains, keys, rows, want_checksums, fills_cache, done)


def _is_one_unsettled(targets: Sequence[LocalTarget], keys: Sequence[ChunkKey]) -> bool:
    unsettled = {target.target_id: target.unsettled for target in targets if target.unsettled}
    return bool(unsettled) and any(
        (inside := unsettled.get(target_of_key(key))) is not None and chunk_id_of_key(key) in inside
        for key in keys
    )


def read_at_once(wanted: RowsWanted, view: memoryview) -> bool:
    """Read what needs no wait for the disk, the bytes of all rows one after the other in `view`.

    Returns:
        Whether all that is left would have to wait.
    """
    disks = {target.disk for target in wanted.targets}
    if len(disks) == 1:
        (disk,) = disks
        done = _read_cached(wanted, disk, wanted.rows, view)
        if done is not None:
            wanted.done = done
        return done is not None and done.is_cold
    wanted.done.left, is_cold = [], True
    for disk, positions in wanted.by_disk(range(len(wanted.chains))).items():
        done = _read_cached(wanted, disk, wanted.rows.some(positions), view)
        if done is None:
            wanted.done.left += positions
            is_cold = False
        else:
            wanted.done.take(positions, done)
            is_cold &= done.is_cold
    return is_cold


def _read_cached(
    wanted: RowsWanted, disk: Disk, rows: ReadRows, view: memoryview
) -> RowsRead | None:
    """Ask a disk for its rows; None: it refuses, which whoever asks it next says."""
    read = disk.engine.read_cached_rows
    want_checksums = wanted.want_checksums
    try:
        return disk.run_inline(
            partial(read, wanted.keys, rows, view, want_checksums=want_checksums)
        )
    except FsError:
        return None


async def read_the_rest(
    wanted: RowsWanted, view: memoryview, *, may_pass_cache: bool, leaves_matching: bool
) -> None:
    """Read what is left, one blocking call for each disk; what is then left cannot be read whole.

    Args:
        wanted: what is read, and what has become of it.
        view: where the bytes of all rows lie.
        may_pass_cache: the page cache is not to be filled, nor is it being filled since
            `read_at_once` was asked first.
        leaves_matching: as of `ChunkEngine.read_rows`; all or none are matched here.
    """
    by_disk = wanted.by_disk(wanted.done.left)
    is_whole = len(by_disk) == 1 and len(wanted.done.left) == len(wanted.chains)
    wanted.done.left = []
    how = {"may_pass_cache": may_pass_cache, "leaves_matching": leaves_matching and is_whole}
    if len(by_disk) == 1:
        ((disk, positions),) = by_disk.items()
        await _read_disk(wanted, disk, positions, view, how)
    else:
        async with trio.open_nursery() as nursery:
            for disk, positions in by_disk.items():
                nursery.start_soon(_read_disk, wanted, disk, positions, view, how)
    wanted.done.left.sort()


async def _read_disk(
    wanted: RowsWanted,
    disk: Disk,
    positions: Sequence[int],
    view: memoryview,
    how: Mapping[str, bool],
) -> None:
    """Have a disk read some rows; `how` are options of `ChunkEngine.read_rows`."""
    rows = wanted.rows.some(positions)
    want_checksums = wanted.want_checksums
    try:
        async with disk.read_limiter:
            read = partial(disk.engine.read_rows, wanted.keys, rows, view)
            read = partial(read, want_checksums=want_checksums, **how)
            done = await disk.run_timed(sum(rows.lengths), read)
    except FsError:  # whoever asks the disk next says so
        wanted.done.left += positions
    else:
        wanted.done.take(positions, done)
