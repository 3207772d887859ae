"""What programs and the mount daemon say to each other about batches: sockets, packets, rings.

Pure.

The one place for these numbers in Python, used by both sides; `ember_batch.h` is the same in C, and
specs/batch.md explains them.  All numbers are little-endian.
"""

import struct
from enum import IntEnum, IntFlag
from typing import Final

VERSION: Final = 1

CHUNK_SIZE_ATTRIBUTE: Final = "ember.chunk_size"
"""Extended attribute of a directory: how large the chunks of new files in it are, in bytes,
as decimal digits.
"""
SOCKET_ATTRIBUTE: Final = "ember.batch"
"""Extended attribute of every path of a mount: the name of the daemon's socket;
a leading @ stands for a zero byte.
"""
MOUNT_POINT_ATTRIBUTE: Final = "user.ember.mount_point"
"""Extended attribute of a directory on which a file system was mounted,
to be seen only while none is: what is written there fills another disk.
"""

IOCTL_TICKET: Final = 0x80104542
"""On an open file: `TICKET`, which the daemon takes once, as a proof that the file is open."""
TICKET: Final = struct.Struct("<QQ")

ENTRY: Final = struct.Struct("<QQQQIIII16x")
"""user data, offset in the file, offset in the memory, length, file id, memory id,
`Op`, `EntryFlag`.
"""
COMPLETION: Final = struct.Struct("<Qq")
"""user data, bytes moved or a negative errno."""
COUNT: Final = struct.Struct("<I")
"""On a ring's bell: so many more entries, or completions."""

ENTRY_COUNT_MAX: Final = 65_536
LENGTH_MAX: Final = 1 << 30
"""Bytes of one entry."""

REQUEST: Final = struct.Struct("<IIIiIIQQ")
"""`Call`, serial number, id or count, depth, timeout in ms, priority, and two numbers more."""
REPLY: Final = struct.Struct("<IiIIQ")
"""Serial number of the request, errno or 0, id, 0, a number;
then words for people, UTF-8, when there is an errno.
"""
PACKET_BYTES_MAX: Final = 1024


class Op(IntEnum):
    """What an entry asks for."""

    READ = 1
    WRITE = 2


class EntryFlag(IntFlag):
    """How an entry is done."""

    RELAXED = 1
    """A read may return bytes that are not yet on all replicas."""
    HOLES_ARE_ERRORS = 2
    """A read that meets bytes that were never written fails with ENODATA;
    otherwise they read as zeros.
    """


class Priority(IntEnum):
    """Of a ring, when more batches are there than are done at once."""

    NORMAL = 0
    HIGH = 1
    LOW = 2


class Call(IntEnum):
    """A request on the control socket; ids and numbers are those of `REQUEST`."""

    HELLO = 1
    """id: `VERSION`.  Answers with the daemon's."""
    NEW_MEMORY = 2
    """First number: bytes; second: no transfer may cross a multiple of it, 0: any may.

    Answers with an id and a memory file.
    """
    SHARE_MEMORY = 3
    """As NEW_MEMORY, for a memory file that is sent along;
    without a seal against shrinking it is copied through.
    """
    DROP_MEMORY = 4
    NEW_RING = 5
    """id: entries; depth, timeout and priority.

    Answers with an id, its memory file and its bell.
    """
    DROP_RING = 6
    """Answers when what was under way has ended:
    reads are given up, writes end as they would have.
    """
    ADD_FILE = 7
    """The numbers: a ticket.  Answers with an id."""
    FILE_LENGTH = 8
    """Answers with the number of bytes."""
    SYNC_FILE = 9
    """Answers when all that was written would survive a power loss."""
    DROP_FILE = 10
    """As close(2): answers with the error of a write that failed, if there was one."""
    FIND_SEGMENT = 11
    """The numbers: `TICKET` of a UUID's bytes.

    Answers with the block size as id, the number of bytes, and the file of memory that a program of
    the same user has registered by a link in `3fs-virt/iovs`; ENOENT: none has.
    """


def ring_bytes(entry_count: int) -> int:
    """Return the size of a ring's memory: all entries, then as many completions."""
    return entry_count * (ENTRY.size + COMPLETION.size)


def entry_offset(index: int, entry_count: int) -> int:
    """Return where the entry with this running number lies."""
    return index % entry_count * ENTRY.size


def completion_offset(index: int, entry_count: int) -> int:
    """Return where the completion with this running number lies."""
    return entry_count * ENTRY.size + index % entry_count * COMPLETION.size
