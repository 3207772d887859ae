"""The chunk engine beside bare preadv and pwrite of the same file system, its write amplification,
and very many chunks.

`python -m benchmarks.chunkengine [--full] [--dir DIRECTORY]`; `--full` takes a million
chunks, some 1 GiB and some minutes. Write amplification is what the process sent to the block
layer (`/proc/self/io`), metadata included, per byte of payload, with a flush every 64
updates; 0 on file systems in memory.
"""

import os
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

from fs.app.terminal.progress import Progress
from fs.chunkengine.engine import DiskEngine
from fs.chunkengine.factory import open_engine
from fs.chunkengine.read_values import ReadIo
from fs.schema.config import StorageSection
from fs.schema.ids import ChunkId, InodeId, TargetId

from .chunkengine_scale import measure as measure_scale
from .command import bench_command
from .machine import io_bytes
from .table import Row

KIB: Final = 1024
MIB: Final = 1024 * KIB
CHUNK_COUNT: Final = 128
TARGET: Final = TargetId(1)
SYNC_EVERY: Final = 64
QUICK_COUNT: Final = 10_000
FULL_COUNT: Final = 1_000_000


def _rate(function: Callable[[int], object], count: int) -> float:
    """Return calls per second; `function` gets the index of the call."""
    start = time.perf_counter()
    for index in range(count):
        function(index)
    return count / (time.perf_counter() - start)


def _put(engine: DiskEngine, chunk_id: ChunkId, version: int, offset: int, data: bytes) -> None:
    engine.prepare_write(
        TARGET, chunk_id, version=version, chunk_size_bytes=MIB, offset=offset, data=data
    )
    engine.commit(TARGET, chunk_id, version=version, chain_version=1)


def _read_many(
    engine: DiskEngine, size: int, batch: int, buffer: memoryview
) -> Callable[[int], object]:
    span = MIB // size

    def one(call: int) -> None:
        first = call * batch
        ios = [
            ReadIo(
                TARGET,
                ChunkId(InodeId(1), n * 7 % CHUNK_COUNT),
                n * 13 % span * size,
                size,
                buffer[:size],
            )
            for n in range(first, first + batch)
        ]
        assert not any(done.status for done in engine.read_batch(ios))

    return one


def _machine(path: Path) -> dict[str, float]:
    """Return what bare system calls do on the same file system, in the units of the rows."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        os.posix_fallocate(fd, 0, CHUNK_COUNT * MIB)
        mib, small, buffer = os.urandom(MIB), os.urandom(64 * KIB), memoryview(bytearray(MIB))
        page = buffer[: 4 * KIB]
        return {
            "write": _rate(lambda n: os.pwrite(fd, mib, n * MIB), CHUNK_COUNT),
            "append": _rate(lambda n: os.pwrite(fd, small, n * 64 * KIB), 1024),
            "read": _rate(lambda n: os.preadv(fd, [buffer], n * 7 % CHUNK_COUNT * MIB), 512),
            "page": _rate(
                lambda n: os.preadv(fd, [page], n * 7 % CHUNK_COUNT * MIB + n % 256 * 4096), 16_384
            ),
        }
    finally:
        os.close(fd)


def run(directory: Path, *, checksum_block_bytes: int = 16 * KIB) -> list[Row]:
    """Measure in an empty directory; all from the page cache,
    so that the engine's own cost shows.
    """
    limit = _machine(directory / "bare")
    section = StorageSection(checksum_block_bytes=checksum_block_bytes)
    engine = open_engine(directory / "disk", cluster_id="bench", node_id=1, section=section)
    mib, small = os.urandom(MIB), os.urandom(64 * KIB)
    buffer = memoryview(bytearray(MIB))
    writes = _rate(lambda n: _put(engine, ChunkId(InodeId(1), n), 1, 0, mib), CHUNK_COUNT)
    appends = _rate(
        lambda n: _put(engine, ChunkId(InodeId(2), n // 16), n % 16 + 1, n % 16 * 64 * KIB, small),
        512,
    )
    creates = _rate(lambda n: _put(engine, ChunkId(InodeId(3), n), 1, 0, small), 512)
    syncs = _rate(lambda n: (_put(engine, ChunkId(InodeId(3), n), 2, 0, small), engine.sync()), 64)
    reads = _rate(_read_many(engine, MIB, 1, buffer), 512)
    pages = 64 * _rate(_read_many(engine, 4 * KIB, 64, buffer), 128)
    single = _rate(_read_many(engine, 4 * KIB, 1, buffer), 4096)
    engine.close()
    return [
        Row("1 MiB chunk, prepare + commit", writes, "MiB/s", limit["write"]),
        Row("64 KiB chunk, prepare + commit", creates, "1/s", limit["append"]),
        Row("64 KiB append, prepare + commit", appends, "1/s", limit["append"]),
        Row("64 KiB rewrite + sync", syncs, "1/s"),
        Row("1 MiB read, verified", reads, "MiB/s", limit["read"]),
        Row("4 KiB read, verified, batch of 64", pages, "1/s", limit["page"]),
        Row("4 KiB read, verified, single", single, "1/s", limit["page"]),
    ]


def amplification(directory: Path) -> list[Row]:
    """Measure, in an empty directory, how many bytes are written per byte of payload."""
    engine = open_engine(directory, cluster_id="bench", node_id=1, section=StorageSection())
    kinds = [
        # name, chunk size, payload of one update, updates per chunk
        ("new chunks of 1 MiB", MIB, MIB, 1),
        ("new chunks of 64 KiB", 64 * KIB, 64 * KIB, 1),
        ("appends of 64 KiB", MIB, 64 * KIB, 16),
        ("appends of 4 KiB", 64 * KIB, 4 * KIB, 16),
    ]
    rows = []
    for number, (name, chunk_bytes, size, per_chunk) in enumerate(kinds):
        data, inode_id = os.urandom(size), InodeId(10 + number)

        def append(n: int) -> tuple[ChunkId, int, int]:
            return ChunkId(inode_id, n // per_chunk), n % per_chunk + 1, n % per_chunk * size  # noqa: B023

        rows.append(_amplification(engine, name, append, data))
        if per_chunk > 1:
            continue
        page = os.urandom(4 * KIB)

        def overwrite(n: int) -> tuple[ChunkId, int, int]:
            return ChunkId(inode_id, n), 2, n * 4 * KIB % chunk_bytes  # noqa: B023

        rows.append(_amplification(engine, f"4 KiB into {name[4:]}", overwrite, page))
    engine.close()
    return rows


def _amplification(
    engine: DiskEngine, name: str, where: Callable[[int], tuple[ChunkId, int, int]], data: bytes
) -> Row:
    engine.sync()
    before = io_bytes(os.getpid(), "write_bytes")
    for n in range(4 * SYNC_EVERY):
        chunk_id, version, offset = where(n)
        _put(engine, chunk_id, version, offset, data)
        if n % SYNC_EVERY == SYNC_EVERY - 1:
            engine.sync()
    written = io_bytes(os.getpid(), "write_bytes") - before
    return Row(f"write amplification, {name}", written / (4 * SYNC_EVERY * len(data)), "x")


def measure(chunk_count: int, parent: Path | None, progress: Progress) -> list[Row]:
    """Measure with every size of checksum blocks, write amplification, and that many chunks."""
    rows: list[Row] = []
    for block in (4 * KIB, 16 * KIB, 64 * KIB):
        blocks = f"checksum blocks of {block // KIB} KiB"
        progress.step(f"chunkengine: {blocks}")
        with tempfile.TemporaryDirectory(dir=parent) as directory:
            found = run(Path(directory), checksum_block_bytes=block)
        rows += [replace(row, name=f"{blocks}: {row.name}") for row in found]
    progress.step("chunkengine: write amplification")
    with tempfile.TemporaryDirectory(dir=parent) as directory:
        rows += amplification(Path(directory) / "disk")
    progress.step(f"chunkengine: {chunk_count:,} chunks")
    with tempfile.TemporaryDirectory(dir=parent) as directory:
        return rows + measure_scale(Path(directory) / "disk", chunk_count)


if __name__ == "__main__":
    sys.exit(bench_command("chunkengine", __doc__, (QUICK_COUNT, FULL_COUNT), measure))
