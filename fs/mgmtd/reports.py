"""What a heartbeat says of targets and disks, in the words of the routing info.  Pure."""

from dataclasses import replace
from typing import Final

from ..schema.proto.mgmtd_pb2 import DiskReportPb, TargetReportPb
from ..schema.routing import Target
from .destinations import Disk

TROUBLE_LENGTH_MAX: Final = 200
"""Characters of what a node says is wrong with a target; the rest is in its log."""


def with_report(target: Target, report: TargetReportPb) -> Target:
    """Return a target with what its node says of it, but for its state."""
    return replace(
        target,
        used_bytes=report.used_bytes,
        low_space=report.low_space,
        is_slow=report.is_slow,
        trouble=report.trouble[:TROUBLE_LENGTH_MAX],
    )


def disk_of(report: DiskReportPb) -> Disk:
    """Return what a node says of a disk."""
    return Disk(
        report.disk_index, report.capacity_bytes, report.free_bytes, is_failed=report.is_failed
    )
