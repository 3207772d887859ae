"""Watermarks of targets: what a disk that was put back to an earlier state cannot have.

A target that serves writes a number on its disk again and again, always a higher one, and tells it
when it is durable (fs/storage/watermarks.py).  The highest that was told is kept here.  So a disk
that comes with less is not the one that served: it is an older image of it, or was emptied.

Invariants:
    - What is kept is never above what the disk had durably when it told it, so a disk that
      only lost its power has no less.
    - A target with less than was told of it does not serve as the last that has a chain's
      newest data, until a person accepts it.  Nothing else is refused to it: as the target of a
      resync it gets what it lacks.
    - Kept late or not at all (no store, an older release, a restore of the
      managers) it only finds fewer images.

Pure but for the table itself.  Decision: specs/decisions/0101-older-images-of-disks.md.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final

from ..schema.ids import TargetId
from ..schema.proto.record_pb2 import WatermarkRecordPb
from ..schema.routing import Chain
from ..schema.status import FsError, Status

WATERMARK_PREFIX: Final = b"MGWM"

Record = tuple[bytes, bytes | None]


class Watermarks:
    """The highest that was told of each target, and who came with less."""

    def __init__(self, told: Mapping[TargetId, int]) -> None:
        self.told = dict(told)
        self._older: dict[TargetId, int] = {}
        """What was found on disks that had less than was told before."""
        self._unwritten: dict[TargetId, None] = {}

    def hear(self, target_id: TargetId, found: int) -> bool:
        """Take in what a target reports; return whether it began, or ceased, to be an older image.

        0: not known, or of a release that keeps none: it is believed as
        before there were watermarks.
        """
        told = self.told.get(target_id, 0)
        was_older = target_id in self._older
        if found and found < told:
            self._older[target_id] = found
            return not was_older
        self._older.pop(target_id, None)
        if found > told:
            self.told[target_id] = found
            self._unwritten[target_id] = None
        return was_older

    def is_refused(self, target_id: TargetId, chain: Chain | None) -> bool:
        """Return whether the target's disk is too old for what its chain waits for."""
        return (
            target_id in self._older
            and chain is not None
            and not chain.serving
            and target_id in chain.candidates
        )

    def older(self, target_id: TargetId) -> int | None:
        """Return what was told of a target that came with less; None of any other."""
        return self.told[target_id] if target_id in self._older else None

    def refusal(self, target_id: TargetId) -> FsError:
        """Return what people are told of an older image."""
        found, told = self._older[target_id], self.told[target_id]
        return FsError(
            Status.OLD_DISK_IMAGE,
            f"target {target_id} comes with its disk of {_time(found)}, but served until "
            f"{_time(told)} at least",
        )

    def accept(self, target_id: TargetId) -> None:
        """Believe a disk as it is from now on."""
        found = self._older.pop(target_id, None)
        if found is not None:
            self.told[target_id] = found
            self._unwritten[target_id] = None

    def forget(self, target_id: TargetId) -> None:
        """A target ceased to be, and another of its number begins anew;
        or it served without a watermark, and that counts for nothing.
        """
        self._older.pop(target_id, None)
        if self.told.pop(target_id, None) is not None:
            self._unwritten[target_id] = None

    def unwritten(self) -> list[Record]:
        """Return what the store does not have yet."""
        return [(watermark_key(t), self._packed(t)) for t in sorted(self._unwritten)]

    def note_written(self, records: list[Record]) -> None:
        """Take note that the store has these; what has changed since is still unwritten."""
        written = dict(records)
        for target_id in list(self._unwritten):
            key = watermark_key(target_id)
            if key in written and written[key] == self._packed(target_id):
                del self._unwritten[target_id]

    def _packed(self, target_id: TargetId) -> bytes | None:
        told = self.told.get(target_id)
        if told is None:
            return None
        record = WatermarkRecordPb(target_id=target_id, watermark=told)
        return record.SerializeToString(deterministic=True)


def watermark_key(target_id: TargetId) -> bytes:
    """Return the key of what was told of a target."""
    return WATERMARK_PREFIX + target_id.to_bytes(8, "big")


def unpack_watermarks(values: list[bytes]) -> dict[TargetId, int]:
    """Return what the store has."""
    records = [WatermarkRecordPb.FromString(value) for value in values]
    return {TargetId(r.target_id): r.watermark for r in records}


def _time(watermark: int) -> str:
    """Return when, in words; a watermark is a wall time in seconds, unless a clock was behind."""
    if watermark <= 1:
        return "before it ever served"
    try:
        return datetime.fromtimestamp(watermark, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (ValueError, OverflowError, OSError):  # of a clock that was far ahead
        return f"second {watermark}"
