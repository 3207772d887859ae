"""Engines under test behind one face, and a plain model of a transactional map."""

import os
import random
import subprocess
import uuid
from collections.abc import Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import trio

from fs.kv.api import KeyValue, KvEngine
from fs.kv.buffer import add_to
from fs.kv.foundationdb import FoundationDbEngine, open_engine
from fs.kv.local import LocalEngine
from fs.kv.memory import MemoryEngine
from fs.kv.remote import RemoteEngine
from fs.kv.remote_server import KvService
from fs.kv.rocksdb import RocksDbEngine
from fs.kv.transact import snapshot_read
from fs.rpc.api import Identity
from fs.rpc.channel import open_channels
from fs.rpc.server import Server
from fs.rpc.transport_memory import DelayRange, MemoryNetwork
from fs.runtime.ports import Runtime, Stream, StreamHandler
from fs.runtime.real import RealClock
from fs.schema.config import KvSection, RpcSection
from tests.kv.fake_fdb import session
from tests.kv.stepping import open_stepped

CLUSTER_ID = "test-cluster"
CHOSEN_KIND = os.environ.get("EMBER_TEST_KV", "")
"""The one kind of engine to test on (`ember test --kv`);
empty: each suite on what it usually runs on.
"""
SOME_DELAY = DelayRange()
NO_DELAY = DelayRange(0.0, 0.0)
"""For suites that say how much virtual time something takes, whatever the store."""


class NoNetwork:
    async def connect(self, address: str, **_: object) -> Stream:
        raise AssertionError(f"no network in these tests: {address}")

    async def serve(self, address: str, handler: StreamHandler, **_: object) -> None:
        raise AssertionError(f"no network in these tests: {address} {handler}")


async def run_inline(function: Callable, /, *args: object):
    await trio.lowlevel.checkpoint()
    return function(*args)


def inline_runtime(seed: int = 1) -> Runtime:
    """trio's clock (real or mock), blocking calls on the event loop."""
    return Runtime(RealClock(), NoNetwork(), run_inline, random.Random(seed))


class Served:
    """An engine served to others over a network in memory;
    each client has a connection of its own.
    """

    ADDRESS = "mem:kv"

    def __init__(self, engine: LocalEngine, seed: int = 1, delay: DelayRange = SOME_DELAY) -> None:
        self.engine = engine
        self.network = MemoryNetwork(seed, delay=delay)
        self.boot = 1
        self.client_count = 0
        self.service: KvService
        self._seed = seed
        self._life: trio.CancelScope | None = None

    async def start(self, nursery: trio.Nursery) -> None:
        """Serve as a new process."""
        self._seed += 1
        runtime = inline_runtime(self._seed)
        self.service = KvService(self.engine, runtime, boot=self.boot)
        self._life = await nursery.start(self._run)

    async def _run(self, task_status: trio.TaskStatus) -> None:
        server = Server(Identity(CLUSTER_ID), RpcSection())
        server.add_service("Kv", self.service)
        server.on_disconnect = self.service.forget
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                await nursery.start(self.service.run)
                await nursery.start(server.run, self.network.endpoint("kv"), self.ADDRESS)
                task_status.started(scope)
                await trio.sleep_forever()

    def kill(self) -> None:
        """End the process: what was not answered is never answered."""
        assert self._life is not None
        self._life.cancel()
        self.network.kill("kv")

    @asynccontextmanager
    async def client(self, name: str = ""):
        """A process that uses the store."""
        self.client_count += 1
        name = name or f"client-{self.client_count}"
        inline = inline_runtime(self.client_count + 100)
        network = self.network.endpoint(name)
        runtime = Runtime(inline.clock, network, inline.run_blocking, inline.random)
        identity = Identity(CLUSTER_ID, client_id=name)
        async with open_channels(runtime, identity, RpcSection()) as channels:
            yield RemoteEngine(channels.get(self.ADDRESS), self.ADDRESS, runtime)

    async def hold_client(self, name: str = "", *, task_status: trio.TaskStatus) -> None:
        """Keep a client until the scope that is reported beside it is cancelled."""
        with trio.CancelScope() as scope:
            async with self.client(name) as engine:
                task_status.started((engine, scope))
                await trio.sleep_forever()


async def open_foundationdb(
    runtime: Runtime, nursery: trio.Nursery, cluster_id: str = ""
) -> FoundationDbEngine:
    """Open FoundationDB, real or fake, under a prefix of its own;
    virtual time does not pass any more while it is waited for.
    """
    section = KvSection(cluster_file=session.cluster_file())
    cluster_id = cluster_id or f"test-{uuid.uuid4().hex}"
    return await open_stepped(
        nursery, partial(open_engine, section, runtime, cluster_id=cluster_id)
    )


class Lab:
    """One engine that can be closed and opened again."""

    def __init__(self, kind: str, path: Path, nursery: trio.Nursery) -> None:
        self.kind = kind
        self.runtime = inline_runtime()
        self.engine: KvEngine
        self._path = path
        self._nursery = nursery
        self._runner: trio.CancelScope | None = None
        self._memory: MemoryEngine | None = None
        self._cluster_id = f"test-{uuid.uuid4().hex}"

    async def open(self) -> KvEngine:
        if self.kind == "memory":
            self._memory = self._memory or MemoryEngine(self.runtime.clock)
            self.engine = self._memory
        elif self.kind in {"rocksdb", "remote"}:
            engine = await RocksDbEngine.open(
                str(self._path), KvSection(), self.runtime, cluster_id=CLUSTER_ID
            )
            self._runner = await self._nursery.start(_run_in_scope, engine)
            self.engine = engine
            if self.kind == "remote":
                await self._serve(engine)
        else:
            self.engine = await open_foundationdb(self.runtime, self._nursery, self._cluster_id)
        return self.engine

    async def _serve(self, engine: RocksDbEngine) -> None:
        delay = NO_DELAY if CHOSEN_KIND else SOME_DELAY
        self._local, self._served = engine, Served(engine, delay=delay)
        await self._served.start(self._nursery)
        self.engine, self._client = await self._nursery.start(self._served.hold_client)
        await snapshot_read(self.engine, lambda tr: tr.get(b""))  # learns where the store stands

    async def close(self) -> None:
        if self._runner is not None:
            self._runner.cancel()
        await self.engine.aclose()
        if self.kind == "remote":
            self._client.cancel()
            self._served.kill()
            await self._local.aclose()

    async def clean(self) -> None:
        """Leave nothing behind in a store that others use, too."""
        if isinstance(self.engine, FoundationDbEngine):
            await self.engine.clear_all()

    async def reopen(self) -> KvEngine:
        await self.close()
        return await self.open()


async def _run_in_scope(engine: RocksDbEngine, task_status: trio.TaskStatus) -> None:
    with trio.CancelScope() as scope:
        task_status.started(scope)
        await engine.run()


class Model:
    """A map as it should be: the operations of a transaction, one after the other."""

    def __init__(self, rows: dict[bytes, bytes] | None = None) -> None:
        self.rows = dict(rows or {})

    def get(self, key: bytes) -> bytes | None:
        return self.rows.get(key)

    def get_range(
        self, begin: bytes, end: bytes, *, limit: int = 0, reverse: bool = False
    ) -> list[KeyValue]:
        inside = sorted(((k, v) for k, v in self.rows.items() if begin <= k < end), reverse=reverse)
        return inside[:limit] if limit else inside

    def set(self, key: bytes, value: bytes) -> None:
        self.rows[key] = value

    def clear(self, key: bytes) -> None:
        self.rows.pop(key, None)

    def clear_range(self, begin: bytes, end: bytes) -> None:
        self.rows = {k: v for k, v in self.rows.items() if not begin <= k < end}

    def atomic_add(self, key: bytes, delta: int) -> None:
        self.rows[key] = add_to(self.rows.get(key), delta)

    def atomic_max(self, key: bytes, value: bytes) -> None:
        old = self.rows.get(key, b"")[: len(value)].ljust(len(value), b"\0")
        number = max(int.from_bytes(old, "little"), int.from_bytes(value, "little"))
        self.rows[key] = number.to_bytes(len(value), "little")


def int_value(value: bytes | None) -> int:
    return int.from_bytes(value or b"", "little", signed=True)


def mounted_tmpfs(path: Path, size_mb: int) -> bool:
    """Make a directory and mount a file system of that size there; False: this user may not."""
    path.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size_mb}m", "tmpfs", str(path)]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0
