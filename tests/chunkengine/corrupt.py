"""Hex-level corruption of closed and of killed disks: does `fsck-disk` find each one?

    python -m tests.chunkengine.corrupt [--count N] [--seed S] [--jobs J]

One trial changes one to four neighbouring bytes of one file, checks the disk, and puts them
back.  What counts as corruption:

- bytes of a version (committed or pending) of a chunk, within its length;
- any byte of RocksDB's live tables (`*.sst`), its `MANIFEST`, its `CURRENT`, its
  write-ahead log, and our `SYNCED`.

What does not, because no reader of the disk ever uses it: free blocks, bytes of a block behind the
version's length, RocksDB's `LOG` text, `OPTIONS`, `IDENTITY` and `LOCK`.  Nor the Bloom filter
inside a table: RocksDB goes without a damaged one.  So a change of a table that was not found is
counted as one without effect if every record still reads the same, by scan and by key.
"""

import argparse
import random
import shutil
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from fs.chunkengine.factory import open_engine
from fs.chunkengine.findings import Finding
from fs.chunkengine.format import (
    CHUNK_PREFIX,
    NO_POSITION,
    PENDING_PREFIX,
    ChunkRecord,
    PendingRecord,
    file_name,
    place_of,
)
from fs.chunkengine.fsck_disk import check_path
from fs.chunkengine.meta_rocksdb import RocksMetaStore
from fs.schema.config import StorageSection

from .campaign import run_campaign
from .workload import Workload

SECTION = StorageSection(checksum_block_bytes=4096, reject_create_free_bytes_min=0)
FILES = ("sst", "MANIFEST", "CURRENT", "log", "SYNCED")
WEIGHTS = {"data": 10, "sst": 4, "MANIFEST": 2, "CURRENT": 1, "log": 4, "SYNCED": 1}


@dataclass(frozen=True)
class Piece:
    """Bytes start..end of a file, all of which count."""

    kind: str
    path: Path
    start: int
    end: int


def make_disk(path: Path, seed: int, *, is_killed: bool) -> Path:
    """Make an aged disk, closed, or as it stands the moment a process is killed after a sync."""
    live = path / "live"
    engine = open_engine(live, cluster_id="c", node_id=1, section=SECTION)
    workload = Workload(seed)
    for _ in range(400):
        workload.step(engine)
    engine.sync()
    if not is_killed:
        engine.close()
        return live
    shutil.copytree(live, path / "killed")
    engine.close()
    return path / "killed"


def pieces_of(path: Path) -> list[Piece]:
    """Return all bytes of a disk that count."""
    pieces = []
    for record in records_of(path):
        if record.position != NO_POSITION:
            file_id, start = place_of(record.position)
            end = start + record.length
            pieces.append(Piece("data", path / file_name(file_id), start, end))
    for entry in sorted((path / "meta").iterdir()):
        kind = next((k for k in FILES if entry.name.startswith(k) or entry.suffix == f".{k}"), "")
        if kind and entry.stat().st_size:
            pieces.append(Piece(kind, entry, 0, entry.stat().st_size))
    return pieces


def records_of(path: Path) -> list[ChunkRecord]:
    """Return all committed and pending versions of a disk."""
    meta = RocksMetaStore(path / "meta", is_read_only=True)
    try:
        found = [ChunkRecord.unpack(v) for _, v in meta.scan(CHUNK_PREFIX, b"\x02")]
        pendings = meta.scan(PENDING_PREFIX, b"\x08")
        return found + [PendingRecord.unpack(value).record for _, value in pendings]
    finally:
        meta.close()


def all_records(path: Path) -> list[tuple[bytes, bytes, bytes | None, bytes | None]]:
    """Return every record as a scan and as a look-up by key gives it,
    and what lies behind each key: nothing.
    """
    meta = RocksMetaStore(path / "meta", is_read_only=True)
    try:
        scanned = list(meta.scan(b"", b"\xff" * 40))
        return [(key, value, meta.get(key), meta.get(key + b"x")) for key, value in scanned]
    finally:
        meta.close()


def damage(piece: Piece, rng: random.Random) -> tuple[int, bytes]:
    """Change some bytes of a piece; return where, and what stood there."""
    offset = rng.randrange(piece.start, piece.end)
    count = min(rng.choice((1, 1, 2, 4)), piece.end - offset)
    with piece.path.open("r+b") as file:
        file.seek(offset)
        before = file.read(count)
        file.seek(offset)
        file.write(bytes(byte ^ rng.randint(1, 255) for byte in before))
    return offset, before


def trial(path: Path, pieces: list[Piece], rng: random.Random) -> tuple[str, list[Finding]]:
    """Damage, check, put back; return what was damaged and what was found."""
    kinds = sorted({piece.kind for piece in pieces})
    kind = rng.choices(kinds, [WEIGHTS[k] for k in kinds])[0]
    piece = rng.choice([piece for piece in pieces if piece.kind == kind])
    records = all_records(path) if kind == "sst" else []
    offset, before = damage(piece, rng)
    try:
        found = list(check_path(path))
        if not found and kind == "sst" and all_records(path) == records:
            return "without effect", []
        if not found:
            print(
                f"missed: {piece.path.name} byte {offset} of {piece.path.stat().st_size}",
                flush=True,
            )
        return kind, found
    finally:
        with piece.path.open("r+b") as file:
            file.seek(offset)
            file.write(before)


def run_lot(seed: int, count: int, directory: Path) -> Counter[str]:
    """Run `count` trials on one disk; return how many of each kind, found and not."""
    is_killed = seed % 2 == 1
    path = make_disk(directory, seed, is_killed=is_killed)
    assert [f.line() for f in check_path(path) if not f.is_notice] == []
    pieces, rng = pieces_of(path), random.Random(seed)
    outcome: Counter[str] = Counter()
    while outcome["trials"] < count:
        kind, findings = trial(path, pieces, rng)
        if kind == "without effect":
            outcome[kind] += 1
            continue
        outcome["trials"] += 1
        outcome["found" if findings else "MISSED"] += 1
        outcome[f"{kind} {'found' if findings else 'MISSED'}"] += 1
        if findings and all(f.is_notice for f in findings):
            kinds = {f.kind.value for f in findings}
            outcome[f"{kind} found as {' '.join(sorted(kinds))}"] += 1
    return outcome


LOT = 25


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chunkengine.corrupt")
    parser.add_argument("--count", type=int, default=1000, help="trials")
    parser.add_argument("--seed", type=int, default=0, help="first disk")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    arguments = parser.parse_args()
    lots = -(-arguments.count // LOT)
    outcome = run_campaign(one_disk, arguments.seed, lots, arguments.jobs, "disks")
    return 1 if outcome["MISSED"] + outcome["FAILED"] else 0


def one_disk(seed: int, directory: Path) -> Counter[str]:
    """Run the trials of one disk."""
    return run_lot(seed, LOT, directory)


if __name__ == "__main__":
    raise SystemExit(main())
