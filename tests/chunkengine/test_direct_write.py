"""Large versions past the page cache: what is written so, what falls back,
what a crash leaves of it.
"""

import ctypes
import errno
import logging
import os
import random

import pytest

from fs.chunkengine import data_files, direct_write
from fs.chunkengine.checksum import packed_checksums
from fs.chunkengine.data_files import LocalDataFiles
from fs.chunkengine.factory import memory_engine, open_engine
from fs.chunkengine.format import FileId, chunk_key, place_of
from fs.chunkengine.simulated_disk import (
    SECTOR_BYTES,
    SimulatedCrash,
    SimulatedDataFiles,
    SimulatedDisk,
)
from fs.kernels import writes_twin
from fs.schema.config import StorageSection
from fs.schema.ids import ChunkId, InodeId, TargetId
from fs.schema.status import FsError, Status

from .workload import in_pages

KIB = 1024
FILE = FileId(0x0203)
A = (TargetId(1), ChunkId(InodeId(7), 0))
SECTION = StorageSection(checksum_block_bytes=4096, direct_write_bytes_min=16 * KIB)


@pytest.fixture
def files(tmp_path, monkeypatch):
    """Files of a disk that can, whatever the file system is."""
    monkeypatch.setattr(data_files, "why_not_direct", lambda *_: "")
    made = LocalDataFiles(tmp_path)
    yield made
    made.close()


def content(files, length: int, offset: int = 0) -> bytes:
    buffer = bytearray(length)
    return bytes(buffer[: files.read_at(FILE, offset, [memoryview(buffer)])])


def patch_writes(monkeypatch, pwritev) -> None:
    """Have Python make all writes, by `pwritev`."""
    monkeypatch.setattr(data_files, "write_rows", writes_twin.write_rows)
    monkeypatch.setattr(data_files.os, "pwritev", pwritev)


def direct(files, offset: int, data) -> int:
    """Write past the cache; return how much of it was."""
    ((count, checksums),) = files.write_past_cache([(FILE, offset, data)], 4096)
    assert checksums == packed_checksums([data], 4096)
    return count


def refuse(monkeypatch, number: int) -> list[int]:
    """Have every write fail; return the lengths of those tried."""
    tried = []

    def pwritev(_fd, buffers, _offset) -> int:
        tried.append(sum(map(len, buffers)))
        raise OSError(number, os.strerror(number))

    patch_writes(monkeypatch, pwritev)
    return tried


@pytest.mark.parametrize("kind", ["memory", "disk"])
def test_writable_part_are_written_and_the_rest_is_left(kind, files) -> None:
    if kind == "memory":
        files = SimulatedDataFiles(SimulatedDisk())
    data = random.Random(1).randbytes(10_000)
    files.write_at(FILE, 0, [b"x" * 20_000])
    assert content(files, 20_000) == b"x" * 20_000  # these pages are old from now on
    done = direct(files, 4096, in_pages(data))
    assert done in {0, 8192}, "0 where the file system has no direct writes"
    assert content(files, 20_000)[4096 : 4096 + done] == data[:done]
    assert content(files, 20_000, 4096 + done) == b"x" * (20_000 - 4096 - done)
    files.write_at(FILE, 4096 + done, [data[done:]])
    assert content(files, 10_000, 4096) == data
    files.flush([FILE])


@pytest.mark.parametrize(
    "data", [b"x" * 8192, memoryview(bytearray(9000))[8:], in_pages(b"x" * 4095)]
)
def test_what_lies_askew_or_is_small_is_not_even_tried(files, monkeypatch, data) -> None:
    tried = refuse(monkeypatch, errno.EIO)
    if not memoryview(data).readonly and len(data) > 4096:
        address = ctypes.addressof(ctypes.c_char.from_buffer(data))
        data = data[4 if address % 8 == 0 else 1 :]
    assert direct(files, 0, data) == 0
    assert direct(files, 512, in_pages(bytes(8192))) == 0
    assert tried == []


def test_a_disk_that_cannot_is_asked_once_and_that_is_said(files, monkeypatch, caplog) -> None:
    files.write_at(FILE, 0, [b"there"])
    tried = refuse(monkeypatch, errno.EINVAL)
    with caplog.at_level(logging.INFO, data_files.__name__):
        for _ in range(3):
            assert direct(files, 0, in_pages(bytes(8192))) == 0
    assert len(tried) <= 1
    assert [record.message.count("through the page cache") for record in caplog.records] == [1]


@pytest.mark.parametrize(
    ("number", "status"), [(errno.EIO, Status.IO_ERROR), (errno.ENOSPC, Status.NO_SPACE)]
)
def test_failures_have_their_status(files, tmp_path, monkeypatch, number, status) -> None:
    files.write_at(FILE, 0, [b"there"])
    files._files.open[FILE].direct_fd = os.open(tmp_path, os.O_RDONLY)  # no matter which
    refuse(monkeypatch, number)
    with pytest.raises(FsError, match=r"256k/03") as caught:
        direct(files, 0, in_pages(bytes(8192)))
    assert caught.value.status is status
    assert files.is_open(FILE)


def test_nobody_who_must_not_wait_writes_to_a_file_that_is_written_directly(
    files, monkeypatch
) -> None:
    files.write_at(FILE, 0, [b"there"])
    # If it cannot be opened directly.
    files._files.open[FILE].direct_fd = os.dup(files._files.open[FILE].fd)
    seen = []

    def pwritev(_fd, buffers, _offset) -> int:
        seen.append(files.is_open(FILE))
        return sum(map(len, buffers))

    patch_writes(monkeypatch, pwritev)
    assert direct(files, 0, in_pages(bytes(8192))) == 8192
    assert [*seen, files.is_open(FILE)] == [False, True]


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE])
def test_without_a_descriptor_the_page_cache_is_used_and_the_disk_goes_on(
    files, monkeypatch, number
) -> None:
    files.write_at(FILE, 0, [b"there"])
    with monkeypatch.context() as patch:

        def refused(*_args) -> int:
            raise OSError(number, os.strerror(number))

        patch.setattr(data_files.os, "open", refused)
        assert direct(files, 0, in_pages(bytes(8192))) == 0
    assert files.is_open(FILE)
    assert files._can_pass_cache(), "the next may find one"


@pytest.mark.parametrize("is_xfs", [False, True])
def test_nobody_who_must_not_wait_writes_beside_what_holds_the_lock_of_the_file(
    files, monkeypatch, is_xfs
) -> None:
    files._does_read_hold = is_xfs
    files.write_at(FILE, 0, [b"there"])
    seen = {}

    def watch(name: str, owner: object, function: str) -> None:
        real = getattr(owner, function)

        def watched(*args) -> int:
            seen[name] = files.is_open(FILE)
            return real(*args)

        monkeypatch.setattr(owner, function, watched)

    watch("read", data_files.os, "preadv")
    watch("reserve or punch", files, "_fallocate")
    files.read_at(FILE, 0, [memoryview(bytearray(5))])
    assert seen.pop("read") is not is_xfs
    lent = files.lend(FILE, may_wait=True)
    assert files.is_open(FILE) is not is_xfs
    assert lent is not None
    lent.give_back()
    for change in (files.reserve, files.punch):
        change(FILE, 0, 4096)
        assert seen.pop("reserve or punch") is False
    assert files.is_open(FILE)
    files.flush([FILE])
    files.begin_write_back(FILE, 0, 4096)
    assert files.is_open(FILE)


def test_without_a_descriptor_one_that_nobody_needs_is_closed(files, monkeypatch) -> None:
    others = [FileId(0x0204), FileId(0x0205), FileId(0x0206)]
    for other in others:
        files.write_at(other, 0, [b"there"])
    files.flush(others[1:])
    real = os.open

    def refused_beside_three(*args, **options) -> int:
        if len(files._files.open) >= 3:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return real(*args, **options)

    monkeypatch.setattr(data_files.os, "open", refused_beside_three)
    files.write_at(FILE, 0, [b"new"])
    assert content(files, 3) == b"new"
    assert others[0] in files._files.open, "it has not been flushed"
    assert len(files._files.open) == 3
    files.write_at(others[1], 0, [b"there"])
    with pytest.raises(FsError, match="Too many open files"):
        files.write_at(others[2], 0, [b"all the others have to be flushed"])


@pytest.mark.parametrize("is_direct", [False, True])
def test_what_is_written_beside_a_flush_keeps_its_descriptor_until_the_next(
    files, monkeypatch, is_direct
) -> None:
    files.write_at(FILE, 0, [b"there"])
    # If it cannot be opened directly.
    files._files.open[FILE].direct_fd = os.dup(files._files.open[FILE].fd)
    seen = []

    def pwritev(_fd, buffers, _offset) -> int:
        files.flush([FILE])  # ends before the first byte is written
        seen.append(files._files.open[FILE].is_dirty)
        return sum(map(len, buffers))

    patch_writes(monkeypatch, pwritev)
    if is_direct:
        direct(files, 0, in_pages(bytes(8192)))
    else:
        files.write_at(FILE, 0, [bytes(8192)])
    assert [*seen, files._files.open[FILE].is_dirty] == [False, True], (
        "its errors are told to that one"
    )


def test_only_file_systems_whose_locks_are_known_are_written_to_directly(tmp_path) -> None:
    def why(kind: int) -> str:
        class Libc:
            def statfs(self, _path, found) -> int:
                ctypes.c_ulong.from_buffer(found).value = kind
                return 0

        assert direct_write.writes_wait_for_reads(Libc(), tmp_path) == (kind == 0x58465342)
        return direct_write.why_not_direct(Libc(), tmp_path)  # type: ignore[arg-type]

    assert [why(kind) for kind in (0xEF53, 0x58465342)] == ["", ""]
    assert "0x1021994" in why(0x01021994)  # tmpfs
    with pytest.raises(OSError, match="No such file"):
        direct_write.why_not_direct(ctypes.CDLL(None, use_errno=True), tmp_path / "missing")


@pytest.mark.parametrize("kind", ["memory", "disk"])
def test_large_versions_with_a_place_of_their_own_go_past_the_cache(
    kind, tmp_path, monkeypatch
) -> None:
    engine = (
        memory_engine(SimulatedDisk(), cluster_id="c", node_id=1, section=SECTION)
        if kind == "memory"
        else open_engine(tmp_path, cluster_id="c", node_id=1, section=SECTION)
    )
    tried, real = [], engine._files.write_past_cache

    def note(places, block) -> list[tuple[int, bytes]]:
        tried.extend(len(data) for _, _, data in places)
        return real(places, block)

    monkeypatch.setattr(engine._files, "write_past_cache", note)
    rng, whole, version = random.Random(5), b"", 0

    def update(offset: int, size: int) -> list[int]:
        nonlocal whole, version
        data, version = rng.randbytes(size), version + 1
        tried.clear()
        engine.prepare_write(
            *A, version=version, chunk_size_bytes=256 * KIB, offset=offset, data=in_pages(data)
        )
        engine.commit(*A, version=version, chain_version=1)
        whole = whole[:offset] + data + whole[offset + size :]
        assert engine.read_whole(*A) == whole
        return list(tried)

    assert update(0, 15 * KIB) == []  # small
    assert update(15 * KIB, 20 * KIB) == []  # in place
    assert update(0, 70_001) == [70_001]
    assert update(4096, 40_000) == []  # copied, with what is kept
    engine.sync()
    assert update(0, 128 * KIB) == [128 * KIB]
    engine.prepare_truncate(*A, version=version + 1, chunk_size_bytes=256 * KIB, length=100_000)
    engine.commit(*A, version=version + 1, chain_version=1)
    assert engine.read_whole(*A) == whole[:100_000]
    engine.close()


def test_never_is_never(monkeypatch) -> None:
    section = StorageSection(direct_write_bytes_min=0)
    engine = memory_engine(SimulatedDisk(), cluster_id="c", node_id=1, section=section)
    monkeypatch.setattr(engine._files, "write_past_cache", None)
    engine.prepare_write(*A, version=1, chunk_size_bytes=1 << 20, offset=0, data=bytes(1 << 20))
    engine.commit(*A, version=1, chain_version=1)
    assert engine.read_whole(*A) == bytes(1 << 20)


def test_nothing_that_goes_past_the_cache_is_written_on_the_event_loop() -> None:
    section = StorageSection(checksum_block_bytes=4096, direct_write_bytes_min=8 * KIB)
    engine = memory_engine(SimulatedDisk(), cluster_id="c", node_id=1, section=section)
    engine.prepare_write(*A, version=1, chunk_size_bytes=256 * KIB, offset=0, data=bytes(100))
    engine.commit(*A, version=1, chain_version=1)
    assert engine.takes_at_once(*A, 0, 8 * KIB - 1)
    assert not engine.takes_at_once(*A, 0, 8 * KIB), "it would wait for the disk"
    engine.close()


def test_a_failed_write_frees_its_place() -> None:
    disk = SimulatedDisk()
    engine = memory_engine(disk, cluster_id="c", node_id=1, section=SECTION)

    def fail(step: str) -> None:
        if step == "write_direct":
            raise FsError(Status.NO_SPACE, step)

    def update(version: int) -> None:
        engine.prepare_write(
            *A, version=version, chunk_size_bytes=256 * KIB, offset=0, data=bytes(64 * KIB)
        )

    disk.on_step = fail
    for _ in range(3):
        with pytest.raises(FsError, match="NO_SPACE"):
            update(1)
    disk.on_step = None
    update(1)
    engine.commit(*A, version=1, chain_version=1)
    record = engine._books.ledger.record(chunk_key(*A))
    assert record is not None and place_of(record.position)[1] == 0
    engine.close()


class TestSimulated:
    """The model of a device: its own cache, sectors in any order."""

    def setup_method(self) -> None:
        self.disk = SimulatedDisk()
        self.files = SimulatedDataFiles(self.disk)
        self.files.write_at(FILE, 0, [bytes(64 * KIB)])
        self.files.flush([FILE])

    def sectors(self) -> set[bytes]:
        found = content(self.files, 64 * KIB)
        return {found[at : at + SECTOR_BYTES] for at in range(0, len(found), SECTOR_BYTES)}

    def test_a_power_loss_tears_what_no_flush_has_covered(self) -> None:
        kept = set()
        for seed in range(20):
            direct(self.files, 0, b"x" * (64 * KIB))
            assert self.sectors() == {b"x" * SECTOR_BYTES}
            self.disk.power_loss(random.Random(seed))
            kept.add(frozenset(self.sectors()))
            self.files.write_at(FILE, 0, [bytes(64 * KIB)])
            self.files.flush([FILE])
        old, new = bytes(SECTOR_BYTES), b"x" * SECTOR_BYTES
        assert kept == {frozenset({old}), frozenset({new}), frozenset({old, new})}

    def test_a_flush_makes_it_durable(self) -> None:
        direct(self.files, 0, b"x" * (64 * KIB))
        self.files.flush([FILE])
        self.disk.power_loss(random.Random(1))
        assert self.sectors() == {b"x" * SECTOR_BYTES}

    def test_a_failed_flush_takes_back_only_what_the_kernel_had(self) -> None:
        direct(self.files, 0, b"x" * 4096)
        self.files.write_at(FILE, 4096, [b"y" * 4096])

        def fail(step: str) -> None:
            raise FsError(Status.IO_ERROR, step)

        self.disk.on_step = fail
        with pytest.raises(FsError, match="IO_ERROR"):
            self.files.flush([FILE])
        self.disk.on_step = None
        self.files.drop_cache([FILE])
        assert content(self.files, 8192) == b"x" * 4096 + bytes(4096)

    def test_a_process_that_dies_in_it_leaves_any_sectors(self) -> None:
        def die(_step: str) -> None:
            raise SimulatedCrash

        self.disk.on_step = die
        with pytest.raises(SimulatedCrash):
            direct(self.files, 0, b"x" * 4096)
        self.disk.crash()
        assert content(self.files, 4 * SECTOR_BYTES) == (bytes(512) + b"x" * 512) * 2
