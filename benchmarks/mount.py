"""The mount of a fresh cluster, next to the empty pyfuse3 file system and a plain directory.

`python -m benchmarks.mount [--full] [--dir DIRECTORY]`; needs root, because it drops the page cache.
All three are measured in turn for each workload, so that a busy machine slows them alike.
`--at DIRECTORY` instead: the same in a folder of its own there, which goes afterwards, on any mounted file system.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fs.app.progress import Progress

from .cluster import ROOT, fresh_cluster, warm_up
from .command import bench_command
from .table import Row
from .used import Meter
from .workloads import BIG_FILE, FULL, QUICK, WORKLOADS, Bound, Sizes, sequential_read_warm

MOUNT_TIMEOUT_S = 10.0
REPLICAS = 3


@contextmanager
def empty_mount() -> Iterator[Path]:
    """Mount the do-nothing file system; yield where."""
    with tempfile.TemporaryDirectory(prefix="ember-empty-") as folder:
        command = [sys.executable, "-m", "benchmarks.empty_fuse", folder]
        with subprocess.Popen(command, cwd=ROOT) as process:  # noqa: S603
            try:
                _wait_mounted(folder)
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
    progress.step("mount: starting a cluster")
    with (
        tempfile.TemporaryDirectory(prefix="ember-local-", dir=parent) as local,
        empty_mount() as empty,
        fresh_cluster(parent) as (directory, mounted),
    ):
        meter = Meter(directory)
        for name, unit, bound, goal, workload, moved in WORKLOADS:
            progress.step(f"mount: {name}")
            if workload is sequential_read_warm:
                warm_up(directory, mounted / BIG_FILE)
            with meter.used() as used:
                value = workload(mounted, sizes)
            on_empty = workload(empty, sizes)
            on_local = workload(Path(local), sizes)
            limit = on_empty if bound is Bound.FUSE else on_local / REPLICAS
            each = used.per_gb(moved(sizes)) if moved is not None else None
            title = f"{name} (of {bound.value})"
            rows.append(Row(title, value, unit, limit, goal=goal, used=each))
    return rows


def measure_at(sizes: Sizes, mounted: Path, progress: Progress) -> list[Row]:
    """Measure a mounted file system of any kind, in a folder of its own below `mounted`."""
    rows = []
    with tempfile.TemporaryDirectory(prefix="ember-mount-", dir=mounted) as folder:
        for name, unit, _, _, workload, _ in WORKLOADS:
            progress.step(f"mount: {name} in {mounted}")
            rows.append(Row(name, workload(Path(folder), sizes), unit))
    return rows


if __name__ == "__main__":
    sys.exit(bench_command("mount", __doc__, (QUICK, FULL), measure, measure_at=measure_at))
