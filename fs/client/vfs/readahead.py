"""Readahead of one open file: what to fetch next, and which fetched blocks to keep.  Pure.

A reader is sequential when its reads follow each other, give or take SLACK_BYTES: the kernel sends
the reads of one stream concurrently and slightly out of order.

The window begins with two reads, or WINDOW_BYTES_MIN.  It doubles with each sequential read that
reaches the second half of what was fetched, and falls to zero at a jump.

Who begins at the start of a larger file with START_BYTES at once reads it all, as far as can be
known.  For that read, and what is behind it, a block of START_BLOCK_BYTES is fetched.  From the
third read on the window doubles with each; the second one the kernel sends by itself.

Invariants:
    - Blocks are disjoint, in file order, and together contiguous.
    - `held_bytes` is the sum of their lengths.
"""

from collections import deque
from typing import Generic, TypeVar

from ...schema.layout import KIB, MIB

WINDOW_BYTES_MIN = 256 * KIB
BLOCK_BYTES_MAX = 8 * MIB
"""Of one fetch, which is one request (`AHEAD_BYTES`):
that costs both sides as much by itself as copying a MiB.
"""
SLACK_BYTES = 1 * MIB
SEQUENTIAL_READ_COUNT = 2
"""A file read once from the start may be a header; the second read in a row is a stream."""
START_BYTES = 1 * MIB
"""Of one read: as much as the kernel asks for at once where the program itself wants hundreds
of KiB.  Headers are read in smaller pieces.
"""
START_BLOCK_BYTES = 4 * MIB
"""Of the block that he waits for first: one twice as large comes a millisecond later,
for nothing if he stops.
"""
START_AHEAD = 4
"""As many times what he has read is fetched at the most:
after a large read he may go on with small ones.
"""
BlockT = TypeVar("BlockT")


class Block(Generic[BlockT]):
    """A fetched or still arriving piece of a file; `content` belongs to the caller."""

    __slots__ = ("content", "end", "is_dropped", "offset")

    def __init__(self, offset: int, end: int, content: BlockT) -> None:
        self.offset = offset
        self.end = end
        self.content = content
        self.is_dropped = False
        """Nobody will read it, though it may still be arriving."""


class Readahead(Generic[BlockT]):
    """See module head."""

    __slots__ = (
        "_dropped",
        "blocks",
        "held_bytes",
        "is_from_start",
        "next_offset",
        "sequential_count",
        "window_bytes",
    )

    def __init__(self) -> None:
        self.blocks: deque[Block[BlockT]] = deque()
        self._dropped: list[Block[BlockT]] = []
        self.held_bytes = 0
        self.next_offset = 0
        self.window_bytes = 0
        self.sequential_count = 0
        self.is_from_start = False
        """He who reads has begun at the start of the file, with a large read."""

    def note_read(self, offset: int, end: int, window_bytes_max: int) -> None:
        """Learn from a read of [offset, end): adapt the window, drop blocks that lie behind."""
        is_start = offset == 0 and START_BYTES <= end < START_BLOCK_BYTES
        if abs(offset - self.next_offset) > SLACK_BYTES:
            self.clear()
            self.next_offset = end
            if not is_start:
                return
        self.sequential_count += 1
        self.next_offset = max(self.next_offset, end)
        if is_start and self.sequential_count == 1:
            self.is_from_start = True
        if self.is_from_start:
            if self.sequential_count == 1:
                self.window_bytes = START_BLOCK_BYTES - end
            elif self.sequential_count > SEQUENTIAL_READ_COUNT:
                grown = 2 * max(self.window_bytes, end - offset)
                self.window_bytes = min(grown, START_AHEAD * self.next_offset)
        elif self.sequential_count >= SEQUENTIAL_READ_COUNT:
            fetched_end = self.blocks[-1].end if self.blocks else end
            if self.window_bytes == 0 or fetched_end - end <= self.window_bytes // 2:
                self.window_bytes = max(self.window_bytes * 2, WINDOW_BYTES_MIN, 2 * (end - offset))
        self.window_bytes = min(self.window_bytes, window_bytes_max)
        while self.blocks and self.blocks[0].end + SLACK_BYTES <= self.next_offset:
            self._drop_first()

    def ranges_to_fetch(self, length: int, room_bytes: int) -> list[tuple[int, int]]:
        """Return [offset, end) ranges to fetch now, contiguous with the blocks, in file order.

        Args:
            length: of the file; nothing beyond is fetched.
            room_bytes: how many bytes may be fetched at the most.
        """
        if self.window_bytes == 0:
            return []
        if self.is_from_start and self.sequential_count == 1 and not self.blocks:
            # with what he has asked for himself
            end = min(self.next_offset + self.window_bytes, length)
            return [(0, end)] if self.next_offset < end <= room_bytes else []
        start = self.blocks[-1].end if self.blocks else self.next_offset
        if start < self.next_offset:  # the reader overtook its readahead
            self.clear_blocks()
            start = self.next_offset
        end = min(self.next_offset + self.window_bytes, length)
        # Small top-ups would turn one request per window into one per read.
        if end - start < min(self.window_bytes // 2, BLOCK_BYTES_MAX, length - start):
            return []
        if end < length and end - start >= BLOCK_BYTES_MAX:
            end -= end % BLOCK_BYTES_MAX  # what is next is then one block, not two halves
        elif self.is_from_start and end < length and end - start >= START_BLOCK_BYTES:
            end -= end % START_BLOCK_BYTES
        ranges = []
        while start < end and room_bytes > 0:
            stop = min((start // BLOCK_BYTES_MAX + 1) * BLOCK_BYTES_MAX, end, start + room_bytes)
            ranges.append((start, stop))
            room_bytes -= stop - start
            start = stop
        return ranges

    def add(self, block: Block[BlockT]) -> None:
        """Append a block that follows the last one."""
        assert not self.blocks or self.blocks[-1].end == block.offset
        self.blocks.append(block)
        self.held_bytes += block.end - block.offset

    def covering(self, offset: int, end: int) -> list[Block[BlockT]]:
        """Return the blocks that together hold all of [offset, end); empty when they do not."""
        if not self.blocks or offset < self.blocks[0].offset or end > self.blocks[-1].end:
            return []
        return [b for b in self.blocks if b.end > offset and b.offset < end]

    def clear_blocks(self) -> None:
        """Forget what was fetched, keep what was learnt."""
        self._dropped += self.blocks
        self.blocks.clear()
        self.held_bytes = 0

    @property
    def has_dropped(self) -> bool:
        """True when `take_dropped` returns any."""
        return bool(self._dropped)

    def take_dropped(self) -> list[Block[BlockT]]:
        """Return the blocks that were forgotten since the last time, each once;
        nobody will read them.
        """
        dropped, self._dropped = self._dropped, []
        for block in dropped:
            block.is_dropped = True
        return dropped

    def clear(self) -> None:
        """Forget everything: the reader jumped."""
        self.clear_blocks()
        self.window_bytes = 0
        self.sequential_count = 0
        self.is_from_start = False

    def _drop_first(self) -> None:
        block = self.blocks.popleft()
        self._dropped.append(block)
        self.held_bytes -= block.end - block.offset
