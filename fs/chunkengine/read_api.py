"""How chunks of one disk are read: one by one or many by columns,
with or without waiting for the disk.  No I/O here.

Bytes that are returned match the checksums of their version, or come with
them for their reader to match.
"""

from collections.abc import Sequence
from typing import Protocol

from ..schema.ids import ChunkId, TargetId
from .format import ChunkKey
from .read_values import LentRows, ReadDone, ReadIo, ReadRows, RowsRead


class ChunkReads(Protocol):
    """The part of a `ChunkEngine` that reads; each method may raise
    FsError(IO_ERROR) as that says.
    """

    def read_batch(self, ios: Sequence[ReadIo]) -> list[ReadDone]:
        """Read and verify; a missing chunk is CHUNK_NOT_FOUND,
        a damaged one CHECKSUM_MISMATCH, never bytes.
        """
        ...

    def read_cached(self, ios: Sequence[ReadIo]) -> list[ReadDone | None]:
        """As `read_batch`, but never waits for the disk: None for each read that would have to."""
        ...

    def read_cached_rows(
        self,
        keys: Sequence[ChunkKey],
        rows: ReadRows,
        view: memoryview,
        *,
        want_checksums: bool,
    ) -> RowsRead:
        """Read and verify what needs no wait for the disk, of committed versions,
        each row whole or not at all.

        Args:
            keys: of the chunks that rows name by their positions.
            rows: what is to be read, and where in `view` it is to be put.
            view: holds anything where a row is left.
            want_checksums: of each row's bytes.

        Raises:
            FsError: NOT_SERVING, IO_ERROR: the disk is not served any more.
        """
        ...

    def read_cached_row(
        self, key: ChunkKey, offset: int, view: memoryview
    ) -> tuple[int, int] | None:
        """As `read_cached_rows`, of a single row, whose bytes go to all of `view`.

        Returns:
            Its version, and the xxh3-64 of its bytes; None: it is left, also where what is known of
            its chunk is not in memory, or is in use by another thread.

        Raises:
            BlockingIOError: it is left, since the disk would have to be waited for.
            FsError: as `read_cached_rows`.
        """
        ...

    def lend_rows(
        self, keys: Sequence[ChunkKey], rows: ReadRows, *, is_direct: bool = False
    ) -> LentRows | None:
        """Lend what is in the page cache for its asker to read, and verify;
        never waits for the disk.

        Args:
            keys: as of `read_cached_rows`.
            rows: of whole checksum blocks, unless they end with their chunk.
            is_direct: lend instead what the asker has to have the disk read, past the page
                cache: large rows of which nothing is in that, and that nobody has read
                lately.  They count as read then.

        Returns:
            All rows; None: they are to be read here.

        Raises:
            FsError: as `read_cached_rows`.
        """
        ...

    def read_rows(
        self,
        keys: Sequence[ChunkKey],
        rows: ReadRows,
        view: memoryview,
        *,
        want_checksums: bool,
        may_pass_cache: bool = False,
        leaves_matching: bool = False,
    ) -> RowsRead:
        """As `read_cached_rows`, but waits for the disk; what is then left cannot be read whole.

        With `may_pass_cache` large rows that are read for the first time may leave the page cache
        as it is: not for those that `read_cached_rows` was asked for, since the kernel has begun to
        fill it.  With `leaves_matching`, too, rows of which all are read so may come unmatched,
        with the checksums of their blocks: bytes that count only for who matches them, and asks
        again, without it, if they differ.
        """
        ...

    def read_whole(self, target_id: TargetId, chunk_id: ChunkId, *, version: int = 0) -> bytes:
        """Return the verified content of a whole version;
        raises CHUNK_NOT_FOUND or CHECKSUM_MISMATCH.
        """
        ...
