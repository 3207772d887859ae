"""The key-value store that a process is configured with:
opened, kept durable in the background, closed.

`rocksdb` is the store itself and belongs to this process alone; `remote` is the one that a kv
process serves; `foundationdb` is a cluster of its own; `memory` keeps nothing and is for trials.
"""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import trio

from ...kv.api import KvEngine
from ...kv.disk_watch import DiskWatch
from ...kv.foundationdb import FoundationDbEngine, open_engine
from ...kv.memory import MemoryEngine
from ...kv.remote import RemoteEngine
from ...kv.rocksdb import RocksDbEngine
from ...kv.rocksdb_reader import RocksDbReader
from ...mgmtd.store import KEY_BEGINNINGS
from ...runtime.background import open_background
from ...runtime.ports import Runtime
from ...runtime.real import BOOT_ID_PATH
from ...schema.config import KvSection
from ...schema.status import FsError, Status
from ..process.compose import Process
from ..process.starting import wait_for_store
from .abandon import abandon


def boot_number() -> int:
    """Return a number that is another one after each start of the machine."""
    return int(BOOT_ID_PATH.read_text().strip().replace("-", "")[:16], 16)


@asynccontextmanager
async def _closing(engine: KvEngine) -> AsyncIterator[None]:
    """Close an engine at the end of the block, also of one that is cancelled."""
    try:
        yield
    finally:
        with trio.CancelScope(shield=True):
            await engine.aclose()


@asynccontextmanager
async def open_local_store(process: Process) -> AsyncIterator[RocksDbEngine]:
    """Open the store in `kv.path` for the length of the block.

    Commits that nobody waits for reach the disk within
    kv.group_sync_interval_s while the block lasts.

    A disk that does not answer ends the process (kv.disk_hang_s): its callers are refused,
    instead of waiting without an end.

    Raises:
        FsError: BAD_CONFIG; what RocksDbEngine.open says; IO_ERROR, ending the
            block, when the disk fails.
    """
    section = process.config.kv
    if not section.path:
        raise FsError(Status.BAD_CONFIG, "kv.path: where does this process keep its store?")
    await trio.Path(section.path).mkdir(mode=0o700, parents=True, exist_ok=True)
    async with _watch(section, process.runtime) as watch:
        with watch.under_way("opening"):
            engine = await RocksDbEngine.open(
                section.path,
                section,
                process.runtime,
                cluster_id=process.config.process.cluster_id,
                spared=KEY_BEGINNINGS,
            )
        engine.watch = watch
        async with _closing(engine), open_background() as nursery:
            await nursery.start(engine.run)
            yield engine


@asynccontextmanager
async def _watch(section: KvSection, runtime: Runtime) -> AsyncIterator[DiskWatch]:
    """Look after the store's disk until the block has ended, also while it ends."""

    def on_hang(age_s: float) -> None:
        abandon(
            f"{section.path} does not answer for {age_s:.0f} s: this process ends, and can begin "
            "again when the disk answers"
        )

    watch = DiskWatch(section.path, section.disk_hang_s)
    async with open_background() as nursery:
        nursery.start_soon(runtime.run_blocking, watch.run, on_hang)
        try:
            await _open_watch(watch, section.path, runtime)
            yield watch
        finally:
            watch.end()


async def _open_watch(watch: DiskWatch, path: str, runtime: Runtime) -> None:
    try:
        with watch.under_way("opening"):
            await runtime.run_blocking(watch.open)
    except OSError as error:
        raise FsError(Status.IO_ERROR, f"{path}: {error.strerror}") from error


@asynccontextmanager
async def open_local_reader(process: Process) -> AsyncIterator[RocksDbReader]:
    """Open the store in `kv.path` for reading, whether its process serves it or not;
    raises what RocksDbReader.open says.
    """
    cluster_id = process.config.process.cluster_id
    path = process.config.kv.path
    engine = await RocksDbReader.open(path, process.runtime, cluster_id=cluster_id)
    async with _closing(engine):
        yield engine


@asynccontextmanager
async def _open_remote_store(process: Process) -> AsyncIterator[RemoteEngine]:
    address = process.config.kv.address
    engine = RemoteEngine(process.channels.get(address), address, process.runtime)
    async with _closing(engine), open_background() as nursery:
        await nursery.start(engine.run)
        yield engine


@asynccontextmanager
async def open_foundationdb(
    section: KvSection, runtime: Runtime, cluster_id: str
) -> AsyncIterator[FoundationDbEngine]:
    """Open FoundationDB for the length of the block;
    raises what fs.kv.foundationdb.open_engine says.
    """
    engine = await open_engine(section, runtime, cluster_id=cluster_id)
    async with _closing(engine):
        yield engine


@asynccontextmanager
async def open_store(process: Process, *, waits: bool = False) -> AsyncIterator[KvEngine]:
    """Open the store that kv.engine names for the length of the block;
    with `waits`, wait for one that is away.

    Raises:
        FsError: as `open_local_store` and `open_foundationdb`; a remote store that is away
            raises nothing until it is used.
    """
    match process.config.kv.engine:
        case "remote":
            async with _open_remote_store(process) as remote:
                yield remote
        case "foundationdb":
            async with AsyncExitStack() as stack:

                async def enter() -> FoundationDbEngine:
                    cluster_id = process.config.process.cluster_id
                    opened = open_foundationdb(process.config.kv, process.runtime, cluster_id)
                    return await stack.enter_async_context(opened)

                yield await (wait_for_store(process, enter) if waits else enter())
        case "memory":
            yield MemoryEngine(process.runtime.clock)
        case _:
            async with open_local_store(process) as local:
                yield local
