"""The KV cache (`emberfs.kvcache`) through the rings of a mount,
next to the same program on the local disk.

Blocks are put by one process, then read at random in batches by several; then again while
another process puts so much into a full cache that segments are dropped all the time.  Reads
find what they look for in the caches of the storage processes.  The machine's figure is the
same program in a directory of the local disk, whose pages the kernel has cached; needs root
for no reason but the cluster.
"""

import multiprocessing
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from emberfs.kvcache import KVCache

from fs.app.terminal.progress import Progress

from .cluster import fresh_cluster
from .command import bench_command
from .machine import loopback_mib_s
from .table import Row
from .used import Meter, Used
from .workloads import MIB

BATCH = 32
READERS = 2
_SPAWN = multiprocessing.get_context("spawn")


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is cached."""

    block_bytes: int
    block_count: int
    seconds: float

    @property
    def capacity_bytes(self) -> int:
        """So that what is put at first stays, and little more."""
        return self.block_bytes * self.block_count * 5 // 4


QUICK = (Sizes(1 << 20, 192, 3.0), Sizes(16 << 10, 4096, 3.0))
FULL = (Sizes(1 << 20, 2048, 15.0), Sizes(16 << 10, 65_536, 15.0))


@dataclass(frozen=True, slots=True)
class Figures:
    """What one directory came to; rates in blocks per second."""

    put: float
    read: float
    read_s: float
    """Processor time of the readers for each block."""
    one_us: float
    """Median time of reading one block."""
    read_meanwhile: float
    """With another process that puts and collects."""
    hits_meanwhile: float
    """Share of the blocks that were still there."""
    put_meanwhile: float
    collected_bytes_s: float
    put_used: Used
    """Processor seconds for each GB; of reads as well."""
    read_used: Used


def cache_at(folder: Path, sizes: Sizes) -> KVCache:
    """Open the cache."""
    return KVCache(folder, block_bytes=sizes.block_bytes, capacity_bytes=sizes.capacity_bytes)


def key(number: int) -> bytes:
    """Return the key of a block."""
    return number.to_bytes(8, "little")


def fill(folder: Path, sizes: Sizes, first: int, seconds: float) -> tuple[float, float, float]:
    """Put blocks from a number on, all of them or (seconds > 0) for so long.

    Returns:
        Blocks, bytes collected per second; processor seconds.
    """
    with cache_at(folder, sizes) as cache:
        iov = cache.allocate(BATCH)
        iov.view[:] = random.Random(first).randbytes(len(iov.view))  # noqa: S311 - not a secret
        views = [iov.view[i * sizes.block_bytes :][: sizes.block_bytes] for i in range(BATCH)]
        count, began, used = 0, time.perf_counter(), time.process_time()
        while time.perf_counter() - began < seconds if seconds else count < sizes.block_count:
            for i, view in enumerate(views):
                view[:8] = key(first + count + i)
            cache.put([(key(first + count + i), view) for i, view in enumerate(views)])
            count += BATCH
        cache.sync()
        took = time.perf_counter() - began
        used = time.process_time() - used
        return count / took, cache.stats.collected.byte_count / took, used


def read(folder: Path, sizes: Sizes, seed: int, batch: int) -> tuple[float, float, float, float]:
    """Read at random; return (blocks per second, share of hits, processor seconds per block,
    median seconds of a batch).
    """
    generator = random.Random(seed)  # noqa: S311 - not a secret
    with cache_at(folder, sizes) as cache:
        iov = cache.allocate(batch)
        views = [iov.view[i * sizes.block_bytes :][: sizes.block_bytes] for i in range(batch)]
        hits, taken = 0, []
        began, used = time.perf_counter(), time.process_time()
        while not taken or time.perf_counter() - began < sizes.seconds:
            numbers = [generator.randrange(sizes.block_count) for _ in range(batch)]
            start = time.perf_counter()
            found = cache.get_into([key(number) for number in numbers], views)
            taken.append(time.perf_counter() - start)
            for number, is_found, view in zip(numbers, found, views, strict=True):
                assert not is_found or view[:8] == key(number), f"wrong bytes for {number}"
            hits += found.count(True)
        took, used = time.perf_counter() - began, time.process_time() - used
        count = len(taken) * batch
        return hits / took, hits / count, used / max(1, hits), sorted(taken)[len(taken) // 2]


def _work(pipe: Connection, function: Any, arguments: tuple[Any, ...]) -> None:
    pipe.send(function(*arguments))


@contextmanager
def started(function: Any, *arguments: Any) -> Iterator[Connection]:
    """Run a function in a process of its own; yield where its result comes from."""
    ours, theirs = _SPAWN.Pipe()
    process = _SPAWN.Process(target=_work, args=(theirs, function, arguments), daemon=True)
    process.start()
    theirs.close()
    try:
        yield ours
    finally:
        process.terminate()
        process.join()


def read_in_processes(folder: Path, sizes: Sizes, seed: int) -> tuple[float, float, float]:
    """Read with READERS processes; return (blocks per second, share of hits,
    processor seconds per block).
    """
    with (
        started(read, folder, sizes, seed, BATCH) as one,
        started(read, folder, sizes, seed + 1, BATCH) as other,
    ):
        results = [one.recv(), other.recv()]
    rates, hits, used, _ = zip(*results, strict=True)
    return sum(rates), sum(hits) / len(hits), sum(used) / len(used)


def measure_folder(folder: Path, sizes: Sizes, meter: Meter) -> Figures:
    """Measure the cache in a folder that is not there yet."""
    with meter.used() as put_used:
        put, _, put_used_s = fill(folder, sizes, 0, 0.0)
    put_used.program = put_used_s
    read_in_processes(folder, sizes, 1)  # every replica has seen the reads
    with meter.used() as read_used:
        rate, hits, used = read_in_processes(folder, sizes, 3)
    read_count = rate * sizes.seconds
    read_used.program = used * read_count
    assert hits == 1.0, f"{hits} of the blocks were there"
    *_, one_s = read(folder, sizes, 5, 1)
    with started(fill, folder, sizes, 1 << 40, sizes.seconds * 2) as filling:
        meanwhile, hits, _ = read_in_processes(folder, sizes, 7)
        put_rate, collected, _ = filling.recv()
    return Figures(
        put,
        rate,
        used,
        one_s * 1e6,
        meanwhile,
        hits,
        put_rate,
        collected,
        put_used.per_gb(sizes.block_count * sizes.block_bytes),
        read_used.per_gb(read_count * sizes.block_bytes),
    )


def rows_of(mounted: Figures, local: Figures, sizes: Sizes, stream_mib_s: float) -> list[Row]:
    """Return what two runs come to."""
    what = f"{sizes.block_bytes >> 10} KiB"
    is_large = sizes.block_bytes >= MIB
    unit = "MiB/s" if is_large else "blocks/s"
    scale = sizes.block_bytes / MIB if is_large else 1.0
    stream = stream_mib_s * MIB / sizes.block_bytes * scale
    pairs = [
        ("put", mounted.put, local.put, mounted.put_used),
        (f"read, {READERS} processes", mounted.read, local.read, mounted.read_used),
        (
            "  the same while blocks are put and dropped",
            mounted.read_meanwhile,
            local.read_meanwhile,
            None,
        ),
        ("  put meanwhile", mounted.put_meanwhile, local.put_meanwhile, None),
    ]
    rows = [
        Row(f"{what}: {name} (of local)", a * scale, unit, b * scale, used=used)
        for name, a, b, used in pairs
    ]
    one, one_local = mounted.one_us, local.one_us
    return [
        *rows[:2],
        Row(f"{what}: read (of loopback stream)", mounted.read * scale, unit, stream),
        Row(f"{what}: processor of the readers", mounted.read_s * 1e6, "us/block"),
        Row(f"{what}: one block, median (of local)", one, "us", one_local, is_smaller_better=True),
        *rows[2:],
        Row(f"{what}:   dropped meanwhile", mounted.collected_bytes_s / MIB, "MiB/s"),
        Row(
            f"{what}:   found meanwhile",
            mounted.hits_meanwhile * 100,
            "%",
            local.hits_meanwhile * 100,
        ),
    ]


def measure(sizes: tuple[Sizes, ...], parent: Path | None, progress: Progress) -> list[Row]:
    """Measure large and small blocks, here and there."""
    progress.step("kvcache: starting a cluster")
    rows = []
    with (
        tempfile.TemporaryDirectory(prefix="ember-kvcache-", dir=parent) as local,
        fresh_cluster(parent) as (directory, mounted),
    ):
        meter = Meter(directory)
        stream = loopback_mib_s(sizes[0].seconds / 2)
        for one in sizes:
            name = f"kv-{one.block_bytes}"
            progress.step(
                f"kvcache: {one.block_count:,} blocks of {one.block_bytes:,} bytes, mount"
            )
            there = measure_folder(mounted / name, one, meter)
            progress.step("kvcache: the same on the local disk")
            rows += rows_of(there, measure_folder(Path(local) / name, one, Meter()), one, stream)
    return rows


if __name__ == "__main__":
    sys.exit(bench_command("kvcache", __doc__, (QUICK, FULL), measure))
