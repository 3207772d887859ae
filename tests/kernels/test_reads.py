"""What storage's kernels return, whichever serves."""

import os
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from xxhash import xxh3_64_digest, xxh3_64_intdigest

from fs.kernels import reads, reads_twin
from tests.examples import many
from tests.kernels.growth import assert_nothing_stays

BLOCK = 64
BOUNCE = 5 * BLOCK
CONTENTS = [random.Random(n).randbytes(size) for n, size in enumerate((1000, 64, 10 * BLOCK))]
STARTS = [100, 2000, 3000]


def test_checksums_of_pieces(kernel):
    data = random.Random(1).randbytes(10_000)
    ends = [0, 1, 4097, 4097, 10_000]
    pieces = [data[start:end] for start, end in zip([0, *ends], ends, strict=False)]
    found = kernel.row_checksums(memoryview(data), ends)
    assert found == list(map(xxh3_64_intdigest, pieces))
    assert kernel.row_checksums(memoryview(b""), []) == []


@pytest.mark.parametrize("ends", [[11], [5, 4], [-1], [2**63], [-(2**70)], [3, 2**64 + 3]])
def test_pieces_beyond_a_buffer_are_refused(kernel, ends):
    with pytest.raises(ValueError, match=r"a piece beyond the buffer|a negative number"):
        kernel.row_checksums(memoryview(bytes(10)), ends)


@pytest.fixture(scope="module")
def descriptor(disk_folder):
    """A file that ends within the third chunk;
    a byte of the first is not what its checksum says.
    """
    path = disk_folder / "kernel-reads"
    image = bytearray(4000)
    for start, content in zip(STARTS, CONTENTS, strict=True):
        image[start : start + len(content)] = content
    image[STARTS[0] + 3 * BLOCK + 5] ^= 1
    path.write_bytes(image[: STARTS[2] + 9 * BLOCK + 5])
    fd = os.open(path, os.O_RDONLY)
    yield fd
    os.close(fd)


def chunks_of(descriptor):
    """Three chunks, one without the checksums of its last blocks, and None."""
    found = [
        (
            descriptor,
            start,
            len(content),
            version,
            b"".join(
                xxh3_64_digest(content[at : at + BLOCK]) for at in range(0, len(content), BLOCK)
            ),
        )
        for version, (start, content) in enumerate(zip(STARTS, CONTENTS, strict=True), 11)
    ]
    return [*found, (*found[0][:4], found[0][4][:20]), None]


def read(kernel, chunks, wanted, *, cold_min=4, want_checksums=True, block=BLOCK):
    """Read (chunk, offset, length); return what became of them and the bytes
    of each that was read.
    """
    numbers, offsets, lengths = map(list, zip(*wanted, strict=True))
    ends = [sum(lengths[: n + 1]) for n in range(len(lengths))]
    buffer = bytearray(sum(lengths))
    columns = numbers, offsets, lengths, ends
    found = kernel.read_rows(
        block, BOUNCE, cold_min, chunks, *columns, memoryview(buffer), want_checksums
    )
    pieces = zip(found[0], lengths, ends, strict=True)
    return found, [bytes(buffer[end - size : end]) if good else None for good, size, end in pieces]


@pytest.mark.parametrize("cold_min", [0, 4])
def test_rows_are_read_or_left(kernel, descriptor, cold_min):
    wanted = [
        (0, 0, 10),  # widened
        (0, 20, 30),  # of the same block
        (0, BLOCK, BLOCK),  # just a block
        (0, 0, 3 * BLOCK),  # several
        (0, 2 * BLOCK + 1, BLOCK + 1),  # the damaged one is among them
        (0, 15 * BLOCK, 40),  # the last block is shorter
        (0, 15 * BLOCK, 41),  # beyond the end
        (0, 4 * BLOCK + 1, BOUNCE),  # widened to more than may be
        (1, 0, 64),
        (2, 9 * BLOCK, 1),  # the file ends there
        (2, 8 * BLOCK, 3),
        (3, 0, 2 * BLOCK),
        (3, 0, 2 * BLOCK + 1),  # there is no checksum
        (4, 0, 1),
        (0, 2**63, 1),
        (0, 2**64 + 1, 1),
        (0, 5, 0),
    ]
    found, pieces = read(kernel, chunks_of(descriptor), wanted, cold_min=cold_min)
    left = [4, 6, 7, 9, 12, 13, 14, 15]
    assert found[2:] == (left, 0)
    for n, (number, offset, length) in enumerate(wanted):
        if n in left:
            assert found[0][n] == found[1][n] == 0
        else:
            expected = CONTENTS[number % 3][offset : offset + length]
            assert pieces[n] == expected
            assert found[0][n] == (11, 12, 13, 11)[number]
            assert found[1][n] == xxh3_64_intdigest(expected)
    unsummed, again = read(kernel, chunks_of(descriptor), wanted, want_checksums=False)
    assert (unsummed, again) == ((found[0], [], *found[2:]), pieces)


@pytest.mark.parametrize("block", [BLOCK, 48])
def test_a_single_row_is_read_or_left_as_one_of_many(kernel, descriptor, block):
    chunks, random_of = chunks_of(descriptor)[:4], random.Random(block)
    wanted = [
        (0, 0, 10),
        (0, BLOCK, BLOCK),
        (0, 0, 3 * BLOCK),
        (0, 2 * BLOCK + 1, BLOCK + 1),
        (0, 5, 0),
    ]
    wanted += [
        (0, 15 * BLOCK, 41),
        (0, 4 * BLOCK + 1, BOUNCE),
        (2, 9 * BLOCK, 1),
        (3, 0, 2 * BLOCK + 1),
    ]
    for _ in range(300):
        number = random_of.randrange(4)
        wanted.append((number, random_of.randrange(1100), random_of.randrange(200)))
    found, pieces = read(kernel, chunks, wanted, block=block)
    for n, (number, offset, length) in enumerate(wanted):
        fd, start, chunk_length, _, checksums = chunks[number]
        view = memoryview(bytearray(length))
        asked = block, BOUNCE, fd, start, chunk_length, checksums, offset, view
        checksum = kernel.read_row(*asked)
        assert (checksum is None) == (n in found[2])
        if checksum is not None:
            assert (checksum, bytes(view)) == (found[1][n], pieces[n])
    with pytest.raises(ValueError, match="sizes that nothing has"):
        kernel.read_row(BLOCK, BOUNCE, descriptor, 0, 100, b"", -1, memoryview(bytearray(1)))


def test_a_file_that_cannot_be_read_leaves_its_rows(kernel, tmp_path):
    fd = os.open(tmp_path / "x", os.O_WRONLY | os.O_CREAT)
    chunk = (fd, 0, 100, 1, bytes(16))
    found, _ = read(kernel, [chunk, (fd, 2**63, 100, 1, bytes(16))], [(0, 0, 5), (1, 0, 5)])
    os.close(fd)
    assert found == ([0, 0], [0, 0], [0, 1], 0)


@pytest.mark.parametrize(
    ("column", "value"),
    [(0, -1), (0, 5), (1, -1), (2, -1), (2, 11), (2, 2**63), (3, 0), (3, 11), (3, -(2**65))],
)
def test_rows_beyond_the_buffer_or_of_no_chunk_are_refused(kernel, descriptor, column, value):
    columns = [[0, 0], [0, 0], [2, 8], [2, 10]]
    columns[column][1] = value
    with pytest.raises(ValueError, match=r"beyond the buffer|negative"):
        kernel.read_rows(
            BLOCK, BOUNCE, 0, chunks_of(descriptor), *columns, memoryview(bytearray(10)), True
        )


@pytest.mark.parametrize("column", range(4))
def test_columns_of_different_lengths_are_refused(kernel, descriptor, column):
    columns = [[0], [0], [2], [2]]
    columns[column] = []
    with pytest.raises(ValueError, match="different lengths"):
        kernel.read_rows(
            BLOCK, BOUNCE, 0, chunks_of(descriptor), *columns, memoryview(bytearray(10)), True
        )


def test_what_is_not_cached_is_left_without_asking_for_all(kernel, disk_path):
    """Needs a file system that can tell; where nothing stays on the disk alone,
    there is nothing to see.
    """
    size, block = 1 << 20, 4096
    content = random.Random(4).randbytes(size)
    path = disk_path / "cold"
    path.write_bytes(content)
    sums = b"".join(xxh3_64_digest(content[at : at + block]) for at in range(0, size, block))
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)  # what is asked for brings no neighbours
        wanted = [(0, at, block) for at in range(0, 20 * block, block)]
        chunks = [(fd, 0, size, 3, sums)]
        for _ in range(20):  # some pages are not given up at once
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            found, _ = read(kernel, chunks, wanted, block=block)
            if found[3] == len(wanted):
                break
        else:
            pytest.skip("this file system keeps it in memory")
        assert found[:3] == ([0] * 20, [0] * 20, list(range(20)))
        found, pieces = read(kernel, chunks, wanted, cold_min=0, block=block)
        assert (found[0], found[2:]) == ([3] * 20, ([], 0))
        assert b"".join(pieces) == content[: 20 * block]
    finally:
        os.close(fd)


row = st.tuples(
    st.integers(0, 7),
    st.one_of(st.integers(0, 1100), st.sampled_from([0, BLOCK, 640, 2**31, 2**63 - 1, 2**64])),
    st.one_of(st.integers(0, 400), st.sampled_from([0, 1, BLOCK, 2 * BLOCK, 1000])),
)


@pytest.mark.skipif(not reads.IS_COMPILED, reason="not compiled")
@settings(max_examples=many(150), deadline=None)
@given(wanted=st.lists(row, min_size=1, max_size=12), block=st.sampled_from([1, 7, BLOCK, 4096]))
def test_both_do_the_same(descriptor, wanted, block):
    sums = chunks_of(descriptor)[0][4]
    absurd = [(0, 2**63), (2**64, 1000), (2**63 - 1000, 1000)]
    chunks = chunks_of(descriptor) + [(descriptor, *place, 9, sums) for place in absurd]
    for cold_min in 0, 1:
        found = read(reads, chunks, wanted, cold_min=cold_min, block=block)
        assert found == read(reads_twin, chunks, wanted, cold_min=cold_min, block=block)


@pytest.mark.thorough
def test_nothing_is_kept(kernel, descriptor):
    """Neither of what was returned nor of what was refused."""
    chunks, view = chunks_of(descriptor), memoryview(bytearray(40))
    columns = [0, 1, 4], [0, 1, 0], [10, 10, 10], [10, 20, 30]

    def once():
        kernel.read_rows(BLOCK, BOUNCE, 0, chunks, *columns, view, True)
        kernel.row_checksums(view, [10, 20])
        refused = 0
        for bad in ([0, 0, 9], [0, 0, -1]):
            try:
                kernel.read_rows(BLOCK, BOUNCE, 0, chunks, bad, *columns[1:], view, True)
            except ValueError:
                refused += 1
        assert refused == 2

    assert_nothing_stays(once)
    view.release()  # nobody holds the buffer
