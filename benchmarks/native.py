"""Batched reads of the native client, next to the machine's own:
direct I/O of the same disk, a loopback stream.

`python -m benchmarks.native [--full] [--dir DIRECTORY]`; needs root,
because it drops the page cache.
"""

import random
import sys
import time
import tomllib
from dataclasses import dataclass
from pathlib import Path

import trio

from fs.app.terminal.progress import Progress
from fs.client.connect import connect
from fs.client.native import EmberFile, EmberFs
from fs.rpc.transport import SocketNetwork
from fs.runtime.real import real_runtime

from .cluster import cluster_beside_file
from .command import bench_command
from .disk import read_mib_s
from .fio import Large, large_blocks, least_of
from .machine import direct_reads, loopback_mib_s
from .table import Row
from .used import Meter
from .workloads import MIB, drop_page_cache

SMALL_BYTES = 4096
BATCH_COUNTS = (64, 256)
LARGE_BATCH_COUNT = 8
BATCHES_IN_FLIGHT = 2
WARM_COUNT = 3


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is read."""

    file_mib: int
    seconds: float


QUICK = Sizes(file_mib=256, seconds=2.0)
FULL = Sizes(file_mib=4096, seconds=10.0)


# ---- the client ---------------------------------------------------------------------------------


async def random_reads(
    client: EmberFs, file: EmberFile, count: int, seconds: float, seed: int
) -> float:
    """Return 4 KiB reads per second in batches of `count`, some batches in flight."""
    total, end = 0, time.perf_counter() + seconds
    block_count = file.length // SMALL_BYTES

    async def reader(number: int) -> None:
        nonlocal total
        generator = random.Random(seed + number)  # noqa: S311 - not a secret
        target = memoryview(bytearray(count * SMALL_BYTES))
        views = [target[i * SMALL_BYTES :][:SMALL_BYTES] for i in range(count)]
        while time.perf_counter() < end:
            wanted = [(file, generator.randrange(block_count) * SMALL_BYTES, v) for v in views]
            await client.read_batch(wanted)
            total += count

    began = time.perf_counter()
    async with trio.open_nursery() as nursery:
        for number in range(BATCHES_IN_FLIGHT):
            nursery.start_soon(reader, number)
    return total / (time.perf_counter() - began)


async def sequential_reads(client: EmberFs, file: EmberFile) -> float:
    """Return MiB/s of reading the file once in batches of 1 MiB reads, some batches in flight."""
    step = LARGE_BATCH_COUNT * MIB
    offsets = iter(range(0, file.length, step))

    async def reader() -> None:
        target = memoryview(bytearray(step))
        views = [target[i * MIB : (i + 1) * MIB] for i in range(LARGE_BATCH_COUNT)]
        for offset in offsets:
            await client.read_batch([(file, offset + i * MIB, v) for i, v in enumerate(views)])

    began = time.perf_counter()
    async with trio.open_nursery() as nursery:
        for _ in range(BATCHES_IN_FLIGHT):
            nursery.start_soon(reader)
    return file.length / MIB / (time.perf_counter() - began)


async def fill(client: EmberFs, path: str, sizes: Sizes) -> None:
    """Write the file that is read, in 4 MiB steps."""
    data = random.Random(1).randbytes(4 * MIB)  # noqa: S311 - not a secret
    async with await client.create(path) as file:
        for offset in range(0, sizes.file_mib * MIB, len(data)):
            await file.write(offset, data)


async def measure_reads(directory: Path, local: Path, sizes: Sizes) -> list[Row]:
    """Measure everything on a running cluster; `local` is a file of the same length on its disk."""
    rows, size, meter = [], sizes.file_mib * MIB, Meter(directory)
    config = tomllib.loads((directory / "config" / "mount-1.toml").read_text())["process"]
    mgmtd, cluster_id = config["mgmtd_addresses"], config["cluster_id"]
    runtime = real_runtime(SocketNetwork())
    stream = await trio.to_thread.run_sync(loopback_mib_s, sizes.seconds / 2)
    async with connect(mgmtd, cluster_id, runtime=runtime) as client:
        await fill(client, "/native-benchmark", sizes)
        file = await client.open("/native-benchmark")
        drop_page_cache()
        disk = read_mib_s(local)
        with large_blocks(local.parent) as fio:
            fio.measure(Large.READ)
        with meter.used() as used:
            cold = await sequential_reads(client, file)
        name = "1 MiB batches, cold (of disk, stream)"
        each, by_fio = used.per_gb(size), least_of(fio.mib_s(Large.READ), stream)
        rows.append(Row(name, cold, "MiB/s", min(disk, stream), goal=0.8, used=each, fio=by_fio))
        await client.prefetch(file)  # by every replica
        with meter.used() as used:
            warm = max([await sequential_reads(client, file) for _ in range(WARM_COUNT)])
        each = used.per_gb(WARM_COUNT * size)
        rows.append(Row("1 MiB batches, cached (of stream)", warm, "MiB/s", stream, used=each))
        for count in BATCH_COUNTS:
            with meter.used() as used:
                rate = await random_reads(client, file, count, sizes.seconds, count)
            each = used.per_gb(rate * sizes.seconds * SMALL_BYTES)
            name = f"4 KiB x {count}, cached (of the goal)"
            rows.append(Row(name, rate, "/s", 100_000, goal=1.0, used=each))
        for count in BATCH_COUNTS:
            drop_page_cache()
            limit = direct_reads(local, SMALL_BYTES, sizes.seconds)
            with meter.used() as used:
                rate = await random_reads(client, file, count, sizes.seconds, count)
            each = used.per_gb(rate * sizes.seconds * SMALL_BYTES)
            rows.append(
                Row(f"4 KiB x {count}, cold (of io_uring)", rate, "/s", limit, goal=0.5, used=each)
            )
        await file.close()
    return rows


def measure(sizes: Sizes, parent: Path | None, progress: Progress) -> list[Row]:
    """Bring up a cluster and measure."""
    progress.step("native: starting a cluster")
    with cluster_beside_file(parent, sizes.file_mib) as (directory, _, local):
        progress.step(f"native: batches of reads of a file of {sizes.file_mib:,} MiB")
        return trio.run(measure_reads, directory, local, sizes)


if __name__ == "__main__":
    sys.exit(bench_command("native", __doc__, (QUICK, FULL), measure))
