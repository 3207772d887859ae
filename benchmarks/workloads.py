"""What the mount benchmark does to a directory:
the same few loops for every file system it compares.

Every function takes a directory and the sizes, and returns a rate.  Data does not fit what it
measures by accident: before those of COLD whoever calls them drops the page cache (needs
root), small reads use O_DIRECT.
"""

import mmap
import os
import random
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

MIB = 1 << 20
READ_BLOCK_BYTES = 4096
SMALL_FILE_BYTES = 8192
THREAD_COUNT = 16
BIG_FILE = "big"
"""What is written and read in order, and at random."""
WARMING_COUNT = 3
"""Every replica gets to see the reads before they are measured."""

SOURCE_TREE = Path(__file__).resolve().parents[1] / "fs"


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much each workload does."""

    file_mib: int
    read_count: int
    file_count: int
    durable_count: int


QUICK = Sizes(file_mib=256, read_count=4000, file_count=500, durable_count=100)
FULL = Sizes(file_mib=2048, read_count=40_000, file_count=5000, durable_count=1000)
CACHES = Path("/proc/sys/vm/drop_caches")
"""By what is written there the machine forgets what it keeps of files and names."""


class Bound(Enum):
    """What a workload is measured against."""

    FUSE = "empty pyfuse3"
    LOCAL_THIRD = "local / 3"
    """Three copies on one disk."""


def drop_page_cache() -> None:
    """Write back and forget every clean page of the machine."""
    os.sync()
    CACHES.write_text("3\n")


def sequential_write(directory: Path, sizes: Sizes) -> float:
    """Return MiB/s of writing one file in 1 MiB pieces, with the fsync at its end."""
    block = random.Random(1).randbytes(MIB)  # noqa: S311 - not a secret
    os.sync()
    began = time.perf_counter()
    with (directory / BIG_FILE).open("wb", buffering=0) as file:
        for _ in range(sizes.file_mib):
            file.write(block)
        os.fsync(file.fileno())
    return sizes.file_mib / (time.perf_counter() - began)


def sequential_read(directory: Path, _sizes: Sizes) -> float:
    """Return MiB/s of reading that file from the start, caches cold."""
    return _read_through(directory / BIG_FILE)


def sequential_read_warm(directory: Path, _sizes: Sizes) -> float:
    """Return MiB/s of reading that file again, past the client's pages.

    Servers may read from their disks what few have read before; who knows how
    has their caches filled first.
    """
    return _read_through(directory / BIG_FILE, os.O_DIRECT)


def _read_through(path: Path, flags: int = 0) -> float:
    total = 0
    buffer = mmap.mmap(-1, MIB)
    descriptor = os.open(path, os.O_RDONLY | flags)
    began = time.perf_counter()
    while count := os.readv(descriptor, [buffer]):
        total += count
    took = time.perf_counter() - began
    os.close(descriptor)
    return total / MIB / took


def random_read(directory: Path, sizes: Sizes) -> float:
    """Return 4 KiB O_DIRECT reads per second at random offsets, from 16 threads, caches cold."""
    return _read_randomly(directory, sizes)


def random_read_warm(directory: Path, sizes: Sizes) -> float:
    """As `random_read`, but the caches of the servers hold what is read."""
    for _ in range(WARMING_COUNT):
        _read_randomly(directory, sizes)
    return _read_randomly(directory, sizes)


def _read_randomly(directory: Path, sizes: Sizes) -> float:
    descriptor = os.open(directory / BIG_FILE, os.O_RDONLY | os.O_DIRECT)
    block_count = os.fstat(descriptor).st_size // READ_BLOCK_BYTES

    def worker(seed: int) -> None:
        generator = random.Random(seed)  # noqa: S311 - not a secret
        buffer = mmap.mmap(-1, READ_BLOCK_BYTES)
        for _ in range(sizes.read_count // THREAD_COUNT):
            offset = generator.randrange(block_count) * READ_BLOCK_BYTES
            count = os.preadv(descriptor, [buffer], offset)
            assert count == READ_BLOCK_BYTES, count

    began = time.perf_counter()
    with ThreadPoolExecutor(THREAD_COUNT) as pool:
        list(pool.map(worker, range(THREAD_COUNT)))
    took = time.perf_counter() - began
    os.close(descriptor)
    return sizes.read_count / took


COLD = frozenset({sequential_read, random_read})
"""Before these the page cache is dropped.

That takes some tenths of a second of its caller's processor time, which are none of theirs.
"""


def _rate(directory: Path, count: int, action: Callable[[Path], object]) -> float:
    paths = [directory / f"f{index}" for index in range(count)]
    began = time.perf_counter()
    for path in paths:
        action(path)
    return count / (time.perf_counter() - began)


def create_rate(directory: Path, sizes: Sizes) -> float:
    """Return empty files created and closed per second, one thread."""
    flags = os.O_CREAT | os.O_WRONLY
    return _rate(directory, sizes.file_count, lambda path: os.close(os.open(path, flags)))


def stat_rate(directory: Path, sizes: Sizes) -> float:
    """Return stats per second of those files, one thread."""
    return _rate(directory, sizes.file_count, os.stat)


def rename_rate(directory: Path, sizes: Sizes) -> float:
    """Return renames per second of those files, one thread;
    every second one takes the name back.
    """

    def there_and_back(path: Path) -> None:
        other = path.with_suffix(".renamed")
        path.rename(other)
        other.rename(path)

    return 2 * _rate(directory, sizes.file_count, there_and_back)


def unlink_rate(directory: Path, sizes: Sizes) -> float:
    """Return those files removed per second, one thread."""
    return _rate(directory, sizes.file_count, os.unlink)


def durable_file_rate(directory: Path, sizes: Sizes) -> float:
    """Return files of 8 KiB written, fsynced and closed per second, one thread."""
    data = random.Random(1).randbytes(SMALL_FILE_BYTES)  # noqa: S311 - not a secret

    def write(path: Path) -> None:
        with path.with_suffix(".small").open("wb", buffering=0) as file:
            file.write(data)
            os.fsync(file.fileno())

    return _rate(directory, sizes.durable_count, write)


def copy_rate(directory: Path, _sizes: Sizes) -> float:
    """Return files per second of `cp -r` of this program's own sources."""
    files = [path for path in SOURCE_TREE.rglob("*") if path.is_file()]
    target = directory / "tree"
    for path in files:
        path.read_bytes()
    began = time.perf_counter()
    subprocess.run(["cp", "-r", str(SOURCE_TREE), str(target)], check=True)  # noqa: S603, S607
    return len(files) / (time.perf_counter() - began)


def _file_bytes(sizes: Sizes) -> int:
    return sizes.file_mib * MIB


def _read_bytes(sizes: Sizes) -> int:
    return sizes.read_count // THREAD_COUNT * THREAD_COUNT * READ_BLOCK_BYTES


def _read_bytes_warm(sizes: Sizes) -> int:
    return (WARMING_COUNT + 1) * _read_bytes(sizes)


def _durable_bytes(sizes: Sizes) -> int:
    return sizes.durable_count * SMALL_FILE_BYTES


Workload = tuple[
    str, str, Bound, float | None, Callable[[Path, Sizes], float], Callable[[Sizes], int] | None
]
"""Name, unit, what it is compared with, the goal if there is one, what does it,
and how many bytes that moves, if it is about bytes.
"""

WORKLOADS: list[Workload] = [
    ("sequential write + fsync", "MiB/s", Bound.LOCAL_THIRD, 0.8, sequential_write, _file_bytes),
    ("sequential read, cold", "MiB/s", Bound.FUSE, 0.5, sequential_read, _file_bytes),
    ("sequential read, servers warm", "MiB/s", Bound.FUSE, 0.5, sequential_read_warm, _file_bytes),
    ("4 KiB random read, 16 threads, cold", "/s", Bound.FUSE, 0.5, random_read, _read_bytes),
    (
        "4 KiB random read, 16 threads, servers warm",
        "/s",
        Bound.FUSE,
        0.5,
        random_read_warm,
        _read_bytes_warm,
    ),
    ("create", "/s", Bound.FUSE, None, create_rate, None),
    ("stat", "/s", Bound.FUSE, None, stat_rate, None),
    ("rename", "/s", Bound.FUSE, None, rename_rate, None),
    ("unlink", "/s", Bound.FUSE, None, unlink_rate, None),
    ("8 KiB file, fsync, close", "/s", Bound.LOCAL_THIRD, None, durable_file_rate, _durable_bytes),
    ("cp -r of small files", "files/s", Bound.FUSE, None, copy_rate, None),
]
