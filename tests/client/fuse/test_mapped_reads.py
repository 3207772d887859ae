"""How large the requests are that faults of a mapped file make:
weights are loaded that way (safetensors); who reports what is changed.
"""

import json
import mmap
import os
import random
import signal

import pytest

from tests.client.fuse.test_mount import Server

pytestmark = [
    pytest.mark.mount,
    pytest.mark.skipif(
        os.geteuid() != 0 or not os.access("/dev/fuse", os.R_OK | os.W_OK), reason="needs root"
    ),
]
MIB = 1 << 20
FILE_BYTES = 12 * MIB
TENSOR_BYTES = 3 * MIB
LOST_BYTES_MAX = 64 << 10
"""A machine short of memory may drop a page between its reading and its use,
and ask for it again.
"""


@pytest.fixture(params=[0, MIB, 4 * MIB])
def mapped(request, tmp_path):
    """Yield (bytes of kernel readahead, its mapping of a file,
    a function that returns the sizes of READs since).
    """
    (tmp_path / "mnt").mkdir()
    server = Server(tmp_path / "mnt", f"kernel_readahead_bytes={request.param}")

    def read_sizes():
        server.process.send_signal(signal.SIGUSR1)
        return json.loads(server.process.stdout.readline())["read_sizes"]

    path = tmp_path / "mnt" / "weights"
    path.write_bytes(bytes(FILE_BYTES))
    with path.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        with mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as content:
            read_sizes()
            yield request.param, content, read_sizes
    server.close()


def test_faults_one_after_the_other_ask_for_all_that_is_read_ahead(mapped):
    ahead, content, read_sizes = mapped
    assert not any(content[place] for place in range(0, FILE_BYTES, mmap.PAGESIZE))
    sizes = read_sizes()
    assert sum(sizes) == FILE_BYTES
    each = min(ahead, MIB) or 128 << 10  # 128 KiB is the kernel's own; a request has a MiB at most
    assert len(sizes) == FILE_BYTES // each, sizes


def test_tensors_in_any_order_are_not_read_twice(mapped):
    ahead, content, read_sizes = mapped
    begins = list(range(0, FILE_BYTES, TENSOR_BYTES))
    random.Random(1).shuffle(begins)
    for begin in begins:
        assert content[begin : begin + TENSOR_BYTES] == bytes(TENSOR_BYTES)
    sizes = read_sizes()
    assert FILE_BYTES <= sum(sizes) <= FILE_BYTES + LOST_BYTES_MAX
    if ahead:
        assert len(sizes) <= 2 * FILE_BYTES // MIB, sizes


@pytest.fixture
def server(tmp_path):
    (tmp_path / "mnt").mkdir()
    server = Server(tmp_path / "mnt", "write_back_interval_s=3600")
    yield server
    server.close()


def test_whoever_closes_reports_what_it_has_changed_through_its_map(server):
    """The kernel writes by any open file through which the inode is mapped;
    each close has to see to all of it.
    """
    path = server.mount_point / "shared"
    path.write_bytes(bytes(mmap.PAGESIZE))

    def count_of_syncs():
        server.process.send_signal(signal.SIGUSR1)
        return json.loads(server.process.stdout.readline())["meta"].count("Sync")

    with (
        path.open("r+b") as first,
        path.open("r+b") as second,
        mmap.mmap(first.fileno(), 0) as mine,
        mmap.mmap(second.fileno(), 0) as other,
    ):
        for file, content in ((first, mine), (second, other)):
            count_of_syncs()
            content[:5] = b"hello"
            os.close(os.dup(file.fileno()))
            assert count_of_syncs() == 1


def test_what_a_map_changes_stays_at_its_place_whoever_has_the_file_open_for_appending(server):
    path, size = server.mount_point / "log", mmap.PAGESIZE + 4
    path.write_bytes(bytes(size))
    with (
        path.open("r+b") as plain,
        open(os.open(path, os.O_RDWR | os.O_APPEND), "rb", buffering=0) as appending,
        mmap.mmap(plain.fileno(), 0) as by_plain,
        mmap.mmap(appending.fileno(), 0) as by_appending,
    ):
        by_appending[0:5] = b"hello"
        by_appending.flush()
        by_plain[size - 4 :] = b"tail"
        os.close(os.dup(plain.fileno()))
        found = path.read_bytes()
        assert (len(found), found[:5], found[-4:]) == (size, b"hello", b"tail")
        os.write(appending.fileno(), b"more")
    assert path.read_bytes() == found + b"more"
