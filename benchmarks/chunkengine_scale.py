"""What a disk of very many chunks costs the chunk engine: memory, metadata, opening, listing.

Chunk contents are hashed but not written, so that a million chunks of 1 MiB need no
terabyte; everything else is real. Filling and opening happen in processes of their own, the
first one ending without closing anything, so that memory is counted from the start and
opening replays what a kill leaves.
"""

import gc
import multiprocessing
import os
import random
import struct
import time
from collections.abc import Callable, Iterable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final

import fs.chunkengine.factory as factory_module
from fs.chunkengine.data_files import LocalDataFiles
from fs.chunkengine.engine import DiskEngine
from fs.chunkengine.format import FileId
from fs.runtime.ports import Buffer
from fs.schema.config import StorageSection
from fs.schema.ids import ChunkId, InodeId, TargetId

from .table import Row

Measure = Callable[[Path, int], dict[str, float]]

TARGET: Final = TargetId(1)
CHUNKS_PER_FILE: Final = 1000
CHUNK_BYTES: Final = 1 << 20
CHECKSUM_BLOCK_BYTES: Final = 16 << 10
SYNC_EVERY: Final = 50_000
GET_COUNT: Final = 20_000
PAGE_COUNT: Final = 1024


class WeightlessFiles(LocalDataFiles):
    """Data files that take everything and keep nothing."""

    def reserve(self, file_id: FileId, offset: int, length: int) -> None:
        """Claim nothing."""

    def write_at(self, file_id: FileId, offset: int, buffers: Sequence[Buffer]) -> None:
        """Write nothing."""

    def punch(self, file_id: FileId, offset: int, length: int) -> None:
        """There is nothing to give back."""

    def flush(self, file_ids: Iterable[FileId]) -> None:
        """There is nothing to flush."""


def measure(directory: Path, chunk_count: int) -> list[Row]:
    """Fill and open a disk of so many chunks of 1 MiB; return the rows."""
    filled = _apart(_fill, directory, chunk_count)
    found = _apart(_open, directory, chunk_count)
    what = f"{chunk_count:,} chunks of 1 MiB:"
    return [
        Row(f"{what} create", filled["rate"], "1/s"),
        Row(f"{what} memory of the process while filling", filled["rss_mib"], "MiB"),
        Row(f"{what} memory per chunk when opened", found["rss_per_chunk"], "bytes"),
        Row(f"{what} memory of the process after opening", found["rss_open_mib"], "MiB"),
        Row(f"{what} the same after listing and reading records", found["rss_mib"], "MiB"),
        Row(f"{what} metadata on disk, per chunk", found["meta_per_chunk"], "bytes"),
        Row(f"{what} open after a kill", found["open_s"], "s"),
        Row(f"{what} list all", found["list_rate"], "1/s"),
        Row(f"{what} look up at random", found["get_rate"], "1/s"),
    ]


def _apart(function: Measure, directory: Path, chunk_count: int) -> dict[str, float]:
    """Run in a new process, which ends without any clean-up; return what it found."""
    spawn = multiprocessing.get_context("spawn")
    here, there = spawn.Pipe()
    process = spawn.Process(target=_run, args=(function, there, directory, chunk_count))
    process.start()
    there.close()
    try:
        result: dict[str, float] = here.recv()
    finally:
        process.join()
    return result


def _run(function: Measure, pipe: Connection, directory: Path, chunk_count: int) -> None:
    factory_module.LocalDataFiles = WeightlessFiles  # type: ignore[misc]
    pipe.send(function(directory, chunk_count))
    os._exit(0)


def _engine(directory: Path) -> DiskEngine:
    section = StorageSection(checksum_block_bytes=CHECKSUM_BLOCK_BYTES)
    return factory_module.open_engine(directory, cluster_id="bench", node_id=1, section=section)


def _chunk_id(index: int) -> ChunkId:
    return ChunkId(InodeId(1 + index // CHUNKS_PER_FILE), index % CHUNKS_PER_FILE)


def _fill(directory: Path, chunk_count: int) -> dict[str, float]:
    """Create the chunks; no two checksum blocks are equal, so that nothing compresses by chance."""
    engine = _engine(directory)
    content = bytearray(os.urandom(CHUNK_BYTES))
    stamp = struct.Struct("<Q").pack_into
    start = time.perf_counter()
    for index in range(chunk_count):
        for at in range(0, CHUNK_BYTES, CHECKSUM_BLOCK_BYTES):
            stamp(content, at, index)
        engine.prepare_write(
            TARGET,
            _chunk_id(index),
            version=1,
            chunk_size_bytes=CHUNK_BYTES,
            offset=0,
            data=content,
        )
        engine.commit(TARGET, _chunk_id(index), version=1, chain_version=1)
        if index % SYNC_EVERY == SYNC_EVERY - 1:
            engine.sync()
    engine.sync()
    return {"rate": chunk_count / (time.perf_counter() - start), "rss_mib": _rss() / 2**20}


def _open(directory: Path, chunk_count: int) -> dict[str, float]:
    gc.collect()
    before = _rss()
    start = time.perf_counter()
    engine = _engine(directory)
    open_s = time.perf_counter() - start
    opened = _rss()
    start = time.perf_counter()
    count, after = 0, b""
    while page := engine.list_chunks(TARGET, after=after, limit=PAGE_COUNT):
        count += len(page)
        after = page[-1].chunk_id.pack()
    list_s = time.perf_counter() - start
    assert count == chunk_count, count
    rng = random.Random(1)  # noqa: S311 - the same look-ups each time
    start = time.perf_counter()
    for _ in range(GET_COUNT):
        assert engine.get(TARGET, _chunk_id(rng.randrange(chunk_count)))
    get_s = time.perf_counter() - start
    stored = sum(entry.stat().st_size for entry in (directory / "meta").iterdir())
    return {
        "open_s": open_s,
        "rss_per_chunk": (opened - before) / chunk_count,
        "rss_open_mib": opened / 2**20,
        "rss_mib": _rss() / 2**20,
        "meta_per_chunk": stored / chunk_count,
        "list_rate": count / list_s,
        "get_rate": GET_COUNT / get_s,
    }


def _rss() -> int:
    """Return the memory of this process, in bytes."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
