"""Whole chunks brought to a syncing successor together:
one call to the disk, one request, one batch over there.

As with writes (update_group.py), what a chunk costs hardly depends on its size, and most of it is
not the chunk's own.  Here those go together whose way is plain: their lock free, committed, nothing
left over, not damaged.  All others, and whatever fails, are brought one by one (resync.py), which
takes care of whatever there is.

Their bytes are read past the page cache, if they are not in it: nobody is likely to read them next,
and what lies there is used by others.

Invariants:
    - The lock of a chunk is held from before its version is looked at
      until the successor has answered.
    - A group waits for no lock.  While it holds some, it waits for nothing that takes
      long, such as a rate or memory.
    - Chunks under way take no more memory than the pool of buffers has,
      or one chunk if that is more.

Concurrency: trio; any number of groups, of chunks that no other has.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Final

from ..chunkengine.api import ChunkState
from ..chunkengine.format import chunk_key
from ..chunkengine.read_values import ReadRows, RowsRead
from ..rpc.buffer_pool import Lease
from ..schema.ids import ChunkId
from .context import StorageContext
from .forward import forward_together
from .resync_plan import Item, Need
from .targets import Place
from .transfer import as_prepared, outgoing

GROUP_BYTES_MAX: Final = 4 << 20
"""Of one request, but for a chunk that is larger."""

GROUP_COUNT_MAX: Final = 64

BYTES_UNDER_WAY_MAX: Final = 16 << 20
"""Of one process: so that one group is read while others are sent, received and written."""

ALIGNED_BYTES: Final = 4096
"""What lies at multiples of this is read and written past the page cache."""


@dataclass(frozen=True, slots=True)
class Group:
    """Chunks to be brought over at the same time."""

    items: tuple[Item, ...]
    byte_count: int
    """As they were listed."""


def grouped(
    items: Iterator[tuple[Item, ChunkState | None]], bytes_max: int = GROUP_BYTES_MAX
) -> Iterator[Group]:
    """Put items together, with their chunks as they were listed here;
    those that need anything but their bytes stay alone.
    """
    waiting: list[Item] = []
    byte_count = 0
    for item, state in items:
        length = state.length if state is not None else 0
        if item.need is not Need.TRANSFER or item.is_suspect or state is None or state.pending_ver:
            yield Group((item,), length)
            continue
        if waiting and (byte_count + length > bytes_max or len(waiting) == GROUP_COUNT_MAX):
            yield Group(tuple(waiting), byte_count)
            waiting, byte_count = [], 0
        waiting.append(item)
        byte_count += length
    if waiting:
        yield Group(tuple(waiting), byte_count)


def takes_groups(context: StorageContext, place: Place) -> bool:
    """Return whether the syncing successor is not known to be of a release
    that takes whole chunks one by one only.
    """
    assert place.successor is not None
    node = context.routing.info.node_of_target(place.successor.target_id)
    return (node.node_id, node.incarnation) not in context.without_replace_groups


async def transfer_together(
    context: StorageContext,
    place: Place,
    chunk_ids: Sequence[ChunkId],
    lease: Lease,
    *,
    deadline_s: float,
) -> dict[ChunkId, int]:
    """Bring chunks to the successor in one request, once.

    Args:
        context: ports, targets and limits of this process.
        place: ours, which holds now; the successor is syncing.
        chunk_ids: whose locks are held.
        lease: memory for their bytes; what does not fit in is left.
        deadline_s: trio time after which to give up.

    Returns:
        The bytes of each that is there now; the others are to be brought one by one.
    """
    target = place.target
    states = _plain(place, chunk_ids, len(lease.view))
    if not states:
        return {}
    lengths = [state.length for state in states]
    rows = ReadRows(list(range(len(states))), [0] * len(states), lengths, list(accumulate(lengths)))
    view = lease.view[: rows.ends[-1]]
    read = partial(
        target.disk.engine.read_rows,
        [chunk_key(target.target_id, state.chunk_id) for state in states],
        rows,
        view,
        want_checksums=True,
        may_pass_cache=True,
    )
    done: RowsRead = await target.disk.run(read)
    sent = [
        (outgoing(state, view[end - state.length : end], checksum), as_prepared(state))
        for state, end, version, checksum in zip(
            states, rows.ends, done.versions, done.checksums, strict=True
        )
        if version == state.commit_ver
    ]
    if not sent:
        return {}
    forwarded = await forward_together(
        context,
        target,
        place.chain.chain_id,
        sent,
        deadline_s=deadline_s,
        only_version=place.chain.chain_version,
    )
    return {
        update.chunk_id: update.length
        for (update, _), at in zip(sent, forwarded, strict=True)
        if at is not None
    }


def _plain(place: Place, chunk_ids: Sequence[ChunkId], size: int) -> list[ChunkState]:
    """Return those chunks whose way is plain, as many as have room in `size` bytes;
    first those that lie well in memory.
    """
    disk, target_id = place.target.disk, place.target.target_id
    states: list[ChunkState] = []
    for chunk_id in chunk_ids:
        state = disk.run_inline(disk.engine.get, target_id, chunk_id)
        if state is None or state.pending_ver or state.is_damaged or not state.length:
            continue
        if state.length <= size:
            states.append(state)
            size -= state.length
    return sorted(states, key=lambda state: state.length % ALIGNED_BYTES != 0)
