"""A cluster for the planner of moves: the manager's real state,
storage nodes that keep the rules but hold numbers.

A number stands for all data of a chain: it grows with every acknowledged write.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from fs.mgmtd.chain_state import is_legal
from fs.mgmtd.destinations import Site
from fs.mgmtd.move_book import MoveBook
from fs.mgmtd.mover import cluster_of, step_change
from fs.mgmtd.moves import Order, OrderKind, View, next_steps
from fs.mgmtd.state import ClusterState
from fs.mgmtd.store import Change, Loaded
from fs.schema.config import MgmtdSection
from fs.schema.ids import ChainId, NodeId, TargetId
from fs.schema.proto import common_pb2 as common
from fs.schema.proto import mgmtd_pb2 as pb
from fs.schema.routing import (
    Chain,
    ChainTarget,
    LocalState,
    Node,
    NodeState,
    PublicState,
    Role,
    RoutingInfo,
    Target,
)
from tests.mgmtd.harness import L, O, S, W, Y

UP, ON, OFF = LocalState.UPTODATE, LocalState.ONLINE, LocalState.OFFLINE
SECTION = MgmtdSection(replace_after_s=30.0, move_stall_s=20.0, moves_max=3, moves_per_node_max=2)
CAPACITY = 1000
USED = 10


@dataclass
class HeldTarget:
    """A target on its node."""

    disk_index: int
    local: LocalState = ON
    content: int = 0
    used: int = 0
    is_evicted: bool = False
    birth_ns: int = 0
    """Of the store under which its disk says that it served."""


@dataclass
class StorageNode:
    """A storage node: what it knows and holds."""

    node_id: int
    disk_count: int
    tags: dict[str, str]
    is_up: bool = True
    start_count: int = 1
    version: int = 0
    failed_disks: set[int] = field(default_factory=set)
    misfit_disks: set[int] = field(default_factory=set)
    """Whose targets go out of service as soon as they are to get anything."""
    targets: dict[int, HeldTarget] = field(default_factory=dict)
    info: RoutingInfo = field(default_factory=RoutingInfo)

    def public(self, target_id: int) -> PublicState | None:
        target = self.info.targets.get(TargetId(target_id))
        chain = self.info.chains.get(target.chain_id) if target else None
        return chain.state_of(TargetId(target_id)) if chain else None

    def chain_version(self, target_id: int) -> int:
        target = self.info.targets.get(TargetId(target_id))
        chain = self.info.chains.get(target.chain_id) if target else None
        return chain.chain_version if chain and chain.state_of(TargetId(target_id)) else 0

    def learn(self, info: RoutingInfo) -> None:
        self.info = info
        for target_id, held in self.targets.items():
            public = self.public(target_id)
            if held.disk_index in self.failed_disks:
                held.local = OFF
            elif held.local is ON and public is S:
                held.local = UP
            elif public in {O, L, W, None} and (held.local is UP or held.is_evicted):
                held.local, held.is_evicted = ON, False

    def heartbeat(self) -> pb.HeartbeatReq:
        self.version += 1
        return pb.HeartbeatReq(
            node=common.NodePb(
                node_id=self.node_id,
                roles=[common.STORAGE],
                address=f"mem:n{self.node_id}",
                incarnation=f"{self.node_id}-{self.start_count}",
            ),
            heartbeat_version=self.version,
            targets=[
                pb.TargetReportPb(
                    target_id=t,
                    disk_index=h.disk_index,
                    local_state=int(h.local),
                    chain_version=self.chain_version(t),
                    used_bytes=h.used,
                    standing=common.StandingPb(birth_ns=h.birth_ns) if h.birth_ns else None,
                )
                for t, h in self.targets.items()
            ],
            disks=[
                pb.DiskReportPb(
                    disk_index=d,
                    capacity_bytes=CAPACITY,
                    free_bytes=CAPACITY
                    - sum(h.used for h in self.targets.values() if h.disk_index == d),
                    is_failed=d in self.failed_disks,
                )
                for d in range(self.disk_count)
            ],
        )


class World:
    """A manager without I/O, and its nodes."""

    def __init__(self, nodes: Iterable[StorageNode], replica_counts: list[int]) -> None:
        self.now_s = 0.0
        self.nodes = {n.node_id: n for n in nodes}
        self.written = dict.fromkeys(range(1, len(replica_counts) + 1), 1)
        self.orders: list[Order] = []
        self.problems: list[str] = []
        self.absent_since_s: dict[TargetId, float] = {}
        self.given_up: frozenset[Site] = frozenset()
        """Forgotten with a reign; before that, never."""
        info = self._first_info(replica_counts)
        self.state = ClusterState(Loaded(info, MoveBook()), SECTION, 0.0)
        for node in self.nodes.values():
            node.learn(self.info)
            self.beat(node)
        self.tick(7.0)

    def _first_info(self, replica_counts: list[int]) -> RoutingInfo:
        targets: dict[TargetId, Target] = {}
        chains = {}
        for number, count in enumerate(replica_counts, 1):
            ids = sorted(self.nodes)
            order = [ids[(number + i) % len(ids)] for i in range(count)]
            members = []
            for node_id in order:
                target_id = TargetId(node_id * 100 + number)
                members.append(ChainTarget(target_id, S))
                targets[target_id] = Target(target_id, ChainId(number), NodeId(node_id), 0)
                self.nodes[node_id].targets[target_id] = HeldTarget(0, UP, 1, USED)
            order = tuple(m.target_id for m in members)
            chains[ChainId(number)] = Chain(ChainId(number), 1, tuple(members), order)
        nodes = {
            NodeId(n.node_id): Node(
                NodeId(n.node_id), frozenset({Role.STORAGE}), f"mem:n{n.node_id}", "", tags=n.tags
            )
            for n in self.nodes.values()
        }
        return RoutingInfo(1, "c", nodes=nodes, targets=targets, chains=chains)

    @property
    def info(self) -> RoutingInfo:
        return self.state.info

    @property
    def book(self) -> MoveBook:
        return self.state.book

    # ---- the manager

    def publish(self, change: Change) -> None:
        before = self.info
        for chain in change.chains.values():
            old = before.chains[chain.chain_id]
            assert chain.chain_version == old.chain_version + 1, (old, chain)
        self.state.apply(change, self.info.routing_version + 1, is_bootstrapping=False)

    def settle(self, change: Change) -> None:
        if change:
            self.publish(change)
        count = 0
        while change := self.state.next_chains():
            self.publish(change)
            count += 1
            assert count < 20

    def beat(self, node: StorageNode) -> None:
        if node.is_up:
            self.settle(self.state.hear(node.heartbeat(), self.now_s))

    def tick(self, seconds: float) -> None:
        """Let time pass, judge the dead, look at the moves."""
        self.now_s += seconds
        for node in self.nodes.values():
            if node.is_up:
                incarnation = f"{node.node_id}-{node.start_count}"
                self.state.note_arrival(NodeId(node.node_id), incarnation, self.now_s)
            elif not self.state.health[NodeId(node.node_id)].is_judged:
                known = self.info.node(node.node_id)
                self.state.note_ended(known.node_id, known.incarnation)
                self.settle(self.state.judge(known))
        if self.now_s - self.state.started_s < SECTION.node_failed_after_s:
            return
        cluster = cluster_of(self.state, SECTION.move_free_fraction_min, self.given_up)
        watched = {m.target_id for c in self.info.chains.values() for m in c.targets}
        watched |= {m.joining for m in self.book.moves.values() if m.is_open}
        absent = {t for t in watched if cluster.local_states.get(t, OFF) is OFF}
        self.absent_since_s = {t: self.absent_since_s.get(t, self.now_s) for t in absent}
        waited = {t: self.now_s - since_s for t, since_s in self.absent_since_s.items()}
        before = self.info
        steps = next_steps(View(cluster, waited, SECTION))
        self.given_up |= set(steps.given_up)
        self.settle(step_change(self.state, steps))
        for chain in before.chains.values():  # the planner itself takes nobody out that serves
            assert set(chain.serving) <= set(self.info.chain(chain.chain_id).serving)
        for order in steps.orders:
            if order.kind is OrderKind.STOP:
                chain = self.info.chain(self.info.target(order.target_id).chain_id)
                assert len(chain.serving) - 1 >= chain.replica_count, (order, chain)
        self.orders += [o for o in steps.orders if o not in self.orders]
        self.problems = steps.problems
        open_moves = [m for m in self.book.moves.values() if m.is_open]
        assert len(open_moves) <= SECTION.moves_max + 1
        assert len({m.chain_id for m in open_moves}) == len(open_moves)

    def fail_over(self) -> None:
        """Begin another reign: what is soft is forgotten."""
        targets = {
            t: Target(t, v.chain_id, v.node_id, v.disk_index) for t, v in self.info.targets.items()
        }
        nodes = {n: replace(v, state=NodeState.UNKNOWN) for n, v in self.info.nodes.items()}
        info = replace(self.info, targets=targets, nodes=nodes)
        self.state = ClusterState(Loaded(info, self.book), SECTION, self.now_s)
        self.absent_since_s = {}
        self.given_up = frozenset()
        self.settle(Change())

    # ---- nodes

    def carry_out(self, order: Order) -> None:
        """Let a node do what it was told, perhaps long ago."""
        node = self.nodes[order.site.node_id]
        if not node.is_up:
            return
        held = node.targets.get(order.target_id)
        match order.kind:
            case OrderKind.CREATE if held is None:
                if order.site.disk_index not in node.failed_disks:
                    node.targets[order.target_id] = HeldTarget(order.site.disk_index)
            case OrderKind.REMOVE if held is not None and node.public(order.target_id) is None:
                del node.targets[order.target_id]
            case OrderKind.STOP if held is not None and node.public(order.target_id) is S:
                chain = node.info.chain(node.info.target(order.target_id).chain_id)
                if chain.serving != (order.target_id,):
                    held.local, held.is_evicted = OFF, True
            case _:
                pass
        self.beat(node)

    def holder(self, target_id: TargetId) -> tuple[StorageNode, HeldTarget] | None:
        node = self.nodes[self.info.target(target_id).node_id]
        held = node.targets.get(target_id)
        return (node, held) if held is not None and node.is_up else None

    def resync(self, chain_id: int) -> None:
        """Bring the syncing target up to date, if it and a serving one know
        the present chain version.
        """
        chain = self.info.chain(chain_id)
        for member in chain.targets:
            if member.public_state is not Y or not chain.serving:
                continue
            source, target = self.holder(chain.serving[-1]), self.holder(member.target_id)
            if source is None or target is None:
                continue
            knows = all(n.info.chains.get(chain.chain_id) == chain for n in (source[0], target[0]))
            is_ready = knows and source[1].local is UP and target[1].local is ON
            if is_ready and target[1].disk_index in target[0].misfit_disks:
                target[1].local = OFF
                self.beat(target[0])
            elif is_ready:
                target[1].content, target[1].used = source[1].content, source[1].used
                target[1].local = UP
                self.beat(target[0])

    def write(self, chain_id: int) -> None:
        """Write, if every serving member takes part;
        a syncing one takes it too, but is not complete by it.
        """
        chain = self.info.chain(chain_id)
        holders = [self.holder(t) for t in chain.serving]
        if not holders or any(h is None or h[1].local is not UP for h in holders):
            return
        self.written[chain_id] += 1
        for _, held in filter(None, holders):
            held.content = self.written[chain_id]
        for member in chain.targets:
            found = self.holder(member.target_id)
            if found and member.public_state is Y and found[1].local is UP:
                found[1].content = self.written[chain_id]

    def calm(self) -> None:
        """Bring every node up and let everything come to its end."""
        for node in self.nodes.values():
            if not node.is_up:
                start(self, node)
        for _ in range(400):
            for node in self.nodes.values():
                node.learn(self.info)
                self.beat(node)
            for chain_id in self.written:
                self.resync(chain_id)
            self.tick(1.0)
            due, self.orders = self.orders, []
            for order in due:
                self.carry_out(order)
            if not self.book.moves and not self.book.is_rebalancing and self.is_whole():
                return
        raise AssertionError((self.book, self.problems, self.info.chains))

    def is_whole(self) -> bool:
        """Every chain has its replicas, but for what cannot be replaced,
        and nobody is left to be moved.
        """
        is_stuck = bool(self.problems)
        for chain in self.info.chains.values():
            if len(chain.serving) != chain.replica_count:
                lost = [
                    m.target_id
                    for m in chain.targets
                    if self.info.target(m.target_id).disk_index
                    in self.nodes[self.info.target(m.target_id).node_id].failed_disks
                ]
                if not lost or (chain.serving and not is_stuck):
                    return False
            for target_id in chain.serving:
                target = self.info.target(target_id)
                is_left = self.book.is_drained(target.node_id, target.disk_index)
                if is_left and not is_stuck:
                    return False
        return True

    # ---- what must always hold

    def check(self) -> None:
        for chain in self.info.chains.values():
            assert is_legal(chain), chain
            assert chain.keepers, chain
            nodes = [self.info.target(m.target_id).node_id for m in chain.targets]
            assert len(set(nodes)) == len(nodes), (chain, nodes)
            for target_id in chain.keepers:
                target = self.info.target(target_id)
                held = self.nodes[target.node_id].targets[target_id]
                assert held.content == self.written[chain.chain_id], (chain, target_id)
            for member in chain.targets:
                assert self.info.target(member.target_id).chain_id == chain.chain_id
        for target in self.info.targets.values():
            if target.chain_id:
                assert self.info.chain(target.chain_id).state_of(target.target_id) is not None


def start(world: World, node: StorageNode) -> None:
    """Start a process: it takes part only when its targets are out of service."""
    node.is_up, node.start_count, node.version = True, node.start_count + 1, 0
    for held in node.targets.values():
        held.local = OFF
    node.info = RoutingInfo()
    world.beat(node)
    node.learn(world.info)
    for held in node.targets.values():
        if held.disk_index not in node.failed_disks:
            held.local = ON
    world.beat(node)
