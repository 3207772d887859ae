"""Key-value layer: cost of transactions next to the bare store in the same run.

Everything but the store of the remote engine runs on one event loop; the bare figures call RocksDB
directly, without transactions.
"""

import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

import trio
from rocksdict import Rdict, WriteBatch

from fs.app.terminal.progress import Progress
from fs.kv.api import KvEngine, Transaction
from fs.kv.memory import MemoryEngine
from fs.kv.remote import RemoteEngine
from fs.kv.rocksdb import RocksDbEngine
from fs.kv.rocksdb_store import open_store
from fs.kv.transact import snapshot_read, transact
from fs.rpc.api import Identity
from fs.rpc.channel import open_channels
from fs.rpc.transport import SocketNetwork
from fs.runtime.ports import Runtime
from fs.runtime.real import real_runtime
from fs.schema.config import KvSection, RpcSection

from .command import bench_command
from .table import Row

KEY_COUNT: Final = 10_000
VALUE: Final = bytes(100)
RANGE_ROWS: Final = 100
SCAN_COUNT: Final = 1_000
SYNC_COUNT: Final = 200
WRITER_COUNT: Final = 64


def _key(index: int) -> bytes:
    return b"key/%08d" % (index % KEY_COUNT)


def _timed(call: Callable[[int], object], count: int) -> float:
    """Return microseconds per call."""
    began = time.perf_counter()
    for index in range(count):
        call(index)
    return (time.perf_counter() - began) / count * 1e6


async def _timed_async(call: Callable[[int], Awaitable[object]], count: int) -> float:
    began = time.perf_counter()
    for index in range(count):
        await call(index)
    return (time.perf_counter() - began) / count * 1e6


def _bare_figures(db: Rdict, scale: int) -> dict[str, float]:
    """Return microseconds per operation of RocksDB itself."""

    def write(index: int) -> None:
        batch = WriteBatch(raw_mode=True)
        batch.put(_key(index), VALUE)
        db.write(batch)

    def synced(index: int) -> None:
        write(index)
        db.flush_wal(True)

    def scan(index: int) -> None:
        cursor = db.iter()
        cursor.seek(_key(index % (KEY_COUNT - RANGE_ROWS)))
        for _ in range(RANGE_ROWS):
            cursor.key()
            cursor.value()
            cursor.next()

    return {
        "set": _timed(write, KEY_COUNT * scale),
        "get": _timed(lambda index: db.get(_key(index)), KEY_COUNT * scale),
        "range": _timed(scan, SCAN_COUNT * scale),
        "synced": _timed(synced, SYNC_COUNT * scale),
    }


class _Work:
    """The measured operations on one engine."""

    def __init__(self, engine: KvEngine, runtime: Runtime) -> None:
        self._engine = engine
        self._runtime = runtime

    async def commit_one(self, index: int) -> None:
        async def fn(tr: Transaction) -> None:
            tr.set(_key(index), VALUE)

        await transact(self._engine, fn, runtime=self._runtime)

    async def read_modify_write(self, index: int) -> None:
        async def fn(tr: Transaction) -> None:
            for key in (_key(index), _key(index * 7919)):
                await tr.get(key)
                tr.set(key, VALUE)

        await transact(self._engine, fn, runtime=self._runtime)

    async def get(self, index: int) -> None:
        await snapshot_read(self._engine, lambda tr: tr.get(_key(index)))

    async def scan(self, index: int) -> None:
        first = index % (KEY_COUNT - RANGE_ROWS)
        await snapshot_read(
            self._engine, lambda tr: tr.get_range(_key(first), _key(first + RANGE_ROWS))
        )

    async def synced(self, index: int) -> None:
        await self.commit_one(index)
        await self._engine.sync()

    async def many_synced(self, count: int) -> float:
        """Return microseconds per synced commit of WRITER_COUNT tasks together."""

        async def writer(first: int) -> None:
            for index in range(first, count, WRITER_COUNT):
                await self.synced(index)

        began = time.perf_counter()
        async with trio.open_nursery() as nursery:
            for first in range(WRITER_COUNT):
                nursery.start_soon(writer, first)
        return (time.perf_counter() - began) / count * 1e6


async def _engine_rows(name: str, work: _Work, bare: dict[str, float], scale: int) -> list[Row]:
    keys, scans, syncs = KEY_COUNT * scale, SCAN_COUNT * scale, SYNC_COUNT * scale
    figures = [
        ("1-set commit", await _timed_async(work.commit_one, keys), bare["set"]),
        ("get, own transaction", await _timed_async(work.get, keys), bare["get"]),
        ("2 gets, 2 sets, commit", await _timed_async(work.read_modify_write, keys), None),
        (f"range of {RANGE_ROWS}", await _timed_async(work.scan, scans), bare["range"]),
        ("synced commit, alone", await _timed_async(work.synced, syncs), bare["synced"]),
        (
            f"synced commit, {WRITER_COUNT} at once",
            await work.many_synced(syncs * 10),
            bare["synced"],
        ),
    ]
    return [
        Row(f"{name}: {what}", value, "us", limit, is_smaller_better=True)
        for what, value, limit in figures
    ]


async def measure_all(scale: int, parent: Path | None) -> list[Row]:
    """Measure; takes a few MB in the directory."""
    runtime = real_runtime(SocketNetwork())
    with tempfile.TemporaryDirectory(prefix="ember-bench-kv-", dir=parent) as directory:
        db = open_store(f"{directory}/bare")
        bare = _bare_figures(db, scale)
        db.close()
        engine = await RocksDbEngine.open(
            f"{directory}/kv", KvSection(), runtime, cluster_id="benchmark"
        )
        async with trio.open_nursery() as nursery:
            await nursery.start(engine.run)
            rows = await _engine_rows("rocksdb", _Work(engine, runtime), bare, scale)
            nursery.cancel_scope.cancel()
        await engine.aclose()
        rows += await _remote_rows(Path(directory), runtime, bare, scale)
    memory = MemoryEngine(runtime.clock)
    return rows + await _engine_rows("memory", _Work(memory, runtime), bare, scale)


async def _remote_rows(
    directory: Path, runtime: Runtime, bare: dict[str, float], scale: int
) -> list[Row]:
    """Measure the same store served by another process over a Unix socket."""
    address = f"unix:{directory}/kv.sock"
    config = directory / "kv.toml"
    config.write_text(
        f'[process]\ncluster_id = "benchmark"\nlisten = "{address}"\nmgmtd_addresses = '
        f'["{address}"]\n'
        f'log_level = "warning"\n[kv]\npath = "{directory}/kv"\n'
    )
    command = [sys.executable, "-m", "fs.app.kv", str(config)]
    async with trio.open_nursery() as nursery:
        process = await nursery.start(trio.run_process, command)
        async with open_channels(
            runtime, Identity("benchmark", client_id="0"), RpcSection()
        ) as channels:
            engine = RemoteEngine(channels.get(address), address, runtime)
            await engine.sync()  # waits until it serves
            rows = await _engine_rows("remote", _Work(engine, runtime), bare, scale)
        process.terminate()
    return rows


def measure(scale: int, parent: Path | None, progress: Progress) -> list[Row]:
    """Measure every engine, `scale` times the usual number of operations."""
    progress.step("kv: bare store, rocksdb, remote, memory")
    return trio.run(measure_all, scale, parent)


if __name__ == "__main__":
    sys.exit(bench_command("kv", __doc__, (1, 10), measure))
