"""Small reads of the kernel that arrive together are asked of storage together,
as rows of one table.

Most of what a small read costs does not depend on how many there are: a task that waits, a
plan, a request to a storage node and its reply.  The loop takes in what the kernel has ready
anyway; the reads among it share all that, and the busier the mount is, the more there are.  One
that is alone waits for nobody.

Invariants:
    - Every read is answered once: with its bytes, its own error, or EINTR when it is given up.
    - A read waits for those of others for ALONE_AFTER_S at the most, and never fails
      because of them: if they are not done together by then, or one of them failed,
      each is done again by itself.
    - No more than REQUEST_COUNT_MAX other requests are taken in while reads wait to be sent.

Does not: keep what was read, or look at offsets; readahead is the vfs's.
"""

import errno
import os
from collections.abc import Awaitable, Callable
from struct import Struct
from typing import Final

import trio

from ....kernels.batches import ENTRY
from ....kernels.device import ANSWER
from ....runtime.recycled import RecycledMemory
from ....schema.ids import InodeId
from ....schema.layout import FileRef
from ....schema.status import FsError
from ...read_table import ReadTable
from .device import Request
from .protocol import READ_IN

ALONE_AFTER_S: Final = 0.5
REQUEST_COUNT_MAX: Final = 32
BEGUN_BYTES_MAX: Final = 128 * 1024
"""Of reads that are begun without a task: so much of a reply comes into a receive buffer,
and is copied once more.
"""

FIRST_READ_COUNT: Final = 8
"""So many are asked of storage at once when it has no others to do:
it and this side then work at the same time, instead of in turn.
"""

Row = tuple[int, ...]
"""A READ as `READ_REQUEST` has it."""
UNIQUE: Final = 2
NODE_ID: Final = 3
_OFFSET: Final = 10
SIZE: Final = 11
_FLAGS: Final = 14
_KEY: Final = Struct("=QQ")
"""Of a row: which file of these it is, and nothing."""


class ReadsTogether:
    """READs whose bytes have to come from storage."""

    __slots__ = (
        "_answers",
        "_entries",
        "_files",
        "_keys",
        "_paged",
        "began_s",
        "byte_count",
        "interrupted",
        "mark",
        "rows",
    )

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.byte_count = 0
        self.began_s = 0.0
        """Trio time, once there is one."""
        self.mark = 0
        """Of the moment in which the first of them arrived; see `Reading.read_mark`."""
        self.interrupted: set[int] = set()
        """Those whose callers got a signal, by `unique`."""
        self._entries: list[bytes] = []
        self._answers: list[bytes] = []
        self._files: dict[bytes, FileRef] = {}
        self._keys: dict[int, bytes] = {}
        self._paged: set[InodeId] = set()

    def __len__(self) -> int:
        return len(self.rows)

    def add(self, row: Row, file: FileRef, count: int) -> None:
        """Take in a READ, of which `count` bytes are in its file, at least one."""
        key = self._keys.get(id(file))
        if key is None:
            key = self._keys[id(file)] = _KEY.pack(len(self._files), 0)
            self._files[key] = file
        if not self.rows:
            self.began_s = trio.current_time()
        if not row[_FLAGS] & os.O_DIRECT:
            self._paged.add(file.inode_id)
        place = self.byte_count
        self.rows.append(row)
        self._entries.append(ENTRY.pack(0, row[_OFFSET], place, count, key))
        self._answers.append(ANSWER.pack(row[UNIQUE], place, count, 0))
        self.byte_count = place + count

    def table(self, memory: RecycledMemory) -> ReadTable:
        """Return them as what is to be read, into memory of their own."""
        table = ReadTable(b"".join(self._entries), memory.take(self.byte_count))
        table.files, table.paged = self._files, self._paged
        return table

    def requests(self) -> list[Request]:
        """Return them as requests like any others."""
        return list(map(request_of, self.rows))

    def has(self, unique: int) -> bool:
        """Return whether a request is one of them."""
        return any(row[UNIQUE] == unique for row in self.rows)

    def answers(self, given_up: Callable[[Request], bool]) -> bytes:
        """Return what to tell the kernel of all, `ANSWER` by `ANSWER`:
        where in the table's memory their bytes lie.

        Args:
            given_up: asked of those whose callers got a signal; True: it is answered by EINTR.
        """
        if self.interrupted:
            for position, row in enumerate(self.rows):
                if row[UNIQUE] in self.interrupted and given_up(request_of(row)):
                    self._answers[position] = ANSWER.pack(row[UNIQUE], 0, 0, errno.EINTR)
        return b"".join(self._answers)


def request_of(row: Row) -> Request:
    """Return a READ as a request like any other."""
    _, opcode, unique, node_id, uid, gid, pid, _, _, *asked = row
    return Request(unique, opcode, node_id, uid, gid, pid, READ_IN.pack(*asked))


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
