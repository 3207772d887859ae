"""What `mount` needs of a frontend: something that carries requests between the kernel and the vfs.

Two exist: `direct`, which speaks the kernel's protocol itself, and `libfuse`, by way of pyfuse3.
"""

import errno
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol

import trio

from ...runtime.figures import Figures
from ...schema.ids import InodeId
from ..vfs.ports import KernelCache

_log = logging.getLogger(__name__)


class Frontend(Protocol):
    """One mount, from mounting to closing; each of these is called once, in this order."""

    @property
    def kernel_cache(self) -> KernelCache:
        """The caches that the vfs has to keep honest."""

    def mount(self, mount_point: Path, cluster_id: str) -> None:
        """Mount on a checked mount point; may block.

        Raises:
            FsError: BAD_MOUNT_POINT or FUSE_MISSING; nothing is mounted then.
        """

    async def serve(self) -> None:
        """Serve until the mount is gone or `terminate` was called."""

    def terminate(self) -> None:
        """Make `serve` return soon, with requests under way left unanswered."""

    def say(self, figures: Figures) -> None:
        """Say how the requests of the kernel went, where that is known."""

    def close(self, *, is_unmounted: bool) -> None:
        """Close the connection to the kernel, also after a failure between `mount` and `serve`."""


THREAD_PAUSE_S: Final = 0.1
"""Between two tries to get one."""

ATTRIBUTES_ALONE: Final = -1
"""The start of an invalidation that leaves content as it is."""


class KernelNotifier:
    """Invalidation notices to the kernel, sent from a worker thread because they may block.

    A failed notice (the inode is not cached) means that there was nothing to forget.  Where the machine has no more threads it waits for one:
    what the kernel was not told to forget it would show for ever.
    """

    def __init__(self, invalidate: Callable[[InodeId, int, int], None]) -> None:
        """`invalidate(inode_id, start, length)` blocks, and raises OSError.

        `start` is ATTRIBUTES_ALONE, or where the content to be forgotten begins; its `length` is 0 for all that follows.
        """
        self._invalidate = invalidate

    async def invalidate_attributes(self, inode_id: InodeId) -> None:
        """See KernelCache."""
        await self._notify(inode_id, ATTRIBUTES_ALONE, 0)

    async def invalidate_content(self, inode_id: InodeId, start: int = 0, length: int = 0) -> None:
        """See KernelCache."""
        await self._notify(inode_id, start, length)

    async def _notify(self, inode_id: InodeId, start: int, length: int) -> None:
        is_told = False
        while True:
            try:
                await trio.to_thread.run_sync(
                    self._invalidate, inode_id, start, length, abandon_on_cancel=True
                )
            except OSError as error:
                if error.errno not in (errno.ENOENT, errno.ENOTCONN, errno.ENODEV):
                    _log.warning("inode %d: invalidation failed: %s", inode_id, error)
            except (RuntimeError, MemoryError) as error:  # no thread is to be had
                if not is_told:
                    _log.warning("inode %d: invalidation waits for a thread: %r", inode_id, error)
                is_told = True
                await trio.sleep(THREAD_PAUSE_S)
                continue
            return
