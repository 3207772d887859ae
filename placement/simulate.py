"""What happens to a table when a disk, a node or a whole failure domain is lost.  Pure mathematics.

For each chain with absent members: the last that serves brings the first absent one up to date,
this one the next (specs/ chain-state.md).  Two ways back: the lost disks *return* (empty, or new in
the same place), or their targets are *replaced* on other disks, as the manager's moves do
(specs/decisions/0012-moves.md): in the fewest failure domains of other members, then on the node
with the fewest coming, then on the emptiest disk.

Times come from a model of flows: every transfer gets the largest rate that is fair to all (max-min)
through the disk and the network of its source and of its destination.  Normal traffic is not in it;
say how much of each speed recovery may have.  Source of the filling method: D. Bertsekas, R.
Gallager, Data Networks (2nd ed. 1992), section 6.5.2.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from .check import evenness
from .model import Chain, Disk, Site, feeder, nested

Resource = tuple[str, str, object]
"""disk or network, direction, which one."""

DONE: Final = 1e-9
"""Of a target, the rest that counts as nothing."""


@dataclass(frozen=True, slots=True)
class Loss:
    """Something that fails as a whole."""

    kind: str
    """disk, node, or domain 1, domain 2 ... from the widest."""
    name: str
    sites: frozenset[Site]


@dataclass(frozen=True, slots=True)
class Speeds:
    """What recovery may use, in MB/s (10**6 bytes)."""

    disk_mb_s: float = 1000.0
    """Of one disk; reading and writing separately."""
    node_mb_s: float = 5000.0
    """Of one node's network; sending and receiving separately."""


@dataclass(frozen=True, slots=True)
class Transfer:
    """A target that is copied."""

    chain: int
    source: Site
    destination: Site


@dataclass(frozen=True, slots=True)
class Aftermath:
    """What one loss leads to."""

    loss: Loss
    targets_lost: int
    chains_lost: int
    """Without any member left: their data is gone."""
    transfers: list[Transfer]
    """In each chain one after the other, in this order."""
    feeds: Counter[int]
    """Targets that each surviving node feeds."""
    feeds_by_disk: Counter[Site]
    reads: dict[int, float]
    """Of each node that has lost nothing: its share of all reads, over its share before."""
    feed_evenness: float
    """Over the nodes that have lost nothing: no other can feed."""
    unplaced: int
    """Targets for which no disk is allowed."""


def losses(disks: Sequence[Disk], kind: str) -> list[Loss]:
    """Return everything of a kind that can be lost:
    "disk", "node", "domain 1" (the widest), "domain 2" ...

    Raises:
        ValueError: an unknown kind, or no such domains.
    """
    found: defaultdict[str, set[Site]] = defaultdict(set)
    for disk in disks:
        site = disk.site
        if kind == "disk":
            found[f"node {site.node_id} disk {site.disk_index}"].add(site)
        elif kind == "node":
            found[f"node {site.node_id}"].add(site)
        else:
            levels = {f"domain {i + 1}": name for i, name in enumerate(nested(disk.domains))}
            if kind not in levels:
                known = ", ".join(["disk", "node", *levels])
                raise ValueError(f"{kind!r} cannot be lost here, only: {known}")
            found[levels[kind]].add(site)
    return [Loss(kind, name, frozenset(sites)) for name, sites in found.items()]


def named_loss(disks: Sequence[Disk], names: Sequence[str]) -> Loss:
    """Return the loss of several things at once, by the names that `losses` gives them;
    also a domain's last part.

    Raises:
        ValueError: nothing, or more than one thing, is called so.
    """
    known = [one for kind in kinds(disks) for one in losses(disks, kind)]
    found = []
    for name in names:
        same = [one for one in known if one.name == name]
        same = same or [one for one in known if one.name.rpartition("/")[2] == name]
        if len(same) != 1:
            these = ", ".join(one.name for one in same) or "node 1, node 1 disk 0 ..."
            raise ValueError(f"{name!r} is not the name of one thing here: {these}")
        found += same
    name = " and ".join(names)
    return Loss("chosen", name, frozenset(site for one in found for site in one.sites))


def kinds(disks: Sequence[Disk]) -> list[str]:
    """Return the kinds of loss that there are."""
    return ["disk", "node", *(f"domain {i + 1}" for i in range(len(disks[0].domains)))]


class Simulation:
    """A table whose disks are lost, one loss at a time; nothing is kept from one to the next."""

    def __init__(self, table: Sequence[Chain], disks: Sequence[Disk]) -> None:
        """Take a table as `check` takes it, and all disks."""
        self._table, self._disks = table, disks
        self._chains_of: defaultdict[Site, list[int]] = defaultdict(list)
        self._reads: defaultdict[int, float] = defaultdict(float)
        for number, chain in enumerate(table):
            for site in chain:
                self._chains_of[site].append(number)
                self._reads[site.node_id] += 1 / len(chain)

    def all_of(self, kind: str) -> list[Aftermath]:
        """Return what each loss of a kind leads to when the lost disks return;
        ValueError as `losses`.
        """
        return [self.aftermath(loss) for loss in losses(self._disks, kind)]

    def aftermath(self, loss: Loss, *, is_replaced: bool = False) -> Aftermath:
        """Tell what a loss leads to.

        Args:
            loss: of `losses`.
            is_replaced: True: the targets go to other disks; False: the lost disks return, empty.
        """
        places = _Places(self._table, self._disks, loss.sites) if is_replaced else None
        transfers: list[Transfer] = []
        reads = defaultdict(float, self._reads)
        targets_lost = chains_lost = unplaced = 0
        for number in sorted({n for site in loss.sites for n in self._chains_of.get(site, ())}):
            chain = self._table[number]
            serving = [site for site in chain if site not in loss.sites]
            lost_count = len(chain) - len(serving)
            targets_lost += lost_count
            if not serving:
                chains_lost += 1
                continue
            for site in serving:
                reads[site.node_id] += 1 / len(serving) - 1 / len(chain)
            found = _way_back(number, chain, loss, places)
            transfers += found
            unplaced += lost_count - len(found)
        first = {t.chain: t for t in reversed(transfers)}.values()
        feeds = Counter(t.source.node_id for t in first)
        hit = {site.node_id for site in loss.sites}
        others = [node for node in self._reads if node not in hit]
        return Aftermath(
            loss=loss,
            targets_lost=targets_lost,
            chains_lost=chains_lost,
            transfers=transfers,
            feeds=feeds,
            feeds_by_disk=Counter(t.source for t in first),
            reads={node: reads[node] / self._reads[node] for node in others},
            feed_evenness=evenness(
                {n: feeds[n] for n in others}, {n: self._reads[n] for n in others}
            ),
            unplaced=unplaced,
        )


def _way_back(number: int, chain: Chain, loss: Loss, places: "_Places | None") -> list[Transfer]:
    """Return what brings the lost targets of a chain back, one after the other;
    without those for which there is no place.

    Args:
        number: of the chain.
        chain: a member of it still serves.
        loss: what is lost.
        places: where lost targets may go; None: back to their disks.
    """
    source = feeder(chain, loss.sites)
    members = [site for site in chain if site not in loss.sites]
    transfers: list[Transfer] = []
    for site in chain:
        if site not in loss.sites:
            continue
        destination = places.choose(members) if places else site
        if destination is not None:
            assert source is not None, chain
            transfers.append(Transfer(number, source, destination))
            members.append(destination)
            source = destination
    return transfers


class _Places:
    """Where lost targets may go."""

    def __init__(
        self, table: Sequence[Chain], disks: Sequence[Disk], lost: frozenset[Site]
    ) -> None:
        self.sites = [d.site for d in disks if d.site not in lost and d.weight > 0]
        self._domains = {d.site.node_id: nested(d.domains) for d in disks}
        self._weights = {d.site: d.weight for d in disks}
        self._members = Counter(site for chain in table for site in chain)
        self._coming: Counter[int] = Counter()

    def choose(self, serving: Sequence[Site]) -> Site | None:
        """Take the best place for one more member of a chain; None when each node has one."""
        nodes = {site.node_id for site in serving}
        taken = Counter(name for node in nodes for name in self._domains[node])
        best = min(
            (site for site in self.sites if site.node_id not in nodes),
            key=lambda site: (
                [taken[name] for name in self._domains[site.node_id]],
                self._coming[site.node_id],
                (self._members[site] + 1) / self._weights[site],
                site,
            ),
            default=None,
        )
        if best is not None:
            self._coming[best.node_id] += 1
            self._members[best] += 1
        return best


def time_to_full_s(transfers: Sequence[Transfer], target_mb: float, speeds: Speeds) -> float:
    """Return how long it takes, in seconds, until every transfer is done.

    Args:
        transfers: those of one chain wait for each other, in this order.
        target_mb: how much a target holds, in MB.
        speeds: what may be used.
    """
    waiting: defaultdict[int, list[Transfer]] = defaultdict(list)
    for transfer in reversed(transfers):
        waiting[transfer.chain].append(transfer)
    running = {queue.pop(): target_mb for queue in waiting.values()}
    passed_s = 0.0
    while running:
        rates = _fair_rates(list(running), speeds)
        step_s = min(left / rates[t] for t, left in running.items())
        passed_s += step_s
        for transfer in list(running):
            running[transfer] -= rates[transfer] * step_s
            if running[transfer] <= DONE * target_mb:
                del running[transfer]
                if waiting[transfer.chain]:
                    running[waiting[transfer.chain].pop()] = target_mb
    return passed_s


def _fair_rates(transfers: Sequence[Transfer], speeds: Speeds) -> dict[Transfer, float]:
    """Fill all rates evenly; who passes a full resource stays at its rate, the others go on."""
    users: defaultdict[Resource, set[Transfer]] = defaultdict(set)
    for transfer in transfers:
        for resource in _resources(transfer):
            users[resource].add(transfer)
    left = {r: speeds.disk_mb_s if r[0] == "disk" else speeds.node_mb_s for r in users}
    rates: dict[Transfer, float] = {}
    while len(rates) < len(transfers):
        shares = {r: left[r] / len(found) for r, found in users.items() if found}
        share = min(shares.values())
        for resource in [r for r, one in shares.items() if one <= share * (1 + DONE)]:
            for transfer in list(users[resource]):
                rates[transfer] = share
                for used in _resources(transfer):
                    users[used].discard(transfer)
                    left[used] -= share
    return rates


def _resources(transfer: Transfer) -> Iterator[Resource]:
    yield "disk", "read", transfer.source
    yield "disk", "write", transfer.destination
    yield "network", "send", transfer.source.node_id
    yield "network", "receive", transfer.destination.node_id
