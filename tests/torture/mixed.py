"""Blocks of 4 KiB in which a reader finds several versions of a file that is replaced
in place meanwhile, and which.

    python -m tests.torture.mixed READ_DIR WRITE_DIR [--seconds S] [--cool DIR ...]

Two directories with the same files, of two mounts or one.  A writer replaces the files whole,
in calls of 1 MiB, version by version; two readers drop their pages and read them from the
beginning to the end.  With --cool what storage keeps below a directory is not in the page
cache, either, so that the disk is read.  Says of each mixed block where it is and of which
versions it is made, from which byte on.
"""

import argparse
import json
import multiprocessing as mp
import os
import random
import time
from array import array
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

MIB: Final = 1 << 20
BLOCK: Final = 4096
WORD: Final = 8
FILE_COUNT: Final = 4
FILE_BYTES: Final = 16 * MIB
PARTS_SHOWN: Final = 8
_LOW: Final = (1 << 32) - 1


@dataclass(frozen=True, slots=True)
class Part:
    """Bytes of one version in a block."""

    first_byte: int
    version: int
    block: int
    """Which block of its file they were written to."""


def content(version: int, size: int = FILE_BYTES) -> memoryview:
    """Return a file of which each word tells its version and its block."""
    words = array("Q")
    for block in range(size // BLOCK):
        words.extend([version << 32 | block] * (BLOCK // WORD))
    return memoryview(words).cast("B")


def parts_of(block: bytes) -> list[Part]:
    """Return what a block is made of; mostly one part."""
    words = memoryview(block).cast("Q")
    if block == block[:WORD] * len(words):
        return [Part(0, words[0] >> 32, words[0] & _LOW)]
    return [
        Part(place * WORD, word >> 32, word & _LOW)
        for place, word in enumerate(words)
        if not place or word != words[place - 1]
    ]


def cool(path: Path) -> None:
    """Drop what the page cache has of a file."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)


def names(directory: Path) -> list[Path]:
    """Return the files of a directory of either side."""
    return [directory / f"mixed-{number}" for number in range(FILE_COUNT)]


def write(directory: Path, first_is_there, is_over, versions) -> None:
    """Replace the files until it is over; `versions` counts."""
    while not is_over.is_set():
        data = content(versions.value)
        for path in names(directory):
            with path.open("r+b" if path.exists() else "wb", buffering=0) as file:
                for start in range(0, FILE_BYTES, MIB):
                    os.pwrite(file.fileno(), data[start : start + MIB], start)
                os.fsync(file.fileno())
        versions.value += 1
        first_is_there.set()


def mixed_in(path: Path) -> Iterator[tuple[int, list[Part]]]:
    """Read a file; yield the blocks that are of several versions, or another block's."""
    with path.open("rb", buffering=0) as file:
        for start in range(0, FILE_BYTES, MIB):
            data = os.pread(file.fileno(), MIB, start)
            for place in range(0, len(data), BLOCK):
                parts = parts_of(data[place : place + BLOCK])
                number = (start + place) // BLOCK
                if len(parts) > 1 or parts[0].block != number:
                    yield number, parts


def read(directory: Path, cooled: list[Path], is_over, counts, seed: int) -> None:
    """Read files until it is over; `counts` counts them, and mixed blocks."""
    reads, mixed = counts
    choice = random.Random(seed).choice
    while not is_over.is_set():
        path = choice(names(directory))
        cool(path)
        for below in (file for root in cooled for file in root.rglob("*")):
            with suppress(OSError):  # it is gone
                if below.is_file() and below.stat().st_size > MIB:
                    cool(below)
        for number, parts in mixed_in(path):
            mixed.value += 1
            print(f"{path} block {number}: {parts[:PARTS_SHOWN]}", flush=True)
        reads.value += 1


def main() -> None:
    """Run it, and print what was seen as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("read_directory", type=Path)
    parser.add_argument("write_directory", type=Path)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--cool", type=Path, nargs="*", default=[])
    asked = parser.parse_args()
    is_over, first_is_there = mp.Event(), mp.Event()
    versions = mp.Value("q", 1)
    sums = [(mp.Value("q", 0), mp.Value("q", 0)) for _ in range(2)]
    writer = mp.Process(
        target=write, args=(asked.write_directory, first_is_there, is_over, versions)
    )
    readers = [
        mp.Process(target=read, args=(asked.read_directory, asked.cool, is_over, counts, seed))
        for seed, counts in enumerate(sums)
    ]
    writer.start()
    first_is_there.wait()
    for reader in readers:
        reader.start()
    time.sleep(asked.seconds)
    is_over.set()
    for process in (writer, *readers):
        process.join()
    reads, mixed = (sum(counts[which].value for counts in sums) for which in (0, 1))
    blocks = reads * FILE_BYTES // BLOCK
    print(
        json.dumps(
            {"versions": versions.value - 1, "files_read": reads, "blocks": blocks, "mixed": mixed}
        )
    )
    failed = [process.exitcode for process in (writer, *readers) if process.exitcode]
    assert not failed, failed


if __name__ == "__main__":
    main()
