"""Which losses at once take all members of some chain: the figures behind "what is lost when".

Pure mathematics.

Chains that are spread evenly lie on many different sets of disks, so that more of all combinations
are fatal, each for fewer chains: over all combinations the expected loss is the same.  `Simulation`
tells what one combination costs.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from math import comb

from .model import Chain, Disk, Site
from .simulate import losses


@dataclass(frozen=True, slots=True)
class Fatal:
    """Of the ways in which `size` things of one kind fail at once."""

    kind: str
    size: int
    """The fewest that can take a whole chain."""
    fatal: int
    """Sets of so many that do."""
    sets: int
    """All sets of so many."""
    chains_worst: int
    """Most chains that one of them takes."""


def fatal(table: Sequence[Chain], disks: Sequence[Disk], kind: str) -> Fatal:
    """Count the smallest sets of things of a kind that hold all members of a chain.

    Args:
        table: chains, at least one.
        disks: all of them.
        kind: as of `losses`.

    Raises:
        ValueError: as `losses`.
    """
    found = losses(disks, kind)
    thing_of: dict[Site, int] = {
        site: number for number, loss in enumerate(found) for site in loss.sites
    }
    chains: defaultdict[frozenset[int], int] = defaultdict(int)
    for chain in table:
        chains[frozenset(thing_of[site] for site in chain)] += 1
    size = min(map(len, chains))
    smallest = {things: count for things, count in chains.items() if len(things) == size}
    return Fatal(kind, size, len(smallest), comb(len(found), size), max(smallest.values()))
