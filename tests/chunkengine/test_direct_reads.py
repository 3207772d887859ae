"""Large reads past the page cache: which go there, that they return what the others return,
what falls back.
"""

import ctypes
import errno
import mmap
import os
import random
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import accumulate

import pytest
from xxhash import xxh3_64_intdigest

from fs.chunkengine import data_files, direct_reads
from fs.chunkengine.direct_reads import REMEMBERED_COUNT
from fs.chunkengine.format import chunk_key
from fs.chunkengine.read_values import ReadRows
from fs.kernels import direct_twin
from fs.kernels.writes import block_checksums
from fs.runtime.turns import Turns
from fs.schema.config import StorageSection
from fs.schema.ids import ChunkId, InodeId, TargetId

from .conftest import Lab
from .test_engine import put
from .workload import in_pages, place

KIB = 1024
CHUNKS = [(TargetId(1), ChunkId(InodeId(7), index)) for index in range(3)]
KEYS = [chunk_key(*chunk) for chunk in CHUNKS]
LENGTHS = [64 * KIB, 50_001, 256 * KIB]
BYTES_MIN = 16 * KIB


LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.mmap.restype = ctypes.c_void_p


def cached_pages(fd, start, length) -> int:
    """Return how many pages of a part of a file are in the page cache,
    without bringing any there, as reads may.
    """
    begin = start - start % mmap.PAGESIZE
    size = start + length - begin
    address = LIBC.mmap(
        None, ctypes.c_size_t(size), mmap.PROT_READ, mmap.MAP_SHARED, fd, ctypes.c_long(begin)
    )
    assert address != ctypes.c_void_p(-1).value, os.strerror(ctypes.get_errno())
    try:
        pages = (ctypes.c_ubyte * -(-size // mmap.PAGESIZE))()
        assert not LIBC.mincore(ctypes.c_void_p(address), ctypes.c_size_t(size), pages)
        return sum(page & 1 for page in pages)
    finally:
        LIBC.munmap(ctypes.c_void_p(address), ctypes.c_size_t(size))


class Watched(Lab):
    """A disk on which is noted what is opened for reading past the page cache;
    nothing is in it when it is opened.
    """

    def __init__(self, kind: str, path, bytes_min: int) -> None:
        super().__init__(kind, path)
        self.engine.close()
        self.section = StorageSection(checksum_block_bytes=4096, direct_read_bytes_min=bytes_min)
        self.engine = self.open()
        generator = random.Random(2)
        self.contents = [generator.randbytes(length) for length in LENGTHS]
        for chunk, content in zip(CHUNKS, self.contents, strict=True):
            put(self.engine, chunk, 1, in_pages(content))
        self.engine.sync()
        self.files = self.engine._files
        if kind == "disk":
            self.read_cached_at = self.files.read_cached_at
            self.files.read_cached_at = self._read_cached_at
        self.cool()
        self.lent = []
        self.real = self.files.lend_past_cache
        self.files.lend_past_cache = self._lend

    def _read_cached_at(self, file_id, offset, buffers) -> bool:
        """Do so only where the pages are there: Linux begins to read the others,
        and a disk may have them in that moment.
        """
        with self.files._files.using(file_id) as file:
            is_there = cached_pages(file.fd, offset, sum(map(len, buffers))) > 0
        return is_there and self.read_cached_at(file_id, offset, buffers)

    def _lend(self, file_id, *, may_wait=True):
        if may_wait:
            self.lent.append(file_id)
        return self.real(file_id, may_wait=may_wait)

    def cool(self) -> None:
        """Have nothing in the page cache."""
        if self.kind == "memory":
            self.disk.is_cached = lambda: False
            return
        for chunk, length in zip(CHUNKS, LENGTHS, strict=True):
            file_id, start = place(self.engine, chunk)
            self._cool(file_id, start, length)

    def _cool(self, file_id, start, length) -> None:
        for _ in range(200):
            self.files.flush([file_id])
            self.files.drop_cache([file_id])
            with self.files._files.using(file_id) as file:
                if not cached_pages(file.fd, start, length):
                    return
            time.sleep(0.02)  # a page that a processor has yet to enter into the lists is kept
        pytest.fail("the page cache does not let go of the file")

    def read(self, wanted, *, may_pass_cache=True, askew=0) -> int:
        """Read (chunk, offset, length), which have to be right;
        return how many rows went past the page cache.
        """
        numbers, offsets, lengths = map(list, zip(*wanted, strict=True))
        rows = ReadRows(numbers, offsets, lengths, list(accumulate(lengths)))
        view = in_pages(bytes(sum(lengths) + askew))[askew:]
        before = len(self.lent)
        done = self.engine.read_rows(
            KEYS, rows, view, want_checksums=True, may_pass_cache=may_pass_cache
        )
        assert (done.left, done.versions) == ([], [1] * len(wanted))
        for (number, offset, length), end in zip(wanted, rows.ends, strict=True):
            assert view[end - length : end] == self.contents[number][offset : offset + length]
        return len(self.lent) - before


@pytest.fixture
def opened(disk_path, monkeypatch):
    """Return what opens a watched disk of a kind."""
    monkeypatch.setattr(data_files, "why_not_direct", lambda *_: "")
    labs = []

    def open_one(kind: str, bytes_min: int = BYTES_MIN) -> Watched:
        labs.append(Watched(kind, disk_path, bytes_min))
        return labs[-1]

    yield open_one
    for lab in labs:
        lab.engine.close()


@pytest.fixture(params=["memory", "disk"])
def lab(request, opened):
    return opened(request.param)


def test_the_first_read_goes_past_the_cache_and_the_next_through_it(lab) -> None:
    whole = (0, 0, 64 * KIB)
    assert lab.read([whole]) == 1
    assert lab.read([whole]) == 0
    assert lab.read([whole]) == 0
    assert lab.read([(2, 0, 128 * KIB)]) == 1
    assert lab.read([(2, 128 * KIB, 128 * KIB)]) == 1, "of the same chunk, but other bytes"
    put(lab.engine, CHUNKS[0], 2, in_pages(bytes(64 * KIB)))
    lab.cool()
    lab.contents[0] = bytes(64 * KIB)
    with pytest.raises(AssertionError, match=r"\[2\]"):  # all was read, of the new version
        lab.read([whole])
    assert len(lab.lent) == 4


def test_only_whole_pages_and_checksum_blocks_do(lab) -> None:
    others = [(0, 0, 8 * KIB), (0, 100, 32 * KIB), (0, 4096, 32 * KIB + 1), (1, 0, 50_001)]
    for one in others:
        assert lab.read([one]) == 0, one
    assert lab.read([(0, 0, 32 * KIB)], askew=512) == 0
    assert lab.read([(0, 0, 64 * KIB)], may_pass_cache=False) == 0


def test_rows_of_both_kinds_come_in_one_call(lab) -> None:
    wanted = [(1, 0, 8 * KIB), (1, 5, 4096), (2, 0, 256 * KIB), (0, 0, 64 * KIB), (1, 9, 50)]
    assert lab.read(wanted) == 2
    assert lab.read(wanted) == 0


@pytest.mark.parametrize("kind", ["memory", "disk"])
def test_never_is_never(kind, opened) -> None:
    assert opened(kind, 0).read([(0, 0, 64 * KIB)]) == 0


@pytest.mark.parametrize("kind", ["disk"])
def test_what_is_in_the_page_cache_is_read_from_there(kind, opened) -> None:
    lab = opened(kind)
    lab.read([(0, 0, 64 * KIB)], may_pass_cache=False)
    assert lab.read([(0, 0, 64 * KIB)]) == 0


def test_bytes_that_do_not_match_are_left(lab) -> None:
    file_id, start = place(lab.engine, CHUNKS[0])
    lab.flip(file_id, start + 40_000)
    lab.cool()
    rows = ReadRows([0, 2], [0, 0], [64 * KIB, 256 * KIB], [64 * KIB, 320 * KIB])
    view = in_pages(bytes(320 * KIB))
    done = lab.engine.read_rows(KEYS, rows, view, want_checksums=False, may_pass_cache=True)
    assert (done.left, done.versions, done.checksums) == ([0], [0, 1], [])
    assert view[64 * KIB :] == lab.contents[2]
    assert len(lab.lent) == 2


def ask(lab, wanted, *, leaves_matching=True):
    """Return what becomes of (chunk, offset, length), and the bytes that have come."""
    numbers, offsets, lengths = map(list, zip(*wanted, strict=True))
    rows = ReadRows(numbers, offsets, lengths, list(accumulate(lengths)))
    view = in_pages(bytes(sum(lengths)))
    how = {"want_checksums": True, "may_pass_cache": True, "leaves_matching": leaves_matching}
    return lab.engine.read_rows(KEYS, rows, view, **how), view


def test_who_matches_bytes_himself_gets_the_stored_checksums(lab) -> None:
    wanted = [(2, 64 * KIB, 128 * KIB), (0, 0, 64 * KIB), (2, 4 * KIB, 16 * KIB)]
    done, view = ask(lab, wanted)
    assert bytes(view) == b"".join(
        lab.contents[number][offset:][:length] for number, offset, length in wanted
    )
    assert (done.versions, done.left, done.checksums) == ([1, 1, 1], [], [])
    assert (done.block_bytes, done.blocks) == (4096, block_checksums(view, 4096))


def test_all_are_matched_where_one_is_read_otherwise_or_nobody_says_that_he_does(lab) -> None:
    whole = (2, 0, 256 * KIB)
    for wanted, leaves_matching in ([whole, (1, 0, 50_001)], True), ([(0, 0, 64 * KIB)], False):
        done, view = ask(lab, wanted, leaves_matching=leaves_matching)
        assert (done.block_bytes, done.blocks, done.left) == (0, b"", [])
        assert done.checksums[0] == xxh3_64_intdigest(view[: wanted[0][2]])
    done, _ = ask(lab, [whole])
    assert not done.block_bytes, "it has been read lately"


def test_damaged_bytes_come_unmatched_once_and_are_left_the_next_time(lab) -> None:
    file_id, start = place(lab.engine, CHUNKS[0])
    lab.flip(file_id, start + 40_000)
    lab.cool()
    done, view = ask(lab, [(0, 0, 64 * KIB)])
    assert (done.left, done.versions) == ([], [1])
    assert done.blocks == block_checksums(lab.contents[0], 4096) != block_checksums(view, 4096)
    again, _ = ask(lab, [(0, 0, 64 * KIB)], leaves_matching=False)
    assert (again.left, again.versions) == ([0], [0])


def test_what_does_not_come_whole_is_read_and_matched(opened, monkeypatch) -> None:
    lab, asked = opened("memory"), []

    def fail(places):
        asked.append([at for _, at, _ in places])
        return False

    monkeypatch.setattr(direct_twin, "read_places", fail)
    done, view = ask(lab, [(0, 0, 64 * KIB), (2, 0, 128 * KIB)])
    assert view == lab.contents[0] + lab.contents[2][: 128 * KIB]
    assert (done.block_bytes, done.left) == (0, []) and [len(one) for one in asked] == [2]


def test_a_request_waits_for_its_turn_and_the_next_one_for_it(opened, monkeypatch) -> None:
    lab, inside, most = opened("memory"), [], []
    real = direct_twin.read_places

    def read_places(places):
        inside.append(len(places))
        time.sleep(0.002)  # another one would come in
        most.append(len(inside))
        inside.pop()
        return real(places)

    monkeypatch.setattr(direct_twin, "read_places", read_places)
    lab.engine._rows._turns = Turns(64 * KIB)
    wanted = [
        [(2, start, 32 * KIB), (2, start + 32 * KIB, 32 * KIB)]
        for start in range(0, 256 * KIB, 64 * KIB)
    ]
    with ThreadPoolExecutor(4) as pool:
        for (done, view), one in zip(pool.map(partial(ask, lab), wanted), wanted, strict=True):
            assert (done.block_bytes, done.left) == (4096, [])
            assert view == lab.contents[2][one[0][1] :][: 64 * KIB]
    assert most == [1, 1, 1, 1]


@pytest.mark.parametrize("number", [errno.EMFILE, errno.EINVAL])
def test_where_it_cannot_be_opened_the_page_cache_is_used(number, opened, monkeypatch) -> None:
    lab, real = opened("disk"), os.open
    file_id, _ = place(lab.engine, CHUNKS[0])
    lab.files._files.open[file_id].close()  # with what wrote it past the page cache
    del lab.files._files.open[file_id]

    def refuse(path, flags, *more):
        if flags & os.O_DIRECT:
            raise OSError(number, os.strerror(number))
        return real(path, flags, *more)

    monkeypatch.setattr(os, "open", refuse)
    assert lab.read([(0, 0, 64 * KIB)]) == 1
    assert lab.real(file_id) is None
    assert (
        lab.files._files.open[file_id].user_count
        == lab.files._files.open[file_id].holder_count
        == 0
    )


def test_a_disk_that_fails_says_so_in_the_ordinary_way(opened, monkeypatch) -> None:
    lab, real = opened("disk"), os.open
    file_id, _ = place(lab.engine, CHUNKS[0])
    lab.files._files.open[file_id].close()
    del lab.files._files.open[file_id]

    def fail(path, flags, *more):
        if flags & os.O_DIRECT:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(path, flags, *more)

    monkeypatch.setattr(os, "open", fail)
    assert lab.read([(0, 0, 64 * KIB)]) == 1, "tried, and then read through the page cache"


def test_other_file_systems_are_not_asked(opened, monkeypatch) -> None:
    monkeypatch.setattr(data_files, "why_not_direct", lambda *_: "a file system of another kind")
    lab = opened("disk")
    assert lab.read([(0, 0, 64 * KIB)]) == 1
    assert lab.files._files.open[place(lab.engine, CHUNKS[0])[0]].direct_fd == -1


def test_writes_at_once_do_not_wait_for_such_a_read(opened) -> None:
    lab = opened("disk")
    file_id, _ = place(lab.engine, CHUNKS[0])
    assert lab.files.is_open(file_id)
    lent = lab.real(file_id)
    assert not lab.files.is_open(file_id)
    lent.give_back()
    assert lab.files.is_open(file_id)


def test_what_was_read_is_not_remembered_for_ever(opened, monkeypatch) -> None:
    assert REMEMBERED_COUNT > 1
    monkeypatch.setattr(direct_reads, "REMEMBERED_COUNT", 2)
    lab = opened("memory")
    pieces = [(2, start, 64 * KIB) for start in range(0, 256 * KIB, 64 * KIB)]
    assert [lab.read([piece]) for piece in pieces[:3]] == [1, 1, 1]
    assert lab.read([pieces[1]]) == 0  # which is remembered anew
    assert lab.read([pieces[3]]) == 1  # instead of the last
    assert [lab.read([piece]) for piece in (pieces[1], pieces[2], pieces[0])] == [0, 1, 1]


def test_of_a_block_that_is_used_again_nothing_is_remembered(opened) -> None:
    lab, whole = opened("memory"), (0, 0, 64 * KIB)
    former = place(lab.engine, CHUNKS[0])
    assert [lab.read([whole]), lab.read([whole])] == [1, 0]
    lab.contents[0] = random.Random(3).randbytes(64 * KIB)
    for _ in range(4096):
        lab.engine.remove(*CHUNKS[0], version=2)
        lab.engine.commit(*CHUNKS[0], version=2, chain_version=3)
        lab.engine.sync()
        put(lab.engine, CHUNKS[0], 1, in_pages(lab.contents[0]))
        if place(lab.engine, CHUNKS[0]) == former:
            break
    assert place(lab.engine, CHUNKS[0]) == former
    assert [lab.read([whole]), lab.read([whole])] == [1, 0]
