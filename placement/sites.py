"""On which disk of its node each member of a chain is.  Pure mathematics.

The chains of nodes are given and stay; what can still be evened out is, per disk: its heads and
tails, on how many disks its targets' feeders are when it is lost, how evenly the disks of the other
nodes feed when its whole node is lost, and with how many disks it shares chains.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import combinations
from random import Random
from typing import Final

from .descent import Block, Change, Descent
from .model import Shape, Site, Table

PROPOSALS_PER_TARGET: Final = 60

_NODE_LOST_WEIGHT: Final = 4.0
_DISK_LOST_WEIGHT: Final = 4.0
_DISK_TO_DISK_WEIGHT: Final = 2.0
_PAIR_WEIGHT: Final = 1.0
_POSITION_WEIGHT: Final = 4.0


def on_disks(
    shape: Shape,
    chains: Sequence[Sequence[int]],
    random: Random,
    effort: float,
    is_late: Callable[[], bool],
) -> Table:
    """Return the chains with a disk for each member, so that every disk gets its quota.

    Args:
        shape: whose quotas are used.
        chains: of node ids; each node occurs as often as its disks' quotas say.
        random: the only source of chance.
        effort: 1.0 is usual; the time is proportional to it.
        is_late: ends the search.
    """
    sites = sorted(shape.quotas)
    blocks = _dealt(shape, chains, {site: i for i, site in enumerate(sites)})
    nodes = sorted({site.node_id for site in sites})
    if len(nodes) < len(sites) and chains:
        node_of = [nodes.index(site.node_id) for site in sites]
        descent = Descent(blocks, _keys(node_of, len(nodes)), _weights(shape.replica_count))
        slots: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
        for number, block in enumerate(blocks):
            for position, site in enumerate(block):
                slots[node_of[site]].append((number, position))
        target_count = shape.chain_count * shape.replica_count
        proposals_max = int(effort * PROPOSALS_PER_TARGET * target_count)
        descent.run(_proposer(slots, node_of), random, proposals_max, is_late=is_late)
        blocks = descent.blocks
    return [tuple(sites[i] for i in block) for block in blocks]


def _dealt(shape: Shape, chains: Sequence[Sequence[int]], number: dict[Site, int]) -> list[Block]:
    """Deal a node's heads round its disks, then those behind them, and so on."""
    left = dict(shape.quotas)
    of_node: defaultdict[int, list[Site]] = defaultdict(list)
    for site in sorted(left):
        of_node[site.node_id].append(site)
    blocks = [[0] * len(chain) for chain in chains]
    for position in range(shape.replica_count):
        for block, chain in zip(blocks, chains, strict=True):
            sites = of_node[chain[position]]
            site = max(sites, key=lambda s: left[s] / shape.quotas[s])
            left[site] -= 1
            block[position] = number[site]
    assert not any(left.values()), left
    return blocks


def _proposer(
    slots: dict[int, list[tuple[int, int]]], node_of: Sequence[int]
) -> Callable[[Random, list[Block]], Change | None]:
    """Return the proposal that two members on one node exchange their disks."""

    def propose(random: Random, blocks: list[Block]) -> Change | None:
        one = int(random.random() * len(blocks))
        here = int(random.random() * len(blocks[one]))
        mine = slots[node_of[blocks[one][here]]]
        other, there = mine[int(random.random() * len(mine))]
        a, b = blocks[one][here], blocks[other][there]
        if a == b:
            return None
        first, second = list(blocks[one]), list(blocks[other])
        first[here], second[there] = b, a
        return [(one, first), (other, second)]

    return propose


def _keys(node_of: Sequence[int], node_count: int) -> Callable[[Sequence[int]], list[int]]:
    """Return the function from a chain of disks to what it adds one to;
    `_weights` has the same order.
    """
    count = len(node_of)
    node_lost = count * node_count
    disk_to_disk = 2 * node_lost
    pair = disk_to_disk + count * count
    position_base = pair + count * count

    def keys(chain: Sequence[int]) -> list[int]:
        found = []
        if len(chain) > 1:
            tail = chain[-1]
            for lost, by in [*((site, tail) for site in chain[:-1]), (tail, chain[-2])]:
                found += [
                    lost * node_count + node_of[by],
                    node_lost + node_of[lost] * count + by,
                    disk_to_disk + lost * count + by,
                ]
            found += [
                pair + (a * count + b if a < b else b * count + a)
                for a, b in combinations(chain, 2)
            ]
        found += [position_base + i * count + site for i, site in enumerate(chain)]
        return found

    return keys


def _weights(replica_count: int) -> list[float]:
    pair_count = replica_count * (replica_count - 1) // 2
    feeds = replica_count if replica_count > 1 else 0
    return [
        *[_DISK_LOST_WEIGHT, _NODE_LOST_WEIGHT, _DISK_TO_DISK_WEIGHT] * feeds,
        *[_PAIR_WEIGHT] * pair_count,
        *[_POSITION_WEIGHT] * replica_count,
    ]
