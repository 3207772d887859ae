"""A process to be killed: commits numbered transactions, tells each acknowledged number on stdout.

Transaction n writes ROW_COUNT rows of value n and removes those of n - KEPT_COUNT; a few at once.
"""

import sys

import trio

from fs.kv.rocksdb import RocksDbEngine
from fs.kv.transact import transact
from fs.runtime.ports import Runtime
from fs.runtime.real import ThreadRunBlocking
from fs.schema.config import KvSection
from tests.kv.harness import CLUSTER_ID, inline_runtime

ROW_COUNT = 5
KEPT_COUNT = 50
WRITER_COUNT = 4


def row_key(number: int, row: int) -> bytes:
    return b"t/%010d/%d" % (number, row)


async def write(engine: RocksDbEngine, runtime: Runtime, number: int) -> None:
    async def fn(tr):
        tr.atomic_add(b"count", 1)
        for row in range(ROW_COUNT):
            tr.set(row_key(number, row), b"%d" % number * 20)
        if number >= KEPT_COUNT:
            old = number - KEPT_COUNT
            tr.clear_range(row_key(old, 0), row_key(old, ROW_COUNT))

    await transact(engine, fn, runtime=runtime, is_idempotent=False)
    sys.stdout.buffer.write(b"%d\n" % number)
    sys.stdout.buffer.flush()


async def main(path: str, start: int) -> None:
    inline = inline_runtime()
    runtime = Runtime(inline.clock, inline.network, ThreadRunBlocking(), inline.random)
    engine = await RocksDbEngine.open(path, KvSection(), runtime, cluster_id=CLUSTER_ID)

    async def writer(index: int) -> None:
        number = start + index
        while True:
            await write(engine, runtime, number)
            number += WRITER_COUNT

    async with trio.open_nursery() as nursery:
        nursery.start_soon(engine.run)
        for index in range(WRITER_COUNT):
            nursery.start_soon(writer, index)


if __name__ == "__main__":
    trio.run(main, sys.argv[1], int(sys.argv[2]))
