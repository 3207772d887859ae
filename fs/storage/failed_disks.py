"""Disks that failed, or could not be opened at the start:
taken into service when a new engine can be opened on them.

Invariants:
    - The engine that failed stays refused for ever.  The new one is opened on the disk as after a
      kill of the process, and takes nothing over from memory; what was not acknowledged is in
      doubt, as after a kill.  What the kernel has dropped after a failed flush is found at the
      opening, which reads from the disk what was not durable.
    - It is opened only when nobody is inside the old one and no update is inside the disk's
      targets, so that no thread writes a block that the new engine may hand out.
    - A disk for which nothing but space for metadata was missing is opened when there is
      room; one of the wrong place or format is looked at every few seconds; any other is
      tried with pauses that double, so that a disk that keeps failing does not make its
      chains resync again and again.
    - The targets come back like a restarted process's: once their chains have them out of service.

Calls that still hold the old engine are refused by it (NOT_SERVING), and do not fail the disk.
Decision: specs/decisions/0017-failed-disks.md.
"""

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

import trio

from ..chunkengine.api import ChunkEngine
from ..chunkengine.refused import RefusedEngine
from ..schema.lacks import require_passing
from ..schema.routing import LocalState
from ..schema.status import FsError, Status
from .context import StorageContext
from .disk import Disk
from .local_state import Hold
from .on_disk import disk_losses, keep_offline_if_asked
from .standings import load_standing
from .target import LocalTarget
from .target_changes import TargetChanges
from .watermarks import load_watermark

log = logging.getLogger(__name__)

LOOK_INTERVAL_S: Final = 1.0
TRY_PAUSE_S: Final = 10.0
"""After a failure for want of space, and after each try that is cheap."""

RECHECK_PAUSE_S_MIN: Final = 60.0
RECHECK_PAUSE_S_MAX: Final = 3600.0
"""After any other failure; a disk that has served for so long is trusted as before."""

_CHEAP: Final = {
    Status.NO_SPACE,  # full again
    Status.ALREADY_RUNNING,  # what is left of the old engine has not let go yet
    Status.FOREIGN_DISK,
    Status.BUSY,  # its device has much to do: a byte was flushed, and nothing opened
    Status.BAD_DISK_FORMAT,
    Status.OUT_OF_RESOURCES,  # of this process: the disk may be as good as ever
}
"""Of an opening: it wrote nothing, and somebody may put it right any moment."""

Reopen = Callable[[int], Awaitable[ChunkEngine]]
"""Close the engine of the disk with this index, if it is not,
and open another as at the start of the process.
"""


@dataclass(slots=True)
class _Case:
    """What is remembered of a disk that has failed."""

    pause_s: float
    next_s: float
    """When to try, in trio time; 0: not decided since it failed."""
    told: str = ""
    """The last refusal that was logged."""
    returned_s: float = 0.0


class FailedDisks:
    """Brings the failed disks of one process back."""

    def __init__(self, context: StorageContext, changes: TargetChanges, reopen: Reopen) -> None:
        self._context = context
        self._changes = changes
        self._reopen = reopen
        self._cases: dict[int, _Case] = {}

    async def run(self) -> None:
        """Look after the disks until cancelled."""
        while True:
            await trio.sleep(LOOK_INTERVAL_S)
            for disk in self._context.targets.disks:
                if disk.is_failed and self._is_time(disk):
                    await self._try(disk)

    def _is_time(self, disk: Disk) -> bool:
        """Return whether to open the disk anew now; starts the pause after a failure."""
        case = self._cases.setdefault(disk.index, _Case(RECHECK_PAUSE_S_MIN, 0.0))
        if disk.inside_count:
            # With a disk that hangs maybe for ever, and then nobody may even look.
            return False
        is_cheap, may_try = self._judge(disk)
        if not may_try:
            return False
        now_s = trio.current_time()
        if not case.next_s:
            if case.returned_s and now_s - case.returned_s > RECHECK_PAUSE_S_MAX:
                case.pause_s = RECHECK_PAUSE_S_MIN
            case.next_s = now_s + (TRY_PAUSE_S if is_cheap else case.pause_s)
        if now_s < case.next_s:
            return False
        is_busy = any(target.inflight.count for target in self._targets_of(disk))
        return not (is_busy or self._changes.is_updating(disk))

    def _judge(self, disk: Disk) -> tuple[bool, bool]:
        """Return whether a try costs little, and whether it makes sense now."""
        engine: object = disk.engine
        if isinstance(engine, RefusedEngine):
            return engine.reason.status in _CHEAP, True
        try:
            room = disk.engine.room_after_refusal()
        except FsError as error:
            log.warning("disk %d (%s): no space figures: %s", disk.index, disk.path, error)
            return True, False
        if room is None:
            return False, True
        return True, room > self._context.section.reject_create_free_bytes_min

    async def _try(self, disk: Disk) -> None:
        """Open the disk anew; nobody is inside, and the old engine lets nobody in."""
        case = self._cases[disk.index]
        try:
            engine = await self._reopen(disk.index)
        except Exception as error:  # noqa: BLE001 - of a bug it is raised again
            require_passing(error)
            if not isinstance(error, FsError) or error.status in _CHEAP:
                case.next_s = trio.current_time() + TRY_PAUSE_S
            else:
                self._double(case)
                case.next_s = trio.current_time() + case.pause_s
            if str(error) != case.told:
                case.told = str(error)
                log.warning(
                    "disk %d (%s) stays out of service: %s; tried again in %.0f s",
                    disk.index,
                    disk.path,
                    error,
                    case.next_s - trio.current_time(),
                )
            return
        disk.take(engine)
        log.warning("disk %d (%s) is in use again, its targets return", disk.index, disk.path)
        self._double(case)
        case.next_s, case.told, case.returned_s = 0.0, "", trio.current_time()
        while not disk.is_failed:
            try:
                await self._bring_back(disk)
            except Exception as error:  # noqa: BLE001 - of a bug it is raised again
                require_passing(error)
                if disk.is_failed:
                    log.warning("disk %d (%s) failed again: %s", disk.index, disk.path, error)
                    return
                # The books are in use, or something is lacking: nothing else would bring them back.
                log.warning("disk %d (%s): its targets wait: %s", disk.index, disk.path, error)
                await trio.sleep(LOOK_INTERVAL_S)
            else:
                return

    def _double(self, case: _Case) -> None:
        case.pause_s = min(2 * case.pause_s, RECHECK_PAUSE_S_MAX)

    async def _bring_back(self, disk: Disk) -> None:
        """Let the targets return, also those whose making the failure cut short;
        not those being removed.
        """
        targets = self._context.targets
        await disk.measure()
        for target_id in disk.run_inline(disk.engine.target_ids):
            if target_id not in targets.targets and not self._changes.is_removed(target_id):
                targets.add(LocalTarget(target_id, disk, LocalState.OFFLINE, Hold.BROKEN))
        for target in self._targets_of(disk):
            target.unsettled.clear()
            disk.run_inline(keep_offline_if_asked, target)
            target.disk_loss_count = disk.run_inline(disk_losses, target)
            target.standing = disk.run_inline(load_standing, disk.engine, target.target_id)
            target.watermark = disk.run_inline(load_watermark, disk.engine, target.target_id)
            targets.release(target, Hold.BROKEN)

    def _targets_of(self, disk: Disk) -> list[LocalTarget]:
        return [t for t in self._context.targets.targets.values() if t.disk is disk]
