"""A namespace of a million inodes (or as many as wanted), next to one of ten thousand:
what listing and looking up cost.

`python -m benchmarks.meta_scale [--full | --count N] [--dir DIRECTORY]`.  One process holds the
embedded store and the service; figures are operations per second of processor time, so a machine
that others use distorts them little.  The inodes are written straight into the store, all in one
directory up to a million, the rest in directories of a thousand.

What the service does itself is one figure; what it takes when a client asks through a socket is
another, without and with the client's own share (benchmarks/meta_asked.py).
"""

import gc
import os
import random
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import trio

from fs.app.terminal.progress import Progress
from fs.client.vfs.ports import Caller
from fs.client.vfs.vfs import Vfs
from fs.kv.api import Transaction
from fs.kv.rocksdb import RocksDbEngine
from fs.kv.transact import transact
from fs.meta import records
from fs.meta.dentries import store_dentry
from fs.meta.init import initialise
from fs.meta.inodes import store_inode
from fs.meta.meta import Meta
from fs.rpc.api import Call, Identity
from fs.rpc.server import Server, snake_name
from fs.rpc.transport import SocketNetwork
from fs.runtime.real import real_runtime
from fs.schema import services
from fs.schema.config import ClientSection, KvSection, ProcessConfig, RpcSection
from fs.schema.ids import FIRST_INODE_ID, ROOT_INODE_ID, InodeId
from fs.schema.proto import common_pb2 as pb
from fs.schema.proto import meta_pb2 as meta

from .command import bench_command
from .meta_alone import CLUSTER_ID, FixedRouting, NobodyElse, NoChunks, Request
from .meta_asked import ask_apart
from .table import Row

SMALL_COUNT = 10_000
LARGE_COUNT = 1_000_000
IN_ONE_MAX = 1_000_000
PER_DIRECTORY = 1000
PER_TRANSACTION = 2000
LOOKUP_COUNT = 10_000
CHANGE_COUNT = 1000
PAGE_COUNT = 512
PROGRESS_COUNT = 1_000_000
"""Inodes between two lines that say how far the loading is."""
SETTLE_S_MAX = 300.0
STORE_WORK = (
    "num-running-compactions",
    "num-running-flushes",
    "compaction-pending",
    "mem-table-flush-pending",
)
"""Of RocksDB's own threads, by the names of its properties."""
CALLER_COUNTS = (1, 8)
"""Requests that a client has under way through its socket."""
CALL = Call(Identity(CLUSTER_ID), 1, float("inf"))
FIRST_ID = FIRST_INODE_ID + records.TOGETHER_ID_MIN + (1 << 40)
"""Beyond what the service hands out meanwhile."""

ROOT = Caller(0, 0)


class _Direct:
    """A MetaCaller without a wire."""

    client_id = "c" * 32

    def __init__(self, service: object) -> None:
        self._service = service

    async def call(self, method: Any, request: Any, *, timeout_s: float | None = None) -> Any:
        """Call the service as the server would."""
        del timeout_s
        request.caller.client_id = self.client_id
        request.caller.request_id = os.urandom(16)
        return await getattr(self._service, snake_name(method.name))(CALL, request)


class _Namespace:
    """A store with so many files."""

    def __init__(self, engine: RocksDbEngine, made: Meta, file_count: int, address: str) -> None:
        self.engine = engine
        self.address = address
        """Where it is served."""
        self.caller = _Direct(made.service)
        self.file_count = file_count
        self.long_id = FIRST_ID
        self.long_count = min(file_count, IN_ONE_MAX)

    def place(self, index: int) -> tuple[int, bytes]:
        """Return the directory and the name of a file."""
        if index < self.long_count:
            return self.long_id, b"sample-%08d.jpg" % index
        directory = 1 + (index - self.long_count) // PER_DIRECTORY
        return FIRST_ID + directory, b"sample-%08d.jpg" % index

    async def load(self) -> None:
        """Write everything."""
        runtime = real_runtime(SocketNetwork())
        request = meta.GetAttrReq(inode_id=ROOT_INODE_ID)
        root = (await self.caller.call(services.META_GET_ATTR, request)).inode
        last = self.place(self.file_count - 1)[0]
        for directory_id in range(FIRST_ID, last + 1):
            await transact(self.engine, _directory(directory_id, root), runtime=runtime)
        for first in range(0, self.file_count, PER_TRANSACTION):
            batch = range(first, min(first + PER_TRANSACTION, self.file_count))
            await transact(self.engine, self._files(batch, root), runtime=runtime)
            if batch.stop % PROGRESS_COUNT == 0:
                _say(f"{batch.stop:,} of {self.file_count:,} inodes, {_memory_bytes() >> 20} MiB")

    def _files(self, batch: range, root: pb.InodePb) -> Callable[[Transaction], Awaitable[None]]:
        layout = root.directory.default_layout

        async def write(tr: Transaction) -> None:
            for index in batch:
                parent, name = self.place(index)
                inode = pb.InodePb(
                    inode_id=self.file_id(index), type=pb.FILE, mode=0o644, nlink=1, btime_ns=1
                )
                inode.file.layout.CopyFrom(layout)
                inode.home_inode_id = parent
                store_inode(tr, inode)
                store_dentry(tr, parent, name, inode)
                tr.atomic_add(records.usage_key(parent, records.KIND_FILES), 1)
            tr.atomic_add(records.usage_key(ROOT_INODE_ID, records.KIND_FILES), len(batch))
            tr.atomic_add(records.INODE_COUNT_KEY, len(batch))

        return write

    @staticmethod
    def file_id(index: int) -> int:
        """Return the id of a file."""
        return FIRST_ID + (1 << 32) + index


def _directory(directory_id: int, root: pb.InodePb) -> Callable[[Transaction], Awaitable[None]]:
    inode = pb.InodePb(inode_id=directory_id, type=pb.DIRECTORY, mode=0o755, nlink=2, btime_ns=1)
    inode.directory.parent_inode_id = ROOT_INODE_ID
    inode.directory.name = b"d%d" % directory_id
    inode.directory.default_layout.CopyFrom(root.directory.default_layout)

    async def write(tr: Transaction) -> None:
        store_inode(tr, inode)
        store_dentry(tr, ROOT_INODE_ID, inode.directory.name, inode)
        tr.atomic_add(records.subdirectory_count_key(ROOT_INODE_ID), 1)
        tr.atomic_add(records.usage_key(ROOT_INODE_ID, records.KIND_DIRECTORIES), 1)
        tr.atomic_add(records.INODE_COUNT_KEY, 1)

    return write


@asynccontextmanager
async def _namespace(folder: str, file_count: int) -> AsyncIterator[_Namespace]:
    runtime, config = real_runtime(SocketNetwork()), ProcessConfig()
    engine = await RocksDbEngine.open(folder, KvSection(), runtime, cluster_id=CLUSTER_ID)
    try:
        await initialise(engine, runtime=runtime, cluster_id=CLUSTER_ID, config=config.meta)
        made = Meta(engine, runtime, config, FixedRouting(), NoChunks(), NobodyElse())  # type: ignore[arg-type]
        server = Server(Identity(CLUSTER_ID, 1), RpcSection())
        server.add_service("Meta", made.service)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(engine.run)
            address = await nursery.start(server.run, runtime.network, f"unix:{folder}.socket")
            yield _Namespace(engine, made, file_count, address)
            nursery.cancel_scope.cancel()
    finally:
        await engine.aclose()


def _say(text: str) -> None:
    """Say how far it is, beside the table that is printed in the end."""
    sys.stderr.write(text + "\n")


def _memory_bytes() -> int:
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def _per_second(count: int, work: Awaitable[object]) -> float:
    began = time.process_time()
    await work
    return count / (time.process_time() - began)


async def _settle(found: _Namespace) -> None:
    """Wait until the store has sorted what was loaded, which would count as what reading costs."""
    store = found.engine._db  # noqa: SLF001 - only RocksDB knows
    with trio.move_on_after(SETTLE_S_MAX):
        while any(store.property_int_value(f"rocksdb.{name}") for name in STORE_WORK):  # noqa: ASYNC110 - nobody tells
            await trio.sleep(0.1)


async def _list_all(found: _Namespace) -> None:
    request = meta.ListReq(inode_id=found.long_id, entry_count_max=PAGE_COUNT, with_inodes=True)
    count = 0
    while True:
        page = await found.caller.call(services.META_LIST, request)
        count += len(page.entries)
        if not page.has_more:
            break
        request.after = page.entries[-1].name
    assert count == found.long_count, count


def _lookup(found: _Namespace, index: int) -> Request:
    parent, name = found.place(index)
    return services.META_LOOKUP, meta.LookupReq(parent_inode_id=parent, name=name)


def _get_attr(found: _Namespace, index: int) -> Request:
    return services.META_GET_ATTR, meta.GetAttrReq(inode_id=found.file_id(index))


READS = {"lookup at random": _lookup, "getattr at random": _get_attr}


async def _read(
    found: _Namespace, kind: Callable[[_Namespace, int], Request], generator: random.Random
) -> None:
    for _ in range(LOOKUP_COUNT):
        await found.caller.call(*kind(found, generator.randrange(found.file_count)))


async def _read_apart(
    found: _Namespace, name: str, generator: random.Random
) -> dict[str, tuple[float, str]]:
    """Return what reads cost when a client asks for them through its socket."""
    figures = {}
    for caller_count in CALLER_COUNTS:
        indexes = [generator.randrange(found.file_count) for _ in range(LOOKUP_COUNT)]
        requests = [READS[name](found, index) for index in indexes]
        service_s, client_s = await ask_apart(found.address, requests, caller_count)
        label = f"{name}, by socket, {caller_count} at once"
        figures[f"{label}: service"] = LOOKUP_COUNT / service_s, "/s"
        figures[f"{label}: service and client"] = LOOKUP_COUNT / (service_s + client_s), "/s"
    return figures


async def _create(found: _Namespace, _generator: random.Random) -> None:
    for i in range(CHANGE_COUNT):
        request = meta.CreateReq(parent_inode_id=found.long_id, name=b"new-%d" % i, mode=0o644)
        await found.caller.call(services.META_CREATE, request)


async def _unlink(found: _Namespace, _generator: random.Random) -> None:
    for i in range(CHANGE_COUNT):
        request = meta.UnlinkReq(parent_inode_id=found.long_id, name=b"new-%d" % i)
        await found.caller.call(services.META_UNLINK, request)


async def _mount_memory(found: _Namespace, *, gives: bool) -> float:
    """Return the bytes that a mount keeps for each entry of a listing;
    `gives`: whose attributes the kernel takes.
    """
    runtime = real_runtime(SocketNetwork())
    vfs = Vfs(found.caller, NoChunks(), runtime, ClientSection())  # type: ignore[arg-type]
    handle_id, cookie = vfs.directories.opendir(InodeId(found.long_id), ROOT), 0
    before = _memory_bytes()
    while page := await vfs.directories.readdir(handle_id, cookie):
        cookie = page[-1].cookie
        if gives:
            for entry in page:
                vfs.namespace.give_listed(InodeId(found.long_id), entry.name, entry.inode)
    grown = _memory_bytes() - before
    vfs.directories.releasedir(handle_id)
    return grown / found.long_count


async def measure_one(folder: str, file_count: int) -> dict[str, tuple[float, str]]:
    """Return the figures of one namespace, by name, with their units."""
    generator = random.Random(1)  # noqa: S311 - not a secret
    async with _namespace(folder, file_count) as found:
        figures = {"inodes written": (await _per_second(file_count, found.load()), "/s")}
        await _settle(found)
        before = _memory_bytes()
        rate = await _per_second(found.long_count, _list_all(found))
        figures["listed with attributes"] = rate, "entries/s"
        figures["memory that the listing took"] = (_memory_bytes() - before) / (1 << 20), "MiB"
        for name, kind in READS.items():
            rate = await _per_second(LOOKUP_COUNT, _read(found, kind, generator))
            figures[name] = rate, "/s"
            figures |= await _read_apart(found, name, generator)
        for name, work in (("create", _create), ("unlink", _unlink)):
            rate = await _per_second(CHANGE_COUNT, work(found, generator))
            figures[name] = rate, "/s"
            if file_count > PROGRESS_COUNT:
                _say(f"{name}: {figures[name][0]:,.0f}/s")
        for name, gives in (("listed", False), ("cached by the kernel", True)):
            held = await _mount_memory(found, gives=gives)
            figures[f"memory of the mount for each entry {name}"] = held, "bytes"
    return figures


def measure(file_count: int, parent: Path | None, progress: Progress) -> list[Row]:
    """Measure both namespaces; the small one's figures stand as the limit."""
    with tempfile.TemporaryDirectory(prefix="ember-scale-", dir=parent) as folder:
        progress.step(f"meta_scale: {SMALL_COUNT:,} inodes")
        small = trio.run(measure_one, f"{folder}/small", SMALL_COUNT)
        progress.step(f"meta_scale: {file_count:,} inodes")
        large = trio.run(measure_one, f"{folder}/large", file_count)
    return [
        Row(f"{name} (of {SMALL_COUNT:,} inodes)", value, unit, small[name][0], goal=0.5)
        if unit.endswith("/s")
        else Row(name, value, unit)
        for name, (value, unit) in large.items()
    ]


if __name__ == "__main__":
    amount = "inodes of the large namespace"
    counts = (LARGE_COUNT, 10 * LARGE_COUNT)
    sys.exit(bench_command("meta_scale", __doc__, counts, measure, amount=amount))
