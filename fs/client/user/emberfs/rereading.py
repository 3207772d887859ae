"""Rows of files that are read again and again, as data sets are, epoch after epoch:
by rings first, then out of the kernel's page cache.

    rereader = Rereader(client, files)
    counts = rereader.read(rows, buffer)

Purpose: a ring is the cheapest way to bytes that this host does not have, and the page cache of the
mount the cheapest to those that it has.  Rings leave nothing in that cache.  So a block of a file
of which a share was read by rings is asked for as a whole, in the background, and what lies in it
is read by system calls from then on.  The kernel drops pages as it needs memory.

Invariants:
    - Results and errors are those of `emberfs.rows.read_rows`.
    - Nothing is shown that a `read` of an ordinary program on the mount might not show: a file
      opened after a change was closed shows it, wherever that was made; to files that are open,
      changes by other hosts may come late.
    - Files that would fill more than a part of the free memory are read by rings alone.  When
      reading out of the cache turns out slower than by rings, because the kernel needed the memory,
      all is forgotten, and the share that asks for a block doubles.

What this module does not do: keep bytes itself; read ahead of a program.
"""

import os
from array import array
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from time import perf_counter
from typing import Final, cast

from .batch import BatchClient, BatchFile
from .ring import RingClient
from .ring_file import RingFile
from .rows import Rows, check_rows, read_rows

BLOCK_BITS: Final = 20
BLOCK_BYTES: Final = 1 << BLOCK_BITS
"""A mount is asked for at most so much at once,
which costs it about what as many bytes by rings do.
"""
FIRST_SHARE: Final = 1 / 8
"""This part of a block is read by rings before the whole is asked for:
who reads few samples does not pay for many.
"""
FREE_MEMORY_PART: Final = 2
SETTLED_BATCHES: Final = 16
"""So many after the last block was asked for, what was asked for has come,
and its speed says something.
"""
JUDGED_BATCHES: Final = 16
"""So many are looked at together."""


class _Blocks:
    """What is known of one file's blocks.

    Wrong notes cost time, never bytes, so threads may change them side by side.
    """

    def __init__(self, length: int) -> None:
        self.length = length
        self.is_whole = False
        self.forget()

    def forget(self) -> None:
        """Know nothing of the cache any more."""
        count = -(-self.length // BLOCK_BYTES)
        self.is_whole = False
        self._is_here = bytearray(count)
        self._read_bytes = array("Q", bytes(8 * count))

    def has(self, offset: int, size: int) -> bool:
        """Return whether all of a row has been asked for;
        False behind the end of the file as it was opened.
        """
        end = offset + size
        if end > self.length:
            return False
        first, last = offset >> BLOCK_BITS, (end - 1) >> BLOCK_BITS
        if first == last:
            return bool(self._is_here[first])
        return 0 not in self._is_here[first : last + 1]

    def note_read(self, offset: int, size: int, share: float) -> list[int]:
        """Take in what was read past the cache; return the blocks that are to be asked for now."""
        first, last = offset >> BLOCK_BITS, (offset + size - 1) >> BLOCK_BITS
        wanted = []
        for block in range(first, min(last + 1, len(self._is_here))):
            self._read_bytes[block] += size
            block_bytes = min(BLOCK_BYTES, self.length - (block << BLOCK_BITS))
            if self._read_bytes[block] >= share * block_bytes and not self._is_here[block]:
                self._is_here[block] = 1
                wanted.append(block)
        if wanted:
            self.is_whole = 0 not in self._is_here
        return wanted


class _Pace:
    """Bytes that came one way, and how long they took."""

    def __init__(self) -> None:
        self.bytes = 0
        self.seconds = 0.0
        self.batches = 0

    def note(self, count: int, seconds: float) -> None:
        """Take in a batch."""
        self.bytes += count
        self.seconds += seconds
        self.batches += 1

    def is_slower_than(self, other: "_Pace") -> bool:
        """Return whether a byte took longer this way."""
        return self.seconds * other.bytes > other.seconds * self.bytes


class Rereader:
    """Reads rows of files that stay open; see module head.

    Args:
        client: through which the files were opened; if not by rings, all is done by `read_rows`.
        files: those that are read again and again; rows of others may be among them.
    """

    def __init__(self, client: BatchClient, files: Iterable[BatchFile]) -> None:
        self._client = client
        self._blocks: dict[BatchFile, _Blocks] = {}
        self._share = FIRST_SHARE
        self._by_rings, self._cached = _Pace(), _Pace()
        self._settling_batches = SETTLED_BATCHES
        if isinstance(client, RingClient):
            lengths = {file: os.fstat(_fd(file)).st_size for file in files}
            if sum(lengths.values()) <= free_memory_bytes() // FREE_MEMORY_PART:
                self._blocks = {file: _Blocks(length) for file, length in lengths.items()}

    @property
    def is_cached(self) -> bool:
        """Whether all of the files has been asked for: rings are hardly used any more."""
        return bool(self._blocks) and all(blocks.is_whole for blocks in self._blocks.values())

    def read(self, rows: Rows, buffer: memoryview) -> list[int]:
        """Fill the buffer; as `read_rows`, with its errors."""
        if not self._blocks:
            return read_rows(self._client, rows, buffer)
        check_rows(rows, buffer)
        cached, rest = self._sorted_out(rows)
        counts = [0] * len(rows.files)
        if cached:
            began_s = perf_counter()
            fds = {file: _fd(file) for file in self._blocks.keys() & set(rows.files)}
            rest += _read_cached(cached, rows, buffer, counts, fds)
            self._cached.note(sum(counts), perf_counter() - began_s)
        if rest:
            self._read_by_rings(sorted(rest), rows, buffer, counts)
        self._judge()
        return counts

    def _sorted_out(self, rows: Rows) -> tuple[Sequence[int], list[int]]:
        """Return the rows to be read out of the cache, and the others."""
        every = range(len(rows.files))
        if self._are_of_whole_file(rows):
            return every, []
        cached: list[int] = []
        rest: list[int] = []
        for index, file, offset, size in zip(every, *rows[:3], strict=True):
            blocks = self._blocks.get(file)
            is_cached = size and blocks is not None and blocks.has(offset, size)
            (cached if is_cached else rest).append(index)
        return cached, rest

    def _are_of_whole_file(self, rows: Rows) -> bool:
        """Return whether all rows are of one file that has been asked for:
        most batches are, and it is seen quickly.
        """
        file = rows.files[0] if rows.files else None
        blocks = self._blocks.get(file) if file is not None else None
        if (
            file is None
            or blocks is None
            or not blocks.is_whole
            or rows.files.count(file) < len(rows.files)
        ):
            return False
        return max(map(int.__add__, rows.offsets, rows.sizes)) <= blocks.length

    def _read_by_rings(
        self, indices: Sequence[int], rows: Rows, buffer: memoryview, counts: list[int]
    ) -> None:
        some = rows.only(indices)
        began_s = perf_counter()
        found = read_rows(self._client, some, buffer)
        self._by_rings.note(sum(found), perf_counter() - began_s)
        for index, count, file, offset in zip(indices, found, *some[:2], strict=True):
            counts[index] = count
            blocks = self._blocks.get(file)
            if blocks is not None and count:
                for block in blocks.note_read(offset, count, self._share):
                    self._ask_for(file, block)

    def _ask_for(self, file: BatchFile, block: int) -> None:
        """Have the kernel read a block in the background."""
        self._settling_batches = SETTLED_BATCHES
        with suppress(OSError):  # a file that another thread has closed: who reads it next is told
            os.posix_fadvise(_fd(file), block << BLOCK_BITS, BLOCK_BYTES, os.POSIX_FADV_WILLNEED)

    def _judge(self) -> None:
        """Go back to rings where they turn out faster than the cache."""
        if self._settling_batches:
            self._settling_batches -= 1
            self._cached = _Pace()
        elif self._cached.batches >= JUDGED_BATCHES:
            if self._cached.is_slower_than(self._by_rings):
                self._share *= 2
                self._by_rings = _Pace()
                for blocks in self._blocks.values():
                    blocks.forget()
            self._cached = _Pace()


def _fd(file: BatchFile) -> int:
    return cast("RingFile", file).fileno()


def _read_cached(
    indices: Sequence[int],
    rows: Rows,
    buffer: memoryview,
    counts: list[int],
    fds: Mapping[BatchFile, int],
) -> list[int]:
    """Read by system calls; return the rows that failed, for rings to try."""
    failed = []
    preadv, (files, offsets, sizes, places) = os.preadv, rows
    for index in indices:
        size, place, offset, fd = sizes[index], places[index], offsets[index], fds[files[index]]
        try:
            count = preadv(fd, [buffer[place : place + size]], offset)
            while 0 < count < size:
                more = preadv(fd, [buffer[place + count : place + size]], offset + count)
                if not more:
                    break
                count += more
            counts[index] = count
        except OSError:
            failed.append(index)
    return failed


def free_memory_bytes() -> int:
    """Return how much memory programs could still get, as the kernel sees it; 0: it does not say.

    A limit of a container counts, too, whatever of it is in use already.
    """
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        free = next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration):
        return 0
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
    except OSError:
        return free
    return min(free, int(limit)) if limit.isdecimal() else free
