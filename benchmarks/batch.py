"""Batches through the mount daemon's rings, next to the machine's own:
direct I/O of the same disk, a loopback stream.

`python -m benchmarks.batch [--full] [--dir DIRECTORY]`; needs root, because it drops the page
cache. One program; small reads are told of in microseconds of processor time as well: of the
program, of the mount daemon, and of the storage processes together.

What is written is compared with its like (`disk.py`): new files, on a cluster that has
had none before, with a new local file; files written over, once storage writes their new
versions where older ones were, with a local file written over.  How much of that was
space not used before stands below.
"""

import random
import statistics
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from emberfs.batch import Transfer
from emberfs.ring import RingClient
from emberfs.ring_file import RingFile

from fs.app.terminal.progress import Progress

from . import bare
from .cluster import cluster_beside_file, warm_up
from .command import bench_command
from .disk import held_bytes, new_file_mib_s, read_mib_s, rounds_of, written_over_mib_s
from .fio import Large, LargeBlocks, large_blocks, least_of
from .machine import direct_reads, loopback_mib_s
from .native import BATCH_COUNTS, FULL, LARGE_BATCH_COUNT, QUICK, SMALL_BYTES, WARM_COUNT, Sizes
from .relay import wake_ups_us
from .table import Row
from .threads import in_threads
from .used import GB, Meter, Used
from .workloads import MIB, drop_page_cache

THREADS = 2
"""Each with a batch in flight."""
COLD_WAYS = ((64, THREADS, 0.5), (64, 2 * THREADS, None), (256, THREADS, 0.5))
"""Reads in a batch, threads, and the goal.

Whoever waits for whole batches has ever fewer in flight until the next one; with more batches the
disk is kept at work, as io_uring keeps it in the figure beside.
"""
WRITTEN_COUNTS = (8, 32)
"""MiB in a batch.  Three replicas in a row share what is in flight:
of two batches of 8 MiB each has five.
"""
TIMES_OVER = 2
"""A file is written over so often before that is measured:
storage has enough old space for new versions then.
"""
REPLICAS = 3
LATENCY_COUNT = 2000
LATENCY_GOAL_US = 250.0
LATENCY_PAUSE_S = 0.0005


def buffers(client: RingClient, count: int) -> list[memoryview]:
    """Return memory for batches of `count` MiB of noise, one for each thread."""
    views = [client.allocate(count * MIB).view for _ in range(THREADS)]
    for number, view in enumerate(views):
        view[:] = random.Random(number).randbytes(len(view))  # noqa: S311 - not a secret
    return views


def sequential(
    client: RingClient, file: RingFile, sizes: Sizes, views: list[memoryview], *, is_write: bool
) -> float:
    """Return MiB/s of moving the file once in batches as long as each of the views,
    durable at the end if it is written.
    """
    step = len(views[0])
    offsets = iter(range(0, sizes.file_mib * MIB, step))
    lock = threading.Lock()

    def steps(number: int) -> Iterator[None]:
        view = views[number]
        while True:
            with lock:
                offset = next(offsets, None)
            if offset is None:
                return
            batch = [Transfer(file, offset + at, view[at : at + MIB]) for at in range(0, step, MIB)]
            if is_write:
                client.write(batch)
            else:
                client.read(batch)
            yield

    took = in_threads(steps, THREADS)
    if is_write:
        began = time.perf_counter()
        file.fsync()
        took += time.perf_counter() - began
    return sizes.file_mib / took


def random_reads(
    client: RingClient, file: RingFile, count: int, sizes: Sizes, thread_count: int = THREADS
) -> float:
    """Return 4 KiB reads per second in batches of `count`."""
    blocks, totals = sizes.file_mib * MIB // SMALL_BYTES, [0] * thread_count
    end = time.perf_counter() + sizes.seconds

    def steps(number: int) -> Iterator[None]:
        generator = random.Random(number + count)  # noqa: S311 - not a secret
        iov = client.allocate(count * SMALL_BYTES)
        views = [iov.view[i * SMALL_BYTES :][:SMALL_BYTES] for i in range(count)]
        while time.perf_counter() < end:
            client.read(
                [Transfer(file, generator.randrange(blocks) * SMALL_BYTES, v) for v in views]
            )
            totals[number] += count
            yield

    took = in_threads(steps, thread_count)
    return sum(totals) / took


def latency_us(client: RingClient, file: RingFile, sizes: Sizes, pause_s: float) -> float:
    """Return the median of one 4 KiB read at a time, with a pause after each, 0:
    one after the other.
    """
    generator, iov = random.Random(1), client.allocate(SMALL_BYTES)  # noqa: S311 - not a secret
    blocks, taken = sizes.file_mib * MIB // SMALL_BYTES, []
    for _ in range(LATENCY_COUNT):
        transfer = Transfer(file, generator.randrange(blocks) * SMALL_BYTES, iov.view)
        began = time.perf_counter()
        client.read([transfer])
        taken.append(time.perf_counter() - began)
        if pause_s:
            time.sleep(pause_s)
    return statistics.median(taken) * 1e6


class WrittenBatches:
    """Files written in batches of each length,
    in turn with a local file of three times the length; medians count.
    """

    def __init__(self, client: RingClient, cluster: Path, sizes: Sizes) -> None:
        """Take buffers; nothing is written yet."""
        self._client, self._data, self._sizes = client, cluster / "data", sizes
        self._meter = Meter(cluster)
        self._views = {count: buffers(client, count) for count in WRITTEN_COUNTS}
        self.forget()

    def forget(self) -> None:
        """Have what has been written until now not count."""
        self.disks: list[float] = []
        """MiB/s of the local file, a third of it."""
        self.paces: dict[int, list[float]] = {count: [] for count in WRITTEN_COUNTS}
        self.used = {count: Used() for count in WRITTEN_COUNTS}
        self.grown_bytes = 0
        """What storage has taken of its disk for it, beyond what it had."""

    def write(self, count: int, path: Path, mode: Literal["x", "r+"]) -> None:
        """Write a file in batches of `count` MiB."""
        before = held_bytes(self._data)
        with self._client.open(str(path), mode) as file, self._meter.used() as used:
            pace = sequential(self._client, file, self._sizes, self._views[count], is_write=True)
            self.paces[count].append(pace)
        self.used[count].add(used)
        self.grown_bytes += held_bytes(self._data) - before

    def rows(self, what: str, beside: str, by_bare: Row, fio: float | None) -> list[Row]:
        """Return the figures of all that was written, next to `beside`,
        to what bare processes write so, and to a third of what fio does.
        """
        rows, limited, moved = [], [], self._sizes.file_mib * MIB
        for count, paces in self.paces.items():
            name, pace = f"1 MiB in batches of {count}, {what}", statistics.median(paces)
            each = self.used[count].per_gb(len(paces) * moved)
            title, disk = f"{name} (of {beside} / 3)", by_bare.limit
            rows.append(Row(title, pace, "MiB/s", disk, goal=0.8, used=each, fio=fio))
            limited.append(bare.limited_row(name, pace, by_bare))
        asked_bytes = sum(map(len, self.paces.values())) * moved * REPLICAS
        share = max(0, self.grown_bytes) / asked_bytes * 100
        grown = Row(f"  {what}: on space not used before", share, "%")
        return [*rows, grown, *limited, by_bare]


def measure_written(
    client: RingClient,
    folder: Path,
    cluster: Path,
    local: Path,
    sizes: Sizes,
    *,
    fio: LargeBlocks,
) -> tuple[list[Row], list[Path]]:
    """Measure batches that are written; return the figures, and new files in `folder`,
    which nobody has read.
    """
    beside, rounds = local.with_name(f"{local.name}-written"), rounds_of(sizes.file_mib)
    new, over = (WrittenBatches(client, cluster, sizes) for _ in range(2))
    for number in range(rounds):
        new.disks.append(new_file_mib_s(beside, REPLICAS * sizes.file_mib) / REPLICAS)
        fio.measure(Large.NEW)
        for count in WRITTEN_COUNTS:
            new.write(count, folder / f"new-{number}-{count}", "x")
    paths = sorted(folder.iterdir())
    again = paths.pop()
    for _ in range(TIMES_OVER):
        over.write(WRITTEN_COUNTS[-1], again, "r+")
    over.forget()
    for _ in range(rounds):
        over.disks.append(written_over_mib_s(beside) / REPLICAS)
        fio.measure(Large.OVER)
        for count in WRITTEN_COUNTS:
            over.write(count, again, "r+")
    beside.unlink()
    rows = []
    for written, what, is_over in ((new, "new files", False), (over, "written over", True)):
        disk = statistics.median(written.disks)
        by_bare = bare.write_row(local, sizes.file_mib, disk, is_over=is_over)
        beside_what = "a local file written over" if is_over else "a new local file"
        by_fio = fio.mib_s(Large.OVER if is_over else Large.NEW, REPLICAS)
        rows += written.rows(what, beside_what, by_bare, by_fio)
    return rows, paths


def measure_large(
    client: RingClient,
    folder: Path,
    cluster: Path,
    local: Path,
    sizes: Sizes,
    *,
    fio: LargeBlocks,
) -> tuple[list[Row], Path]:
    """Measure batches of 1 MiB; return the figures, and a file that stays."""
    meter = Meter(cluster)
    stream, size = loopback_mib_s(sizes.seconds / 2), sizes.file_mib * MIB
    rows, paths = measure_written(client, folder, cluster, local, sizes, fio=fio)
    views, used, disks, paces = buffers(client, LARGE_BATCH_COUNT), Used(), [], []
    for path in paths:  # each once: what was read before takes another way
        drop_page_cache()
        disks.append(min(stream, read_mib_s(local)))
        fio.measure(Large.READ)
        with client.open(str(path)) as file, meter.used() as used_now:
            paces.append(sequential(client, file, sizes, views, is_write=False))
        used.add(used_now)
    disk, cold = statistics.median(disks), statistics.median(paces)
    name = "1 MiB batches, cold (of disk, stream)"
    each = used.per_gb(len(paths) * size)
    by_fio = least_of(fio.mib_s(Large.READ), stream)
    rows.append(Row(name, cold, "MiB/s", disk, goal=0.8, used=each, fio=by_fio))
    rows.append(bare.read_row(local, sizes.file_mib, disk))
    with client.open(str(path)) as file:
        warm_up(cluster, path)
        with meter.used() as used:
            best = max(
                sequential(client, file, sizes, views, is_write=False) for _ in range(WARM_COUNT)
            )
        name = "1 MiB batches, cached (of stream)"
        rows.append(Row(name, best, "MiB/s", stream, used=used.per_gb(WARM_COUNT * size)))
    return rows, path


def measure_small(
    client: RingClient, path: Path, cluster: Path, local: Path, sizes: Sizes
) -> list[Row]:
    """Measure reads of 4 KiB of a file that every replica has cached,
    and then of one that none has.
    """
    meter, rows = Meter(cluster), list[Row]()
    with client.open(str(path)) as file:
        for count in BATCH_COUNTS:
            warm_up(cluster, path)  # each time: a guest may reclaim within seconds what rests
            with meter.used() as used:
                rate = random_reads(client, file, count, sizes)
            each = used.per_gb(rate * sizes.seconds * SMALL_BYTES)
            us = SMALL_BYTES / GB * 1e6  # of a read, for each second of a GB
            rows += [
                Row(
                    f"4 KiB x {count}, cached (of the goal)",
                    rate,
                    "/s",
                    100_000,
                    goal=1.0,
                    used=each,
                ),
                Row("  processor of the program", each.program * us, "us/read"),
                Row("  processor of the mount daemon", each.mount * us, "us/read"),
                Row("  processor of the storage processes", each.storage * us, "us/read"),
            ]
        for count, thread_count, goal in COLD_WAYS:
            drop_page_cache()
            limit = direct_reads(local, SMALL_BYTES, sizes.seconds)
            with meter.used() as used:
                rate = random_reads(client, file, count, sizes, thread_count)
            each = used.per_gb(rate * sizes.seconds * SMALL_BYTES)
            many = f" by {thread_count} threads" if thread_count != THREADS else ""
            name = f"4 KiB x {count}{many}, cold (of io_uring)"
            rows.append(Row(name, rate, "/s", limit, goal=goal, used=each))
    return rows


def measure_one(
    client: RingClient, file: RingFile, sizes: Sizes, when: str, pause_s: float
) -> list[Row]:
    """Measure one small read at a time; `when` it is asked for stands in the title."""
    one = latency_us(client, file, sizes, pause_s)
    least = wake_ups_us(LATENCY_COUNT, pause_s)
    goals = (("wake-ups alone", least, None), ("the goal", LATENCY_GOAL_US, 1.0))
    title = f"one 4 KiB read {when}, median"
    return [
        Row(f"{title} (of {name})", one, "us", limit, goal=goal, is_smaller_better=True)
        for name, limit, goal in goals
    ]


def measure_all(cluster: Path, mount_point: Path, local: Path, sizes: Sizes) -> list[Row]:
    """Measure everything on the mount of a cluster in a directory;
    `local` is a file of the same length on its disk.
    """
    folder = mount_point / "batch-benchmark"
    folder.mkdir()
    with RingClient(mount_point) as client, large_blocks(local.parent) as fio:
        rows, path = measure_large(client, folder, cluster, local, sizes, fio=fio)
        rows += measure_small(client, path, cluster, local, sizes)
        with client.open(str(path)) as file:
            warm_up(cluster, path)
            rows += measure_one(client, file, sizes, "after a pause", LATENCY_PAUSE_S)
            rows += measure_one(client, file, sizes, "after another", 0.0)
    return rows


def measure(sizes: Sizes, parent: Path | None, progress: Progress) -> list[Row]:
    """Bring up a cluster and measure."""
    progress.step("batch: starting a cluster")
    with cluster_beside_file(parent, sizes.file_mib) as (cluster, mounted, local):
        progress.step(f"batch: reads and writes of a file of {sizes.file_mib:,} MiB")
        return measure_all(cluster, mounted, local, sizes)


if __name__ == "__main__":
    sys.exit(bench_command("batch", __doc__, (QUICK, FULL), measure))
