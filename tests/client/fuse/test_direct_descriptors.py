"""Descriptors opened with O_DIRECT, and the pages that the kernel shows to others:
one file, the same bytes.
"""

import mmap
import os
import random

import pytest

from tests.client.fuse.test_mount import Server

pytestmark = [
    pytest.mark.mount,
    pytest.mark.skipif(not os.access("/dev/fuse", os.R_OK | os.W_OK), reason="no /dev/fuse"),
]
PAGE = mmap.PAGESIZE
PAGES = 64


@pytest.fixture
def path(tmp_path):
    (tmp_path / "mnt").mkdir()
    server = Server(tmp_path / "mnt")
    yield tmp_path / "mnt" / "file"
    server.stop()


def test_direct_and_buffered_calls_see_each_other(path):
    rng = random.Random(8)
    expected = bytearray(PAGES * PAGE)
    path.write_bytes(expected)
    direct = os.open(path, os.O_RDWR | os.O_DIRECT)
    buffered = os.open(path, os.O_RDWR)
    with (
        mmap.mmap(-1, PAGES * PAGE) as memory,
        mmap.mmap(buffered, 0) as shared,
        mmap.mmap(direct, 0, prot=mmap.PROT_READ) as private,
    ):
        for _ in range(60):
            begin = rng.randrange(PAGES) * PAGE
            count = rng.randrange(PAGE, PAGES * PAGE - begin + PAGE, PAGE)
            data = rng.randbytes(count)
            expected[begin : begin + count] = data
            if rng.random() < 0.5:
                memory[:count] = data
                assert os.pwritev(direct, [memoryview(memory)[:count]], begin) == count
            else:
                assert os.pwrite(buffered, data, begin) == count
            assert os.preadv(direct, [memory], 0) == len(expected)
            assert memory[:] == expected
            assert os.pread(buffered, len(expected), 0) == expected
            assert shared[:] == expected
            assert private[begin : begin + count] == data
    os.close(direct)
    os.close(buffered)
