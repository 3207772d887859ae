"""What a chain table is made for and of: disks with weights in failure domains, chains of places.

Pure mathematics.

Words: a *site* is a disk of a node; a *table* is a list of chains, a chain the
sites of its targets, head first.

The source rule (`feeder`) is that of specs/chain-state.md: who is absent stands behind all that
serve, and is brought up to date by its predecessor, so by the last of those that serve.  A table
spreads recovery well when, whoever is lost, the feeders of its chains are many.
"""

from collections import Counter
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

REPLICA_COUNT_MAX: Final = 5


class Site(NamedTuple):
    """A disk of a node."""

    node_id: int
    disk_index: int


Chain = tuple[Site, ...]
Table = list[Chain]


@dataclass(frozen=True, slots=True)
class Disk:
    """A place for targets."""

    site: Site
    weight: float = 1.0
    """Of its share of the targets; a disk of twice the capacity has twice the weight.

    0: takes none.
    """
    domains: tuple[str, ...] = field(default=())
    """Names of the failure domains that its node is in, widest first: zone, rack.

    As many for all nodes.
    """


class PlacementError(ValueError):
    """The figures cannot be met; the message says which, and what would help."""


def feeder(chain: Sequence[Site], absent: Container[Site]) -> Site | None:
    """Return who brings the next absent member of a chain up to date; None when nobody is left."""
    return next((site for site in reversed(chain) if site not in absent), None)


def check_disks(disks: Sequence[Disk]) -> None:
    """Check what belongs together.

    Raises:
        PlacementError: naming the disk.
    """
    domains: dict[int, tuple[str, ...]] = {}
    seen: set[Site] = set()
    for disk in disks:
        name = f"node {disk.site.node_id} disk {disk.site.disk_index}"
        if disk.site in seen:
            raise PlacementError(f"{name} is named twice")
        seen.add(disk.site)
        if not 0 <= disk.weight < float("inf"):
            raise PlacementError(f"{name}: weight {disk.weight}: 0 or more")
        if domains.setdefault(disk.site.node_id, disk.domains) != disk.domains:
            raise PlacementError(f"{name}: another disk of the node is in other failure domains")
    if len({len(found) for found in domains.values()}) > 1:
        raise PlacementError("give each node as many failure domains as the others")


@dataclass(frozen=True, slots=True)
class Shape:
    """What a table has to satisfy, whatever it makes of it: quotas and limits."""

    quotas: dict[Site, int]
    """Targets of each disk that has any."""
    domains: dict[int, tuple[str, ...]]
    """Of each node; the last one is the node itself."""
    limits: tuple[int, ...]
    """How many members of a chain may be in one domain, for each kind of domain."""
    replica_count: int
    chain_count: int

    @property
    def node_quotas(self) -> dict[int, int]:
        """Targets of each node."""
        found: Counter[int] = Counter()
        for site, quota in self.quotas.items():
            found[site.node_id] += quota
        return dict(found)

    @property
    def sizes(self) -> dict[int, float]:
        """How large each node is meant to be, 1.0 on average;
        quotas that differ by rounding alone are alike.
        """
        node_quotas = self.node_quotas
        if max(node_quotas.values()) - min(node_quotas.values()) <= 1:
            return dict.fromkeys(self.domains, 1.0)
        mean = sum(node_quotas.values()) / len(node_quotas)
        return {node: quota / mean for node, quota in node_quotas.items()}


def shape_of(
    disks: Sequence[Disk],
    chain_count: int,
    replica_count: int,
    quotas: Mapping[Site, int],
) -> Shape:
    """Return the quotas with the tightest limits under which every target can be used.

    Raises:
        PlacementError: too few nodes, or a node would need two members of one chain.
    """
    domains = {
        disk.site.node_id: (*nested(disk.domains), f"node {disk.site.node_id}")
        for disk in disks
        if quotas.get(disk.site)
    }
    if len(domains) < replica_count:
        raise PlacementError(
            f"{replica_count} replicas need as many nodes, not {len(domains)}: one copy per node"
        )
    used = {site: quota for site, quota in quotas.items() if quota}
    shape = Shape(used, domains, (), replica_count, chain_count)
    limits = limits_of(domains, shape.node_quotas, chain_count)
    if limits[-1] > 1:
        raise PlacementError(
            f"one node would have {limits[-1]} members of a chain ({chain_count} chains of"
            f" {replica_count}): give more nodes, fewer replicas, or weights that differ less"
        )
    return replace(shape, limits=limits)


def limits_of(
    domains: Mapping[int, Sequence[str]], node_quotas: Mapping[int, int], chain_count: int
) -> tuple[int, ...]:
    """Return the tightest limits that can be kept, for each kind of domain.

    Some chain has at least the share of the fullest domain, its targets / chains, rounded up; and
    dealing (`dealt` in spread.py) gives no chain more.
    """
    limits = []
    for level in range(len(next(iter(domains.values())))):
        filled: Counter[str] = Counter()
        for node, quota in node_quotas.items():
            filled[domains[node][level]] += quota
        limits.append(-(-max(filled.values()) // chain_count))
    return tuple(limits)


def nested(names: Sequence[str]) -> tuple[str, ...]:
    """Return names that contain the wider domains' names:
    rack 1 of zone a is not rack 1 of zone b.
    """
    return tuple("/".join(names[: level + 1]) for level in range(len(names)))
