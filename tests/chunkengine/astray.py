"""Writes that the disk confirms and never makes, or makes elsewhere: found at the next read.

    python -m tests.chunkengine.astray [--count N] [--seed S]

On a real disk, one write of a workload is lost, or goes to the block of another chunk.  Then every
chunk is read: as it should be, or CHECKSUM_MISMATCH, never anything else; and the check of the disk
names each one that cannot be read.
"""

import argparse
import random
from collections import Counter
from pathlib import Path

import pytest

from fs.chunkengine.data_files import LocalDataFiles
from fs.chunkengine.fsck_disk import check_path
from fs.schema.ids import ChunkId, InodeId, TargetId
from fs.schema.status import FsError, Status

from .campaign import run_campaign
from .worker import open_disk

COUNT = 8
CHUNKS = [(TargetId(1), ChunkId(InodeId(7), n)) for n in range(COUNT)]


class Astray:
    """Stands for `LocalDataFiles.write_at`; one write, the n-th, is lost or misdirected."""

    def __init__(self, number: int, *, is_lost: bool) -> None:
        self.left = number
        self.is_lost = is_lost
        self.real = LocalDataFiles.write_at

    def as_method(self) -> object:
        """Return a function that Python binds to the files it is called on."""

        def write_at(files: LocalDataFiles, file_id, offset: int, buffers) -> None:
            self.write(files, file_id, offset, buffers)

        return write_at

    def write(self, files: LocalDataFiles, file_id, offset: int, buffers) -> None:
        self.left -= 1
        if self.left == 0 and self.is_lost:
            return
        if self.left == 0:
            offset = offset - (64 << 10) if offset >= 64 << 10 else offset + (64 << 10)
        self.real(files, file_id, offset, buffers)


def run_seed(seed: int, directory: Path) -> Counter[str]:
    """One write goes astray."""
    rng, path = random.Random(seed), directory / "disk"
    astray = Astray(rng.randint(COUNT + 1, 4 * COUNT), is_lost=seed % 2 == 0)
    contents = dict.fromkeys(CHUNKS, b"")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LocalDataFiles, "write_at", astray.as_method())
        engine = open_disk(str(path))
        for version in range(1, 5):
            for chunk in CHUNKS:
                old = contents[chunk]
                offset = len(old) if rng.random() < 0.5 else 0
                data = rng.randbytes(rng.randint(5_000, 9_000))
                state = engine.get(*chunk)
                if state is not None and state.commit_ver != version - 1:
                    continue  # an update of it was refused, since its bytes are bad
                try:
                    engine.prepare_write(
                        *chunk, version=version, chunk_size_bytes=64 << 10, offset=offset, data=data
                    )
                except FsError as error:
                    if error.status is not Status.CHECKSUM_MISMATCH:
                        raise
                    continue
                engine.commit(*chunk, version=version, chain_version=1)
                contents[chunk] = old[:offset] + data + old[offset + len(data) :]
        bad = {chunk for chunk in CHUNKS if not is_readable(engine, chunk, contents[chunk])}
        engine.close()
    found = {(f.target_id, f.chunk_id) for f in check_path(path)}
    assert found == bad, (found, bad)
    kind = "lost" if astray.is_lost else "misdirected"
    return Counter(
        {kind: 1, f"{kind}, chunks bad": len(bad), f"{kind}, overwritten since": not bad}
    )


def is_readable(engine, chunk, content: bytes) -> bool:
    """Read a chunk: the right bytes, or a definite error."""
    try:
        found = engine.read_whole(*chunk)
    except FsError as error:
        if error.status is not Status.CHECKSUM_MISMATCH:
            raise
        return False
    assert found == content, f"{chunk}: wrong bytes were served"
    return True


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chunkengine.astray")
    parser.add_argument("--count", type=int, default=100, help="writes")
    parser.add_argument("--seed", type=int, default=0, help="first seed")
    arguments = parser.parse_args()
    outcome = run_campaign(run_seed, arguments.seed, arguments.count, 1, "writes")
    return 1 if outcome["FAILED"] else 0


if __name__ == "__main__":
    raise SystemExit(main())
