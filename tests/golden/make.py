"""Disks and key-value stores as this release leaves them behind when it is killed,
packed into small files.

    python -m tests.golden.make

Made once for each persisted format, and kept: `test_golden.py` opens what earlier releases wrote.
Never make those of an older format anew; a new format adds files.
"""

import io
import shutil
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

import trio

from fs.chunkengine import allocator
from fs.chunkengine.api import Note
from fs.chunkengine.engine import DiskEngine
from fs.chunkengine.factory import open_engine
from fs.chunkengine.format import FORMAT_KEY, NOTE_PREFIX, TARGET_PREFIX
from fs.chunkengine.meta_rocksdb import META_DIRECTORY, RocksMetaStore
from fs.kv.rocksdb import RocksDbEngine
from fs.schema.config import KvSection, StorageSection
from fs.schema.ids import ChunkId, InodeId, TargetId
from tests.kv.harness import inline_runtime

HERE = Path(__file__).parent
CLUSTER_ID = "golden"
NODE_ID = 11
SECTION = StorageSection(checksum_block_bytes=4096, reject_create_free_bytes_min=0)
T, U = TargetId(11001), TargetId(11002)
CHUNK_SIZE_BYTES = 1 << 20
LENGTHS = (0, 1, 4096, 65536, 70_001)
"""Of chunks 0 to 4 of target T, at version 2; U has the last one, too."""

PENDING, REMOVED, DAMAGED = 7, 8, 9
NOTE = Note(b"client-1", b"what it did")
ROW_COUNT = 200
KV_VERSION = ROW_COUNT + 2


def chunk(index: int) -> ChunkId:
    return ChunkId(InodeId(0x1001), index)


def content(index: int, length: int) -> bytes:
    """Not random: it has to be small when it is packed."""
    return (b"chunk %d " % index * (length // 8 + 1))[:length]


def row(number: int) -> tuple[bytes, bytes]:
    return b"row/%04d" % number, b"%d " % number * 20


def put(engine: DiskEngine, target: TargetId, index: int, length: int, version: int = 1) -> None:
    engine.prepare_write(
        target,
        chunk(index),
        version=version,
        chunk_size_bytes=CHUNK_SIZE_BYTES,
        offset=0,
        data=content(index, length),
        is_full_replace=True,
    )
    engine.commit(target, chunk(index), version=version, chain_version=3)


def make_disk(path: Path) -> None:
    """Leave a disk behind as a killed process does:
    tables, a log, versions that are not durable.
    """
    with patch.object(allocator, "RESERVE_BYTES", 1 << 20):
        engine = open_engine(
            path / "live", cluster_id=CLUSTER_ID, node_id=NODE_ID, section=SECTION, target_ids=[T]
        )
        for index in range(10):
            put(engine, T, index, 100)
        engine.close()
        engine = open_engine(path / "live", cluster_id=CLUSTER_ID, node_id=NODE_ID, section=SECTION)
    for index, length in enumerate(LENGTHS):
        put(engine, T, index, length, version=2)
    put(engine, U, len(LENGTHS) - 1, LENGTHS[-1])
    engine.put_notes(T, [NOTE])
    engine.prepare_remove(T, chunk(REMOVED), version=2)
    engine.commit(T, chunk(REMOVED), version=2, chain_version=3)
    engine.mark_damaged(T, chunk(DAMAGED))
    engine.sync()
    engine.prepare_truncate(
        T, chunk(PENDING), version=2, chunk_size_bytes=CHUNK_SIZE_BYTES, length=50, tag=b"who"
    )
    shutil.copytree(path / "live", path / "disk")
    engine.close()


def make_disk_1(path: Path) -> None:
    """The same in format 1, which had neither target records nor notes."""
    make_disk(path)
    meta = RocksMetaStore(path / "disk" / META_DIRECTORY)
    stored = meta.get(FORMAT_KEY)
    assert stored is not None
    gone = [
        (key, None)
        for prefix in (TARGET_PREFIX, NOTE_PREFIX)
        for key, _ in meta.scan(prefix, bytes([prefix[0] + 1]))
    ]
    former = stored.replace(b'"format_version":2', b'"format_version":1')
    assert former != stored
    meta.write_synced([*gone, (FORMAT_KEY, former)])
    meta.close()


def make_kv(path: Path) -> None:
    """Leave a key-value store behind as a killed process does, in its second life."""
    trio.run(_make_kv, path)


async def open_kv(path: Path) -> RocksDbEngine:
    return await RocksDbEngine.open(str(path), KvSection(), inline_runtime(), cluster_id=CLUSTER_ID)


async def _make_kv(path: Path) -> None:
    engine = await open_kv(path / "live")
    for number in range(ROW_COUNT):
        if number == ROW_COUNT // 2:
            await engine.aclose()
            engine = await open_kv(path / "live")
        tr = engine.transaction()
        tr.set(*row(number))
        tr.atomic_add(b"count", 1)
        await tr.commit()
    tr = engine.transaction()
    tr.clear_range(b"row/0010", b"row/0020")
    await tr.commit()
    tr = engine.transaction()
    tr.set_versionstamped_value(b"stamp", b"")
    await tr.commit()
    await engine.sync()
    shutil.copytree(path / "live", path / "disk")
    await engine.aclose()


MADE: dict[str, Callable[[Path], None]] = {
    "disk-1": make_disk_1,
    "disk-2": make_disk,
    "kv-1": make_kv,
}
"""What, and its format."""


def pack(made: Path, file: Path) -> None:
    """Pack a directory; what RocksDB logs for people stays out."""
    with tarfile.open(file, "w:xz", preset=9) as archive:
        for path in sorted(made.rglob("*")):
            if path.is_file() and not path.name.startswith("LOG"):
                info = tarfile.TarInfo(str(path.relative_to(made)))
                info.size, info.mode = path.stat().st_size, 0o600
                archive.addfile(info, io.BytesIO(path.read_bytes()))


def main() -> None:
    for name, make in MADE.items():
        file = HERE / f"{name}.tar.xz"
        if file.exists():
            print(f"{file.name} is kept")
            continue
        with tempfile.TemporaryDirectory() as directory:
            make(Path(directory))
            pack(Path(directory) / "disk", file)
        print(f"{file.name}: {file.stat().st_size} bytes")


if __name__ == "__main__":
    main()
