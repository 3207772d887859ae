"""Sorts records of 100 bytes by their first 10, several processes at once, in two phases,
on EmberFS or anywhere else.

    python sort.py --dir /mnt/ember/sort --records 10000000 --processes 4 --beside /var/tmp/sort

makes the records (random keys, as sorting contests have them), sorts them, validates
the result, and prints how fast each was; with `--beside` the same again in another
directory, to compare.  Phases:

    partition   read the input a chunk at a time, sort each chunk, write it as a run; a
                sample of the keys has said where the partitions begin, so every run
                consists of one piece for each partition
    merge       for each partition read its pieces of all runs in one batch, sort them, write
                them as a part of the output

Validated is that every part is in order, that the parts are in order, and that count and checksum
of all records, a sum that does not depend on their order, are those of the input.  Needs numpy.

Shows: `emberfs.opening`, `emberfs.batch`: memory that bytes reach without a
copy, one batch for many pieces.
"""

import argparse
import json
import os
import resource
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from emberfs.batch import BatchClient, Transfer
from emberfs.opening import open_client

RECORD_BYTES = 100
KEY_BYTES = 10
PIECE_BYTES = 1 << 20
"""Of large reads and writes, so that several are under way."""
SAMPLES_PER_INPUT = 1000
WEIGHTS = np.random.Generator(np.random.Philox(key=1)).integers(
    0, 2**64, RECORD_BYTES // 4, dtype=np.uint64
)
MIX = np.uint64(0x9E3779B97F4A7C15)
MIX_SHIFT = np.uint64(29)
CHECKED_RECORDS = 100_000


class UnsortedError(Exception):
    """The output is not the sorted input; says where."""


@dataclass(frozen=True)
class Summary:
    """What validation knows of a file: how many records, their checksum,
    the first and the last key.
    """

    count: int
    checksum: int
    first: str
    last: str


# ---- bytes ---------------------------------------------------------------------------------------


class Room:
    """Memory of a client for so many records; `records` is an array of rows that lies in it."""

    def __init__(self, client: BatchClient, count: int) -> None:
        self._iov = client.allocate(max(1, count * RECORD_BYTES))
        flat = np.frombuffer(self._iov.view, np.uint8, count * RECORD_BYTES)
        self.records = flat.reshape(count, RECORD_BYTES)
        self._client = client

    def transfers(self, file: Any, offset: int, first: int, count: int) -> list[Transfer]:
        """Return what moves records between here and a file, in pieces."""
        begin, end = first * RECORD_BYTES, (first + count) * RECORD_BYTES
        return [
            Transfer(file, offset + at - begin, self._iov.view[at : min(at + PIECE_BYTES, end)])
            for at in range(begin, end, PIECE_BYTES)
        ]

    def read(self, transfers: Sequence[Transfer]) -> None:
        """Fill; a file that is too short is an error."""
        counts = self._client.read(transfers)
        for transfer, count in zip(transfers, counts, strict=True):
            if count != len(transfer.buffer):
                raise UnsortedError(f"{transfer.file.path}: ends at {transfer.offset + count}")

    def write_file(self, path: str) -> None:
        """Write all records as a file, durably."""
        with self._client.open(path, "w") as file:
            self._client.write(self.transfers(file, 0, 0, len(self.records)))


def order_of(records: np.ndarray) -> np.ndarray:
    """Return the numbers of records in the order of their keys."""
    keys = high_keys(records)
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    if (ordered[1:] == ordered[:-1]).any():  # the last two bytes decide
        low = records[:, 8].astype(np.uint16) << 8 | records[:, 9]
        return np.lexsort((low, keys))
    return order


def high_keys(records: np.ndarray) -> np.ndarray:
    """Return the first 8 bytes of each record as a number that is ordered as they are."""
    return np.ascontiguousarray(records[:, :8]).view(">u8").ravel().astype(np.uint64)


def checksum(records: np.ndarray) -> int:
    """Return the sum of a mixed value of each record, modulo 2^64:
    every byte and its place count, the order does not.
    """
    total = np.uint64(0)
    with np.errstate(over="ignore"):
        for start in range(0, len(records), CHECKED_RECORDS):
            some = records[start : start + CHECKED_RECORDS]
            words = np.ascontiguousarray(some).view("<u4").astype(np.uint64)
            mixed = (words * WEIGHTS).sum(axis=1, dtype=np.uint64)
            mixed = (mixed ^ (mixed >> MIX_SHIFT)) * MIX
            total += (mixed ^ (mixed >> MIX_SHIFT)).sum(dtype=np.uint64)
    return int(total)


# ---- what a worker does --------------------------------------------------------------------------

_client: BatchClient | None = None


def begin_worker(directory: str) -> None:
    """Connect once for all work of this process."""
    global _client  # noqa: PLW0603 - a process of a pool has nowhere else to keep it
    _client = open_client(directory)


def client() -> BatchClient:
    """Return the connection of this process."""
    assert _client is not None
    return _client


def generate(path: str, seed: int, number: int, count: int) -> int:
    """Write a file of the input: random keys and payloads, and each record's number behind its key;
    return its checksum.
    """
    source = np.random.Generator(np.random.Philox(key=[seed, number]))
    room = Room(client(), count)
    records = room.records
    records[:] = np.frombuffer(source.bytes(count * RECORD_BYTES), np.uint8).reshape(records.shape)
    numbers = np.arange(count, dtype="<u8") + np.uint64(number << 40)
    records[:, KEY_BYTES : KEY_BYTES + 8] = numbers.view(np.uint8).reshape(count, 8)
    room.write_file(path)
    return checksum(records)


def sample(path: str, seed: int) -> list[int]:
    """Return some keys of a file, read one by one, in one batch."""
    with client().open(path) as file:
        count = file.length() // RECORD_BYTES
        chosen = np.random.Generator(np.random.Philox(key=seed)).integers(
            0, max(1, count), min(count, SAMPLES_PER_INPUT)
        )
        room = Room(client(), len(chosen))
        room.read(
            [
                t
                for i, at in enumerate(chosen)
                for t in room.transfers(file, int(at) * RECORD_BYTES, i, 1)
            ]
        )
    return [int(key) for key in high_keys(room.records)]


def partition(source: str, first: int, count: int, run: str, splitters: list[int]) -> list[int]:
    """Sort a chunk of the input into a run; return
    with which of its records each partition begins, and its end.
    """
    room, ordered = Room(client(), count), Room(client(), count)
    with client().open(source) as file:
        room.read(room.transfers(file, first * RECORD_BYTES, 0, count))
    np.take(room.records, order_of(room.records), axis=0, out=ordered.records, mode="clip")
    ordered.write_file(run)
    begins = np.searchsorted(high_keys(ordered.records), np.array(splitters, np.uint64))
    return [0, *(int(begin) for begin in begins), count]


def merge(runs: list[tuple[str, int, int]], target: str) -> None:
    """Sort the pieces (run, first record, count) of a partition into a part of the output."""
    total = sum(count for _, _, count in runs)
    room, ordered = Room(client(), total), Room(client(), total)
    files = [client().open(path) for path, _, _ in runs]
    transfers, at = [], 0
    for file, (_, first, count) in zip(files, runs, strict=True):
        transfers += room.transfers(file, first * RECORD_BYTES, at, count)
        at += count
    room.read(transfers)
    for file in files:
        file.close()
    np.take(room.records, order_of(room.records), axis=0, out=ordered.records, mode="clip")
    ordered.write_file(target)


def summarize(path: str) -> Summary:
    """Return what a part of the output holds; raises UnsortedError if it is not in order."""
    with client().open(path) as file:
        if file.length() % RECORD_BYTES:
            raise UnsortedError(f"{path}: {file.length()} bytes are no whole records")
        count = file.length() // RECORD_BYTES
        room = Room(client(), count)
        room.read(room.transfers(file, 0, 0, count))
    if not count:
        return Summary(0, 0, "", "")
    if (order_of(room.records) != np.arange(count)).any():
        raise UnsortedError(f"{path}: is not in order")
    ends = [room.records[i, :KEY_BYTES].tobytes().hex() for i in (0, -1)]
    return Summary(count, checksum(room.records), *ends)


# ---- the whole -----------------------------------------------------------------------------------


class Sorting:
    """A directory with `input`, `runs` while it is sorted, and `output`.

    Args:
        directory: emptied before, and removed in the end.
        record_count: to be sorted.
        chunk_records: of a run, and about of a part; a process holds two of them in memory.
    """

    def __init__(self, directory: Path, record_count: int, chunk_records: int) -> None:
        self._directory = directory
        self._record_count = record_count
        self._chunks = [
            min(chunk_records, record_count - at) for at in range(0, record_count, chunk_records)
        ]
        self._checksum = 0

    def path(self, kind: str, number: int) -> str:
        """Return the path of a file."""
        return str(self._directory / kind / f"{number:05d}")

    def prepare(self) -> None:
        """Make the folders, empty."""
        for kind in ("input", "runs", "output"):
            shutil.rmtree(self._directory / kind, ignore_errors=True)
            (self._directory / kind).mkdir(parents=True)

    def generate(self, pool: ProcessPoolExecutor) -> None:
        """Write the input."""
        numbers = range(len(self._chunks))
        paths = [self.path("input", n) for n in numbers]
        sums = pool.map(generate, paths, [1] * len(paths), numbers, self._chunks)
        self._checksum = sum(sums) % 2**64

    def sort(self, pool: ProcessPoolExecutor, timed: Callable[[str], Any]) -> None:
        """Sort the input into the output."""
        numbers = range(len(self._chunks))
        inputs = [self.path("input", n) for n in numbers]
        runs = [self.path("runs", n) for n in numbers]
        with timed("partition"):
            keys = sorted(key for some in pool.map(sample, inputs, numbers) for key in some)
            parts = len(self._chunks)
            splitters = [keys[len(keys) * part // parts] for part in range(1, parts)]
            firsts = [0] * len(inputs)
            begins = list(
                pool.map(partition, inputs, firsts, self._chunks, runs, [splitters] * len(inputs))
            )
        with timed("merge"):
            pieces = [
                [(run, b[part], b[part + 1] - b[part]) for run, b in zip(runs, begins, strict=True)]
                for part in numbers
            ]
            targets = [self.path("output", n) for n in numbers]
            list(pool.map(merge, pieces, targets))
        shutil.rmtree(self._directory / "runs")

    def validate(self, pool: ProcessPoolExecutor) -> None:
        """Compare the output with what was generated; raises UnsortedError."""
        outputs = [self.path("output", n) for n in range(len(self._chunks))]
        found = [s for s in pool.map(summarize, outputs) if s.count]
        for one, next_ in pairwise(found):
            if one.last > next_.first:
                raise UnsortedError(f"key {one.last} stands before {next_.first}")
        count, total = sum(s.count for s in found), sum(s.checksum for s in found) % 2**64
        if (count, total) != (self._record_count, self._checksum):
            raise UnsortedError(
                f"{count} records with checksum {total:016x}; there were "
                f"{self._record_count} with {self._checksum:016x}"
            )

    def remove(self) -> None:
        """Remove all files."""
        for kind in ("input", "runs", "output"):
            shutil.rmtree(self._directory / kind, ignore_errors=True)


def processor_s() -> float:
    """Return the processor time of the processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def run(directory: Path, options: argparse.Namespace) -> dict[str, float]:
    """Generate, sort, validate; return the seconds of each step, and of processor time."""
    taken: dict[str, float] = {}

    @contextmanager
    def timed(name: str) -> Iterator[None]:
        began = time.perf_counter()
        yield
        taken[name] = time.perf_counter() - began

    sorting = Sorting(directory, options.records, options.chunk_mib * 2**20 // RECORD_BYTES)
    sorting.prepare()
    used_before_s = processor_s()
    try:
        with ProcessPoolExecutor(
            options.processes, get_context("spawn"), begin_worker, (str(directory),)
        ) as pool:
            list(pool.map(time.sleep, [0.0] * options.processes))  # the processes are there
            with timed("generate"):
                sorting.generate(pool)
            sorting.sort(pool, timed)
            with timed("validate"):
                sorting.validate(pool)
        taken["sort"] = taken["partition"] + taken["merge"]
        taken["processor"] = processor_s() - used_before_s
    finally:
        if not options.keep:
            sorting.remove()
    return taken


def main() -> int:
    """Read the options and run in each directory."""
    parser = argparse.ArgumentParser(description="Sort records of 100 bytes in two phases.")
    parser.add_argument("--dir", type=Path, required=True, help="where the files lie; best empty")
    parser.add_argument("--beside", type=Path, help="the same again there, to compare")
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--chunk-mib", type=int, default=64, help="memory: two of it a process")
    parser.add_argument("--keep", action="store_true", help="leave the files")
    parser.add_argument("--json", action="store_true", help="seconds, for programs")
    options = parser.parse_args()
    if options.records < 1 or options.processes < 1 or options.chunk_mib < 1:
        parser.error("records, processes and chunk-mib must be at least 1")
    results = {}
    for directory in (options.dir, options.beside):
        if directory is not None:
            directory.mkdir(parents=True, exist_ok=True)
            try:
                results[str(directory)] = run(directory.absolute(), options)
            except (UnsortedError, OSError) as error:
                print(f"sort.py: {error}", file=sys.stderr)
                return 1
    if options.json:
        print(json.dumps(results))
        return 0
    megabytes = options.records * RECORD_BYTES / 1e6
    for place, taken in results.items():
        print(f"{place}: {options.records} records in order, checksum compared")
        for name in ("generate", "partition", "merge", "sort", "validate"):
            print(f"  {name:10} {taken[name]:8.2f} s {megabytes / taken[name]:8.0f} MB/s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
