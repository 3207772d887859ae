"""Whether a path lies where a file system should be mounted and is not:
what is written there fills another disk.

A mount daemon leaves a mark on the directory that it mounts on, which shows only while nothing is
mounted there (specs/decisions/0144-mount-points-that-are-bare.md).

What this module does not do: find a directory on which EmberFS was never mounted.
"""

import errno
import os
from pathlib import Path

from .protocol import MOUNT_POINT_ATTRIBUTE


def require_mounted(path: str | os.PathLike[str]) -> None:
    """Raise OSError(ENOTCONN) where a path is, or lies below,
    the mount point of a file system that is not mounted.
    """
    absolute = Path(path).absolute()
    for place in (absolute, *absolute.parents):
        if is_bare(place):
            what = f"EmberFS is not mounted at {place}: what is there is another disk"
            raise OSError(errno.ENOTCONN, what, str(path))


def is_bare(place: Path) -> bool:
    """Return whether a directory is a mount point on which nothing is mounted now."""
    try:
        os.getxattr(place, MOUNT_POINT_ATTRIBUTE)
    except OSError:
        # not there, without the mark, or a file system that has none: whoever
        # uses it is told what is wrong
        return False
    return True
