"""Memory that a program and the daemon share: of rings, and of the bytes that are moved.

Who maps a file that somebody can cut shorter dies by SIGBUS when he touches the rest.  So only
memory that is sealed against shrinking is mapped: what the daemon makes itself, or memory files
whose program has sealed them.  Other memory (a file in /dev/shm) is reached by pread and pwrite,
which costs a copy and cannot hurt.  So is memory of huge pages: there are few, and who touches a
hole in it when none is left dies, too.

Invariant: mapped bytes stay mapped as long as anything refers to a view of
them, whatever the program does.
"""

import errno
import fcntl
import functools
import logging
import os
from collections.abc import Iterable, Sequence
from typing import Final, Protocol

from ...runtime.plain_memory import PlainMemory
from ...schema.status import FsError, Status
from .huge_pages import HUGE_BYTES, WornPages, aligned_mapping

log = logging.getLogger(__name__)

_NAME: Final = "emberfs-batch"


class Memory(Protocol):
    """Memory of one program."""

    @property
    def size(self) -> int:
        """Bytes."""

    @property
    def block_size(self) -> int:
        """No transfer may cross a multiple of it; 0: any may."""

    @property
    def mapped_bytes(self) -> int:
        """Bytes that this mount holds for it; 0: windows are copies,
        which whoever asks for them has to bound.
        """

    def window(self, offset: int, length: int) -> memoryview:
        """Return where bytes of it are to be put, or `load` is to put them."""

    def load(self, offset: int, window: memoryview) -> None:
        """Fill a window with what the program wrote; raises OSError."""

    def store(self, offset: int, window: memoryview) -> None:
        """Let the program see what is in a window; raises OSError."""

    def note_written(self, pieces: Iterable[tuple[int, int]]) -> Sequence[memoryview]:
        """Take note of what a batch writes, by offset and length;
        return what then is to be of huge pages, see `huge_pages.exchange`.
        """

    def close(self) -> None:
        """Give back what is not in use; windows stay good."""


class MappedMemory:
    """Memory that cannot shrink: windows are the program's own bytes."""

    def __init__(self, fd: int, size: int, block_size: int = 0, *, is_new: bool = False) -> None:
        """Map a sealed memory file; `fd` stays the caller's.

        One that `is_new` is to be of huge pages, at once if the machine gives memory
        files any, else where much is written out of it: other processes copy out of
        these in a quarter of the time.

        Raises:
            OSError: it cannot be mapped for reading and writing.
        """
        self.size = self.mapped_bytes = size
        self.block_size = block_size
        is_large = is_new and size >= HUGE_BYTES
        self.view = _mapping(fd, size, is_large=is_large)
        self._worn = WornPages(size) if is_large else None

    def window(self, offset: int, length: int) -> memoryview:
        """See Memory."""
        return self.view[offset : offset + length]

    def load(self, offset: int, window: memoryview) -> None:
        """See Memory: it is there."""

    def store(self, offset: int, window: memoryview) -> None:
        """See Memory: it is there."""

    def note_written(self, pieces: Iterable[tuple[int, int]]) -> Sequence[memoryview]:
        """See Memory."""
        if self._worn is None:
            return ()
        return [self.window(*place) for place in self._worn.note(pieces)]

    def close(self) -> None:
        """See Memory: the last window that goes ends the mapping, at once if there is none."""
        self.view.release()


def _mapping(fd: int, size: int, *, is_large: bool) -> memoryview:
    """Return all bytes of a memory file; where a huge page could begin if it `is_large`
    and the machine has room to look for such a place.
    """
    if is_large:
        try:
            return aligned_mapping(fd, size)
        except OSError as error:  # without overcommitment that wants the same room once more
            log.debug("%d bytes are mapped anywhere: %s", size, error)
    return memoryview(PlainMemory(fd, size))


class CopiedMemory:
    """Memory that its program can shrink: never mapped."""

    mapped_bytes = 0

    def __init__(self, fd: int, size: int, block_size: int) -> None:
        """Take over `fd`."""
        self._fd = fd
        self.size = size
        self.block_size = block_size

    def window(self, offset: int, length: int) -> memoryview:
        """See Memory."""
        del offset
        return memoryview(bytearray(length))

    def load(self, offset: int, window: memoryview) -> None:
        """See Memory."""
        if os.preadv(self._fd, [window], offset) != len(window):
            raise OSError(errno.EFAULT, "the memory is shorter than it was")

    def store(self, offset: int, window: memoryview) -> None:
        """See Memory."""
        os.pwrite(self._fd, window, offset)

    def note_written(self, _pieces: Iterable[tuple[int, int]]) -> Sequence[memoryview]:
        """See Memory: nobody copies out of it but we."""
        return ()

    def close(self) -> None:
        """See Memory."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def new_memory(size: int, block_size: int = 0) -> tuple[MappedMemory, int]:
    """Return zeroed memory that cannot change its size, and its memory file,
    which is the caller's to close.

    Raises:
        OSError: there is none.
    """
    fd = os.memfd_create(_NAME, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(fd, size)
        seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
        return MappedMemory(fd, size, block_size, is_new=True), fd
    except OSError:
        os.close(fd)
        raise


def is_memory_file(fd: int) -> bool:
    """Return whether a descriptor is of a memory file or of a file in memory;
    asks nobody else's file system.
    """
    try:
        fcntl.fcntl(fd, fcntl.F_GET_SEALS)
    except OSError:
        return False
    return True


@functools.cache
def _device_of_memory_files() -> int:
    """Return where all memory files of ordinary pages lie."""
    fd = os.memfd_create(_NAME, os.MFD_CLOEXEC)
    try:
        return os.fstat(fd).st_dev
    finally:
        os.close(fd)


def shared_memory(fd: int, size: int, block_size: int) -> Memory:
    """Return memory that a program brought; `fd`, a memory file, is taken over.

    Raises:
        OSError: it cannot be mapped.
        FsError: INVALID_ARGUMENT: it is shorter than said.
    """
    is_kept = False
    try:
        is_sealed = bool(fcntl.fcntl(fd, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK)
        found = os.fstat(fd)
        length = found.st_size  # after the seals were seen: it cannot shrink any more
        if length < size:
            what = f"a memory file of {length} bytes is no memory of {size}"
            raise FsError(Status.INVALID_ARGUMENT, what)
        if is_sealed and found.st_dev == _device_of_memory_files():
            return MappedMemory(fd, size, block_size)
        memory = CopiedMemory(fd, size, block_size)
        is_kept = True
        return memory
    finally:
        if not is_kept:
            os.close(fd)
