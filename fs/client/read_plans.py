"""Which node is asked for which rows of a ReadTable, by the kernel.

What it has to know of chains is packed once for each routing snapshot: who may be read
from, where nothing has failed.

Reads that lie one behind the other, in a chunk and in the memory, are one row: to the storage node
one read, of which the disk, the checksums and the messages have as much to do as of one read of
that size, not of one for each.

Invariant: a plan is that of `StorageReads` without anything to avoid, but for rows that are joined,
or there is none, and the ordinary way is to be gone.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from google.protobuf.message import Message

from ..kernels.batches import (
    CHAIN_NODES,
    ENTRY,
    FILE_LAYOUT,
    REPLICAS_MAX,
    ROW,
    SLOT,
    plan_reads,
)
from ..schema.config import ClientSection
from ..schema.ids import NodeId, TargetId
from ..schema.layout import FileRef, Layout, chain_of_chunk
from ..schema.proto import storage_pb2 as pb
from ..schema.routing import RoutingInfo
from ..schema.status import FsError
from .read_table import ReadTable
from .routing_math import (
    NEIGHBOUR_BYTES,
    NO_TARGET,
    TOGETHER_BYTES,
    Piece,
    readable_targets,
    table_chain_ids,
)

_COLUMNS: Final = (
    "inode_ids",
    "chunk_indexes",
    "chain_ids",
    "chain_versions",
    "offsets",
    "lengths",
)
_PACKED: Final = 2
"""The wire type of a column."""


def tags_of(message: type[Message], *names: str) -> bytes:
    """Return what stands before each of some columns of a message on the wire."""
    fields = message.DESCRIPTOR.fields_by_name
    return bytes(fields[name].number << 3 | _PACKED for name in names)


_TAGS: Final = tags_of(pb.BatchReadReq, *_COLUMNS)
_LAYOUTS_MAX: Final = 1024
"""Files whose slots are kept."""


@dataclass(slots=True)
class TableRequest:
    """What one node is asked for."""

    node_id: NodeId
    message: bytes
    """The columns of a BatchReadReq."""
    rows: bytes
    """`fs.kernels.batches.ROW` by row."""
    byte_count: int
    """Of all rows."""
    info: RoutingInfo
    """What it was planned by."""
    _made: list[list[Piece]] | None = None

    @property
    def row_count(self) -> int:
        """How many things it asks for."""
        return len(self.rows) // ROW.size

    def pieces(self, table: ReadTable) -> list[Piece]:
        """Return what is asked for as the ordinary way has it."""
        return [piece for row in self.pieces_by_row(table) for piece in row]

    def pieces_by_row(self, table: ReadTable) -> list[list[Piece]]:
        """Return the pieces that each row joins, or the one that it is; made once."""
        if self._made is None:
            self._made = self._pieces(table)
        return self._made

    def _pieces(self, table: ReadTable) -> list[list[Piece]]:
        request = pb.BatchReadReq.FromString(self.message)
        columns = (getattr(request, name) for name in _COLUMNS)
        pieces: list[list[Piece]] = []
        rows = zip(ROW.iter_unpack(self.rows), *columns, strict=True)
        for (place, length, position), inode_id, index, chain_id, chain_version, offset, _ in rows:
            target_id = self._target(chain_id)
            row = []
            for position_of_part, begin, end in _parts_of(table, place, length, position):
                read = table[position_of_part]
                piece = Piece(
                    inode_id=inode_id,
                    chunk_index=index,
                    chain_id=chain_id,
                    offset=offset + begin - place,
                    buffer=table.view[begin:end],
                    chunk_size_bytes=read.file.layout.chunk_size_bytes,
                    owner=read,
                    chain_version=chain_version,
                    target_id=target_id,
                    node_id=self.node_id,
                )
                row.append(piece)
            pieces.append(row)
        return pieces

    def _target(self, chain_id: int) -> TargetId:
        readable = readable_targets(self.info, self.info.chain(chain_id), ())
        return next((t for t, node_id in readable if node_id == self.node_id), NO_TARGET)


def _parts_of(
    table: ReadTable, place: int, length: int, position: int
) -> Iterator[tuple[int, int, int]]:
    """Yield which entries a row is of, from one on, and from where to where in the memory."""
    begin, row_end = place, place + length
    while begin < row_end:
        _, _, entry_place, entry_length, _ = ENTRY.unpack_from(table.entries, position * ENTRY.size)
        end = min(row_end, entry_place + entry_length)
        yield position, begin, end
        begin, position = end, position + 1


class ReadPlans:
    """Plans by one routing snapshot after the other."""

    def __init__(self) -> None:
        self._info: RoutingInfo | None = None
        self._nodes: list[NodeId] = []
        self._node_numbers: dict[NodeId, int] = {}
        self._chains = bytearray()
        self._chain_numbers: dict[int, int] = {}
        self._slots: dict[Layout, bytes] = {}
        """Empty: of chains that the kernel cannot choose from."""
        self._last_layout: Layout | None = None
        self._last_slots = b""

    def plan(
        self, info: RoutingInfo, table: ReadTable, start: int, section: ClientSection
    ) -> list[TableRequest] | None:
        """Return the requests for a table; None: it takes the ordinary way.

        Args:
            info: the newest snapshot.
            table: what is to be read.
            start: where to begin among equal nodes.
            section: its bounds on batches count.
        """
        if info is not self._info:
            self._forget(info)
        layouts, slots, first = [], [], 0
        for key, file in table.files.items():
            layout = file.layout
            if layout is self._last_layout:  # finding it by its fields costs more than the rest
                of_file = self._last_slots
            else:
                of_file = self._slots_of(info, file)
                self._last_layout, self._last_slots = layout, of_file
            if not of_file:
                return None
            layouts.append(
                FILE_LAYOUT.pack(
                    key, file.inode_id, layout.chunk_size_bytes, layout.stripe_size, first
                )
            )
            slots.append(of_file)
            first += layout.stripe_size
        found = plan_reads(
            table.entries,
            b"".join(layouts),
            b"".join(slots),
            self._chains,
            len(self._nodes),
            start,
            TOGETHER_BYTES,
            NEIGHBOUR_BYTES,
            section.batch_count_max,
            section.batch_bytes_max,
            _TAGS,
        )
        if found is None:
            return None
        nodes, requests = self._nodes, []
        for node, message, rows, byte_count in found:  # a comprehension would be one call more
            requests.append(TableRequest(nodes[node], message, rows, byte_count, info))
        return requests

    def _forget(self, info: RoutingInfo) -> None:
        self._info = info
        self._last_layout = None
        self._nodes, self._node_numbers = [], {}
        self._chains, self._chain_numbers = bytearray(), {}
        self._slots = {}

    def _slots_of(self, info: RoutingInfo, file: FileRef) -> bytes:
        layout = file.layout
        found = self._slots.get(layout)
        if found is not None:
            return found
        if len(self._slots) >= _LAYOUTS_MAX:
            self._slots.clear()
        try:
            chain_ids = table_chain_ids(info, file)
            numbers = [
                self._number_of(info, chain_of_chunk(layout, slot, chain_ids))
                for slot in range(layout.stripe_size)
            ]
        except FsError:  # the ordinary way meets it, too, if it matters, and says what to do
            numbers = []
        found = self._slots[layout] = b"".join(map(SLOT.pack, numbers))
        return found

    def _number_of(self, info: RoutingInfo, chain_id: int) -> int:
        """Return the place of a chain among those that are packed;
        raises FsError: it cannot be read from.
        """
        number = self._chain_numbers.get(chain_id)
        if number is not None:
            return number
        chain = info.chain(chain_id)
        nodes = [self._node_number(node) for _, node in readable_targets(info, chain, ())]
        nodes = nodes[:REPLICAS_MAX]  # more than a chain can have
        rest = [0] * (REPLICAS_MAX - len(nodes))
        self._chains += CHAIN_NODES.pack(chain_id, chain.chain_version, len(nodes), *nodes, *rest)
        number = self._chain_numbers[chain_id] = len(self._chain_numbers)
        return number

    def _node_number(self, node_id: NodeId) -> int:
        number = self._node_numbers.setdefault(node_id, len(self._nodes))
        if number == len(self._nodes):
            self._nodes.append(node_id)
        return number
