"""What a storage process says of its disks and targets, and of what it passes on,
when its metrics are read.
"""

from ..runtime.figures import Figures
from ..schema import metrics
from ..schema.routing import LocalState
from .context import StorageContext
from .disk import Disk
from .relay import Relays
from .target import LocalTarget


def say(context: StorageContext, relays: Relays, figures: Figures) -> None:
    """Say everything that this process knows of its disks and targets, as last measured,
    and for how many it passes requests on.
    """
    figures.note(metrics.STORAGE_BUFFERS_USED, context.buffers.used_bytes)
    figures.note(metrics.STORAGE_BUFFERS_IDLE, context.buffers.idle_bytes)
    figures.note(metrics.RELAYED_LINKS, len(relays.told()))
    for disk in context.targets.disks:
        _say_disk(disk, figures)
    known = context.routing.info.targets
    for target in context.targets.targets.values():
        located = known.get(target.target_id)
        _say_target(target, located.chain_id if located is not None else 0, figures)


def _say_disk(disk: Disk, figures: Figures) -> None:
    for metric, value in (
        (metrics.DISK_CAPACITY, disk.capacity_bytes),
        (metrics.DISK_FREE, disk.free_bytes),
        (metrics.DISK_ALLOCATED, disk.allocated_bytes),
        (metrics.DISK_USED, disk.used_bytes),
        (metrics.DISK_FAILED, disk.is_failed),
        (metrics.DISK_SLOW, disk.is_slow),
        (metrics.DISK_PACE, disk.pace.window_s),
        (metrics.DISK_INSIDE, disk.inside_count),
    ):
        figures.note(metric, value, disk.index)
    figures.note(metrics.DISK_WAITING, disk.read_limiter.waiting_count, disk.index, "read")
    figures.note(metrics.DISK_WAITING, disk.write_limiter.waiting_count, disk.index, "write")


def _say_target(target: LocalTarget, chain_id: int, figures: Figures) -> None:
    if chain_id:
        figures.note(metrics.TARGET_CHAIN, 1, target.target_id, chain_id)
    progress = target.progress
    for metric, value in (
        (metrics.TARGET_USED, target.used_bytes),
        (metrics.TARGET_READ, target.read_bytes),
        (metrics.TARGET_WRITTEN, target.written_bytes),
        (metrics.TARGET_UNSETTLED, len(target.unsettled)),
        (metrics.TARGET_DAMAGED, len(target.damaged)),
        (metrics.TARGET_FOUND, target.checksum_error_count),
        (metrics.TARGET_REPAIRED, target.repaired_count),
        (metrics.TARGET_LOST, target.lost_count),
        (metrics.TARGET_DIFFERENCES, target.difference_count),
        (metrics.TARGET_ELSEWHERE, target.read_elsewhere_count),
        (metrics.TARGET_RESYNC_RUNNING, progress.is_running),
        (metrics.TARGET_RESYNC_DONE, progress.compared_bytes),
        (metrics.TARGET_RESYNC_SENT, progress.transferred_bytes),
        (metrics.TARGET_SCRUB_PASSES, target.scrub_pass_count),
        (metrics.TARGET_SCRUB_BYTES, target.scrubbed_bytes),
    ):
        figures.note(metric, value, target.target_id)
    for state in LocalState:
        is_so = target.local_state is state
        figures.note(metrics.TARGET_STATE, is_so, target.target_id, state.name.lower())
