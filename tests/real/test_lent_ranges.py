"""Large reads of a real cluster, whose processes are of one machine:
lent out of the data files, and damaged there.
"""

import mmap
import os
import random
import struct
import threading
import time
from pathlib import Path

import pytest

from fs.chunkengine.cached_ranges import _system_call

from .conftest import scaled

pytestmark = [pytest.mark.mount, pytest.mark.slow, pytest.mark.timeout(900)]

MIB = 1 << 20
COUNT = 8
PAGE = struct.Struct("<II")
"""Over and over in each page: which one it is, and how often it has been written before."""
PAGE_BYTES = 4096
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


def pages_of(position: int, generation: int) -> bytes:
    """Return a MiB of a file, the so manyth."""
    pages = range(position * MIB // PAGE_BYTES, (position + 1) * MIB // PAGE_BYTES)
    return b"".join(PAGE.pack(page, generation) * (PAGE_BYTES // PAGE.size) for page in pages)


def check_pages(data: memoryview, first: int, last_of: dict[int, int]) -> None:
    """Check that each page is the one that it should be, whole,
    and no older than when it was read before.
    """
    for start in range(0, len(data), PAGE_BYTES):
        page = bytes(data[start : start + PAGE_BYTES])
        number, generation = PAGE.unpack_from(page)
        assert number == first + start // PAGE_BYTES
        assert page == page[: PAGE.size] * (PAGE_BYTES // PAGE.size), number
        assert generation >= last_of.get(number, 0), number
        last_of[number] = generation


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


def test_streams_beside_overwrites_read_whole_pages_that_never_grow_older(own_cluster):
    cluster, path = own_cluster, own_cluster.mount / "f"
    count, is_over, written = 4 * COUNT, threading.Event(), []
    path.write_bytes(b"".join(pages_of(n, 0) for n in range(count)))
    cluster.ember("warmup", path, "--dir", cluster.directory)

    def overwrite() -> None:
        random_order, generation = random.Random(3), 0
        with path.open("r+b", buffering=0) as file:
            while not is_over.is_set():
                generation += 1
                position = random_order.randrange(count)
                os.pwrite(file.fileno(), pages_of(position, generation), position * MIB)
                os.fsync(file.fileno())
                written.append(position)

    writer = threading.Thread(target=overwrite)
    writer.start()
    try:
        buffer, last_of = mmap.mmap(-1, MIB), {}
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECT)
        end = time.monotonic() + scaled(8, 20)
        while time.monotonic() < end or len(written) < count:
            for position in range(count):
                assert os.preadv(descriptor, [buffer], position * MIB) == MIB
                check_pages(memoryview(buffer), position * MIB // PAGE_BYTES, last_of)
        os.close(descriptor)
    finally:
        is_over.set()
        writer.join()
    assert max(last_of.values()) > 0
