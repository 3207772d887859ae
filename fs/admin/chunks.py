"""Replica comparison: do all serving targets of each chain hold the same chunks
with the same content?

Pages through the chunk metadata of every target side by side, in chunk order, in bounded memory;
digests are over content, so equal digests mean equal bytes.  A chunk that is being written may
differ for a moment: differences are looked at again before they are reported.

Does not read the chunks' data: that is what a scrub does.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import dataclass, field

import trio

from ..rpc.api import Channels
from ..schema import services
from ..schema.ids import ChunkId, InodeId, TargetId
from ..schema.proto import storage_pb2 as pb
from ..schema.routing import Chain, RoutingInfo

PAGE_COUNT = 1000
RECHECK_PAUSE_S = 1.0
RECHECK_COUNT = 5

Facts = tuple[int, int, int, int]
"""(committed version, pending version, length, digest)."""


@dataclass(slots=True)
class ChainComparison:
    """What the targets of one chain hold."""

    chain_id: int
    targets: tuple[TargetId, ...]
    chunk_count: int = 0
    different: dict[ChunkId, dict[TargetId, Facts | None]] = field(default_factory=dict)


async def listed_chunks(
    channels: Channels,
    info: RoutingInfo,
    target_id: TargetId,
    *,
    inode_id: int = 0,
    first_index: int = 0,
) -> AsyncGenerator[pb.ChunkMetaPb, None]:
    """Yield what a target says of all its chunks, or of those of one inode from an index on,
    in chunk order.

    Raises:
        FsError: its node does not answer, or does not have it.
    """
    node = info.node_of_target(target_id)
    channel = channels.get(node.address, node_id=node.node_id)
    after = ChunkId(InodeId(inode_id), first_index - 1).pack() if first_index else b""
    while True:
        request = pb.ListChunksReq(
            target_id=target_id, after=after, chunk_count_max=PAGE_COUNT, inode_id=inode_id
        )
        reply = (await channel.call(services.STORAGE_LIST_CHUNKS, request)).message
        for chunk in reply.chunks:
            yield chunk
        if not reply.has_more:
            return
        last = reply.chunks[-1]
        after = ChunkId(InodeId(last.inode_id), last.chunk_index).pack()


async def target_chunks(
    channels: Channels, info: RoutingInfo, target_id: TargetId
) -> AsyncIterator[tuple[ChunkId, Facts]]:
    """Yield every chunk of a target in order; raises FsError when its node does not answer."""
    async for chunk in listed_chunks(channels, info, target_id):
        chunk_id = ChunkId(InodeId(chunk.inode_id), chunk.chunk_index)
        yield chunk_id, (chunk.commit_ver, chunk.pending_ver, chunk.length, chunk.checksum)


async def compare_chain(channels: Channels, info: RoutingInfo, chain: Chain) -> ChainComparison:
    """Compare the serving targets of one chain by one merge over their sorted lists."""
    result = ChainComparison(chain.chain_id, chain.serving)
    lists = {t: aiter(target_chunks(channels, info, t)) for t in chain.serving}
    heads = {t: await anext(found, None) for t, found in lists.items()}
    while any(heads.values()):
        chunk_id = min(head[0] for head in heads.values() if head)
        facts: dict[TargetId, Facts | None] = {}
        for target_id, head in heads.items():
            is_here = head is not None and head[0] == chunk_id
            facts[target_id] = head[1] if head is not None and is_here else None
            if is_here:
                heads[target_id] = await anext(lists[target_id], None)
        result.chunk_count += 1
        if len(set(facts.values())) > 1:
            result.different[chunk_id] = facts
    return result


async def compare(channels: Channels, info: RoutingInfo) -> list[ChainComparison]:
    """Compare all chains; those that differ are compared again, as writes may be under way.

    Args:
        channels: to the storage nodes.
        info: the newest routing info.

    Returns:
        One result per chain, in chain order.
    """
    results: dict[int, ChainComparison] = {}

    async def one(chain: Chain) -> None:
        results[chain.chain_id] = await compare_chain(channels, info, chain)

    pending: Sequence[Chain] = sorted(info.chains.values(), key=lambda c: c.chain_id)
    for _ in range(RECHECK_COUNT):
        async with trio.open_nursery() as nursery:
            for chain in pending:
                nursery.start_soon(one, chain)
        pending = [chain for chain in pending if results[chain.chain_id].different]
        if not pending:
            break
        await trio.sleep(RECHECK_PAUSE_S)
    return [results[chain_id] for chain_id in sorted(results)]
