"""Chain tables: exact use of targets, and bounds on how uneven they may be."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from placement.chain_table import Slot, chain_table
from placement.check import Spread, check
from placement.positions import ordered


def test_three_nodes_three_replicas_take_turns():
    table = chain_table([10, 20, 30], 6, 3)
    figures = check(table)
    assert figures.chain_count == 6
    assert figures.head_count == figures.tail_count == Spread(2, 2)
    assert figures.pair_count == Spread(6, 6)
    assert figures.failure_load == 1.0
    assert sorted(s.target_index for c in table for s in c if s.node_id == 20) == list(range(6))


@pytest.mark.parametrize(("nodes", "per_node", "replicas"), [(5, 6, 3), (7, 3, 3), (6, 10, 3)])
def test_known_designs_are_nearly_even(nodes, per_node, replicas):
    figures = check(chain_table(range(1, nodes + 1), per_node, replicas))
    assert figures.target_count == Spread(per_node, per_node)
    assert figures.pair_count.largest - figures.pair_count.smallest <= 1
    assert figures.head_count.largest - figures.head_count.smallest <= 1


SMALL_TABLES = [
    (nodes, per_node, replicas)
    for nodes in range(1, 10)
    for per_node in range(1, 13)
    for replicas in range(1, 6)
    if nodes >= replicas and nodes * per_node % replicas == 0
]


def test_every_small_table_is_exact_and_even():
    """All of them, so that no bound hangs on which ones a random choice tries."""
    for nodes, per_node, replicas in SMALL_TABLES:
        table = chain_table(range(nodes), per_node, replicas)
        slots = sorted(slot for chain in table for slot in chain)
        assert slots == [Slot(n, i) for n in range(nodes) for i in range(per_node)]
        assert {len(chain) for chain in table} == {replicas}
        pairs = check(table).pair_count
        assert pairs.largest - pairs.smallest <= 2, (nodes, per_node, replicas)


def test_the_same_figures_give_the_same_table():
    assert chain_table(range(7), 12, 3) == chain_table(range(7), 12, 3)


@given(st.data(), st.integers(1, 12), st.integers(1, 6), st.integers(0, 60))
def test_every_node_stands_at_every_position_equally_often(data, nodes, replicas, chain_count):
    nodes = max(nodes, replicas)
    chain = st.lists(st.integers(1, nodes), min_size=replicas, max_size=replicas, unique=True)
    chains = data.draw(st.lists(chain, min_size=chain_count, max_size=chain_count))
    result = ordered(chains)
    assert [sorted(chain) for chain in result] == [sorted(chain) for chain in chains]
    for node in range(1, nodes + 1):
        stood = [sum(chain[place] == node for chain in result) for place in range(replicas)]
        assert max(stood) - min(stood) <= 1, (node, stood)


def test_impossible_figures_are_refused_by_name():
    for args, words in [
        (([1, 1], 1, 1), "twice"),
        (([1], 1, 0), "at least 1"),
        (([1, 2], 1, 3), "3 replicas"),
        (([1, 2, 3, 4], 1, 3), "do not divide"),
    ]:
        with pytest.raises(ValueError, match=words):
            chain_table(*args)


def test_check_refuses_what_is_no_table():
    with pytest.raises(ValueError, match="twice"):
        check([(Slot(1, 0),), (Slot(1, 0),)])
    with pytest.raises(ValueError, match="one node"):
        check([(Slot(1, 0), Slot(1, 1))])
    with pytest.raises(ValueError, match="empty"):
        check([])
