"""What the metadata service needs from storage; `app` passes in the native client's storage side.

No I/O here.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from ..runtime.ports import Buffer
from ..schema.layout import FileRef


class ChunkPort(Protocol):
    """Chunks of files, over all their chains.  Every method retries by itself and is idempotent.

    Each raises FsError when storage stays unavailable longer than the client's retry time.
    """

    async def remove_files(self, files: Sequence[FileRef]) -> None:
        """Remove every chunk of the files, on every chain of their whole stripes."""
        ...

    async def truncate_file(
        self,
        file: FileRef,
        length: int,
        truncate_ver: int,
        is_wanted: Callable[[], Awaitable[bool]],
    ) -> None:
        """Remove chunks wholly beyond `length` and cut the chunk that `length` falls into;
        both would survive a power loss by then.

        `truncate_ver` is the number of this truncation, larger than that of any earlier one
        of the file: storage knows by it what comes too late, when something has been written
        behind the new end.  `is_wanted` tells whether it is still under way; it is asked
        before each request, after the chain versions that the request names are known, and
        ends the work when it says no.
        """
        ...

    async def fill_file(
        self,
        file: FileRef,
        data: Buffer,
        truncate_ver: int,
        is_wanted: Callable[[], Awaitable[bool]],
    ) -> None:
        """Make `data`, at least one byte, the whole of chunk 0,
        where it would survive a power loss by then.

        The file has no chunks, but for those that it got after the backup that was restored, and
        all of it fits in one; `dyn_stripe` of it may be 0 still.  `truncate_ver` and `is_wanted` as
        for `truncate_file`: moving bytes to a chunk is a truncation to the present length.
        """
        ...

    async def file_length(self, file: FileRef) -> tuple[int, int]:
        """Return (precise length, used bytes) as the last chunks on the chains tell."""
        ...

    async def space(self) -> tuple[int, int]:
        """Return (capacity, free) bytes as a user sees them, i.e. divided by the replica count."""
        ...
