"""What the daemon makes of an entry that a program wrote into a ring.  Pure.

Nothing in a ring is trusted: an entry names files and memory by ids that count for its own
program only, and each of its numbers is checked here.  It is checked in a copy, so
rewriting it meanwhile changes nothing.
"""

import errno
from collections.abc import Mapping
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

from emberfs.protocol import ENTRY, LENGTH_MAX, EntryFlag, Op

from ...schema.layout import MAX_FILE_LENGTH_BYTES

# Looking up members of an enumeration is slow, and each entry asks.
READ: Final = int(Op.READ)
WRITE: Final = int(Op.WRITE)
_KNOWN_OPS: Final = (READ, WRITE)
UNKNOWN_FLAGS: Final = ~int(EntryFlag.RELAXED | EntryFlag.HOLES_ARE_ERRORS)


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


MemoryT = TypeVar("MemoryT", bound=Extended)

Row = tuple[int, int, int, int]
"""What entries of a group differ in: user data, offset in the file,
offset in the memory, length.
"""


class Group(Generic[MemoryT]):
    """Entries that do the same between the same file and memory:
    what holds for all of them is found out once.
    """

    __slots__ = ("block_size", "flags", "handle_id", "memory", "op", "rows", "size")

    def __init__(self, op: int, flags: int, handle_id: int, memory: MemoryT) -> None:
        self.op = op
        self.flags = flags
        self.handle_id = handle_id
        self.memory = memory
        self.size, self.block_size = memory.size, memory.block_size
        self.rows: list[Row] = []


def sort_out(
    copied: bytes, files: Mapping[int, Share], memories: Mapping[int, MemoryT]
) -> tuple[list[Group[MemoryT]], list[tuple[int, int]]]:
    """Return what entries ask for, and the completions of those that ask for nothing,
    or for what they may not.

    Args:
        copied: a whole number of entries.
        files: the program's, by id.
        memories: the program's, by id.
    """
    known: dict[tuple[int, int, int, int], Group[MemoryT] | int] = {}
    ended: list[tuple[int, int]] = []
    for user_data, offset, place, length, file_id, memory_id, op, flags in ENTRY.iter_unpack(
        copied
    ):
        # 1. what many have in common
        key = (file_id, memory_id, op, flags)
        group = known.get(key)
        if group is None:
            group = known[key] = _group(op, flags, files.get(file_id), memories.get(memory_id))
        # 2. what each has of its own
        if isinstance(group, int):
            fault = group
        elif length > LENGTH_MAX:
            fault = errno.EINVAL
        elif op == WRITE and offset + length > MAX_FILE_LENGTH_BYTES:
            fault = errno.EFBIG
        elif place + length > group.size:
            fault = errno.EFAULT
        elif group.block_size and place % group.block_size + length > group.block_size and length:
            fault = errno.EINVAL
        elif length and offset < MAX_FILE_LENGTH_BYTES:  # no byte of a file lies behind that
            length_in = min(length, MAX_FILE_LENGTH_BYTES - offset)
            group.rows.append((user_data, offset, place, length_in))
            continue
        else:
            fault = 0
        ended.append((user_data, -fault))
    return [group for group in known.values() if isinstance(group, Group) and group.rows], ended


def fault_of(op: int, flags: int, share: Share | None) -> int:
    """Return why nothing of a kind can be done with a file, as an errno; 0: it can."""
    if op not in _KNOWN_OPS or flags & UNKNOWN_FLAGS:
        return errno.EINVAL
    if share is None or not (share.can_read if op == READ else share.can_write):
        return errno.EBADF
    return 0


def _group(
    op: int, flags: int, share: Share | None, memory: MemoryT | None
) -> Group[MemoryT] | int:
    """Return what entries of one kind are put into,
    or why none of them can be done, as an errno.
    """
    fault = fault_of(op, flags, share)
    if fault or share is None:
        return fault
    if memory is None:
        return errno.EFAULT
    return Group(op, flags, share.handle_id, memory)
