"""Chunks that belong to no file: found chain by chain, in bounded memory, beside a working cluster.

As in fsck_chunks.py, order is what makes it safe: the chunks of a chain are listed first,
then their inodes are looked up, then what waits for garbage collection, and what is left is
looked at again on its target.  An inode exists before its first chunk, and its GC record
stays until its last chunk is gone.

Does not remove anything: that is `ember fsck --remove-chunks`, which
looks at everything else as well.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Final

from ..kv.api import KvEngine, Transaction
from ..kv.transact import snapshot_read
from ..meta import records
from ..meta.fsck_facts import ChunkRun, Finding, Kind
from ..schema.ids import ChainId
from ..schema.routing import Chain
from ..schema.status import FsError, Status
from .chunks import listed_chunks
from .fsck_chunks import Cluster, is_still_so
from .stored import garbage

LOOKED_UP_AT_ONCE: Final = 1000
SUSPECTS_MAX: Final = 100_000
"""Of one chain; more are counted, not looked at."""


@dataclass(slots=True)
class Orphan:
    """The chunks of one inode that does not exist, on one target."""

    inode_id: int
    chain_id: ChainId
    target_id: int
    first_index: int
    last_index: int
    chunk_count: int = 0
    length_bytes: int = 0


@dataclass(slots=True)
class ChainResult:
    """What was found on one chain."""

    chain_id: ChainId
    target_id: int
    chunk_count: int
    orphans: list[Orphan]
    left_out_count: int = 0
    """Suspects beyond SUSPECTS_MAX."""


async def search_chain(engine: KvEngine, cluster: Cluster, chain: Chain) -> ChainResult:
    """Return the orphans among the chunks of a chain, as its first serving target lists them.

    Raises:
        FsError: CHAIN_UNAVAILABLE when nobody serves it; the store or the target does not answer.
    """
    if not chain.serving:
        raise FsError(Status.CHAIN_UNAVAILABLE, f"chain {chain.chain_id}: nobody serves it")
    result = ChainResult(chain.chain_id, chain.serving[0], 0, [])
    suspects: list[Orphan] = []
    batch: list[Orphan] = []
    async for one in _inodes(cluster, result):
        batch.append(one)
        if len(batch) >= LOOKED_UP_AT_ONCE:
            suspects += await _without_inode(engine, batch)
            batch = []
    suspects += await _without_inode(engine, batch)
    result.left_out_count = max(0, len(suspects) - SUSPECTS_MAX)
    suspects = suspects[:SUSPECTS_MAX]
    if suspects:
        waiting = {one.inode_id async for one in garbage(engine)}
        suspects = [one for one in suspects if one.inode_id not in waiting]
    result.orphans = [one for one in suspects if await is_still_so(engine, cluster, _doubt(one))]
    return result


async def _inodes(cluster: Cluster, result: ChainResult) -> AsyncIterator[Orphan]:
    """Yield the committed chunks of a target, put together by inode."""
    found: Orphan | None = None
    target_id = cluster.info.chain(result.chain_id).serving[0]
    async for chunk in listed_chunks(cluster.channels, cluster.info, target_id):
        if not chunk.commit_ver:
            continue  # being made
        result.chunk_count += 1
        if found is None or found.inode_id != chunk.inode_id:
            if found is not None:
                yield found
            index = chunk.chunk_index
            found = Orphan(chunk.inode_id, result.chain_id, target_id, index, index)
        found.last_index = chunk.chunk_index
        found.chunk_count += 1
        found.length_bytes += chunk.length
    if found is not None:
        yield found


async def _without_inode(engine: KvEngine, batch: list[Orphan]) -> list[Orphan]:
    async def body(tr: Transaction) -> list[bytes | None]:
        keys = [records.inode_key(one.inode_id) for one in batch]
        return await tr.get_many(keys, snapshot=True)

    if not batch:
        return []
    values = await snapshot_read(engine, body)
    return [one for one, value in zip(batch, values, strict=True) if value is None]


def _doubt(one: Orphan) -> Finding:
    """Return what `is_still_so` looks at: the last chunk on the target,
    and the inode that must not be there.
    """
    run = ChunkRun(one.target_id, one.chain_id, one.first_index, one.last_index)
    guards = ((records.inode_key(one.inode_id), None),)
    return Finding(Kind.ORPHAN_CHUNK, one.inode_id, "", guards=guards, chunks=run)
