"""Brings chains back to their preferred order:
asks `Rotations` whom to tell to stop serving, and tells them.

Concurrency: one task looks; orders run beside it.  Nothing is changed here: what
follows is judged from heartbeats.
"""

import logging
from dataclasses import replace
from typing import Final

import trio

from ..schema.ids import ChainId, TargetId
from ..schema.status import FsError
from .reign import Reign
from .rotations import Rotations, RotationView

logger = logging.getLogger(__name__)

LOOK_INTERVAL_S: Final = 1.0
UNSEEN_S_MAX: Final = 3.0
"""A look so late means that this manager was stopped or its lease in doubt:
what was quiet may be so no more.
"""

BEATS_MAX: Final = 2.5
"""Heartbeat intervals after which a node counts as not heard just now."""


class Rotator:
    """See the module head."""

    def __init__(self, primary: Reign) -> None:
        self._primary = primary
        self._rotations = Rotations()
        self._looked_s = primary.now_s

    async def run(self) -> None:
        """Look again and again until cancelled."""
        async with trio.open_nursery() as nursery:
            while True:
                await trio.sleep(LOOK_INTERVAL_S)
                for chain_id, target_id in (await self._look()).items():
                    nursery.start_soon(self._tell, chain_id, target_id)

    async def _look(self) -> dict[ChainId, TargetId]:
        async with self._primary.lock:  # nothing is half done
            return self._next_steps() if self._primary.is_acting else {}

    def _next_steps(self) -> dict[ChainId, TargetId]:
        primary = self._primary
        state, section, now_s = primary.state, primary.section, primary.now_s
        is_late = now_s - self._looked_s > UNSEEN_S_MAX
        self._looked_s = now_s
        if is_late or state.info.is_bootstrapping:
            self._rotations.forget()
            return {}
        silent_s = BEATS_MAX * section.heartbeat_interval_s
        heard = {n for n, h in state.health.items() if now_s - h.heard_s <= silent_s}
        info = replace(state.info, targets=state.heard_targets)
        view = RotationView(info, state.book, heard, section, now_s)
        return self._rotations.next_steps(view)

    async def _tell(self, chain_id: ChainId, target_id: TargetId) -> None:
        logger.info("chain %d: target %d goes to its place in the order", chain_id, target_id)
        try:
            await self._primary.stop_serving(target_id)
        except FsError as error:
            logger.warning("chain %d: target %d does not go: %s", chain_id, target_id, error)
