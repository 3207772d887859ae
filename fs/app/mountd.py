"""The mount daemon: a native client, the vfs on top, FUSE around it.

Ends when asked to (after flushing everything), or with exit code 0 when somebody unmounts from outside.
"""

import os
import socket
from functools import partial
from pathlib import Path

import trio

from ..client.fuse.mount import run_mount
from ..client.meta_client import MetaClient
from ..client.storage_client import StorageClient
from ..client.vfs.vfs import Vfs
from ..node.client_session import ClientSessionKeeper
from ..node.mgmtd_link import MgmtdLink
from ..node.routing_cache import RoutingCache
from ..schema.ids import ClientId
from ..schema.status import FsError, Status
from .compose import Process, main
from .release import RELEASE


async def run(process: Process) -> None:
    """Mount, serve, unmount."""
    config, runtime = process.config, process.runtime
    if not config.client.mount_point:
        raise FsError(Status.BAD_CONFIG, "client.mount_point: where shall this daemon mount?")
    link = MgmtdLink(process.channels, config.process.mgmtd_addresses, runtime)
    routing = RoutingCache(link, runtime)
    session = ClientSessionKeeper(
        link,
        runtime,
        ClientId(process.identity.client_id),
        host_name=socket.gethostname(),
        mount_point=config.client.mount_point,
        pid=os.getpid(),
        release=RELEASE,
    )
    async with trio.open_nursery() as nursery:
        nursery.start_soon(routing.run)
        await nursery.start(session.run)
        await routing.wait_newer(0)
        await _serve(process, make_vfs(process, link, routing))
        nursery.cancel_scope.cancel()


def make_vfs(process: Process, link: MgmtdLink, routing: RoutingCache) -> Vfs:
    """Return the vfs over a native client."""
    client_id, section = ClientId(process.identity.client_id), process.config.client
    meta = MetaClient(
        client_id,
        channels=process.channels,
        routing=routing,
        runtime=process.runtime,
        section=section,
    )
    chunks = StorageClient(
        client_id,
        channels=process.channels,
        routing=routing,
        mgmtd=link,
        runtime=process.runtime,
        section=section,
    )
    return Vfs(meta, chunks, process.runtime, section)


async def _serve(process: Process, vfs: Vfs) -> None:
    """Mount until asked to stop or unmounted from outside."""
    section = process.config.client
    mount = partial(
        run_mount,
        vfs,
        Path(section.mount_point),
        runtime=process.runtime,
        section=section,
        cluster_id=process.config.process.cluster_id,
    )

    async def stop_when_asked() -> None:
        await process.stopping.wait()
        mounted.cancel_scope.cancel()

    async with trio.open_nursery() as watching:
        watching.start_soon(stop_when_asked)
        async with trio.open_nursery() as mounted:
            await mounted.start(mount)
            process.ready()
        watching.cancel_scope.cancel()


if __name__ == "__main__":
    main(run)
