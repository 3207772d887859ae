"""Making a chain table: the methods in their order, and what is known of the result.

    1. Quotas by weight, the tightest limits per failure domain (quotas.py, model.py).
    2. Chains of nodes: by turning base chains where nodes are alike (cyclic.py); else, and for
       what turning leaves over, by search (spread.py); then, if asked for and the table is
       small, by the solver (exact.py).
    3. Members onto disks (sites.py).

Always answers, or says what cannot be: the solver only improves.  The same arguments give the same
table, unless the solver or the clock ended it.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Final

from . import exact
from .cyclic import circle, orbits
from .descent import ROUNDING, Block, never
from .model import Disk, PlacementError, Shape, Site, Table, check_disks, limits_of, shape_of
from .quotas import quotas as by_weight
from .sites import on_disks
from .spread import NodeSearch, cost_bound, dealt

PROPOSALS_PER_TARGET: Final = 25
"""Of a large table."""

SMALL_PROPOSALS_PER_TARGET: Final = 400
PROPOSALS_SMALL: Final = 20_000
"""Up to here a small table gets more for each target."""

ATTEMPTS: Final = 4
"""From different beginnings, while the cost is above its bound."""

ATTEMPTS_TARGET_COUNT_MAX: Final = 2_000
"""A larger table gets one attempt: what differs between attempts evens out."""


@dataclass(frozen=True, slots=True)
class Made:
    """A table, and how good its chains of nodes are."""

    table: Table
    shape: Shape
    method: str
    """For people: turning, search, solver."""
    cost: float
    """Of spread.py."""
    bound: float
    """No table of this shape costs less."""

    @property
    def is_optimal(self) -> bool:
        """True if no chains of nodes are better balanced;
        of disks within nodes nothing is claimed.
        """
        return self.cost <= self.bound + ROUNDING


@dataclass(frozen=True, slots=True)
class Effort:
    """How hard to try."""

    factor: float = 1.0
    """1.0 is usual; the time for a table that is hard to balance grows with its square."""
    solver_s: float = 0.0
    """What the solver may take for a small table whose cost is above its bound;
    0: it is not asked.
    """
    seed: int = 0
    is_late: Callable[[], bool] = never
    """Looked at now and then; when true, the best so far is what is returned."""


def make(
    disks: Sequence[Disk],
    chain_count: int,
    replica_count: int,
    *,
    quotas: Mapping[Site, int] | None = None,
    beside: Sequence[Sequence[Site]] = (),
    effort: Effort = Effort(),
) -> Made:
    """Return a chain table.

    Args:
        disks: at least replica_count nodes with weight.
        chain_count: >= 1.
        replica_count: targets per chain, >= 1.
        quotas: exactly so many targets on each disk; None: by weight.
        beside: chains of other tables, on the same disks or some of them; the
            new ones balance with them.
        effort: how hard to try.

    Raises:
        PlacementError: the figures cannot be met.
    """
    check_disks(disks)
    if chain_count < 1 or replica_count < 1:
        raise PlacementError("chains and replicas are at least 1")
    taken = Counter(site for chain in beside for site in chain)
    if quotas is None:
        quotas = by_weight(disks, chain_count, replica_count, taken=taken)
    given = dict(quotas)
    if sum(given.values()) != chain_count * replica_count:
        raise PlacementError(
            f"{sum(given.values())} targets do not divide into {chain_count} chains of "
            f"{replica_count}"
        )
    shape = shape_of(disks, chain_count, replica_count, given)
    near = [[site.node_id for site in chain] for chain in beside]
    chains, method, cost, bound = _chains_of_nodes(shape, near, effort)
    table = on_disks(shape, chains, _random(effort.seed), effort.factor, effort.is_late)
    return Made(table, shape, method, cost, bound)


def _chains_of_nodes(
    shape: Shape, beside: Sequence[Sequence[int]], effort: Effort
) -> tuple[list[Block], str, float, float]:
    """Return chains, the method that made them, their cost and its bound."""
    bound = cost_bound(shape) if not beside else 0.0
    target_count = shape.chain_count * shape.replica_count
    attempts = max(1, round(ATTEMPTS * effort.factor))
    if target_count > ATTEMPTS_TARGET_COUNT_MAX:
        attempts = 1
    found: list[tuple[float, str, list[Block]]] = []
    for method in (_turned, _searched):
        for attempt in range(attempts):
            chains = method(shape, beside, _random(effort.seed + attempt), effort, bound)
            if chains is None:
                break
            cost = NodeSearch(shape, chains, beside).cost
            found.append((cost, method.__name__[1:], chains))
            if cost <= bound + ROUNDING:
                return chains, method.__name__[1:], cost, bound
            if effort.is_late():
                break
    cost, name, chains = min(found, key=lambda one: one[0])
    if effort.solver_s and not beside and exact.is_there() and exact.is_small(shape):
        solved = exact.solve(shape, chains, effort.solver_s)
        bound = max(bound, solved.bound)
        if solved.chains is not None:
            solved_cost = NodeSearch(shape, solved.chains).cost
            if solved_cost < cost - ROUNDING:
                return solved.chains, "solved", solved_cost, min(bound, solved_cost)
    return chains, name, cost, min(bound, cost)


def _random(seed: int) -> Random:
    return Random(seed)  # noqa: S311 - not for secrets: the same seed is to give the same table


def _proposals(shape: Shape, effort: Effort) -> int:
    target_count = shape.chain_count * shape.replica_count
    small = min(SMALL_PROPOSALS_PER_TARGET * target_count, PROPOSALS_SMALL)
    return int(effort.factor * max(PROPOSALS_PER_TARGET * target_count, small))


def _searched(
    shape: Shape, beside: Sequence[Sequence[int]], random: Random, effort: Effort, bound: float
) -> list[Block]:
    search = NodeSearch(shape, dealt(shape, random), beside)
    search.improve(random, _proposals(shape, effort), bound, effort.is_late)
    return search.chains


def _turned(
    shape: Shape, beside: Sequence[Sequence[int]], random: Random, effort: Effort, bound: float
) -> list[Block] | None:
    """Return turned base chains, completed by search; None where turning is no use."""
    ring = circle(shape)
    if ring is None or beside:
        return None
    turned = orbits(shape, ring, random, _proposals(shape, effort), effort.is_late)
    if not turned:
        return None
    rest = _without(shape, turned)
    if rest is None:
        return turned
    if any(new > old for new, old in zip(rest.limits, shape.limits, strict=True)):
        return None
    search = NodeSearch(rest, dealt(rest, random), turned, shape.sizes)
    search.improve(random, _proposals(rest, effort), bound, effort.is_late)
    return turned + search.chains


def _without(shape: Shape, chains: Sequence[Sequence[int]]) -> Shape | None:
    """Return what is left of a shape when some of its chains are made; None when nothing is."""
    used = Counter(node for chain in chains for node in chain)
    left = {node: quota - used[node] for node, quota in shape.node_quotas.items()}
    chain_count = shape.chain_count - len(chains)
    if not chain_count:
        return None
    return replace(
        shape,
        quotas={Site(node, 0): quota for node, quota in left.items()},
        limits=limits_of(shape.domains, left, chain_count),
        chain_count=chain_count,
    )
