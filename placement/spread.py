"""Which nodes form which chains, in which order: even recovery, even pairs, even heads.

Pure mathematics.

The counts that should be the same for all (specs/placement.md): how often one node feeds another
when that one is lost; how many chains two nodes share; how often a node stands at each position.
"""

from collections.abc import Callable, Mapping, Sequence
from heapq import heapify, heapreplace
from itertools import combinations
from random import Random
from typing import Final

from .descent import Block, Change, Descent, never
from .model import Shape

FEED_WEIGHT: Final = 4.0
PAIR_WEIGHT: Final = 2.0
POSITION_WEIGHT: Final = 2.0


def weights(replica_count: int) -> list[float]:
    """Return the weights of the keys of `node_keys`."""
    pair_count = replica_count * (replica_count - 1) // 2
    feeds = replica_count if replica_count > 1 else 0
    return [
        *[FEED_WEIGHT] * feeds,
        *[PAIR_WEIGHT] * pair_count,
        *[POSITION_WEIGHT] * replica_count,
    ]


def node_keys(count: int) -> Callable[[Sequence[int]], list[int]]:
    """Return the function from a chain of nodes, numbered 0 ...
    count - 1, to what it adds one to.
    """
    pair_base, position_base = count * count, 2 * count * count

    def keys(chain: Sequence[int]) -> list[int]:
        found = []
        if len(chain) > 1:
            tail = chain[-1]
            found = [node * count + tail for node in chain[:-1]]
            found.append(tail * count + chain[-2])
            found += [
                pair_base + (a * count + b if a < b else b * count + a)
                for a, b in combinations(chain, 2)
            ]
        found += [position_base + i * count + node for i, node in enumerate(chain)]
        return found

    return keys


def dealt(shape: Shape, random: Random) -> list[Block]:
    """Return chains of nodes that keep all limits, by dealing.

    All targets in one row, those of a domain side by side; chain i takes each
    chain_count-th of them from the i-th on.  A domain's targets are a run, so each chain
    gets its share of them, rounded up or down.
    """
    quotas = shape.node_quotas
    nodes = sorted(quotas)
    rank = {name: random.random() for found in shape.domains.values() for name in sorted(found)}
    order = sorted(nodes, key=lambda n: [rank[name] for name in shape.domains[n]])
    row = [node for node in order for _ in range(quotas[node])]
    chains = [row[i :: shape.chain_count] for i in range(shape.chain_count)]
    for chain in chains:
        random.shuffle(chain)
    return chains


def scales_of(sizes: Sequence[float], replica_count: int) -> Callable[[int], float] | None:
    """Return the scale of each key of `node_keys`: large nodes are to feed and share more;
    None: all alike.
    """
    if len(set(sizes)) == 1:
        return None
    pairs = [1 / (a * b) for a in sizes for b in sizes]
    return [*pairs, *pairs, *([1 / a for a in sizes] * replica_count)].__getitem__


class NodeSearch:
    """Chains of nodes that are being improved."""

    def __init__(
        self,
        shape: Shape,
        chains: Sequence[Sequence[int]],
        beside: Sequence[Sequence[int]] = (),
        sizes: Mapping[int, float] | None = None,
    ) -> None:
        """Begin with chains of node ids.

        Args:
            shape: whose quotas and limits the chains keep.
            chains: copied.
            beside: other chains, counted but not changed; they may be longer or
                shorter, and on other nodes.
            sizes: of nodes, as `Shape.sizes`; None: the shape's.
        """
        sizes = shape.sizes if sizes is None else sizes
        self._nodes = sorted({*shape.domains, *(node for chain in beside for node in chain)})
        number = {node: i for i, node in enumerate(self._nodes)}
        self._limited = [
            (limit, [shape.domains[n][level] if n in shape.domains else "" for n in self._nodes])
            for level, limit in enumerate(shape.limits)
            if limit < shape.replica_count
        ]
        k_max = max(shape.replica_count, *map(len, beside)) if beside else shape.replica_count
        keys = node_keys(len(self._nodes))
        self._descent = Descent(
            [[number[node] for node in chain] for chain in chains],
            keys,
            weights(shape.replica_count),
            scales_of([sizes.get(node, 1.0) for node in self._nodes], k_max),
        )
        for chain in beside:
            self._descent.prime(keys([number[node] for node in chain]), weights(len(chain)))

    @property
    def chains(self) -> list[Block]:
        """The chains as they are now, of node ids."""
        return [[self._nodes[i] for i in block] for block in self._descent.blocks]

    @property
    def cost(self) -> float:
        """What falls."""
        return self._descent.cost

    def improve(
        self,
        random: Random,
        proposals_max: int,
        bound: float,
        is_late: Callable[[], bool] = never,
    ) -> int:
        """Exchange members of chains, and order them anew; see Descent.run."""
        return self._descent.run(self._propose, random, proposals_max, bound=bound, is_late=is_late)

    def _propose(self, random: Random, blocks: list[Block]) -> Change | None:
        one = int(random.random() * len(blocks))
        other = int(random.random() * len(blocks))
        here = int(random.random() * len(blocks[one]))
        there = int(random.random() * len(blocks[other]))
        first, second = blocks[one], blocks[other]
        if one == other:
            if here == there:
                return None
            block = list(first)
            block[here], block[there] = block[there], block[here]
            return [(one, block)]
        a, b = first[here], second[there]
        if a == b:
            return None
        first, second = list(first), list(second)
        first[here], second[there] = b, a
        if self._keeps_limits(first, here) and self._keeps_limits(second, there):
            return [(one, first), (other, second)]
        return None

    def _keeps_limits(self, chain: Block, changed: int) -> bool:
        for limit, domains in self._limited:
            mine = domains[chain[changed]]
            if [domains[node] for node in chain].count(mine) > limit:
                return False
        return True


def cost_bound(shape: Shape) -> float:
    """Return what no cost of a NodeSearch of this shape, without tables beside it, is below.

    Each node's feeders are as many as its targets, its pairs replica_count - 1 times as many:
    spread over the nodes that may share a chain with it as evenly as whole numbers allow.  Whether
    all of that can be had at once is not asked.
    """
    quotas, size, k = shape.node_quotas, shape.sizes, shape.replica_count
    nodes = sorted(quotas)
    feeds = pairs = positions = 0.0
    for node in nodes:
        scales = [1 / (size[node] * size[n]) for n in peers(shape.domains, shape.limits, node)]
        if k > 1:
            feeds += least_squares(quotas[node], scales)
            pairs += least_squares(quotas[node] * (k - 1), scales) / 2
        positions += least_squares(quotas[node], [1 / size[node]] * k)
    by_column = k * least_squares(shape.chain_count, [1 / size[node] for node in nodes])
    return FEED_WEIGHT * feeds + PAIR_WEIGHT * pairs + POSITION_WEIGHT * max(positions, by_column)


def peers(domains: Mapping[int, Sequence[str]], limits: Sequence[int], node: int) -> list[int]:
    """Return the nodes that may be in a chain with a node."""
    return [
        other
        for other, theirs in domains.items()
        if all(
            limit > 1 or a != b for limit, a, b in zip(limits, domains[node], theirs, strict=True)
        )
    ]


def least_squares(total: int, scales: Sequence[float]) -> float:
    """Return the least sum of scale * count squared of whole counts that add up to a total."""
    if not scales:
        return 0.0
    if len(set(scales)) == 1:
        in_each = total // len(scales)
        rest = total - in_each * len(scales)
        return scales[0] * (len(scales) * in_each**2 + rest * (2 * in_each + 1))
    heap = [(scale, scale, 0) for scale in scales]
    heapify(heap)
    least = 0.0
    for _ in range(total):
        growth, scale, count = heap[0]
        least += growth
        heapreplace(heap, (scale * (2 * count + 3), scale, count + 1))
    return least
