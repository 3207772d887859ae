"""Engines under test behind one face, and a plain model of a transactional map."""

import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest
import trio

from fs.kv.api import KeyValue, KvEngine
from fs.kv.buffer import add_to
from fs.kv.memory import MemoryEngine
from fs.kv.rocksdb import RocksDbEngine
from fs.runtime.ports import Runtime, Stream, StreamHandler
from fs.runtime.real import RealClock
from fs.schema.config import KvSection

CLUSTER_ID = "test-cluster"


class NoNetwork:
    async def connect(self, address: str) -> Stream:
        raise AssertionError(f"no network in these tests: {address}")

    async def serve(self, address: str, handler: StreamHandler, **_: object) -> None:
        raise AssertionError(f"no network in these tests: {address} {handler}")


async def run_inline(function: Callable, /, *args: object):
    await trio.lowlevel.checkpoint()
    return function(*args)


def inline_runtime(seed: int = 1) -> Runtime:
    """trio's clock (real or mock), blocking calls on the event loop."""
    return Runtime(RealClock(), NoNetwork(), run_inline, random.Random(seed))


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

    async def open(self) -> KvEngine:
        if self.kind == "memory":
            self._memory = self._memory or MemoryEngine(self.runtime.clock)
            self.engine = self._memory
        elif self.kind == "rocksdb":
            engine = await RocksDbEngine.open(
                str(self._path), KvSection(), self.runtime, cluster_id=CLUSTER_ID
            )
            self._runner = await self._nursery.start(_run_in_scope, engine)
            self.engine = engine
        else:
            module = pytest.importorskip(
                "fs.kv.foundationdb", reason="the FoundationDB engine is not part of this release"
            )
            self.engine = await module.open_engine(os.environ["FDB_CLUSTER_FILE"], self.runtime)
        return self.engine

    async def close(self) -> None:
        if self._runner is not None:
            self._runner.cancel()
        await self.engine.aclose()

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


def int_value(value: bytes | None) -> int:
    return int.from_bytes(value or b"", "little", signed=True)
