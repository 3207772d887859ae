"""Chain tables for small clusters: which node's target stands where in which chain.  Pure mathematics.

A chain takes its targets from different nodes.  When a node fails, the nodes it shares chains with carry its
load and, later, resync it; so every pair of nodes should share equally many chains (`pair_count`), and heads and
tails, which do more work than the middle, should be spread equally (`head_count`, `tail_count`).

Method, deterministic: fill chain after chain with the nodes that have most targets left, of those the ones that
have met least; exchange targets between chains while that evens the pairs out; then order every chain so that each node
stands at each position equally often (positions.py, exact).  For pairs it reaches the ideal for one chain per node and
for complete rotations; it is no solver.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import Final, NamedTuple

from .positions import ordered

EXCHANGE_ROUNDS_MAX: Final = 20
"""Rounds over all pairs of chains; each ends early when it finds nothing to improve."""

EXCHANGE_CHAINS_MAX: Final = 300
"""Above this many chains exchanging costs more than it gains: greedy filling is even enough."""


class Slot(NamedTuple):
    """One target of the table."""

    node_id: int
    target_index: int
    """Ordinal of the target on its node, from 0."""


Pairs = Counter[tuple[int, int]]


def chain_table(
    node_ids: Sequence[int], targets_per_node: int, replica_count: int
) -> list[tuple[Slot, ...]]:
    """Return chains, head first, that use every target exactly once and no node twice in a chain.

    Args:
        node_ids: distinct, at least replica_count of them.
        targets_per_node: >= 1; together a multiple of replica_count.
        replica_count: targets per chain, >= 1.

    Raises:
        ValueError: the figures cannot be met; the message says which.
    """
    _check_figures(node_ids, targets_per_node, replica_count)
    chains = _filled(sorted(node_ids), targets_per_node, replica_count)
    if len(chains) <= EXCHANGE_CHAINS_MAX:
        _exchange(chains)
    used: Counter[int] = Counter()
    table = []
    for chain in ordered(chains):
        table.append(tuple(Slot(node_id, used[node_id]) for node_id in chain))
        used.update(chain)
    return table


def _check_figures(node_ids: Sequence[int], targets_per_node: int, replica_count: int) -> None:
    if replica_count < 1 or targets_per_node < 1:
        raise ValueError("replica count and targets per node are at least 1")
    if len(set(node_ids)) < len(node_ids):
        raise ValueError(f"a node is named twice: {list(node_ids)}")
    if len(node_ids) < replica_count:
        raise ValueError(f"{replica_count} replicas need as many nodes, not {len(node_ids)}")
    if len(node_ids) * targets_per_node % replica_count:
        raise ValueError(
            f"{len(node_ids)} nodes with {targets_per_node} targets each do not divide"
            f" into chains of {replica_count}"
        )


def _filled(nodes: Sequence[int], targets_per_node: int, replica_count: int) -> list[list[int]]:
    """Fill chains from the fullest nodes: so no node is left with more targets than chains remain."""
    left = dict.fromkeys(nodes, targets_per_node)
    pairs: Pairs = Counter()
    chains = []
    for _ in range(len(nodes) * targets_per_node // replica_count):
        chain: list[int] = []
        while len(chain) < replica_count:
            chain.append(
                min(
                    (n for n in nodes if n not in chain),
                    key=lambda n: (-left[n], sum(pairs[_pair(n, m)] for m in chain), n),
                )
            )
        for node_id in chain:
            left[node_id] -= 1
        pairs.update(_pairs_of(chain))
        chains.append(chain)
    assert not any(left.values()), left
    return chains


def _exchange(chains: list[list[int]]) -> None:
    """Exchange nodes between chains in place while the sum of squared pair counts falls."""
    pairs: Pairs = Counter(pair for chain in chains for pair in _pairs_of(chain))
    for _ in range(EXCHANGE_ROUNDS_MAX):
        has_improved = False
        for one, other in combinations(chains, 2):
            for here in range(len(one)):
                for there in range(len(other)):
                    has_improved |= _try_exchange(pairs, one, here, other, there)
        if not has_improved:
            return


def _try_exchange(pairs: Pairs, one: list[int], here: int, other: list[int], there: int) -> bool:
    a, b = one[here], other[there]
    if a == b or a in other or b in one:
        return False
    rest_one = [n for n in one if n != a]
    rest_other = [n for n in other if n != b]
    change: Pairs = Counter()
    change.subtract(_pair(a, n) for n in rest_one)
    change.subtract(_pair(b, n) for n in rest_other)
    change.update(_pair(b, n) for n in rest_one)
    change.update(_pair(a, n) for n in rest_other)
    if sum((2 * pairs[pair] + delta) * delta for pair, delta in change.items()) >= 0:
        return False
    pairs.update(change)
    one[here], other[there] = b, a
    return True


def _pair(a: int, b: int) -> tuple[int, int]:
    return (a, b) if a < b else (b, a)


def _pairs_of(chain: Sequence[int]) -> Iterator[tuple[int, int]]:
    return (_pair(a, b) for a, b in combinations(chain, 2))
