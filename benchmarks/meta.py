"""Names: operations per second on the mount, through the native client,
and of the metadata service alone.

`python -m benchmarks.meta [--full | --count N] [--dir DIRECTORY]`; needs root, because it
drops caches.  `--at DIRECTORY` instead: the workloads of the mount alone, in a folder of
their own there, which goes afterwards.  With `--beside DIRECTORY`, of another mounted file
system, both in turn, part by part: on a machine whose speed changes from one second to the
next nothing else compares two of them.

On the mount every workload runs with one thread and with eight, each in a directory of its own,
in turn with the empty pyfuse3 file system, which the kernel asks for the same (`empty_fuse.py`).
The native client does the same with tasks.  The service alone is one process over an embedded
store; its figures are what one core can do: a second divided by the processor time of an
operation, measured at the process.
"""

import multiprocessing
import os
import sys
import tempfile
import time
import tomllib
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import trio

from fs.app.terminal.progress import Progress
from fs.client.connect import connect
from fs.client.native import EmberFs
from fs.rpc.transport import SocketNetwork
from fs.runtime.real import real_runtime

from .cluster import fresh_cluster
from .command import bench_command
from .meta_alone import KINDS, alone
from .mount import empty_mount
from .table import Row
from .workloads import drop_page_cache

COUNT = 1000
"""Operations of each figure."""

WORKERS = (1, 8)
SMALL = bytes(65_536)

Action = Callable[[Path], object]


# ---- the mount ----------------------------------------------------------------------------------


def _create(path: Path) -> None:
    os.close(os.open(path, os.O_CREAT | os.O_WRONLY))


def _open(path: Path) -> None:
    os.close(os.open(path, os.O_RDONLY))


def _rename(path: Path) -> None:
    path.rename(path.with_suffix(".new"))


def _unlink_renamed(path: Path) -> None:
    path.with_suffix(".new").unlink()


def _write_small(path: Path) -> None:
    path.with_suffix(".small").write_bytes(SMALL)


def _read_small(path: Path) -> None:
    path.with_suffix(".small").read_bytes()


def _make_directory(path: Path) -> None:
    path.with_suffix(".d").mkdir()


ON_MOUNT: list[tuple[str, Action, bool]] = [
    ("create, close", _create, False),
    ("open, close", _open, False),
    ("stat, cold", os.stat, True),
    ("rename", _rename, False),
    ("unlink", _unlink_renamed, False),
    ("mkdir", _make_directory, False),
    ("64 KiB file written, closed", _write_small, False),
    ("64 KiB file read, cold", _read_small, True),
]
"""Name, what is done to each path, whether caches are dropped first; in this order."""

NOT_ON_EMPTY = {"64 KiB file read, cold"}
"""The empty file system has files of a length of its own."""

PARTS = 4
"""Of the operations of a figure: so often two places take turns."""


def _seconds(folders: list[Path], numbers: range, action: Action) -> float:
    """Return the seconds that an action takes on paths with these numbers in each folder,
    one thread for each.
    """

    def work(folder: Path) -> None:
        for index in numbers:
            action(folder / f"f{index}")

    began = time.perf_counter()
    with ThreadPoolExecutor(len(folders)) as pool:
        list(pool.map(work, folders))
    return time.perf_counter() - began


def in_turn(places: list[list[Path]], count: int, action: Action, *, is_cold: bool) -> list[float]:
    """Return actions per second in each place, which has a folder for each thread.

    What one place leaves to be done goes on while the next one is measured, so each is the first in
    half of the parts; caches are dropped before every part where that is wanted.
    """
    each = count // len(places[0])
    took = [0.0] * len(places)
    order = list(range(len(places)))
    ends = [each * part // PARTS for part in range(PARTS + 1)]
    for begin, end in pairwise(ends):
        numbers = range(begin, end)
        for number in order:
            if is_cold:
                drop_page_cache()
            took[number] += _seconds(places[number], numbers, action)
        order.reverse()
    return [each * len(places[0]) / seconds for seconds in took]


def _names_of(folder: Path) -> int:
    return sum(1 for _ in folder.iterdir())


def _attributes_of(folder: Path) -> int:
    with os.scandir(folder) as entries:
        return sum(1 for entry in entries if entry.stat(follow_symlinks=False))


def _listed(folders: list[Path], list_one: Callable[[Path], int]) -> float:
    """Return entries per second of listings by the same threads, caches cold."""
    drop_page_cache()
    began = time.perf_counter()
    with ThreadPoolExecutor(len(folders)) as pool:
        total = sum(pool.map(list_one, folders))
    return total / (time.perf_counter() - began)


def on_mount(
    mounted: Path, other: Path | None, workers: int, count: int, *, is_empty: bool = True
) -> list[Row]:
    """Measure every workload with so many threads, next to another file system if there is one.

    Args:
        mounted: a directory without names of ours, as `other`.
        other: of the file system whose figures stand in the column of the machine.
        workers: threads; each has a directory of its own.
        count: operations of each figure.
        is_empty: the other one is `empty_fuse.py`, which keeps nothing.
    """
    places = [
        [place / f"m{workers}-{i}" for i in range(workers)] for place in (mounted, other) if place
    ]
    for folders in places:
        for folder in folders:
            folder.mkdir()
    rows = []
    for name, action, is_cold in ON_MOUNT:
        compared = places[:1] if is_empty and name in NOT_ON_EMPTY else places
        rates = in_turn(compared, count, action, is_cold=is_cold)
        rows.append(Row(f"mount, {workers}: {name}", rates[0], "/s", _second(rates)))
        if name == "open, close":
            compared = places[:1] if is_empty else places
            for kind, list_one in (("names alone", _names_of), ("scandir + stat", _attributes_of)):
                rates = [_listed(folders, list_one) for folders in compared]
                told = f"mount, {workers}: {kind}, cold"
                rows.append(Row(told, rates[0], "entries/s", _second(rates)))
    return rows


def _second(rates: list[float]) -> float | None:
    return rates[1] if len(rates) > 1 else None


# ---- the native client --------------------------------------------------------------------------


async def _native_create(client: EmberFs, path: str) -> None:
    await (await client.create(path)).close()


async def _native_rename(client: EmberFs, path: str) -> None:
    await client.rename(path, f"{path}.new")


async def _native_unlink(client: EmberFs, path: str) -> None:
    await client.unlink(f"{path}.new")


async def _native_mkdir(client: EmberFs, path: str) -> None:
    await client.mkdir(f"{path}.d")


async def _native_write(client: EmberFs, path: str) -> None:
    await client.write_file(f"{path}.small", SMALL)


async def _native_read(client: EmberFs, path: str) -> None:
    await client.read_file(f"{path}.small")


async def _native_open(client: EmberFs, path: str) -> None:
    await (await client.open(path)).close()


NATIVE: list[tuple[str, Callable[[EmberFs, str], Awaitable[object]]]] = [
    ("create, close", _native_create),
    ("open, close", _native_open),
    ("stat", EmberFs.stat),
    ("rename", _native_rename),
    ("unlink", _native_unlink),
    ("mkdir", _native_mkdir),
    ("64 KiB file written, closed", _native_write),
    ("64 KiB file read", _native_read),
]


async def _each(
    client: EmberFs, paths: list[str], action: Callable[[EmberFs, str], Awaitable[object]]
) -> None:
    for path in paths:
        await action(client, path)


async def native(mgmtd: list[str], cluster_id: str, count: int) -> list[Row]:
    """Measure the native client with one task and with eight."""
    rows = []
    async with connect(mgmtd, cluster_id, runtime=real_runtime(SocketNetwork())) as client:
        for workers in WORKERS:
            folders = [f"/n{workers}-{i}" for i in range(workers)]
            for folder in folders:
                await client.mkdir(folder)
            for name, action in NATIVE:
                began = time.perf_counter()
                async with trio.open_nursery() as nursery:
                    for folder in folders:
                        paths = [f"{folder}/f{index}" for index in range(count // workers)]
                        nursery.start_soon(_each, client, paths, action)
                rate = count / (time.perf_counter() - began)
                rows.append(Row(f"native, {workers}: {name}", rate, "/s"))
            began = time.perf_counter()
            found = sum([len(await client.listdir(folder)) for folder in folders])
            rate = found / (time.perf_counter() - began)
            rows.append(Row(f"native, {workers}: listing with attributes", rate, "entries/s"))
    return rows


def measure(count: int, parent: Path | None, progress: Progress) -> list[Row]:
    """Measure everything; `count` operations, a multiple of eight, for each figure."""
    rows: list[Row] = []
    progress.step("meta: starting a cluster")
    with empty_mount() as empty, fresh_cluster(parent) as (directory, mounted):
        for workers in WORKERS:
            progress.step(f"meta: names on the mount, {workers} at a time")
            rows += on_mount(mounted, empty, workers, count)
        progress.step("meta: names through the native client")
        config = tomllib.loads((directory / "config" / "mount-1.toml").read_text())["process"]
        rows += trio.run(native, config["mgmtd_addresses"], config["cluster_id"], count)
    progress.step(f"meta: the service alone: {', '.join(KINDS)}")
    with tempfile.TemporaryDirectory(prefix="ember-meta-", dir=parent) as folder:
        rows += alone(multiprocessing.get_context("spawn"), folder, WORKERS, count)
    return rows


def measure_at(count: int, mounted: Path, progress: Progress) -> list[Row]:
    """Measure a mounted file system of any kind, in a folder of their own below `mounted`."""
    progress.step(f"meta: names in {mounted}")
    with tempfile.TemporaryDirectory(prefix="ember-meta-", dir=mounted) as folder:
        return [row for workers in WORKERS for row in on_mount(Path(folder), None, workers, count)]


def measure_beside(count: int, mounted: Path, other: Path, progress: Progress) -> list[Row]:
    """Measure two mounted file systems in turn, in a folder of their own below each;
    those of `other` are the column of the machine.
    """
    rows = []
    with (
        tempfile.TemporaryDirectory(prefix="ember-meta-", dir=mounted) as ours,
        tempfile.TemporaryDirectory(prefix="ember-meta-", dir=other) as others,
    ):
        for workers in WORKERS:
            progress.step(f"meta: names in {mounted}, and in {other}, {workers} at a time")
            rows += on_mount(Path(ours), Path(others), workers, count, is_empty=False)
    return rows


if __name__ == "__main__":
    amount = "operations of each figure"
    sizes = (COUNT, 10 * COUNT)
    sys.exit(
        bench_command(
            "meta",
            __doc__,
            sizes,
            measure,
            amount=amount,
            measure_at=measure_at,
            measure_beside=measure_beside,
            has_small_files=True,
        )
    )
