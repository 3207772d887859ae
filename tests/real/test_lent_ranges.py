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


@pytest.fixture
def tmp_path(disk_path):
    """Where files are cached; what is kept in memory alone is never lent."""
    return disk_path


def test_damaged_copies_that_are_lent_are_never_read_and_get_repaired(own_cluster):
    cluster, content = own_cluster, random.Random(1).randbytes(COUNT * MIB)
    path = cluster.mount / "f"
    with path.open("wb") as file:
        file.write(content)
        os.fsync(file.fileno())
    cluster.ember("warmup", path, "--dir", cluster.directory)
    pieces = [content[n * MIB + 1000 : n * MIB + 1064] for n in range(COUNT)]
    copies = find(cluster.directory, pieces)
    assert len(copies) == 3 * COUNT
    for number in range(COUNT):
        for copy in [copy for copy in copies if copy[2] == pieces[number]][:2]:
            flip(*copy)
    end = time.monotonic() + 300
    while len(find(cluster.directory, pieces)) < 3 * COUNT:  # each time another replica is read
        assert read_anew(path) == content
        assert time.monotonic() < end, "not repaired"
        time.sleep(0.2)
    assert read_anew(path) == content
    logs = "".join(log.read_text() for log in cluster.directory.rglob("mount*.log*"))
    assert SAID in logs or _system_call() is None
