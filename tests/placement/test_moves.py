"""Growth and shrink: as few moves as can be, exact shares, limits kept, recovery still even."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placement.check import Spread, check
from placement.make import Effort, make
from placement.model import Disk, PlacementError, Site
from placement.moves import plan_moves
from placement.quotas import quotas

LITTLE = Effort(0.05)


def grid(nodes, disks=1, racks=0):
    return [
        Disk(Site(n, d), 1.0, (f"r{n % racks}",) if racks else ())
        for n in nodes
        for d in range(disks)
    ]


def carried_out(table, moves):
    """What the manager makes of the moves: each place in a chain is moved once at most."""
    chains = [list(chain) for chain in table]
    for move in moves:
        chain = chains[move.chain]
        assert move.joining.node_id not in {s.node_id for s in chain} - {move.leaving.node_id}
        chain[chain.index(move.leaving)] = move.joining
    return [tuple(chain) for chain in chains]


@pytest.mark.parametrize(
    ("before", "after", "least"),
    [(5, 6, 10), (5, 4, 12), (3, 5, 24), (5, 5, 0), (4, 8, 28)],
)
def test_growing_and_shrinking_take_the_fewest_moves(before, after, least):
    old = make(grid(range(before)), 20, 3, effort=LITTLE).table
    plan = plan_moves(old, grid(range(after)))
    assert len(plan.moves) == plan.least == least
    assert plan.left == 0
    figures = check(plan.table, grid(range(after)))
    assert figures.disk_targets.largest - figures.disk_targets.smallest <= 1
    assert figures.node_lost.worst <= 2.5


def test_a_new_disk_in_every_node_takes_its_share():
    old = make(grid(range(6), 1), 24, 3, effort=LITTLE).table
    new = grid(range(6), 2)
    plan = plan_moves(old, new)
    assert len(plan.moves) == plan.least == 36
    assert check(plan.table, new).disk_targets == Spread(6, 6)
    for move in plan.moves:
        assert move.leaving.node_id != move.joining.node_id


def test_a_disk_of_weight_0_is_emptied():
    disks = grid(range(6))
    old = make(disks, 20, 3, effort=LITTLE).table
    plan = plan_moves(old, [Disk(Site(0, 0), 0.0), *disks[1:]])
    assert len(plan.moves) == 10
    assert {move.leaving.node_id for move in plan.moves} == {0}


@st.composite
def changes(draw):
    racks = draw(st.sampled_from([0, 0, 3]))
    replicas = draw(st.integers(1, 3))
    nodes = draw(st.integers(4, 8))
    disks = grid(range(nodes), draw(st.integers(1, 2)), racks)
    gone = draw(st.integers(0, nodes - max(3, replicas)))
    added = grid(range(nodes, nodes + draw(st.integers(0, 4))), 2, racks)
    return disks, [d for d in disks if d.site.node_id >= gone] + added, replicas


@settings(deadline=None, max_examples=12)
@given(changes(), st.integers(4, 14), st.integers(0, 3))
def test_every_plan_is_exact_and_safe(change, chain_count, seed):
    disks, new, replicas = change
    old = make(disks, chain_count, replicas, effort=LITTLE).table
    before = check(old, disks).domain_members
    plan = plan_moves(old, new, Effort(0.2, seed=seed))
    assert carried_out(old, plan.moves) == plan.table
    held = Counter(site for chain in old for site in chain)
    now = Counter(site for chain in plan.table for site in chain)
    share = Counter(quotas(new, chain_count, replicas, held))
    assert plan.least == sum((held - share).values())
    assert plan.left == sum((now - share).values())
    assert plan.left == 0
    assert plan.least <= len(plan.moves) <= 2 * plan.least
    after = check(plan.table, new).domain_members
    fresh = make(new, chain_count, replicas, effort=LITTLE).shape.limits
    assert all(a <= max(b, c) for a, b, c in zip(after, before, fresh, strict=True))


def test_too_few_nodes_are_refused():
    old = make(grid(range(4)), 8, 3, effort=LITTLE).table
    with pytest.raises(PlacementError, match="3 replicas need as many nodes, not 2"):
        plan_moves(old, grid(range(2)))


@pytest.mark.parametrize(
    ("table", "told"),
    [([[0, 1], [0, 1, 2]], "chains of 2, 3 members"), ([], "chains of no members")],
)
def test_chains_of_several_lengths_are_refused(table, told):
    """As one has that was exported while a target was joining."""
    with pytest.raises(PlacementError, match=told):
        plan_moves([[Site(node, 0) for node in chain] for chain in table], grid(range(3)))
