"""The sorting example (deploy/examples/sort.py) on the mount of a fresh cluster,
next to the same program on the local disk.

Bytes are counted once, however often they are moved: sorting reads and writes them twice.  So is
the processor time, which is that of all steps together.
"""

import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from fs.app.terminal.progress import Progress

from .cluster import ROOT, fresh_cluster
from .command import bench_command
from .table import Row
from .used import GB, Meter, Used

RECORD_BYTES = 100
PROGRAM = ROOT / "deploy" / "examples" / "sort.py"
STEPS = ("generate", "partition", "merge", "sort", "validate")


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is sorted."""

    record_count: int
    chunk_mib: int
    process_count: int = 2


QUICK = Sizes(record_count=1_000_000, chunk_mib=16)
FULL = Sizes(record_count=10_737_419, chunk_mib=64)
"""1 GiB and a little."""


def sort(directory: Path, sizes: Sizes) -> dict[str, float]:
    """Run the program; return the seconds of each of its steps.

    Raises:
        RuntimeError: it failed; with its words.
    """
    command = [sys.executable, str(PROGRAM), "--json", f"--dir={directory}"]
    command += [f"--records={sizes.record_count}", f"--chunk-mib={sizes.chunk_mib}"]
    command += [f"--processes={sizes.process_count}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode:
        raise RuntimeError(f"{PROGRAM.name}: {done.stderr}")
    (taken,) = json.loads(done.stdout).values()
    return dict(taken)


def rows_of(
    mounted: dict[str, float], local: dict[str, float], sizes: Sizes, used: Used
) -> list[Row]:
    """Return what two runs come to; `used`: processor seconds of the first,
    but for the program's.
    """
    megabytes = sizes.record_count * RECORD_BYTES / 1e6
    rows = [
        Row(
            f"{step} (of the local disk)",
            megabytes / mounted[step],
            "MB/s",
            megabytes / local[step],
        )
        for step in STEPS
    ]
    used.program = mounted["processor"]
    each, limit = used.per_gb(megabytes * 1e6), local["processor"] / (megabytes * 1e6) * GB
    name = "processor of all, all steps (of the local program's)"
    return [*rows, Row(name, each.total, "s/GB", limit, is_smaller_better=True, used=each)]


def measure(sizes: Sizes, parent: Path | None, progress: Progress) -> list[Row]:
    """Sort here and there."""
    progress.step("sort: starting a cluster")
    with (
        tempfile.TemporaryDirectory(prefix="ember-sort-", dir=parent) as local,
        fresh_cluster(parent) as (directory, mounted),
    ):
        progress.step(f"sort: {sizes.record_count:,} records on the mount")
        with Meter(directory).used() as used:
            there = sort(mounted / "sort", sizes)
        progress.step("sort: the same on the local disk")
        return rows_of(there, sort(Path(local), sizes), sizes, used)


if __name__ == "__main__":
    sys.exit(bench_command("sort", __doc__, (QUICK, FULL), measure))
