"""The frontend by way of pyfuse3, that is, libfuse.

One mount per process: libfuse's session is a global of pyfuse3.
"""

from pathlib import Path

import pyfuse3
import trio

from ...runtime.figures import Figures
from ...runtime.ports import Runtime
from ...schema.ids import InodeId
from ...schema.status import FsError, Status
from ..vfs.vfs import Vfs
from .frontend import ATTRIBUTES_ALONE, KernelNotifier
from .mount_options import generic_options
from .mount_point import common_options
from .tree_operations import operations_of

_TASK_COUNT_MIN = 99


def _invalidate(inode_id: InodeId, start: int, _length: int) -> None:
    """pyfuse3 can have all content forgotten, or none."""
    pyfuse3.invalidate_inode(pyfuse3.InodeT(inode_id), start == ATTRIBUTES_ALONE)


def _invalidate_name(parent: InodeId, name: bytes) -> None:
    pyfuse3.invalidate_entry(pyfuse3.InodeT(parent), pyfuse3.FileNameT(name))


class LibfuseFrontend:
    """See Frontend."""

    def __init__(self, vfs: Vfs, runtime: Runtime) -> None:
        self.kernel_cache = KernelNotifier(_invalidate, runtime, _invalidate_name)
        self._operations = operations_of(vfs, runtime)
        self._generic = generic_options(vfs.section)
        self._task_count_max = max(vfs.section.max_background, _TASK_COUNT_MIN)

    def replace(self, mount_point: Path, source: str) -> bool:
        """See Frontend."""
        del mount_point, source
        return False  # libfuse cannot

    def mount(self, mount_point: Path, source: str) -> None:
        """See Frontend.

        max_read is left alone: the kernel's own limit of 256 pages is 1 MiB, and
        libfuse aborts when the option is given and the file system, as with pyfuse3,
        cannot repeat it in its handshake.
        """
        options = {f"fsname={source}", "subtype=ember", *common_options(), *self._generic}
        try:
            pyfuse3.init(self._operations, str(mount_point), options)
        except RuntimeError as error:
            raise FsError(
                Status.BAD_MOUNT_POINT, f"{mount_point}: libfuse refused the mount ({error})"
            ) from error

    async def serve(self) -> None:
        """See Frontend."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._operations.killed.run)
            await pyfuse3.main(min_tasks=1, max_tasks=self._task_count_max)
            nursery.cancel_scope.cancel()

    def terminate(self) -> None:
        """See Frontend."""
        pyfuse3.terminate()

    def say(self, figures: Figures) -> None:
        """See Frontend: nothing is known here."""

    def close(self, *, is_unmounted: bool) -> None:
        """See Frontend.

        Unless told that it is unmounted, libfuse looks whether the kernel has ended the connection,
        and unmounts when it has not, so that a failure at start leaves no dead mount behind.
        """
        pyfuse3.close(unmount=not is_unmounted)
