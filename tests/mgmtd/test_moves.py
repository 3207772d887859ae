"""Moves under random failures, and by example."""

import os
from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from fs.mgmtd.destinations import Disk
from fs.mgmtd.move_book import Drain, Move, MoveBook, MoveId, MoveReason, MoveState
from fs.mgmtd.mover import cluster_of
from fs.mgmtd.moves import View, cancelled, next_steps
from fs.mgmtd.restored import guarded
from fs.mgmtd.store import BookChange, Change
from fs.schema.config import MgmtdSection
from fs.schema.ids import ChainId, NodeId, TargetId
from fs.schema.routing import Node, Role

from .moving_world import CAPACITY, ON, HeldTarget, StorageNode, World, start

NODE_IDS = st.integers(1, 6)


class Moving(RuleBasedStateMachine):
    """Failures, orders late, lost and repeated, new managers,
    drains and rebalancing in any order.
    """

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


def test_a_disk_on_which_nothing_can_join_is_given_up_for_another():
    """Though by itself it would be chosen each time."""
    world = world_of(node_count=5, replica_counts=(3,))
    assert nodes_of(world, 1) == {2, 3, 4}
    world.nodes[1].misfit_disks.add(0)
    kill(world, 3)
    rounds(world, 33)
    assert {move.node_id for move in world.book.moves.values()} == {1}
    rounds(world, 60)
    assert nodes_of(world, 1) == {2, 4, 5}
    assert not world.nodes[1].targets
    assert world.given_up == {(1, 0)}


def of_another_store(world, *node_ids):
    """Have the chain made anew in an empty store,
    and these nodes hold disks of the one that is gone.
    """
    chain = world.info.chain(1)
    anew = replace(chain, chain_version=chain.chain_version + 1, birth_ns=6)
    world.settle(Change(chains={1: anew}))
    for node_id in node_ids:
        (held,) = world.nodes[node_id].targets.values()
        held.birth_ns = 5
        world.beat(world.nodes[node_id])


def test_disks_of_another_store_are_not_replaced_and_keep_their_chunks():
    world = world_of(node_count=5, replica_counts=(3,))
    of_another_store(world, 3, 4)
    rounds(world, 3)
    assert world.info.chain(1).serving == tuple(world.nodes[2].targets)
    rounds(world, 120)
    members = {world.info.target(m.target_id).node_id for m in world.info.chain(1).targets}
    assert members == {2, 3, 4}
    assert world.nodes[3].targets
    assert world.nodes[4].targets
    assert not world.book.moves


def test_a_disk_of_another_store_that_was_replaced_unheard_keeps_its_chunks():
    world = world_of(node_count=5, replica_counts=(3,))
    kill(world, 3)
    rounds(world, 33)
    rounds(world, 60)
    assert 3 not in nodes_of(world, 1)
    of_another_store(world)
    (held,) = world.nodes[3].targets.values()
    held.birth_ns = 5
    start(world, world.nodes[3])
    rounds(world, 60)
    assert world.nodes[3].targets, "its chunks are of the store that is gone"
    assert not world.book.moves


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


def test_nobody_leaves_a_chain_of_which_it_is_not_known_who_has_its_newest_data():
    """After a restore a move that was being cancelled waits, and holds up no other."""
    world = world_of()
    chain = world.info.chains[ChainId(1)]
    joining = chain.targets[-1].target_id
    waiting = guarded(chain, 1)
    move = Move(
        MoveId(1),
        chain.chain_id,
        chain.targets[0].target_id,
        joining,
        world.info.target(joining).node_id,
        0,
        MoveReason.DRAIN,
        MoveState.CANCELLING,
    )
    book = MoveBook(moves={move.move_id: move})
    cluster = cluster_of(world.state, 0.0)
    info = replace(cluster.info, chains={**cluster.info.chains, chain.chain_id: waiting})
    steps = next_steps(View(replace(cluster, info=info, book=book), {}, MgmtdSection()))
    assert steps.book.moves[move.move_id] == move
    assert not steps.chains
