"""Rows that their asker has the disk read:
only what nobody has read lately, and nothing of it in the page cache.
"""

import os
import time
from itertools import accumulate

import pytest

from fs.chunkengine import cached_ranges, data_files
from fs.chunkengine.cached_ranges import is_uncached
from fs.chunkengine.read_values import ReadRows
from fs.kernels.writes import block_checksums

from .test_direct_reads import CHUNKS, KEYS, KIB, Watched
from .test_engine import put
from .workload import in_pages, place

WHOLE, TWO = (0, 0, 64 * KIB), (2, 0, 128 * KIB)


@pytest.fixture(params=["memory", "disk"])
def lab(request, disk_path, monkeypatch):
    """A disk on which nothing is in memory, whose file has been opened past the page cache;
    the simulated one has what is read now in it.
    """
    monkeypatch.setattr(data_files, "why_not_direct", lambda *_: "")
    made = Watched(request.param, disk_path, 16 * KIB)
    made.read([(2, 192 * KIB, 64 * KIB), (0, 48 * KIB, 16 * KIB)])  # of either size a data file
    made.cool()
    if made.kind == "memory":
        made.disk.is_cached = lambda: False
    yield made
    made.engine.close()


def lend(lab, *wanted):
    numbers, offsets, lengths = map(list, zip(*wanted, strict=True))
    rows = ReadRows(numbers, offsets, lengths, list(accumulate(lengths)))
    return lab.engine.lend_rows(KEYS, rows, is_direct=True)


def bytes_of(lent):
    found = []
    for source, offset, length in lent.ranges:
        view = in_pages(bytes(length))
        read = source([view], offset, 0) if callable(source) else os.preadv(source, [view], offset)
        assert read == length
        found.append(bytes(view))
    return found


def users(lab):
    if lab.kind == "memory":
        return 0
    files = lab.files._files.open.values()
    return sum(file.user_count + file.holder_count for file in files)


def test_what_is_lent_is_what_the_chunk_holds_and_counts_as_read(lab) -> None:
    lent = lend(lab, TWO, WHOLE)
    pieces = [lab.contents[number][at : at + length] for number, at, length in (TWO, WHOLE)]
    assert lent.versions == [1, 1] and lent.block_bytes == 4096
    assert lent.checksums == [block_checksums(piece, 4096) for piece in pieces]
    assert users(lab) == (4 if lab.kind == "disk" else 0), "a write at once waits for nobody"
    assert bytes_of(lent) == pieces
    assert len(lab.engine._books.ledger.readers) == 2
    lent.give_back()
    assert not users(lab) and not lab.engine._books.ledger.readers
    assert lend(lab, WHOLE) is None and lend(lab, TWO) is None
    assert lab.read([WHOLE]) == 0, "through the page cache, for those who come later"


def test_what_was_read_past_the_cache_is_not_lent_so(lab) -> None:
    assert lab.read([WHOLE]) == 1
    lab.cool()
    assert lend(lab, WHOLE) is None
    put(lab.engine, CHUNKS[0], 2, in_pages(lab.contents[2][: 64 * KIB]))
    lab.cool()
    lent = lend(lab, WHOLE)
    assert lent.versions == [2], "other bytes"
    lent.give_back()


@pytest.mark.parametrize(
    "other", [(0, 0, 8 * KIB), (0, 100, 32 * KIB), (0, 4096, 32 * KIB + 1), (1, 0, 50_001)]
)
def test_all_or_nothing_is_lent_and_nothing_is_remembered_then(lab, other) -> None:
    assert lend(lab, WHOLE, other) is None
    assert not users(lab) and not lab.engine._books.ledger.readers
    lend(lab, WHOLE).give_back()


def test_what_is_in_memory_or_may_be_is_not_lent_so(lab, monkeypatch) -> None:
    if lab.kind == "memory":
        lab.disk.is_cached = lambda: True
        assert lend(lab, WHOLE) is None
        return
    file_id, start = place(lab.engine, CHUNKS[0])
    with lab.files._files.using(file_id) as file:
        os.posix_fadvise(file.fd, 0, 0, os.POSIX_FADV_RANDOM)
        assert os.pread(file.fd, 1, start + 5000)
    assert lend(lab, WHOLE) is None, "a page of it is there"
    monkeypatch.setattr(cached_ranges, "_system_call", lambda: None)
    assert lend(lab, TWO) is None, "a kernel that cannot be asked"


def test_a_file_that_is_not_open_so_is_not_waited_for(lab) -> None:
    if lab.kind == "disk":
        for file in lab.files._files.open.values():
            os.close(file.direct_fd)
            file.direct_fd = -1
        assert lend(lab, WHOLE) is None
        assert lab.read([(0, 0, 32 * KIB)]) == 1, "who waits opens it"
    lend(lab, (0, 32 * KIB, 32 * KIB)).give_back()


def test_never_is_never(disk_path) -> None:
    for kind in ("memory", "disk"):
        made = Watched(kind, disk_path, 0)
        assert lend(made, WHOLE) is None
        made.engine.close()


def test_a_range_is_uncached_if_none_of_its_pages_is_there(disk_path) -> None:
    path = disk_path / "file"
    path.write_bytes(bytes(1 << 20))
    fd = os.open(path, os.O_RDWR)
    try:
        os.fsync(fd)
        assert not is_uncached(fd, 0, 1 << 20)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
        for _ in range(200):  # a page that a processor has yet to enter into the lists is kept
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            if is_uncached(fd, 0, 1 << 20):
                break
            time.sleep(0.02)
        assert is_uncached(fd, 0, 1 << 20)
        assert os.pread(fd, 1, 40 * 4096)
        assert not is_uncached(fd, 0, 1 << 20)
        assert is_uncached(fd, 0, 40 * 4096)
    finally:
        os.close(fd)
    assert not is_uncached(1 << 20, 0, 1), "no such file: nobody can tell"


@pytest.mark.parametrize("where", ["remember", "may_lend"])
def test_a_lack_in_the_middle_leaves_nothing_lent(lab, monkeypatch, where) -> None:
    """Blocks would never be used again, and their files never be closed."""
    before, ledger = users(lab), lab.engine._books.ledger
    direct, asked = lab.engine._rows._direct, []
    real = getattr(direct, where)

    def lacking(*about):
        asked.append(about)
        if where == "remember" or len(asked) > 1:  # else nothing has been lent so far
            raise MemoryError("injected")
        return real(*about)

    monkeypatch.setattr(direct, where, lacking)
    with pytest.raises(MemoryError):
        lend(lab, TWO, WHOLE)
    with lab.engine._books:  # what could not be given back at once is now
        assert not ledger.readers
    assert users(lab) == before
