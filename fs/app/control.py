"""The control process: mgmtd and meta over one key-value store.

Each also runs alone (mgmtd.py, meta.py), with a store of its own, for they share no
keys, or with that of a kv process.

Backup and check of the store while it is in use read it through the process that holds it: it
offers Kv too, if only this machine can reach it (a Unix socket, whose folder says who may).
"""

import os
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import trio

from ..client.storage_client import StorageClient
from ..kv.api import KvEngine
from ..kv.foundationdb import FoundationDbEngine
from ..kv.local import LocalEngine
from ..kv.pause import PausableEngine
from ..kv.remote_server import KvService
from ..meta.init import initialise, storage_level_min
from ..meta.meta import Meta
from ..mgmtd.main import Mgmtd
from ..node.membership import Membership
from ..node.user_guard import ask_manager
from ..runtime.background import open_background
from ..schema.config import is_on_this_machine
from ..schema.ids import ClientId
from ..schema.proto.mgmtd_pb2 import ListMovesRsp
from ..schema.routing import Role
from .monitoring.status_page import Taken, documents
from .process.compose import Process, main
from .process.kept_settings import begin_from_store
from .process.starting import wait_for_store
from .stores.kept_store import check_there, note_there
from .stores.store import boot_number, open_store
from .supervision.quiet import hear_of_stop

Loop = Callable[..., Awaitable[None]]


async def run(process: Process) -> None:
    """Run both services until asked to stop."""
    await run_roles(process, frozenset({Role.MGMTD, Role.META}))


async def run_roles(process: Process, roles: frozenset[Role]) -> None:
    """Run the given services over the configured store until asked to stop."""
    if Role.META in roles:
        process.look_before_sleep()
    check_there(process.config)
    async with open_store(process, waits=True) as engine, open_background() as nursery:
        nursery.start_soon(note_there, process.config, process.runtime)
        await begin_from_store(process, engine)
        await serve_control(process, roles, engine)


def owner_of_the_root(listen: str) -> tuple[int, int]:
    """Return who owns a new file system's root directory, user and group.

    A cluster of this machine only belongs to who starts it.  One that others reach belongs to root:
    which user its service runs as, in a container say, means nothing to those who mount it.
    """
    if is_on_this_machine(listen):
        return os.geteuid(), os.getegid()
    return 0, 0


async def make_meta(
    process: Process, engine: KvEngine, membership: Membership, chunks: StorageClient
) -> Meta:
    """Return the metadata service, its records made when the store is new."""
    config = process.config
    uid, gid = owner_of_the_root(config.process.listen)
    if isinstance(engine, FoundationDbEngine):  # which keeps no state for as long as a backup reads
        engine = PausableEngine(engine, process.runtime.clock)
    make = partial(
        initialise,
        engine,
        runtime=process.runtime,
        cluster_id=config.process.cluster_id,
        config=config.meta,
        uid=uid,
        gid=gid,
    )
    await wait_for_store(process, make)
    membership.require_storage(
        await wait_for_store(process, partial(storage_level_min, engine, config.process.cluster_id))
    )
    return Meta(engine, process.runtime, config, membership.routing, chunks, membership.caller)


def make_chunks(process: Process, membership: Membership) -> StorageClient:
    """Return the metadata service's client of the storage nodes."""
    return StorageClient(
        ClientId(process.identity.client_id),
        channels=process.channels,
        routing=membership.routing,
        mgmtd=membership.caller,
        runtime=process.runtime,
        section=process.config.client,
        gives_way=True,
    )


def _status(process: Process, mgmtd: Mgmtd, membership: Membership) -> Taken:
    """Return what a manager knows of the cluster; the acting one first hand."""
    known = mgmtd.known()
    return Taken(
        known[0] if known else membership.routing.info,
        known[1] if known else ListMovesRsp(),
        process.identity.node_id,
        known is not None,
        process.identity.release,
        process.runtime.clock.wall_ns(),
    )


async def _run_meta(
    process: Process,
    meta: Meta,
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Run the loops of the metadata service; a store that is away at the start is waited for."""
    async with trio.open_nursery() as nursery:
        await wait_for_store(process, partial(nursery.start, meta.run))
        task_status.started()


async def serve_control(process: Process, roles: frozenset[Role], engine: KvEngine) -> None:
    """Run the given services over an open store until asked to stop; the caller owns it."""
    config, node = process.config, process.node(roles)
    membership = Membership(process.runtime, config, node, process.channels)
    process.join(membership)
    process.sources.append(membership.say)
    process.margins_s.append(lambda: membership.lease.margin_s)
    targets: dict[str, Any] = {}
    loops: list[Loop] = []
    find_tokens = ask_manager(membership.caller)
    if Role.MGMTD in roles:
        mgmtd = Mgmtd(engine, process.runtime, config, node, process.channels)
        targets["Mgmtd"] = mgmtd.service
        process.sources.append(mgmtd.say)
        process.follow(lambda new: mgmtd.adopt(new.mgmtd))
        known = partial(_status, process, mgmtd, membership)
        process.documents.update(documents(known, process.runtime.clock.monotonic_s))
        loops += [mgmtd.run, partial(hear_of_stop, mgmtd)]
        find_tokens = mgmtd.find_tokens
    loops.append(membership.run)
    if process.kept is not None:
        loops.append(process.kept.run)
    if Role.META in roles:
        chunks = make_chunks(process, membership)
        meta = await make_meta(process, engine, membership, chunks)
        meta.gc.tracer = process.tracer
        targets["Meta"] = meta.service
        process.sources.append(meta.say)
        process.follow(lambda new: meta.adopt(new.meta))
        process.follow(lambda new: chunks.adopt(new.client))
        loops += [chunks.run, partial(_run_meta, process, meta)]
    if process.guard is not None:
        process.guard.find = find_tokens
        loops.append(process.guard.run)
    store: KvService | None = None
    if isinstance(engine, LocalEngine) and config.process.listen.startswith("unix:"):
        store = targets["Kv"] = KvService(engine, process.runtime, boot=boot_number())
        loops.append(store.run)
        process.sources.append(store.say)
    server = process.server(targets)
    if store is not None:
        server.on_disconnect = store.forget
    async with trio.open_nursery() as nursery:
        await nursery.start(server.run, process.runtime.network, config.process.listen)
        for loop in loops:
            await nursery.start(loop)
        process.ready()
        await process.stopping.wait()
        if Role.MGMTD not in roles:
            await membership.announce_stop()
        nursery.cancel_scope.cancel()


if __name__ == "__main__":
    main(run)
