"""Writing large new versions past the page cache: which bytes, and on which file systems.

A direct write (O_DIRECT) has the disk take the bytes out of the caller's memory: no copy, and no
page of the host for it.  It returns when the device has them, which is not yet durable: the next
flush of the file makes them so, with all else.

Why a direct write cannot break a later flush.  Behind it the kernel drops what the page cache has
of the range; a page there that somebody has dirtied meanwhile cannot be dropped, and is reported
as a failed flush, which ends the use of a disk.  A page may span two blocks, so it need not be
our range that he wrote.  ext4 and XFS hold the lock of the inode shared during a direct write and
alone during a buffered one: nobody dirties a page of the file meanwhile, wherever it lies, except
through a mapping of it, which nobody here has.  What was dirty before is written out first.
Clean pages, as of reading ahead over the border of a block, are just dropped.  Other file systems
have other locks, so they are not asked.
"""

import ctypes
import os
from pathlib import Path
from typing import Final

DIRECT_UNIT_BYTES: Final = 4096
"""What memory, offset and length of a direct write are multiples of; no disk wants more."""

_XFS: Final = 0x58465342
_FILE_SYSTEMS: Final = {0xEF53: "ext4", _XFS: "XFS"}
_STATFS_BYTES: Final = 512
"""More than any struct statfs; the kind comes first in it, in a word."""


def why_not_direct(libc: ctypes.CDLL, directory: Path) -> str:
    """Return why files below a directory are not to be written directly, empty if they may be;
    raises OSError.
    """
    kind = _kind(libc, directory)
    if kind in _FILE_SYSTEMS:
        return ""
    return f"file system of kind {kind:#x}, not {' or '.join(_FILE_SYSTEMS.values())}"


def writes_wait_for_reads(libc: ctypes.CDLL, directory: Path) -> bool:
    """Return whether a read holds the lock of its file while it waits for the disk;
    False if nobody can tell.

    XFS has readers share the lock that a writer needs alone; on ext4 readers take none.
    """
    try:
        return _kind(libc, directory) == _XFS
    except OSError:
        return False


def _kind(libc: ctypes.CDLL, directory: Path) -> int:
    found = ctypes.create_string_buffer(_STATFS_BYTES)
    if libc.statfs(os.fsencode(directory), found) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return ctypes.c_ulong.from_buffer(found).value
