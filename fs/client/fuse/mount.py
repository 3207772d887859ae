"""Mounting: options, the main loop, orderly unmount.

Orderly unmount, in this order, so that nothing written is lost:
    1. unmount while requests are still served, so that the kernel can send what it holds; a busy mount is
       detached instead: it leaves the tree, and what is open stays served until step 3;
    2. the vfs sends and reports everything and ends its file sessions;
    3. the main loop ends and the connection to the kernel closes.

One mount per process: libfuse's session is a global of pyfuse3.
"""

import ctypes
import errno
import logging
import os
import shutil
import subprocess
from pathlib import Path

import pyfuse3
import trio

from ...runtime.ports import Runtime
from ...schema.config import ClientSection
from ...schema.ids import InodeId
from ...schema.status import FsError, Status
from ..vfs.vfs import Vfs
from .operations import Operations

_log = logging.getLogger(__name__)

_READ_AHEAD_KIB = 1024
_TASK_COUNT_MIN = 99
_MNT_DETACH = 2
_FUSE_CONF = Path("/etc/fuse.conf")
_UMOUNT_TIMEOUT_S = 30.0


class KernelNotifier:
    """Invalidation notices to the kernel, sent from a worker thread because they may block.

    A failed notice (the inode is not cached) means that there was nothing to forget.
    """

    async def invalidate_attributes(self, inode_id: InodeId) -> None:
        """See KernelCache."""
        await self._notify(inode_id, is_attr_only=True)

    async def invalidate_content(self, inode_id: InodeId) -> None:
        """See KernelCache."""
        await self._notify(inode_id, is_attr_only=False)

    async def _notify(self, inode_id: InodeId, *, is_attr_only: bool) -> None:
        try:
            await trio.to_thread.run_sync(
                pyfuse3.invalidate_inode, inode_id, is_attr_only, abandon_on_cancel=True
            )
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTCONN, errno.ENODEV):
                _log.warning("inode %d: invalidation failed: %s", inode_id, error)


def mount_options(cluster_id: str) -> set[str]:
    """Return the mount options for this user; allow_other where the system lets us.

    max_read is left alone: the kernel's own limit of 256 pages is 1 MiB, and libfuse aborts when the option
    is given and the file system, as with pyfuse3, cannot repeat it in its handshake.
    """
    options = {
        f"fsname=emberfs:{cluster_id}",
        "subtype=ember",
        "default_permissions",
    }
    if os.geteuid() == 0 or _may_allow_other():
        options.add("allow_other")
    return options


def _may_allow_other() -> bool:
    try:
        lines = _FUSE_CONF.read_text().splitlines()
    except OSError:
        return False
    return any(line.strip() == "user_allow_other" for line in lines)


def check_mount_point(mount_point: Path) -> None:
    """Refuse what cannot be mounted on.

    Raises:
        FsError: BAD_MOUNT_POINT: missing, no directory, not empty, a mount already, or a dead mount;
            FUSE_MISSING: this system offers no /dev/fuse.
    """
    if not Path("/dev/fuse").exists():
        raise FsError(Status.FUSE_MISSING, "/dev/fuse does not exist; load the fuse kernel module")
    try:
        if not mount_point.is_dir():
            raise FsError(Status.BAD_MOUNT_POINT, f"{mount_point} is no existing directory")
        if mount_point.is_mount():
            raise FsError(Status.BAD_MOUNT_POINT, f"{mount_point} is a mount already")
        if any(mount_point.iterdir()):
            raise FsError(Status.BAD_MOUNT_POINT, f"{mount_point} is not empty")
    except OSError as error:
        hint = "; a dead mount? try: umount -l" if error.errno == errno.ENOTCONN else ""
        raise FsError(Status.BAD_MOUNT_POINT, f"{mount_point}: {error.strerror}{hint}") from error


def _mount(operations: Operations, mount_point: Path, cluster_id: str) -> None:
    check_mount_point(mount_point)
    try:
        pyfuse3.init(operations, str(mount_point), mount_options(cluster_id))
    except RuntimeError as error:
        raise FsError(
            Status.BAD_MOUNT_POINT, f"{mount_point}: libfuse refused the mount ({error})"
        ) from error


def _raise_read_ahead(mount_point: Path) -> None:
    # The kernel reads ahead 128 KiB of a FUSE mount unless told otherwise; only root may tell it.
    device = mount_point.stat().st_dev
    setting = Path(f"/sys/class/bdi/{os.major(device)}:{os.minor(device)}/read_ahead_kb")
    try:
        setting.write_text(str(_READ_AHEAD_KIB))
    except OSError as error:
        _log.info("kernel readahead stays small: %s: %s", setting, error.strerror)


def _umount(mount_point: Path) -> bool:
    """Unmount while requests are served; return False when it had to be detached because it is busy."""
    if os.geteuid() == 0:
        libc = ctypes.CDLL(None, use_errno=True)
        target = os.fsencode(mount_point)
        if libc.umount2(target, 0) == 0:
            return True
        if ctypes.get_errno() == errno.EBUSY:
            libc.umount2(target, _MNT_DETACH)
        return False
    program = shutil.which("fusermount3") or shutil.which("fusermount")
    if program is None:
        return False
    arguments = [program, "-q", "-u"]
    for extra in ([], ["-z"]):
        done = subprocess.run(  # noqa: S603 - a fixed program and our own mount point
            [*arguments, *extra, "--", str(mount_point)],
            check=False,
            timeout=_UMOUNT_TIMEOUT_S,
        )
        if done.returncode == 0:
            return not extra
    return False


async def run_mount(
    vfs: Vfs,
    mount_point: Path,
    *,
    runtime: Runtime,
    section: ClientSection,
    cluster_id: str,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Mount, report started, serve until cancelled or unmounted from outside, unmount cleanly.

    The vfs must not be running yet: it lives exactly as long as the mount.

    Raises:
        FsError: BAD_MOUNT_POINT or FUSE_MISSING; nothing is mounted then.
    """
    vfs.connect_kernel(KernelNotifier())
    operations = Operations(vfs, runtime)
    _mount(operations, mount_point, cluster_id)
    served = trio.Event()
    is_unmounted = False
    try:
        async with trio.open_nursery() as nursery:
            await nursery.start(_shielded_vfs, vfs)
            nursery.start_soon(operations.killed.run)
            nursery.start_soon(_serve, served, max(section.max_background, _TASK_COUNT_MIN))
            # The first stat makes the kernel finish its handshake with the main loop.
            await trio.to_thread.run_sync(_raise_read_ahead, mount_point)
            _log.info("mounted %s on %s", cluster_id, mount_point)
            task_status.started()
            try:
                await served.wait()
            finally:
                with trio.CancelScope(shield=True):
                    is_unmounted = not served.is_set()
                    await _stop(vfs, mount_point, served)
            nursery.cancel_scope.cancel()
    finally:
        # Else libfuse looks whether the kernel has ended the connection, and unmounts when it has not,
        # so that a failure at start leaves no dead mount behind.
        pyfuse3.close(unmount=not is_unmounted)
        _log.info("unmounted %s", mount_point)


async def _shielded_vfs(vfs: Vfs, *, task_status: trio.TaskStatus[None]) -> None:
    with trio.CancelScope(shield=True):
        await vfs.run(task_status=task_status)


async def _serve(served: trio.Event, max_tasks: int) -> None:
    with trio.CancelScope(shield=True):
        try:
            await pyfuse3.main(min_tasks=1, max_tasks=max_tasks)
        finally:
            served.set()


async def _stop(vfs: Vfs, mount_point: Path, served: trio.Event) -> None:
    if not served.is_set() and not await trio.to_thread.run_sync(_umount, mount_point):
        _log.warning("%s is in use; detached", mount_point)
    try:
        await vfs.shut_down()
    finally:  # also when a bug ended the vfs: the main loop must not outlive it
        if not served.is_set():
            pyfuse3.terminate()
            await served.wait()
