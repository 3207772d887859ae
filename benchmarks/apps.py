"""What people do with trees of small files, by the programs that they do it with:
on the mount, and on the local disk.

Each program works on a copy of this program's own sources.  Told are files per second, and for each
file the processor time and what the mount was asked for by the kernel.  Closes are durable on the
mount and not on the local disk.  `--at DIRECTORY` instead: the same programs in a folder of their
own there, which goes afterwards, on any mounted file system.
"""

import os
import resource
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from fs.app.monitoring.mount_stat import metrics_of_mount
from fs.app.monitoring.scraped import Reading, Span, fetch, parse
from fs.app.monitoring.top import KERNEL
from fs.app.terminal.progress import Progress

from .cluster import fresh_cluster
from .command import bench_command
from .table import Row
from .used import Meter
from .workloads import SOURCE_TREE

FILE_COUNT, FULL_FILE_COUNT = 200, 2000
MILLI = 1000


@dataclass(frozen=True, slots=True)
class Program:
    """One of them; it is run in a directory of its own."""

    name: str
    command: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Source:
    """The same files in each of the forms that programs begin with; on the local disk."""

    tree: Path
    archive: Path
    repository: Path | None
    """None: there is no git."""
    file_count: int


def make_source(directory: Path, file_count: int) -> Source:
    """Copy sources, again and again, until there are so many files."""
    tree = directory / "tree"
    tree.mkdir(parents=True)
    files = [path for path in sorted(SOURCE_TREE.rglob("*.py")) if path.is_file()]
    for index in range(file_count):
        turn, place = divmod(index, len(files))
        target = tree / str(turn) / files[place].relative_to(SOURCE_TREE)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(files[place], target)
    archive = directory / "tree.tar"
    with tarfile.open(archive, "w") as tar:
        tar.add(tree, "tree")
    repository = _make_repository(directory, tree) if shutil.which("git") else None
    return Source(tree, archive, repository, file_count)


def _make_repository(directory: Path, tree: Path) -> Path:
    repository = directory / "repository"
    git = ("git", f"--git-dir={repository}", f"--work-tree={tree}")
    identity = ("-c", "user.name=bench", "-c", "user.email=bench@example.invalid")
    _run((*git, "init", "-q"), directory)
    _run((*git, "add", "-A"), directory)
    _run((*git, *identity, "commit", "-q", "-m", "all"), directory)
    return repository


def programs(source: Source) -> Iterator[Program]:
    """Yield what is run, in this order: some need what others have made."""
    if source.repository is not None:
        command = ("git", "clone", "-q", "--no-local", str(source.repository), "clone")
        yield Program("git clone", command)
    yield Program("cp -a", ("cp", "-a", str(source.tree), "copy"))
    yield Program("tar x", ("tar", "xf", str(source.archive)))
    yield Program("python -m compileall", (sys.executable, "-m", "compileall", "-q", "tree"))
    yield Program("rm -r", ("rm", "-r", "copy"))


def _run(command: tuple[str, ...], directory: Path) -> None:
    environment = os.environ | {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
    subprocess.run(command, cwd=directory, check=True, env=environment)  # noqa: S603


def seconds(program: Program, directory: Path) -> tuple[float, float]:
    """Run a program; return how long it took, and its processor time."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    _run(program.command, directory)
    took, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return took, used


class Counted:
    """Requests of the kernel to a mount."""

    def __init__(self, mounted: Path) -> None:
        self._address = metrics_of_mount(mounted)

    def _read(self) -> Reading:
        return parse(fetch(self._address), time.monotonic())

    @contextmanager
    def requests(self) -> Iterator[list[float]]:
        """Yield a list that holds their number after the block."""
        found: list[float] = []
        before = self._read()
        yield found
        found.append(Span(before, self._read()).grown(f"{KERNEL}_count"))


def rows_of(program: Program, source: Source, places: tuple[Path, Path], meter: Meter) -> list[Row]:
    """Run a program on the mount and on the local disk; return what that comes to for each file."""
    mounted, local = places
    counted, count = Counted(mounted.parent), source.file_count
    with meter.used() as used, counted.requests() as requests:
        took_s, program_s = seconds(program, mounted)
    local_s, local_program_s = seconds(program, local)
    total_s = used.mount + used.storage + used.others + program_s
    return [
        Row(f"{program.name} (of the local disk)", count / took_s, "files/s", count / local_s),
        Row(
            "  processor of all, each file (of the local program's)",
            total_s / count * MILLI,
            "ms",
            local_program_s / count * MILLI,
            is_smaller_better=True,
        ),
        Row("  requests of the kernel, each file", requests[0] / count, ""),
    ]


def measure(file_count: int, parent: Path | None, progress: Progress) -> list[Row]:
    """Run each program here and there, one after the other."""
    progress.step("apps: starting a cluster")
    rows: list[Row] = []
    with (
        tempfile.TemporaryDirectory(prefix="ember-apps-", dir=parent) as folder,
        fresh_cluster(parent) as (directory, mount_point),
    ):
        source = make_source(Path(folder), file_count)
        places = (mount_point / "apps", Path(folder) / "local")
        for place in places:
            place.mkdir()
        meter = Meter(directory)
        for program in programs(source):
            progress.step(f"apps: {program.name}, {file_count:,} files")
            rows += rows_of(program, source, places, meter)
    return rows


def measure_at(file_count: int, mounted: Path, progress: Progress) -> list[Row]:
    """Run each program on a mounted file system of any kind,
    in a folder of its own below `mounted`.
    """
    rows = []
    with (
        tempfile.TemporaryDirectory(prefix="ember-apps-") as here,
        tempfile.TemporaryDirectory(prefix="ember-apps-", dir=mounted) as there,
    ):
        source = make_source(Path(here), file_count)
        for program in programs(source):
            progress.step(f"apps: {program.name}, {file_count:,} files, in {mounted}")
            took_s, _ = seconds(program, Path(there))
            rows.append(Row(program.name, file_count / took_s, "files/s"))
    return rows


if __name__ == "__main__":
    sizes = (FILE_COUNT, FULL_FILE_COUNT)
    sys.exit(
        bench_command(
            "apps",
            __doc__,
            sizes,
            measure,
            amount="files",
            measure_at=measure_at,
            has_small_files=True,
        )
    )
