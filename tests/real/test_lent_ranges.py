"""Large reads of a real cluster, whose processes are of one machine: lent out of the data files, and damaged there."""

import os
import random
import time
from pathlib import Path

import pytest

from fs.chunkengine.cached_ranges import _system_call

pytestmark = [pytest.mark.mount, pytest.mark.slow, pytest.mark.timeout(900)]

MIB = 1 << 20
COUNT = 8
ROUND_COUNT = 5
"""A round may do without: a copy that is read in small parts, or that another process has just made room for, is not lent."""
SAID = "bytes that it has lent do not match"


def find(directory: Path, pieces: list[bytes]) -> list[tuple[Path, int, bytes]]:
    """Return where copies of pieces lie in data files."""
    found = []
    for path in sorted(directory.rglob("*")):
        if path.is_file() and path.stat().st_size >= MIB:
            content = path.read_bytes()
            places = ((content.find(piece), piece) for piece in pieces)
            found += [(path, at, piece) for at, piece in places if at >= 0]
    return found


def flip(path: Path, at: int, piece: bytes) -> None:
    """Change a byte."""
    with path.open("r+b", buffering=0) as file:
        file.seek(at)
        file.write(bytes([piece[0] ^ 1]))


def read_anew(path: Path) -> bytes:
    """Read a file, but not from the mount's page cache."""
    with path.open("rb", buffering=0) as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return path.read_bytes()


def test_damaged_copies_that_are_lent_are_never_read_and_get_repaired(cluster, place):
    content = random.Random(1).randbytes(COUNT * MIB)
    path = place / "f"
    with path.open("wb") as file:
        file.write(content)
        os.fsync(file.fileno())
    cluster.ember("warmup", path, "--dir", cluster.directory)
    pieces = [content[n * MIB + 1000 : n * MIB + 1064] for n in range(COUNT)]
    for _ in range(ROUND_COUNT):
        damage_and_repair(cluster.directory, path, content, pieces)
        logs = "".join(log.read_text() for log in cluster.directory.rglob("mount*.log*"))
        if SAID in logs or _system_call() is None:
            return
    pytest.fail(f"nothing damaged was lent in {ROUND_COUNT} rounds")


def damage_and_repair(directory: Path, path: Path, content: bytes, pieces: list[bytes]) -> None:
    """Damage two of three copies of each chunk, and read until all are repaired."""
    copies = find(directory, pieces)
    assert len(copies) == 3 * COUNT
    for piece in pieces:
        for copy in [copy for copy in copies if copy[2] == piece][:2]:
            flip(*copy)
    end = time.monotonic() + 300
    while len(find(directory, pieces)) < 3 * COUNT:  # each time another replica is read
        assert read_anew(path) == content
        assert time.monotonic() < end, "not repaired"
        time.sleep(0.2)
    assert read_anew(path) == content
