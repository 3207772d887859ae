"""The storage process: one chunk engine per disk, the CRAQ service over them,
membership in the cluster.
"""

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import trio

from ..chunkengine.api import ChunkEngine
from ..chunkengine.factory import open_engine
from ..chunkengine.flush_probe import require_quick_flushes, wait_for_answer
from ..chunkengine.known_disks import LIST_NAME, KnownDisks
from ..chunkengine.refused import refused_engine
from ..node.membership import Membership
from ..node.user_guard import ask_manager
from ..rpc.slabs import SlabShelf
from ..schema.config import DiskSection
from ..schema.routing import STORAGE_LEVEL, Role
from ..schema.status import FsError, Status
from ..storage.disk_calls import DiskCalls, watched
from ..storage.storage import Storage
from .process.compose import Process, main
from .process.kept_settings import begin_by_asking
from .process.starting import tell_until_joined

log = logging.getLogger(__name__)

WARM_BYTES: Final = 32 << 20
"""Of memory for what is received or read, touched before anybody writes: where a host takes back
what its guests do not use, finding it costs more than all else of a first write.
"""

REFUSALS: Final = {
    Status.FOREIGN_DISK,
    Status.BAD_DISK_FORMAT,
    Status.IO_ERROR,
    Status.NO_SPACE,
    Status.OUT_OF_RESOURCES,
}
"""Of one disk at its opening; the others may serve."""


async def run(process: Process) -> None:
    """Serve the configured disks until asked to stop."""
    await begin_by_asking(process)
    if not process.config.storage.disks:
        raise FsError(Status.BAD_CONFIG, "storage.disks: a storage process needs at least one disk")
    engines: list[ChunkEngine] = []
    known = _known_disks(process)
    calls = make_calls(process)

    async def open_disk(index: int) -> ChunkEngine:
        return await _open(process, process.config.storage.disks[index], known, calls[index])

    async with watched(calls, process.runtime):
        try:
            await open_disks(process, engines, open_disk)
            await serve_storage(process, engines, open_disk, calls, warm_bytes=WARM_BYTES)
        finally:
            with trio.CancelScope(shield=True):
                await _close_all(engines, calls)


def make_calls(process: Process) -> list[DiskCalls]:
    """Return what makes the blocking calls of each disk."""
    section = process.config.storage
    return [DiskCalls(process.runtime, disk.path, section.disk_hang_s) for disk in section.disks]


async def open_disks(
    process: Process, engines: list[ChunkEngine], open_disk: Callable[[int], Awaitable[ChunkEngine]]
) -> None:
    """Open every disk, adding to `engines`; one that is refused is left out of service,
    unless all are.

    Raises:
        FsError: of the first disk, when none can be used; of any, for a
            mistake that is not the disk's.
    """
    errors = []
    for index, disk in enumerate(process.config.storage.disks):
        # Opening one takes long, and is no place to stop.
        await trio.lowlevel.checkpoint_if_cancelled()
        try:
            engines.append(await open_disk(index))
        except FsError as error:
            if error.status not in REFUSALS:
                raise
            log.error("disk %d (%s) is not in use: %s", index, disk.path, error)  # noqa: TRY400 - refused, not a bug
            errors.append(error)
            engines.append(refused_engine(error))
    if len(errors) == len(engines):
        raise errors[0]


def _known_disks(process: Process) -> KnownDisks | None:
    """Return the list of this node's disks; without a directory of its own a node keeps none."""
    directory = process.config.process.directory
    if directory:
        return KnownDisks(Path(directory) / LIST_NAME)
    log.info("process.directory is empty: a disk that is not mounted is taken for a new one")
    return None


async def _open(
    process: Process, disk: DiskSection, known: KnownDisks | None, calls: DiskCalls
) -> ChunkEngine:
    def open_disk() -> ChunkEngine:
        calls.judge.learn_device()
        wait_for_answer(Path(disk.path))
        return open_engine(
            disk.path,
            cluster_id=process.config.process.cluster_id,
            node_id=process.identity.node_id,
            section=process.config.storage,
            target_ids=disk.target_ids,
            known=known,
        )

    # The last line, if what the store reads is never answered.
    log.info("opening disk %s", disk.path)
    return await calls.run(open_disk, undo=lambda engine: engine.close())


async def _close_all(engines: list[ChunkEngine], calls: Sequence[DiskCalls]) -> None:
    """Make every disk durable and release it, but for one that hangs;
    raises the first error after all have been closed.
    """
    errors = []
    for engine, its_calls in zip(engines, calls, strict=False):  # those that were opened
        await its_calls.settle()  # what was begun has no task that would have waited for it
        if its_calls.lost_count:
            errors.append(
                FsError(Status.IO_ERROR, f"{its_calls.judge.path} hangs: it is left as it is")
            )
            continue
        try:
            await its_calls.run(engine.close)
        except FsError as error:
            errors.append(error)
    if errors:
        raise errors[0]


async def serve_storage(
    process: Process,
    engines: list[ChunkEngine],
    open_disk: Callable[[int], Awaitable[ChunkEngine]],
    calls: Sequence[DiskCalls],
    *,
    warm_bytes: int = 0,
) -> None:
    """Serve open disks until asked to stop.

    Args:
        process: this one.
        engines: by disk; they stay the caller's, also one that is put
            here in place of a failed one.
        open_disk: opens the disk of that index, as at the start.
        calls: of the disks; the caller watches them.
        warm_bytes: so much memory for what is received or read is touched at the start.
    """

    async def reopen(index: int) -> ChunkEngine:
        await calls[index].run(engines[index].close)
        if len(engines) > 1:
            await calls[index].run(require_quick_flushes, Path(calls[index].judge.path))
        engines[index] = await open_disk(index)
        return engines[index]

    config = process.config
    node = replace(process.node(frozenset({Role.STORAGE})), storage_level=STORAGE_LEVEL)
    membership = Membership(process.runtime, config, node, process.channels)
    process.margins_s.append(lambda: membership.lease.margin_s)
    shelf = SlabShelf()
    storage = Storage(
        process.runtime,
        config,
        process.identity,
        engines,
        routing=membership.routing,
        lease=membership.lease,
        channels=process.channels,
        mgmtd=membership.caller,
        trigger_heartbeat=membership.trigger,
        reopen=reopen,
        calls=calls,
        shelf=shelf,
    )
    membership.report = storage.report
    membership.report_disks = storage.report_disks
    membership.hear_images = storage.watermarks.hear
    process.join(membership)
    process.follow(lambda new: storage.adopt(new.storage))
    process.sources += [membership.say, storage.say]
    process.relayed_links.append(storage.service.relays.told)
    server = process.server({"Storage": storage.service}, shelf, finish=storage.finish_client)
    for its_calls in calls:
        its_calls.on_hang.append(lambda _error: server.pool.disown())
    if process.guard is not None:
        process.guard.find = ask_manager(membership.caller)
    async with trio.open_nursery() as nursery:
        await nursery.start(server.run, process.runtime.network, config.process.listen)
        await nursery.start(storage.run)
        if process.guard is not None:
            await nursery.start(process.guard.run)
        await nursery.start(membership.run)
        if process.kept is not None:
            await nursery.start(process.kept.run)
        process.ready()
        nursery.start_soon(shelf.warm, warm_bytes, process.runtime.run_blocking)
        nursery.start_soon(tell_until_joined, process, membership)
        await process.stopping.wait()
        await storage.watermarks.raise_last(nursery)
        await membership.announce_stop()
        nursery.cancel_scope.cancel()
    await storage.note_stop()  # nobody is answered any more


if __name__ == "__main__":
    main(run)
