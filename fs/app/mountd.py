"""The mount daemon: a native client, the vfs on top, FUSE around it.

Ends when asked to (after flushing everything), or with exit code 0 when
somebody unmounts from outside.
"""

import os
from functools import partial
from pathlib import Path

import msgspec
import trio

from ..client.connect import Client, open_client
from ..client.fuse.mount import run_mount
from ..client.fuse.mount_point import is_dead_mount
from ..client.gone_clients import GoneClients
from ..client.vfs.vfs import Vfs
from ..runtime.background import open_background
from ..schema import services
from ..schema.ids import ROOT_INODE_ID, ClientId, InodeId
from ..schema.inode import inode_from_pb
from ..schema.proto import common_pb2, meta_pb2
from ..schema.status import FsError, Status
from .mounts.mount_point import is_mounted
from .mounts.mount_record import MountRecord
from .mounts.run_folder import runtime_folder
from .mounts.stuck_daemon import free_all
from .process.compose import Process, main
from .process.kept_settings import begin_by_asking
from .process.release import RELEASE
from .process.starting import wait_for_manager


async def run(process: Process) -> None:
    """Mount, serve, unmount."""
    process.look_before_sleep()
    await wait_for_manager(process)
    await begin_by_asking(process)
    config = process.config
    if not config.client.mount_point:
        raise FsError(Status.BAD_CONFIG, "client.mount_point: where shall this daemon mount?")
    record = _record(process)
    await trio.to_thread.run_sync(partial(record.take, waits=False))
    async with (
        open_client(
            process.runtime,
            config,
            process.channels,
            client_id=ClientId(process.identity.client_id),
            mount_point=config.client.mount_point,
            release=RELEASE,
            settings=process.kept,
        ) as client,
        open_background() as nursery,
    ):
        nursery.start_soon(_free_gone, process, client, record)
        vfs = Vfs(client.meta, client.chunks, process.runtime, config.client, tracer=process.tracer)
        process.follow(lambda new: client.adopt(new.client))
        process.follow(lambda new: vfs.adopt(new.client))
        vfs.tell_settings(partial(_settings, process))
        process.sources.append(client.chunks.say)
        await _serve(process, vfs, await _root(client, config.client.subdir))
    record.remove()


def _record(process: Process) -> MountRecord:
    """Return the file that says which client serves the mount point."""
    return MountRecord(
        runtime_folder(),
        process.config.process.cluster_id,
        Path(process.config.client.mount_point),
        boot_id=process.runtime.boot_id,
        client_id=process.identity.client_id,
    )


async def _free_gone(process: Process, client: Client, record: MountRecord) -> None:
    """Have the cluster let go of the daemons before this one that are gone; one that
    has not ended is waited for.
    """
    if not record.is_held:
        take = partial(record.take, waits=True)
        if not await trio.to_thread.run_sync(take, abandon_on_cancel=True):
            return
    clients = GoneClients(
        channels=process.channels, routing=client.routing, mgmtd=client.mgmtd, meta=client.meta
    )
    for client_id in [*record.gone]:
        await clients.free(client_id)
        record.forget(client_id)


def _settings(process: Process) -> bytes:
    """Return what is in force, as JSON."""
    config = process.config if process.kept is None else process.kept.settings.config
    return msgspec.json.encode(config)


async def _root(client: Client, subdir: str) -> InodeId:
    """Return the directory that is to be mounted.

    Raises:
        FsError: BAD_CONFIG: it is not there, or no directory.
    """
    if not subdir:
        return ROOT_INODE_ID
    request = meta_pb2.ResolvePathReq(
        caller=common_pb2.CallerPb(client_id=client.client_id),
        path=os.fsencode(subdir),
        follow_last=True,
    )
    try:
        found = inode_from_pb((await client.meta.call(services.META_RESOLVE_PATH, request)).inode)
    except FsError as error:
        if error.status not in {Status.NOT_FOUND, Status.NOT_DIRECTORY}:
            raise
        raise FsError(Status.BAD_CONFIG, f"client.subdir {subdir}: it is not there") from error
    if not found.is_dir:
        raise FsError(Status.BAD_CONFIG, f"client.subdir {subdir}: no directory")
    return found.inode_id


def _has_left_a_mount(mount_point: Path) -> bool:
    """Return whether a killed daemon has left its mount where this one is to mount;
    the kernel may still wait in that daemon, which is let go.

    The mount stays until the new one takes its place: whoever wrote in between would write into the
    directory beneath, where nobody finds it, and nothing could be mounted on it any more.
    """
    if is_mounted(mount_point):
        free_all(mount_point)
    return is_dead_mount(mount_point)


async def _serve(process: Process, vfs: Vfs, root: InodeId) -> None:
    """Mount until asked to stop or unmounted from outside."""
    section = process.config.client
    mount = partial(
        run_mount,
        vfs,
        Path(section.mount_point),
        runtime=process.runtime,
        section=section,
        cluster_id=process.config.process.cluster_id,
        root=root,
        sources=process.sources,
    )

    async def stop_when_asked() -> None:
        await process.stopping.wait()
        mounted.cancel_scope.cancel()

    async with trio.open_nursery() as watching:
        watching.start_soon(stop_when_asked)
        async with trio.open_nursery() as mounted:
            replaces = await trio.to_thread.run_sync(_has_left_a_mount, Path(section.mount_point))
            await mounted.start(partial(mount, replaces=replaces))
            process.ready()
        watching.cancel_scope.cancel()


if __name__ == "__main__":
    main(run)
