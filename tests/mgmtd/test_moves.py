"""Moves under random failures: the manager's real state and planner, storage nodes that keep the rules but hold numbers.

A number stands for all data of a chain: it grows with every acknowledged write.
"""

import os
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from fs.mgmtd.chain_state import is_legal
from fs.mgmtd.destinations import Disk
from fs.mgmtd.move_book import Drain, MoveBook, MoveState
from fs.mgmtd.mover import cluster_of, step_change
from fs.mgmtd.moves import Order, OrderKind, View, cancelled, next_steps
from fs.mgmtd.state import ClusterState
from fs.mgmtd.store import BookChange, Change, Loaded
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

S, L, Y, W, O = (  # noqa: E741
    PublicState.SERVING,
    PublicState.LASTSRV,
    PublicState.SYNCING,
    PublicState.WAITING,
    PublicState.OFFLINE,
)
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
                self.settle(self.state.judge(known, is_gone=True))
        if self.now_s - self.state.started_s < SECTION.node_failed_after_s:
            return
        cluster = cluster_of(self.state, SECTION.move_free_fraction_min)
        watched = {m.target_id for c in self.info.chains.values() for m in c.targets}
        watched |= {m.joining for m in self.book.moves.values() if m.is_open}
        absent = {t for t in watched if cluster.local_states.get(t, OFF) is OFF}
        self.absent_since_s = {t: self.absent_since_s.get(t, self.now_s) for t in absent}
        waited = {t: self.now_s - since_s for t, since_s in self.absent_since_s.items()}
        before = self.info
        steps = next_steps(View(cluster, waited, SECTION))
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
        """Bring the syncing target up to date, if it and a serving one know the present chain version."""
        chain = self.info.chain(chain_id)
        for member in chain.targets:
            if member.public_state is not Y or not chain.serving:
                continue
            source, target = self.holder(chain.serving[-1]), self.holder(member.target_id)
            if source is None or target is None:
                continue
            knows = all(n.info.chains.get(chain.chain_id) == chain for n in (source[0], target[0]))
            if knows and source[1].local is UP and target[1].local is ON:
                target[1].content, target[1].used = source[1].content, source[1].used
                target[1].local = UP
                self.beat(target[0])

    def write(self, chain_id: int) -> None:
        """Write, if every serving member takes part; a syncing one takes it too, but is not complete by it."""
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
        """Every chain has its replicas, but for what cannot be replaced, and nobody is left to be moved."""
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


NODE_IDS = st.integers(1, 6)


class Moving(RuleBasedStateMachine):
    """Failures, orders late, lost and repeated, new managers, drains and rebalancing in any order."""

    world: World

    @initialize(
        disk_counts=st.lists(st.integers(1, 2), min_size=4, max_size=6),
        racks=st.lists(st.sampled_from(["", "a", "b", "c"]), min_size=6, max_size=6),
        replica_counts=st.lists(st.integers(1, 3), min_size=1, max_size=4),
    )
    def begin(self, disk_counts, racks, replica_counts) -> None:
        nodes = [
            StorageNode(i, disks, {"rack": racks[i - 1]} if racks[i - 1] else {})
            for i, disks in enumerate(disk_counts, 1)
        ]
        self.world = World(nodes, replica_counts)

    def node(self, number: int) -> StorageNode:
        return self.world.nodes[1 + number % len(self.world.nodes)]

    @rule(number=NODE_IDS)
    def kill(self, number) -> None:
        self.node(number).is_up = False
        self.world.tick(0.0)

    @rule(number=NODE_IDS)
    def restart(self, number) -> None:
        if not self.node(number).is_up:
            start(self.world, self.node(number))

    @rule(number=NODE_IDS, disk=st.integers(0, 1))
    def fail_disk(self, number, disk) -> None:
        """A disk fails; one at a time in the cluster, and not the only copy of anything."""
        node, world = self.node(number), self.world
        if any(n.failed_disks for n in world.nodes.values()):
            return
        here = {t for t, h in node.targets.items() if h.disk_index == disk}
        if any(set(c.keepers) <= here for c in world.info.chains.values()):
            return
        node.failed_disks.add(disk)
        if node.is_up:
            node.learn(node.info)
            world.beat(node)

    @rule(seconds=st.sampled_from([0.5, 5.0, 25.0]))
    def wait(self, seconds) -> None:
        self.world.tick(seconds)

    @rule(number=NODE_IDS)
    def hear(self, number) -> None:
        node = self.node(number)
        if node.is_up:
            node.learn(self.world.info)
            self.world.beat(node)

    @rule()
    def hear_all(self) -> None:
        for node in self.world.nodes.values():
            if node.is_up:
                node.learn(self.world.info)
                self.world.beat(node)

    @rule(data=st.data(), is_kept=st.booleans())
    def obey(self, data, is_kept) -> None:
        if self.world.orders:
            index = data.draw(st.integers(0, len(self.world.orders) - 1))
            order = self.world.orders[index]
            if not is_kept:
                del self.world.orders[index]
            self.world.carry_out(order)

    @rule()
    def lose_orders(self) -> None:
        self.world.orders.clear()

    @rule()
    def fail_over(self) -> None:
        self.world.fail_over()

    @rule()
    def resync(self) -> None:
        for chain_id in self.world.written:
            self.world.resync(chain_id)

    @rule()
    def write(self) -> None:
        for chain_id in self.world.written:
            self.world.write(chain_id)

    @rule(number=NODE_IDS, disk=st.sampled_from([None, 0, 1]))
    def drain(self, number, disk) -> None:
        book = self.world.book
        if len(book.drains) < 2:
            drain = Drain(NodeId(self.node(number).node_id), disk)
            self.change_book(replace(book, drains=book.drains | {drain}))

    @rule()
    def cancel_drains(self) -> None:
        book = self.world.book
        cancelled_ = cancelled(self.world.info, book, lambda _: True)
        self.change_book(replace(cancelled_, drains=frozenset()))

    @rule()
    def rebalance(self) -> None:
        self.change_book(replace(self.world.book, is_rebalancing=True))

    def change_book(self, book: MoveBook) -> None:
        if book != self.world.book:
            self.world.settle(Change(book=BookChange(self.world.book, book)))

    @invariant()
    def nothing_is_lost(self) -> None:
        if hasattr(self, "world"):
            self.world.check()

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.calm()
            self.world.check()


TestMoving = pytest.mark.thorough(Moving.TestCase)
TestMoving.settings = settings(
    max_examples=int(os.environ.get("EMBER_MOVES_EXAMPLES", "40")),
    stateful_step_count=40,
    deadline=None,
)


# ---- by example ---------------------------------------------------------------------------------


def world_of(node_count=4, replica_counts=(3, 3), disks=1, **tags) -> World:
    nodes = [StorageNode(i, disks, tags.get(f"n{i}", {})) for i in range(1, node_count + 1)]
    return World(nodes, list(replica_counts))


def kill(world: World, node_id: int) -> None:
    world.nodes[node_id].is_up = False
    world.tick(0.0)


def rounds(world: World, seconds: int) -> None:
    """Let a cluster without further failures run."""
    for _ in range(seconds):
        for node in world.nodes.values():
            if node.is_up:
                node.learn(world.info)
                world.beat(node)
        for chain_id in world.written:
            world.resync(chain_id)
            world.write(chain_id)
        world.tick(1.0)
        due, world.orders = world.orders, []
        for order in due:
            world.carry_out(order)
        world.check()


def nodes_of(world: World, chain_id: int) -> set[int]:
    return {world.info.target(t).node_id for t in world.info.chain(chain_id).serving}


def test_a_target_that_stays_away_is_replaced_and_dropped_when_it_returns():
    world = world_of()
    assert nodes_of(world, 1) == {2, 3, 4}
    kill(world, 3)
    rounds(world, 29)
    assert not world.book.moves
    rounds(world, 11)
    assert nodes_of(world, 1) == {1, 2, 4}
    (move,) = [m for m in world.book.moves.values() if m.chain_id == 1]
    assert (move.state, move.leaving) == (MoveState.RETIRING, 301)
    assert world.info.chain(1).replica_count == 3
    start(world, world.nodes[3])
    rounds(world, 5)
    assert not world.book.moves
    assert 301 not in world.nodes[3].targets
    assert 301 not in world.info.targets


def test_a_target_that_returns_in_time_is_not_replaced():
    world = world_of()
    kill(world, 3)
    rounds(world, 25)
    start(world, world.nodes[3])
    rounds(world, 60)
    assert not world.book.moves
    assert nodes_of(world, 1) == {2, 3, 4}
    assert not any(t >= 405 for n in world.nodes.values() for t in n.targets)


def test_a_target_that_returns_late_ends_the_move_and_nothing_is_left_of_it():
    world = world_of()
    kill(world, 3)
    rounds(world, 30)
    world.tick(2.0)  # planned, perhaps created, not yet resynced
    assert world.book.moves
    start(world, world.nodes[3])
    world.calm()
    assert nodes_of(world, 1) == {2, 3, 4}
    assert sum(len(n.targets) for n in world.nodes.values()) == 6


def test_without_a_place_it_says_so():
    world = world_of(node_count=3)
    kill(world, 3)
    rounds(world, 40)
    assert not world.book.moves
    assert any("target 301 (replace) cannot be replaced" in p for p in world.problems)


def test_nobody_is_replaced_while_half_of_the_nodes_are_away():
    world = world_of(node_count=6)
    for node_id in (2, 5, 6):
        kill(world, node_id)
    rounds(world, 60)
    assert not world.book.moves
    assert any("only 3 of 6 storage nodes are there" in p for p in world.problems)


def test_zero_turns_replacing_off():
    world = world_of()
    kill(world, 3)
    world.tick(10.0)
    cluster = cluster_of(world.state, 0.1)
    section = MgmtdSection(replace_after_s=0.0)
    steps = next_steps(View(cluster, {TargetId(301): 1e9}, section))
    assert not steps.book.moves
    assert not steps.orders


def test_the_rack_of_another_member_is_avoided():
    racks = {f"n{i}": {"rack": rack} for i, rack in enumerate("abcca", 1)}
    world = world_of(node_count=5, replica_counts=(3,), **racks)  # on nodes 2, 3, 4: racks b, c, c
    kill(world, 2)
    rounds(world, 45)
    assert nodes_of(world, 1) & {1, 5}
    racks = {f"n{i}": {"rack": rack} for i, rack in enumerate("babc", 1)}
    world = world_of(node_count=4, replica_counts=(3,), **racks)  # on 2, 3, 4: a, b, c
    kill(world, 2)
    rounds(world, 45)  # node 1 would be a second one in rack b
    assert not world.book.moves
    assert world.problems


def test_the_zone_of_another_member_is_avoided_before_its_rack():
    zones = {f"n{i}": {"zone": zone, "rack": f"r{i}"} for i, zone in enumerate("abcca", 1)}
    world = world_of(node_count=5, replica_counts=(3,), **zones)  # on nodes 2, 3, 4: zones b, c, c
    kill(world, 2)
    rounds(world, 45)
    assert nodes_of(world, 1) & {1, 5}
    zones = {f"n{i}": {"zone": zone, "rack": f"r{i}"} for i, zone in enumerate("babc", 1)}
    world = world_of(node_count=4, replica_counts=(3,), **zones)  # on 2, 3, 4: a, b, c
    kill(world, 2)
    rounds(world, 45)  # node 1 would be a second one in zone b
    assert not world.book.moves
    assert world.problems


def test_a_full_disk_is_no_place():
    world = world_of()
    world.nodes[1].targets[999] = HeldTarget(0, ON, 0, CAPACITY - 105)  # 10 bytes too many
    kill(world, 3)
    rounds(world, 45)
    assert nodes_of(world, 1) == {2, 4}
    assert world.problems
    del world.nodes[1].targets[999]
    rounds(world, 10)
    assert nodes_of(world, 1) == {1, 2, 4}


def test_a_failed_disk_is_replaced_by_another_one_of_its_node():
    world = world_of(node_count=3, disks=2)
    world.nodes[3].failed_disks.add(0)
    rounds(world, 45)
    assert nodes_of(world, 1) == {1, 2, 3}
    target = [t for t in world.info.chain(1).serving if world.info.target(t).node_id == 3]
    assert [world.info.target(t).disk_index for t in target] == [1]
    assert world.info.chain(1).replica_count == 3


def test_a_spare_that_is_empty_is_taken_and_one_with_data_is_not():
    for used, is_taken in ((0, True), (1, False)):
        world = world_of(replica_counts=(3,))
        world.nodes[1].targets[777] = HeldTarget(0, ON, 0, used)
        kill(world, 3)
        rounds(world, 45)
        assert (777 in world.info.chain(1).serving) is is_taken


@pytest.mark.parametrize("replica_count", [1, 2, 3])
def test_a_drained_node_becomes_empty_and_stays_so(replica_count):
    world = world_of(node_count=5, replica_counts=[replica_count] * 4)
    drain = Drain(NodeId(3))
    book = replace(world.book, drains=frozenset({drain}))
    world.settle(Change(book=BookChange(world.book, book)))
    lowest = replica_count
    for _ in range(60):
        rounds(world, 1)
        lowest = min(lowest, *(len(c.serving) for c in world.info.chains.values()))
    assert lowest == replica_count
    assert not world.nodes[3].targets
    assert not world.book.moves
    kill(world, 5)
    rounds(world, 60)
    assert not world.nodes[3].targets


def test_rebalancing_fills_a_new_node_with_few_moves_and_ends():
    world = world_of(node_count=4, replica_counts=[2] * 8)
    world.nodes[5] = StorageNode(5, 1, {})
    node = Node(NodeId(5), frozenset({Role.STORAGE}), "mem:n5", "")
    world.state.add_node(NodeId(5), world.now_s)
    world.settle(Change(nodes={NodeId(5): node}))
    book = replace(world.book, is_rebalancing=True)
    world.settle(Change(book=BookChange(world.book, book)))
    rounds(world, 60)
    assert not world.book.is_rebalancing
    assert sorted(len(n.targets) for n in world.nodes.values()) == [3, 3, 3, 3, 4]
    assert world.book.next_move_id - 1 == 3


def test_rebalancing_waits_for_a_node_that_will_be_back():
    world = world_of(node_count=4, replica_counts=[2] * 4)
    world.nodes[5] = StorageNode(5, 1, {})
    node = Node(NodeId(5), frozenset({Role.STORAGE}), "mem:n5", "")
    world.state.add_node(NodeId(5), world.now_s)
    world.settle(Change(nodes={NodeId(5): node}))
    for node_id in (1, 3):  # no chain is whole
        kill(world, node_id)
    book = replace(world.book, is_rebalancing=True)
    world.settle(Change(book=BookChange(world.book, book)))
    rounds(world, 10)
    assert world.book.is_rebalancing
    for node_id in (1, 3):
        start(world, world.nodes[node_id])
    rounds(world, 40)
    assert not world.book.is_rebalancing
    assert len(world.nodes[5].targets) == 1


def test_a_node_lost_while_another_is_drained_goes_first():
    world = world_of(node_count=5, replica_counts=(3,))  # on 2, 3, 4
    book = replace(world.book, drains=frozenset({Drain(NodeId(3))}))
    world.settle(Change(book=BookChange(world.book, book)))
    while not any(m.state is MoveState.JOINING for m in world.book.moves.values()):
        rounds(world, 1)
    kill(world, 2)
    rounds(world, 100)
    assert nodes_of(world, 1) == {1, 4, 5}
    assert world.info.chain(1).replica_count == 3


def test_disks_are_reported():
    world = world_of()
    assert world.state.health[NodeId(1)].disks == {0: Disk(0, CAPACITY, 990, is_failed=False)}
