"""Figures of a chain table: how evenly load falls, and how a node's failure spreads.  Pure mathematics."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

from .chain_table import Slot


@dataclass(frozen=True, slots=True)
class Spread:
    """Smallest and largest of a count over all nodes or pairs."""

    smallest: int
    largest: int


@dataclass(frozen=True, slots=True)
class Figures:
    """What `check` found."""

    chain_count: int
    target_count: Spread
    """Chains per node."""
    head_count: Spread
    tail_count: Spread
    pair_count: Spread
    """Chains shared by two nodes."""
    failure_load: float
    """When the worst node fails: largest extra share of its load on one survivor over the mean; 1.0 is ideal."""


def check(table: Sequence[Sequence[Slot]]) -> Figures:
    """Compute the figures; raises ValueError when a target is used twice or a chain repeats a node."""
    slots = [slot for chain in table for slot in chain]
    if not slots or len(set(slots)) < len(slots):
        raise ValueError("a target is used twice" if slots else "the table is empty")
    if any(len({slot.node_id for slot in chain}) < len(chain) for chain in table):
        raise ValueError("a chain has two targets on one node")
    nodes = sorted({slot.node_id for slot in slots})
    pairs = Counter(
        pair for chain in table for pair in combinations(sorted(s.node_id for s in chain), 2)
    )
    return Figures(
        len(table),
        _spread(Counter(slot.node_id for slot in slots), nodes),
        _spread(Counter(chain[0].node_id for chain in table), nodes),
        _spread(Counter(chain[-1].node_id for chain in table), nodes),
        _spread(pairs, list(combinations(nodes, 2))),
        max((_failure_load(pairs, nodes, failed) for failed in nodes), default=1.0),
    )


def _spread(counts: Counter[int] | Counter[tuple[int, int]], keys: Sequence[object]) -> Spread:
    found = [counts[key] for key in keys]  # type: ignore[index]  # keys are of the counter's kind
    return Spread(min(found, default=0), max(found, default=0))


def _failure_load(pairs: Counter[tuple[int, int]], nodes: Sequence[int], failed: int) -> float:
    shared = [pairs[min(n, failed), max(n, failed)] for n in nodes if n != failed]
    mean = sum(shared) / len(shared) if shared else 0.0
    return max(shared) / mean if mean else 1.0
