"""Both metadata stores and both sets of data files keep one contract."""

import ctypes
import errno
import os
import threading

import pytest

from fs.chunkengine import data_files, meta_rocksdb
from fs.chunkengine.data_files import LocalDataFiles
from fs.chunkengine.format import FileId, file_name
from fs.chunkengine.meta_rocksdb import RocksMetaStore
from fs.chunkengine.simulated_disk import SimulatedDataFiles, SimulatedDisk, SimulatedMetaStore
from fs.schema.status import FsError, Status

KIB = 1024
FILE = FileId(0x0203)


@pytest.fixture
def tmp_path(disk_path):
    return disk_path


@pytest.fixture(params=["memory", "disk"])
def meta(request, tmp_path):
    memory = request.param == "memory"
    store = SimulatedMetaStore(SimulatedDisk()) if memory else RocksMetaStore(tmp_path / "meta")
    yield store
    store.close()


@pytest.fixture(params=["memory", "disk"])
def files(request, tmp_path):
    made = (
        SimulatedDataFiles(SimulatedDisk())
        if request.param == "memory"
        else LocalDataFiles(tmp_path)
    )
    yield made
    made.close()


def read(files, offset: int, *lengths: int) -> tuple[int, list[bytes]]:
    buffers = [bytearray(n) for n in lengths]
    count = files.read_at(FILE, offset, [memoryview(b) for b in buffers])
    return count, [bytes(b) for b in buffers]


def test_a_batch_is_applied_in_order(meta) -> None:
    meta.write([(b"a", b"1"), (b"b", b"2"), (b"a", None), (b"c", b""), (b"b", b"3")])
    assert [meta.get(k) for k in (b"a", b"b", b"c", b"d")] == [None, b"3", b"", None]
    meta.write_synced([(b"b", None)])
    assert meta.get(b"b") is None


def test_scans_are_half_open_both_ways(meta) -> None:
    meta.write([(bytes([n]), b"%d" % n) for n in range(10)])
    keys = [k[0] for k, _ in meta.scan(b"\x03", b"\x07")]
    assert keys == [3, 4, 5, 6]
    assert [k[0] for k, _ in meta.scan(b"\x03", b"\x07", is_reverse=True)] == keys[::-1]
    assert [k[0] for k, _ in meta.scan(b"\x08", b"\xff", is_reverse=True)] == [9, 8]
    assert list(meta.scan(b"\x20", b"\x30")) == []
    assert list(meta.scan(b"\x20", b"\x30", is_reverse=True)) == []


def test_a_scan_does_not_see_later_writes(meta) -> None:
    meta.write([(b"a", b"1"), (b"b", b"2")])
    found = meta.scan(b"a", b"z")
    meta.write([(b"b", None), (b"c", b"3")])
    assert [k for k, _ in found] == [b"a", b"b"]


def test_a_store_that_exists_has_the_options_of_today(tmp_path, monkeypatch) -> None:
    for buffer_bytes in (1 << 20, 3 << 20):
        monkeypatch.setattr(meta_rocksdb, "WRITE_BUFFER_BYTES", buffer_bytes)
        RocksMetaStore(tmp_path / "meta").close()
        newest = max((tmp_path / "meta").glob("OPTIONS-*"))
        assert f"write_buffer_size={buffer_bytes}\n" in newest.read_text()


def test_bytes_come_back_and_reads_end_with_the_file(files) -> None:
    files.write_at(FILE, 100, [b"hello ", memoryview(b"world"), b""])
    assert read(files, 100, 3, 8) == (11, [b"hel", b"lo world"])
    assert read(files, 98, 4) == (4, [b"\0\0he"])
    assert read(files, 108, 10) == (3, [b"rld" + bytes(7)])
    assert read(files, 500, 10)[0] == 0


def test_what_was_just_written_is_read_without_waiting(files) -> None:
    files.write_at(FILE, 0, [b"abcdef"])
    buffer = bytearray(4)
    assert files.read_cached_at(FILE, 1, [memoryview(buffer)])
    assert buffer == b"bcde"


def test_beyond_the_end_nothing_is_cached(files) -> None:
    files.write_at(FILE, 0, [b"abcdef"])
    assert not files.read_cached_at(FILE, 4, [memoryview(bytearray(4))])
    assert not files.read_cached_at(FileId(0x0207), 0, [memoryview(bytearray(4))])


def test_many_buffers_are_one_write(files) -> None:
    parts = [bytes([n % 256]) * 3 for n in range(3000)]
    files.write_at(FILE, 5, parts)
    assert read(files, 5, 9000)[1] == [b"".join(parts)]


def test_reserving_keeps_content_and_punching_zeroes_it(files) -> None:
    files.write_at(FILE, 0, [b"x" * (128 * KIB)])
    free = files.free_bytes()
    files.reserve(FILE, 0, 256 * KIB)
    assert read(files, 64 * KIB, 4)[1] == [b"xxxx"]
    if isinstance(files, SimulatedDataFiles):  # others give and take on a real disk meanwhile
        assert files.free_bytes() == free - 128 * KIB
    files.punch(FILE, 64 * KIB, 64 * KIB)
    assert read(files, 64 * KIB - 2, 4)[1] == [b"xx\0\0"]
    assert read(files, 128 * KIB - 1, 4)[1] == [b"\0" * 4]
    files.flush([FILE])
    files.flush_all()
    assert files.free_bytes() <= files.capacity_bytes()


def test_what_was_written_before_it_was_opened_is_flushed_with_all_else(tmp_path, monkeypatch):
    """A process that died has left it to whoever comes next, in whichever file."""
    written, flushed = [FileId(n) for n in (0x0000, 0x000A, 0x01FF, 0x0280, 0x09FF)], []
    before = LocalDataFiles(tmp_path)
    for file_id in written:
        before.write_at(file_id, 0, [b"x"])
    before.close()
    (tmp_path / file_name(written[0])).with_name("no block").touch()
    files = LocalDataFiles(tmp_path)
    monkeypatch.setattr(files, "flush", flushed.extend)
    files.flush_all()
    files.close()
    assert flushed == written


def test_no_room_is_no_space(files) -> None:
    with pytest.raises(FsError) as caught:
        files.reserve(FILE, 0, files.capacity_bytes() + (1 << 30))
    assert caught.value.status is Status.NO_SPACE


def test_a_store_has_one_owner(tmp_path) -> None:
    store = RocksMetaStore(tmp_path / "meta")
    with pytest.raises(FsError) as caught:
        RocksMetaStore(tmp_path / "meta")
    assert caught.value.status is Status.ALREADY_RUNNING
    store.close()


def test_a_file_system_that_cannot_tell_is_not_asked_again(tmp_path, monkeypatch) -> None:
    files = LocalDataFiles(tmp_path)
    files.write_at(FILE, 0, [b"abcdef"])
    asked = []

    def refuse(_fd, _buffers, _offset, flags=0):
        asked.append(flags)
        raise OSError(errno.EOPNOTSUPP, "not supported")

    monkeypatch.setattr(os, "preadv", refuse)
    buffer = memoryview(bytearray(4))
    assert not files.read_cached_at(FILE, 0, [buffer])
    assert not files.read_cached_at(FILE, 0, [buffer])
    assert asked == [os.RWF_NOWAIT]
    files.close()


def test_descriptors_stay_bounded(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("fs.chunkengine.open_files.FD_COUNT_MAX", 8)
    files = LocalDataFiles(tmp_path)
    for index in range(40):
        files.write_at(FileId(index), 0, [b"%d" % index])
        files.flush([FileId(index)])
    assert len(files._files.open) <= 8
    for index in range(40):
        buffer = bytearray(2)
        count = files.read_at(FileId(index), 0, [memoryview(buffer)])
        assert bytes(buffer[:count]) == b"%d" % index
    files.close()


@pytest.mark.parametrize("call", ["make a file", "open one past the cache"])
def test_the_event_loop_does_not_wait_for_who_opens_a_file(tmp_path, monkeypatch, call) -> None:
    files, other = LocalDataFiles(tmp_path), FileId(0x0204)
    files.write_at(FILE, 0, [b"here"])
    is_inside, may_end = threading.Event(), threading.Event()
    opened = os.open

    def hang(path, flags, *rest):
        if flags & (os.O_CREAT | os.O_DIRECT):
            is_inside.set()
            assert may_end.wait(20)
        return opened(path, flags, *rest)

    def on_loop():
        files.read_cached_at(FILE, 0, [memoryview(bytearray(4))])
        lent = files.lend(FILE)
        if lent is not None:
            lent.give_back()

    monkeypatch.setattr(data_files.os, "open", hang)
    monkeypatch.setattr(files, "_why_not_direct", "")
    calls = {
        "make a file": lambda: files.write_at(other, 0, [b"there"]),
        "open one past the cache": lambda: files.lend_past_cache(FILE),
    }
    hung, loop = threading.Thread(target=calls[call]), threading.Thread(target=on_loop)
    hung.start()
    assert is_inside.wait(20)
    loop.start()
    loop.join(2)
    is_waiting = loop.is_alive()
    may_end.set()
    for thread in (hung, loop):
        thread.join(20)
    assert not is_waiting
    files.close()


def test_who_asks_for_a_new_file_at_once_gets_the_same(tmp_path) -> None:
    files, ready = LocalDataFiles(tmp_path), threading.Barrier(8)

    def write(at: int) -> None:
        ready.wait()
        files.write_at(FILE, at, [b"%d" % at])

    threads = [threading.Thread(target=write, args=(at,)) for at in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert read(files, 0, 8) == (8, [b"01234567"])
    assert len(files._files.open) == 1
    assert files._files.open[FILE].user_count == 0
    files.close()


def test_space_on_a_file_system_without_fallocate_is_not_claimed_by_writing(tmp_path) -> None:
    """What glibc does instead would undo writes of other threads to the blocks in between."""

    class Libc:
        def fallocate(self, *_) -> int:
            ctypes.set_errno(errno.EOPNOTSUPP)
            return -1

    files = LocalDataFiles(tmp_path)
    files._libc = Libc()
    files.reserve(FILE, 0, 1 << 20)
    assert (tmp_path / file_name(FILE)).stat().st_size == 0
    files.punch(FILE, 0, 1 << 20)
    files.close()


def test_write_back_that_is_begun_changes_nothing_that_is_read(files) -> None:
    files.begin_write_back(FILE, 0, 4096)  # of a file that is not there
    files.write_at(FILE, 4096, [b"a" * 8192])
    files.begin_write_back(FILE, 4096, 8192)
    files.write_at(FILE, 8192, [b"b"])
    assert read(files, 4096, 4096, 1) == (4097, [b"a" * 4096, b"b"])
    files.flush([FILE])


def test_a_file_is_open_once_it_has_been_written(files) -> None:
    assert not files.is_open(FILE)
    files.write_at(FILE, 0, [b"a"])
    assert files.is_open(FILE)


def test_write_back_that_cannot_be_begun_is_left_to_the_flush(tmp_path) -> None:
    begun = []

    class Libc:
        def sync_file_range(self, _fd, offset, length, flags) -> int:
            begun.append((offset.value, length.value, flags))
            return -1

    files = LocalDataFiles(tmp_path)
    files._libc = Libc()
    files.write_at(FILE, 0, [b"abc"])
    files.begin_write_back(FILE, 4096, 8192)
    assert begun == [(4096, 8192, 2)]
    files.flush([FILE])
    files.close()


def test_reading_that_is_begun_changes_nothing_that_is_read(files) -> None:
    files.begin_read(FILE, 0, 4096)  # of a file that is not there
    files.write_at(FILE, 0, [b"a" * 5000])
    files.flush([FILE])
    files.begin_read(FILE, 4096, 1 << 20)  # beyond its end, too
    assert read(files, 4096, 904) == (904, [b"a" * 904])
