"""Where a target may go: disks with room, in other failure domains than the other members
of its chain.  Pure.

A node's failure domains are its tags `rack` and `host`; without a tag the node is a domain of its
own.  A chain never has two members on one node, and a move never puts more of its members into one
rack, or onto one host, than there were before it.

Among the disks allowed, the best is none that was given up lately, in the fewest domains of
other members, has the fewest moves coming to its node, then fewest members of chains for its
size, then a node that shares the fewest chains with the other members (so that the next failure
is carried by many), then most room.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations
from typing import NamedTuple

from ..schema.ids import ChainId, NodeId, TargetId
from ..schema.routing import (
    DOMAIN_TAGS,
    Chain,
    LocalState,
    Node,
    NodeState,
    Role,
    RoutingInfo,
    Target,
)
from .move_book import Move, MoveBook


class Site(NamedTuple):
    """A place for targets."""

    node_id: NodeId
    disk_index: int


@dataclass(frozen=True, slots=True)
class Disk:
    """What a node last said of one of its disks."""

    disk_index: int
    capacity_bytes: int
    free_bytes: int
    is_failed: bool


@dataclass(frozen=True)
class Cluster:
    """What placing is decided on, at one moment."""

    info: RoutingInfo
    book: MoveBook
    local_states: Mapping[TargetId, LocalState]
    """As `ClusterState.local_state`: of every target."""
    disks: Mapping[NodeId, Mapping[int, Disk]]
    free_fraction_min: float
    """Of a disk's capacity; a move leaves so much free."""
    given_up: frozenset[Site] = frozenset()
    """Where joining targets were given up lately: most likely others would be, too."""
    of_other_stores: frozenset[TargetId] = frozenset()
    """See births.py: they are not replaced, and take no part in moves."""

    @cached_property
    def incoming(self) -> list[Move]:
        """The moves whose joining target takes room that its node may not have counted yet."""
        return [m for m in self.book.moves.values() if m.is_open]

    @cached_property
    def placement(self) -> dict[ChainId, list[Site]]:
        """Where the members of each chain are, once all moves have ended well."""
        moves = {m.chain_id: m for m in self.incoming}
        placed = {}
        for chain in self.info.chains.values():
            move = moves.get(chain.chain_id)
            left = {move.leaving, move.joining} if move else set()
            members = [m.target_id for m in chain.targets if m.target_id not in left]
            placed[chain.chain_id] = [self.site_of(t) for t in members]
            if move is not None:
                placed[chain.chain_id].append(Site(move.node_id, move.disk_index))
        return placed

    @cached_property
    def member_counts(self) -> Counter[Site]:
        """How many members of chains each disk has, by `placement`."""
        return Counter(site for sites in self.placement.values() for site in sites)

    @cached_property
    def pair_counts(self) -> Counter[frozenset[NodeId]]:
        """How many chains two nodes share, by `placement`."""
        counts: Counter[frozenset[NodeId]] = Counter()
        for sites in self.placement.values():
            nodes = {site.node_id for site in sites}
            counts.update(frozenset(pair) for pair in combinations(sorted(nodes), 2))
        return counts

    @cached_property
    def promised_bytes(self) -> Counter[Site]:
        """What the moves under way will still take of each disk."""
        promised: Counter[Site] = Counter()
        for move in self.incoming:
            needed = self.needed_bytes(self.info.chain(move.chain_id))
            here = self.info.targets.get(move.joining)
            promised[Site(move.node_id, move.disk_index)] += max(
                0, needed - (here.used_bytes if here else 0)
            )
        return promised

    @cached_property
    def sites(self) -> dict[Site, Disk]:
        """The disks that targets may be placed on at all."""
        found = {}
        for node in self.info.nodes_with_role(Role.STORAGE):
            if node.state is not NodeState.CONNECTED:
                continue
            for disk in self.disks.get(node.node_id, {}).values():
                is_drained = self.book.is_drained(node.node_id, disk.disk_index)
                if disk.capacity_bytes > 0 and not disk.is_failed and not is_drained:
                    found[Site(node.node_id, disk.disk_index)] = disk
        return found

    @cached_property
    def spares(self) -> dict[Site, list[TargetId]]:
        """Empty targets in no chain and no move; one
        that holds data may be precious to somebody.
        """
        found: dict[Site, list[TargetId]] = {}
        taken = {t for m in self.book.moves.values() for t in (m.leaving, m.joining)}
        taken |= self.of_other_stores
        for target in sorted(self.info.targets.values(), key=lambda t: t.target_id):
            is_free = not target.chain_id and target.target_id not in taken
            is_ready = self.local_states.get(target.target_id) is LocalState.ONLINE
            if is_free and is_ready and not target.used_bytes:
                found.setdefault(_site(target), []).append(target.target_id)
        return found

    def site_of(self, target_id: TargetId) -> Site:
        """Return where a target is."""
        return _site(self.info.target(target_id))

    def needed_bytes(self, chain: Chain) -> int:
        """Return how much a copy of the chain takes."""
        return max((self.info.target(m.target_id).used_bytes for m in chain.targets), default=0)

    def has_room(self, site: Site, needed_bytes: int) -> bool:
        """Tell whether a disk can take so much and keep free what it should."""
        disk = self.sites[site]
        left = disk.free_bytes - self.promised_bytes[site] - needed_bytes
        return left >= self.free_fraction_min * disk.capacity_bytes

    def fill(self, site: Site) -> float:
        """Return members per byte of capacity, the measure of what is even."""
        return self.member_counts[site] / self.sites[site].capacity_bytes


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a destination has to suit."""

    chain: Chain
    leaving: TargetId
    others: tuple[Node, ...] = field(default=())
    """Of the members that stay."""


def wanted(cluster: Cluster, chain: Chain, leaving: TargetId) -> Wanted:
    """Return what a replacement of `leaving` has to suit."""
    info = cluster.info
    staying = [m.target_id for m in chain.targets if m.target_id != leaving]
    return Wanted(chain, leaving, tuple(info.node_of_target(t) for t in staying))


def choose(cluster: Cluster, want: Wanted, busy: Mapping[NodeId, int]) -> Site | None:
    """Return the best disk for a replacement; None when no disk is allowed.

    Args:
        cluster: see there.
        want: what it has to suit.
        busy: moves coming to each node; the fewer the better.
    """
    suited = [site for site in cluster.sites if is_suited(cluster, want, site)]
    return min(suited, key=lambda site: _badness(cluster, want, site, busy), default=None)


def is_suited(cluster: Cluster, want: Wanted, site: Site) -> bool:
    """Tell whether a replacement may be placed on a disk.

    A disk of the leaving target's own node only when that target is offline: two members of a chain
    on one node are never there at the same time.
    """
    info, old = cluster.info, cluster.info.target(want.leaving)
    if site.node_id in {n.node_id for n in want.others}:
        return False
    if site.node_id == old.node_id:
        is_off = cluster.local_states.get(want.leaving, LocalState.OFFLINE) is LocalState.OFFLINE
        if not is_off or want.leaving in want.chain.keepers or site == _site(old):
            return False
    if not cluster.has_room(site, cluster.needed_bytes(want.chain)):
        return False
    before = _conflicts(info.nodes[old.node_id], want.others)
    after = _conflicts(info.nodes[site.node_id], want.others)
    return all(new <= old for new, old in zip(after, before, strict=True))


def _badness(
    cluster: Cluster, want: Wanted, site: Site, busy: Mapping[NodeId, int]
) -> tuple[object, ...]:
    shared = sum(cluster.pair_counts[frozenset({site.node_id, n.node_id})] for n in want.others)
    is_home = site.node_id == cluster.info.target(want.leaving).node_id
    disk = cluster.sites[site]
    return (
        site in cluster.given_up,
        _conflicts(cluster.info.nodes[site.node_id], want.others),
        is_home,  # elsewhere, the old copy stays a member until the new one serves
        busy.get(site.node_id, 0),
        (cluster.member_counts[site] + 1) / disk.capacity_bytes,
        shared,
        -disk.free_bytes,
        site,
    )


def _conflicts(node: Node, others: Iterable[Node]) -> tuple[int, ...]:
    """Return how many of the others share each kind of domain with a node."""
    others = list(others)
    return tuple(sum(_domain(node, tag) == _domain(o, tag) for o in others) for tag in DOMAIN_TAGS)


def _domain(node: Node, tag: str) -> tuple[str, object]:
    name = node.tags.get(tag)
    return (tag, name) if name else ("node", node.node_id)


def _site(target: Target) -> Site:
    return Site(target.node_id, target.disk_index)
