"""The file system that the mount is compared with for cold reads:
it gives the bytes of its file, and is measured beside the empty one.
"""

import os
import random
from contextlib import contextmanager

import pytest
import trio

from benchmarks import disk_fuse, mount
from benchmarks.disk_fuse import DiskFs
from benchmarks.workloads import BIG_FILE, MIB, Sizes

BLOCK = 1 << 16
LENGTH = 9 * BLOCK + 8192


@pytest.fixture
def file(disk_path, monkeypatch):
    monkeypatch.setattr(disk_fuse, "BLOCK_BYTES", BLOCK)
    path = disk_path / "file"
    path.write_bytes(random.Random(1).randbytes(LENGTH))
    with path.open("rb") as written:
        os.fsync(written)
    return path


async def test_every_read_has_the_bytes_of_the_file(file):
    data, chosen = file.read_bytes(), random.Random(2)
    places = [(at, 50_000) for at in range(0, LENGTH, 50_000)]
    places += [(chosen.randrange(LENGTH), chosen.randrange(1, 3 * BLOCK)) for _ in range(50)]
    operations = DiskFs(str(file))
    async with trio.open_nursery() as nursery:
        operations.nursery = nursery
        for offset, size in places:
            assert bytes(await operations.read(7, offset, size)) == data[offset : offset + size]
        assert await operations.read(7, LENGTH, 10) == b""
    assert operations.attributes(7).st_size == LENGTH
    assert len(operations._blocks) + len(operations._idle) <= 8, "memory is used again"


def test_it_is_measured_in_turn_with_the_empty_one(disk_path, monkeypatch):
    steps, rates = [], iter([1, 10, 5, 20, 2, 60, 4, 30, 3, 15])
    mounted, empty = disk_path / "mounted", disk_path / "empty"
    mounted.mkdir()

    @contextmanager
    def mount_of(module, path):
        assert module == "benchmarks.disk_fuse" and os.path.getsize(path) == 2 * MIB
        yield mounted

    def reads(folder, _sizes):
        steps.append(folder)
        return next(rates)

    monkeypatch.setattr(mount, "_mount_of", mount_of)
    monkeypatch.setattr(mount, "drop_page_cache", lambda: steps.append("drop"))
    kind = ("read", "MiB/s", mount.Bound.FUSE, 0.5, reads, None)
    row = mount._measured_disk(kind, Sizes(2, 64, 10, 4), disk_path, empty)
    assert (row.value, row.limit, row.unit) == (3, 20, "MiB/s")
    assert steps == ["drop", mounted, "drop", empty / mount.FOLDER] * mount.READ_ROUNDS
    assert {path.name for path in disk_path.iterdir()} == {"mounted"}
    assert (mounted / BIG_FILE).exists()
