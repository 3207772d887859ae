"""What 3FS's own `hf3fs_fuse` stands on, by the names of its C++ module:
for programs that bring a copy of that, or import this by itself.

    os.symlink(f"/dev/shm/{shm.name}", f"{mount}/3fs-virt/iovs/{number}")
    iov, ring = iovec(shm.buf, number, mount), ioring(mount, 128, True, 0, None, None, -1, 0)

The mount has to offer `3fs-virt` (`client.hf3fs_tree`).  Programs that import `hf3fs_fuse` have
EmberFS's own, which needs none.

Imports nothing of `hf3fs_fuse`, which imports this: as with 3FS's.

Not here: `slice_by`; 3FS's C structures.
"""

import errno
import os
from datetime import timedelta
from typing import Any
from uuid import UUID

from emberfs.usrbio import (
    client_of,
    deregister_fd,
    extract_mount_point,
    find_iovec,
    force_fsync,
    hardlink,
    punch_hole,
    register_fd,
)
from emberfs.usrbio import ioring as _ioring

__all__ = [
    "deregister_fd",
    "extract_mount_point",
    "force_fsync",
    "hardlink",
    "ioring",
    "iovec",
    "punch_hole",
    "register_fd",
]


def iovec(
    base: Any,
    id: str | UUID,  # noqa: A002 - the name that programs know
    hf3fs_mount_point: str | os.PathLike[str],
    block_size: int = 0,
    numa: int = -1,
) -> Any:
    """Return the segment that is registered by a link called `id` as an iovec.

    Args:
        base: its first bytes, as this program has mapped them: as many as are to be used.
        id: the UUID in the name of the link.
        hf3fs_mount_point: of the files that it will be used for.
        block_size: as the name of the link says.
        numa: accepted, not acted upon.

    Raises:
        OSError: ENOENT: nothing is registered; EINVAL: it has fewer bytes than `base`, or the
            link says another block size.
    """
    del numa
    found, count = find_iovec(id, hf3fs_mount_point), memoryview(base).nbytes
    if count > len(found) or block_size != found.block_size:
        what = "what is registered is smaller, or of another block size"
        raise OSError(errno.EINVAL, what, str(id))
    return found[:count]


class ioring(_ioring):  # noqa: N801 - the name that programs know
    """A ring for reads, or for writes."""

    def __init__(  # noqa: PLR0917 - those that programs know
        self,
        hf3fs_mount_point: str | os.PathLike[str],
        entries: int,
        for_read: bool = True,
        io_depth: int = 0,
        priority: int | None = None,
        timeout: float | timedelta | None = None,
        numa: int = -1,
        *flags_last: int,
        flags: int = 0,
    ) -> None:
        """See `emberfs.usrbio.make_ioring`; `flags` may also come last, without its name."""
        del numa
        (flags,) = flags_last or (flags,)
        super().__init__(
            client_of(hf3fs_mount_point),
            entries,
            for_read=for_read,
            io_depth=io_depth,
            priority=priority,
            timeout=timeout,
            flags=flags,
        )
