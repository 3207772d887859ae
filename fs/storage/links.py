"""Cut links between living nodes of a chain:
whoever waits for a neighbour in vain leaves the chain himself.

The manager judges nodes, and two nodes that both reach it are alive to it although they do not
reach each other; every update of their chain would wait until the link heals.  Nobody's word is
taken for it that a link is cut: a target only ever takes itself out, so a broken or hostile node
can harm nothing but its own targets.

Rules (`judge_link`), after `storage.link_failed_after_s` without any answer, and only
if a new connection to the neighbour's node cannot be made either, since a slow or
stopped neighbour is no cut link:
    - A target that waits for its SERVING successor leaves: whoever is before it reaches the
      successor, perhaps, and the successor has everything that was acknowledged.
    - A SYNCING target that does not hear its predecessor leaves: the predecessor
      cannot, it may be the last serving.
    - The tail never leaves, so never the last one that serves.
A target that left comes back once a connection to the last serving target can
be made, which will resync it.

Why both cannot be wrong at once for long: each comes back by itself, and a node that the manager
does not reach has no lease and is judged by the manager.

Concurrency: one task.
"""

import logging
from enum import Enum
from typing import Final

import trio

from ..rpc.free_way import is_way_free
from ..schema.ids import TargetId
from ..schema.routing import PublicState
from ..schema.status import FsError
from .context import StorageContext
from .local_state import Hold
from .target import LocalTarget
from .targets import Place

log = logging.getLogger(__name__)

LOOK_INTERVAL_S: Final = 1.0
CONNECT_TIMEOUT_S: Final = 3.0
RETURN_INTERVAL_S: Final = 5.0


class Suspect(Enum):
    """Whom a target waits for in vain."""

    NOBODY = "nobody"
    SUCCESSOR = "successor"
    PREDECESSOR = "predecessor"


def judge_link(
    public: PublicState,
    successor: PublicState | None,
    *,
    unanswered_s: float,
    unheard_s: float,
    failed_after_s: float,
) -> Suspect:
    """Decide whether a link should be tried.  Pure.

    Args:
        public: the target's own state.
        successor: that of its successor, None if it has none.
        unanswered_s: how long calls to the successor have been waiting without any answer.
        unheard_s: how long the predecessor has said nothing.
        failed_after_s: the limit.
    """
    if public is PublicState.SERVING and successor is PublicState.SERVING:
        return Suspect.SUCCESSOR if unanswered_s > failed_after_s else Suspect.NOBODY
    if public is PublicState.SYNCING and unheard_s > failed_after_s:
        return Suspect.PREDECESSOR
    return Suspect.NOBODY


class Links:
    """Watches the links of one process's targets to their neighbours."""

    def __init__(self, context: StorageContext) -> None:
        self._context = context
        self._syncing_since: dict[TargetId, tuple[int, float]] = {}
        self._tried_s = 0.0

    async def run(self) -> None:
        """Look for ever."""
        while True:
            await trio.sleep(LOOK_INTERVAL_S)
            for place in self._context.targets.places():
                await self._look(place)
            if trio.current_time() - self._tried_s >= RETURN_INTERVAL_S:
                self._tried_s = trio.current_time()
                await self._try_to_return()

    async def _look(self, place: Place) -> None:
        target, now_s = place.target, trio.current_time()
        suspect = judge_link(
            place.public_state,
            place.successor.public_state if place.successor else None,
            unanswered_s=now_s - target.unanswered_since_s if target.unanswered_since_s else 0.0,
            unheard_s=self._unheard_s(place, now_s),
            failed_after_s=self._context.section.link_failed_after_s,
        )
        if suspect is Suspect.NOBODY or not place.can_write or not self._context.lease.is_valid():
            return
        if suspect is Suspect.SUCCESSOR:
            assert place.successor is not None
            neighbour = place.successor.target_id
        else:
            neighbour = place.chain.serving[-1]
        if await self._can_connect(neighbour):
            log.info("target %d: target %d is slow to answer", target.target_id, neighbour)
            return
        now = next((p for p in self._context.targets.places() if p.target is target), None)
        if now is None or now.chain is not place.chain or not self._context.lease.is_valid():
            return
        self._context.targets.put_offline(
            target, Hold.CUT_OFF, f"no link to its {suspect.value}, target {neighbour}"
        )

    def _unheard_s(self, place: Place, now_s: float) -> float:
        """Return how long a syncing target has heard nothing, counted from when it became one."""
        target_id, version = place.target.target_id, place.chain.chain_version
        if place.public_state is not PublicState.SYNCING:
            self._syncing_since.pop(target_id, None)
            return 0.0
        known_version, since_s = self._syncing_since.setdefault(target_id, (version, now_s))
        if known_version != version:
            self._syncing_since[target_id] = (version, now_s)
            since_s = now_s
        return now_s - max(since_s, place.target.heard_s)

    async def _try_to_return(self) -> None:
        """Let targets back whose way to the one that will resync them is free."""
        targets = self._context.targets
        for target in list(targets.targets.values()):
            if target.hold is Hold.CUT_OFF:
                source = self._source_of(target)
                if source is None or await self._can_connect(source):
                    targets.release(target, Hold.CUT_OFF)

    def _source_of(self, target: LocalTarget) -> TargetId | None:
        for place in self._context.targets.places():
            if place.target is target:
                others = [t for t in place.chain.serving if t != target.target_id]
                return others[-1] if others else None
        return None

    async def _can_connect(self, target_id: TargetId) -> bool:
        """Try a connection of its own to a target's node:
        only a free way carries one, both ways.
        """
        try:
            node = self._context.routing.info.node_of_target(target_id)
            network = self._context.runtime.network
            return await is_way_free(network, node.address, CONNECT_TIMEOUT_S)
        except FsError as error:
            log.info("target %d: no connection: %s", target_id, error)
        return False
