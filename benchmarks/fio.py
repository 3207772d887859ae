"""What fio reaches on the local disk by io_uring and O_DIRECT:
the yardstick that users know, beside the stricter one of `disk.py`.

Large blocks are of 1 MiB, 16 in flight, out of memory of small pages: of that the disk that most
figures come from reads a third to a half of what six threads with huge pages read (`disk.py` says
why).  So both stand in the tables, like beside like: new files beside a new one, what is written
over beside such, cold reads beside reads past the page cache.

Where there is no fio, or it may not use io_uring, that is told once, and the column is missing.
"""

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from shutil import which
from tempfile import TemporaryDirectory
from typing import Any

from .workloads import MIB

FILE_MIB = 1024
DEPTH = 16
READ_SECONDS = 1.0
_MIB_IN_KIB = 1024
LEGEND = (
    "machine: what stands in brackets; the disk of large blocks is six threads with huge pages, "
    "as fast as it goes (benchmarks/disk.py). "
    f"fio: io_uring, O_DIRECT, 1 MiB, {DEPTH} in flight, on the same disk in the same run, like "
    "beside like, / 3 where that is."
)


class Large(Enum):
    """What is done to a file in large blocks."""

    NEW = "a new file, durable at the end"
    OVER = "written over, durable at the end"
    READ = "read past the page cache"


class LargeBlocks:
    """A file of fio's own, moved as often as is asked for; medians count."""

    def __init__(self, path: Path, mib: int = FILE_MIB) -> None:
        """Take the name of the file, which is made with the first measurement."""
        self._path, self._mib = path, mib
        self._paces: dict[Large, list[float]] = {kind: [] for kind in Large}
        self._is_there = which("fio") is not None
        if not self._is_there:
            sys.stderr.write("ember: no figures beside fio's: it is not installed\n")

    def measure(self, *kinds: Large) -> None:
        """Do each of these once; nothing where there is no fio."""
        for kind in kinds:
            if kind is not Large.NEW and not self._path.exists():
                self._move(Large.NEW)  # to be read, or written over
            pace = self._move(kind)
            if pace is not None:
                self._paces[kind].append(pace)

    def mib_s(self, kind: Large, share: int = 1) -> float | None:
        """Return the median of what was measured, divided by `share`; None: there is none."""
        paces = self._paces[kind]
        return statistics.median(paces) / share if paces else None

    def _move(self, kind: Large) -> float | None:
        if not self._is_there:
            return None
        options = ["--rw=read", "--time_based", f"--runtime={READ_SECONDS:g}", "--readonly"]
        if kind is not Large.READ:
            options = ["--rw=write", "--end_fsync=1"]
        if kind is Large.NEW:
            self._path.unlink(missing_ok=True)
            os.sync()  # as for the stricter figure: its space is given back now
        try:
            found = run_fio(self._path, MIB, DEPTH, [f"--size={self._mib}M", *options])
        except subprocess.CalledProcessError as error:
            self._is_there = False
            sys.stderr.write(f"ember: no figures beside fio's: it failed: {error.stderr.strip()}\n")
            return None
        return float(found["read" if kind is Large.READ else "write"]["bw"]) / _MIB_IN_KIB


def least_of(by_fio: float | None, other: float) -> float | None:
    """Return the lesser of fio's figure and another limit; None: there is none of fio."""
    return None if by_fio is None else min(by_fio, other)


@contextmanager
def large_blocks(parent: Path | None, mib: int = FILE_MIB) -> Iterator[LargeBlocks]:
    """Have a file in a directory of the disk that is meant (default: the temporary one),
    gone afterwards.
    """
    with TemporaryDirectory(prefix="ember-fio-", dir=parent) as folder:
        yield LargeBlocks(Path(folder, "large"), mib)


def run_fio(path: Path, block_bytes: int, depth: int, options: Sequence[str]) -> dict[str, Any]:
    """Run one job of fio on a file, past the page cache by io_uring; return what it tells of it.

    Raises:
        FileNotFoundError: fio is not installed.
        subprocess.CalledProcessError: it failed; its words are in `stderr`.
    """
    command = [
        "fio",
        "--name=limit",
        f"--filename={path}",
        "--direct=1",
        "--ioengine=io_uring",
        f"--iodepth={depth}",
        f"--bs={block_bytes}",
        "--output-format=json",
        *options,
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=True)  # noqa: S603
    told = done.stdout[done.stdout.index("{") :]  # warnings may stand before it
    return dict(json.loads(told)["jobs"][0])
