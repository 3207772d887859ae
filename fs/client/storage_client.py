"""The storage half of the native client: reads, writes,
and the per-file queries and removals of meta.

Implements `fs.client.api.ChunkStore` and, with the same methods, `ChunkPort` of the
metadata service. Reads are in storage_reads.py, updates in storage_writes.py; here are the
requests that go to every chain of a file, which share one pattern: group by node, send,
repeat what met another chain version.
"""

import logging
from collections.abc import Awaitable, Callable, Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace

import msgspec
import trio

from ..node.api import MgmtdCaller, RoutingView
from ..rpc.api import Channels
from ..rpc.frame import decode_error
from ..runtime.figures import Figures
from ..runtime.ports import Buffer, Runtime
from ..schema import metrics, services
from ..schema.config import ClientSection
from ..schema.ids import ChainId, ClientId, NodeId
from ..schema.layout import CHUNK_COUNT_MAX, FileRef, chain_of_chunk, chunk_count
from ..schema.proto import storage_pb2 as pb
from ..schema.routing import Chain, NodeState, Role, RoutingInfo
from ..schema.status import FsError, Retry, Status
from .api import OnWritten
from .file_read import FileRead
from .node_calls import NodeCalls
from .retry import RetryBudget
from .routing_math import cut_file_range, file_chains, head_of, table_chain_ids
from .shared_syncs import ChainAt, SharedSyncs
from .storage_reads import StorageReads
from .storage_writes import StorageWrites
from .unsynced import Unsynced

log = logging.getLogger(__name__)

REMOVE_BATCH_COUNT = 128
REMOVE_CHUNK_COUNT_MAX = 256
"""Chunks that one RemoveChunks request removes at the most: bounds how long it takes."""


@dataclass(frozen=True, slots=True)
class ChainJob:
    """One thing to do on one chain."""

    chain_id: int
    inode_id: int = 0
    first_index: int = 0
    truncate_ver: int = 0


class StorageClient:
    """Implements `fs.client.api.ChunkStore`."""

    def __init__(
        self,
        client_id: ClientId,
        *,
        channels: Channels,
        routing: RoutingView,
        mgmtd: MgmtdCaller,
        runtime: Runtime,
        section: ClientSection,
        gives_way: bool = False,
    ) -> None:
        """Connect to nobody yet.

        `gives_way`: of one of several services, any of which can do what is asked for.  It tells
        its client soon that it reaches nobody, who then asks another one: a call has half of the
        time, and so have its repetitions while nobody answers.
        """
        self._gives_way = gives_way
        section = self._hurried(section)
        self._client_id = client_id
        self._routing = routing
        self._runtime = runtime
        self._section = section
        self._nodes = NodeCalls(
            channels=channels, routing=routing, mgmtd=mgmtd, section=section, runtime=runtime
        )
        self._reads = StorageReads(self._nodes, routing=routing, runtime=runtime, section=section)
        self.begin_read = self._reads.begin
        """See `ChunkStore.begin_read`."""
        self._syncs = SharedSyncs(self._sync_node)
        self._unsynced = Unsynced()
        self._writes = StorageWrites(
            client_id,
            self._nodes,
            routing=routing,
            runtime=runtime,
            section=section,
            unsynced=self._unsynced,
            gives_way=gives_way,
        )

    def adopt(self, section: ClientSection) -> None:
        """Go on with other settings."""
        section = self._hurried(section)
        self._section = section
        self._nodes.adopt(section)
        self._reads.adopt(section)
        self._writes.adopt(section)

    def _hurried(self, section: ClientSection) -> ClientSection:
        """Who asked us waits for client.call_timeout_s himself:
        he is to be told before that is over.
        """
        if not self._gives_way:
            return section
        return msgspec.structs.replace(section, call_timeout_s=section.call_timeout_s / 2)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Let calls to failed nodes end early, until cancelled; see fs/client/node_calls.py."""
        task_status.started()
        await self._nodes.run()

    def say(self, figures: Figures) -> None:
        """Say whom this client, of a mount, does not reach."""
        figures.note(metrics.MOUNT_UNREACHED, len(self._nodes.unreached))

    async def read(self, reads: Sequence[FileRead], *, is_relaxed: bool = False) -> None:
        """See `ChunkStore.read`."""
        await self._reads.read(reads, is_relaxed=is_relaxed)

    async def warm(self, reads: Sequence[FileRead]) -> tuple[int, list[FsError]]:
        """See `ChunkStore.warm`."""
        return await self._reads.warm(reads)

    async def write(
        self, file: FileRef, offset: int, data: Buffer, *, is_durable: bool = False
    ) -> bool:
        """See `ChunkStore.write`."""
        return await self._writes.write(file, offset, data, is_durable=is_durable)

    async def write_ranges(
        self,
        file: FileRef,
        ranges: Sequence[tuple[int, Sequence[Buffer]]],
        *,
        is_durable: bool = False,
    ) -> bool:
        """See `fs.client.api.ChunkStore`."""
        return await self._writes.write_ranges(file, ranges, is_durable=is_durable)

    def begin_write(self, file: FileRef, offset: int, data: Buffer, on_end: OnWritten) -> bool:
        """See `BeginsWrites.begin_write`."""
        return self._writes.begin(file, offset, data, on_end)

    async def empty_chunks(self, file: FileRef, first_index: int, end_index: int) -> None:
        """See `ChunkStore.empty_chunks`."""
        await self._writes.empty(file, first_index, end_index)

    async def sync(self, files: Iterable[FileRef]) -> None:
        """See `ChunkStore.sync`."""
        info = self._routing.info
        keys = [(file.inode_id, c) for file in files for c in file_chains(info, file)]
        chain_ids = dict.fromkeys(chain_id for _, chain_id in keys)
        covered = self._unsynced.of(keys)
        loss_counts: dict[int, int] = {}
        await self._for_each_chain([ChainJob(c) for c in chain_ids], self._sync_round(loss_counts))
        self._unsynced.settle(covered, loss_counts)

    async def _sync_node(self, node_id: NodeId, chains: Collection[ChainAt]) -> None:
        refs = [pb.ChainRefPb(chain_id=c, chain_version=version) for c, version in chains]
        request = pb.SyncChainsReq(chains=refs)
        await self._nodes.call(node_id, services.STORAGE_SYNC_CHAINS, request)

    async def remove_files(self, files: Sequence[FileRef]) -> None:
        """See `ChunkPort.remove_files`."""
        info = self._routing.info
        jobs = [ChainJob(c, f.inode_id) for f in files for c in file_chains(info, f)]
        await self._for_each_chain(jobs, self._remove_round)

    async def truncate_file(
        self,
        file: FileRef,
        length: int,
        truncate_ver: int,
        is_wanted: Callable[[], Awaitable[bool]],
    ) -> None:
        """See `ChunkPort.truncate_file`."""
        while await is_wanted():
            # As known now: what is lost from here on, before it is durable, has to be cut again.
            info = self._routing.info
            before = {c: info.chain(c).loss_count for c in file_chains(info, file)}
            await self._cut(file, length, truncate_ver, is_wanted)
            loss_counts: dict[int, int] = {}
            jobs = [ChainJob(c) for c in before]
            await self._for_each_chain(jobs, self._sync_round(loss_counts))
            if loss_counts == before:
                return
            log.info("inode %d: cut again, since power was lost meanwhile", file.inode_id)

    async def _cut(
        self,
        file: FileRef,
        length: int,
        truncate_ver: int,
        is_wanted: Callable[[], Awaitable[bool]],
    ) -> None:
        info = self._routing.info
        size = file.layout.chunk_size_bytes
        first_gone = chunk_count(size, length)
        jobs = [
            ChainJob(c, file.inode_id, first_gone, truncate_ver) for c in file_chains(info, file)
        ]

        async def run_round(info: RoutingInfo, jobs: Sequence[ChainJob]) -> Outcome:
            return await self._remove_round(info, jobs) if await is_wanted() else Outcome()

        await self._for_each_chain(jobs, run_round)
        if length % size:
            await self._cut_last_chunk(file, length, truncate_ver, is_wanted)

    async def _cut_last_chunk(
        self,
        file: FileRef,
        length: int,
        truncate_ver: int,
        is_wanted: Callable[[], Awaitable[bool]],
    ) -> None:
        """Cut the chunk that byte `length` falls into, if it reaches further;
        everything behind is gone.

        Asked for in any case: the head then knows that the truncation is
        over, and refuses late copies.
        """
        size = file.layout.chunk_size_bytes
        index, in_chunk = divmod(length, size)
        chain_id = chain_of_chunk(file.layout, index, table_chain_ids(self._routing.info, file))
        request = pb.UpdateReq(
            inode_id=file.inode_id,
            chunk_index=index,
            chain_id=chain_id,
            type=pb.UpdateTypePb.TRUNCATE,
            length=in_chunk,
            chunk_size_bytes=size,
            truncate_ver=truncate_ver,
        )
        await self._writes.cut(
            f"chunk {file.inode_id}.{index} chain {chain_id}", request, is_wanted
        )

    async def fill_file(
        self,
        file: FileRef,
        data: Buffer,
        truncate_ver: int,
        is_wanted: Callable[[], Awaitable[bool]],
    ) -> None:
        """See `ChunkPort.fill_file`."""
        while await is_wanted():
            info = self._routing.info  # as in `truncate_file`
            (piece,) = cut_file_range(info, file, 0, memoryview(data))
            loss_count = info.chain(piece.chain_id).loss_count
            if await self._writes.fill(piece, truncate_ver, is_wanted):
                return
            loss_counts: dict[int, int] = {}
            await self._for_each_chain([ChainJob(piece.chain_id)], self._sync_round(loss_counts))
            if loss_counts[piece.chain_id] == loss_count:
                return
            log.info("inode %d: filled again, since power was lost meanwhile", file.inode_id)

    async def file_length(self, file: FileRef) -> tuple[int, int]:
        """See `ChunkPort.file_length`."""
        found: dict[Hashable, pb.LastChunkResultPb] = {}
        jobs = [ChainJob(c, file.inode_id) for c in file_chains(self._routing.info, file)]
        await self._for_each_chain(jobs, self._last_chunk_round(found))
        size = file.layout.chunk_size_bytes
        ends = (r.chunk_index * size + r.chunk_length for r in found.values() if r.has_chunk)
        return max(ends, default=0), sum(r.used_bytes for r in found.values())

    async def next_data(self, file: FileRef, first_index: int) -> int | None:
        """See `ChunkStore.next_data`; services of earlier releases do not say how
        far they looked.
        """
        found: dict[Hashable, pb.LastChunkResultPb] = {}
        whole = replace(file, dyn_stripe=file.layout.stripe_size)  # others may write meanwhile
        chains = file_chains(self._routing.info, whole)
        jobs = [ChainJob(c, file.inode_id, first_index) for c in chains]
        await self._for_each_chain(jobs, self._last_chunk_round(found, is_next_wanted=True))
        indexes = (
            max(r.next_index, first_index)
            for r in found.values()
            if r.next_index or (r.has_chunk and r.chunk_index >= first_index)
        )
        return min(indexes, default=None)

    async def space(self) -> tuple[int, int]:
        """See `ChunkPort.space`; nodes that do not answer are left out."""
        info = self._routing.info
        if not info.routing_version:  # this process has just been started
            info = await self._routing.refresh()
        capacity = free = 0
        for node in info.nodes_with_role(Role.STORAGE):
            if node.state is NodeState.FAILED:
                continue
            try:
                received = await self._nodes.call(
                    node.node_id, services.STORAGE_SPACE_INFO, pb.SpaceInfoReq()
                )
            except FsError as error:
                log.info("space of node %d is not known: %s", node.node_id, error)
                continue
            capacity += sum(d.capacity_bytes for d in received.message.disks)
            free += sum(d.free_bytes for d in received.message.disks)
        replicas = max((chain.replica_count for chain in info.chains.values()), default=1)
        return capacity // replicas, free // replicas

    # ---- the pattern: jobs by chain, in rounds, until none is left -------------------------------

    async def _for_each_chain(
        self,
        jobs: Sequence[ChainJob],
        run_round: "Callable[[RoutingInfo, Sequence[ChainJob]], Awaitable[Outcome]]",
    ) -> None:
        """Run rounds until every job is done; raises the first final error."""
        budget = RetryBudget(self._section, self._runtime, gives_way=self._gives_way)
        while jobs:
            outcome = await run_round(self._routing.info, jobs)
            for error in outcome.errors:
                budget.check(error)
                log.debug("%s: try %d: %s", run_round, budget.try_count, error)
            jobs = outcome.left
            if outcome.errors:
                if any(e.retry is not Retry.SAME for e in outcome.errors):
                    await self._routing.refresh()
                await budget.pause()

    def _sync_round(
        self, loss_counts: dict[int, int]
    ) -> "Callable[[RoutingInfo, Sequence[ChainJob]], Awaitable[Outcome]]":
        """Return a round that syncs the chains and notes the losses of each.

        All targets of a chain have answered under the version asked with, so what it
        says of losses was true then.
        """

        async def run_round(info: RoutingInfo, jobs: Sequence[ChainJob]) -> Outcome:
            outcome = await self._sync_chains(info, jobs)
            for job in jobs:
                if job not in outcome.left:
                    loss_counts[job.chain_id] = info.chain(job.chain_id).loss_count
            return outcome

        return run_round

    async def _sync_chains(self, info: RoutingInfo, jobs: Sequence[ChainJob]) -> "Outcome":
        """Sync every writable target of the chains, one request per node."""
        outcome = Outcome()
        by_node: dict[NodeId, list[tuple[ChainJob, Chain, int]]] = {}
        for job in jobs:
            try:
                chain = info.chain(job.chain_id)
                head_of(chain)
                places = {(t.node_id, t.disk_index) for t in map(info.target, chain.writable)}
            except FsError as error:
                outcome.fail([job], error)
                continue
            for node_id, disk_index in sorted(places):
                by_node.setdefault(node_id, []).append((job, chain, disk_index))

        async def sync_node(node_id: NodeId, members: list[tuple[ChainJob, Chain, int]]) -> None:
            disks = frozenset(disk_index for _, _, disk_index in members)
            chains = [(c.chain_id, c.chain_version) for _, c, _ in members]
            try:
                await self._syncs.sync(node_id, disks, chains)
            except FsError as error:
                outcome.fail([job for job, _, _ in members], error)

        async with trio.open_nursery() as nursery:
            for node_id, members in by_node.items():
                nursery.start_soon(sync_node, node_id, members)
        return outcome

    async def _at_heads(
        self,
        info: RoutingInfo,
        jobs: Sequence[ChainJob],
        ask: Callable[[NodeId, list[tuple[ChainJob, Chain]]], Awaitable[None]],
        outcome: "Outcome",
    ) -> None:
        """Group jobs by the node of their chain's head and ask the nodes side by side."""
        by_node: dict[NodeId, list[tuple[ChainJob, Chain]]] = {}
        for job in jobs:
            try:
                chain = info.chain(ChainId(job.chain_id))
                node_id = info.target(head_of(chain)).node_id
            except FsError as error:
                outcome.fail([job], error)
                continue
            by_node.setdefault(node_id, []).append((job, chain))

        async def ask_node(node_id: NodeId, members: list[tuple[ChainJob, Chain]]) -> None:
            for begin in range(0, len(members), REMOVE_BATCH_COUNT):
                part = members[begin : begin + REMOVE_BATCH_COUNT]
                try:
                    await ask(node_id, part)
                except FsError as error:
                    outcome.fail([job for job, _ in part], error)

        async with trio.open_nursery() as nursery:
            for node_id, members in by_node.items():
                nursery.start_soon(ask_node, node_id, members)

    async def _remove_round(self, info: RoutingInfo, jobs: Sequence[ChainJob]) -> "Outcome":
        """Remove chunks from first_index on; jobs with more to remove stay."""
        outcome = Outcome()

        async def ask(node_id: NodeId, part: list[tuple[ChainJob, Chain]]) -> None:
            request = pb.RemoveChunksReq(
                ranges=[
                    pb.RemoveRangePb(
                        inode_id=job.inode_id,
                        chain_id=chain.chain_id,
                        chain_version=chain.chain_version,
                        first_index=job.first_index,
                        end_index=CHUNK_COUNT_MAX,
                        truncate_ver=job.truncate_ver,
                    )
                    for job, chain in part
                ],
                chunk_count_max=REMOVE_CHUNK_COUNT_MAX,
                client_id=self._client_id,
            )
            received = await self._nodes.call(node_id, services.STORAGE_REMOVE_CHUNKS, request)
            for (job, _), result in zip(part, received.message.results, strict=True):
                if result.status != Status.OK:
                    outcome.fail([job], decode_error(result.status, result.detail.encode()))
                elif result.has_more:
                    outcome.left.append(job)

        await self._at_heads(info, jobs, ask, outcome)
        return outcome

    def _last_chunk_round(
        self, found: dict[Hashable, pb.LastChunkResultPb], *, is_next_wanted: bool = False
    ) -> "Callable[[RoutingInfo, Sequence[ChainJob]], Awaitable[Outcome]]":
        """Return a round that puts each job's last chunk into `found`."""

        async def run_round(info: RoutingInfo, jobs: Sequence[ChainJob]) -> Outcome:
            outcome = Outcome()

            async def ask(node_id: NodeId, part: list[tuple[ChainJob, Chain]]) -> None:
                request = pb.QueryLastChunkReq(
                    queries=[
                        pb.LastChunkQueryPb(
                            inode_id=job.inode_id,
                            chain_id=chain.chain_id,
                            chain_version=chain.chain_version,
                            is_length_only=is_next_wanted,
                            is_next_wanted=is_next_wanted,
                            first_index=job.first_index,
                        )
                        for job, chain in part
                    ]
                )
                received = await self._nodes.call(
                    node_id, services.STORAGE_QUERY_LAST_CHUNK, request
                )
                for (job, _), result in zip(part, received.message.results, strict=True):
                    if result.status != Status.OK:
                        outcome.fail([job], decode_error(result.status, result.detail.encode()))
                    else:
                        found[job] = result

            await self._at_heads(info, jobs, ask, outcome)
            return outcome

        return run_round


class Outcome:
    """What one round left to do, and why."""

    def __init__(self) -> None:
        self.left: list[ChainJob] = []
        self.errors: list[FsError] = []

    def fail(self, jobs: Sequence[ChainJob], error: FsError) -> None:
        """Keep jobs for the next round; a job that is kept already is not kept twice."""
        self.left.extend(job for job in jobs if job not in self.left)
        self.errors.append(error)
