"""Data in, data out: big trees and big files, across a restart of everything,
and random overwrites.
"""

import errno
import hashlib
import os
import random

import pytest
from emberfs.batch import Transfer
from emberfs.protocol import CHUNK_SIZE_ATTRIBUTE
from emberfs.publish import CHUNK_BYTES, make_partial_folder, publish_folder
from emberfs.ring import RingClient

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
        for _ in range(scaled(64, 2048)):
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
    """Random writes, reads, truncates, extensions, reopens and fsyncs,
    checked against a twin in memory.
    """
    generator = random.Random(int(os.environ.get("EMBER_TEST_SEED", "11")))
    file = Fsx(place / "file", generator, 6 * MIB)
    for _ in range(scaled(1500, 10_000)):
        file.step()
    file.finish()


def test_a_directory_of_many_entries(place):
    count = scaled(2_500, 100_000)
    for index in range(count):
        os.close(os.open(place / f"{index:06d}", os.O_CREAT | os.O_WRONLY))
    seen = [entry.name for entry in os.scandir(place)]
    assert sorted(seen) == [f"{index:06d}" for index in range(count)]


def chunk_size(path):
    return int(os.getxattr(path, CHUNK_SIZE_ATTRIBUTE))


def test_published_folders_have_large_chunks(place):
    before = chunk_size(place)
    folder = make_partial_folder(place / "checkpoint")
    assert (chunk_size(folder), chunk_size(place)) == (CHUNK_BYTES, before)
    content = memoryview(bytearray(os.urandom(2 * CHUNK_BYTES + 12_345)))
    with RingClient(folder) as client, client.open(f"{folder}/shard", "x") as file:
        cuts = range(0, len(content), MIB)
        client.write([Transfer(file, at, content[at : at + MIB]) for at in cuts])
    publish_folder(folder, place / "checkpoint", overwrite=False)
    assert chunk_size(place / "checkpoint") == CHUNK_BYTES
    assert (place / "checkpoint" / "shard").read_bytes() == content
    larger = place / "larger"
    larger.mkdir()
    os.setxattr(larger, CHUNK_SIZE_ATTRIBUTE, b"%d" % (4 * CHUNK_BYTES))
    assert chunk_size(make_partial_folder(larger / "checkpoint")) == 4 * CHUNK_BYTES
    for wrong in (b"", b"x", b"3000000", b"0", b"9" * 30):
        with pytest.raises(OSError, match="larger") as failed:
            os.setxattr(larger, CHUNK_SIZE_ATTRIBUTE, wrong)
        assert failed.value.errno == errno.EINVAL
    assert chunk_size(larger) == 4 * CHUNK_BYTES
    (place / "file").touch()
    with pytest.raises(OSError, match="file") as failed:
        os.setxattr(place / "file", CHUNK_SIZE_ATTRIBUTE, b"%d" % CHUNK_BYTES)
    assert failed.value.errno == errno.ENODATA
