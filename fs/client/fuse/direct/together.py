"""Small reads of the kernel that arrive together are asked of storage together, as rows of one table.

Most of what a small read costs does not depend on how many there are: a task that waits, a plan, a request to a storage
node and its reply.  The loop takes in what the kernel has ready anyway; the reads among it share all that, and the busier
the mount is, the more there are.  One that is alone waits for nobody.

Invariants:
    - Every read is answered once: with its bytes, its own error, or EINTR when it is given up.
    - A read waits for those of others for ALONE_AFTER_S at the most, and never fails because of them: if they are not done
      together by then, or one of them failed, each is done again by itself.
    - No more than REQUEST_COUNT_MAX other requests are taken in while reads wait to be sent.

Does not: keep what was read, or look at offsets; readahead is the vfs's.
"""

from collections.abc import Awaitable, Callable
from struct import Struct
from typing import Final

import trio

from ....kernels.batches import ENTRY
from ....runtime.recycled import RecycledMemory
from ....schema.layout import FileRef
from ....schema.status import FsError
from ...read_table import ReadTable
from .device import Request

ALONE_AFTER_S: Final = 0.5
REQUEST_COUNT_MAX: Final = 32
FIRST_READ_COUNT: Final = 8
"""So many are asked of storage at once when it has no others to do: it and this side then work at the same time, instead of in turn."""

_KEY: Final = Struct("=QQ")
"""Of a row: which file of these it is, and nothing."""


class ReadsTogether:
    """READs whose bytes have to come from storage."""

    __slots__ = (
        "_entries",
        "_files",
        "_keys",
        "began_s",
        "byte_count",
        "interrupted",
        "places",
        "requests",
    )

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.places: list[int] = []
        """Where the bytes of each begin in what is read."""
        self.byte_count = 0
        self.began_s = 0.0
        """Trio time, once there is one."""
        self.interrupted: set[int] = set()
        """Those whose callers got a signal, by `unique`."""
        self._entries: list[bytes] = []
        self._files: dict[bytes, FileRef] = {}
        self._keys: dict[int, bytes] = {}

    def __len__(self) -> int:
        return len(self.requests)

    def add(self, request: Request, file: FileRef, offset: int, count: int) -> None:
        """Take in a READ of `count` bytes of a file, at least one."""
        key = self._keys.get(id(file))
        if key is None:
            key = self._keys[id(file)] = _KEY.pack(len(self._files), 0)
            self._files[key] = file
        if not self.requests:
            self.began_s = trio.current_time()
        self.requests.append(request)
        self.places.append(self.byte_count)
        self._entries.append(ENTRY.pack(0, offset, self.byte_count, count, key))
        self.byte_count += count

    def table(self, memory: RecycledMemory) -> ReadTable:
        """Return them as what is to be read, into memory of their own."""
        table = ReadTable(b"".join(self._entries), memory.take(self.byte_count))
        table.files = self._files
        return table

    def window(self, position: int, table: ReadTable) -> memoryview:
        """Return the bytes of one of them."""
        places = self.places
        end = places[position + 1] if position + 1 < len(places) else self.byte_count
        return table.view[places[position] : end]


async def are_read(table: ReadTable, read_together: Callable[[ReadTable], Awaitable[None]]) -> bool:
    """Do reads together; False: each is to be done again by itself.

    Args:
        table: of more than one.
        read_together: fills the memory, or raises FsError.
    """
    with trio.move_on_after(ALONE_AFTER_S):
        try:
            await read_together(table)
        except FsError:
            return False  # whose error it is, shows when each is done by itself
        return True
    return False
