"""Who stands where in each chain, so that every node stands at every position equally often.  Pure mathematics.

Invariant: of the chains a node is in, any two positions differ by at most one (so heads and tails, which do more
work than the middle, are spread as evenly as can be).

Method: the chains and the nodes, a node cut into parts of `replica_count` chains each, are the two sides of a bipartite
graph in which nobody has more than `replica_count` edges; by König's theorem its edges can be coloured
with as many colours so that no two at one vertex are alike.  A colour is a position; a full part has each once.
Source: D. König, Math. Ann. 77 (1916), the proof by alternating paths.
"""

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

Vertex = tuple[str, int, int]
"""("chain", number, 0) or ("node", node id, part)."""

Colouring = dict[Vertex, dict[int, Vertex]]
"""Of each vertex: the neighbour at the other end of the edge of a colour."""

CHAIN: Final = "chain"
NODE: Final = "node"


def ordered(chains: Sequence[Sequence[int]]) -> list[tuple[int, ...]]:
    """Return each chain's nodes in an order that keeps the invariant; deterministic.

    Args:
        chains: node ids, distinct within a chain; all chains are of one length.
    """
    if not chains:
        return []
    colours = range(len(chains[0]))
    at: Colouring = {}
    met: Counter[int] = Counter()
    for number, chain in enumerate(chains):
        for node_id in sorted(chain):
            part = (NODE, node_id, met[node_id] // len(colours))
            met[node_id] += 1
            _add_edge(at, (CHAIN, number, 0), part, colours)
    return [
        tuple(at[CHAIN, number, 0][colour][1] for colour in colours)
        for number in range(len(chains))
    ]


def _add_edge(at: Colouring, chain: Vertex, part: Vertex, colours: range) -> None:
    """Colour one more edge; edges that have a colour may exchange it for another."""
    of_chain, of_part = at.setdefault(chain, {}), at.setdefault(part, {})
    wanted = next(c for c in colours if c not in of_chain)
    if wanted in of_part:
        _exchange(at, part, wanted, next(c for c in colours if c not in of_part))
    of_chain[wanted], of_part[wanted] = part, chain


def _exchange(at: Colouring, start: Vertex, one: int, other: int) -> None:
    """Exchange two colours along the path of `one`, `other`, `one` ... that begins at `start`.

    The path cannot come to the chain that lacks `one`: it enters each chain by an edge of that colour.
    """
    path, colour, following = [start], one, other
    while colour in at[path[-1]]:
        path.append(at[path[-1]][colour])
        colour, following = following, colour
    edges = [(u, v, other if i % 2 else one) for i, (u, v) in enumerate(pairwise(path))]
    for u, v, colour in edges:
        del at[u][colour], at[v][colour]
    for u, v, colour in edges:
        new = one if colour == other else other
        at[u][new], at[v][new] = v, u
