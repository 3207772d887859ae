"""What the mount benchmark does to a directory: the same few loops for every file system it compares.

Every function takes a directory and returns a rate; data does not fit what it measures by accident: files
are read after the page cache has been dropped (needs root), small reads use O_DIRECT.
"""

import mmap
import os
import random
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

MIB = 1 << 20
READ_BLOCK_BYTES = 4096
THREAD_COUNT = 16


def drop_page_cache() -> None:
    """Write back and forget every clean page of the machine."""
    os.sync()
    Path("/proc/sys/vm/drop_caches").write_text("3\n")


def sequential_write(directory: Path, file_mib: int = 512) -> float:
    """Return MiB/s of writing one file in 1 MiB pieces, with the fsync at its end."""
    block = random.Random(1).randbytes(MIB)  # noqa: S311 - not a secret
    began = time.perf_counter()
    with (directory / "big").open("wb", buffering=0) as file:
        for _ in range(file_mib):
            file.write(block)
        os.fsync(file.fileno())
    return file_mib / (time.perf_counter() - began)


def sequential_read(directory: Path) -> float:
    """Return MiB/s of reading that file from the start, caches cold."""
    drop_page_cache()
    total = 0
    buffer = bytearray(MIB)
    began = time.perf_counter()
    with (directory / "big").open("rb", buffering=0) as file:
        while count := file.readinto(buffer):
            total += count
    return total / MIB / (time.perf_counter() - began)


def random_read(directory: Path, read_count: int = 8000) -> float:
    """Return 4 KiB O_DIRECT reads per second at random offsets, from 16 threads."""
    drop_page_cache()
    descriptor = os.open(directory / "big", os.O_RDONLY | os.O_DIRECT)
    block_count = os.fstat(descriptor).st_size // READ_BLOCK_BYTES

    def worker(seed: int) -> None:
        generator = random.Random(seed)  # noqa: S311 - not a secret
        buffer = mmap.mmap(-1, READ_BLOCK_BYTES)
        for _ in range(read_count // THREAD_COUNT):
            offset = generator.randrange(block_count) * READ_BLOCK_BYTES
            assert os.preadv(descriptor, [buffer], offset) == READ_BLOCK_BYTES

    began = time.perf_counter()
    with ThreadPoolExecutor(THREAD_COUNT) as pool:
        list(pool.map(worker, range(THREAD_COUNT)))
    took = time.perf_counter() - began
    os.close(descriptor)
    return read_count / took


def _rate(directory: Path, count: int, action: Callable[[Path], object]) -> float:
    paths = [directory / f"f{index}" for index in range(count)]
    began = time.perf_counter()
    for path in paths:
        action(path)
    return count / (time.perf_counter() - began)


def create_rate(directory: Path, count: int = 2000) -> float:
    """Return empty files created and closed per second, one thread."""
    flags = os.O_CREAT | os.O_WRONLY
    return _rate(directory, count, lambda path: os.close(os.open(path, flags)))


def stat_rate(directory: Path, count: int = 2000) -> float:
    """Return stats per second of those files, one thread."""
    return _rate(directory, count, os.stat)


def unlink_rate(directory: Path, count: int = 2000) -> float:
    """Return those files removed per second, one thread."""
    return _rate(directory, count, os.unlink)


WORKLOADS: list[tuple[str, str, Callable[[Path], float]]] = [
    ("sequential write + fsync", "MiB/s", sequential_write),
    ("sequential read, cold", "MiB/s", sequential_read),
    ("4 KiB random read, 16 threads", "1/s", random_read),
    ("create", "1/s", create_rate),
    ("stat", "1/s", stat_rate),
    ("unlink", "1/s", unlink_rate),
]
