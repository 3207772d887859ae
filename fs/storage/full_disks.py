"""Disks whose metadata store was refused space: taken into service again when there is room, by a new engine.

Invariants:
    - The engine that failed stays refused for ever.  The new one is opened on the disk as after a kill of the process,
      and takes nothing over from memory; what was not acknowledged is in doubt, as after a kill.
    - It is opened only when nobody is inside the old one and no update is inside the disk's targets, so that
      no thread writes a block that the new engine may hand out.
    - Only a failure for which nothing but space for metadata was missing counts.  After a failed flush of data, or any
      other failure of the disk or of the opening, the disk stays out until the process is restarted.
    - The targets come back like a restarted process's: once their chains have them out of service.

Calls that still hold the old engine are refused by it (NOT_SERVING), and do not fail the disk.
Decision: specs/decisions/0017-full-disks.md.
"""

import logging
from collections.abc import Awaitable, Callable
from typing import Final

import trio

from ..chunkengine.api import ChunkEngine
from ..schema.routing import LocalState
from ..schema.status import FsError, Status
from .context import StorageContext
from .local_state import Hold
from .on_disk import keep_offline_if_asked
from .target import Disk, LocalTarget
from .target_changes import TargetChanges

log = logging.getLogger(__name__)

LOOK_INTERVAL_S: Final = 1.0
TRY_PAUSE_S: Final = 10.0
"""After a failure of a disk, and after each try."""

_TRY_AGAIN: Final = {Status.NO_SPACE, Status.ALREADY_RUNNING}
"""Of an opening: full again; or what is left of the old engine has not let go yet."""

Reopen = Callable[[int], Awaitable[ChunkEngine]]
"""Close the engine of the disk with this index, if it is not, and open another as at the start of the process."""


class FullDisks:
    """Brings the full disks of one process back."""

    def __init__(self, context: StorageContext, changes: TargetChanges, reopen: Reopen) -> None:
        self._context = context
        self._changes = changes
        self._reopen = reopen
        self._wait_until_s: dict[int, float] = {}
        self._given_up: set[int] = set()

    async def run(self) -> None:
        """Look after the disks until cancelled."""
        while True:
            await trio.sleep(LOOK_INTERVAL_S)
            for disk in self._context.targets.disks:
                if self._is_time(disk):
                    await self._try(disk)

    def _is_time(self, disk: Disk) -> bool:
        """Return whether to open the disk anew now; starts the pause after a failure."""
        if not disk.is_failed or disk.index in self._given_up or not self._has_room(disk):
            return False
        now_s = trio.current_time()
        if now_s < self._wait_until_s.setdefault(disk.index, now_s + TRY_PAUSE_S):
            return False
        is_busy = any(target.inflight.count for target in self._targets_of(disk))
        return not (disk.inside_count or is_busy or self._changes.is_dropping(disk))

    def _has_room(self, disk: Disk) -> bool:
        try:
            room = disk.engine.room_after_refusal()
        except FsError as error:
            log.warning("disk %d (%s): no space figures: %s", disk.index, disk.path, error)
            return False
        return room is not None and room > self._context.section.reject_create_free_bytes_min

    async def _try(self, disk: Disk) -> None:
        """Open the disk anew; nobody is inside, and the old engine lets nobody in."""
        log.warning("disk %d (%s) has room again, it is opened anew", disk.index, disk.path)
        self._wait_until_s[disk.index] = trio.current_time() + TRY_PAUSE_S
        try:
            engine = await self._reopen(disk.index)
        except FsError as error:
            if error.status in _TRY_AGAIN:
                log.warning("disk %d (%s) not opened yet: %s", disk.index, disk.path, error)
                return
            self._given_up.add(disk.index)
            log.exception(
                "disk %d (%s) stays out of service until this process is restarted",
                disk.index,
                disk.path,
            )
            return
        disk.take(engine)
        log.warning("disk %d (%s) is in use again, its targets return", disk.index, disk.path)
        del self._wait_until_s[disk.index]
        try:
            await self._bring_back(disk)
        except FsError as error:
            log.warning("disk %d (%s) failed again: %s", disk.index, disk.path, error)

    async def _bring_back(self, disk: Disk) -> None:
        """Let the targets return, also those whose making or removal the failure cut short."""
        targets = self._context.targets
        await disk.measure()
        for target_id in disk.run_inline(disk.engine.target_ids):
            if target_id not in targets.targets:
                targets.add(LocalTarget(target_id, disk, LocalState.OFFLINE, Hold.BROKEN))
        for target in self._targets_of(disk):
            target.unsettled.clear()
            disk.run_inline(keep_offline_if_asked, target)
            targets.release(target, Hold.BROKEN)

    def _targets_of(self, disk: Disk) -> list[LocalTarget]:
        return [t for t in self._context.targets.targets.values() if t.disk is disk]
