"""Which chunks a syncing successor needs: a merge of two listings in chunk-id order.  Pure.

The predecessor is the truth.  Rules, in this order:
    - only remote -> remove there;
    - only local -> transfer;
    - local or remote pending -> transfer (a local leftover is completed
      by it, a remote one abandoned);
    - local chain version greater -> transfer;
    - equal, but known to be damaged remotely only -> transfer;
    - differing version, length or checksum -> transfer, also when the remote chain version is
      greater: 3FS calls that fatal since a serving target cannot have missed an update; here
      the remote copy is replaced and counted as `suspect`, because stopping would leave the
      chain short of a replica for ever;
    - else equal -> skip.

Listings are read page by page while updates go on.  A stale entry costs a needless
transfer, never a missed one: every update that came in after the listing began is forwarded
to the successor by the write path.

Source: deepseek-ai/3FS src/storage/sync/ResyncWorker.cc; see also specs/craq.md.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum

from ..chunkengine.api import ChunkState
from ..schema.ids import ChunkId


class Need(Enum):
    """What the successor needs for one chunk."""

    REMOVE = "remove"
    TRANSFER = "transfer"
    SKIP = "skip"


@dataclass(frozen=True, slots=True)
class Item:
    """One decision; `is_suspect`: the remote copy looks newer than the truth."""

    chunk_id: ChunkId
    need: Need
    is_suspect: bool = False


def decide_chunk(local: ChunkState, remote: ChunkState) -> Item:
    """Decide about a chunk that both sides have."""
    is_same = (
        local.commit_ver == remote.commit_ver
        and local.length == remote.length
        and local.checksum == remote.checksum
        and (local.is_damaged or not remote.is_damaged)
    )
    is_pending = bool(local.pending_ver or remote.pending_ver)
    if not is_pending and is_same and local.chain_version <= remote.chain_version:
        return Item(local.chunk_id, Need.SKIP)
    is_suspect = not is_pending and local.chain_version < remote.chain_version
    return Item(local.chunk_id, Need.TRANSFER, is_suspect)


def merge(local: Iterable[ChunkState], remote: Iterable[ChunkState]) -> Iterator[Item]:
    """Decide about every chunk of two listings,
    both strictly ascending by chunk id, in that order.
    """
    local_left, remote_left = iter(local), iter(remote)
    here, there = next(local_left, None), next(remote_left, None)
    while here or there:
        if there is None or (here and here.chunk_id < there.chunk_id):
            assert here is not None
            yield Item(here.chunk_id, Need.TRANSFER)
            here = next(local_left, None)
        elif here is None or there.chunk_id < here.chunk_id:
            yield Item(there.chunk_id, Need.REMOVE)
            there = next(remote_left, None)
        else:
            yield decide_chunk(here, there)
            here, there = next(local_left, None), next(remote_left, None)


def window_end(local_last: bytes | None, remote_last: bytes | None) -> bytes | None:
    """Return the packed chunk id up to which both pages are complete, None for the end of both.

    Args:
        local_last: packed id of the local page's last chunk, None if no more follow it.
        remote_last: the same of the remote page.
    """
    ends = [last for last in (local_last, remote_last) if last is not None]
    return min(ends, default=None)
