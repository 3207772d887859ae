"""A disk in memory that survives its process and can lose power: for simulation and tests.

Two images of everything: the live one, which the running process sees, and the durable one. `crash`
models the death of the process (the live image stays: the kernel has it), `power_loss` that of the
machine: of the data written since the last flush of its file every 512-byte sector of every write
is kept or lost at random, a file that has grown since is as short again as what is kept allows, of
the metadata batches a random prefix, at least the synced ones, is kept.

What is written past the page cache is in the device's own, volatile cache until the next flush: a
power loss treats it alike, a failed flush and `drop_cache` do not take it back.  A process that
dies in it leaves any sectors of it, not the first ones.

`on_step` is called with the name of the operation before each one; it may raise, to inject a fault
(FsError NO_SPACE, IO_ERROR), to act in between (the engine is then at that very point), or to stop
the process there (SimulatedCrash: a write is then half done).

Deterministic: the same calls and the same `random` give the same disk.
Concurrency: one re-entrant lock.
"""

import errno
import os
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from sortedcontainers import SortedDict

from ..runtime.ports import Buffer
from ..schema.status import FsError, Status
from .checksum import packed_checksums
from .direct_write import DIRECT_UNIT_BYTES
from .format import FileId, file_name
from .ports import Batch, Lent

SECTOR_BYTES: Final = 512
_EXTENT_BYTES: Final = 64 << 10


class SimulatedCrash(BaseException):
    """The process dies here; nothing in it may catch this."""


class _Image:
    """Sparse bytes of one file."""

    def __init__(self) -> None:
        self.extents: dict[int, bytearray] = {}
        self.size = 0

    def write(self, offset: int, data: memoryview) -> None:
        self.size = max(self.size, offset + len(data))
        while data:
            index, start = divmod(offset, _EXTENT_BYTES)
            step = min(_EXTENT_BYTES - start, len(data))
            extent = self.extents.get(index)
            if extent is None:
                extent = self.extents[index] = bytearray(_EXTENT_BYTES)
            extent[start : start + step] = data[:step]
            offset += step
            data = data[step:]

    def read(self, offset: int, into: memoryview) -> int:
        total = max(0, min(len(into), self.size - offset))
        done = 0
        while done < total:
            index, start = divmod(offset + done, _EXTENT_BYTES)
            step = min(_EXTENT_BYTES - start, total - done)
            extent = self.extents.get(index)
            piece = bytes(step) if extent is None else memoryview(extent)[start : start + step]
            into[done : done + step] = piece
            done += step
        return total

    def punch(self, offset: int, length: int) -> None:
        assert offset % _EXTENT_BYTES == 0 and length % _EXTENT_BYTES == 0, (offset, length)
        for index in range(offset // _EXTENT_BYTES, (offset + length) // _EXTENT_BYTES):
            self.extents.pop(index, None)

    def copy(self) -> "_Image":
        twin = _Image()
        twin.extents = {index: bytearray(extent) for index, extent in self.extents.items()}
        twin.size = self.size
        return twin


class _Unsynced(NamedTuple):
    offset: int
    data: bytes
    is_direct: bool
    """In the device's cache, not in the kernel's."""


class _File:
    """Live and durable image, and the writes that separate them."""

    def __init__(self) -> None:
        self.live = _Image()
        self.durable = _Image()
        self.unsynced: list[_Unsynced] = []
        self.has_lost = False
        """Something in the live image was refused by the disk, and nobody will write it again."""
        self.reserved: set[int] = set()

    def flush(self) -> None:
        for offset, data, _ in self.unsynced:
            self.durable.write(offset, memoryview(data))
        self.durable.size = self.live.size
        self.unsynced.clear()

    def fail_flush(self) -> None:
        """What the kernel could not write it takes for clean:
        it can be read for as long as it is in memory.
        """
        kept = [write for write in self.unsynced if write.is_direct]
        self.has_lost |= len(kept) < len(self.unsynced)
        self.unsynced = kept

    def drop_cache(self) -> None:
        if self.has_lost:
            self.live = self.durable.copy()
            for offset, data, _ in self.unsynced:
                self.live.write(offset, memoryview(data))
            self.has_lost = False

    def lose_power(self, rng: random.Random) -> None:
        for offset, data, _ in self.unsynced:
            keep = rng.choice((0.0, 0.5, 1.0))
            for at in range(0, len(data), SECTOR_BYTES):
                if rng.random() < keep:
                    self.durable.write(offset + at, memoryview(data)[at : at + SECTOR_BYTES])
        self.unsynced.clear()
        self.has_lost = False
        self.live = self.durable.copy()


class SimulatedDisk:
    """What stays when the process using it is gone."""

    def __init__(self, *, capacity_bytes: int = 1 << 40) -> None:
        self.capacity_bytes = capacity_bytes
        self.spare_bytes = 0
        self.step_counts = Counter[str]()
        """Operations so far, by name."""
        self.on_step: Callable[[str], None] | None = None
        self.is_cached: Callable[[], bool] = lambda: True
        """Whether what is read is in memory, so that it needs no wait."""
        self.is_quick: Callable[[], bool] = lambda: True
        """Whether a write would not have to wait, for all that its caller can know."""
        self.place_write: Callable[[FileId, int, int], int | None] | None = None
        """Given (file, offset, length): where a write really goes; None: nowhere.

        Nobody is told.
        """
        self.tear: Callable[[bytes], list[tuple[int, bytes]]] = _first_half
        """What of a write in which the process dies reaches the disk: (offset in it, bytes)."""
        self.lock = threading.RLock()
        self.files: dict[FileId, _File] = {}
        self.records: SortedDict[bytes, bytes] = SortedDict()
        self.durable_records: dict[bytes, bytes] = {}
        self.unsynced_batches: list[Batch] = []

    def step(self, name: str) -> None:
        """Announce an operation."""
        self.step_counts[name] += 1
        if self.on_step is not None:
            self.on_step(name)

    def crash(self) -> None:
        """The process is gone: everything it wrote is still there."""
        self.on_step = None

    def power_loss(self, rng: random.Random) -> None:
        """The machine is gone: unsynced data is kept, lost or torn;
        unsynced records end at a prefix.
        """
        self.on_step = None
        for file_id in sorted(self.files):
            self.files[file_id].lose_power(rng)
        for batch in self.unsynced_batches[: rng.randint(0, len(self.unsynced_batches))]:
            _apply(self.durable_records, batch)
        self.unsynced_batches.clear()
        self.records = SortedDict(self.durable_records)

    def flip_bit(self, file_id: FileId, offset: int) -> None:
        """Damage one byte, live and durable: bit rot."""
        file = self.files[file_id]
        for image in (file.live, file.durable):
            byte = bytearray(1)
            image.read(offset, memoryview(byte))
            byte[0] ^= 0x10
            image.write(offset, memoryview(byte))

    def reserved_bytes(self) -> int:
        """Return the space taken by data files and the spare file."""
        held = sum(len(file.reserved) for file in self.files.values()) * _EXTENT_BYTES
        return held + self.spare_bytes


def _first_half(data: bytes) -> list[tuple[int, bytes]]:
    return [(0, data[: len(data) // 2])]


def _other_sectors(data: bytes) -> list[tuple[int, bytes]]:
    """What of a direct write in which the process dies is written:
    every other sector, from the second on.
    """
    step = 2 * SECTOR_BYTES
    return [(at, data[at : at + SECTOR_BYTES]) for at in range(SECTOR_BYTES, len(data), step)]


def _apply(records: dict[bytes, bytes] | SortedDict[bytes, bytes], batch: Batch) -> None:
    for key, value in batch:
        if value is None:
            records.pop(key, None)
        else:
            records[key] = value


class SimulatedMetaStore:
    """`MetaStore` over a simulated disk."""

    def __init__(self, disk: SimulatedDisk) -> None:
        self._disk = disk

    def get(self, key: bytes) -> bytes | None:
        """See `MetaStore`."""
        with self._disk.lock:
            value: bytes | None = self._disk.records.get(key)
            return value

    def write(self, batch: Batch) -> None:
        """See `MetaStore`."""
        with self._disk.lock:
            self._disk.step("meta_write")
            kept = list(batch)
            _apply(self._disk.records, kept)
            self._disk.unsynced_batches.append(kept)

    def write_synced(self, batch: Batch) -> None:
        """See `MetaStore`."""
        with self._disk.lock:
            self.write(batch)
            covered = len(self._disk.unsynced_batches)
            self._disk.step("meta_sync")
            for unsynced in self._disk.unsynced_batches[:covered]:
                _apply(self._disk.durable_records, unsynced)
            del self._disk.unsynced_batches[:covered]

    def scan(
        self, start: bytes, end: bytes, *, is_reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        """See `MetaStore`."""
        with self._disk.lock:
            records = self._disk.records
            keys = list(records.irange(start, end, inclusive=(True, False), reverse=is_reverse))
            found = [(key, records[key]) for key in keys]
        return iter(found)

    def close(self) -> None:
        """See `MetaStore`."""


class SimulatedDataFiles:
    """`DataFiles` over a simulated disk."""

    def __init__(self, disk: SimulatedDisk) -> None:
        self._disk = disk

    def _file(self, file_id: FileId) -> _File:
        file = self._disk.files.get(file_id)
        if file is None:
            file = self._disk.files[file_id] = _File()
        return file

    def read_at(self, file_id: FileId, offset: int, buffers: Sequence[memoryview]) -> int:
        """See `DataFiles`."""
        with self._disk.lock:
            self._disk.step("read")
            if file_id not in self._disk.files:
                return 0
            total = 0
            for buffer in buffers:
                count = self._disk.files[file_id].live.read(offset + total, buffer)
                total += count
                if count < len(buffer):
                    break
            return total

    def read_cached_at(self, file_id: FileId, offset: int, buffers: Sequence[memoryview]) -> bool:
        """See `DataFiles`."""
        is_cached = self._disk.is_cached()
        return is_cached and self.read_at(file_id, offset, buffers) == sum(map(len, buffers))

    def lend(self, file_id: FileId, *, may_wait: bool = False) -> Lent | None:
        """See `DataFiles`."""
        del may_wait

        def read_now(buffers: Sequence[memoryview], offset: int, flags: int) -> int:
            if flags & os.RWF_NOWAIT and not self._disk.is_cached():
                raise BlockingIOError(errno.EAGAIN, "not in memory")
            try:
                return self.read_at(file_id, offset, buffers)
            except FsError as error:
                raise OSError(errno.EIO, error.detail) from error

        return Lent(read_now, lambda: None)

    def lend_past_cache(self, file_id: FileId, *, may_wait: bool = True) -> Lent | None:
        """See `DataFiles`; what was written is seen, wherever it lies."""
        del may_wait
        return self.lend(file_id, may_wait=True)

    def begin_read(self, file_id: FileId, offset: int, length: int) -> None:
        """See `DataFiles`: nothing."""

    def write_at(self, file_id: FileId, offset: int, buffers: Sequence[Buffer]) -> None:
        """See `DataFiles`."""
        data = b"".join(buffers)
        with self._disk.lock:
            try:
                self._disk.step("write")
            except SimulatedCrash:
                for at, piece in self._disk.tear(data):
                    self._put(file_id, offset + at, piece)
                raise
            self._put_where_it_goes(file_id, offset, data)

    def write_past_cache(
        self, places: Sequence[tuple[FileId, int, Buffer]], block: int
    ) -> list[tuple[int, bytes]]:
        """See `DataFiles`; whole blocks of them, wherever they lie in memory."""
        found = []
        for file_id, offset, data in places:
            count = self._write_direct(file_id, offset, data)
            found.append((count, packed_checksums([data], block)))
        return found

    def _write_direct(self, file_id: FileId, offset: int, data: Buffer) -> int:
        part = bytes(memoryview(data)[: len(data) - len(data) % DIRECT_UNIT_BYTES])
        if not part:
            return 0
        with self._disk.lock:
            try:
                self._disk.step("write_direct")
            except SimulatedCrash:
                for at, piece in _other_sectors(part):
                    self._put(file_id, offset + at, piece, is_direct=True)
                raise
            self._put_where_it_goes(file_id, offset, part, is_direct=True)
        return len(part)

    def _put_where_it_goes(
        self, file_id: FileId, offset: int, data: bytes, *, is_direct: bool = False
    ) -> None:
        place_write, where = self._disk.place_write, offset
        if place_write is not None:
            self._file(file_id)
            found = place_write(file_id, offset, len(data))
            if found is None:
                return
            where = found
        self._put(file_id, where, data, is_direct=is_direct)

    def _put(self, file_id: FileId, offset: int, data: bytes, *, is_direct: bool = False) -> None:
        file = self._file(file_id)
        if data:
            file.live.write(offset, memoryview(data))
            file.unsynced.append(_Unsynced(offset, data, is_direct))
            last = (offset + len(data) - 1) // _EXTENT_BYTES
            file.reserved.update(range(offset // _EXTENT_BYTES, last + 1))

    def is_open(self, file_id: FileId) -> bool:
        """See `DataFiles`."""
        return file_id in self._disk.files and self._disk.is_quick()

    def begin_write_back(self, file_id: FileId, offset: int, length: int) -> None:
        """See `DataFiles`: nothing, since any unsynced write may reach the durable
        image as it is.
        """

    def reserve(self, file_id: FileId, offset: int, length: int) -> None:
        """See `DataFiles`."""
        with self._disk.lock:
            self._disk.step("reserve")
            wanted = range(offset // _EXTENT_BYTES, -(-(offset + length) // _EXTENT_BYTES))
            file = self._file(file_id)
            room = self._disk.capacity_bytes - self._disk.reserved_bytes()
            is_hopeless = length > self._disk.capacity_bytes
            new = [] if is_hopeless else [i for i in wanted if i not in file.reserved]
            if is_hopeless or len(new) * _EXTENT_BYTES > room:
                detail = f"{file_name(file_id)}: {length} bytes wanted, {room} free"
                raise FsError(Status.NO_SPACE, detail)
            file.reserved.update(new)
            file.live.size = max(file.live.size, offset + length)

    def punch(self, file_id: FileId, offset: int, length: int) -> None:
        """See `DataFiles`."""
        with self._disk.lock:
            self._disk.step("punch")
            file = self._file(file_id)
            end = offset + length
            file.unsynced = [w for w in file.unsynced if not offset <= w.offset < end]
            file.live.punch(offset, length)
            file.durable.punch(offset, length)
            file.reserved.difference_update(
                range(offset // _EXTENT_BYTES, (offset + length) // _EXTENT_BYTES)
            )

    def set_spare(self, length: int) -> int:
        """See `DataFiles`."""
        with self._disk.lock:
            self._disk.step("spare")
            room = self.free_bytes() + self._disk.spare_bytes
            self._disk.spare_bytes = length if length <= room else 0
            return self._disk.spare_bytes

    def spare_bytes(self) -> int:
        """See `DataFiles`."""
        return self._disk.spare_bytes

    def held_bytes(self, file_id: FileId) -> int:
        """See `DataFiles`."""
        with self._disk.lock:
            file = self._disk.files.get(file_id)
            return len(file.reserved) * _EXTENT_BYTES if file else 0

    def flush(self, file_ids: Iterable[FileId]) -> None:
        """See `DataFiles`."""
        for file_id in file_ids:
            with self._disk.lock:
                try:
                    self._disk.step("flush")
                except FsError:
                    self._file(file_id).fail_flush()
                    raise
                self._file(file_id).flush()

    def flush_all(self) -> None:
        """See `DataFiles`."""
        self.flush(sorted(self._disk.files))

    def drop_cache(self, file_ids: Iterable[FileId]) -> None:
        """See `DataFiles`."""
        with self._disk.lock:
            for file_id in file_ids:
                self._file(file_id).drop_cache()

    def writes_in_place(self) -> bool:
        """See `DataFiles`."""
        return True

    def free_bytes(self) -> int:
        """See `DataFiles`."""
        with self._disk.lock:
            return max(0, self._disk.capacity_bytes - self._disk.reserved_bytes())

    def capacity_bytes(self) -> int:
        """See `DataFiles`."""
        return self._disk.capacity_bytes

    def close(self) -> None:
        """See `DataFiles`."""
