"""Reading again and again: by rings first, then out of the page cache,
always the same bytes and errors.
"""

import errno
import os
import random

import pytest
from emberfs import rereading
from emberfs.batch import Transfer
from emberfs.posix import PosixClient
from emberfs.rereading import BLOCK_BYTES, JUDGED_BATCHES, SETTLED_BATCHES, Rereader
from emberfs.ring import RingClient
from emberfs.rows import Rows, read_rows

from tests.client.user.serving import NEEDS_MOUNT

pytestmark = NEEDS_MOUNT
LENGTH = 3 * BLOCK_BYTES + 12_345
CONTENT = random.Random(8).randbytes(LENGTH)
SAMPLE = 16 << 10


@pytest.fixture
def path(mount_point, tmp_path):
    path = mount_point / tmp_path.name
    path.write_bytes(CONTENT)
    return path


@pytest.fixture
def asked(monkeypatch):
    """How many rows each batch had read by rings."""
    counts = []

    def counted(client, rows, buffer):
        counts.append(len(rows.files))
        return read_rows(client, rows, buffer)

    monkeypatch.setattr(rereading, "read_rows", counted)
    return counts


def epoch(rng, file):
    """Return rows over the whole file, in any order,
    odd ones and such that cross blocks among them.
    """
    begins = list(range(0, LENGTH, SAMPLE - 5))
    rng.shuffle(begins)
    sizes = [rng.choice((SAMPLE - 5, SAMPLE, 0, 2 * SAMPLE)) for _ in begins]
    places = [index * 2 * SAMPLE for index in range(len(begins))]
    return Rows([file] * len(begins), begins, sizes, places)


def read(rereader, rows):
    buffer = memoryview(bytearray(max(rows.places) + 2 * SAMPLE))
    counts = rereader.read(rows, buffer)
    for count, offset, size, place in zip(counts, *rows[1:], strict=True):
        expected = CONTENT[offset : offset + size]
        assert buffer[place : place + count] == expected
        assert not any(buffer[place + count : place + 2 * SAMPLE])
    return counts


def warm(rereader, file, rng):
    for _ in range(4):
        read(rereader, epoch(rng, file))
        if rereader.is_cached:
            return
    raise AssertionError("never out of the cache")


def test_the_same_bytes_by_rings_and_then_without(path, asked):
    rng = random.Random(1)
    with RingClient(path.parent) as client, client.open(str(path)) as file:
        rereader = Rereader(client, [file])
        few = Rows([file], [0], [100], [0])
        read(rereader, few)
        assert not rereader.is_cached  # who reads little does not have the whole fetched
        warm(rereader, file, rng)
        asked.clear()
        rows = epoch(rng, file)
        read(rereader, rows)
        at_the_end = [o + s > LENGTH for o, s in zip(rows.offsets, rows.sizes, strict=True)]
        assert sum(asked) <= sum(at_the_end) + rows.sizes.count(0)  # rings know where it ends now
        for wrong in (Rows([file], [0], [31], [0]), Rows([file], [-1], [1], [0])):
            with pytest.raises(ValueError, match=r"beyond|no file"):
                rereader.read(wrong, memoryview(bytearray(30)))
        file.close()
        with pytest.raises(OSError, match=path.name) as failed:
            read(rereader, few)
        assert failed.value.errno == errno.EBADF


@pytest.mark.parametrize("way", ["a program", "rings"])
def test_what_was_changed_is_seen(path, way):
    rng = random.Random(2)
    with RingClient(path.parent) as client, client.open(str(path)) as file:
        rereader = Rereader(client, [file])
        warm(rereader, file, rng)
        changed = b"changed" * 100
        if way == "a program":
            with path.open("r+b") as other:
                other.seek(BLOCK_BYTES - 50)
                other.write(changed)
        else:
            with client.open(str(path), "r+") as other:
                client.write([Transfer(other, BLOCK_BYTES - 50, memoryview(changed))])
        with client.open(str(path)) as again:
            for reader in (rereader, Rereader(client, [again])):
                one = file if reader is rereader else again
                buffer = memoryview(bytearray(len(changed)))
                rows = Rows([one], [BLOCK_BYTES - 50], [len(changed)], [0])
                assert reader.read(rows, buffer) == [len(changed)]
                assert buffer == changed


def test_a_file_that_became_shorter_ends_where_it_ends(path):
    rng = random.Random(3)
    with RingClient(path.parent) as client, client.open(str(path)) as file:
        rereader = Rereader(client, [file])
        warm(rereader, file, rng)
        os.truncate(path, 1000)
        buffer = memoryview(bytearray(300))
        rows = Rows([file, file], [900, 5000], [150, 150], [0, 150])
        assert rereader.read(rows, buffer) == [100, 0]
        assert buffer[:100] == CONTENT[900:1000]


def test_a_slow_cache_is_left_and_later_tried_again(path, asked, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(rereading, "perf_counter", lambda: now[0])
    preadv, take_s = os.preadv, [0.0]

    def slow(fd, buffers, offset):
        now[0] += take_s[0]
        return preadv(fd, buffers, offset)

    def by_rings(client, rows, buffer):
        now[0] += 0.001 * len(rows.files)
        asked.append(len(rows.files))
        return read_rows(client, rows, buffer)

    monkeypatch.setattr(os, "preadv", slow)
    monkeypatch.setattr(rereading, "read_rows", by_rings)
    rng = random.Random(4)
    with RingClient(path.parent) as client, client.open(str(path)) as file:
        rereader = Rereader(client, [file])
        warm(rereader, file, rng)
        one = Rows([file], [0], [SAMPLE], [0])
        for take in (0.0, 0.1):
            take_s[0] = take
            for _ in range(SETTLED_BATCHES + 3 * JUDGED_BATCHES):
                read(rereader, one)
            assert rereader.is_cached == (take == 0.0)
        asked.clear()
        take_s[0] = 0.0
        warm(rereader, file, rng)
        assert sum(asked) * SAMPLE > LENGTH // 8  # more than the first time


def test_files_that_do_not_fit_into_memory_are_read_by_rings_alone(path, asked, monkeypatch):
    monkeypatch.setattr(rereading, "free_memory_bytes", lambda: LENGTH)
    rng = random.Random(5)
    with RingClient(path.parent) as client, client.open(str(path)) as file:
        rereader = Rereader(client, [file])
        for _ in range(3):
            rows = epoch(rng, file)
            read(rereader, rows)
            assert asked.pop() == len(rows.files)


def test_several_files_and_other_clients(path, asked):
    rng = random.Random(6)
    with RingClient(path.parent) as client:
        files = [client.open(str(path)) for _ in range(3)]
        rereader = Rereader(client, files[:2])
        for _ in range(4):
            rows = epoch(rng, files[0])
            mixed = Rows([rng.choice(files) for _ in rows.files], *rows[1:])
            asked.clear()
            read(rereader, mixed)
        assert rereader.is_cached
        own = mixed.files.count(files[0]) + mixed.files.count(files[1])
        assert len(mixed.files) - own <= sum(asked) < len(mixed.files)
    with PosixClient() as client, client.open(str(path)) as file:
        rereader = Rereader(client, [file])
        rows = epoch(rng, file)
        read(rereader, rows)
        assert asked[-1] == len(rows.files)
        assert not rereader.is_cached
