"""What the manager keeps about moves: which target replaces which, drains,
and the numbers given out.  Pure.

A *move* lets one target replace another one in a chain: a spare or newly made target joins,
resyncs, serves, and only then the leaving one goes.  `moves.py` decides each step; everything it
needs to go on after a change of primaries stands here and in the chains.

Invariants:
    - At most one move per chain that still changes it (`is_open`).
    - Numbers of moves and of the targets they make are never used again.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import NewType

from ..schema.ids import ChainId, NodeId, TargetId
from ..schema.proto import mgmtd_pb2 as pb
from ..schema.proto import record_pb2

MoveId = NewType("MoveId", int)
"""1..2**63-1."""


class MoveReason(IntEnum):
    """Why a target is replaced; numbers as on the wire."""

    REPLACE = 1
    """It has been offline for too long."""
    DRAIN = 2
    REBALANCE = 3


class MoveState(IntEnum):
    """How far a move is; numbers as on the wire."""

    CREATING = 1
    """The joining target is not there yet."""
    JOINING = 2
    """It is a member of the chain; when everybody serves, the leaving one goes."""
    RETIRING = 3
    """The leaving target is out of the chain; its data is being dropped."""
    CANCELLING = 4
    """The joining target leaves the chain, then its data is dropped."""


@dataclass(frozen=True, slots=True)
class Move:
    """One target replacing another in a chain."""

    move_id: MoveId
    chain_id: ChainId
    leaving: TargetId
    joining: TargetId
    node_id: NodeId
    """Where the joining target is or is to be made."""
    disk_index: int
    reason: MoveReason
    state: MoveState = MoveState.CREATING

    @property
    def is_open(self) -> bool:
        """It may still change the chain."""
        return self.state is not MoveState.RETIRING

    @property
    def retired(self) -> TargetId | None:
        """The target whose data is dropped in the end."""
        if self.state is MoveState.RETIRING:
            return self.leaving
        return self.joining if self.state is MoveState.CANCELLING else None


@dataclass(frozen=True, slots=True)
class Drain:
    """A node, or one disk of it, that every target is to leave."""

    node_id: NodeId
    disk_index: int | None = None
    """None: the whole node."""

    def covers(self, node_id: NodeId, disk_index: int) -> bool:
        """Tell whether a target there has to leave."""
        return self.node_id == node_id and self.disk_index in {None, disk_index}


@dataclass(frozen=True, slots=True)
class MoveBook:
    """All of it; a new book takes the place of an old one."""

    moves: Mapping[MoveId, Move] = field(default_factory=dict)
    drains: frozenset[Drain] = frozenset()
    next_move_id: int = 1
    next_target_id: int = 1
    """No target with this id or a larger one was made by a move."""
    is_rebalancing: bool = False

    @property
    def is_idle(self) -> bool:
        """Nothing moves or has to."""
        return not (self.moves or self.drains or self.is_rebalancing)

    def move_of_chain(self, chain_id: ChainId) -> Move | None:
        """Return the move that may still change a chain."""
        found = (m for m in self.moves.values() if m.chain_id == chain_id and m.is_open)
        return next(found, None)

    def move_of_target(self, target_id: TargetId) -> Move | None:
        """Return a move that the target has a part in."""
        found = (m for m in self.moves.values() if target_id in {m.leaving, m.joining})
        return next(found, None)

    def is_drained(self, node_id: NodeId, disk_index: int) -> bool:
        """Tell whether nothing may be placed on a disk."""
        return any(drain.covers(node_id, disk_index) for drain in self.drains)

    def with_move(self, move: Move) -> "MoveBook":
        """Return the book with a move added or changed."""
        return replace(self, moves={**self.moves, move.move_id: move})

    def without_move(self, move_id: MoveId) -> "MoveBook":
        """Return the book without a move that has ended."""
        return replace(self, moves={m: v for m, v in self.moves.items() if m != move_id})


def move_to_pb(move: Move) -> pb.MovePb:
    """Return the wire form."""
    return pb.MovePb(
        move_id=move.move_id,
        chain_id=move.chain_id,
        leaving_target_id=move.leaving,
        joining_target_id=move.joining,
        node_id=move.node_id,
        disk_index=move.disk_index,
        reason=pb.MoveReasonPb.ValueType(move.reason),
        state=pb.MoveStatePb.ValueType(move.state),
    )


def drain_to_pb(drain: Drain) -> pb.DrainPb:
    """Return the wire form."""
    if drain.disk_index is None:
        return pb.DrainPb(node_id=drain.node_id)
    return pb.DrainPb(node_id=drain.node_id, is_one_disk=True, disk_index=drain.disk_index)


def drain_from_pb(message: pb.DrainPb) -> Drain:
    """Inverse of `drain_to_pb`."""
    return Drain(NodeId(message.node_id), message.disk_index if message.is_one_disk else None)


def pack_move(move: Move) -> bytes:
    """Return the persisted form."""
    return record_pb2.MoveRecordPb(move=move_to_pb(move)).SerializeToString(deterministic=True)


def unpack_move(value: bytes) -> Move:
    """Inverse of `pack_move`."""
    message = record_pb2.MoveRecordPb.FromString(value).move
    return Move(
        MoveId(message.move_id),
        ChainId(message.chain_id),
        TargetId(message.leaving_target_id),
        TargetId(message.joining_target_id),
        NodeId(message.node_id),
        message.disk_index,
        MoveReason(message.reason),
        MoveState(message.state),
    )


def pack_drain(drain: Drain) -> bytes:
    """Return the persisted form."""
    record = record_pb2.DrainRecordPb(drain=drain_to_pb(drain))
    return record.SerializeToString(deterministic=True)


def unpack_drain(value: bytes) -> Drain:
    """Inverse of `pack_drain`."""
    return drain_from_pb(record_pb2.DrainRecordPb.FromString(value).drain)


def pack_book(book: MoveBook) -> bytes:
    """Return the persisted form of what is neither a move nor a drain."""
    return record_pb2.MoveBookRecordPb(
        next_move_id=book.next_move_id,
        next_target_id=book.next_target_id,
        is_rebalancing=book.is_rebalancing,
    ).SerializeToString(deterministic=True)


def unpack_book(value: bytes | None) -> MoveBook:
    """Inverse of `pack_book`; an empty book when none was ever written."""
    if value is None:
        return MoveBook()
    record = record_pb2.MoveBookRecordPb.FromString(value)
    return MoveBook(
        next_move_id=record.next_move_id,
        next_target_id=record.next_target_id,
        is_rebalancing=record.is_rebalancing,
    )
