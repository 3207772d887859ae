"""Checksums and direct writes of new versions, compiled and in Python."""

import errno
import mmap
import os
import random
import resource
import signal
import sys

import pytest
from xxhash import xxh3_64_digest

from fs.kernels import writes

from .fuzz_io import WritesFuzzer

if writes.IS_COMPILED:
    from fs.kernels import _writes as compiled
else:
    compiled = None

UNIT = 512
BLOCK = 1000


@pytest.fixture
def descriptor(tmp_path):
    """A file of 64 KiB of dots."""
    path = tmp_path / "file"
    path.write_bytes(b"." * (64 << 10))
    fd = os.open(path, os.O_RDWR)
    yield fd
    os.close(fd)


def in_pages(data, skip=0):
    """Bytes that lie `skip` behind the begin of a page."""
    memory = memoryview(mmap.mmap(-1, skip + max(1, len(data))))[skip : skip + len(data)]
    memory[:] = data
    return memory


def sums(data, block=BLOCK):
    return b"".join(xxh3_64_digest(data[at : at + block]) for at in range(0, len(data), block))


def held(fd, size=64 << 10):
    return os.pread(fd, size, 0)


@pytest.mark.parametrize("size", [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 17 * BLOCK, (1 << 20) + 3])
@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_checksums_are_those_of_the_blocks(kernel, size, kind):
    data = random.Random(size).randbytes(size)
    assert kernel.block_checksums(kind(data), BLOCK) == sums(data)


@pytest.mark.parametrize("block", [0, -1, (1 << 30) + 1])
def test_a_block_of_no_size_is_refused(kernel, descriptor, block):
    for call in (
        lambda: kernel.block_checksums(b"x", block),
        lambda: kernel.write_rows(block, UNIT, [(descriptor, 0, in_pages(b"x" * UNIT))]),
        lambda: kernel.write_rows(BLOCK, block, [(descriptor, 0, in_pages(b"x" * UNIT))]),
    ):
        with pytest.raises(ValueError, match="no size of a block"):
            call()
    assert held(descriptor) == b"." * (64 << 10)


def test_rows_are_written_as_far_as_they_are_whole_units(kernel, descriptor):
    rng = random.Random(1)
    pieces = [rng.randbytes(size) for size in (2 * UNIT, 3 * UNIT + 7, UNIT, 100, UNIT, 0)]
    rows = [
        (descriptor, 0, in_pages(pieces[0])),
        (descriptor, 2 * UNIT, in_pages(pieces[1])),  # follows; its end is no unit
        (descriptor, 6 * UNIT, in_pages(pieces[2])),  # does not follow
        (descriptor, 8 * UNIT, in_pages(pieces[3])),  # no unit at all
        (descriptor, 5 * UNIT, in_pages(pieces[4])),  # in front
        (descriptor, 20 * UNIT, in_pages(pieces[5])),
    ]
    found = kernel.write_rows(BLOCK, UNIT, rows)
    assert found == list(zip([1024, 1536, 512, 0, 512, 0], map(sums, pieces), strict=True))
    wanted = bytearray(b"." * (64 << 10))
    for (_, offset, data), (count, _) in zip(rows, found, strict=True):
        wanted[offset : offset + count] = data[:count]
    assert held(descriptor) == wanted


@pytest.mark.parametrize(
    ("offset", "data"),
    [(1, in_pages(b"x" * UNIT)), (0, in_pages(b"x" * UNIT, 8)), (0, b"x" * UNIT)],
    ids=["offset", "memory", "read-only"],
)
def test_what_lies_askew_or_must_not_be_written_to_is_left(kernel, descriptor, offset, data):
    assert kernel.write_rows(BLOCK, UNIT, [(descriptor, offset, data)]) == [(0, sums(data))]
    assert held(descriptor) == b"." * (64 << 10)


def test_a_row_that_is_left_parts_those_beside_it(kernel, descriptor):
    rows = [
        (descriptor, n * UNIT, b"x" * UNIT if n == 1 else in_pages(b"%d" % n * UNIT))
        for n in range(4)
    ]
    assert [count for count, _ in kernel.write_rows(BLOCK, UNIT, rows)] == [UNIT, 0, UNIT, UNIT]
    parts = [b"0", b".", b"2", b"3", b"."]
    assert held(descriptor, 5 * UNIT) == b"".join(part * UNIT for part in parts)


def test_a_failure_is_told_of_all_rows_of_its_call(kernel, descriptor, tmp_path):
    refused = os.open(tmp_path / "other", os.O_RDONLY | os.O_CREAT)
    data = in_pages(b"x" * UNIT)
    rows = [(descriptor, 0, data), (refused, UNIT, data), (refused, 2 * UNIT, data)]
    found = kernel.write_rows(BLOCK, UNIT, [*rows, (descriptor, 3 * UNIT, data)])
    os.close(refused)
    assert [count for count, _ in found] == [UNIT, -errno.EBADF, -errno.EBADF, UNIT]
    assert held(descriptor, 4 * UNIT) == b"x" * UNIT + b"." * 2 * UNIT + b"x" * UNIT


def test_a_write_that_ends_early_is_told_row_by_row(kernel, tmp_path):
    """Where a file may grow no further the call writes what it can."""
    fd = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (3 * UNIT // 2, limits[1]))
    try:
        rows = [(fd, n * UNIT, in_pages(b"x" * UNIT)) for n in range(3)]
        found = kernel.write_rows(BLOCK, UNIT, rows)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, before)
        os.close(fd)
    assert [count for count, _ in found] == [UNIT, UNIT // 2, 0]


def test_nothing_is_written_if_one_row_cannot_be(kernel, descriptor):
    good = descriptor, 0, in_pages(b"x" * UNIT)
    for bad in ((descriptor, -UNIT, good[2]), (descriptor, 2**63 - UNIT, good[2])):
        with pytest.raises(ValueError, match=r"negative offset|offset that no file has"):
            kernel.write_rows(BLOCK, UNIT, [good, bad])
    with pytest.raises(ValueError, match="too many rows"):
        kernel.write_rows(BLOCK, UNIT, [good] * 1025)
    for bad in (None, (1, 2), (descriptor, 0, "text")):
        with pytest.raises((TypeError, ValueError)):
            kernel.write_rows(BLOCK, UNIT, [good, bad])
    assert held(descriptor) == b"." * (64 << 10)


def test_memory_is_let_go(kernel, descriptor):
    data = mmap.mmap(-1, 4096)
    row = descriptor, 0, memoryview(data)
    kernel.write_rows(BLOCK, UNIT, [row])
    with pytest.raises((TypeError, ValueError)):
        kernel.write_rows(BLOCK, UNIT, [row, (descriptor, 0, None)])
    row[2].release()
    data.close()  # refused while somebody holds it


def test_of_random_calls_both_say_and_leave_the_same():
    if compiled is None:
        pytest.skip("not compiled: python setup.py build_ext --inplace")
    with WritesFuzzer(compiled, 1) as fuzzer:
        for _ in range(200):
            fuzzer.call_each()
        assert 100 < fuzzer.done < 200, "of refused ones there are some, too"


@pytest.mark.parametrize("fd", [2**31, -(2**31) - 1, 2**64])
def test_nothing_is_written_if_one_row_has_no_descriptor(kernel, descriptor, fd):
    """Found by tests/kernels/fuzz.py: the twin wrote the rows before it."""
    data = in_pages(b"x" * UNIT)
    with pytest.raises(OverflowError):
        kernel.write_rows(BLOCK, UNIT, [(descriptor, 0, data), (fd, 0, data)])
    assert held(descriptor) == b"." * (64 << 10)


class Meddler:
    """A number; who asks for it finds the rows gone,
    and tries what must not be done to memory that is held.
    """

    def __init__(self, number, rows, memory):
        self._number, self._rows, self._memory = number, rows, memory
        self.refused = 0

    def __index__(self):
        self._rows.clear()
        try:
            self._memory.extend(bytes(1 << 20))
        except BufferError:
            self.refused += 1
        return self._number


def test_rows_and_memory_are_held_while_a_row_is_taken_apart(descriptor):
    if compiled is None:
        pytest.skip("not compiled: python setup.py build_ext --inplace")
    memory, rows = bytearray(b"x" * UNIT), []
    meddler = Meddler(UNIT, rows, memory)
    rows += [(descriptor, 0, memory), (descriptor, meddler, bytearray(b"y" * UNIT))]
    assert [count for count, _ in compiled.write_rows(BLOCK, 1, rows)] == [UNIT, UNIT]
    assert held(descriptor, 2 * UNIT) == b"x" * UNIT + b"y" * UNIT
    assert (rows, meddler.refused) == ([], 1)
    memory.extend(b"free again")


def test_refusals_keep_nothing(kernel, descriptor):
    data = in_pages(b"x" * UNIT)
    good = descriptor, 0, data
    for bad in ((descriptor, 0, None), (descriptor, -1, data), (descriptor, 0), (2**64, 0, data)):
        rows = [good, bad]
        things = good, bad, data, rows
        before = list(map(sys.getrefcount, things))
        for _ in range(50):
            with pytest.raises((TypeError, ValueError, OverflowError)):
                kernel.write_rows(BLOCK, UNIT, rows)
        assert list(map(sys.getrefcount, things)) == before, bad
