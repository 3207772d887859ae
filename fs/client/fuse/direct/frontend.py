"""The direct frontend, put together; see `server` and `operations` for what it does."""

from functools import partial
from pathlib import Path

import trio

from ....runtime.figures import Figures
from ....runtime.ports import Runtime
from ....schema.ids import ROOT_INODE_ID, InodeId
from ...vfs.vfs import Vfs
from ..frontend import KernelNotifier
from ..mount_options import generic_options
from ..mount_point import common_options, umount
from ..programs import program_of
from . import protocol as p
from .device import Device, mount_device, replace_mount
from .handshake import WRITE_BYTES_MAX
from .server import Server
from .subtree import SubtreeDevice
from .times import OperationTimes


def _options() -> list[str]:
    return [*common_options(), f"max_read={WRITE_BYTES_MAX}"]


class DirectFrontend:
    """See Frontend."""

    def __init__(self, vfs: Vfs, runtime: Runtime, root: InodeId = ROOT_INODE_ID) -> None:
        """`root` is the directory that is mounted."""
        self.kernel_cache = KernelNotifier(self._invalidate, runtime, self._invalidate_name)
        self._vfs = vfs
        self._root = root
        self._runtime = runtime
        self._scope = trio.CancelScope()
        self._device: Device | None = None
        self._mount_point: Path | None = None
        self._is_gone = False
        self._times = OperationTimes(vfs.profile)
        vfs.listers.program_of = program_of

    def replace(self, mount_point: Path, source: str) -> bool:
        """See Frontend."""
        fd = replace_mount(mount_point, _options(), source, generic_options(self._vfs.section))
        if fd is not None:
            self._take(fd, mount_point)
        return fd is not None

    def mount(self, mount_point: Path, source: str) -> None:
        """See Frontend."""
        fd = mount_device(mount_point, _options(), source, generic_options(self._vfs.section))
        self._take(fd, mount_point)

    def _take(self, fd: int, mount_point: Path) -> None:
        make = Device if self._root == ROOT_INODE_ID else partial(SubtreeDevice, root=self._root)
        self._device = make(fd, WRITE_BYTES_MAX, self._vfs.memory)
        self._mount_point = mount_point

    async def serve(self) -> None:
        """See Frontend."""
        assert self._device is not None
        with self._scope:
            await Server(self._device, self._vfs, self._runtime, times=self._times).run()
            self._is_gone = True

    def terminate(self) -> None:
        """See Frontend."""
        self._scope.cancel()

    def say(self, figures: Figures) -> None:
        """See Frontend."""
        self._times.say(figures)

    def close(self, *, is_unmounted: bool) -> None:
        """See Frontend."""
        if self._device is None:
            return
        assert self._mount_point is not None
        self._device.close()
        if not is_unmounted and not self._is_gone:
            umount(self._mount_point)

    def _invalidate(self, inode_id: InodeId, start: int, length: int) -> None:
        assert self._device is not None
        body = p.NOTIFY_INVAL_INODE_OUT.pack(inode_id, start, length)
        self._device.notify(p.NOTIFY_INVAL_INODE, body)

    def _invalidate_name(self, parent: InodeId, name: bytes) -> None:
        assert self._device is not None
        body = p.NOTIFY_INVAL_ENTRY_OUT.pack(parent, len(name), 0) + name + b"\0"
        self._device.notify(p.NOTIFY_INVAL_ENTRY, body)
