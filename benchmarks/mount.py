"""The mount of a fresh cluster, next to the empty pyfuse3 file system and a plain directory.

`python -m benchmarks.mount [--full] [--dir DIRECTORY]`; needs root, because it drops the page
cache.  All three are measured in turn for each workload, so that a busy machine slows them alike;
large reads and writes, which are over soon, several times, and the medians count.  Memory that a
host would have to find first is found before.  Each has a folder for it that it has made, as
programs work in: of the root, which it has not made, a mount does not know which names are
absent.  `--at DIRECTORY` instead: the same, as often, in a folder of its own there, which goes
afterwards, on any mounted file system.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from fs.app.terminal.progress import Progress
from fs.client.fuse.mount_point import set_read_ahead
from fs.schema.config import ClientSection

from .cluster import ROOT, fresh_cluster, warm_up
from .command import bench_command
from .disk import new_file_mib_s, rounds_of
from .fio import Large, LargeBlocks, large_blocks
from .machine import TOUCHED_COPIES, touch_memory
from .table import Row
from .used import Meter, Used
from .workloads import (
    BIG_FILE,
    COLD,
    FULL,
    MIB,
    QUICK,
    WORKLOADS,
    Bound,
    Sizes,
    Workload,
    drop_page_cache,
    random_read_warm,
    sequential_read,
    sequential_read_warm,
    sequential_write,
)

MOUNT_TIMEOUT_S = 10.0
REPLICAS = 3
FOLDER = "mount-benchmark"
READ_ROUNDS = 5
"""Of large reads, each some tenths of a second: others may have the processors for that long."""


@contextmanager
def empty_mount() -> Iterator[Path]:
    """Mount the do-nothing file system, read ahead as ours is; yield where."""
    with _mount_of("benchmarks.empty_fuse") as folder:
        yield folder


@contextmanager
def _mount_of(module: str, *arguments: str) -> Iterator[Path]:
    """Mount a file system of pyfuse3, read ahead as ours is; yield where."""
    with tempfile.TemporaryDirectory(prefix="ember-empty-") as folder:
        command = [sys.executable, "-m", module, *arguments, folder]
        with subprocess.Popen(command, cwd=ROOT) as process:  # noqa: S603
            try:
                _wait_mounted(folder)
                set_read_ahead(Path(folder), ClientSection().kernel_readahead_bytes)
                yield Path(folder)
            finally:
                subprocess.run(["umount", folder], check=True)  # noqa: S603, S607
                process.wait(MOUNT_TIMEOUT_S)


def _wait_mounted(folder: str) -> None:
    deadline = time.monotonic() + MOUNT_TIMEOUT_S
    while not os.path.ismount(folder):
        if time.monotonic() > deadline:
            raise TimeoutError(f"{folder} was not mounted within {MOUNT_TIMEOUT_S} s")
        time.sleep(0.05)


def measure(sizes: Sizes, parent: Path | None, progress: Progress) -> list[Row]:
    """Measure every workload."""
    rows = []
    progress.step("mount: using memory for the first time")
    touch_memory(TOUCHED_COPIES * sizes.file_mib * MIB)
    progress.step("mount: starting a cluster")
    with (
        tempfile.TemporaryDirectory(prefix="ember-local-", dir=parent) as local,
        empty_mount() as empty,
        fresh_cluster(parent) as (directory, mounted),
        large_blocks(Path(local)) as fio,
    ):
        meter = Meter(directory)
        ours, beside = mounted / FOLDER, empty / FOLDER
        ours.mkdir()
        beside.mkdir()
        for kind in WORKLOADS:
            progress.step(f"mount: {kind[0]}")
            folders = directory, ours, beside, Path(local)
            row = _measured(kind, sizes, meter, folders, _rounds(kind[4], sizes))
            rows.append(_beside_fio(row, sizes, fio) if kind[4] is sequential_write else row)
            if kind[4] in COLD:
                progress.step("mount: the same by a file system that reads the disk itself")
                rows.append(_measured_disk(kind, sizes, Path(local), empty))
    return rows


def _beside_fio(row: Row, sizes: Sizes, fio: LargeBlocks) -> Row:
    """Return the row of what is written next to a third of what fio writes as well,
    new files both, as often.
    """
    for _ in range(_rounds(sequential_write, sizes)):
        fio.measure(Large.NEW)
    return replace(row, fio=fio.mib_s(Large.NEW, REPLICAS))


def _measured_disk(kind: Workload, sizes: Sizes, local: Path, empty: Path) -> Row:
    """Measure the cold reads of any pyfuse3 file system that reads a disk and does nothing else,
    beside those of the empty one.
    """
    _, unit, _, _, workload, _ = kind
    path, values, limits = local / "read-by-fuse", [], []
    new_file_mib_s(path, sizes.file_mib)
    with _mount_of("benchmarks.disk_fuse", str(path)) as mounted:
        (mounted / BIG_FILE).touch()
        for _ in range(READ_ROUNDS):
            for folder, rates in ((mounted, values), (empty / FOLDER, limits)):
                drop_page_cache()
                rates.append(workload(folder, sizes))
    path.unlink()
    value, limit = statistics.median(values), statistics.median(limits)
    return Row(
        "the same, pyfuse3 that reads the disk itself (of empty pyfuse3)", value, unit, limit
    )


def _rounds(workload: Callable[[Path, Sizes], float], sizes: Sizes) -> int:
    if workload is sequential_write:
        return rounds_of(sizes.file_mib)
    return READ_ROUNDS if workload in (sequential_read, sequential_read_warm) else 1


def _renew(
    workload: Callable[[Path, Sizes], float], number: int, folder: Path, sizes: Sizes
) -> None:
    """Have the large file be as new as in the first round:
    one written over has its space, what was read before takes another way.
    """
    if workload is sequential_write:
        (folder / BIG_FILE).unlink(missing_ok=True)
    elif workload is sequential_read and number:
        (folder / BIG_FILE).unlink()
        sequential_write(folder, sizes)


def _cool(workload: Callable[[Path, Sizes], float]) -> None:
    if workload in COLD:
        drop_page_cache()


def _measured(
    kind: Workload, sizes: Sizes, meter: Meter, folders: tuple[Path, Path, Path, Path], rounds: int
) -> Row:
    """Do a workload in turn on the mount, on the empty file system and on the disk;
    `folders` begins with the cluster's directory.
    """
    name, unit, bound, goal, workload, moved = kind
    directory, mounted, empty, local = folders
    beside = empty if bound is Bound.FUSE else local
    values, limits, used = [], [], Used()
    for number in range(rounds):
        if workload in (sequential_read_warm, random_read_warm):
            warm_up(directory, mounted / BIG_FILE)
        for folder in (mounted, local) if workload is sequential_write else (mounted,):
            _renew(workload, number, folder, sizes)
        _cool(workload)
        with meter.used() as used_now:
            values.append(workload(mounted, sizes))
        used.add(used_now)
        _cool(workload)
        limits.append(workload(beside, sizes))
    value, limit = statistics.median(values), statistics.median(limits)
    if bound is not Bound.FUSE:
        limit /= REPLICAS
        workload(empty, sizes)  # whose files others read
    each = used.per_gb(rounds * moved(sizes)) if moved is not None else None
    return Row(f"{name} (of {bound.value})", value, unit, limit, goal=goal, used=each)


def measure_at(sizes: Sizes, mounted: Path, progress: Progress) -> list[Row]:
    """Measure a mounted file system of any kind, in a folder of its own below `mounted`."""
    rows = []
    with tempfile.TemporaryDirectory(prefix="ember-mount-", dir=mounted) as folder:
        for name, unit, _, _, workload, _ in WORKLOADS:
            progress.step(f"mount: {name} in {mounted}")
            values = []
            for number in range(_rounds(workload, sizes)):
                _renew(workload, number, Path(folder), sizes)
                _cool(workload)
                values.append(workload(Path(folder), sizes))
            rows.append(Row(name, statistics.median(values), unit))
    return rows


if __name__ == "__main__":
    sys.exit(bench_command("mount", __doc__, (QUICK, FULL), measure, measure_at=measure_at))
