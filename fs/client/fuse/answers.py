"""What both frontends tell the kernel alike: block sizes, times, and how failures are logged.

Pure but for the log.
"""

import errno
import logging

from ...schema.inode import Inode
from ...schema.lacks import lack_among
from ...schema.status import FsError, Status

_log = logging.getLogger(__name__)

BLOCK_BYTES = 4096
"""Unit of statfs."""
IO_BLOCK_BYTES = 4096
"""What stat(2) recommends for anything that has no chunks."""
STAT_BLOCK_BYTES = 512
"""Unit of st_blocks, fixed by stat(2)."""
_TIME_NS_MIN, _TIME_NS_MAX = -(2**63), 2**63 - 1
"""What a record can hold: the years 1677 to 2262;
like any file system, times beyond are clamped.
"""
_ORDINARY = range(Status.NOT_FOUND, Status.ROUTING_MISMATCH)
"""Statuses of the namespace: what applications expect and handle;
all others deserve a line in the log.
"""


def clamp_time_ns(time_ns: int) -> int:
    """Return the nearest time that a record can hold."""
    return min(max(time_ns, _TIME_NS_MIN), _TIME_NS_MAX)


def used_blocks(inode: Inode) -> int:
    """Return st_blocks: what is stored, replicas not counted;
    known exactly once a file with holes was closed.
    """
    has_holes = inode.file is not None and inode.file.has_holes
    taken = inode.used_bytes if has_holes else inode.length
    return -(-taken // STAT_BLOCK_BYTES)


def errno_of(error: Exception, what: str, which: object) -> int:
    """Return the errno for what a request ended with, and log what somebody may want to know.

    An edge of the process: one request that meets a bug must not end the mount of all others, so a
    bug is EIO and a traceback in the log.  What this process cannot have now is no bug, and nothing
    is wrong with the file: ENOMEM, whatever it lacks, since of a descriptor or a thread the program
    would take its own to be out.
    """
    lack = lack_among(error)
    if lack is not None:
        _log.warning("%s%s: this mount lacks something: %r", what, which, lack)
        return errno.ENOMEM
    if isinstance(error, FsError):
        level = logging.DEBUG if error.status in _ORDINARY else logging.WARNING
        _log.log(level, "%s%s: %s", what, which, error)
        return error.errno
    _log.error("bug in %s%s", what, which, exc_info=error)
    return errno.EIO
