"""What the local disk moves in large blocks:
past the page cache, out of huge pages, several at once, as storage processes do it.

Not by fio, whose memory is of small pages: a MiB of these has more pieces than a disk of
254 takes in one request, and the same disk reads a third of what it reads into huge
pages, another third every minute.

A write is not a write: a new file takes space that, on a virtual disk, the host has to find at the
first write (also after a `discard`), and a file that is written over does not.  So each is compared
with its like, and `held_bytes` tells which one it was.
"""

import mmap
import os
import statistics
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from fs.runtime.plain_memory import touch

from .workloads import MIB

BLOCK_BYTES = 2 * MIB
THREAD_COUNT = 6
READ_ROUNDS = 5
_SECTOR_BYTES = 512
"""In which `st_blocks` counts, whatever the disk."""
_ROUNDS_MAX, _ROUND_MIB = 3, 1024


def rounds_of(mib: int) -> int:
    """Return how often so much is to be written: what takes some tenths of a second several times,
    since others may have the processors for that long.
    """
    return max(1, min(_ROUNDS_MAX, _ROUND_MIB // mib))


def huge_memory(byte_count: int) -> memoryview:
    """Return private memory, in huge pages where there are some, that has been touched."""
    memory = mmap.mmap(-1, byte_count, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):  # a kernel without huge pages
        memory.madvise(mmap.MADV_HUGEPAGE)
    view = memoryview(memory)
    touch(view)  # as a storage process does when it begins to serve
    return view


def held_bytes(folder: Path) -> int:
    """Return what the files below a folder take on their disk."""
    sectors = 0
    for path in folder.rglob("*"):
        with suppress(FileNotFoundError):  # logs of stores come and go
            sectors += path.stat().st_blocks if path.is_file() else 0
    return sectors * _SECTOR_BYTES


def new_file_mib_s(path: Path, mib: int) -> float:
    """Return MiB/s of writing a new file, which stays, durable at the end;
    a file that is there goes before.
    """
    path.unlink(missing_ok=True)
    os.sync()  # its space is given back now, not while the next one is written
    return _written_mib_s(path, mib)


def written_over_mib_s(path: Path) -> float:
    """Return MiB/s of writing a file over that `new_file_mib_s` has made, durable at the end."""
    return _written_mib_s(path, path.stat().st_size // MIB)


def read_mib_s(path: Path) -> float:
    """Return MiB/s of reading a file, the median of READ_ROUNDS.

    Raises:
        ValueError: the file has holes, which no disk is asked for.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECT)
    try:
        os.fsync(descriptor)
        state = os.fstat(descriptor)
        if state.st_blocks * _SECTOR_BYTES < state.st_size:
            raise ValueError(
                f"{path} has holes: {state.st_blocks} sectors of {state.st_size} bytes"
            )
        length = state.st_size // MIB * MIB
        blocks = _blocks()
        times = [_moved_s(os.preadv, descriptor, length, blocks) for _ in range(READ_ROUNDS)]
    finally:
        os.close(descriptor)
    return length / MIB / statistics.median(times)


def _written_mib_s(path: Path, mib: int) -> float:
    blocks = _blocks()
    for block in blocks:
        block[:] = os.urandom(BLOCK_BYTES)
    began = time.perf_counter()
    descriptor = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_DIRECT, 0o600)
    try:
        # Writes that lengthen a file wait for each other.
        os.posix_fallocate(descriptor, 0, mib * MIB)
        _moved_s(os.pwritev, descriptor, mib * MIB, blocks)
        os.fdatasync(descriptor)
    finally:
        os.close(descriptor)
    return mib / (time.perf_counter() - began)


def _blocks() -> list[memoryview]:
    memory = huge_memory(THREAD_COUNT * BLOCK_BYTES)
    return [memory[i * BLOCK_BYTES :][:BLOCK_BYTES] for i in range(THREAD_COUNT)]


def _moved_s(
    move: Callable[[int, list[memoryview], int], int],
    descriptor: int,
    length: int,
    blocks: list[memoryview],
) -> float:
    """Return the seconds in which threads, each with a block of memory, move a file once."""
    offsets, lock = iter(range(0, length, BLOCK_BYTES)), threading.Lock()

    def work(block: memoryview) -> None:
        while True:
            with lock:
                offset = next(offsets, None)
            if offset is None:
                return
            wanted = min(BLOCK_BYTES, length - offset)
            moved = move(descriptor, [block[:wanted]], offset)
            assert moved == wanted, (moved, wanted)

    began = time.perf_counter()
    with ThreadPoolExecutor(len(blocks)) as pool:
        list(pool.map(work, blocks))
    return time.perf_counter() - began
