"""Routing info: the versioned snapshot of the cluster that every process acts on.  Pure.

Invariants:
    - A RoutingInfo never changes; a newer one has a larger `routing_version`.
    - The targets of a chain stand in the order serving*, lastsrv?, syncing?, waiting*, offline*;
      the head is the first, the tail the last that is serving (or syncing: it receives writes).
    - `chain_version` grows by exactly one at every change of a chain.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import pairwise
from typing import Final, TypeVar

from google.protobuf.message import Message

from .ids import ChainId, ChainTableId, NodeId, TargetId
from .proto import common_pb2 as pb
from .resync_progress import ResyncProgress, resync_from_pb, resync_to_pb
from .standing import Standing, standing_from_pb, standing_to_pb
from .status import FsError, Status

MessageT = TypeVar("MessageT", bound=Message)
RecordT = TypeVar("RecordT")

REPLICA_COUNT_MAX: Final = 5
"""Of a chain; one more member is there while one replaces another."""

DOMAIN_TAGS: Final = ("zone", "rack", "host")
"""Tags of nodes that fail together, widest first."""


FILLS_LEVEL: Final = 1
"""Of storage processes that know writes which do nothing once a later truncation has been done
(`UpdateReq.is_fill`).
"""
STORAGE_LEVEL: Final = FILLS_LEVEL
"""Of those of this release; raised with everything that a metadata service's store may make them be
asked for, and that an earlier release would take for something else.
"""


class PublicState(IntEnum):
    """What clients and peers may do with a target; numbers as on the wire."""

    SERVING = 1
    LASTSRV = 2
    SYNCING = 4
    WAITING = 8
    OFFLINE = 16

    @property
    def is_readable(self) -> bool:
        """Clients may read here."""
        return self is PublicState.SERVING

    @property
    def is_writable(self) -> bool:
        """Updates pass through here."""
        return self in {PublicState.SERVING, PublicState.SYNCING}


class LocalState(IntEnum):
    """What the storage node says of its target; numbers as on the wire."""

    UPTODATE = 1
    ONLINE = 2
    OFFLINE = 4


class NodeState(IntEnum):
    """What the manager thinks of a node; numbers as on the wire."""

    UNKNOWN = 0
    CONNECTED = 1
    FAILED = 2
    DISABLED = 3
    STARTING = 4


class Role(IntEnum):
    """A service that a node offers; numbers as on the wire."""

    MGMTD = 1
    META = 2
    STORAGE = 3
    CLIENT = 4


RESTORED_LOSSES: Final = 1 << 16
"""What restoring a backup adds to the count of losses of each chain, which is no loss:
a client that has outlived it must not take the count of that time for the one that it noted.
"""


@dataclass(frozen=True, slots=True)
class Node:
    """One process of the cluster."""

    node_id: NodeId
    roles: frozenset[Role]
    address: str
    incarnation: str
    state: NodeState = NodeState.UNKNOWN
    host_name: str = ""
    release: str = ""
    tags: Mapping[str, str] = field(default_factory=dict)
    boot_id: str = ""
    """Of its machine, new at every start of the kernel; empty: not known."""
    maintenance_until_ns: int = 0
    """Wall time until which its targets are not replaced, however long they are away."""
    storage_level: int = 0
    """Of a storage process: what it knows; 0: of a release that does not say."""
    storage_level_min: int = 0
    """Of a metadata service: what every storage process has to know beside its store."""


@dataclass(frozen=True, slots=True)
class Target:
    """Where a target lives and what its node last said of it."""

    target_id: TargetId
    chain_id: ChainId
    node_id: NodeId
    disk_index: int
    local_state: LocalState = LocalState.OFFLINE
    used_bytes: int = 0
    low_space: bool = False
    resync: ResyncProgress | None = None
    """Only while it is syncing."""
    is_slow: bool = False
    trouble: str = ""
    """Why its node keeps it out of service; empty when nothing is wrong."""
    disk_loss_count: int = 0
    """How often its disk has lost something, as far as its chain has taken note."""
    has_old_image: bool = False
    """Its chain waits for it, but its disk was put back to an earlier state."""


@dataclass(frozen=True, slots=True)
class ChainTarget:
    """A chain's member."""

    target_id: TargetId
    public_state: PublicState


@dataclass(frozen=True, slots=True)
class Chain:
    """An ordered list of targets holding the same chunks, head first."""

    chain_id: ChainId
    chain_version: int
    targets: tuple[ChainTarget, ...]
    preferred_order: tuple[TargetId, ...] = ()
    """The members it is meant to have, head first; while one replaces another there is one more."""
    created_order: tuple[TargetId, ...] = ()
    """The members it was created with; empty while that is `preferred_order`."""
    loss_count: int = 0
    """Changes whenever it may have lost acknowledged updates that no sync had covered;
    people are shown `losses`.
    """
    generation: int = 0
    """Wall time in ns of the restore from which its record comes; 0: none."""
    restored: Standing | None = None
    """What its backup said; set while nobody may serve since it is not known yet who has
    the newest data.
    """
    birth_ns: int = 0
    """Wall time at which the first chains of its store were made, also after a restore;
    0: by a release that did not note it.
    """
    stand_ins: tuple[TargetId, ...] = ()
    """Members that ceased to serve in the same judgement as the last server, and so have all
    that it has: while the chain waits for that one, any of them may serve in its stead.
    """

    @property
    def losses(self) -> int:
        """How often it may have lost acknowledged updates that no sync had covered,
        since the last restore at least.
        """
        return self.loss_count % RESTORED_LOSSES

    @property
    def replica_count(self) -> int:
        """How many replicas are wanted."""
        return len(self.preferred_order) or len(self.targets)

    @property
    def serving(self) -> tuple[TargetId, ...]:
        """The targets that serve reads, head first."""
        return tuple(t.target_id for t in self.targets if t.public_state.is_readable)

    @property
    def keepers(self) -> tuple[TargetId, ...]:
        """The targets that hold every acknowledged write:
        those that serve, else the last that did.
        """
        lasts = {PublicState.SERVING, PublicState.LASTSRV}
        return tuple(t.target_id for t in self.targets if t.public_state in lasts)

    @property
    def candidates(self) -> tuple[TargetId, ...]:
        """Those of whom any may turn out to be the newest:
        `keepers` and, while nobody serves, who may stand in for the last that did.
        """
        return self.keepers + self.stand_ins

    @property
    def standing(self) -> Standing:
        """What is remembered of this version."""
        joining = next((t for t in self.writable if t not in self.serving), None)
        return Standing(
            self.chain_id,
            self.generation,
            self.chain_version,
            self.candidates,
            joining,
            self.birth_ns,
        )

    @property
    def writable(self) -> tuple[TargetId, ...]:
        """The targets that updates pass through, head first: serving ones, then a syncing one."""
        return tuple(t.target_id for t in self.targets if t.public_state.is_writable)

    def state_of(self, target_id: TargetId) -> PublicState | None:
        """Return the public state of a member, None for a stranger."""
        for member in self.targets:
            if member.target_id == target_id:
                return member.public_state
        return None

    def successor_of(self, target_id: TargetId) -> ChainTarget | None:
        """Return the member that gets updates from `target_id`, None at the tail."""
        writable = [t for t in self.targets if t.public_state.is_writable]
        for here, following in pairwise(writable):
            if here.target_id == target_id:
                return following
        return None


@dataclass(frozen=True, slots=True)
class ChainTable:
    """A numbered list of chains that layouts index into."""

    table_id: ChainTableId
    table_version: int
    chain_ids: tuple[ChainId, ...]


@dataclass(frozen=True, slots=True)
class RoutingInfo:
    """One version of the whole picture."""

    routing_version: int = 0
    cluster_id: str = ""
    is_bootstrapping: bool = False
    nodes: Mapping[NodeId, Node] = field(default_factory=dict)
    targets: Mapping[TargetId, Target] = field(default_factory=dict)
    chains: Mapping[ChainId, Chain] = field(default_factory=dict)
    chain_tables: Mapping[tuple[ChainTableId, int], ChainTable] = field(default_factory=dict)

    def chain(self, chain_id: int) -> Chain:
        """Return a chain; raises FsError(CHAIN_UNKNOWN)."""
        found = self.chains.get(ChainId(chain_id))
        if found is None:
            raise FsError(
                Status.CHAIN_UNKNOWN, f"chain {chain_id} at routing version {self.routing_version}"
            )
        return found

    def target(self, target_id: TargetId) -> Target:
        """Return a target; raises FsError(TARGET_UNKNOWN)."""
        found = self.targets.get(target_id)
        if found is None:
            raise FsError(Status.TARGET_UNKNOWN, f"target {target_id}")
        return found

    def node_of_target(self, target_id: TargetId) -> Node:
        """Return the node of a target; raises FsError(TARGET_UNKNOWN or NODE_UNKNOWN)."""
        return self.node(self.target(target_id).node_id)

    def node(self, node_id: int) -> Node:
        """Return a node; raises FsError(NODE_UNKNOWN)."""
        found = self.nodes.get(NodeId(node_id))
        if found is None:
            raise FsError(Status.NODE_UNKNOWN, f"node {node_id}")
        return found

    def chain_table(self, table_id: int, table_version: int = 0) -> ChainTable:
        """Return a version of a chain table, the newest for 0;
        raises FsError(CHAIN_TABLE_UNKNOWN).
        """
        if table_version == 0:
            versions = [v for (t, v) in self.chain_tables if t == table_id]
            table_version = max(versions, default=0)
        found = self.chain_tables.get((ChainTableId(table_id), table_version))
        if found is None:
            raise FsError(
                Status.CHAIN_TABLE_UNKNOWN, f"chain table {table_id} version {table_version}"
            )
        return found

    def nodes_with_role(self, role: Role) -> list[Node]:
        """Return the nodes that offer a service, by id, whatever their state."""
        return sorted((n for n in self.nodes.values() if role in n.roles), key=lambda n: n.node_id)


def node_to_pb(node: Node) -> pb.NodePb:
    """Return the wire form."""
    return pb.NodePb(
        node_id=node.node_id,
        roles=[pb.NodeRole.ValueType(role) for role in sorted(node.roles)],
        address=node.address,
        incarnation=node.incarnation,
        state=pb.NodeState.ValueType(node.state),
        host_name=node.host_name,
        release=node.release,
        tags=dict(node.tags),
        boot_id=node.boot_id,
        maintenance_until_ns=node.maintenance_until_ns,
        storage_level=node.storage_level,
        storage_level_min=node.storage_level_min,
    )


def node_from_pb(message: pb.NodePb) -> Node:
    """Inverse of `node_to_pb`; raises FsError(RPC_BAD_REQUEST) for a role or state
    that this release does not know.
    """
    try:
        roles, state = frozenset(Role(role) for role in message.roles), NodeState(message.state)
    except ValueError as error:
        raise FsError(Status.RPC_BAD_REQUEST, f"node {message.node_id}: {error}") from error
    return Node(
        NodeId(message.node_id),
        roles,
        message.address,
        message.incarnation,
        state,
        message.host_name,
        message.release,
        dict(message.tags),
        message.boot_id,
        message.maintenance_until_ns,
        message.storage_level,
        message.storage_level_min,
    )


def target_to_pb(target: Target) -> pb.TargetPb:
    """Return the wire form."""
    return pb.TargetPb(
        target_id=target.target_id,
        chain_id=target.chain_id,
        node_id=target.node_id,
        disk_index=target.disk_index,
        local_state=pb.LocalStatePb.ValueType(target.local_state),
        used_bytes=target.used_bytes,
        low_space=target.low_space,
        resync=None if target.resync is None else resync_to_pb(target.resync),
        is_slow=target.is_slow,
        trouble=target.trouble,
        disk_loss_count=target.disk_loss_count,
        has_old_image=target.has_old_image,
    )


def target_from_pb(message: pb.TargetPb) -> Target:
    """Inverse of `target_to_pb`."""
    return Target(
        TargetId(message.target_id),
        ChainId(message.chain_id),
        NodeId(message.node_id),
        message.disk_index,
        LocalState(message.local_state or LocalState.OFFLINE),
        message.used_bytes,
        message.low_space,
        resync_from_pb(message.resync) if message.HasField("resync") else None,
        message.is_slow,
        message.trouble,
        message.disk_loss_count,
        message.has_old_image,
    )


def chain_to_pb(chain: Chain) -> pb.ChainPb:
    """Return the wire form."""
    return pb.ChainPb(
        chain_id=chain.chain_id,
        chain_version=chain.chain_version,
        targets=[
            pb.ChainTargetPb(
                target_id=t.target_id, public_state=pb.PublicStatePb.ValueType(t.public_state)
            )
            for t in chain.targets
        ],
        preferred_order=chain.preferred_order,
        created_order=chain.created_order,
        loss_count=chain.loss_count,
        generation=chain.generation,
        restored=standing_to_pb(chain.restored) if chain.restored else None,
        birth_ns=chain.birth_ns,
        stand_ins=chain.stand_ins,
    )


def chain_from_pb(message: pb.ChainPb) -> Chain:
    """Inverse of `chain_to_pb`."""
    return Chain(
        ChainId(message.chain_id),
        message.chain_version,
        tuple(
            ChainTarget(TargetId(t.target_id), PublicState(t.public_state)) for t in message.targets
        ),
        tuple(TargetId(t) for t in message.preferred_order),
        tuple(TargetId(t) for t in message.created_order),
        message.loss_count,
        message.generation,
        standing_from_pb(message.restored) if message.HasField("restored") else None,
        message.birth_ns,
        tuple(TargetId(t) for t in message.stand_ins),
    )


def routing_info_to_pb(info: RoutingInfo) -> pb.RoutingInfoPb:
    """Return the wire form."""
    return pb.RoutingInfoPb(
        routing_version=info.routing_version,
        cluster_id=info.cluster_id,
        is_bootstrapping=info.is_bootstrapping,
        nodes=[node_to_pb(n) for n in info.nodes.values()],
        targets=[target_to_pb(t) for t in info.targets.values()],
        chains=[chain_to_pb(c) for c in info.chains.values()],
        chain_tables=[
            pb.ChainTablePb(
                table_id=t.table_id, table_version=t.table_version, chain_ids=t.chain_ids
            )
            for t in info.chain_tables.values()
        ],
    )


class RoutingReader:
    """Decodes one routing info after the other;
    what is as it was in the last one stays the same object.

    Most versions change little, and to compare two messages costs a twentieth of decoding one.
    Keeps the messages of the last one: the caller may not change what it has handed in.  A
    failed `read` changes nothing.
    """

    def __init__(self) -> None:
        self._nodes: dict[int, tuple[pb.NodePb, Node]] = {}
        self._targets: dict[int, tuple[pb.TargetPb, Target]] = {}
        self._chains: dict[int, tuple[pb.ChainPb, Chain]] = {}

    def read(self, message: pb.RoutingInfoPb) -> RoutingInfo:
        """Inverse of `routing_info_to_pb`; raises FsError(RPC_BAD_REQUEST) as `node_from_pb`."""
        nodes = {
            n.node_id: _decoded(n, node_from_pb, self._nodes.get(n.node_id)) for n in message.nodes
        }
        targets = {
            t.target_id: _decoded(t, target_from_pb, self._targets.get(t.target_id))
            for t in message.targets
        }
        chains = {
            c.chain_id: _decoded(c, chain_from_pb, self._chains.get(c.chain_id))
            for c in message.chains
        }
        tables = (
            ChainTable(
                ChainTableId(t.table_id), t.table_version, tuple(ChainId(c) for c in t.chain_ids)
            )
            for t in message.chain_tables
        )
        info = RoutingInfo(
            message.routing_version,
            message.cluster_id,
            message.is_bootstrapping,
            {NodeId(i): node for i, (_, node) in nodes.items()},
            {TargetId(i): target for i, (_, target) in targets.items()},
            {ChainId(i): chain for i, (_, chain) in chains.items()},
            {(t.table_id, t.table_version): t for t in tables},
        )
        self._nodes, self._targets, self._chains = nodes, targets, chains
        return info


def _decoded(
    message: MessageT,
    decode: Callable[[MessageT], RecordT],
    before: tuple[MessageT, RecordT] | None,
) -> tuple[MessageT, RecordT]:
    """Return the message and its record, the one from before if it says the same.

    Not the message from before: a part of a message keeps the memory of the whole.
    """
    if before is not None and before[0] == message:
        return message, before[1]
    return message, decode(message)


def routing_info_from_pb(message: pb.RoutingInfoPb) -> RoutingInfo:
    """Inverse of `routing_info_to_pb`."""
    return RoutingReader().read(message)
