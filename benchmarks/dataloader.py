"""Random samples of an FFRecord file, through the rings of a mount,
next to the same program on the local disk with warm caches.

Two loaders, each with 2 workers and batches of 256 samples of 16 KiB in a perfect shuffle: bare
processes over `emberfs.ffrecord`, and, where PyTorch is installed, its DataLoader over
`emberfs.torch`.  What is measured, here and there: one epoch after all caches were dropped, which
needs root; then, after another epoch, those that follow.
"""

import multiprocessing
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from emberfs.ffrecord import ENTRY_BYTES, FIXED_HEADER_BYTES, RecordReader, RecordWriter
from emberfs.opening import Connect, open_client
from emberfs.order import EpochOrder, share

from fs.app.terminal.progress import Progress

from .cluster import fresh_cluster
from .command import bench_command
from .table import Row
from .used import GB, Meter, Used
from .workloads import drop_page_cache

SAMPLE_BYTES = 16 << 10
BATCH = 256
WORKERS = 2
WARMING_EPOCHS = 2
"""The cold one, and another: on the mount the first is by rings,
and what it read is in the page cache before the second ends.
"""
GOAL = 0.6
"""Of the local disk."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """How many samples there are, and for how long they are read."""

    sample_count: int
    seconds: float


QUICK = Sizes(sample_count=8192, seconds=3.0)
FULL = Sizes(sample_count=131_072, seconds=20.0)


def write_samples(path: Path, sizes: Sizes) -> None:
    """Write the data set."""
    generator = random.Random(1)  # noqa: S311 - not a secret
    with RecordWriter(path, sizes.sample_count) as writer:
        for _ in range(sizes.sample_count):
            writer.write(generator.randbytes(SAMPLE_BYTES))


def batches(count: int, worker: int) -> Iterator[list[int]]:
    """Yield the batches of one worker, epoch after epoch, for ever."""
    epoch = 0
    while True:
        order = EpochOrder(count, 1, count, 1, epoch)
        mine = list(order.between(*share(count, worker, WORKERS)))
        for at in range(0, len(mine), BATCH):
            yield mine[at : at + BATCH]
        epoch += 1


def read_samples(path: Path, connect: Connect, seconds: float, worker: int) -> tuple[float, float]:
    """Read for so long, or for one epoch if that is 0;
    return samples per second, and processor seconds for each.
    """
    reader = RecordReader(path, connect)
    share_count = len(reader) // WORKERS
    count, began, used = 0, time.perf_counter(), time.process_time()
    for batch in batches(len(reader), worker):
        count += len(reader.read(batch))
        took = time.perf_counter() - began
        if took >= seconds > 0 or (seconds == 0 and count >= share_count):
            break
    used = time.process_time() - used
    reader.close()
    return count / took, used / count


@dataclass(frozen=True, slots=True)
class Pace:
    """How fast all workers of a loader were together, and what that took of processors."""

    rate: float
    """Samples per second."""
    used: float
    """Processor seconds of the program for each sample."""
    each: Used
    """Processor seconds of all processes for each GB."""

    @property
    def mount_us(self) -> float:
        """Microseconds of the mount daemon for each sample."""
        return self.each.mount * SAMPLE_BYTES / GB * 1e6


def bare_loader(path: Path, connect: Connect, seconds: float, meter: Meter) -> tuple[Pace, Pace]:
    """Return the pace of the first epoch, caches being cold, and of those after the second."""

    def run(seconds: float, epoch_samples: int) -> Pace:
        arguments = [(path, connect, seconds, worker) for worker in range(WORKERS)]
        with meter.used() as found:
            results = pool.starmap(read_samples, arguments, chunksize=1)
        rate = sum(rate for rate, _ in results)
        used = sum(used for _, used in results) / WORKERS
        count = epoch_samples or rate * seconds
        found.program = used * count
        return Pace(rate, used, found.per_gb(count * SAMPLE_BYTES))

    sample_count = (path.stat().st_size - FIXED_HEADER_BYTES) // (SAMPLE_BYTES + ENTRY_BYTES)
    with multiprocessing.get_context("spawn").Pool(WORKERS) as pool:
        pool.map(str, range(WORKERS))  # they have started
        drop_page_cache()
        cold, *_ = [run(0.0, sample_count) for _ in range(WARMING_EPOCHS)]
        return cold, run(seconds, 0)


def torch_loader(path: Path, connect: Connect, seconds: float) -> float:
    """Return samples per second that a DataLoader hands out."""
    from emberfs.torch.datasets import RecordDataset  # noqa: PLC0415 - where PyTorch is
    from emberfs.torch.loader import BlockSampler, ResumableLoader  # noqa: PLC0415
    from emberfs.torch.memory import stack_neighbours  # noqa: PLC0415

    dataset = RecordDataset(path, connect=connect)
    loader = ResumableLoader(
        dataset,
        batch_sampler=BlockSampler(len(dataset), BATCH, block=1, window=len(dataset)),
        num_workers=WORKERS,
        collate_fn=stack_neighbours,
        persistent_workers=True,
        multiprocessing_context="spawn",
    )
    for _ in range(WARMING_EPOCHS):
        for _ in loader:
            pass
    count, began = 0, time.perf_counter()
    while True:
        for batch in loader:
            count += len(batch)
            took = time.perf_counter() - began
            if took >= seconds:
                return count / took


def measure(sizes: Sizes, parent: Path | None, progress: Progress) -> list[Row]:
    """Measure both loaders, here and there."""
    progress.step("dataloader: starting a cluster")
    with (
        tempfile.TemporaryDirectory(prefix="ember-loader-", dir=parent) as beside,
        fresh_cluster(parent) as (directory, mounted),
    ):
        meter = Meter(directory)
        places = []
        for folder in (mounted, Path(beside)):
            progress.step(f"dataloader: writing {sizes.sample_count:,} samples to {folder}")
            path = folder / "samples.ffr"
            write_samples(path, sizes)
            places.append((path, partial(open_client, str(folder))))
        progress.step("dataloader: reading with bare processes")
        cold, warm = bare_loader(*places[0], sizes.seconds, meter)
        local_cold, local = bare_loader(*places[1], sizes.seconds, Meter())
        rows = [
            Row(
                "16 KiB x 256, 2 processes, later epochs (of local, warm)",
                warm.rate,
                "samples/s",
                local.rate,
                goal=GOAL,
                used=warm.each,
            ),
            Row(
                "  processor of the program",
                warm.used * 1e6,
                "us/sample",
                local.used * 1e6,
                is_smaller_better=True,
            ),
            Row("  processor of the mount daemon", warm.mount_us, "us/sample"),
            Row(
                "  first epoch, all caches cold (of local, cold)",
                cold.rate,
                "samples/s",
                local_cold.rate,
                used=cold.each,
            ),
            Row(
                "    processor of the program",
                cold.used * 1e6,
                "us/sample",
                local_cold.used * 1e6,
                is_smaller_better=True,
            ),
            Row("    processor of the mount daemon", cold.mount_us, "us/sample"),
        ]
        if find_spec("torch") is None:
            sys.stderr.write(
                "ember: no figures of PyTorch's DataLoader: pip install emberfs[torch]\n"
            )
            return rows
        progress.step("dataloader: reading with PyTorch's DataLoader")
        torch_rate, local_rate = (torch_loader(*place, sizes.seconds) for place in places)
        name = "the same by PyTorch's DataLoader (of local, warm)"
        return [*rows, Row(name, torch_rate, "samples/s", local_rate, goal=GOAL)]


if __name__ == "__main__":
    sys.exit(bench_command("dataloader", __doc__, (QUICK, FULL), measure))
