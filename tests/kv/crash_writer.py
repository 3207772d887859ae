"""A process that commits numbered transactions and says what it does,
until it is stopped or its disk fails.

Transaction n counts itself, writes ROW_COUNT rows of value n and the version it got, and removes
what n - KEPT_COUNT wrote.  Lines, each written after what it tells:
    opened              the store is open
    done N VERSION      transaction N was acknowledged as commit VERSION
    synced VERSION      everything up to VERSION is durable
    failed STATUS TEXT  the store has refused; the process ends

`StoreWitness` (witness.py) reads them.
"""

import random
from collections.abc import Callable, Iterator
from unittest.mock import patch

import trio

from fs.kv import rocksdb as engine_module
from fs.kv.rocksdb import RocksDbEngine
from fs.kv.transact import snapshot_read, transact_stamped
from fs.runtime.ports import Runtime
from fs.runtime.real import ThreadRunBlocking
from fs.schema.config import KvSection
from fs.schema.status import FsError
from tests.kv.harness import CLUSTER_ID, inline_runtime

ROW_COUNT = 5
KEPT_COUNT = 50
TASKS_PER_THREAD = 2
ROTATE_COSTS_BYTES = (20_000, 100_000, 1 << 20)
"""Logs end, and tables are made, far more often than usual."""

COUNT_KEY = b"count"


def value_of(number: int) -> bytes:
    return b"%d" % number * 20


def row_key(number: int, row: int) -> bytes:
    return b"t/%010d/%d" % (number, row)


def stamp_key(number: int) -> bytes:
    return row_key(number, ROW_COUNT)


async def numbers_of(engine: RocksDbEngine) -> set[int]:
    """Return the transactions of which something is there."""
    rows = await snapshot_read(engine, lambda tr: tr.get_range(b"t/", b"t0"))
    return {int(key[2:12]) for key, _ in rows}


async def open_store(path: str) -> tuple[RocksDbEngine, Runtime]:
    inline = inline_runtime()
    runtime = Runtime(inline.clock, inline.network, ThreadRunBlocking(), inline.random)
    engine = await RocksDbEngine.open(path, KvSection(), runtime, cluster_id=CLUSTER_ID)
    return engine, runtime


async def write(engine: RocksDbEngine, runtime: Runtime, number: int) -> int:
    """Run transaction `number`; return its version."""

    async def fn(tr):
        tr.atomic_add(COUNT_KEY, 1)
        for row in range(ROW_COUNT):
            tr.set(row_key(number, row), value_of(number))
        tr.set_versionstamped_value(stamp_key(number), b"")
        if number >= KEPT_COUNT:
            old = number - KEPT_COUNT
            tr.clear_range(row_key(old, 0), row_key(old + 1, 0))

    _, stamp = await transact_stamped(engine, fn, runtime=runtime, is_idempotent=False)
    assert stamp is not None
    return int.from_bytes(stamp[:8], "big")


async def write_on(
    engine: RocksDbEngine,
    runtime: Runtime,
    numbers: Iterator[int],
    send: Callable[[str], None],
    rng: random.Random,
) -> None:
    for number in numbers:
        version = await write(engine, runtime, number)
        send(f"done {number} {version}")
        if rng.random() < 0.1:
            version = engine.version
            await engine.sync()
            send(f"synced {version}")


async def main(path: str, seed: int, send: Callable[[str], None], task_count: int) -> None:
    rng = random.Random(seed)
    cost = rng.choice(ROTATE_COSTS_BYTES)
    with patch.object(engine_module, "ROTATE_COST_BYTES", cost):
        engine, runtime = await open_store(path)
        first = max([engine.version, *await numbers_of(engine)]) + 1
        send("opened")
        numbers = iter(range(first, 1 << 60))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(engine.run)
            for _ in range(task_count):
                nursery.start_soon(write_on, engine, runtime, numbers, send, rng)


def work(path: str, seed: int, send: Callable[[str], None], *, threads: int, steps: int) -> None:
    """Commit until the store refuses; `steps` is for workers that end by themselves."""
    del steps
    try:
        trio.run(main, path, seed, send, threads * TASKS_PER_THREAD)
    except* FsError as group:
        error = group.exceptions[0]
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        send(f"failed {error}")
