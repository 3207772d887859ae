"""Figures of a chain table: is it valid, how evenly does load fall, and how does a loss spread.

Pure mathematics.

`evenness` of a load is the largest of (what one carries / what it should carry), where each should
carry in proportion to its targets; 1.0 is perfect.  As loads are whole numbers of targets, often
less cannot be had: `floor` says what is the least.
"""

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heapreplace
from itertools import combinations
from typing import TypeVar

from .model import Disk, PlacementError, Site, feeder, limits_of, nested
from .spread import peers

Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Spread:
    """Smallest and largest of a count."""

    smallest: int
    largest: int


@dataclass(frozen=True, slots=True)
class Evenness:
    """Of the worst case of a kind of loss: largest load over the fair share."""

    worst: float
    floor: float
    """No table with these quotas and failure domains has a worst case below it."""


@dataclass(frozen=True, slots=True)
class Figures:
    """What `check` found."""

    chain_count: int
    replica_count: int
    """Of the longest chain."""
    domain_members: tuple[int, ...]
    """Most members of one chain in one domain, for each kind of domain, widest first;
    the last one is the node.
    """
    disk_targets: Spread
    node_targets: Spread
    node_heads: Spread
    node_tails: Spread
    disk_heads: Spread
    node_pairs: Spread
    """Chains that two nodes share, of those nodes that share any domain limit allows."""
    node_lost: Evenness
    """How evenly the other nodes bring a lost node's targets up to date."""
    disk_lost_feeds: int
    """Most targets that one disk feeds when another disk is lost."""
    node_lost_feeds: int
    """The same when a node is lost."""
    node_lost_reads: Evenness
    """How evenly the other nodes take over a lost node's reads."""


def check(table: Sequence[Sequence[Site]], disks: Sequence[Disk]) -> Figures:
    """Compute the figures.

    Args:
        table: chains, head first, of sites of `disks`.
        disks: all of them, also those without targets.

    Raises:
        PlacementError: it is no table: empty, with a chain that has two members on one
            node, or on an unknown disk.
    """
    domains = _checked(table, disks)
    nodes, sites = sorted(domains), sorted(disk.site for disk in disks)
    node_table = [[site.node_id for site in chain] for chain in table]
    targets = Counter(node for chain in node_table for node in chain)
    domains_used = {node: domains[node] for node in targets}
    limits = limits_of(domains_used, targets, len(table))
    may_share = {node: peers(domains_used, limits, node) for node in targets}
    disk_targets = Counter(site for chain in table for site in chain)
    pairs = Counter(pair for chain in node_table for pair in combinations(sorted(chain), 2))
    both_ways = pairs + Counter({(b, a): count for (a, b), count in pairs.items()})
    feeds = Counter(_feeds(table))
    by_node, by_disk = Counter[tuple[int, int]](), Counter[tuple[int, Site]]()
    for (lost, by), count in feeds.items():
        by_node[lost.node_id, by.node_id] += count
        by_disk[lost.node_id, by] += count
    return Figures(
        chain_count=len(table),
        replica_count=max(map(len, table)),
        domain_members=tuple(
            max(_most_together(domains[node][level] for node in chain) for chain in node_table)
            for level in range(len(domains[nodes[0]]))
        ),
        disk_targets=_spread(disk_targets, sites),
        node_targets=_spread(targets, nodes),
        node_heads=_spread(Counter(chain[0] for chain in node_table), nodes),
        node_tails=_spread(Counter(chain[-1] for chain in node_table), nodes),
        disk_heads=_spread(Counter(chain[0] for chain in table), sites),
        node_pairs=_spread(
            pairs, [(a, b) for a, b in combinations(nodes, 2) if b in may_share.get(a, ())]
        ),
        node_lost=_worst(by_node, targets, may_share),
        disk_lost_feeds=max(feeds.values(), default=0),
        node_lost_feeds=max(by_disk.values(), default=0),
        node_lost_reads=_worst(both_ways, targets, may_share),
    )


def _feeds(table: Sequence[Sequence[Site]]) -> Iterator[tuple[Site, Site]]:
    """Yield (lost, feeder) for each member of each chain, as if that alone were lost."""
    for chain in table:
        for lost in chain:
            by = feeder(chain, {lost})
            if by is not None:
                yield lost, by


def _most_together(names: Iterable[str]) -> int:
    return max(Counter(names).values())


def _checked(table: Sequence[Sequence[Site]], disks: Sequence[Disk]) -> dict[int, tuple[str, ...]]:
    if not table or not all(table):
        raise PlacementError("the table is empty, or one of its chains is")
    known = {disk.site: disk.domains for disk in disks}
    for number, chain in enumerate(table, 1):
        for site in chain:
            if site not in known:
                raise PlacementError(
                    f"chain {number}: node {site.node_id} disk {site.disk_index} is not among the "
                    "disks"
                )
        if len({site.node_id for site in chain}) < len(chain):
            raise PlacementError(f"chain {number} has two members on one node")
    return {
        site.node_id: (*nested(domains), f"node {site.node_id}") for site, domains in known.items()
    }


def _spread(counts: Mapping[Key, int], keys: Sequence[Key]) -> Spread:
    found = [counts.get(key, 0) for key in keys]
    return Spread(min(found, default=0), max(found, default=0))


def _worst(
    loads: Mapping[tuple[int, int], int],
    targets: Mapping[int, int],
    may_share: Mapping[int, Sequence[int]],
) -> Evenness:
    """Return the evenness of loads by (lost node, node that carries) in the worst case,
    and the worst floor.
    """
    worst = floor = 1.0
    for lost, others in may_share.items():
        carried = {other: loads.get((lost, other), 0) for other in others}
        shares = {other: targets[other] for other in others}
        worst = max(worst, evenness(carried, shares))
        floor = max(floor, evenness_floor(sum(carried.values()), list(shares.values())))
    return Evenness(worst, floor)


def evenness(carried: Mapping[Key, float], shares: Mapping[Key, float]) -> float:
    """Return the largest load over its fair share; 1.0 when there is nothing to carry."""
    total, whole = sum(carried.values()), sum(shares.values())
    if not total or not whole:
        return 1.0
    return max(load / (total * shares[key] / whole) for key, load in carried.items() if load)


def evenness_floor(total: int, shares: Sequence[float]) -> float:
    """Return the least evenness of whole loads that add up to a total."""
    if not total or not shares:
        return 1.0
    heap = [(1 / share, share, 1) for share in shares]
    heapify(heap)
    worst = 0.0
    for _ in range(total):
        worst, share, count = heap[0]
        heapreplace(heap, ((count + 1) / share, share, count + 1))
    return worst * sum(shares) / total
