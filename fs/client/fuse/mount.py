"""Mounting: the main loop, orderly unmount.

Orderly unmount, in this order, so that nothing written is lost:
    1. unmount while requests are still served, so that the kernel can send what it holds; a busy
       mount is detached instead: it leaves the tree, and what is open stays served until step 3;
    2. the vfs sends and reports everything and ends its file sessions;
    3. the frontend ends and the connection to the kernel closes.
"""

import logging
import os
from pathlib import Path

import trio

from ...runtime.figures import Source
from ...runtime.ports import Runtime
from ...schema.config import ClientSection
from ...schema.ids import ROOT_INODE_ID, InodeId
from ..batchio.server import BatchServer
from ..vfs.mounted_tree import PREFIX, MountedTree
from ..vfs.ports import Caller
from ..vfs.vfs import Vfs
from .direct.frontend import DirectFrontend
from .frontend import Frontend
from .mount_options import counted_reads
from .mount_point import (
    check_mount_point,
    detach,
    mark_mount_point,
    set_read_ahead,
    umount,
)
from .mounted_paths import MountedPaths

_log = logging.getLogger(__name__)
_OF_MOUNT = Caller(0, 0)


def _frontend(vfs: Vfs, runtime: Runtime, section: ClientSection, root: InodeId) -> Frontend:
    if section.fuse_frontend == "direct":
        return DirectFrontend(vfs, runtime, root)
    from .libfuse import LibfuseFrontend  # noqa: PLC0415 - pyfuse3 is needed by this choice only

    return LibfuseFrontend(vfs, runtime)


async def run_mount(
    vfs: Vfs,
    mount_point: Path,
    *,
    runtime: Runtime,
    section: ClientSection,
    cluster_id: str,
    root: InodeId = ROOT_INODE_ID,
    replaces: bool = False,
    sources: list[Source] | None = None,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Mount, report started, serve until cancelled or unmounted from outside, unmount cleanly.

    The vfs must not be running yet: it lives exactly as long as the mount.  What the mount measures
    is added to `sources`.  `root` is the directory that is mounted.  With `replaces` a dead mount
    stands there, and goes once the new one can take its place, if the system lets us.

    Raises:
        FsError: BAD_MOUNT_POINT or FUSE_MISSING; nothing is mounted then.  Or what the cluster
            said of its root directory, if that failed for as long as operations are tried
            again; nothing stays mounted.
    """
    frontend = _frontend(vfs, runtime, section, root)
    vfs.connect_kernel(frontend.kernel_cache)
    vfs.count_reads(*counted_reads(section))
    tree = MountedTree(cluster_id, section.subdir)
    vfs.announce_tree(tree, root)
    told: list[Source] = [] if sources is None else sources
    told += [vfs.say, frontend.say]
    source = section.mount_source or f"{PREFIX}{tree.words}"
    if not (replaces and frontend.replace(mount_point, source)):
        if replaces:
            detach(mount_point)  # what stays there is refused by the check
        check_mount_point(mount_point)
        mark_mount_point(mount_point, cluster_id)
        frontend.mount(mount_point, source)
    served = trio.Event()
    is_unmounted = False
    try:
        async with trio.open_nursery() as nursery:
            # Shielded: a start that is cancelled waits for the end of what it starts,
            # which nobody would ask for.
            with trio.CancelScope(shield=True):
                await nursery.start(_shielded_vfs, vfs)
            nursery.start_soon(_serve, frontend, served)
            batching = _Batching()
            try:
                await _finish_handshakes(vfs, frontend, mount_point, section, root)
                if section.fuse_frontend == "direct":
                    # pyfuse3 has no hook for the ioctl of tickets.
                    batches = BatchServer(vfs, section)
                    told.append(batches.say)
                    with trio.CancelScope(shield=True):
                        await nursery.start(batching.run, batches)
                _log.info("mounted %s on %s", cluster_id, mount_point)
                task_status.started()
                await served.wait()
            finally:
                with trio.CancelScope(shield=True):
                    is_unmounted = not served.is_set()
                    await batching.stop()
                    await _stop(vfs, frontend, mount_point, served)
            nursery.cancel_scope.cancel()
    finally:
        frontend.close(is_unmounted=is_unmounted)
        _log.info("unmounted %s", mount_point)


async def _finish_handshakes(
    vfs: Vfs, frontend: Frontend, mount_point: Path, section: ClientSection, root: InodeId
) -> None:
    """Have cluster and kernel answer for the first time, where a wait can be cancelled."""
    # A cluster that cannot answer yet ends in a status here.
    await vfs.namespace.getattr(root, _OF_MOUNT)
    # The first stat makes the kernel finish its handshake with the main loop.  When that fails, the
    # stat is answered by the end of the connection only.
    await trio.to_thread.run_sync(
        set_read_ahead, mount_point, section.kernel_readahead_bytes, abandon_on_cancel=True
    )
    if vfs.tree is not None:
        seen = await trio.to_thread.run_sync(os.stat, mount_point, abandon_on_cancel=True)
        vfs.tree.removal.attach(MountedPaths(seen.st_dev, frontend.kernel_cache.forget_name))


class _Batching:
    """The server of batches: it ends before the vfs does, whatever cancels the mount."""

    def __init__(self) -> None:
        self._scope = trio.CancelScope(shield=True)
        self._ended = trio.Event()
        self._ended.set()

    async def run(self, server: BatchServer, *, task_status: trio.TaskStatus[None]) -> None:
        """Serve until `stop`."""
        self._ended = trio.Event()
        try:
            with self._scope:
                await server.run(task_status=task_status)
        finally:
            self._ended.set()

    async def stop(self) -> None:
        """Return when no batch is under way any more."""
        self._scope.cancel()
        await self._ended.wait()


async def _shielded_vfs(vfs: Vfs, *, task_status: trio.TaskStatus[None]) -> None:
    with trio.CancelScope(shield=True):
        await vfs.run(task_status=task_status)


async def _serve(frontend: Frontend, served: trio.Event) -> None:
    with trio.CancelScope(shield=True):
        try:
            await frontend.serve()
        finally:
            served.set()


async def _stop(vfs: Vfs, frontend: Frontend, mount_point: Path, served: trio.Event) -> None:
    if not served.is_set() and not await trio.to_thread.run_sync(umount, mount_point):
        _log.warning("%s is in use; detached", mount_point)
    try:
        await vfs.shut_down()
    finally:  # also when a bug ended the vfs: the main loop must not outlive it
        if not served.is_set():
            frontend.terminate()
            await served.wait()
