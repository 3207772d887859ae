"""The two doors of the chunk engine to a disk: `MetaStore` (small records) and `DataFiles` (bytes).

Real ones are in `meta_rocksdb` and `data_files`, simulated ones in `simulated_disk`; one contract
suite (tests/chunkengine/test_ports.py) holds them to the same behaviour.

Concurrency: every method may be called from several threads at once, except `close`.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol

from ..kernels.reads_twin import ReadNow
from ..runtime.ports import Buffer
from .format import FileId

Batch = Sequence[tuple[bytes, bytes | None]]
"""Puts, and deletes where the value is None, in order; a later entry for a key wins."""


class MetaStore(Protocol):
    """An ordered map whose batches are atomic.

    After a process kill every batch is there; after a power loss a prefix of them, which holds at
    least all up to the last `write_synced`.
    """

    def get(self, key: bytes) -> bytes | None:
        """Return the value, None if absent."""
        ...

    def write(self, batch: Batch) -> None:
        """Apply atomically, without waiting for the disk."""
        ...

    def write_synced(self, batch: Batch) -> None:
        """Apply atomically; return when this and every earlier batch would survive a power loss."""
        ...

    def scan(
        self, start: bytes, end: bytes, *, is_reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        """Yield what lies in [start, end), in key order or from the end; a snapshot of the call."""
        ...

    def close(self) -> None:
        """Release the store."""
        ...


class Lent(NamedTuple):
    """A data file that stays open until it is given back."""

    source: int | ReadNow
    """Its descriptor, or what stands for it."""
    give_back: Callable[[], None]


class DataFiles(Protocol):
    """The data files of one disk; a file exists from its first `reserve` or `write_at` on.

    Raises FsError(IO_ERROR) for what the disk refuses, NO_SPACE where that is the reason.
    """

    def read_at(self, file_id: FileId, offset: int, buffers: Sequence[memoryview]) -> int:
        """Fill the buffers in order; return how many bytes there were,
        fewer only at the end of the file.
        """
        ...

    def read_cached_at(self, file_id: FileId, offset: int, buffers: Sequence[memoryview]) -> bool:
        """Fill the buffers if that needs no wait for the disk;
        False: not done, the buffers hold anything.
        """
        ...

    def lend(self, file_id: FileId, *, may_wait: bool = False) -> Lent | None:
        """Return a file for many reads, without waiting unless that is said;
        None: nothing of it can be read so.
        """
        ...

    def lend_past_cache(self, file_id: FileId, *, may_wait: bool = True) -> Lent | None:
        """As `lend` for whole pages into whole pages (DIRECT_UNIT_BYTES), past the page cache;
        reading waits for the disk; None: not here.
        """
        ...

    def begin_read(self, file_id: FileId, offset: int, length: int) -> None:
        """Begin to bring bytes from the disk that will be read soon, without waiting for them;
        promises nothing.
        """
        ...

    def write_at(self, file_id: FileId, offset: int, buffers: Sequence[Buffer]) -> None:
        """Write all buffers one after the other; without waiting for the disk."""
        ...

    def is_open(self, file_id: FileId) -> bool:
        """Return whether a write needs neither to make nor to open the file first,
        nor to wait for another; a hint, not a promise.
        """
        ...

    def write_past_cache(
        self, places: Sequence[tuple[FileId, int, Buffer]], block: int
    ) -> list[tuple[int, bytes]]:
        """Write the first bytes of several buffers past the page cache, waiting for the disk;
        what follows each other goes by one call.

        The rest of each is for `write_at`.  Nobody else reads or writes the ranges meanwhile, nor
        changes the bytes.  Not durable before the next flush; where it fails, or the process dies
        in it, any sectors of the ranges may be written.

        Args:
            places: files, offsets there and bytes; no two overlap.
            block: size of checksum blocks.

        Returns:
            Of each how many bytes were written, often 0, and the checksums of all its bytes.
        """
        ...

    def begin_write_back(self, file_id: FileId, offset: int, length: int) -> None:
        """Begin to bring what was written there to the disk, so that the next flush has less to do;
        promises nothing.
        """
        ...

    def reserve(self, file_id: FileId, offset: int, length: int) -> None:
        """Claim space, so that a later write there cannot meet NO_SPACE;
        content already there stays.
        """
        ...

    def punch(self, file_id: FileId, offset: int, length: int) -> None:
        """Give space back; the range reads as zeros."""
        ...

    def set_spare(self, length: int) -> int:
        """Make the spare file hold this much space, 0 gives it up;
        return how much it holds, 0 if there was no room.
        """
        ...

    def spare_bytes(self) -> int:
        """Return how much space the spare file holds."""
        ...

    def held_bytes(self, file_id: FileId) -> int:
        """Return about how much space a file takes; 0 if there is none."""
        ...

    def flush(self, file_ids: Iterable[FileId]) -> None:
        """Return when every write to these files made
        before the call would survive a power loss.
        """
        ...

    def flush_all(self) -> None:
        """`flush` of every file there is, also of those written by an earlier process."""
        ...

    def drop_cache(self, file_ids: Iterable[FileId]) -> None:
        """See to it that reads from now on come from the disk, as far as the files are flushed;
        a hint, not a promise.

        After a failed flush the kernel may hold bytes in memory that will never be on the disk.
        """
        ...

    def writes_in_place(self) -> bool:
        """Return whether bytes written over lie where the old ones did;
        False also where nobody knows.
        """
        ...

    def free_bytes(self) -> int:
        """Return the bytes that may still be reserved."""
        ...

    def capacity_bytes(self) -> int:
        """Return the size of the disk."""
        ...

    def close(self) -> None:
        """Release the files."""
        ...
