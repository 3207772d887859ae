"""Chunks and the files they belong to.

Finds chunks without an inode, beyond the end of their file, on a chain that is not their file's, of
a file that is inline; files on chains that do not exist, or that take other space than they say
(fsck_space.py); sessions of clients that are gone.

Order matters: chunks are listed first, then the state of the metadata is read, then suspects are
looked at again on their target.  An inode exists before its first chunk and is never made twice,
and its GC record stays until its last chunk is gone; so a chunk listed before and after, whose file
is neither there nor being removed in between, belongs to nobody.

That a chunk is missing cannot be known from metadata: a hole is legal.  What is missing from one
replica and there on another is found by comparing replicas (chunks.py).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..kv.api import KvEngine, Transaction, prefix_end
from ..kv.transact import snapshot_read
from ..meta import records
from ..meta.content_driver import file_ref
from ..meta.fsck import LONG_AGO_NS
from ..meta.fsck_facts import ChunkRun, Facts, Finding, Kind
from ..meta.fsck_scan import add_chunks
from ..rpc.api import Channels
from ..runtime.sorter import Sorter
from ..schema import services
from ..schema.ids import ChainId, ChunkId, InodeId, TargetId
from ..schema.layout import chains_in_use
from ..schema.proto import common_pb2 as pb
from ..schema.proto import storage_pb2
from ..schema.proto.record_pb2 import FileSessionRecordPb
from ..schema.routing import RoutingInfo
from ..schema.status import FsError, Status
from .chunks import target_chunks
from .fsck_space import space_of, wrong_space

REMOVED_AT_ONCE = 1000
DEAD_SESSION_NS = 600 * 10**9
"""A session of a client that is gone is ended within a minute or two;
after so long nobody does it.
"""


@dataclass(slots=True)
class Cluster:
    """What a check needs of a running cluster."""

    channels: Channels
    info: RoutingInfo
    living_clients: frozenset[str] | None
    """Clients with a session; None: the manager does not know all of them yet."""
    now_ns: int
    chunk_count: int = 0


async def list_all(cluster: Cluster, sorter: Sorter) -> list[Finding]:
    """Note all chunks of all serving targets; return notices of targets
    that cannot be looked at.
    """
    notices = []
    for chain in sorted(cluster.info.chains.values(), key=lambda c: c.chain_id):
        for member in chain.targets:
            why = "does not serve"
            if member.target_id in chain.serving:
                try:
                    await _list_target(cluster, sorter, member.target_id, chain.chain_id)
                    continue
                except FsError as error:
                    why = str(error)
            text = f"target {member.target_id} of chain {chain.chain_id}: {why}"
            notices.append(Finding(Kind.NOT_LOOKED_AT, 0, text, is_notice=True))
    return notices


async def _list_target(cluster: Cluster, sorter: Sorter, target_id: int, chain_id: int) -> None:
    inode_id, first, last, count, byte_count = 0, 0, 0, 0, 0
    async for chunk_id, (commit_ver, _, length, _) in target_chunks(
        cluster.channels, cluster.info, TargetId(target_id)
    ):
        if not commit_ver:
            continue  # being made
        cluster.chunk_count += 1
        if chunk_id.inode_id != inode_id:
            if count:
                run = ChunkRun(target_id, chain_id, first, last, count, byte_count)
                add_chunks(sorter, inode_id, run)
            inode_id, first, count, byte_count = chunk_id.inode_id, chunk_id.index, 0, 0
        last, count, byte_count = chunk_id.index, count + 1, byte_count + length
    if count:
        run = ChunkRun(target_id, chain_id, first, last, count, byte_count)
        add_chunks(sorter, inode_id, run)


class ChunkRules:
    """Judges one inode together with its chunks."""

    def __init__(self, cluster: Cluster, *, is_complete: bool) -> None:
        """Without all targets (`is_complete`) nothing is said of files without chunks."""
        self._cluster = cluster
        self._is_complete = is_complete

    def judge(self, facts: Facts) -> Iterator[Finding]:
        """Yield what is wrong; what has `chunks` is a suspicion until `is_still_so`."""
        yield from self._sessions(facts)
        inode = facts.inode
        if inode is None or inode.type != pb.FILE:
            # A GC record says that somebody is about to remove them.
            yield from () if facts.gc else self._orphans(facts)
        elif inode.nlink or not facts.gc:
            yield from self._of_file(facts, inode)

    def _orphans(self, facts: Facts) -> Iterator[Finding]:
        what = "is no file" if facts.inode else "does not exist"
        for run in facts.chunk_runs:
            text = f"{_text(facts, run)}: inode {facts.inode_id:#x} {what}"
            yield Finding(Kind.ORPHAN_CHUNK, facts.inode_id, text, chunks=run)

    def _of_file(self, facts: Facts, inode: pb.InodePb) -> Iterator[Finding]:
        info = self._cluster.info
        try:
            chains = _chains_of(info, facts.inode_id, inode)
        except FsError as error:
            yield Finding(Kind.NO_CHAIN, facts.inode_id, f"{facts.text}: {error}")
            return
        for chain_id in chains:
            if chain_id not in info.chains:
                text = f"{facts.text}: chain {chain_id} does not exist"
                yield Finding(Kind.NO_CHAIN, facts.inode_id, text)
        for run in facts.chunk_runs:
            if run.chain_id not in chains:
                text = f"{_text(facts, run)}: its file is not on chain {run.chain_id}"
                yield Finding(Kind.MISPLACED_CHUNK, facts.inode_id, text, chunks=run)
            elif inode.file.is_inline and not inode.file.truncate_pending:
                text = f"{_text(facts, run)}: the bytes of its file are in the metadata store"
                yield Finding(
                    Kind.MISPLACED_CHUNK, facts.inode_id, text, guards=(facts.seen,), chunks=run
                )
        if inode.file.is_inline:
            return
        if not inode.file.truncate_pending and not facts.rows.get(records.FILE_SESSION):
            yield from self._lengths(facts, inode)
            yield from wrong_space(info, chains, facts, inode)

    def _lengths(self, facts: Facts, inode: pb.InodePb) -> Iterator[Finding]:
        part = inode.file
        for run in facts.chunk_runs:
            if run.last_index >= end_index(part):
                yield _beyond_end(facts, inode, run)
        if part.length and not facts.chunk_runs and self._is_complete:
            text = (
                f"{facts.text}: {part.length} bytes, no chunk (right for a file that is one hole)"
            )
            yield Finding(Kind.NO_CHUNKS, facts.inode_id, text, is_notice=True)

    def _sessions(self, facts: Facts) -> Iterator[Finding]:
        living = self._cluster.living_clients
        if living is None:
            return
        for _, value in facts.rows.get(records.FILE_SESSION, ()):
            record = FileSessionRecordPb.FromString(value)
            age_ns = self._cluster.now_ns - record.created_ns
            if record.client_id not in living and age_ns > DEAD_SESSION_NS:
                text = (
                    f"{facts.text}: session {record.session_id} of client {record.client_id}, "
                    f"which is gone, is {age_ns // 10**9} s old: does a metadata service run?"
                )
                yield Finding(Kind.DEAD_SESSION, facts.inode_id, text)


def _chains_of(info: RoutingInfo, inode_id: int, inode: pb.InodePb) -> Sequence[int]:
    """Return the chains on which chunks of a file may be;
    raises FsError when its table does not exist.
    """
    file = file_ref(InodeId(inode_id), inode.file)
    table = info.chain_table(file.layout.table_id, file.layout.table_version)
    return chains_in_use(file.layout, file.dyn_stripe, table.chain_ids)


def end_index(part: pb.FilePartPb) -> int:
    """Return the index from which on no chunk of a file may be, that nobody writes or cuts."""
    return max(1, -(-part.length // part.layout.chunk_size_bytes))


def _text(facts: Facts, run: ChunkRun) -> str:
    last = f"-{run.last_index}" if run.last_index != run.first_index else ""
    return f"chunks {facts.inode_id:#x}.{run.first_index}{last} on target {run.target_id}"


def _beyond_end(facts: Facts, inode: pb.InodePb, run: ChunkRun) -> Finding:
    """The repair begins a truncation to the present length, which a metadata service finishes."""
    changed = pb.InodePb.FromString(inode.SerializeToString())
    changed.file.truncate_ver += 1
    changed.file.truncate_pending = True
    mark = records.truncation_key(facts.inode_id)
    sessions = records.file_session_prefix(facts.inode_id)
    return Finding(
        Kind.CHUNK_BEYOND_END, facts.inode_id,
        f"{_text(facts, run)}: beyond the end of its file ({inode.file.length} bytes)",
        guards=(facts.seen, (mark, None)), empty=((sessions, prefix_end(sessions)),),
        writes=((facts.key, changed.SerializeToString()), (mark, records.pack_u64(LONG_AGO_NS))),
        chunks=run,
    )  # fmt: skip


async def _is_there(cluster: Cluster, finding: Finding) -> bool:
    """Return whether the last chunk of what was found on a target is there."""
    run = finding.chunks
    assert run is not None, finding
    node = cluster.info.node_of_target(TargetId(run.target_id))
    channel = cluster.channels.get(node.address, node_id=node.node_id)
    after = ChunkId(InodeId(finding.inode_id), run.last_index - 1).pack() if run.last_index else b""
    request = storage_pb2.ListChunksReq(
        target_id=run.target_id, inode_id=finding.inode_id, after=after, chunk_count_max=1
    )
    found = (await channel.call(services.STORAGE_LIST_CHUNKS, request)).message.chunks
    return any(chunk.commit_ver for chunk in found)


async def is_still_so(engine: KvEngine, cluster: Cluster, finding: Finding) -> bool:
    """Look at a suspect again: its chunks on their target, then its inode in one transaction.

    Raises:
        FsError: the target or the store does not answer.
    """
    if finding.space is not None:
        inode = pb.InodePb.FromString(finding.guards[0][1] or b"")
        chains = _chains_of(cluster.info, finding.inode_id, inode)
        found = await space_of(cluster.channels, cluster.info, chains, finding.inode_id)
        if found != finding.space:
            return False
    elif not await _is_there(cluster, finding):
        return False

    async def holds(tr: Transaction) -> bool:
        for key, value in finding.guards:
            if await tr.get(key, snapshot=True) != value:
                return False
        for begin, end in finding.empty:
            if await tr.get_range(begin, end, limit=1, snapshot=True):
                return False
        return True

    return await snapshot_read(engine, holds)


async def remove_orphans(cluster: Cluster, finding: Finding) -> int:
    """Remove all chunks of an inode that does not exist from one chain, on all its replicas;
    return how many.

    Raises:
        FsError: a target does not answer, or refuses.
    """
    run = finding.chunks
    assert run is not None and finding.kind is Kind.ORPHAN_CHUNK, finding
    chain = cluster.info.chains[ChainId(run.chain_id)]
    node = cluster.info.node_of_target(chain.serving[0])
    channel = cluster.channels.get(node.address, node_id=node.node_id)
    wanted = storage_pb2.RemoveRangePb(
        inode_id=finding.inode_id, chain_id=chain.chain_id, chain_version=chain.chain_version
    )
    count = 0
    while True:
        request = storage_pb2.RemoveChunksReq(ranges=[wanted], chunk_count_max=REMOVED_AT_ONCE)
        reply = (await channel.call(services.STORAGE_REMOVE_CHUNKS, request)).message
        result = reply.results[0]
        if result.status:
            raise FsError(Status(result.status), result.detail)
        count += result.removed_count
        if not result.has_more:
            return count
