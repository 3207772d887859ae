"""The chunks of one file on every member of their chains, and whether the replicas agree.

Looks at a window of chunk indexes at a time, in bounded memory.  Members that do not serve are
shown, and not compared: they may rightly be behind.
"""

from collections import defaultdict
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import aclosing
from dataclasses import dataclass

import trio

from ..rpc.api import Channels
from ..rpc.frame import decode_error
from ..schema import services
from ..schema.ids import ChainId, InodeId, TargetId
from ..schema.layout import FileRef, chain_of_chunk, chains_in_use
from ..schema.proto import storage_pb2 as pb
from ..schema.routing import Chain, PublicState, RoutingInfo
from ..schema.status import FsError
from .chunks import RECHECK_COUNT, RECHECK_PAUSE_S, listed_chunks

WINDOW_CHUNKS = 1000


@dataclass(frozen=True, slots=True)
class Replica:
    """A chunk on one member of its chain."""

    chunk_index: int
    chain_id: ChainId
    target_id: TargetId
    node_id: int
    state: PublicState
    chunk: pb.ChunkMetaPb | None
    """None: it has none."""
    trouble: str = ""
    """Why its node does not tell."""

    @property
    def content(self) -> tuple[int, int, int, bool] | None:
        """What has to be the same on all that serve."""
        found = self.chunk
        if found is None:
            return None
        return found.commit_ver, found.length, found.checksum, found.is_damaged


async def replicas(
    channels: Channels, info: RoutingInfo, file: FileRef, first_index: int, end_index: int
) -> list[Replica]:
    """Return the chunks with first_index <= index < end_index that some member has,
    on every member.

    Raises:
        FsError: CHAIN_TABLE_UNKNOWN, CHAIN_UNKNOWN.
    """
    table = info.chain_table(file.layout.table_id, file.layout.table_version)
    found: list[Replica] = []

    async def of_chain(chain: Chain) -> None:
        found.extend(
            await chain_replicas(channels, info, chain, file.inode_id, (first_index, end_index))
        )

    async with trio.open_nursery() as nursery:
        for chain_id in chains_in_use(file.layout, file.dyn_stripe, table.chain_ids):
            nursery.start_soon(of_chain, info.chain(chain_id))
    return sorted(found, key=lambda r: r.chunk_index)  # stable: members in the order of their chain


async def chain_replicas(
    channels: Channels, info: RoutingInfo, chain: Chain, inode_id: InodeId, window: tuple[int, int]
) -> list[Replica]:
    """As `replicas`, of one chain, whatever file the chunks belong to."""
    first_index, end_index = window
    by_index: dict[int, dict[TargetId, pb.ChunkMetaPb]] = defaultdict(dict)
    troubles: dict[TargetId, str] = {}

    async def of_member(target_id: TargetId) -> None:
        try:
            found = listed_chunks(
                channels, info, target_id, inode_id=inode_id, first_index=first_index
            )
            async with aclosing(found):
                async for chunk in found:
                    if chunk.chunk_index >= end_index:
                        break
                    by_index[chunk.chunk_index][target_id] = chunk
        except FsError as error:
            troubles[target_id] = str(error)

    async with trio.open_nursery() as nursery:
        for member in chain.targets:
            nursery.start_soon(of_member, member.target_id)
    return [
        Replica(
            index,
            chain.chain_id,
            member.target_id,
            info.target(member.target_id).node_id,
            member.public_state,
            by_index[index].get(member.target_id),
            troubles.get(member.target_id, ""),
        )
        for index in sorted(by_index)
        for member in chain.targets
    ]


def differing(found: Iterable[Replica]) -> Mapping[int, list[Replica]]:
    """Return the chunks, by index, whose serving replicas are not all the same."""
    by_index: dict[int, list[Replica]] = defaultdict(list)
    for replica in found:
        if replica.state.is_readable and not replica.trouble:
            by_index[replica.chunk_index].append(replica)
    return {
        index: members
        for index, members in by_index.items()
        if len({replica.content for replica in members}) > 1
    }


async def compared(
    channels: Channels, info: RoutingInfo, file: FileRef, chunk_count: int
) -> AsyncIterator[tuple[int, Mapping[int, list[Replica]]]]:
    """Compare the replicas of a file's chunks;
    yield how many were compared so far, and what differs among the last.

    What differs is looked at again, as it may be being written.
    """
    for first_index in range(0, chunk_count, WINDOW_CHUNKS):
        end_index = min(first_index + WINDOW_CHUNKS, chunk_count)
        different: Mapping[int, list[Replica]] = {}
        for attempt in range(RECHECK_COUNT):
            if attempt:
                await trio.sleep(RECHECK_PAUSE_S)
            different = differing(await replicas(channels, info, file, first_index, end_index))
            if not different:
                break
        yield end_index, different


def chain_of(info: RoutingInfo, file: FileRef, chunk_index: int) -> Chain:
    """Return the chain that a chunk of a file lies on; raises FsError."""
    table = info.chain_table(file.layout.table_id, file.layout.table_version)
    return info.chain(chain_of_chunk(file.layout, chunk_index, table.chain_ids))


@dataclass(frozen=True, slots=True)
class Digest:
    """The checksum of a range of a chunk, as one replica reads it now."""

    target_id: TargetId
    node_id: int
    length: int
    checksum: int
    commit_ver: int
    trouble: str = ""


async def range_digests(
    channels: Channels, info: RoutingInfo, chain: Chain, io: pb.ReadIoPb
) -> list[Digest]:
    """Read the range of a chunk on each serving replica and return the xxh3-64 of what it has,
    without the bytes.

    A replica whose own copy is bad says so instead of asking another one.
    """
    found = []
    for target_id in chain.serving:
        node = info.node_of_target(target_id)
        request = pb.BatchReadReq(ios=[io], is_relaxed=True, want_checksums=True, is_passed_on=True)
        try:
            channel = channels.get(node.address, node_id=node.node_id)
            result = (await channel.call(services.STORAGE_BATCH_READ, request)).message.results[0]
            trouble = ""
            if result.status:
                bad = decode_error(result.status, result.detail.encode())
                trouble = f"{bad.status.name}: {bad.detail}"
            found.append(
                Digest(
                    target_id,
                    node.node_id,
                    result.length,
                    result.checksum,
                    result.commit_ver,
                    trouble,
                )
            )
        except FsError as error:
            found.append(Digest(target_id, node.node_id, 0, 0, 0, str(error)))
    return found
