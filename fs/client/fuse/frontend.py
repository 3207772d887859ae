"""What `mount` needs of a frontend: something that carries requests between the kernel and the vfs.

Two exist: `direct`, which speaks the kernel's protocol itself, and `libfuse`, by way of pyfuse3.
"""

import errno
import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final, Protocol

import outcome
import trio

from ...runtime.figures import Figures
from ...runtime.ports import OnEnd, Runtime
from ...schema.ids import InodeId

_log = logging.getLogger(__name__)


class Frontend(Protocol):
    """One mount, from mounting to closing; each of these is called once, in this order."""

    @property
    def kernel_cache(self) -> "KernelNotifier":
        """The caches that the vfs has to keep honest."""

    def replace(self, mount_point: Path, source: str) -> bool:
        """Mount where a dead mount stands, with no moment in which nothing is mounted there;
        False: that cannot be done, and all is as it was.

        Raises:
            FsError: FUSE_MISSING; all is as it was.
        """

    def mount(self, mount_point: Path, source: str) -> None:
        """Mount on a checked mount point, as `source` in lists of mounts; may block.

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

_NOTHING_TO_FORGET: Final = (errno.ENOENT, errno.ENOTCONN, errno.ENODEV)
"""The inode is not cached, or there is no mount any more."""


class KernelNotifier:
    """Invalidation notices to the kernel, sent from worker threads because they may block.

    The threads are its own: some are begun for every batch of writes and for many changes of
    attributes, and trio's way into a thread costs more than the notice (`ThreadRunBlocking`); and
    those that the kernel keeps waiting take none from anybody else.

    A failed notice (the inode is not cached) means that there was nothing to forget.
    Where the machine has no more threads it waits for one: what the kernel was not told
    to forget it would show for ever.
    """

    def __init__(
        self,
        invalidate: Callable[[InodeId, int, int], None],
        runtime: Runtime,
        invalidate_name: Callable[[InodeId, bytes], None] | None = None,
    ) -> None:
        """`invalidate(inode_id, start, length)` and `invalidate_name(directory, name)` block,
        and raise OSError.

        `start` is ATTRIBUTES_ALONE, or where the content to be forgotten begins; its
        `length` is 0 for all that follows.
        """
        assert runtime.own_threads is not None, "notices are sent by processes with threads only"
        self._invalidate = invalidate
        self._invalidate_name = invalidate_name
        _, self._begin = runtime.own_threads()

    async def invalidate_attributes(self, inode_id: InodeId) -> None:
        """See KernelCache."""
        await self._notify(inode_id, ATTRIBUTES_ALONE, 0)

    async def invalidate_content(self, inode_id: InodeId, start: int = 0, length: int = 0) -> None:
        """See KernelCache."""
        await self._notify(inode_id, start, length)

    async def forget_name(self, parent: InodeId, name: bytes) -> None:
        """Have the kernel forget a name in a directory;
        waits for whatever it has under way there.
        """
        assert self._invalidate_name is not None, "no way to have names forgotten"
        await self._send(parent, partial(self._invalidate_name, parent, name))

    async def _notify(self, inode_id: InodeId, start: int, length: int) -> None:
        await self._send(inode_id, partial(self._invalidate, inode_id, start, length))

    async def _send(self, inode_id: InodeId, send: Callable[[], None]) -> None:
        """Send a notice; who is cancelled leaves it to its thread,
        whatever the kernel makes it wait for.
        """
        task: trio.lowlevel.Task | None = trio.lowlevel.current_task()

        def ended(error: BaseException | None) -> None:
            if task is not None:
                trio.lowlevel.reschedule(task, outcome.Value(error))

        def abort(_: object) -> trio.lowlevel.Abort:
            nonlocal task
            task = None
            return trio.lowlevel.Abort.SUCCEEDED

        await self._give_to_thread(inode_id, send, ended)
        error = await trio.lowlevel.wait_task_rescheduled(abort)
        try:
            if isinstance(error, OSError):
                _note_failure(inode_id, error)
            elif error is not None:
                raise error
        finally:
            del error  # its traceback holds this frame

    async def _give_to_thread(
        self, inode_id: InodeId, send: Callable[[], None], ended: OnEnd
    ) -> None:
        """Have a thread `send`, as soon as one is to be had."""
        is_told = False
        while True:
            try:
                self._begin(send, ended)
            except (RuntimeError, MemoryError) as error:
                if not is_told:
                    _log.warning("inode %d: invalidation waits for a thread: %r", inode_id, error)
                is_told = True
                await trio.sleep(THREAD_PAUSE_S)
                continue
            return


def _note_failure(inode_id: InodeId, error: OSError) -> None:
    if error.errno not in _NOTHING_TO_FORGET:
        _log.warning("inode %d: invalidation failed: %s", inode_id, error)
