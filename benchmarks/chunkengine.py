"""The chunk engine beside bare preadv and pwrite of the same file system: `python -m benchmarks.chunkengine [DIRECTORY]`."""

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from fs.chunkengine.api import ReadIo
from fs.chunkengine.engine import DiskEngine
from fs.chunkengine.factory import open_engine
from fs.schema.config import StorageSection
from fs.schema.ids import ChunkId, InodeId, TargetId

from .table import Row, print_rows

KIB: Final = 1024
MIB: Final = 1024 * KIB
CHUNK_COUNT: Final = 128
TARGET: Final = TargetId(1)


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
    """Measure in an empty directory; all from the page cache, so that the engine's own cost shows."""
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


def main(arguments: Sequence[str]) -> None:
    """Print a table per checksum block size."""
    for block in (4 * KIB, 16 * KIB, 64 * KIB):
        directory = Path(tempfile.mkdtemp(dir=arguments[0] if arguments else None))
        try:
            rows = run(directory, checksum_block_bytes=block)
        finally:
            shutil.rmtree(directory)
        print_rows(f"chunk engine, checksum block {block // KIB} KiB", rows)


if __name__ == "__main__":
    main(sys.argv[1:])
