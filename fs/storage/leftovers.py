"""Completes pending versions that nobody else will:
those whose client died, or gave up, with the outcome unknown.

Whoever needs the chunk next completes a leftover anyway (write_path.py,
read_path.py).  Without that, it would hold space, and make every read of the chunk
ask the tail, for as long as nobody writes there.

Invariants:
    - Only under the chunk's lock, at a chain version under which our target
      serves, and with a valid lease.
    - Only what was unsettled at two looks in a row: a repeat of a client
      that lives is usually quicker.  All at once where somebody has proof that a client is gone.
"""

import logging
from typing import Final

import trio

from ..schema.ids import ChunkId
from ..schema.routing import PublicState
from ..schema.status import FsError
from .context import StorageContext
from .settle import settle_if_left
from .target import LocalTarget
from .targets import Place

log = logging.getLogger(__name__)

LOOK_INTERVAL_S: Final = 10.0
SETTLE_TIMEOUT_S: Final = 5.0


class Leftovers:
    """Looks after the leftovers of one process."""

    def __init__(self, context: StorageContext) -> None:
        self._context = context
        self._seen: set[tuple[LocalTarget, ChunkId]] = set()

    async def run(self) -> None:
        """Look again and again, until cancelled."""
        while True:
            await trio.sleep(LOOK_INTERVAL_S)
            await self._look()

    async def complete_all(self) -> None:
        """Complete all there is now, and wait for every update inside: what a client sent whose
        process is gone must not come true later, when others write under the locks that it held.

        Raises:
            FsError: one stays.
        """
        for place in self._places():
            for chunk_id in list(place.target.unsettled):
                await self._complete(place, chunk_id)

    def _places(self) -> list[Place]:
        places = self._context.targets.places()
        return [p for p in places if p.public_state is PublicState.SERVING and p.can_write]

    async def _look(self) -> None:
        before, self._seen = self._seen, set()
        for place in self._places():
            for chunk_id in list(place.target.unsettled):
                if (place.target, chunk_id) in before:
                    await self._try(place, chunk_id)
                else:
                    self._seen.add((place.target, chunk_id))

    async def _try(self, place: Place, chunk_id: ChunkId) -> None:
        """Complete what is left over of one chunk;
        what fails is tried again after the next two looks.
        """
        try:
            await self._complete(place, chunk_id)
        except FsError as error:
            target_id = place.target.target_id
            log.info("target %d chunk %s: leftover stays: %s", target_id, chunk_id, error)

    async def _complete(self, place: Place, chunk_id: ChunkId) -> None:
        context, target, chain = self._context, place.target, place.chain
        target.inflight.enter(chain.chain_version)
        try:
            async with target.locks.hold(chunk_id):
                context.check_lease()
                context.place_now(chain.chain_id, chain.chain_version)
                deadline_s = trio.current_time() + SETTLE_TIMEOUT_S
                await settle_if_left(context, target, chain, chunk_id, deadline_s)
        finally:
            target.inflight.leave(chain.chain_version)
