"""Data in, data out: big trees and big files, across a restart of everything, and random overwrites."""

import hashlib
import os
import random

import pytest

from .conftest import run, scaled

pytestmark = [pytest.mark.mount, pytest.mark.slow, pytest.mark.timeout(900)]

MIB = 1 << 20


def test_tree_and_big_file_survive_a_restart(own_cluster, library_tree):
    tree = own_cluster.mount / "lib"
    run("cp", "-r", library_tree, tree)
    run("diff", "-r", library_tree, tree)
    digest = hashlib.sha256()
    generator = random.Random(7)
    with (own_cluster.mount / "big").open("wb") as big:
        for _ in range(scaled(192, 2048)):
            block = generator.randbytes(MIB)
            digest.update(block)
            big.write(block)
    own_cluster.down()
    assert not os.path.ismount(own_cluster.mount)
    own_cluster.up()
    run("diff", "-r", library_tree, tree)
    again = hashlib.sha256()
    with (own_cluster.mount / "big").open("rb") as big:
        while block := big.read(4 * MIB):
            again.update(block)
    assert again.digest() == digest.digest()


def test_random_overwrites_match_a_local_twin(place, tmp_path):
    """10,000 random writes, reads, truncates, extensions, reopens and fsyncs, checked against a local file."""
    generator = random.Random(int(os.environ.get("EMBER_TEST_SEED", "11")))
    length_max = 6 * MIB
    ours, twin = place / "ours", tmp_path / "twin"
    one = os.open(ours, os.O_RDWR | os.O_CREAT)
    two = os.open(twin, os.O_RDWR | os.O_CREAT)
    try:
        for step in range(scaled(3000, 10_000)):
            action = generator.random()
            offset = generator.randrange(length_max)
            length = min(generator.choice([1, 7, 512, 4096, 65_537, 300_001]), length_max - offset)
            if action < 0.45:
                data = generator.randbytes(length)
                assert os.pwrite(one, data, offset) == os.pwrite(two, data, offset) == length
            elif action < 0.85:
                assert os.pread(one, length, offset) == os.pread(two, length, offset), step
            elif action < 0.92:
                os.ftruncate(one, offset)
                os.ftruncate(two, offset)
            elif action < 0.95:
                os.fsync(one)
            elif action < 0.97:
                os.close(one)
                one = os.open(ours, os.O_RDWR)
            assert os.fstat(one).st_size == os.fstat(two).st_size, step
    finally:
        os.close(one)
        os.close(two)
    assert ours.read_bytes() == twin.read_bytes()


def test_a_directory_of_many_entries(place):
    count = scaled(5_000, 100_000)
    for index in range(count):
        os.close(os.open(place / f"{index:06d}", os.O_CREAT | os.O_WRONLY))
    seen = [entry.name for entry in os.scandir(place)]
    assert sorted(seen) == [f"{index:06d}" for index in range(count)]
