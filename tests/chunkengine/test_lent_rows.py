"""Rows that are lent: what is lent is what the chunk holds, stays so until it is given back,
and waits for nothing.
"""

import os
import random
from contextlib import suppress
from itertools import accumulate

import pytest

from fs.chunkengine import cached_ranges
from fs.chunkengine.cached_ranges import is_cached
from fs.chunkengine.format import chunk_key
from fs.chunkengine.read_values import ReadRows
from fs.kernels.writes import block_checksums
from fs.schema.ids import ChunkId, InodeId, TargetId
from fs.schema.status import FsError, Status

from .test_engine import put, put_drawn
from .workload import place

BLOCK = 4096
CHUNKS = [(TargetId(1), ChunkId(InodeId(7), index)) for index in range(3)]
LENGTHS = [5 * BLOCK, 2 * BLOCK + 17]
"""Of the chunks but the last, which does not exist."""


@pytest.fixture
def tmp_path(disk_path):
    return disk_path


@pytest.fixture
def contents(lab):
    found = put_drawn(lab.engine, CHUNKS, LENGTHS)
    lab.engine.sync()
    read_all(lab)
    return found


def read_all(lab):
    """Have all of it in the page cache."""
    for chunk in CHUNKS[:2]:
        with suppress(FsError):  # a damaged one has been read all the same
            lab.engine.read_whole(*chunk)


def lend(engine, *wanted):
    numbers, offsets, lengths = map(list, zip(*wanted, strict=True))
    rows = ReadRows(numbers, offsets, lengths, list(accumulate(lengths)))
    return engine.lend_rows([chunk_key(*chunk) for chunk in CHUNKS], rows)


def lend_cached(lab, *wanted):
    """Do as `lend`; somebody may have dropped the machine's page cache meanwhile."""
    for _ in range(20):
        read_all(lab)
        lent = lend(lab.engine, *wanted)
        if lent is not None:
            return lent
    raise AssertionError("never in the cache")


def bytes_of(lent):
    """Read what is lent; an asker does not wait for what somebody has dropped
    from the machine's page cache meanwhile, a test does.
    """
    found = []
    for source, offset, length in lent.ranges:
        view = memoryview(bytearray(length))
        if callable(source):
            assert source([view], offset, os.RWF_NOWAIT) == length
        else:
            assert os.preadv(source, [view], offset) == length
        found.append(bytes(view))
    return found


def test_what_is_lent_is_what_the_chunk_holds(lab, contents) -> None:
    wanted = [(0, 0, 5 * BLOCK), (1, 0, LENGTHS[1]), (0, BLOCK, 2 * BLOCK), (1, 2 * BLOCK, 17)]
    lent = lend_cached(lab, *wanted)
    pieces = [contents[number][offset : offset + length] for number, offset, length in wanted]
    assert bytes_of(lent) == pieces and lent.versions == [1] * 4 and lent.block_bytes == BLOCK
    assert lent.checksums == [block_checksums(piece, BLOCK) for piece in pieces]
    lent.give_back()


@pytest.mark.parametrize(
    "row",
    [
        (0, 1, BLOCK),
        (0, 0, BLOCK + 1),
        (0, 4 * BLOCK, 2 * BLOCK),
        (1, 0, LENGTHS[1] + 1),
        (2, 0, BLOCK),
    ],
)
@pytest.mark.usefixtures("contents")
def test_all_or_nothing_is_lent_and_only_whole_blocks(lab, row) -> None:
    assert lend(lab.engine, (0, 0, BLOCK), row) is None
    _nothing_is_held(lab)


def test_what_is_damaged_is_found_out_by_its_asker(lab, contents) -> None:
    put(lab.engine, CHUNKS[0], 2, contents[0])
    lab.engine.sync()
    file_id, start = place(lab.engine, CHUNKS[0])
    lab.flip(file_id, start)
    lent = lend_cached(lab, (0, 0, BLOCK))
    (data,) = bytes_of(lent)
    assert block_checksums(data, BLOCK) != lent.checksums[0] and lent.versions == [2]
    lent.give_back()


def test_what_is_known_to_be_damaged_is_not_lent(lab, contents) -> None:
    lend_cached(lab, (0, 0, BLOCK), (1, 0, BLOCK)).give_back()
    assert lab.engine.mark_damaged(*CHUNKS[0], version=1)
    assert lend(lab.engine, (0, 0, BLOCK)) is None
    lent = lend_cached(lab, (1, 0, BLOCK))
    assert bytes_of(lent) == [contents[1][:BLOCK]]
    lent.give_back()


def test_what_is_not_in_memory_is_not_lent(lab, contents, monkeypatch) -> None:
    del contents
    if lab.kind == "memory":
        lab.disk.is_cached = lambda: False
        assert lend(lab.engine, (0, 0, BLOCK)) is None
        return
    file_id, start = place(lab.engine, CHUNKS[0])
    lab.engine._files.drop_cache([file_id])
    assert lend(lab.engine, (0, 0, 5 * BLOCK)) is None
    lend_cached(lab, (0, 0, 5 * BLOCK)).give_back()
    monkeypatch.setattr(cached_ranges, "_system_call", lambda: None)
    assert lend(lab.engine, (0, 0, 5 * BLOCK)) is None, "a kernel that cannot be asked"
    assert start >= 0


def test_blocks_are_not_used_again_before_they_are_given_back(lab, contents) -> None:
    lent = lend_cached(lab, (0, 0, 5 * BLOCK))
    for version in range(2, 40):
        put(lab.engine, CHUNKS[0], version, random.Random(version).randbytes(5 * BLOCK))
        lab.engine.sync()
        assert bytes_of(lent) == [contents[0]]
    ledger = lab.engine._books.ledger
    assert len(ledger.readers._left) == 1
    lent.give_back()
    assert not ledger.readers._left
    _nothing_is_held(lab)


def test_who_gives_back_waits_for_nobody(lab, contents) -> None:
    del contents
    lent, books = lend_cached(lab, (0, 0, BLOCK), (1, 0, BLOCK)), lab.engine._books
    with books.lock:
        lent.give_back()
        assert len(books.ledger.readers) == 2
    assert lab.engine.get(*CHUNKS[0]) is not None
    _nothing_is_held(lab)


def test_an_engine_that_is_closed_takes_back_what_it_lent(lab, contents) -> None:
    del contents
    lent = lend_cached(lab, (0, 0, BLOCK))
    lab.engine.close()
    lent.give_back()
    with pytest.raises(FsError) as caught:
        lend(lab.engine, (0, 0, BLOCK))
    assert caught.value.status is Status.NOT_SERVING


def _nothing_is_held(lab):
    assert not lab.engine._books.ledger.readers and not lab.engine._books._owed
    if lab.kind == "disk":
        assert all(not file.user_count for file in lab.engine._files._files.open.values())


def test_a_range_is_cached_if_all_its_pages_are(disk_path) -> None:
    path = disk_path / "file"
    path.write_bytes(bytes(64 * BLOCK))
    fd = os.open(path, os.O_RDWR)
    try:
        os.fsync(fd)
        assert is_cached(fd, 5, 63 * BLOCK)
        assert not is_cached(fd, 63 * BLOCK, 2 * BLOCK), "beyond the end"
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        assert not is_cached(fd, 0, 1)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
        assert len(os.pread(fd, BLOCK, 40 * BLOCK)) == BLOCK
        assert not is_cached(fd, 0, 64 * BLOCK) and not is_cached(fd, 0, BLOCK)
    finally:
        os.close(fd)
    assert not is_cached(1 << 20, 0, 1), "no such file"
