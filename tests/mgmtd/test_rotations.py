"""Chains find back into their preferred order, one quiet chain after the other:
at random, by example, on whole managers.
"""
# ruff: noqa: ARG001 - a test that waits names the clock it wants

import os
from dataclasses import replace

import pytest
import trio
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import rule

from fs.mgmtd.destinations import Site
from fs.mgmtd.move_book import Drain, Move, MoveBook, MoveId, MoveReason
from fs.mgmtd.moves import Order, OrderKind
from fs.mgmtd.rotations import NO_EFFECT_S, SERVING_COUNT_MIN, Rotations, RotationView
from fs.schema.config import MgmtdSection
from fs.schema.ids import ChainId, NodeId, TargetId
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
from tests.mgmtd.harness import S, cluster_of
from tests.mgmtd.test_moves import Moving

pytestmark = pytest.mark.thorough

SECTION = MgmtdSection(rotate_after_s=20.0, rotations_max=2, move_stall_s=50.0)
NODE_IDS = frozenset(NodeId(n) for n in range(1, 10))


class Rotating(Moving):
    """Everything that moves have to stand, and rotations beside them."""

    def __init__(self) -> None:
        super().__init__()
        self.rotations = Rotations()
        self.told: list[Order] = []

    @rule(seconds=st.sampled_from([1.0, 25.0]))
    def rotate(self, seconds) -> None:
        """Let so much time pass; whoever is told to go is needed by nobody."""
        world = self.world
        world.tick(seconds)
        heard = {NodeId(n.node_id) for n in world.nodes.values() if n.is_up}
        info = replace(world.info, targets=world.state.heard_targets)
        view = RotationView(info, world.book, heard, SECTION, world.now_s)
        steps = self.rotations.next_steps(view)
        assert len(steps) <= SECTION.rotations_max
        for chain_id, target_id in steps.items():
            chain = world.info.chain(chain_id)
            assert len(chain.serving) == len(chain.targets) > SERVING_COUNT_MIN
            assert world.book.move_of_chain(chain_id) is None
            assert all(world.nodes[info.target(t).node_id].is_up for t in chain.serving)
            site = Site(info.target(target_id).node_id, info.target(target_id).disk_index)
            self.told.append(Order(OrderKind.STOP, target_id, site, MoveId(0)))

    @rule(is_kept=st.booleans())
    def obey_rotation(self, is_kept) -> None:
        """A node does what it was told, perhaps late, twice or not at all."""
        if self.told:
            self.world.carry_out(self.told[0])
            if not is_kept:
                del self.told[0]

    @rule()
    def lose_rotations(self) -> None:
        self.told.clear()

    def teardown(self) -> None:
        super().teardown()
        if hasattr(self, "world"):
            self.world.check()


TestRotating = Rotating.TestCase
TestRotating.settings = settings(
    max_examples=int(os.environ.get("EMBER_MOVES_EXAMPLES", "25")),
    stateful_step_count=40,
    deadline=None,
)


# ---- by example ---------------------------------------------------------------------------------


def view_of(
    *orders, now_s=0.0, book=None, heard=NODE_IDS, section=SECTION, states=None, version=1, **told
) -> RotationView:
    """Return a picture with a chain per order of nodes, preferring ascending node ids;
    each member has a node of its number.

    `told` is what all nodes say of their targets, `states` what is public of the first chain's.
    """
    chains, targets = {}, {}
    for number, order in enumerate(orders, 1):
        ids = [TargetId(n * 100 + number) for n in order]
        publics = states if states and number == 1 else [S] * len(ids)
        members = tuple(map(ChainTarget, ids, publics))
        chain = Chain(ChainId(number), version, members, tuple(sorted(ids)))
        chains[chain.chain_id] = chain
        for target_id in ids:
            target = Target(target_id, chain.chain_id, NodeId(target_id // 100), 0)
            targets[target_id] = replace(target, **{"local_state": LocalState.UPTODATE} | told)
    nodes = {
        n: Node(n, frozenset({Role.STORAGE}), "mem:x", "i", state=NodeState.CONNECTED)
        for n in NODE_IDS
    }
    info = RoutingInfo(1, "c", nodes=nodes, targets=targets, chains=chains)
    return RotationView(info, book or MoveBook(), heard, section, now_s)


def after_quiet(view: RotationView, seconds: float = 20.0) -> dict[ChainId, TargetId]:
    """Return what is done about a picture that has stayed the same for so long."""
    rotations = Rotations()
    assert not rotations.next_steps(view)
    return rotations.next_steps(replace(view, now_s=view.now_s + seconds))


def test_a_chain_out_of_order_is_rotated_when_it_has_been_quiet():
    assert after_quiet(view_of((1, 3, 2))) == {1: 301}
    assert not after_quiet(view_of((1, 3, 2)), 19.9)
    assert not after_quiet(view_of((1, 2, 3)))


def test_a_change_of_the_chain_begins_the_time_anew():
    rotations = Rotations()
    rotations.next_steps(view_of((1, 3, 2)))
    assert not rotations.next_steps(view_of((1, 3, 2), now_s=15.0, version=3))
    assert not rotations.next_steps(view_of((1, 3, 2), now_s=30.0, version=3))
    assert rotations.next_steps(view_of((1, 3, 2), now_s=35.0, version=3)) == {1: 301}


def test_what_was_not_watched_does_not_count():
    rotations = Rotations()
    rotations.next_steps(view_of((1, 3, 2)))
    rotations.forget()
    assert not rotations.next_steps(view_of((1, 3, 2), now_s=30.0))


@pytest.mark.parametrize(
    "view",
    [
        view_of((2, 1)),
        view_of((1, 3, 2), states=[S, S, PublicState.SYNCING]),
        view_of((1, 3, 2), heard=NODE_IDS - {2}),
        view_of((1, 3, 2), low_space=True),
        view_of((1, 3, 2), is_slow=True),
        view_of((1, 3, 2), trouble="full"),
        view_of((1, 3, 2), local_state=LocalState.ONLINE),
        view_of((1, 3, 2), book=MoveBook(drains=frozenset({Drain(NodeId(2))}))),
        view_of((1, 3, 2), section=MgmtdSection(rotate_after_s=0.0)),
        view_of((3, 4, 5), (5, 4, 3), states=[S, S, PublicState.OFFLINE]),
    ],
    ids=["two", "missing", "unheard", "full", "slow", "trouble", "online", "drain", "off", "busy"],
)
def test_nothing_is_rotated_while_something_is_amiss(view):
    assert not after_quiet(view)


@pytest.mark.parametrize("state", [S, PublicState.OFFLINE])
def test_a_chain_that_names_what_is_not_there_holds_up_no_other(state):
    view = view_of((4, 6, 5), (1, 3, 2), states=[S, S, state])
    targets = {t: target for t, target in view.info.targets.items() if t != 501}
    view = replace(view, info=replace(view.info, targets=targets))
    assert after_quiet(view) == {2: 302}
    nodes = {n: node for n, node in view.info.nodes.items() if n != 6}
    assert after_quiet(replace(view, info=replace(view.info, nodes=nodes))) == {2: 302}


def test_nothing_is_rotated_while_it_moves():
    chain, leaving, joining = ChainId(1), TargetId(201), TargetId(401)
    move = Move(MoveId(1), chain, leaving, joining, NodeId(4), 0, MoveReason.REBALANCE)
    assert not after_quiet(view_of((1, 3, 2), book=MoveBook().with_move(move)))


def test_so_many_at_once_and_the_next_when_one_is_done():
    orders = [(1, 3, 2), (4, 6, 5), (7, 9, 8)]
    rotations = Rotations()
    rotations.next_steps(view_of(*orders))
    assert rotations.next_steps(view_of(*orders, now_s=20.0)) == {1: 301, 2: 602}
    assert not rotations.next_steps(view_of(*orders, now_s=21.0))
    gone = [S, S, PublicState.SYNCING]
    orders[0] = (1, 2, 3)
    assert not rotations.next_steps(view_of(*orders, now_s=22.0, states=gone, version=2))
    done = view_of(*orders, now_s=42.0, version=4)
    assert not rotations.next_steps(done)  # 1 is done; of 2 and 3 the version is another one here
    assert rotations.next_steps(replace(done, now_s=62.0)) == {2: 602, 3: 903}


def test_a_step_without_effect_is_repeated_after_another_quiet_time():
    rotations, view = Rotations(), view_of((1, 3, 2))
    rotations.next_steps(view)
    assert rotations.next_steps(replace(view, now_s=20.0))
    assert not rotations.next_steps(replace(view, now_s=20.0 + NO_EFFECT_S))
    assert not rotations.next_steps(replace(view, now_s=39.0 + NO_EFFECT_S))
    assert rotations.next_steps(replace(view, now_s=40.0 + NO_EFFECT_S)) == {1: 301}


def test_who_does_not_come_back_holds_the_others_up_for_a_while_only():
    orders, section = [(1, 3, 2), (4, 6, 5)], replace_max(1)
    rotations = Rotations()
    rotations.next_steps(view_of(*orders, section=section))
    assert rotations.next_steps(view_of(*orders, now_s=20.0, section=section)) == {1: 301}
    orders[0] = (1, 2, 3)
    gone = {"states": [S, S, PublicState.OFFLINE], "section": section, "version": 2}
    assert not rotations.next_steps(view_of(*orders, now_s=21.0, **gone))
    assert not rotations.next_steps(view_of(*orders, now_s=60.0, **gone))
    assert rotations.next_steps(view_of(*orders, now_s=70.0, **gone)) == {2: 602}


def replace_max(count: int) -> MgmtdSection:
    return MgmtdSection(rotate_after_s=20.0, rotations_max=count, move_stall_s=50.0)


# ---- whole managers -----------------------------------------------------------------------------


async def test_a_member_that_came_back_gets_its_place_again_by_itself(autojump_clock):
    async with cluster_of(manager_count=2, section=SECTION) as cluster:
        await cluster.up()
        await cluster.storages[12].kill()
        await cluster.until(lambda i: cluster.states(i) != [S, S, S])
        await cluster.start_storage(12)
        whole = [S, S, S]
        info = await cluster.until(lambda i: cluster.states(i) == cluster.states(i, 2) == whole)
        assert info.chain(1).serving == (1101, 1301, 1201)
        began_s = trio.current_time()
        wanted = [(1101, 1201, 1301), (1102, 1202, 1302)]
        await cluster.until(lambda i: [i.chain(c).serving for c in (1, 2)] == wanted, 60.0)
        assert trio.current_time() - began_s >= SECTION.rotate_after_s
        assert sorted(cluster.storages[13].orders) == [("offline", 1301), ("offline", 1302)]
        await trio.sleep(60)
        assert sum(len(s.orders) for s in cluster.storages.values()) == 2


async def test_a_new_primary_watches_for_itself_first(autojump_clock):
    async with cluster_of(manager_count=2, section=SECTION) as cluster:
        await cluster.up()
        await cluster.storages[12].kill()
        await cluster.until(lambda i: cluster.states(i) != [S, S, S])
        await cluster.start_storage(12)
        await cluster.until(lambda i: cluster.states(i) == cluster.states(i, 2) == [S, S, S])
        await trio.sleep(SECTION.rotate_after_s - 5)
        (primary,) = cluster.primaries
        await primary.kill()
        await trio.sleep(15)
        assert not cluster.storages[13].orders
        await cluster.until(lambda i: i.chain(1).serving == (1101, 1201, 1301), 60.0)
