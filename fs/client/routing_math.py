"""Which node gets which part of a storage request: pure functions over one routing snapshot.

Invariants:
    - The batches of `cut_batches` hold every piece once, and no batch mixes nodes.
    - A target in `avoid` is chosen only when nothing else of its chain serves.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from ..schema.ids import ChainId, NodeId, TargetId
from ..schema.layout import (
    MAX_FILE_LENGTH_BYTES,
    FileRef,
    chain_of_chunk,
    chains_in_use,
    extents,
)
from ..schema.routing import Chain, RoutingInfo
from ..schema.status import FsError, Status
from .file_read import FileRead

NO_TARGET = TargetId(0)
NO_NODE = NodeId(0)

TOGETHER_BYTES: Final = 512 * 1024
"""A request of few bytes costs more by itself than they do;
what so many cost in reads of 4 KiB one node has done in some half a millisecond.
"""

NEIGHBOUR_BYTES: Final = 4 * 1024 * 1024
"""Neighbouring chunks of one read are one request up to this:
a request costs both sides as much by itself as copying a MiB.
"""

AHEAD_BYTES: Final = 2 * NEIGHBOUR_BYTES
"""The same of reads for which nobody waits."""


def neighbour_bytes_of(reads: Sequence[FileRead]) -> int:
    """Return up to how many bytes neighbouring chunks of each of some reads are one request."""
    return AHEAD_BYTES if all(read.is_ahead for read in reads) else NEIGHBOUR_BYTES


class Piece(msgspec.Struct):
    """The part of a read or write that lies in one chunk."""

    inode_id: int
    chunk_index: int
    chain_id: int
    offset: int
    """Bytes from the start of the chunk."""
    buffer: memoryview
    chunk_size_bytes: int
    owner: FileRead | None = None
    chain_version: int = 0
    target_id: TargetId = NO_TARGET
    node_id: NodeId = NO_NODE

    @property
    def name(self) -> str:
        """For messages to people."""
        return f"chunk {self.inode_id}.{self.chunk_index} chain {self.chain_id}"


@dataclass(slots=True)
class Batch:
    """Pieces for one node."""

    node_id: NodeId
    pieces: list[Piece]
    bytes: int = 0


def table_chain_ids(info: RoutingInfo, file: FileRef) -> Sequence[ChainId]:
    """Return the chain table of a file's layout; raises FsError(CHAIN_TABLE_UNKNOWN)."""
    return info.chain_table(file.layout.table_id, file.layout.table_version).chain_ids


def file_chains(info: RoutingInfo, file: FileRef) -> list[int]:
    """Return the distinct chains that may hold chunks of a file."""
    return chains_in_use(file.layout, file.dyn_stripe, table_chain_ids(info, file))


def cut_file_range(
    info: RoutingInfo, file: FileRef, offset: int, buffer: memoryview
) -> list[Piece]:
    """Cut a byte range of a file, backed by `buffer`, into one piece per chunk, in file order."""
    return cut_range(table_chain_ids(info, file), file, offset, buffer, None)


def cut_range(
    chain_ids: Sequence[ChainId],
    file: FileRef,
    offset: int,
    buffer: memoryview,
    owner: FileRead | None,
) -> list[Piece]:
    """As `cut_file_range`, for one who has the chain table of the file's layout at hand."""
    layout = file.layout
    size = layout.chunk_size_bytes
    index, in_chunk = divmod(offset, size)
    if 0 < len(buffer) <= size - in_chunk and 0 <= offset <= MAX_FILE_LENGTH_BYTES - size:
        chain_id = chain_of_chunk(layout, index, chain_ids)
        return [Piece(file.inode_id, index, chain_id, in_chunk, buffer, size, owner)]
    return [
        Piece(
            inode_id=file.inode_id,
            chunk_index=extent.chunk_index,
            chain_id=chain_of_chunk(layout, extent.chunk_index, chain_ids),
            offset=extent.offset,
            buffer=buffer[extent.file_offset - offset :][: extent.length],
            chunk_size_bytes=size,
            owner=owner,
        )
        for extent in extents(size, offset, len(buffer))
    ]


def cut_reads(info: RoutingInfo, reads: Sequence[FileRead]) -> list[Piece]:
    """Cut reads into one piece per chunk, in their order;
    mostly each lies in one chunk, and many in one file.

    Raises:
        FsError: as `cut_range` and `table_chain_ids`.
    """
    pieces: list[Piece] = []
    file, chain_ids, size, stripe_size = None, tuple[ChainId, ...](), 1, 1
    chain_of_slot: dict[int, int] = {}
    for read in reads:
        read.hole_bytes = 0
        if read.file is not file:
            file, chain_of_slot = read.file, {}
            chain_ids = tuple(table_chain_ids(info, file))
            size, stripe_size = file.layout.chunk_size_bytes, file.layout.stripe_size
        offset, buffer = read.offset, read.buffer
        index, in_chunk = divmod(offset, size)
        if (
            not 0 < len(buffer) <= size - in_chunk
            or not 0 <= offset <= MAX_FILE_LENGTH_BYTES - size
        ):
            pieces += cut_range(chain_ids, file, offset, buffer, read)
            continue
        slot = index % stripe_size
        chain_id = chain_of_slot.get(slot)
        if chain_id is None:
            chain_id = chain_of_slot[slot] = chain_of_chunk(file.layout, index, chain_ids)
        pieces.append(Piece(file.inode_id, index, chain_id, in_chunk, buffer, size, read))
    return pieces


def readable_targets(
    info: RoutingInfo, chain: Chain, avoid: Collection[tuple[TargetId, int]]
) -> list[tuple[TargetId, NodeId]]:
    """Return the serving targets of a chain with their nodes; never an empty list.

    Args:
        info: the snapshot `chain` is from.
        chain: the chain to read from.
        avoid: (target, chain version) pairs that failed in this operation.

    Raises:
        FsError: CHAIN_UNAVAILABLE when no target of the chain serves.
    """
    serving = chain.serving
    if not serving:
        raise FsError(Status.CHAIN_UNAVAILABLE, f"chain {chain.chain_id} has no serving target")
    good = [t for t in serving if (t, chain.chain_version) not in avoid] or serving
    return [(t, info.target(t).node_id) for t in good]


def choose_target(
    candidates: Sequence[tuple[TargetId, NodeId]], *, load: Mapping[NodeId, int], start: int
) -> tuple[TargetId, NodeId]:
    """Return the candidate whose node is to have the next piece.

    As long as a request is small, what it costs by itself counts for more than whose turn it
    is: so a node that has something to do, but less than TOGETHER_BYTES, comes before others,
    and then the one with the least.

    Args:
        candidates: as from `readable_targets`.
        load: bytes already given to each node in this round.
        start: where to begin among equals, so that equal loads spread; the same throughout a round.
    """
    best, least = None, math.inf
    count = len(candidates)
    for number in range(start, start + count):
        candidate = candidates[number % count]
        given = load.get(candidate[1], 0)
        if 0 < given < TOGETHER_BYTES:
            return candidate
        if given < least:
            best, least = candidate, given
    assert best is not None, candidates
    return best


def target_at(
    candidates: Sequence[tuple[TargetId, NodeId]], node_id: NodeId
) -> tuple[TargetId, NodeId] | None:
    """Return the candidate on a node; None: it has none."""
    return next((candidate for candidate in candidates if candidate[1] == node_id), None)


def head_of(chain: Chain) -> TargetId:
    """Return the target that takes updates; raises FsError(CHAIN_UNAVAILABLE)."""
    serving = chain.serving
    if not serving:
        raise FsError(Status.CHAIN_UNAVAILABLE, f"chain {chain.chain_id} has no serving target")
    return serving[0]


def cut_batches(pieces: Sequence[Piece], *, count_max: int, bytes_max: int) -> list[Batch]:
    """Group pieces by the node of their chosen target, in batches within both limits."""
    batches: list[Batch] = []
    open_batches: dict[NodeId, Batch] = {}
    for piece in pieces:
        node_id, length = piece.node_id, len(piece.buffer)
        batch = open_batches.get(node_id)
        if batch is None or len(batch.pieces) >= count_max or batch.bytes + length > bytes_max:
            batch = open_batches[node_id] = Batch(node_id, [])
            batches.append(batch)
        batch.pieces.append(piece)
        batch.bytes += length
    return batches
