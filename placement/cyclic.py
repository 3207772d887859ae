"""Chains of nodes by turning: a few base chains, and all their images when the nodes, on a circle,
move on by one.

With `v` nodes numbered round a circle, the images of a chain (a, b, c) are (a + s, b + s, c + s)
modulo v.  Every node then stands at each position equally often, and how often x feeds y depends on
their difference alone.  So a table is perfect when the base chains have every difference equally
often: a difference family, of which difference sets and cyclic balanced incomplete block designs
are the best known cases.  The search is for a few base chains instead of thousands of chains, and
so reaches what a direct search does not.

Failure domains of equal size stay out of the way when their members are v / count apart: the
domains of a chain's members are then those of their residues, which turning moves on together.

Sources: R. C. Bose, Ann. Eugenics 9 (1939), difference families; E. S. Kramer, D. M. Mesner,
Discrete Math. 15 (1976), searching for designs with a prescribed group.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import combinations
from random import Random
from typing import Final

from .descent import Block, Change, Descent
from .model import Shape
from .spread import FEED_WEIGHT, PAIR_WEIGHT, least_squares

DOMAIN_WEIGHT: Final = 1.0
"""Of what a node feeds when a whole domain is lost;
in the way of nothing else, where there is a choice.
"""


def circle(shape: Shape) -> list[int] | None:
    """Return the nodes in an order in which turning keeps the limits, or None.

    None when nodes are meant to have unequal quotas, or domains of one kind are of unequal size.
    """
    quotas = shape.node_quotas.values()
    if max(quotas) - min(quotas) > 1:
        return None
    rows: list[list[int]] = [[node] for node in sorted(shape.domains)]
    for level in reversed(range(len(shape.limits) - 1)):
        by_domain: dict[str, list[list[int]]] = {}
        for row in rows:
            by_domain.setdefault(shape.domains[row[0]][level], []).append(row)
        if len({len(found) for found in by_domain.values()}) > 1:
            return None
        rows = [_interleaved(found) for found in by_domain.values()]
    return _interleaved(rows)


def _interleaved(rows: Sequence[Sequence[int]]) -> list[int]:
    """Return first all the rows' first ones, then their second ones ..."""
    return [node for column in zip(*rows, strict=True) for node in column]


def orbits(
    shape: Shape,
    ring: Sequence[int],
    random: Random,
    proposals_max: int,
    is_late: Callable[[], bool],
) -> list[Block]:
    """Return all images of as many base chains as fit into the quotas:
    none, or a multiple of the number of nodes.

    Args:
        shape: of the table.
        ring: from `circle`.
        random: the only source of chance.
        proposals_max: effort.
        is_late: ends the search.
    """
    count = len(ring)
    base_count = min(shape.node_quotas.values()) // shape.replica_count
    moduli = [len({shape.domains[n][level] for n in ring}) for level in range(len(shape.limits))]
    limited = list(zip(moduli, shape.limits, strict=True))
    start = [_first_base(count, limited, shape.replica_count, random) for _ in range(base_count)]
    if not start or not all(start):
        return []
    if shape.replica_count > 1:
        descent = Descent(
            start,
            _keys(count, shape.replica_count, moduli[:-1]),
            _weights(shape.replica_count, len(moduli) - 1),
            lambda key: 2.0 if key == count + count // 2 and count % 2 == 0 else 1.0,
        )

        def propose(random: Random, blocks: list[Block]) -> Change | None:
            number = int(random.random() * len(blocks))
            block = list(blocks[number])
            block[int(random.random() * len(block))] = int(random.random() * count)
            return [(number, block)] if _is_allowed(block, limited) else None

        bound = _bound(shape, count, base_count, moduli)
        descent.run(propose, random, proposals_max, bound=bound, is_late=is_late)
        start = descent.blocks
    return [[ring[(i + s) % count] for i in block] for block in start for s in range(count)]


def _first_base(
    count: int, limited: Sequence[tuple[int, int]], replica_count: int, random: Random
) -> Block:
    """Return a base chain that keeps the limits; empty when there is none."""
    block: Block = []
    for i in random.sample(range(count), count):
        if len(block) < replica_count and _is_allowed([*block, i], limited):
            block.append(i)
    return block if len(block) == replica_count else []


def _is_allowed(block: Sequence[int], limited: Sequence[tuple[int, int]]) -> bool:
    for modulus, limit in limited:
        residues = [i % modulus for i in block]
        if len(set(residues)) < len(block) and max(Counter(residues).values()) > limit:
            return False
    return True


def _keys(
    count: int, replica_count: int, moduli: Sequence[int]
) -> Callable[[Sequence[int]], list[int]]:
    """Return the function from a base chain to its differences:
    from lost node to feeder, then of pairs.

    Last, those to feeders modulo the numbers of domains: what a node
    feeds when a whole domain is lost.
    """
    inner = range(replica_count - 1)

    def keys(block: Sequence[int]) -> list[int]:
        tail = block[-1]
        feeds = [(tail - block[i]) % count for i in inner]
        feeds.append((block[-2] - tail) % count)
        pairs = [count + min((a - b) % count, (b - a) % count) for a, b in combinations(block, 2)]
        wide = [(2 + i) * count + d % modulus for i, modulus in enumerate(moduli) for d in feeds]
        return [*feeds, *pairs, *wide]

    return keys


def _weights(replica_count: int, domain_kinds: int) -> list[float]:
    pair_count = replica_count * (replica_count - 1) // 2
    return [
        *[FEED_WEIGHT] * replica_count,
        *[PAIR_WEIGHT] * pair_count,
        *[DOMAIN_WEIGHT] * (replica_count * domain_kinds),
    ]


def _bound(shape: Shape, count: int, base_count: int, moduli: Sequence[int]) -> float:
    """Return what no cost of base chains is below: the differences allowed, as even as can be."""
    allowed = [
        d
        for d in range(1, count)
        if not any(
            limit == 1 and d % modulus == 0
            for modulus, limit in zip(moduli, shape.limits, strict=True)
        )
    ]
    k = shape.replica_count
    halves = [2.0 if 2 * d == count else 1.0 for d in allowed if 2 * d <= count]
    bound = FEED_WEIGHT * least_squares(base_count * k, [1.0] * len(allowed))
    bound += PAIR_WEIGHT * least_squares(base_count * k * (k - 1) // 2, halves)
    for modulus in moduli[:-1]:
        classes = {d % modulus for d in allowed}
        bound += DOMAIN_WEIGHT * least_squares(base_count * k, [1.0] * len(classes))
    return bound
