"""Many pieces of files read into one buffer, by columns: what data loaders do all the time.

    buffer = new_buffer(client, sum(sizes))
    counts = read_rows(client, Rows(files, offsets, sizes, places), buffer)

Purpose: a batch costs the program a few operations on whole columns and next to nothing for
each piece, where `BatchClient.read` makes an object for each.  Any client will do; `RingClient`
takes the columns as they are.

Invariants:
    - Results and errors are those of `BatchClient.read`.
    - Memory of `new_buffer` is used again only when nothing refers to it any more, and never after
      a fork that came while it was in use: the child has it as it was.

What this module does not do: write; say where pieces lie.
"""

import ctypes
import os
import weakref
from array import array
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from itertools import accumulate
from operator import add, eq
from typing import Final, NamedTuple, Protocol, cast, runtime_checkable

from .batch import OFFSET_MAX, BatchClient, BatchFile, Transfer, transfer_error
from .daemon import Daemon
from .iov import Iovs, SharedIov
from .lanes import Lane
from .memory import Region, Regions
from .protocol import LENGTH_MAX, EntryFlag, Op
from .ring_file import RingFile

STEP_BYTES: Final = 1 << 20
"""Sizes of memory that is kept are multiples of it,
so that batches of about one size can use the same.
"""
KEPT_BYTES_MAX: Final = 64 << 20
"""Of one process; more is given back."""
SHARED_BYTES_MIN: Final = 64 << 10
"""Less is not worth a piece of memory of its own."""
HELD_COUNT_MAX: Final = 32
"""How many buffers of one client may be shared memory at a time,
each of which takes two descriptors: who keeps more gets plain memory.
"""
_NO_FLAGS: Final = EntryFlag(0)
_address_of: Final = ctypes.addressof
_first_byte_of: Final = ctypes.c_char.from_buffer


class Rows(NamedTuple):
    """Pieces to be read; all columns are equally long, arrays of numpy or lists."""

    files: Sequence[BatchFile]
    offsets: Sequence[int]
    """In its file, bytes."""
    sizes: Sequence[int]
    """Bytes."""
    places: Sequence[int]
    """Where in the buffer each begins."""

    def only(self, kept: Sequence[int]) -> "Rows":
        """Return some of the rows, by index."""
        return Rows(
            [self.files[index] for index in kept],
            *([column[index] for index in kept] for column in self[1:]),
        )


@runtime_checkable
class RowClient(Protocol):
    """A client that takes columns."""

    def new_buffer(self, size: int) -> memoryview:
        """See `new_buffer`."""

    def read_rows(self, rows: Rows, buffer: memoryview) -> list[int]:
        """See `read_rows`."""


def new_buffer(client: BatchClient, size: int) -> memoryview:
    """Return `size` writable bytes, which need not be zero:
    of a kind that reads of this client reach without a copy.
    """
    if isinstance(client, RowClient):
        return client.new_buffer(size)
    return memoryview(bytearray(size))


def read_rows(client: BatchClient, rows: Rows, buffer: memoryview) -> list[int]:
    """Fill the buffer; return for each row how many bytes were read:
    fewer than its size only at the end of the file.

    Raises:
        OSError: the first failure by position, with errno and the file's
            path; all others have been done.
        TypeError: the buffer is no memoryview, or read-only.
        ValueError: rows that reach beyond the buffer.
    """
    check_rows(rows, buffer)
    if isinstance(client, RowClient):
        return client.read_rows(rows, buffer)
    return client.read(
        [
            Transfer(file, offset, buffer[place : place + size])
            for file, offset, size, place in zip(*rows, strict=True)
        ]
    )


def check_rows(rows: Rows, buffer: memoryview) -> None:
    """Raise for what no reading into this buffer can be; see `read_rows`."""
    if not isinstance(buffer, memoryview):
        kind = type(buffer).__name__
        raise TypeError(f"a buffer to be filled is {kind}, not a memoryview")
    if buffer.readonly:
        raise TypeError("a buffer to be filled is read-only")
    if buffer.itemsize != 1 or buffer.ndim != 1 or not buffer.contiguous:
        raise ValueError("a buffer to be filled is no contiguous view of bytes")
    if not len(rows.files) == len(rows.offsets) == len(rows.sizes) == len(rows.places):
        raise ValueError("columns of different lengths")
    if not rows.files:
        return
    ends = map(add, rows.places, rows.sizes)
    if min(rows.sizes) < 0 or min(rows.places) < 0 or max(ends) > len(buffer):
        raise ValueError(f"rows that reach beyond the {len(buffer)} bytes of the buffer")
    if min(rows.offsets) < 0 or max(rows.offsets) > OFFSET_MAX:
        raise ValueError("offsets that no file has")


class Buffers:
    """Shared memory of one client that is handed out as buffers, and comes back by itself."""

    def __init__(self, iovs: Iovs) -> None:
        self._iovs = iovs
        self._free: deque[SharedIov] = deque()
        self._held: deque[None] = deque()
        """One element for each buffer that somebody has."""
        _all_buffers.add(self)

    def can_hand_out(self, size: int) -> bool:
        """Return whether a buffer that may be kept for long should be shared memory."""
        return size >= SHARED_BYTES_MIN and len(self._held) < HELD_COUNT_MAX

    def take(self, size: int) -> memoryview:
        """Return `size` (>= 1) bytes; raises OSError
        where the daemon has no more memory to give.
        """
        whole = max(1, -(-size // STEP_BYTES)) * STEP_BYTES
        iov = self._kept(whole)
        if iov is None:
            iov = self._iovs.allocate(whole)
        lease = (ctypes.c_ubyte * size).from_buffer(iov.view)
        self._held.append(None)
        weakref.finalize(lease, _come_back, self._free, self._held, iov).atexit = False
        return memoryview(lease).cast("B")

    def _kept(self, whole: int) -> SharedIov | None:
        """Return memory of this size that has come back;
        what was kept too long goes, the oldest first.
        """
        found: SharedIov | None = None
        kept: list[SharedIov] = []
        with suppress(IndexError):  # others come back at any time
            while True:
                iov = self._free.pop()
                if found is None and len(iov.view) == whole:
                    found = iov
                else:
                    kept.append(iov)
        room = KEPT_BYTES_MAX
        for iov in kept:  # the youngest first
            room -= len(iov.view)
            if room >= 0:
                self._free.appendleft(iov)
        return found

    def forget(self) -> None:
        """Hand out nothing again that exists now: a child of a fork may look at it."""
        self._free = deque()
        self._held = deque()


_all_buffers: "weakref.WeakSet[Buffers]" = weakref.WeakSet()


def _come_back(free: deque[SharedIov], held: deque[None], iov: "SharedIov") -> None:
    """Runs wherever the last reference goes, so it takes no lock."""
    held.pop()
    free.append(iov)


def _forget_all() -> None:
    for buffers in list(_all_buffers):
        buffers.forget()


os.register_at_fork(after_in_parent=_forget_all, after_in_child=_forget_all)


class RingRows:
    """One `read_rows` into shared memory, over a lane's ring."""

    def __init__(
        self,
        rows: Rows,
        region: Region,
        *,
        region_offset: int = 0,
        flags: EntryFlag = _NO_FLAGS,
    ) -> None:
        self._rows = rows
        self._region = region
        self._results = [0] * len(rows.files)
        kept: Sequence[int] = range(len(rows.files))
        if 0 in rows.sizes:  # nothing is to be read
            kept = [index for index, size in enumerate(rows.sizes) if size]
            rows = rows.only(kept)
        self._files = rows.files
        places = [place + region_offset for place in rows.places] if region_offset else rows.places
        self._columns = [
            array("Q", kept),
            array("Q", rows.offsets),
            array("Q", places),
            array("Q", rows.sizes),
        ]
        self._kind = array("Q", [int(Op.READ) | int(flags) << 32]) * len(kept)

    def move(self, lane: Lane) -> list[int]:
        """Do it, as many rows at once as the ring has room for;
        raises OSError for the first that failed.
        """
        ring, results, begun, total = lane.ring, self._results, 0, len(self._kind)
        columns = [*self._columns, self._ids(lane), self._kind]
        while begun < total or ring.outstanding:
            count = min(ring.free_count, total - begun)
            if count:
                ring.put_columns([column[begun : begun + count] for column in columns])
                begun += count
            ring.submit()
            for index, result in ring.collect(1):
                results[index] = result
        if min(results) < 0:
            index = next(i for i, result in enumerate(results) if result < 0)
            raise transfer_error(-results[index], self._rows.files[index].path)
        return results

    def _ids(self, lane: Lane) -> "array[int]":
        """Return which file and which memory each row is of, as the daemon of this lane knows them.

        Only with a lane at hand: ids that were found out before it was made can be those of a
        daemon that has gone, and mean other files now.
        """
        memory = lane.region_id(self._region) << 32
        ids = {file: cast(RingFile, file).id | memory for file in set(self._files)}
        return array("Q", [ids[file] for file in self._files])


def shared_columns(
    transfers: Sequence[Transfer], regions: Regions, daemon: Daemon
) -> tuple[Rows, Region] | None:
    """Return reads by columns, and the memory that all of their buffers lie in;
    None: they are not so plain.

    What is wrong with them, if anything, is for others to say.
    """
    try:
        files, offsets, buffers = zip(*transfers, strict=True)
        sizes = list(map(len, buffers))
        if (
            set(map(type, buffers)) != {memoryview}
            or {buffer.ndim for buffer in buffers} != {1}
            or sum([buffer.nbytes for buffer in buffers]) != sum(sizes)
            or not all(isinstance(file, RingFile) and file.daemon is daemon for file in set(files))
            or max(sizes) > LENGTH_MAX
            or max(offsets) > OFFSET_MAX
            or min(offsets) < 0
        ):
            return None
        addresses = [_address_of(_first_byte_of(buffer)) for buffer in buffers]
    except (TypeError, ValueError):  # read-only, empty, no whole piece of memory, or no transfers
        return None
    found = regions.find(buffers[0])
    if found is None or found[0].block_size:
        return None
    region = found[0]
    base = region.base
    if min(addresses) < base or max(map(add, addresses, sizes)) > base + region.size:
        return None
    return Rows(files, offsets, sizes, [address - base for address in addresses]), region


def copy_rows(rows: Rows, counts: Sequence[int], staged: memoryview, buffer: memoryview) -> None:
    """Copy what was read: all at once where the rows are the whole buffer, one behind the other."""
    if sum(counts) == len(buffer) and all(map(eq, rows.places, accumulate(counts, initial=0))):
        buffer[:] = staged
        return
    for place, count in zip(rows.places, counts, strict=True):
        buffer[place : place + count] = staged[place : place + count]
