"""Damaged copies: how they are noticed, and how they are repaired from other replicas.

A read that finds a copy damaged names it here, and so does the scrub (scrub.py).  Where the bytes
come from is said in copies.py.  A chunk that no target of the chain has whole is marked as damaged
on disk: its reads fail at once, until it is written anew, removed, or found after all, be it here:
each pass of the scrub reads it again.

Concurrency: one task per process; a repair holds its chunk's lock, so the
version cannot move meanwhile.
"""

import logging
import math
from typing import Final

import trio

from ..chunkengine.api import ChunkState
from ..chunkengine.read_values import ReadIo
from ..schema.ids import ChunkId
from ..schema.status import FsError, Status
from .context import StorageContext
from .copies import Repaired, repair_copy
from .read_elsewhere import DAMAGED
from .target import LocalTarget
from .targets import Place

log = logging.getLogger(__name__)

REMEMBERED_COUNT_MAX: Final = 4096
"""Damaged chunks per target; what is not remembered is found again by the next read or scrub."""

REPAIR_INTERVAL_S: Final = 1.0
RETRY_INTERVAL_S: Final = 30.0
REPAIR_S_MAX: Final = 30.0

FLUSHED_TOGETHER_COUNT: Final = 64
"""Repaired chunks of a target that one flush makes durable."""

UNTIL_FLUSHED: Final = math.inf
"""When to try a chunk next that is repaired and only waits for the flush."""


def note_damage(target: LocalTarget, chunk_id: ChunkId, detail: str) -> None:
    """Count and log a damaged copy, and have it repaired; one that was repaired, anew."""
    target.checksum_error_count += 1
    due_s = target.damaged.get(chunk_id)
    if due_s == UNTIL_FLUSHED or (due_s is None and len(target.damaged) < REMEMBERED_COUNT_MAX):
        target.damaged[chunk_id] = trio.current_time()
    log.error("target %d chunk %s: damaged copy: %s", target.target_id, chunk_id, detail)


class Repair:
    """Repairs what was noticed."""

    def __init__(self, context: StorageContext) -> None:
        self._context = context

    async def run(self) -> None:
        """Try to repair noticed damage, again and again, until cancelled."""
        while True:
            await trio.sleep(REPAIR_INTERVAL_S)
            for place in self._context.targets.places():
                await self._repair_due(place)

    async def _repair_due(self, place: Place) -> None:
        """Repair what is due on one target; it is remembered as damaged
        until its new bytes are durable.
        """
        target = place.target
        due = [c for c, due_s in target.damaged.items() if trio.current_time() >= due_s]
        for start in range(0, len(due), FLUSHED_TOGETHER_COUNT):
            for chunk_id in due[start : start + FLUSHED_TOGETHER_COUNT]:
                if await self._try_repair(place, chunk_id):
                    target.damaged[chunk_id] = UNTIL_FLUSHED
            if UNTIL_FLUSHED in target.damaged.values():
                await self._forget_repaired(target)

    async def _forget_repaired(self, target: LocalTarget) -> None:
        """Flush first: a power loss would bring the damaged bytes back,
        and nobody would know of them any more.
        """
        repaired = [c for c, due_s in target.damaged.items() if due_s == UNTIL_FLUSHED]
        is_durable = True
        try:
            await target.disk.sync()
        except FsError as error:
            log.warning("target %d: what was repaired is not durable: %s", target.target_id, error)
            is_durable = False
        for chunk_id in repaired:
            if target.damaged[chunk_id] != UNTIL_FLUSHED:
                continue  # damaged again meanwhile
            if is_durable:
                del target.damaged[chunk_id]
            else:
                target.damaged[chunk_id] = trio.current_time() + RETRY_INTERVAL_S

    async def _try_repair(self, place: Place, chunk_id: ChunkId) -> bool:
        target = place.target
        target.damaged[chunk_id] = trio.current_time() + RETRY_INTERVAL_S
        try:
            self._context.check_lease()
            with trio.move_on_after(REPAIR_S_MAX):
                return place.can_read and await self._repair(place, chunk_id)
        except FsError as error:
            log.warning("target %d chunk %s: not repaired: %s", target.target_id, chunk_id, error)
        return False

    async def _repair(self, place: Place, chunk_id: ChunkId) -> bool:
        """Repair one chunk; False: later, since it is being updated or no other target has it."""
        context, target = self._context, place.target
        engine = target.disk.engine
        async with target.locks.hold(chunk_id):
            context.place_now(place.chain.chain_id, place.chain.chain_version)
            state = target.disk.run_inline(engine.get, target.target_id, chunk_id)
            if state is None:
                return True
            if state.pending_ver:
                return False
            if await target.disk.run(is_whole, target, state):
                return True  # it was written anew meanwhile
            found = await repair_copy(context, place, state)
            if found is Repaired.NOBODY_HAS_IT and len(place.chain.targets) > 1:
                await target.disk.run(_mark, target, state)
        return found is Repaired.YES


def _mark(target: LocalTarget, state: ChunkState) -> None:
    """Twice read as bad, and whole nowhere: from now on everybody is told at once."""
    if not state.is_damaged and target.disk.engine.mark_damaged(
        target.target_id, state.chunk_id, version=state.commit_ver
    ):
        target.lost_count += 1
        log.error(
            "target %d chunk %s version %d: no target of the chain has its bytes; write it anew or"
            " remove it (the scrub goes on trying to read it)",
            target.target_id,
            state.chunk_id,
            state.commit_ver,
        )


def is_unmarked(target: LocalTarget, state: ChunkState) -> bool:
    """Reread what is marked as damaged, and return whether the disk gives it again.  Blocking."""
    chunk_id, version = state.chunk_id, state.commit_ver
    is_good = target.disk.engine.end_damage(target.target_id, chunk_id, version=version)
    if is_good:
        target.repaired_count += 1
        log.warning(
            "target %d chunk %s version %d: its bytes can be read again",
            target.target_id,
            chunk_id,
            version,
        )
    return is_good


def is_whole(target: LocalTarget, state: ChunkState) -> bool:
    """Reread the committed version; one that is gone by now counts as whole.  Blocking.

    Raises:
        FsError: that cannot be told now, say without a descriptor: a copy
            that is not read is not bad.
    """
    buffer = memoryview(bytearray(state.length))
    io = ReadIo(target.target_id, state.chunk_id, 0, state.length, buffer)
    (done,) = target.disk.engine.read_batch([io])
    if done.status in {Status.OK, Status.CHUNK_NOT_FOUND}:
        return True
    if done.status not in DAMAGED:
        raise FsError(Status(done.status), done.detail)
    return False
