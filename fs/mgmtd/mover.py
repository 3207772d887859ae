"""Carries moves on: asks `moves.next_steps` what to do, publishes it, tells nodes their part.

Concurrency: one task looks; orders run beside it, at most one at a time for each target.
What is remembered here (how long somebody has been away, what an order failed with) is a
primary's own; a new one begins anew.
"""

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

import trio

from ..schema.ids import ChainId, TargetId
from ..schema.routing import Chain, Target
from ..schema.status import FsError
from .births import of_other_stores
from .destinations import Cluster, Site
from .moves import Order, Steps, View, next_steps
from .reign import Reign
from .state import ClusterState, membership_change
from .store import BookChange, Change

logger = logging.getLogger(__name__)

LOOK_INTERVAL_S: Final = 0.5
ORDER_PAUSE_S: Final = 2.0
"""Before an order is repeated whose effect no heartbeat has shown."""

GIVEN_UP_S: Final = 3600.0
"""For so long a disk on which a joining target was given up is the last choice,
and nothing is moved there to be more even.
"""

UNSEEN_S_MAX: Final = 2.0
"""A look so late means that this manager was stopped or its lease in doubt:
that time does not count.
"""


class Mover:
    """See the module head."""

    def __init__(self, primary: Reign) -> None:
        self.problems: tuple[str, ...] = ()
        """What could not be done when it looked last."""
        self.trouble: dict[TargetId, str] = {}
        """What the last order about a target failed with."""
        self._primary = primary
        self._absent_since_s: dict[TargetId, float] = {}
        self._looked_s = primary.now_s
        self._ordering: set[TargetId] = set()
        self._given_up_until_s: dict[Site, float] = {}

    async def run(self) -> None:
        """Look again and again until cancelled."""
        async with trio.open_nursery() as nursery:
            while True:
                try:
                    if self._primary.is_acting:
                        await self._look(nursery)
                except FsError as error:  # the lease is lost; what is due stays due
                    logger.warning("moves: %s", error)
                await trio.sleep(LOOK_INTERVAL_S)

    async def _look(self, nursery: trio.Nursery) -> None:
        primary = self._primary
        async with primary.lock:
            primary.check_acting()
            if primary.info.is_bootstrapping:  # who is there is not known yet
                return
            absent_s = self._watch()
            if not absent_s and primary.state.book.is_idle:
                self.problems = ()
                return
            section = primary.section
            fraction = section.move_free_fraction_min
            cluster = cluster_of(primary.state, fraction, self._given_up())
            steps = next_steps(View(cluster, absent_s, section))
            until_s = self._looked_s + GIVEN_UP_S
            self._given_up_until_s |= dict.fromkeys(steps.given_up, until_s)
            change = step_change(primary.state, steps)
            if change:
                self._log(steps)
                await primary.settle(change)
        self._tell_problems(steps)
        for order in steps.orders:
            if order.target_id not in self._ordering:
                self._ordering.add(order.target_id)
                nursery.start_soon(self._carry_out, order)

    def _given_up(self) -> frozenset[Site]:
        kept = {s: t for s, t in self._given_up_until_s.items() if t > self._primary.now_s}
        self._given_up_until_s = kept
        return frozenset(kept)

    def _watch(self) -> dict[TargetId, float]:
        """Return how long each member or joining target that is offline has been so."""
        state, now_s = self._primary.state, self._primary.now_s
        watched = {m.target_id for c in state.info.chains.values() for m in c.targets}
        watched |= {m.joining for m in state.book.moves.values() if m.is_open}
        absent = {t for t in watched if not state.is_alive(t) and not self._is_expected_away(t)}
        unseen_s = now_s - self._looked_s
        self._looked_s = now_s
        if unseen_s > UNSEEN_S_MAX:  # nobody could say that he is back
            self._absent_since_s = {t: s + unseen_s for t, s in self._absent_since_s.items()}
        self._absent_since_s = {t: self._absent_since_s.get(t, now_s) for t in absent}
        return {t: now_s - since_s for t, since_s in self._absent_since_s.items()}

    def _is_expected_away(self, target_id: TargetId) -> bool:
        """Tell whether somebody works on the machine of a target;
        that time does not count as absence.
        """
        info = self._primary.info
        target = info.targets.get(target_id)
        node = info.nodes.get(target.node_id) if target is not None else None
        return node is not None and node.maintenance_until_ns > self._primary.wall_ns

    async def _carry_out(self, order: Order) -> None:
        try:
            await self._primary.tell(order)  # or raises within ORDER_TIMEOUT_S
            self.trouble.pop(order.target_id, None)
        except FsError as error:
            if self.trouble.get(order.target_id) != str(error):
                logger.warning(
                    "move %d: node %d: %s target %d: %s",
                    order.move_id, order.site.node_id, order.kind.value, order.target_id, error,
                )  # fmt: skip
            self.trouble[order.target_id] = str(error)
        await trio.sleep(ORDER_PAUSE_S)
        self._ordering.discard(order.target_id)

    def _tell_problems(self, steps: Steps) -> None:
        for problem in steps.problems:
            if problem not in self.problems:
                logger.warning("%s", problem)
        self.problems = tuple(steps.problems)

    def _log(self, steps: Steps) -> None:
        before = self._primary.state.book.moves
        for move in steps.book.moves.values():
            if before.get(move.move_id) != move:
                logger.info(
                    "move %d (%s): %s: chain %d, target %d for target %d, node %d disk %d",
                    move.move_id, move.reason.name.lower(), move.state.name.lower(),
                    move.chain_id, move.joining, move.leaving, move.node_id, move.disk_index,
                )  # fmt: skip
        for move_id in before.keys() - steps.book.moves.keys():
            logger.info("move %d has ended", move_id)


def cluster_of(
    state: ClusterState, free_fraction_min: float, given_up: frozenset[Site] = frozenset()
) -> Cluster:
    """Return what placing is decided on now."""
    info = replace(state.info, targets=state.heard_targets)
    return Cluster(
        info,
        state.book,
        {t: state.local_state(t, target) for t, target in info.targets.items()},
        {node_id: health.disks for node_id, health in state.health.items()},
        free_fraction_min,
        given_up,
        of_other_stores(info, state.standings),
    )


def step_change(state: ClusterState, steps: Steps) -> Change:
    """Return what must be persisted for the steps."""
    chains: dict[ChainId, Chain] = {}
    targets: Mapping[TargetId, Target] = {}
    for chain_id, after in steps.chains.items():
        change = membership_change(state.info, state.info.chain(chain_id), after)
        chains, targets = {**chains, **change.chains}, {**targets, **change.targets}
    book = None if steps.book == state.book else BookChange(state.book, steps.book)
    return Change(chains=chains, targets=targets, book=book)
