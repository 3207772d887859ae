"""From an old table and new disks to the fewest moves that give every disk its share.

Pure mathematics.

A move takes one target of a chain from its disk to another node's disk; the new one has the old
one's place in the chain's preferred order, as the manager's moves do.  Disks may have been added,
taken away (no longer named, or of weight 0), or have changed weight.

How many moves are needed is known beforehand: what disks have above their new quotas has to leave
them (`least`).  Which of their targets go where is chosen so that recovery stays even.  Where
failure domains forbid all that is left, two moves do the work of one.  No chain ever has more
members in one domain than before or than the new limits say.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Final, NamedTuple

from .descent import Block, Change, Descent
from .make import Effort
from .model import Disk, PlacementError, Site, Table, check_disks, limits_of, nested, shape_of
from .quotas import quotas
from .spread import node_keys, scales_of, weights

CANDIDATES_MAX: Final = 40
"""Looked at for each move."""

SHIFTS_PER_MOVE: Final = 3
PROPOSALS_PER_MOVE: Final = 50
TEMPERATURE: Final = 0.5


class Move(NamedTuple):
    """One target of a chain goes from one disk to another."""

    chain: int
    """Ordinal in the table, from 0."""
    leaving: Site
    joining: Site


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be moved."""

    moves: list[Move]
    table: Table
    """Afterwards."""
    least: int
    """Fewer moves cannot give every disk its share."""
    left: int
    """Targets that no move can take from where they are too many; 0 but in odd cases."""


def plan_moves(
    table: Sequence[Sequence[Site]],
    disks: Sequence[Disk],
    effort: Effort = Effort(),  # noqa: B008 - immutable
) -> Plan:
    """Plan the moves.

    Args:
        table: chains of one length, head first.
        disks: those that there are to be.
        effort: seed, and how hard to try for evenness.

    Raises:
        PlacementError: the new disks cannot hold the table; its chains are of several lengths.
    """
    check_disks(disks)
    lengths = {len(chain) for chain in table}
    if len(lengths) != 1:
        found = ", ".join(map(str, sorted(lengths))) or "no"
        raise PlacementError(
            f"chains of {found} members: moves are planned for chains that all have as many (one "
            "that a target is just joining has one more)"
        )
    work = _Work(table, disks, Random(effort.seed))  # noqa: S311 - to be repeatable
    least = sum(work.surplus.values())
    while work.surplus and (work.step() or work.shift() or work.detour()):
        pass
    moved = [(c, p) for c, p in work.slots() if work.now(c, p) != work.was(c, p)]
    work.improve(moved, int(effort.factor * PROPOSALS_PER_MOVE * len(moved)))
    moves = [
        Move(c, work.was(c, p), work.now(c, p))
        for c, p in work.slots()
        if work.now(c, p) != work.was(c, p)
    ]
    return Plan(moves, work.table, least, sum(work.surplus.values()))


class _Work:
    """The table as it becomes."""

    def __init__(
        self, table: Sequence[Sequence[Site]], disks: Sequence[Disk], random: Random
    ) -> None:
        chain_count, self._k = len(table), len(table[0])
        held = Counter(site for chain in table for site in chain)
        share = quotas(disks, chain_count, self._k, held)
        self.surplus = held - Counter(share)
        self.deficit = Counter(share) - held
        self._shifts_left = SHIFTS_PER_MOVE * sum(self.surplus.values())
        shape = shape_of(disks, chain_count, self._k, share)
        gone = {site.node_id for site in held} - set(shape.domains)
        known = {d.site.node_id: (*nested(d.domains), f"node {d.site.node_id}") for d in disks}
        lone = [f"gone {level}" for level in range(len(shape.limits))]
        self._domains = shape.domains | {
            node: known.get(node, tuple(f"{name} {node}" for name in lone)) for node in gone
        }
        self._limits = limits_of(shape.domains, shape.node_quotas, chain_count)
        self._sites = sorted({*held, *share})
        self._number = {site: i for i, site in enumerate(self._sites)}
        self._old = [tuple(self._number[site] for site in chain) for chain in table]
        self._random = random
        nodes = sorted({site.node_id for site in self._sites})
        rank = {node: i for i, node in enumerate(nodes)}
        self._node = [rank[site.node_id] for site in self._sites]
        by_node = node_keys(len(nodes))
        sizes = shape.sizes
        self._descent = Descent(
            self._old,
            lambda chain: by_node([self._node[i] for i in chain]),
            weights(self._k),
            scales_of([sizes.get(node, 1.0) for node in nodes], self._k),
        )
        self._at: defaultdict[Site, set[tuple[int, int]]] = defaultdict(set)
        for c, p in self.slots():
            self._at[self.now(c, p)].add((c, p))

    def slots(self) -> list[tuple[int, int]]:
        """Return (chain, position) of every target."""
        return [(c, p) for c in range(len(self._old)) for p in range(self._k)]

    def now(self, c: int, p: int) -> Site:
        return self._sites[self._descent.blocks[c][p]]

    def was(self, c: int, p: int) -> Site:
        return self._sites[self._old[c][p]]

    @property
    def table(self) -> Table:
        """The chains as they are now."""
        return [tuple(self._sites[i] for i in block) for block in self._descent.blocks]

    def _with(self, c: int, p: int, site: Site) -> Block:
        block = list(self._descent.blocks[c])
        block[p] = self._number[site]
        return block

    def _fits(self, c: int, block: Block) -> bool:
        """Tell whether a chain's domains hold no more members than before
        or than the limits say.
        """
        for level, limit in enumerate(self._limits):
            new, old = (self._members(chain, level) for chain in (block, self._old[c]))
            if any(count > max(limit, old[name]) for name, count in new.items()):
                return False
        return True

    def _members(self, chain: Sequence[int], level: int) -> Counter[str]:
        return Counter(self._domains[self._sites[i].node_id][level] for i in chain)

    def _may_move(self, slot: tuple[int, int], site: Site) -> bool:
        c, p = slot
        return self.now(c, p) != site and self._is_change(c, p, self._with(c, p, site))

    def _is_change(self, c: int, p: int, block: Block) -> bool:
        """Tell whether a member may be where a block says:
        on a node without another member, at home or elsewhere.
        """
        nodes = [self._node[i] for i in block]
        home = self._old[c][p]
        is_allowed = block[p] == home or self._node[block[p]] != self._node[home]
        return is_allowed and len(set(nodes)) == len(nodes) and self._fits(c, block)

    def step(self) -> bool:
        """Make the best of the moves looked at; tell whether there was any."""
        leaving = [slot for site in sorted(self.surplus) for slot in sorted(self._at[site])]
        joining = sorted(self.deficit)
        pairs = (
            [(slot, site) for slot in leaving for site in joining]
            if (len(leaving) * len(joining) <= CANDIDATES_MAX)
            else [
                (self._random.choice(leaving), self._random.choice(joining))
                for _ in range(CANDIDATES_MAX)
            ]
        )
        allowed = [(slot, site) for slot, site in pairs if self._may_move(slot, site)]
        if not allowed and len(pairs) < len(leaving) * len(joining):
            allowed = [
                (slot, site) for slot in leaving for site in joining if self._may_move(slot, site)
            ][:CANDIDATES_MAX]
        if not allowed:
            return False
        slot, site = min(allowed, key=lambda pair: self._growth(*pair))
        self._move(slot, site)
        return True

    def _growth(self, slot: tuple[int, int], site: Site) -> float:
        c, p = slot
        return self._descent.growth([(c, self._with(c, p, site))])

    def _move(self, slot: tuple[int, int], site: Site) -> None:
        c, p = slot
        old = self.now(c, p)
        self._descent.attempt([(c, self._with(c, p, site))], float("inf"))
        self._at[old].remove(slot)
        self._at[site].add(slot)
        self.surplus = self.surplus - Counter({old: 1})
        self.deficit = self.deficit - Counter({site: 1})

    def shift(self) -> bool:
        """Where no move is allowed, put a move off onto another disk;
        tell whether that was possible.

        In a chain that takes part in a move, another member moves instead: then another disk has
        one too many, and perhaps one that may move.  A walk at random, of limited length.
        """
        options = []
        for site in sorted(self.surplus) if self._shifts_left else ():
            for c, p in sorted(self._at[site]):
                for q in range(self._k):
                    if self.now(c, q) != self.was(c, q):
                        block = self._with(c, p, self.now(c, q))
                        block[q] = self._old[c][q]
                        if self._is_change(c, p, block) and self._is_change(c, q, block):
                            options.append((c, p, q, block))
        if not options:
            return False
        self._shifts_left -= 1
        c, p, q, block = self._random.choice(options)
        old, taken, home = self.now(c, p), self.now(c, q), self.was(c, q)
        self._descent.attempt([(c, block)], float("inf"))
        self._at[old].remove((c, p))
        self._at[taken] = self._at[taken] - {(c, q)} | {(c, p)}
        self._at[home].add((c, q))
        self.surplus = self.surplus - Counter({old: 1}) + Counter({home: 1})
        return True

    def detour(self) -> bool:
        """Where no move is allowed, another disk passes one of its targets on and takes one;
        tell whether there was any.

        Rather a target that has been moved already: then there are no more moves for it.
        """
        others = sorted(self.slots(), key=lambda slot: self.now(*slot) == self.was(*slot))
        for joining in sorted(self.deficit):
            for other in others:
                between = self.now(*other)
                if between in self.surplus or not self._may_move(other, joining):
                    continue
                for site in sorted(self.surplus):
                    for slot in sorted(self._at[site]):
                        if slot[0] != other[0] and self._may_move(slot, between):
                            self._move(other, joining)
                            self._move(slot, between)
                            return True
        return False

    def improve(self, moved: Sequence[tuple[int, int]], proposals_max: int) -> None:
        """Let moved targets change places with each other,
        or with one that stayed where they came from.
        """
        if not moved:
            return

        def propose(random: Random, blocks: list[Block]) -> Change | None:
            c, p = random.choice(moved_now)
            if random.random() < 0.5:  # noqa: PLR2004 - either
                d, q = random.choice(moved_now)
            else:
                d, q = random.choice(homes[self._old[c][p]])
            a, b = blocks[c][p], blocks[d][q]
            home, other = self._old[c][p], self._old[d][q]
            is_cheap = (b != home) + (a != other) <= (a != home) + (b != other)
            if c == d or a == b or not is_cheap:
                return None
            first, second = list(blocks[c]), list(blocks[d])
            first[p], second[q] = b, a
            if not self._is_change(c, p, first) or not self._is_change(d, q, second):
                return None
            return [(c, first), (d, second)]

        moved_now = sorted(moved)
        homes: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
        for c, p in self.slots():
            homes[self._old[c][p]].append((c, p))
        self._descent.run(propose, self._random, proposals_max, temperature=TEMPERATURE)
