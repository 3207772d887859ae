"""Many reads in one loop: what they return is what the ordinary way returns,
and what is unusual is left to that.
"""

import errno
import os
import random
from itertools import accumulate

import pytest
import xxhash

from fs.chunkengine import rows as rows_module
from fs.chunkengine.format import chunk_key
from fs.chunkengine.read_values import ReadIo, ReadRows
from fs.chunkengine.rows import COLD_COUNT_MIN, HELD_COUNT
from fs.kernels import reads_twin
from fs.schema.ids import ChunkId, InodeId, TargetId
from fs.schema.status import Status

from .test_engine import put, put_drawn
from .workload import place

CHUNKS = [(TargetId(1), ChunkId(InodeId(7), index)) for index in range(4)]
LENGTHS = [50_000, 4096, 10_001]
"""Of the chunks but the last, which does not exist."""


@pytest.fixture
def tmp_path(disk_path):
    return disk_path


@pytest.fixture
def contents(lab):
    return put_drawn(lab.engine, CHUNKS, LENGTHS)


def read(engine, wanted, *, want_checksums=True, may_wait=False):
    """Read (chunk, offset, length); return what became of them and the bytes of each."""
    numbers, offsets, lengths = map(list, zip(*wanted, strict=True))
    rows = ReadRows(numbers, offsets, lengths, list(accumulate(lengths)))
    buffer = bytearray(sum(lengths))
    view = memoryview(buffer)
    keys = [chunk_key(*chunk) for chunk in CHUNKS]
    ask = engine.read_rows if may_wait else engine.read_cached_rows
    done = ask(keys, rows, view, want_checksums=want_checksums)
    pieces = zip(lengths, rows.ends, strict=True)
    return done, [bytes(buffer[end - length : end]) for length, end in pieces]


def test_single_cached_reads_are_verified_like_others(lab) -> None:
    chunk = CHUNKS[0]
    put(lab.engine, chunk, 1, b"a" * 5000)
    missing = (chunk[0], ChunkId(InodeId(8), 0))
    buffers = [memoryview(bytearray(100)) for _ in range(2)]
    ios = [ReadIo(*chunk, 4950, 100, buffers[0]), ReadIo(*missing, 0, 100, buffers[1])]
    found, lost = lab.engine.read_cached(ios)
    assert (found.status, found.length) == (Status.OK, 50)
    assert bytes(buffers[0][:50]) == b"a" * 50
    assert lost.status == Status.CHUNK_NOT_FOUND


@pytest.mark.parametrize("may_wait", [False, True])
def test_rows_are_what_single_reads_return(lab, contents, may_wait) -> None:
    generator = random.Random(2)
    wanted = []
    for _ in range(3 * HELD_COUNT + 5):
        number = generator.choice([0, 0, 0, 1, 2, 3])
        offset = generator.choice([0, 4096, 8192, generator.randrange(12_000)])
        wanted.append((number, offset, generator.choice([1, 100, 4096, 8192, 20_000])))
    done, pieces = read(lab.engine, wanted, may_wait=may_wait)
    lefts = set(done.left)
    assert len(done.left) == len(lefts) < len(wanted)
    for n, (number, offset, length) in enumerate(wanted):
        buffer = bytearray(length)
        (single,) = lab.engine.read_batch(
            [ReadIo(*CHUNKS[number], offset, length, memoryview(buffer))]
        )
        is_whole = not single.status and single.length == length
        assert (n not in lefts) == is_whole
        if is_whole:
            assert pieces[n] == bytes(buffer) == contents[number][offset : offset + length]
            assert done.checksums[n] == xxhash.xxh3_64_intdigest(buffer)
            assert done.versions[n] == single.commit_ver == 1
        else:
            assert (done.versions[n], done.checksums[n]) == (0, 0)
    assert not done.is_cold  # nothing of it is on the disk alone


@pytest.mark.parametrize("may_wait", [False, True])
def test_an_empty_version_is_left_to_the_ordinary_way(lab, contents, may_wait) -> None:
    """It has no block, and so no file to look for."""
    put(lab.engine, CHUNKS[3], 1, b"")
    done, pieces = read(lab.engine, [(3, 8192, 4096), (1, 0, 4096)], may_wait=may_wait)
    assert (done.versions, done.left, pieces[1]) == ([0, 1], [0], contents[1])
    (single,) = lab.engine.read_batch([ReadIo(*CHUNKS[3], 8192, 10, memoryview(bytearray(10)))])
    assert (single.status, single.length, single.commit_ver) == (Status.OK, 0, 1)
    key, view = chunk_key(*CHUNKS[3]), memoryview(bytearray(10))
    assert lab.engine.read_cached_row(key, 0, view) is None


def test_checksums_are_not_made_for_nobody(lab, contents) -> None:
    done, pieces = read(lab.engine, [(1, 0, 4096)], want_checksums=False)
    assert (done.versions, done.checksums, done.left) == ([1], [], [])
    assert pieces == [contents[1]]


def test_the_committed_version_is_read_also_after_the_next_one(lab, contents) -> None:
    put(lab.engine, CHUNKS[1], 2, b"new", 10)
    done, pieces = read(lab.engine, [(1, 0, 20), (1, 8, 8), (1, 0, 20)])
    expected = contents[1][:10] + b"new" + contents[1][13:]
    assert done.versions == [2, 2, 2]
    assert pieces == [expected[:20], expected[8:16], expected[:20]]


def test_a_version_that_is_replaced_while_the_disk_is_waited_for_stays_whole(
    lab, contents, monkeypatch
) -> None:
    calls = []

    def replaced_meanwhile(real):
        def call(*arguments):
            if not calls:
                calls.append(1)
                for version in range(2, 7):
                    put(lab.engine, CHUNKS[0], version, bytes([version]) * 50_000)
                    lab.engine.sync()
            return real(*arguments)

        return call

    for place_of_it in (rows_module, reads_twin):
        monkeypatch.setattr(place_of_it, "read_rows", replaced_meanwhile(place_of_it.read_rows))
    done, pieces = read(lab.engine, [(0, 0, 50_000), (0, 4096, 100)], may_wait=True)
    assert (calls, done.versions, done.left) == ([1], [1, 1], [])
    assert pieces == [contents[0], contents[0][4096:4196]]
    assert read(lab.engine, [(0, 0, 4)], may_wait=True)[1] == [bytes([6]) * 4]


@pytest.mark.parametrize("may_wait", [False, True])
def test_bytes_that_do_not_match_are_left(lab, contents, may_wait) -> None:
    file_id, start = place(lab.engine, CHUNKS[0])
    lab.flip(file_id, start + 5000)
    wanted = [(0, 0, 100), (0, 4200, 50), (0, 4200, 50), (0, 8192, 4096), (0, 0, 9000)]
    done, pieces = read(lab.engine, wanted, may_wait=may_wait)
    assert done.left == [1, 2, 4]
    assert not done.is_cold
    assert [pieces[0], pieces[3]] == [contents[0][:100], contents[0][8192:12288]]


@pytest.mark.parametrize("lab", ["disk"], indirect=True)
def test_what_would_wait_for_the_disk_is_left(lab, contents, monkeypatch) -> None:
    monkeypatch.setattr(rows_module, "read_rows", reads_twin.read_rows)
    real = os.preadv
    calls = []

    def preadv(fd, buffers, offset, flags=0):
        calls.append(flags)
        if len(calls) == 3:
            raise BlockingIOError(errno.EAGAIN, "would wait")
        return real(fd, buffers, offset, flags)

    read(lab.engine, [(0, 0, 10)])  # the file system can tell what is cached
    monkeypatch.setattr(os, "preadv", preadv)
    done, pieces = read(lab.engine, [(0, 0, 10), (0, 5000, 10), (0, 9000, 10), (0, 13_000, 10)])
    assert (done.left, done.is_cold) == ([2], True)
    assert pieces[3] == contents[0][13_000:13_010]
    assert calls == [os.RWF_NOWAIT] * 4
    monkeypatch.undo()
    assert not read(lab.engine, [(0, 9000, 10)])[0].left


@pytest.mark.parametrize("lab", ["disk"], indirect=True)
def test_where_hardly_anything_is_cached_the_rest_is_not_asked_for(
    lab, contents, monkeypatch
) -> None:
    del contents
    monkeypatch.setattr(rows_module, "read_rows", reads_twin.read_rows)
    real = os.preadv
    calls = []

    def preadv(fd, buffers, offset, flags=0):
        calls.append(offset)
        if (len(calls) - 1) % (COLD_COUNT_MIN + 1) != 3:
            raise BlockingIOError(errno.EAGAIN, "would wait")
        return real(fd, buffers, offset, flags)

    read(lab.engine, [(0, 0, 10)])
    monkeypatch.setattr(os, "preadv", preadv)
    wanted = [(0, 4096 * (n % 12), 10) for n in range(HELD_COUNT + 20)]
    done, _ = read(lab.engine, wanted)
    assert len(calls) == 2 * (COLD_COUNT_MIN + 1)
    assert done.is_cold
    assert len(done.versions) == len(done.checksums) == len(wanted)
    assert done.left == [n for n in range(len(wanted)) if n not in {3, HELD_COUNT + 3}]


@pytest.mark.parametrize("lab", ["disk"], indirect=True)
def test_a_file_system_that_cannot_tell_is_asked_once(lab, contents, monkeypatch) -> None:
    del contents
    calls = []

    def refuse(_fd, _buffers, _offset, flags=0):
        calls.append(flags)
        raise OSError(errno.EOPNOTSUPP, "not supported")

    monkeypatch.setattr(os, "preadv", refuse)
    for _ in range(2):
        done, _ = read(lab.engine, [(0, 0, 10), (0, 5000, 10)])
        assert (done.left, done.is_cold) == ([0, 1], False)
    assert calls == [os.RWF_NOWAIT]


def read_one(engine, number, offset, length):
    view = memoryview(bytearray(length))
    return engine.read_cached_row(chunk_key(*CHUNKS[number]), offset, view), bytes(view)


def test_a_single_row_is_what_many_are(lab, contents) -> None:
    put(lab.engine, CHUNKS[1], 2, b"new", 10)
    newer = contents[1][:10] + b"new" + contents[1][13:]
    for number, version, content in ((0, 1, contents[0]), (1, 2, newer)):
        for offset in (0, 5, len(content) - 100):
            read_as, piece = read_one(lab.engine, number, offset, 100)
            assert piece == content[offset : offset + 100]
            assert read_as == (version, xxhash.xxh3_64_intdigest(piece))


def test_a_single_row_that_is_damaged_or_not_there_is_left(lab, contents) -> None:
    file_id, start = place(lab.engine, CHUNKS[0])
    lab.flip(file_id, start + 5000)
    assert read_one(lab.engine, 0, 4200, 50)[0] is None
    assert read_one(lab.engine, 0, 0, 100)[1] == contents[0][:100]
    assert read_one(lab.engine, 1, 4000, 100)[0] is None
    assert read_one(lab.engine, 3, 0, 10)[0] is None


def test_a_single_row_of_what_is_not_in_memory_or_in_use_is_left(lab, contents) -> None:
    books = lab.engine._books
    with books:
        assert read_one(lab.engine, 0, 0, 100)[0] is None
    assert read_one(lab.engine, 0, 0, 100)[1] == contents[0][:100]
    books.ledger._versions._records.clear()
    assert read_one(lab.engine, 0, 0, 100)[0] is None
    assert read(lab.engine, [(0, 0, 100)])[0].left == []
    assert read_one(lab.engine, 0, 0, 100)[1] == contents[0][:100]
    books.failure = "the disk has gone"
    assert read_one(lab.engine, 0, 0, 100)[0] is None


@pytest.mark.parametrize("lab", ["disk"], indirect=True)
def test_a_single_row_says_that_it_would_wait(lab, contents, monkeypatch) -> None:
    monkeypatch.setattr(rows_module, "read_row", reads_twin.read_row)
    assert read_one(lab.engine, 0, 0, 10)[1] == contents[0][:10]  # the file system can tell

    def preadv(*_):
        raise BlockingIOError(errno.EAGAIN, "would wait")

    monkeypatch.setattr(os, "preadv", preadv)
    with pytest.raises(BlockingIOError):
        read_one(lab.engine, 0, 0, 10)
