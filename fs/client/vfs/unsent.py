"""What was written and storage does not have yet:
bytes on their way, and records that have no place yet.  No I/O.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import trio

from ...runtime.ports import Buffer
from ...schema.status import FsError
from ..inline_report import InlineReport
from .dirty_ranges import RUN_BYTES_MAX, DirtyRanges
from .write_run import WriteRun


class Flush:
    """Bytes on their way to storage; once it is `done`, `failure` says whether they arrived.

    One run, of whatever chunks; or several of one chunk, which joined it while
    it waited for an earlier one.
    """

    __slots__ = (
        "chunk_end",
        "chunk_first",
        "done",
        "doubted",
        "failure",
        "is_begun",
        "is_durable",
        "is_held",
        "is_inline",
        "is_waited",
        "ranges",
        "told",
        "truncate_ver",
        "waits_for",
    )

    def __init__(
        self, run: WriteRun, chunk_size_bytes: int, truncate_ver: int, *, is_durable: bool
    ) -> None:
        self.ranges = DirtyRanges(run)
        self.chunk_first = run.offset // chunk_size_bytes
        self.chunk_end = -(-run.end // chunk_size_bytes)
        self.truncate_ver = truncate_ver
        self.is_begun = False
        """Its bytes may have left: no others join them."""
        self.is_held = False
        """Nothing sends it yet; it is in `InodeState.held`."""
        self.is_durable = is_durable
        """It is to be, and in the end, whether it is: its bytes would survive a power loss."""
        self.is_waited = False
        """Somebody waits for all that was written, and asked for this flush:
        the whole content may go to meta instead.
        """
        self.is_inline = False
        """That is under way: until it has ended nothing of the file may leave for storage."""
        self.doubted: InlineReport | None = None
        """Meta has refused to take its bytes when it was asked again:
        whether it had taken them before has to be found out.
        """
        self.done = trio.Event()
        self.told: list[Callable[[], None]] = []
        """Called right after `done`; they neither wait nor raise."""
        self.failure: FsError | None = None
        self.waits_for: list[Flush] = []

    def touches(self, other: "Flush") -> bool:
        """True when both hold bytes of one chunk, or one goes inline."""
        if self.is_inline or other.is_inline:
            return True
        return self.chunk_first < other.chunk_end and other.chunk_first < self.chunk_end

    @property
    def is_small(self) -> bool:
        """True for a run of one chunk that others may join."""
        return self.chunk_end == self.chunk_first + 1 and self.ranges.length <= RUN_BYTES_MAX

    def joins(self, earlier: "Flush") -> bool:
        """Have an earlier one take our run along, if both are of the same single chunk;
        False: nothing is done.
        """
        return (
            not earlier.is_begun
            and earlier.doubted is None
            and earlier.chunk_first == self.chunk_first
            and earlier.chunk_end == self.chunk_end == self.chunk_first + 1
            and earlier.truncate_ver == self.truncate_ver
            and earlier.is_durable == self.is_durable
            and earlier.ranges.add(self.ranges.runs[0])
        )


@dataclass(slots=True)
class AppendBuffer:
    """Whole records of O_APPEND writers, in the order of their write() calls;
    offsets are not known yet.
    """

    pieces: list[Buffer] = field(default_factory=list)
    length: int = 0
    """Of all records that have no place yet, also of those whose reservation is under way."""
    assumed_offset: int = 0
    """Where the kernel believes the first record to be."""
    reserving_length: int = 0
    reserving_end: int = 0
    """Of the records whose reservation is under way: where they would end."""

    def begin_reservation(self, length: int, end: int) -> None:
        """Note that records of an earlier buffer are being given their place."""
        self.length += length
        self.reserving_length, self.reserving_end = length, end

    def end_reservation(self) -> None:
        """They have their place, or are lost."""
        self.length -= self.reserving_length
        self.reserving_length = self.reserving_end = 0
