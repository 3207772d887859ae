"""How many targets each disk gets, by weight.  Pure mathematics.

Invariants:
    - The quotas add up to exactly what is asked for; each is its exact share rounded up or down,
      unless a node's share is capped: no node has more targets than there are chains.
    - Shares that are rounded up belong first to nodes, then to disks, that have as many
      targets already (fewest moves), then to those with the largest rest, then to those with
      the fewest targets of other tables.
Source: the method of largest remainders, attributed to A. Hamilton (1791), in two
steps: nodes, then disks of a node.
"""

from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from math import floor
from typing import TypeVar

from .descent import ROUNDING
from .model import Disk, PlacementError, Site

Key = TypeVar("Key", bound=Hashable)
Rank = tuple[int, int]
"""Targets of this table; of other tables."""


def quotas(
    disks: Sequence[Disk],
    chain_count: int,
    replica_count: int,
    held: Mapping[Site, int] | None = None,
    taken: Mapping[Site, int] | None = None,
) -> dict[Site, int]:
    """Return how many targets each disk gets.

    Args:
        disks: in any order.
        chain_count: >= 1.
        replica_count: targets per chain, >= 1.
        held: how many targets of the table a disk has now; it keeps them
            where rounding leaves a choice.
        taken: how many of other tables; else who has fewest is rounded up.

    Raises:
        PlacementError: too few nodes with weight.
    """
    held, taken = held or {}, taken or {}
    of_node: dict[int, list[Disk]] = defaultdict(list)
    for disk in disks:
        if disk.weight > 0:
            of_node[disk.site.node_id].append(disk)
    if len(of_node) < replica_count:
        raise PlacementError(
            f"{replica_count} replicas need as many nodes, not {len(of_node)}: one copy per node"
        )
    weights = {node: sum(d.weight for d in found) for node, found in of_node.items()}
    rank_of_node = {
        node: (sum(held.get(d.site, 0) for d in found), sum(taken.get(d.site, 0) for d in found))
        for node, found in of_node.items()
    }
    rank = {disk.site: (held.get(disk.site, 0), taken.get(disk.site, 0)) for disk in disks}
    shares = _shares(weights, chain_count * replica_count, rank_of_node, chain_count)
    made: dict[Site, int] = {}
    for node, found in of_node.items():
        by_site = {disk.site: disk.weight for disk in found}
        made |= _shares(by_site, shares[node], rank, shares[node])
    return {disk.site: made.get(disk.site, 0) for disk in disks}


def _shares(
    weights: Mapping[Key, float], total: int, rank: Mapping[Key, Rank], cap: int
) -> dict[Key, int]:
    """Apportion a total by weight, nobody above the cap;
    what a capped one leaves goes to the others.
    """
    capped: dict[Key, int] = {}
    while True:
        left = total - sum(capped.values())
        rest = {key: weight for key, weight in weights.items() if key not in capped}
        sum_ = sum(rest.values())
        exact = {key: left * weight / sum_ for key, weight in rest.items()}
        above = [key for key, share in exact.items() if share > cap]
        if not above:
            return capped | _rounded(exact, left, rank, cap)
        capped |= dict.fromkeys(above, cap)


def _rounded(
    exact: Mapping[Key, float], total: int, rank: Mapping[Key, Rank], cap: int
) -> dict[Key, int]:
    made = {key: floor(share + ROUNDING) for key, share in exact.items()}
    candidates = sorted(
        (key for key in exact if made[key] < cap),
        key=lambda key: (
            exact[key] - made[key] < ROUNDING,  # an exact share is not rounded up without need
            rank[key][0] <= made[key],
            made[key] - exact[key],
            rank[key][1],
        ),
    )
    for key in candidates[: total - sum(made.values())]:
        made[key] += 1
    return made
