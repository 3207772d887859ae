"""Making and removing targets while the node runs, for the manager.

Invariants:
    - A target is in its disk's own record before anybody hears of it.
    - A target that is a member of a chain by the newest routing info is neither removed nor made
      anew.  The one exception: a target whose chain has put it OFFLINE may be made anew (a replaced
      disk), since it then comes back through resync.
    - A removed target leaves the heartbeats, with which its removal ends for the manager, once its
      disk remembers that it is to go.
    - Its number is not given again until its chunks are gone, also while its disk has failed.  When
      that disk is in use again, they are dropped there.

Why routing info that is not the newest does no harm to a removal: a target holds what its
chain needs only after this node has seen itself in that chain (it was resynced, or
promoted, under that version).
"""

import logging
from collections.abc import Callable
from functools import partial
from typing import Final

import trio

from ..schema.ids import TargetId, is_target_id
from ..schema.routing import LocalState, PublicState, RoutingInfo
from ..schema.status import FsError, Status
from .context import StorageContext
from .disk import Disk
from .local_state import Hold
from .target import LocalTarget
from .watermarks import NONE_YET

log = logging.getLogger(__name__)

DROP_RETRY_S: Final = 5.0

DROPPED_LOTS: Final = 16
"""Of chunks in one call, some thousands: a disk counts as one that hangs when a call goes
on for ever (disk_calls.py).
"""


class TargetChanges:
    """Makes and removes the targets of one process, one at a time."""

    def __init__(self, context: StorageContext) -> None:
        self._context = context
        self._lock = trio.Lock()
        self._removed: dict[TargetId, LocalTarget] = {}
        self._has_removed = trio.Event()

    async def create(self, target_id: TargetId, disk_index: int) -> None:
        """Make an empty target on a disk; return when it would survive a power loss.

        Raises:
            FsError: INVALID_ARGUMENT for a number that names no target or a disk that the node
                has not got; CONFLICTING_CHANGE if the target exists elsewhere or its chain
                counts on its chunks; BUSY while a former target of this number is being
                removed; NO_SPACE; IO_ERROR.
        """
        disk = self._disk(target_id, disk_index)
        targets = self._context.targets
        async with self._lock:
            if target_id in self._removed:
                raise FsError(
                    Status.BUSY, f"target {target_id}: its chunks are still being dropped"
                )
            known = targets.targets.get(target_id)
            if known is not None and known.disk is not disk:
                raise FsError(
                    Status.CONFLICTING_CHANGE, f"target {target_id} is on disk {known.disk.index}"
                )
            if known is not None:
                return
            self._check_new(await self._context.routing.refresh(), target_id)
            await self._record(disk, target_id)
            targets.add(
                LocalTarget(target_id, disk, LocalState.ONLINE, Hold.NONE, watermark=NONE_YET)
            )
            log.info("target %d: made on disk %d (%s)", target_id, disk_index, disk.path)

    async def remove(self, target_id: TargetId) -> None:
        """Take a target that is in no chain out of service for good and have its chunks dropped.

        Raises:
            FsError: BUSY while it is a member of a chain; IO_ERROR.
        """
        targets = self._context.targets
        async with self._lock:
            target = targets.targets.get(target_id)
            if target is None:
                return
            info = await self._context.routing.refresh()
            for chain in info.chains.values():
                if chain.state_of(target_id) is not None:
                    raise FsError(
                        Status.BUSY,
                        f"target {target_id} is in chain {chain.chain_id}: take it out first",
                    )
            targets.put_offline(target, Hold.REMOVED, "it is being removed")
            if not target.disk.is_failed:  # of such a one nothing is known after a start anyway
                await target.disk.run(target.disk.engine.begin_removal, target_id)
            targets.forget(target)
            self._removed[target_id] = target
            self._has_removed.set()

    async def run(self) -> None:
        """Drop the chunks of removed targets, until cancelled."""
        async with trio.open_nursery() as nursery:
            begun: set[TargetId] = set()
            while True:
                await self._has_removed.wait()
                self._has_removed = trio.Event()
                for target_id in self._removed.keys() - begun:
                    begun.add(target_id)
                    nursery.start_soon(self._drop, self._removed[target_id], begun.discard)

    async def _drop(self, target: LocalTarget, forget: Callable[[TargetId], None]) -> None:
        await target.inflight.wait_older_left(2**32)
        disk = target.disk
        while True:
            try:
                if not disk.is_failed:  # else later, by another engine
                    while not await disk.run(
                        partial(disk.engine.remove_target, lot_count_max=DROPPED_LOTS),
                        target.target_id,
                    ):
                        await trio.lowlevel.checkpoint()  # the process may be told to stop
                    break
            except FsError as error:
                log.warning("target %d: chunks not dropped: %s", target.target_id, error)
            await trio.sleep(DROP_RETRY_S)
        log.info("target %d: removed from disk %d", target.target_id, disk.index)
        forget(target.target_id)
        del self._removed[target.target_id]

    async def _record(self, disk: Disk, target_id: TargetId) -> None:
        try:
            await disk.run(disk.engine.add_target, target_id)
        except FsError as error:
            if error.status is Status.TARGET_UNKNOWN:  # an earlier process began to remove it
                raise FsError(Status.BUSY, str(error)) from error
            raise

    def is_removed(self, target_id: TargetId) -> bool:
        """Return whether the target's chunks are being dropped, or will be."""
        return target_id in self._removed

    def is_updating(self, disk: Disk) -> bool:
        """Return whether updates are still inside of removed targets of this disk."""
        return any(t.disk is disk and t.inflight.count for t in self._removed.values())

    def _disk(self, target_id: TargetId, disk_index: int) -> Disk:
        disks = self._context.targets.disks
        if not is_target_id(target_id) or disk_index >= len(disks):
            raise FsError(
                Status.INVALID_ARGUMENT,
                f"target {target_id} on disk {disk_index}: the node has {len(disks)} disks",
            )
        if disks[disk_index].is_failed:
            raise FsError(Status.IO_ERROR, f"disk {disk_index} ({disks[disk_index].path}) failed")
        return disks[disk_index]

    def _check_new(self, info: RoutingInfo, target_id: TargetId) -> None:
        owner = info.targets.get(target_id)
        if owner is not None and owner.node_id != self._context.node_id:
            raise FsError(
                Status.CONFLICTING_CHANGE, f"target {target_id} belongs to node {owner.node_id}"
            )
        for chain in info.chains.values():
            state = chain.state_of(target_id)
            if state not in {None, PublicState.OFFLINE}:
                raise FsError(
                    Status.CONFLICTING_CHANGE,
                    f"chain {chain.chain_id} counts on the chunks of target {target_id}",
                )
