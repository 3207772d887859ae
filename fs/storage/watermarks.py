"""Numbers on our disks that only rise, so that a disk that was put back to an earlier state
is known by its lower one.

The managers keep the highest that each target told them (fs/mgmtd/watermarks.py).  A watermark is
the wall time in seconds, where that is higher than the last one, so that people see how old an
image is.  A clock that was stepped back costs nothing but that.

Invariants:
    - A watermark is told only when it is durable.
    - It rises only under a target that is whole: one that the manager has let serve, or that a
      resync has completed. An older image that waits keeps its number.
    - A target that becomes whole goes beyond all that was told of it before it says so.  Else its
      disk would count as an older image of the one that it replaces.

Not found: an image from after the last watermark that was told, so of the last INTERVAL_S before a
process was killed. Decision: specs/decisions/0101-older-images-of-disks.md.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import trio

from ..chunkengine.api import ChunkEngine, Note
from ..node.api import NodeLease
from ..runtime.ports import Clock
from ..schema.ids import TargetId
from ..schema.proto.mgmtd_pb2 import OlderImagePb
from ..schema.status import FsError
from .disk import Disk
from .target import LocalTarget
from .targets import Place, Targets

log = logging.getLogger(__name__)

WATERMARK_KEY: Final = b"m"
"""Of the note."""
NONE_YET: Final = 1
"""What is told of a disk that has none; 0 is told of one that cannot be read."""
INTERVAL_S: Final = 60.0
RETRY_S: Final = 1.0
LAST_S: Final = 1.0
"""A disk has so long to take the watermark of a process that stops."""


def load_watermark(engine: ChunkEngine, target_id: TargetId) -> int:
    """Return what a target's disk has; blocking."""
    values = [n.value for n in engine.notes(target_id) if n.key == WATERMARK_KEY]
    return int.from_bytes(values[0], "big") if values else NONE_YET


def note_watermarks(engine: ChunkEngine, numbers: Sequence[tuple[TargetId, int]]) -> None:
    """Write them, durably by one flush of the log; blocking."""
    for target_id, number in numbers[:-1]:
        engine.put_notes(target_id, [_note(number)])
    for target_id, number in numbers[-1:]:
        engine.put_notes(target_id, [_note(number)], is_durable=True)


async def raise_watermarks(disk: Disk, targets: Sequence[LocalTarget], clock: Clock) -> None:
    """Have targets of one disk, which are whole, go beyond all that was told of them.

    Raises:
        FsError: of the disk; what is told stays as it was.
    """
    async with disk.watermarking:
        engine, now = disk.engine, clock.wall_ns() // 10**9
        numbers = [(t.target_id, max(now, t.watermark + 1, t.told_watermark + 1)) for t in targets]
        await disk.run(note_watermarks, engine, numbers)
        for target, (_, number) in zip(targets, numbers, strict=True):
            if disk.engine is engine:
                target.watermark = max(target.watermark, number)


class Watermarks:
    """Raises those of all targets of a process that serve, while they do."""

    def __init__(
        self, targets: Targets, clock: Clock, lease: NodeLease, has_room: Callable[[Disk], bool]
    ) -> None:
        """`has_room`: a full disk is not written for this alone;
        it would fail, and serves reads yet.
        """
        self._targets = targets
        self._clock = clock
        self._lease = lease
        self._has_room = has_room
        self._is_wanted = trio.Event()

    def hear(self, images: Iterable[OlderImagePb]) -> None:
        """Take note of what was told of our targets before, by disks that had more."""
        for image in images:
            target = self._targets.targets.get(TargetId(image.target_id))
            if target is not None and target.told_watermark < image.told_watermark:
                target.told_watermark = image.told_watermark
                self._is_wanted.set()

    async def run(self) -> None:
        """Raise them until cancelled."""
        while True:
            self._is_wanted = trio.Event()
            async with trio.open_nursery() as nursery:  # one that hangs holds up no other
                for disk in self._targets.disks:
                    nursery.start_soon(self._raise, disk)
            with trio.move_on_after(INTERVAL_S):
                await self._is_wanted.wait()
                await trio.sleep(RETRY_S)

    async def raise_last(self, nursery: trio.Nursery) -> None:
        """Raise them once more before the managers are told that this process stops;
        nobody waits for longer than LAST_S.

        Args:
            nursery: what waits for a disk that hangs.
        """
        done = trio.Event()

        async def raise_all() -> None:
            async with trio.open_nursery() as disks:
                for disk in self._targets.disks:
                    disks.start_soon(self._raise, disk)
            done.set()

        nursery.start_soon(raise_all)
        with trio.move_on_after(LAST_S):
            await done.wait()

    async def _raise(self, disk: Disk) -> None:
        here = [p.target for p in self._targets.places() if _may_rise(p) and p.target.disk is disk]
        if not self._lease.is_valid():
            # Whoever still serves by what he knew from managers that are gone.
            return
        if not here or disk.is_failed or not self._has_room(disk):
            return
        try:
            await raise_watermarks(disk, here, self._clock)
        except FsError as error:
            log.warning("disk %d (%s): no watermark: %s", disk.index, disk.path, error)


def _may_rise(place: Place) -> bool:
    return place.can_read and not place.is_of_other_store


def _note(number: int) -> Note:
    return Note(WATERMARK_KEY, number.to_bytes(8, "big"))
