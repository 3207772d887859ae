"""Storage alone: replicated writes and batched reads of chunks, without metadata,
next to the disk below.

`python -m benchmarks.storage [--full] [--dir DIRECTORY]`; needs root (page cache) and fio.

The client sends every update to the head of its chain and three storage processes on this machine
write it, so a third of what the disk takes is what can be expected.  Write amplification is what
the processes sent to the block layer (`/proc/PID/io`) per byte of payload and replica.  Processor
time is that of the client and of the three storage processes together, per update or read: it says
more than the rate when others use the machine too.
"""

import os
import random
import statistics
import sys
import tempfile
import time
import tomllib
from collections.abc import Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import trio

from fs.app.terminal.progress import Progress
from fs.client.connect import Client, open_client
from fs.client.file_read import FileRead
from fs.rpc.api import Identity
from fs.rpc.channel import open_channels
from fs.rpc.transport import SocketNetwork
from fs.runtime.real import real_runtime
from fs.schema.config import ProcessConfig, ProcessSection
from fs.schema.ids import ChainTableId, ClientId, InodeId
from fs.schema.layout import FileRef, Layout

from . import bare
from .cluster import Nodes, cluster_beside_file
from .command import bench_command
from .disk import new_file_mib_s, read_mib_s, rounds_of
from .fio import Large, large_blocks, least_of
from .machine import direct_reads, direct_writes, io_bytes, loopback_mib_s, processor_s
from .table import Row
from .used import Used
from .workloads import MIB, drop_page_cache, sequential_write
from .workloads import QUICK as QUICK_WORKLOAD

REPLICA_COUNT = 3
SMALL_BYTES = 4096
SMALL_CHUNK_BYTES = 64 * 1024
WRITES_IN_FLIGHT = 16
READS_IN_FLIGHT = 2
LARGE_BATCH_COUNT = 8
SMALL_BATCH_COUNT = 256
FIRST_INODE_ID = 1 << 40
"""Far from what the metadata service of a fresh cluster gives out."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is done."""

    file_mib: int
    small_count: int
    seconds: float


QUICK = Sizes(file_mib=256, small_count=4000, seconds=2.0)
FULL = Sizes(file_mib=4096, small_count=40_000, seconds=10.0)


@dataclass(frozen=True, slots=True)
class Measured:
    """Many updates or reads of one kind."""

    rate: float
    """Per second; of updates including the flush at their end."""
    client_us: float
    """Processor time of each."""
    storage_us: float
    """Of all storage processes."""
    amplification: float
    """Bytes sent to the disks per byte of payload and replica."""
    used: Used
    """For each GB of payload."""

    def row(self) -> Row:
        """Return the row of the processor time, to stand below that of the rate."""
        total = self.client_us + self.storage_us
        return Row(f"  processor time, of it {self.client_us:.0f} in the client", total, "us")


async def _in_flight(count: int, jobs: Iterator[Callable[[], Awaitable[None]]]) -> None:
    """Run jobs, `count` at a time."""

    async def worker() -> None:
        for job in jobs:
            await job()

    async with trio.open_nursery() as nursery:
        for _ in range(count):
            nursery.start_soon(worker)


class StorageLoad:
    """Chunks of three invented files: a big one, one of small chunks, one that is appended to."""

    def __init__(self, client: Client, directory: Path, sizes: Sizes) -> None:
        self._chunks = client.chunks
        self._pids = list(Nodes(directory).pids().values())
        self._sizes = sizes
        self._random = random.Random(3)  # noqa: S311 - not a secret
        self._block = self._random.randbytes(MIB)
        chain_count = len(client.routing.info.chain_table(1).chain_ids)
        self.big = self._file(0, MIB, chain_count)
        self.small = self._file(1, SMALL_CHUNK_BYTES, chain_count)
        self.appended = self._file(2, MIB, chain_count)

    @staticmethod
    def _file(number: int, chunk_size_bytes: int, chain_count: int) -> FileRef:
        layout = Layout(ChainTableId(1), 1, chunk_size_bytes, chain_count, 0, 0)
        return FileRef(InodeId(FIRST_INODE_ID + number), layout, chain_count)

    async def _measure(
        self, count: int, length: int, work: Callable[[], Awaitable[None]]
    ) -> Measured:
        """Measure `work`, which does `count` updates or reads of `length` bytes."""
        before, began = self._used(), time.perf_counter()
        await work()
        took, after = time.perf_counter() - began, self._used()
        client_s, storage_s, written = (b - a for a, b in zip(before, after, strict=True))
        return Measured(
            count / took,
            client_s / count * 1e6,
            storage_s / count * 1e6,
            written / (count * length * REPLICA_COUNT),
            Used(program=client_s, storage=storage_s).per_gb(count * length),
        )

    def _used(self) -> tuple[float, float, int]:
        """Return the client's and the storage processes' processor time,
        and what the latter sent to the disks.
        """
        return (
            processor_s(os.getpid()),
            sum(map(processor_s, self._pids)),
            sum(io_bytes(pid, "write_bytes") for pid in self._pids),
        )

    async def writes(self, file: FileRef, offsets: list[int], length: int) -> Measured:
        """Write `length` bytes at each offset, then make all durable."""
        data = memoryview(self._block)[:length]

        async def work() -> None:
            jobs = (lambda o=offset: self._chunks.write(file, o, data) for offset in offsets)
            await _in_flight(WRITES_IN_FLIGHT, jobs)
            await self._chunks.sync([file])

        return await self._measure(len(offsets), length, work)

    async def removal(self, file: FileRef, count: int, length: int) -> Measured:
        """Remove a file of so many chunks of `length` bytes,
        as the collection of removed files does; not flushed.
        """
        return await self._measure(count, length, lambda: self._chunks.remove_files([file]))

    async def reads(self, offsets: list[int], length: int, batch_count: int) -> Measured:
        """Read the big file in batches."""
        buffers = [memoryview(bytearray(length * batch_count)) for _ in range(READS_IN_FLIGHT)]

        async def read(batch: list[int]) -> None:
            buffer = buffers.pop()
            pieces = [buffer[i * length :][:length] for i in range(len(batch))]
            await self._chunks.read(
                [FileRead(self.big, o, p) for o, p in zip(batch, pieces, strict=True)]
            )
            buffers.append(buffer)

        batches = [offsets[i : i + batch_count] for i in range(0, len(offsets), batch_count)]
        jobs = (lambda b=batch: read(b) for batch in batches)
        work = partial(_in_flight, READS_IN_FLIGHT, jobs)
        return await self._measure(len(offsets), length, work)

    async def warm(self) -> None:
        """Have every replica read the big file into its page cache, which large reads may pass."""
        piece = memoryview(bytearray(MIB))
        reads = [FileRead(self.big, offset, piece) for offset in self.sequential(MIB)]
        _, failures = await self._chunks.warm(reads)
        if failures:
            raise failures[0]

    def sequential(self, step: int) -> list[int]:
        """Return the offsets of the big file in order."""
        return list(range(0, self._sizes.file_mib * MIB, step))

    def scattered(self, count: int) -> list[int]:
        """Return random 4 KiB places of the big file."""
        places = self._sizes.file_mib * MIB // SMALL_BYTES
        return [self._random.randrange(places) * SMALL_BYTES for _ in range(count)]


def buffered_mib_s(parent: Path, sizes: Sizes) -> float:
    """Return MiB/s of writing a local file through the page cache, with the fsync at its end."""
    with tempfile.TemporaryDirectory(dir=parent) as folder:
        return sequential_write(Path(folder), replace(QUICK_WORKLOAD, file_mib=sizes.file_mib))


def disk_mib_s(parent: Path, mib: int) -> float:
    """Return MiB/s of writing a new local file past the page cache, durable at the end."""
    with tempfile.TemporaryDirectory(dir=parent) as folder:
        path = Path(folder, "disk")
        return statistics.median(new_file_mib_s(path, mib) for _ in range(rounds_of(mib)))


async def measure_writes(load: StorageLoad, local: Path, sizes: Sizes) -> list[Row]:
    """Measure replicated updates."""
    count, seconds = sizes.small_count, sizes.seconds
    large = buffered_mib_s(local.parent, sizes) / REPLICA_COUNT
    disk = disk_mib_s(local.parent, REPLICA_COUNT * sizes.file_mib) / REPLICA_COUNT
    with large_blocks(local.parent) as fio:
        for _ in range(rounds_of(REPLICA_COUNT * sizes.file_mib)):
            fio.measure(Large.NEW)
    small = direct_writes(local, SMALL_BYTES, seconds) / REPLICA_COUNT
    new = [i * SMALL_CHUNK_BYTES for i in range(count)]
    appends = [i * SMALL_BYTES for i in range(count)]
    rows: list[Row] = []
    for name, file, offsets, length, limit, goal in (
        ("1 MiB chunks, durable", load.big, load.sequential(MIB), MIB, large, 0.8),
        (
            "4 KiB overwrites of 1 MiB chunks",
            load.big,
            load.scattered(count),
            SMALL_BYTES,
            small,
            None,
        ),
        ("4 KiB appends", load.appended, appends, SMALL_BYTES, small, None),
        ("new chunks of 4 KiB", load.small, new, SMALL_BYTES, small, None),
        ("4 KiB overwrites of those", load.small, new[::-1], SMALL_BYTES, small, None),
    ):
        found = await load.writes(file, offsets, length)
        title = f"{name} (of local / {REPLICA_COUNT})"
        rows.append(Row(title, found.rate, "/s", limit, goal=goal, used=found.used))
        rows.append(found.row())
        rows.append(Row("  write amplification", found.amplification, "x"))
    title = f"1 MiB chunks, durable (of a new local file past the page cache / {REPLICA_COUNT})"
    by_fio = fio.mib_s(Large.NEW, REPLICA_COUNT)
    rows.insert(1, Row(title, rows[0].value, "/s", disk, goal=0.8, fio=by_fio))
    rows.append(bare.write_row(local, sizes.file_mib, disk))
    found = await load.removal(load.small, count, SMALL_BYTES)
    return [*rows, Row("chunks removed", found.rate, "/s"), found.row()]


async def measure_reads(load: StorageLoad, local: Path, sizes: Sizes) -> list[Row]:
    """Measure batched reads of the big file; cached means: by every replica."""
    stream = await trio.to_thread.run_sync(loopback_mib_s, sizes.seconds / 2)
    count = sizes.small_count * 4
    drop_page_cache()
    disk = read_mib_s(local)
    with large_blocks(local.parent) as fio:
        fio.measure(Large.READ)
    large = load.sequential(MIB)
    cold = await load.reads(large, MIB, LARGE_BATCH_COUNT)
    await load.warm()
    warm = await load.reads(large, MIB, LARGE_BATCH_COUNT)
    await load.warm()  # again: a guest may reclaim within seconds what rests
    small_warm = await load.reads(load.scattered(4 * count), SMALL_BYTES, SMALL_BATCH_COUNT)
    drop_page_cache()
    random_disk = direct_reads(local, SMALL_BYTES, sizes.seconds)
    small_cold = await load.reads(load.scattered(count), SMALL_BYTES, SMALL_BATCH_COUNT)
    rows = []
    by_fio = least_of(fio.mib_s(Large.READ), stream)
    for name, found, limit, goal in (
        ("1 MiB reads, cold (of disk, stream)", cold, min(disk, stream), 0.8),
        ("1 MiB reads, cached (of stream)", warm, stream, None),
        ("4 KiB reads, cold (of io_uring)", small_cold, random_disk, 0.5),
        ("4 KiB reads, cached (of the goal)", small_warm, 100_000, 1.0),
    ):
        rows += [Row(name, found.rate, "/s", limit, goal=goal, used=found.used), found.row()]
    rows[0] = replace(rows[0], fio=by_fio)
    return [*rows, bare.read_row(local, sizes.file_mib, min(disk, stream))]


@asynccontextmanager
async def storage_client(directory: Path):  # noqa: ANN201 - an async context manager of Client
    """Connect to the storage side of a cluster made by `ember up`."""
    section = tomllib.loads((directory / "config" / "mount-1.toml").read_text())["process"]
    config = ProcessConfig(
        process=ProcessSection(
            cluster_id=section["cluster_id"], mgmtd_addresses=section["mgmtd_addresses"]
        )
    )
    runtime = real_runtime(SocketNetwork())
    client_id = ClientId("benchmark")
    speaker = Identity(cluster_id=section["cluster_id"], client_id=client_id)
    async with (
        open_channels(runtime, speaker, config.rpc) as channels,
        open_client(runtime, config, channels, client_id=client_id) as client,
    ):
        yield client


async def measure_all(directory: Path, local: Path, sizes: Sizes) -> list[Row]:
    """Measure everything on a running cluster; `local` is a file on its disk."""
    async with storage_client(directory) as client:
        load = StorageLoad(client, directory, sizes)
        rows = await measure_writes(load, local, sizes)
        return rows + await measure_reads(load, local, sizes)


def measure(sizes: Sizes, parent: Path | None, progress: Progress) -> list[Row]:
    """Bring up a cluster and measure."""
    progress.step("storage: starting a cluster")
    with cluster_beside_file(parent, sizes.file_mib) as (directory, _, local):
        progress.step(f"storage: updates and reads of {sizes.file_mib:,} MiB of chunks")
        return trio.run(measure_all, directory, local, sizes)


if __name__ == "__main__":
    sys.exit(bench_command("storage", __doc__, (QUICK, FULL), measure))
