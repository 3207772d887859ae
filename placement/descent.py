"""Search for balanced blocks: changes that are kept while they lower, or hardly raise,
a sum of squared counts.

A block is a list of numbers, here the members of a chain, in order.  What a block adds to is said
by `keys(block)`: each key is a count of something ("node 3 feeds node 5") that should be the same
for all keys of its kind.  When the sum of counts is given, the sum of their squares is least when
no two of them differ by more than one; so that sum is what falls.

Deterministic: all randomness comes from the generator that is passed in, and effort is counted in
proposals, not in seconds. Source of the acceptance rule: N. Metropolis et al., J. Chem. Phys. 21
(1953); of cooling it: S. Kirkpatrick, C. D. Gelatt, M. P. Vecchi, Science 220 (1983).
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from math import log
from random import Random
from typing import Final

Block = list[int]
Change = Sequence[tuple[int, Block]]
"""Blocks by their number, and what they become."""

TEMPERATURE_LAST: Final = 0.2
"""Of the weight of one key: then only changes that cost nothing are still made."""

COLD_SHARE: Final = 0.1
"""Of the proposals, the last ones: no change that raises the cost is made any more."""

ROUNDING: Final = 1e-6

CHECK_EVERY: Final = 1024
"""Proposals between looks at the clock."""


def never() -> bool:
    """Say that it is not late: for searches that end when all proposals are made."""
    return False


class Descent:
    """Blocks, the counts they add up to, and the cost of those."""

    def __init__(
        self,
        blocks: Sequence[Sequence[int]],
        keys: Callable[[Sequence[int]], Sequence[int]],
        weights: Sequence[float],
        scales: Callable[[int], float] | None = None,
    ) -> None:
        """Count what the blocks add up to.

        Args:
            blocks: copied.
            keys: what a block adds one to; as many keys for every block as there are weights.
            weights: of the keys in their order: of a kind of count against another kind.
            scales: of a single key, times its weight; larger where the count should be smaller.
        """
        self.blocks = [list(block) for block in blocks]
        self._keys = keys
        self._weights = tuple(weights)
        self._scales = scales
        self._counts: defaultdict[int, int] = defaultdict(int)
        self._added = [tuple(keys(block)) for block in self.blocks]
        self.cost = sum(self._add(added) for added in self._added)

    def prime(self, added: Sequence[int], weights: Sequence[float]) -> None:
        """Count keys of something that stays as it is."""
        self.cost += self._add(added, weights)

    def _add(self, added: Sequence[int], weights: Sequence[float] | None = None) -> float:
        """Count a block; return by how much the cost grows."""
        counts, growth = self._counts, 0.0
        for key, weight in zip(added, weights or self._weights, strict=True):
            count = counts[key]
            counts[key] = count + 1
            growth += self._scaled(key, weight) * (2 * count + 1)
        return growth

    def _remove(self, added: Sequence[int]) -> float:
        """Count a block no more; return by how much the cost grows, which is never above 0."""
        counts, growth = self._counts, 0.0
        for key, weight in zip(added, self._weights, strict=True):
            count = counts[key]
            counts[key] = count - 1
            growth += self._scaled(key, weight) * (1 - 2 * count)
        return growth

    def _scaled(self, key: int, weight: float) -> float:
        return weight if self._scales is None else weight * self._scales(key)

    def growth(self, change: Change) -> float:
        """Return by how much a change would raise the cost."""
        before = self.cost
        old = [(number, self.blocks[number]) for number, _ in change]
        self.attempt(change, float("inf"))
        growth = self.cost - before
        self.attempt(old, float("inf"))
        return growth

    def attempt(self, change: Change, allowance: float = 0.0) -> bool:
        """Make a change unless it raises the cost by more than the allowance;
        tell whether it was made.
        """
        new = [tuple(self._keys(block)) for _, block in change]
        growth = sum(self._remove(self._added[number]) for number, _ in change)
        growth += sum(map(self._add, new))
        if growth > allowance + ROUNDING:
            for added in new:
                self._remove(added)
            for number, _ in change:
                self._add(self._added[number])
            return False
        for (number, block), added in zip(change, new, strict=True):
            self.blocks[number], self._added[number] = list(block), added
        self.cost += growth
        return True

    def run(
        self,
        propose: Callable[[Random, list[Block]], Change | None],
        random: Random,
        proposals_max: int,
        *,
        bound: float = 0.0,
        temperature: float = 2.0,
        is_late: Callable[[], bool] = never,
    ) -> int:
        """Make proposals, cooling down, until the cost is at its bound,
        they are used up, or it is late.

        Args:
            propose: a change that is allowed, or None when it found none this time.
            random: the only source of chance.
            proposals_max: how many.
            bound: no cost is below it.
            temperature: at the beginning.
            is_late: looked at now and then; ends the search.

        Returns:
            The number of proposals made.
        """
        cooling = (TEMPERATURE_LAST / temperature) ** (1 / max(1, proposals_max))
        cold_from = int(proposals_max * (1 - COLD_SHARE))
        for made in range(proposals_max):
            if self.cost <= bound + ROUNDING or (made % CHECK_EVERY == 0 and is_late()):
                return made
            temperature *= cooling
            change = propose(random, self.blocks)
            if change is not None:
                is_cold = made >= cold_from
                self.attempt(change, 0.0 if is_cold else -temperature * log(1.0 - random.random()))
        return proposals_max
