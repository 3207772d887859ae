"""Runs that go to one chunk in one update.  Pure.

Invariants:
    - The runs lie apart or next to each other, in the order of their offsets.
    - There are at most RANGE_COUNT_MAX of them, and one that is large is alone.
"""

from bisect import bisect_left
from collections.abc import Sequence
from typing import Final

from .write_run import FLUSH_BYTES_MAX, WriteRun

RANGE_COUNT_MAX: Final = 1024
"""As many as an update takes."""

RUN_BYTES_MAX: Final = 128 << 10
"""Larger ones are sent from where they are:
that of several is copied, which would cost more than an update of its own.
"""


class DirtyRanges:
    """See module head; never empty."""

    __slots__ = ("_offsets", "length", "runs")

    def __init__(self, run: WriteRun) -> None:
        self.runs = [run]
        self._offsets = [run.offset]
        self.length = run.length
        """Bytes of all runs."""

    @property
    def offset(self) -> int:
        """Of the first byte."""
        return self._offsets[0]

    @property
    def end(self) -> int:
        """Offset of the byte after the last one."""
        return self.runs[-1].end

    def overlaps(self, offset: int, end: int) -> bool:
        """Return whether a byte of offset..end is among them."""
        position = bisect_left(self._offsets, end)  # of the first run that begins behind
        return position > 0 and self.runs[position - 1].end > offset

    def add(self, run: WriteRun) -> bool:
        """Take a run in; return False, with nothing done, if it lies over another, is large,
        or there are too many.
        """
        are_large = max(run.length, self.runs[0].length) > RUN_BYTES_MAX
        if are_large or self.length + run.length > FLUSH_BYTES_MAX:
            return False
        if len(self.runs) >= RANGE_COUNT_MAX or self.overlaps(run.offset, run.end):
            return False
        position = bisect_left(self._offsets, run.offset)
        self._offsets.insert(position, run.offset)
        self.runs.insert(position, run)
        self.length += run.length
        return True

    def forget_bytes(self) -> None:
        """Let go of the bytes; where they were stays known."""
        for run in self.runs:
            run.forget_bytes()

    def joined(self) -> Sequence[WriteRun]:
        """Return the bytes as runs with something between each two."""
        if len(self.runs) == 1:
            return self.runs
        made: list[WriteRun] = []
        for run in self.runs:
            if not made or made[-1].end != run.offset:
                made.append(WriteRun(run.offset))
            for piece in run.pieces:
                made[-1].append(piece)
        return made
