"""Batched reads: cut by chunk, choose a replica for each, one request per node and batch.

Invariants:
    - Bytes reach the user's buffers straight from the connection; they count only once their
      checksum (client.verify_reads) has been checked.
    - Of a node that kept a begun read for a call's whole limit others are asked for a while, if
      they have the same; of one that is cut off from here, for as long as it is.
    - A chunk, or the part of one, that was never written reads as zeros; a damaged or unreachable
      copy never does: it is read elsewhere, or the read fails.
"""

import logging
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any

import trio
from google.protobuf.message import DecodeError
from msgspec.structs import replace

from ..kernels.batches import ENTRY, have_come, put_reply
from ..node.api import RoutingView
from ..rpc.api import Lending, Received, UnderWay
from ..rpc.frame import decode_error
from ..runtime.ports import RunBlocking, Runtime
from ..runtime.readiness import current_time
from ..schema import services
from ..schema.config import ClientSection
from ..schema.ids import ChainId, NodeId, TargetId
from ..schema.proto import storage_pb2 as pb
from ..schema.read_columns import read_results
from ..schema.routing import RoutingInfo
from ..schema.status import FsError, Retry, Status
from .asked_reads import (
    LENT_BYTES_MIN,
    Failures,
    ask,
    finish,
    finish_rows,
    is_apart,
    lending_of,
    rows_of,
    scatter,
    windows,
)
from .direct_threads import DirectThreads, LeftBehindError
from .file_read import FileRead
from .node_calls import NodeCalls
from .patience import same_error
from .read_plans import ReadPlans, TableRequest, tags_of
from .read_table import ReadTable
from .retry import RetryBudget
from .routing_math import (
    TOGETHER_BYTES,
    Batch,
    Piece,
    choose_target,
    cut_batches,
    cut_reads,
    neighbour_bytes_of,
    readable_targets,
    target_at,
)
from .side_by_side import each_or_error

log = logging.getLogger(__name__)

BEGUN_BYTES_MAX = 4 * 1024
"""What `Channel.begin` is for, where nobody says otherwise."""

BEGUN_TOGETHER_COUNT = 64
"""So many begun reads, if they come one after the other, ask the same replica of a chain: it
is quicker with what it has just done, whose code and tables its processor still holds, and
others have their turn soon enough.
"""

STARTS = 1 << 16
"""Many more than a chain has replicas."""

WARM_BATCHES_AT_ONCE = 4
"""So that reads that somebody waits for are not held up by many that nobody does."""

APART_COUNT_MAX = 2
"""So many threads read what is lent: one copies more in a second than an event loop answers."""

Readable = tuple[int, list[tuple[TargetId, NodeId]]]
"""The version of a chain, and who may be read from."""

_FLAGS = {
    (is_relaxed, want_checksums): pb.BatchReadReq(
        is_relaxed=is_relaxed, want_checksums=want_checksums
    ).SerializeToString()
    for is_relaxed in (False, True)
    for want_checksums in (False, True)
}
"""What stands behind the columns of a request: messages one after the other are one."""

REPLY_TAGS = tags_of(pb.BatchReadRsp, "lengths", "commit_vers", "checksums")
"""Of the columns of a reply in which nothing failed."""


class StorageReads:
    """The read side of the storage client."""

    def __init__(
        self, nodes: NodeCalls, *, routing: RoutingView, runtime: Runtime, section: ClientSection
    ) -> None:
        self._nodes = nodes
        self._routing = routing
        self._runtime = runtime
        self._section = section
        self._run_apart = runtime.run_blocking
        if runtime.own_threads is not None:
            # Not those in which others may wait, for disks or for the kernel: that
            # may be what a read is to end.
            self._run_apart, _ = runtime.own_threads(APART_COUNT_MAX)
        self._direct = DirectThreads(runtime)
        self._start = 0
        """Where to begin among equal replicas of a chain."""
        self._begun_start = runtime.random.randrange(STARTS)
        """The same of begun reads, which stay there for a while:
        clients that begin at once begin at different ones.
        """
        self._begun_left = 0
        """So many more of them may ask those that the last one asked."""
        self._begun_count = 0
        """Of them under way."""
        self._silent_until_s: dict[NodeId, float] = {}
        """Of nodes that have not answered a begun read,
        for as long as that has lasted; trio time.
        """
        self._plans = ReadPlans()
        self._known_info: RoutingInfo | None = None
        self._known: dict[int, Readable] = {}
        """Of chains in `_known_info`."""

    def adopt(self, section: ClientSection) -> None:
        """Go on with other settings."""
        self._section = section

    async def read(self, reads: Sequence[FileRead], *, is_relaxed: bool = False) -> None:
        """See `fs.client.api.ChunkStore.read`."""
        budget = RetryBudget(self._section, self._runtime)
        avoid: set[tuple[TargetId, int]] = set()
        damaged: set[tuple[str, int, TargetId]] = set()
        neighbour_bytes_max = 0 if isinstance(reads, ReadTable) else neighbour_bytes_of(reads)
        is_ahead = False
        table, requests = self._by_rows(reads)
        if table is None:
            pieces = cut_reads(self._routing.info, reads)
            is_ahead = all(read.is_ahead for read in reads)
            if self._silent_until_s or self._nodes.unreached:
                avoid = self._silent_targets(pieces)
        else:
            failures, unjoined = await self._run_table(table, requests, is_relaxed)
            pieces = unjoined + await self._judge(failures, avoid, damaged, budget)
        while pieces:
            # 1. choose a target for each piece and group by node
            batches, failures = self._plan(pieces, avoid, neighbour_bytes_max)
            # 2. one request per batch
            failures += await self._run(batches, is_relaxed, is_ahead=is_ahead)
            # 3. what failed: elsewhere, later, or never
            pieces = await self._judge(failures, avoid, damaged, budget)

    def _by_rows(
        self, reads: Sequence[FileRead]
    ) -> tuple[ReadTable | None, Sequence[TableRequest]]:
        """Return a table and what is asked for it, where that can be planned by rows."""
        if self._silent_until_s and not self._silent_nodes():
            self._silent_until_s.clear()
        is_anybody_silent = self._silent_until_s or self._nodes.unreached
        if isinstance(reads, ReadTable) and not is_anybody_silent:
            self._start += 1
            requests = self._plans.plan(self._routing.info, reads, self._start, self._section)
            if requests is not None:
                return reads, requests
        return None, ()

    def _silent_nodes(self) -> set[NodeId]:
        now_s = current_time()
        silent = {node for node, until_s in self._silent_until_s.items() if now_s < until_s}
        return silent.union(self._nodes.unreached)

    def _silent_targets(self, pieces: Sequence[Piece]) -> set[tuple[TargetId, int]]:
        """Return what is to be avoided, as of `readable_targets`, because its node is silent."""
        info, nodes = self._routing.info, self._silent_nodes()
        chain_ids = {ChainId(piece.chain_id) for piece in pieces}
        chains = [info.chains[chain_id] for chain_id in chain_ids if chain_id in info.chains]
        return {
            (target_id, chain.chain_version)
            for chain in chains
            for target_id in chain.serving
            if info.target(target_id).node_id in nodes
        }

    async def _run_table(
        self, table: ReadTable, requests: Sequence[TableRequest], is_relaxed: bool
    ) -> tuple[Failures, list[Piece]]:
        """Return what has failed, and what is to be asked for once more,
        each piece of a row by itself.
        """
        failures: Failures = []
        unjoined: list[Piece] = []
        how = is_relaxed, failures, unjoined
        if len(requests) == 1:
            await self._run_rows(table, requests[0], *how)
            return failures, unjoined
        async with trio.open_nursery() as nursery:
            for request in requests[1:]:
                nursery.start_soon(self._run_rows, table, request, *how)
            await self._run_rows(table, requests[0], *how)  # a task less
        return failures, unjoined

    async def _run_rows(
        self,
        table: ReadTable,
        one: TableRequest,
        is_relaxed: bool,
        failures: Failures,
        unjoined: list[Piece],
    ) -> None:
        """Ask for some rows, as `_run_batch`; an object for each is made where not all of them
        are there, whole and good.
        """
        verifies = self._section.verify_reads
        byte_count, row_count = one.byte_count, one.row_count
        lending = lending_of(byte_count, row_count) if verifies else Lending.NOT
        request = one.message + _FLAGS[is_relaxed, verifies]
        try:
            reply = await ask(
                self._nodes,
                one.node_id,
                request,
                partial(windows, table, one),
                lending=lending,
                buffers_of=partial(rows_of, table, one),
                run_blocking=self._apart(byte_count, row_count),
            )
            if reply is None:
                return
            checksums = reply.checksums[:] if verifies else None
            has_come = have_come(table.view, one.rows, reply.lengths[:], checksums)
            if reply.failures or not has_come:
                wrong, again = finish_rows(table, one, reply, verifies=verifies)
                failures += wrong
                unjoined += again
        except FsError as error:
            failures.extend(_all_failed(one.pieces(table), error))

    def _apart(self, byte_count: int, piece_count: int) -> RunBlocking | None:
        """Return what is to read a reply of so many bytes for so many pieces, if it is lent;
        None: the task that asks.
        """
        return self._run_apart if is_apart(byte_count, piece_count) else None

    def begin(
        self,
        table: ReadTable,
        on_end: Callable[[bool], None],
        *,
        is_relaxed: bool = False,
        bytes_max: int = BEGUN_BYTES_MAX,
    ) -> UnderWay | None:
        """See `fs.client.api.ChunkStore.begin_read`."""
        byte_count = 0
        for _, _, _, length, _ in ENTRY.iter_unpack(table.entries):
            byte_count += length
        if byte_count > bytes_max:
            return None
        if byte_count >= LENT_BYTES_MIN and lending_of(byte_count, len(table)) is not Lending.NOT:
            return None
        section = self._section
        verifies = section.verify_reads  # as of now: later the reply may lack checksums
        if self._begun_count or self._begun_left < 1:
            self._begun_start += 1
            self._begun_left = BEGUN_TOGETHER_COUNT
        start = self._begun_start
        requests = self._plans.plan(self._routing.info, table, start, section)
        if requests is None or len(requests) != 1:
            return None
        (one,) = requests
        is_anybody_silent = self._silent_until_s or self._nodes.unreached
        if is_anybody_silent and one.node_id in self._silent_nodes():
            self._begun_left = 0  # the next one begins at another
            return None

        # Quoted: they would be evaluated for every call.
        def end(received: "Received[Any] | None", error: "FsError | None") -> None:
            self._begun_count -= 1
            if error is not None and error.status is Status.RPC_TIMEOUT:
                self._silent_until_s[one.node_id] = current_time() + section.call_timeout_s
            is_done = received is not None and self._has_come(
                table, one, received, verifies=verifies
            )
            if not is_done:
                self._begun_left = 0  # it may be silent, or damaged: another one is asked next
            on_end(is_done)

        message = one.message + _FLAGS[is_relaxed, verifies]
        begun: UnderWay | None = None
        try:
            begun = self._nodes.begin(
                one.node_id,
                services.STORAGE_BATCH_READ,
                message,
                end,
                is_packed=True,
                reply_bytes_max=max(byte_count, BEGUN_BYTES_MAX),
            )
        except FsError as error:  # `read` meets it, too, and says what to do
            log.debug("a read that cannot be begun: %s", error)
        if begun is None:
            # So that `read` asks the same node, and connects to it: else one in two, always of
            # other nodes, could never be begun.
            self._start, self._begun_left = start - 1, 0
        else:
            self._begun_count += 1
            self._begun_left -= 1
        return begun

    def _has_come(
        self,
        table: ReadTable,
        one: TableRequest,
        received: Received[Any],
        *,
        verifies: bool,
    ) -> bool:
        """Put what has come where it belongs; False: `read` has to be asked."""
        message, payload = received.message, received.payload
        try:
            if put_reply(table.view, one.rows, message, REPLY_TAGS, payload, verifies):
                return True  # mostly all of it is there, whole and good
            reply, start = pb.BatchReadRsp.FromString(message), 0
            for window in scatter(rows_of(table, one), reply, len(payload)):
                end = start + len(window)
                window[:] = payload[start:end]
                start = end
            return not any(finish_rows(table, one, reply, verifies=verifies))
        except (FsError, DecodeError) as error:
            log.debug("a begun read: %s", error)
        except Exception:
            # The edge of the task that receives for all; `read` meets the bug in its own.
            log.exception("bug in a read of %d rows", one.row_count)
        return False

    def _plan(
        self,
        pieces: list[Piece],
        avoid: Collection[tuple[TargetId, int]],
        neighbour_bytes_max: int = 0,
    ) -> tuple[list[Batch], Failures]:
        """Choose a node for each piece; those of one read stay together until they
        are `neighbour_bytes_max` bytes.
        """
        info = self._routing.info
        self._start += 1
        start = self._start
        load: dict[NodeId, int] = {}
        known: dict[int, Readable] = {}
        last: dict[int, tuple[TargetId, NodeId]] = {}
        planned: list[Piece] = []
        failures: Failures = []
        owner, neighbour_bytes = None, 0
        for piece in pieces:
            found = known.get(piece.chain_id)
            if found is None:
                try:
                    found = known[piece.chain_id] = self._readable(info, piece.chain_id, avoid)
                except FsError as error:
                    failures.append((piece, error))
                    continue
            piece.chain_version, candidates = found
            chosen = None
            if planned and piece.owner is owner and neighbour_bytes < neighbour_bytes_max:
                chosen = target_at(candidates, planned[-1].node_id)
            else:
                owner, neighbour_bytes = piece.owner, 0
            neighbour_bytes += len(piece.buffer)
            if chosen is None:
                chosen = last.get(piece.chain_id)
                if chosen is None or load[chosen[1]] >= TOGETHER_BYTES:
                    chosen = choose_target(candidates, load=load, start=start)
            last[piece.chain_id] = chosen
            piece.target_id, piece.node_id = chosen
            load[chosen[1]] = load.get(chosen[1], 0) + len(piece.buffer)
            planned.append(piece)
        section = self._section
        batches = cut_batches(
            planned, count_max=section.batch_count_max, bytes_max=section.batch_bytes_max
        )
        return batches, failures

    def _readable(
        self, info: RoutingInfo, chain_id: int, avoid: Collection[tuple[TargetId, int]]
    ) -> Readable:
        """Return a chain's version and the targets to read from;
        kept for one routing snapshot, where none is to be avoided.
        """
        if info is not self._known_info:
            self._known_info = info
            self._known.clear()
        found = None if avoid else self._known.get(chain_id)
        if found is None:
            chain = info.chain(chain_id)
            found = chain.chain_version, readable_targets(info, chain, avoid)
            if not avoid:
                self._known[chain_id] = found
        return found

    async def _run(
        self, batches: list[Batch], is_relaxed: bool, *, is_ahead: bool = False
    ) -> Failures:
        failures: Failures = []
        run = partial(self._run_batch, is_ahead=is_ahead)
        if len(batches) == 1:
            await run(batches[0], is_relaxed, failures)
            return failures
        async with trio.open_nursery() as nursery:
            for batch in batches:
                nursery.start_soon(run, batch, is_relaxed, failures)
        return failures

    async def _run_batch(
        self, batch: Batch, is_relaxed: bool, failures: Failures, *, is_ahead: bool
    ) -> None:
        pieces = batch.pieces
        verifies = self._section.verify_reads  # as of now: later the reply may lack checksums
        request = _request(pieces, is_relaxed=is_relaxed, want_checksums=verifies)
        into = partial(scatter, [piece.buffer for piece in pieces])
        try:
            lending = lending_of(batch.bytes, len(pieces)) if verifies else Lending.NOT
            apart, direct = self._apart(batch.bytes, len(pieces)), self._direct
            may_be_direct = is_ahead and apart is not None and direct.has_room
            if lending is Lending.RANGES and may_be_direct:
                lending = Lending.DIRECT
            reply = await ask(
                self._nodes,
                batch.node_id,
                request,
                into,
                lending=lending,
                buffers_of=lambda: [piece.buffer for piece in pieces],
                run_blocking=apart,
                direct=direct if lending is Lending.DIRECT else None,
            )
            if reply is not None:
                failures += finish(pieces, reply, verifies=verifies)
        except LeftBehindError as error:
            failures.extend([(piece, error.with_traceback(None)) for piece in pieces])
        except FsError as error:
            failures.extend(_all_failed(pieces, error))

    async def warm(self, reads: Sequence[FileRead]) -> tuple[int, list[FsError]]:
        """See `fs.client.api.ChunkStore.warm`."""
        info = self._routing.info
        planned: list[Piece] = []
        failures: list[FsError] = []
        for piece in cut_reads(info, reads):
            try:
                chain = info.chain(piece.chain_id)
                for target_id, node_id in readable_targets(info, chain, ()):
                    copy = replace(piece, chain_version=chain.chain_version)
                    copy.target_id, copy.node_id = target_id, node_id
                    planned.append(copy)
            except FsError as error:
                failures.append(error)
        section = self._section
        batches = cut_batches(
            planned, count_max=section.batch_count_max, bytes_max=section.batch_bytes_max
        )
        calls = [partial(self._warm_batch, batch) for batch in batches]
        done = await each_or_error(calls, at_once_max=WARM_BATCHES_AT_ONCE)
        failures += [one for one in done if isinstance(one, FsError)]
        return sum(one for one in done if isinstance(one, int)), failures

    async def _warm_batch(self, batch: Batch) -> int:
        """Have one node read a batch, and drop the bytes; return how many there were."""
        request = _request(batch.pieces, is_relaxed=True, want_checksums=False)
        request.fills_cache = True
        received = await self._nodes.call(batch.node_id, services.STORAGE_BATCH_READ, request)
        results = read_results(received.message, len(batch.pieces))
        for piece, result in zip(batch.pieces, results, strict=True):
            if result.status not in {0, Status.CHUNK_NOT_FOUND}:
                raise decode_error(result.status, f"{piece.name}: {result.detail}".encode())
        return received.payload_bytes

    async def _judge(
        self,
        failures: Failures,
        avoid: set[tuple[TargetId, int]],
        damaged: set[tuple[str, int, TargetId]],
        budget: RetryBudget,
    ) -> list[Piece]:
        """Return the pieces to try again; raises the first final error.

        A failed disk (IO_ERROR) is no verdict on the bytes: its target leaves the chain or
        comes back, and is waited for like any that does not serve.  When a copy cannot be read
        but its target goes on, storage asks the others and says CHUNK_DAMAGED, which is final.
        A disk that a thread of ours waits for has the buffers (`LeftBehindError`): who wants
        the bytes asks again, for others.
        """
        if not failures:
            return []
        must_pause = False
        for piece, error in failures:
            if isinstance(error, LeftBehindError):
                raise error  # nothing else may be read into those buffers
            budget.check(error)
            log.debug("read of %s at target %d: %s", piece.name, piece.target_id, error)
            if error.status is Status.CHECKSUM_MISMATCH:
                damaged.add((piece.name, piece.offset, piece.target_id))
                chain = self._routing.info.chain(piece.chain_id)
                if chain.serving and all(
                    (piece.name, piece.offset, t) in damaged for t in chain.serving
                ):
                    # A replica that is only out of reach now would be waited for.
                    raise same_error(error)
            is_known = (piece.target_id, piece.chain_version) in avoid
            avoid.add((piece.target_id, piece.chain_version))
            if error.retry is not Retry.OTHER or is_known:
                must_pause = True
        if any(error.retry is not Retry.SAME for _, error in failures):
            await self._routing.refresh()
        if must_pause:
            await budget.pause()
        return [piece for piece, _ in failures]


def _all_failed(pieces: Sequence[Piece], error: FsError) -> Failures:
    """Return one failure for each piece, without the calls that it came through:
    they know the failures, and so the pieces' buffers.
    """
    failure = same_error(error)
    return [(piece, failure) for piece in pieces]


def _request(pieces: Sequence[Piece], *, is_relaxed: bool, want_checksums: bool) -> pb.BatchReadReq:
    request = pb.BatchReadReq(is_relaxed=is_relaxed, want_checksums=want_checksums)
    # Handed to the constructor columns cost several times as much: it
    # first finds out what they are.
    request.inode_ids.extend([piece.inode_id for piece in pieces])
    request.chunk_indexes.extend([piece.chunk_index for piece in pieces])
    request.chain_ids.extend([piece.chain_id for piece in pieces])
    request.chain_versions.extend([piece.chain_version for piece in pieces])
    request.offsets.extend([piece.offset for piece in pieces])
    request.lengths.extend([len(piece.buffer) for piece in pieces])
    return request
