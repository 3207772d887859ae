"""Data in, data out: big trees and big files, across a restart of everything, and random overwrites."""

import hashlib
import os
import random

import pytest

from .conftest import run, scaled
from .fsx import Fsx

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


def test_random_overwrites_match_a_twin(place):
    """Random writes, reads, truncates, extensions, reopens and fsyncs, checked against a twin in memory."""
    generator = random.Random(int(os.environ.get("EMBER_TEST_SEED", "11")))
    file = Fsx(place / "file", generator, 6 * MIB)
    for _ in range(scaled(3000, 10_000)):
        file.step()
    file.finish()


def test_a_directory_of_many_entries(place):
    count = scaled(5_000, 100_000)
    for index in range(count):
        os.close(os.open(place / f"{index:06d}", os.O_CREAT | os.O_WRONLY))
    seen = [entry.name for entry in os.scandir(place)]
    assert sorted(seen) == [f"{index:06d}" for index in range(count)]
