"""What the daemon makes of an entry that a program wrote into a ring.  Pure.

Nothing in a ring is trusted: an entry names files and memory by ids that count for its own program only, and each
of its numbers is checked here.  It is checked in a copy, so rewriting it meanwhile changes nothing.
"""

import errno
from collections.abc import Mapping
from typing import Final, NamedTuple, Protocol

from emberfs.protocol import ENTRY, LENGTH_MAX, EntryFlag, Op

from ...schema.layout import MAX_FILE_LENGTH_BYTES

# Looking up members of an enumeration is slow, and each entry asks.
READ: Final = int(Op.READ)
WRITE: Final = int(Op.WRITE)
_UNKNOWN_FLAGS: Final = ~int(EntryFlag.RELAXED | EntryFlag.HOLES_ARE_ERRORS)


class Entry(NamedTuple):
    """An entry as it stands in a ring."""

    user_data: int
    offset: int
    memory_offset: int
    length: int
    file_id: int
    memory_id: int
    op: int
    flags: int


class Share(NamedTuple):
    """A program's share of an open file."""

    handle_id: int
    can_read: bool
    can_write: bool


class Extended(Protocol):
    """Memory, as far as it is looked at here."""

    @property
    def size(self) -> int:
        """Bytes."""

    @property
    def block_size(self) -> int:
        """No transfer may cross a multiple of it; 0: any may."""


def unpack(copied: bytes) -> list[Entry]:
    """Return the entries of a whole number of them."""
    return [Entry._make(fields) for fields in ENTRY.iter_unpack(copied)]


def fault_of(entry: Entry, files: Mapping[int, Share], memories: Mapping[int, Extended]) -> int:
    """Return why an entry cannot be done, as an errno; 0: it can."""
    # 1. the words of it
    _, offset, place, length, file_id, memory_id, op, flags = entry
    if op not in {READ, WRITE} or flags & _UNKNOWN_FLAGS or length > LENGTH_MAX:
        return errno.EINVAL
    # 2. the file
    share = files.get(file_id)
    if share is None or not (share.can_read if op == READ else share.can_write):
        return errno.EBADF
    if offset + length > MAX_FILE_LENGTH_BYTES:
        return errno.EFBIG if op == WRITE else errno.EINVAL
    # 3. the memory
    memory = memories.get(memory_id)
    if memory is None or place + length > memory.size:
        return errno.EFAULT
    block = memory.block_size
    if block and length and place % block + length > block:
        return errno.EINVAL
    return 0
