"""The metadata service alone: one process over an embedded store,
its RPCs called as fast as one or eight callers can.

Part of benchmarks/meta.py.  The chunks and the routing it needs are
stand-ins: nothing here has content.
"""

import os
import time
from collections.abc import Awaitable, Callable
from multiprocessing.context import SpawnContext
from multiprocessing.queues import Queue
from typing import Any, NoReturn

import trio

from fs.kv.rocksdb import RocksDbEngine
from fs.meta.init import initialise
from fs.meta.meta import Meta
from fs.rpc.api import Identity
from fs.rpc.channel import RpcChannel, open_channels
from fs.rpc.server import Server
from fs.rpc.transport import SocketNetwork
from fs.runtime.real import real_runtime
from fs.schema import services
from fs.schema.config import KvSection, ProcessConfig, RpcSection
from fs.schema.ids import ROOT_INODE_ID
from fs.schema.layout import FileRef
from fs.schema.method import Method
from fs.schema.proto import meta_pb2 as meta
from fs.schema.proto.common_pb2 import CallerPb
from fs.schema.proto.mgmtd_pb2 import ListClientSessionsRsp
from fs.schema.routing import ChainTable, RoutingInfo

from .machine import processor_s
from .table import Row

CLUSTER_ID = "benchmark"
IDENTITY = Identity("benchmark", 1)
PAGE_COUNT = 512

Request = tuple[Method[Any, Any], Any]


class NoChunks:
    """A ChunkPort of files without content."""

    async def remove_files(self, _files: list[FileRef]) -> None:
        """Nothing is there."""

    async def truncate_file(self, *_arguments: object) -> None:
        """Nothing is there."""

    async def fill_file(self, *_arguments: object) -> None:
        """Nothing is kept."""

    async def file_length(self, _file: FileRef) -> tuple[int, int]:
        """Nothing is there."""
        return 0, 0

    async def space(self) -> tuple[int, int]:
        """An empty cluster."""
        return 1 << 40, 1 << 40


class FixedRouting:
    """A RoutingView of one chain table that never changes."""

    info = RoutingInfo(1, CLUSTER_ID, chain_tables={(1, 1): ChainTable(1, 1, (101, 102, 103))})

    async def wait_newer(self, _routing_version: int) -> NoReturn:
        """Nothing changes."""
        await trio.sleep_forever()
        raise AssertionError("woken up")

    async def refresh(self) -> RoutingInfo:
        """Nothing changes."""
        return self.info


class NobodyElse:
    """A MgmtdCaller that knows no clients."""

    async def call(self, *_arguments: object, **_options: object) -> ListClientSessionsRsp:
        """Not complete: so nobody is taken for dead."""
        return ListClientSessionsRsp()


def serve(folder: str, bound: "Queue[str]") -> None:
    """Process: a metadata service at a Unix socket in `folder`."""

    async def main() -> None:
        runtime = real_runtime(SocketNetwork())
        config = ProcessConfig()
        engine = await RocksDbEngine.open(
            f"{folder}/kv", KvSection(), runtime, cluster_id=CLUSTER_ID
        )
        await initialise(engine, runtime=runtime, cluster_id=CLUSTER_ID, config=config.meta)
        made = Meta(engine, runtime, config, FixedRouting(), NoChunks(), NobodyElse())  # type: ignore[arg-type]
        server = Server(IDENTITY, RpcSection())
        server.add_service("Meta", made.service)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(engine.run)
            nursery.start_soon(made.service.inode_ids.prefetch_when_low)
            address = f"unix:{folder}/meta"
            bound.put(await nursery.start(server.run, runtime.network, address))

    trio.run(main)


def _caller() -> CallerPb:
    return CallerPb(client_id="c" * 32, request_id=os.urandom(16))


def _create(parent: int, i: int) -> Request:
    session = meta.FileSessionPb(session_id=os.urandom(16).hex(), is_write=True)
    return services.META_CREATE, meta.CreateReq(
        caller=_caller(),
        parent_inode_id=parent,
        name=b"f%d" % i,
        mode=0o644,
        wants_write=True,
        session=session,
    )


def _lookup(parent: int, i: int) -> Request:
    request = meta.LookupReq(caller=_caller(), parent_inode_id=parent, name=b"f%d" % i)
    return services.META_LOOKUP, request


def _get_attr(parent: int, _i: int) -> Request:
    return services.META_GET_ATTR, meta.GetAttrReq(caller=_caller(), inode_id=parent)


def _list(parent: int, _i: int) -> Request:
    request = meta.ListReq(
        caller=_caller(), inode_id=parent, entry_count_max=PAGE_COUNT, with_inodes=True
    )
    return services.META_LIST, request


def _rename(parent: int, i: int) -> Request:
    return services.META_RENAME, meta.RenameReq(
        caller=_caller(),
        old_parent_inode_id=parent,
        old_name=b"f%d" % i,
        new_parent_inode_id=parent,
        new_name=b"r%d" % i,
    )


def _unlink(parent: int, i: int) -> Request:
    request = meta.UnlinkReq(caller=_caller(), parent_inode_id=parent, name=b"r%d" % i)
    return services.META_UNLINK, request


def _mkdir(parent: int, i: int) -> Request:
    request = meta.MkdirReq(caller=_caller(), parent_inode_id=parent, name=b"d%d" % i, mode=0o755)
    return services.META_MKDIR, request


KINDS: dict[str, Callable[[int, int], Request]] = {
    "create": _create,
    "lookup": _lookup,
    "getattr": _get_attr,
    "list of 512": _list,
    "rename": _rename,
    "unlink": _unlink,
    "mkdir": _mkdir,
}
LIST_SHARE = 20
"""One listing for so many other calls."""


async def _measure(address: str, pid: int, workers: tuple[int, ...], count: int) -> list[Row]:
    rows = []
    runtime = real_runtime(SocketNetwork())
    async with open_channels(runtime, IDENTITY, RpcSection()) as channels:
        channel = channels.get(address)
        for worker_count in workers:
            parents = [await _parent(channel, worker_count, i) for i in range(worker_count)]
            for name, kind in KINDS.items():
                per_worker = count // worker_count // (LIST_SHARE if kind is _list else 1)
                used_s, began = processor_s(pid), time.perf_counter()
                async with trio.open_nursery() as nursery:
                    for parent in parents:
                        nursery.start_soon(_call_all, channel, kind, parent, per_worker)
                took_s = time.perf_counter() - began
                used_s = processor_s(pid) - used_s
                done = per_worker * worker_count
                label = f"service alone, {worker_count}: {name}"
                rows.append(Row(label, done / took_s, "/s"))
                if used_s:
                    rows.append(Row(f"{label}, of one core", done / used_s, "/s"))
    return rows


async def _parent(channel: RpcChannel, worker_count: int, i: int) -> int:
    name = b"p%d-%d" % (worker_count, i)
    request = meta.MkdirReq(caller=_caller(), parent_inode_id=ROOT_INODE_ID, name=name, mode=0o755)
    return int((await channel.call(services.META_MKDIR, request)).message.inode.inode_id)


async def _call_all(
    channel: RpcChannel, kind: Callable[[int, int], Request], parent: int, count: int
) -> None:
    call: Callable[..., Awaitable[object]] = channel.call
    for i in range(count):
        await call(*kind(parent, i))


def alone(context: SpawnContext, folder: str, workers: tuple[int, ...], count: int) -> list[Row]:
    """Start a service and measure it with so many callers at a time."""
    bound: Queue[str] = context.Queue()
    process = context.Process(target=serve, args=(folder, bound), daemon=True)
    process.start()
    try:
        address = bound.get(timeout=60)
        assert process.pid is not None
        return trio.run(_measure, address, process.pid, workers, count)
    finally:
        process.kill()
        process.join()
