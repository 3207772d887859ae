"""Which node gets which part of a storage request: pure functions over one routing snapshot.

Invariants:
    - The batches of `cut_batches` hold every piece once, and no batch mixes nodes.
    - A target in `avoid` is chosen only when nothing else of its chain serves.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from ..schema.ids import ChainId, NodeId, TargetId
from ..schema.layout import FileRef, chain_of_chunk, chains_in_use, extents
from ..schema.routing import Chain, RoutingInfo
from ..schema.status import FsError, Status
from .api import FileRead

NO_TARGET = TargetId(0)


@dataclass(slots=True)
class Piece:
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

    @property
    def name(self) -> str:
        """For messages to people."""
        return f"chunk {self.inode_id}.{self.chunk_index} chain {self.chain_id}"


@dataclass(slots=True)
class Batch:
    """Pieces for one node."""

    node_id: NodeId
    pieces: list[Piece]


def table_chain_ids(info: RoutingInfo, file: FileRef) -> Sequence[ChainId]:
    """Return the chain table of a file's layout; raises FsError(CHAIN_TABLE_UNKNOWN)."""
    return info.chain_table(file.layout.table_id, file.layout.table_version).chain_ids


def file_chains(info: RoutingInfo, file: FileRef) -> list[int]:
    """Return the distinct chains that may hold chunks of a file."""
    return chains_in_use(file.layout, file.dyn_stripe, table_chain_ids(info, file))


def cut_file_range(
    info: RoutingInfo, file: FileRef, offset: int, buffer: memoryview, owner: FileRead | None = None
) -> list[Piece]:
    """Cut a byte range of a file, backed by `buffer`, into one piece per chunk, in file order."""
    chain_ids = table_chain_ids(info, file)
    size = file.layout.chunk_size_bytes
    return [
        Piece(
            inode_id=file.inode_id,
            chunk_index=extent.chunk_index,
            chain_id=chain_of_chunk(file.layout, extent.chunk_index, chain_ids),
            offset=extent.offset,
            buffer=buffer[extent.file_offset - offset :][: extent.length],
            chunk_size_bytes=size,
            owner=owner,
        )
        for extent in extents(size, offset, len(buffer))
    ]


def choose_target(
    info: RoutingInfo,
    chain: Chain,
    *,
    load: Mapping[NodeId, int],
    avoid: Collection[tuple[TargetId, int]],
    start: int,
) -> TargetId:
    """Return the serving target of a chain whose node has the least to do.

    Args:
        info: the snapshot `chain` is from.
        chain: the chain to read from.
        load: bytes already given to each node in this round.
        avoid: (target, chain version) pairs that failed in this operation.
        start: where to begin among equals, so that equal loads spread.

    Returns:
        A target id.

    Raises:
        FsError: CHAIN_UNAVAILABLE when no target of the chain serves.
    """
    serving = chain.serving
    if not serving:
        raise FsError(Status.CHAIN_UNAVAILABLE, f"chain {chain.chain_id} has no serving target")
    good = [t for t in serving if (t, chain.chain_version) not in avoid] or list(serving)
    first = start % len(good)
    rotated = good[first:] + good[:first]
    return min(rotated, key=lambda t: load.get(info.target(t).node_id, 0))


def head_of(chain: Chain) -> TargetId:
    """Return the target that takes updates; raises FsError(CHAIN_UNAVAILABLE)."""
    serving = chain.serving
    if not serving:
        raise FsError(Status.CHAIN_UNAVAILABLE, f"chain {chain.chain_id} has no serving target")
    return serving[0]


def cut_batches(
    info: RoutingInfo, pieces: Sequence[Piece], *, count_max: int, bytes_max: int
) -> list[Batch]:
    """Group pieces by the node of their chosen target, in batches within both limits."""
    batches: list[Batch] = []
    open_batches: dict[NodeId, tuple[Batch, int]] = {}
    for piece in pieces:
        node_id = info.target(piece.target_id).node_id
        batch, filled = open_batches.get(node_id, (None, 0))
        length = len(piece.buffer)
        if batch is None or len(batch.pieces) >= count_max or filled + length > bytes_max:
            batch, filled = Batch(node_id, []), 0
            batches.append(batch)
        batch.pieces.append(piece)
        open_batches[node_id] = (batch, filled + length)
    return batches
