"""INIT: what this side and the kernel agree on.  Pure.

Choices:
    - ATOMIC_O_TRUNC, EXPORT_SUPPORT, READDIRPLUS, PARALLEL_DIROPS, CACHE_SYMLINKS: the vfs can do
      them, and they save requests.
    - No READDIRPLUS_AUTO.  With it the kernel asks for attributes in the first page of a listing
      only, and then looks up every other entry by itself.  Who wants them is learnt (`listers`).
    - No HANDLE_KILLPRIV.  With it the kernel leaves it to this side to clear set-user-id and
      set-group-id bits, but does not tell of a chown that changes nothing else.  Without it, the
      kernel clears them itself, at once, and asks for security.capability before every write,
      which is answered without waiting.
    - DONT_MASK: the umask comes with the request.
    - POSIX_ACL: the kernel checks access control lists, which it asks for as extended attributes
      and forgets with the other attributes.
    - DIRECT_IO_ALLOW_MMAP: files opened with O_APPEND can be mapped shared.
    - No READ of the page cache waits in the kernel.  The kernel notes what it knows of a
      file before a READ waits there.  So one that comes after a shorter answer to what lies
      behind it is overlooked, and shows zeros (decision 0151).  How many are done at a time
      this side sees to (`Reading`).  From three quarters of that on the kernel reads ahead
      only what a program waits for.
    - No writeback cache: the vfs buffers, because it must know the order of writes and appends.
"""

from dataclasses import dataclass

from ....schema.status import FsError, Status
from . import protocol as p
from .protocol import InitFlag

WRITE_BYTES_MAX = 1 << 20
"""Of one READ or WRITE: what the kernel's default limit of 256 pages allows."""
BACKGROUND_MAX = 4096
"""READs, and requests of asynchronous O_DIRECT,
that the kernel sends before it keeps further ones back: more than are ever under way.
"""
_PAGE_BYTES = 4096
_CONGESTION_NUMERATOR, _CONGESTION_DENOMINATOR = 3, 4
_COUNT_MAX = (1 << 16) - 1
_LOW = (1 << 32) - 1

_WANTED = (
    InitFlag.ASYNC_READ
    | InitFlag.POSIX_LOCKS
    | InitFlag.FLOCK_LOCKS
    | InitFlag.ATOMIC_O_TRUNC
    | InitFlag.EXPORT_SUPPORT
    | InitFlag.BIG_WRITES
    | InitFlag.DONT_MASK
    | InitFlag.AUTO_INVAL_DATA
    | InitFlag.DO_READDIRPLUS
    | InitFlag.ASYNC_DIO
    | InitFlag.PARALLEL_DIROPS
    | InitFlag.POSIX_ACL
    | InitFlag.MAX_PAGES
    | InitFlag.CACHE_SYMLINKS
    | InitFlag.SETXATTR_EXT
    | InitFlag.INIT_EXT
    | InitFlag.DIRECT_IO_ALLOW_MMAP
)
_NEEDED = (
    InitFlag.ATOMIC_O_TRUNC | InitFlag.MAX_PAGES | InitFlag.DO_READDIRPLUS | InitFlag.POSIX_ACL
)


@dataclass(frozen=True, slots=True)
class Agreed:
    """What INIT settled; `reply` goes to the kernel."""

    minor: int
    flags: InitFlag
    reply: bytes

    @property
    def has_setxattr_ext(self) -> bool:
        """True when SETXATTR requests have the longer head."""
        return bool(self.flags & InitFlag.SETXATTR_EXT)


def agree(body: bytes, max_background: int) -> Agreed | None:
    """Return the answer to an INIT, where `max_background` READs are done at a time;
    None when the kernel's major is newer: it will ask again with ours.

    Raises:
        FsError: FUSE_MISSING: this kernel is too old.
    """
    major, minor, max_readahead, low_flags = p.INIT_IN.unpack_from(body)
    if major > p.MAJOR:
        return None
    if major < p.MAJOR or minor < p.MINOR_MIN:
        detail = (
            f"the kernel speaks FUSE {major}.{minor}; {p.MAJOR}.{p.MINOR_MIN} (Linux 5.4) is needed"
        )
        raise FsError(Status.FUSE_MISSING, detail)
    offered = low_flags
    if low_flags & InitFlag.INIT_EXT:
        offered |= p.INIT_IN_FLAGS2.unpack_from(body, p.INIT_IN.size)[0] << 32
    if ~offered & _NEEDED:
        missing = InitFlag(~offered & _NEEDED)
        raise FsError(Status.FUSE_MISSING, f"this kernel's FUSE lacks {missing!r}")
    flags = InitFlag(offered & _WANTED)
    reply = p.INIT_OUT.pack(
        p.MAJOR,
        p.MINOR,
        max_readahead,
        flags & _LOW,
        min(max(max_background, BACKGROUND_MAX), _COUNT_MAX),
        min(max(max_background * _CONGESTION_NUMERATOR // _CONGESTION_DENOMINATOR, 1), _COUNT_MAX),
        WRITE_BYTES_MAX,
        1,
        WRITE_BYTES_MAX // _PAGE_BYTES,
        0,
        flags >> 32,
        0,
    )
    return Agreed(min(minor, p.MINOR), flags, reply)


def newer_major_reply() -> bytes:
    """Return the answer to a kernel with a newer major."""
    return p.INIT_OUT.pack(p.MAJOR, p.MINOR, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
