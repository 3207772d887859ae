"""Full, failing and dying disks."""

import random

import pytest

from fs.chunkengine.factory import memory_engine
from fs.chunkengine.simulated_disk import SimulatedDataFiles, SimulatedDisk
from fs.schema.config import StorageSection
from fs.schema.ids import ChunkId, InodeId, TargetId
from fs.schema.status import FsError, Status

from .workload import Workload, check_books

pytestmark = pytest.mark.thorough

MIB = 1 << 20
SECTION = StorageSection(checksum_block_bytes=4096, reject_create_free_bytes_min=0)
FIRST = (TargetId(1), ChunkId(InodeId(7), 0))


def open_on(disk: SimulatedDisk, section: StorageSection = SECTION):
    return memory_engine(disk, cluster_id="c", node_id=1, section=section)


def put(engine, index: int, version: int, data: bytes):
    chunk = (TargetId(1), ChunkId(InodeId(7), index))
    engine.prepare_write(*chunk, version=version, chunk_size_bytes=MIB, offset=0, data=data)
    return engine.commit(*chunk, version=version, chain_version=1)


def fill(engine) -> int:
    """Write chunks of 1 MiB until the disk refuses; return how many it took."""
    count = 0
    with expect(Status.NO_SPACE):
        while True:
            put(engine, count, 1, bytes(MIB))
            count += 1
    return count


def fail_on(disk: SimulatedDisk, name: str, status: Status) -> None:
    def hook(step: str) -> None:
        if step == name:
            raise FsError(status, step)

    disk.on_step = hook


def expect(status: Status):
    return pytest.raises(FsError, match=status.name)


def test_a_full_disk_refuses_and_stays_healthy() -> None:
    engine = open_on(SimulatedDisk(capacity_bytes=20 * MIB))
    assert fill(engine) == 20
    assert engine.used_bytes(TargetId(1)) == 20 * MIB
    with expect(Status.NO_SPACE):
        put(engine, 0, 2, b"x" * MIB)
    assert engine.read_whole(*FIRST) == bytes(MIB)
    engine.prepare_remove(TargetId(1), ChunkId(InodeId(7), 3), version=2)
    engine.commit(TargetId(1), ChunkId(InodeId(7), 3), version=2, chain_version=1)
    engine.sync()
    assert put(engine, 0, 2, b"x" * MIB).commit_ver == 2
    check_books(engine._meta)


def test_a_full_disk_flushes_to_reach_quarantined_blocks() -> None:
    engine = open_on(SimulatedDisk(capacity_bytes=20 * MIB))
    for index in range(18):
        put(engine, index, 1, bytes(MIB))
    engine.sync()
    for index in range(18):
        put(engine, index, 2, bytes([index]) * MIB)
    for index in range(18):
        found = engine.read_whole(TargetId(1), ChunkId(InodeId(7), index))
        assert found == bytes([index]) * MIB


def test_a_full_disk_keeps_space_for_its_metadata() -> None:
    section = StorageSection(checksum_block_bytes=4096, reject_create_free_bytes_min=16 * MIB)
    disk = SimulatedDisk(capacity_bytes=64 * MIB)
    engine = open_on(disk, section)
    for index in range(100):
        put(engine, index, 1, b"small")
    with expect(Status.NO_SPACE):
        for index in range(100):
            put(engine, index, 2, bytes(MIB))
    assert disk.capacity_bytes - disk.reserved_bytes() >= 8 * MIB
    # Somebody else takes the rest: nothing is begun that could not be recorded to its end.
    disk.capacity_bytes = disk.reserved_bytes() + 4 * MIB - 1
    with expect(Status.NO_SPACE):
        put(engine, 0, 3, b"tiny")
    with expect(Status.NO_SPACE):
        engine.prepare_truncate(*FIRST, version=3, chunk_size_bytes=MIB, length=1)
    engine.prepare_remove(*FIRST, version=3)
    engine.commit(*FIRST, version=3, chain_version=1)
    # The spare space, once; then not even a removal is begun.
    disk.capacity_bytes = disk.reserved_bytes() + MIB - 1
    engine.prepare_remove(TargetId(1), ChunkId(InodeId(7), 2), version=3)
    disk.capacity_bytes = disk.reserved_bytes() + MIB - 1
    with expect(Status.NO_SPACE):
        engine.prepare_remove(TargetId(1), ChunkId(InodeId(7), 1), version=3)
    disk.capacity_bytes = 64 * MIB
    assert put(engine, 1, 3, b"tiny").commit_ver == 3


@pytest.mark.parametrize("is_reopened", [False, True])
def test_space_of_large_blocks_serves_small_ones(is_reopened) -> None:
    disk = SimulatedDisk(capacity_bytes=40 * MIB)
    engine = open_on(disk)
    count = fill(engine)
    for index in range(0, count, 2):
        engine.prepare_remove(TargetId(1), ChunkId(InodeId(7), index), version=2)
        engine.commit(TargetId(1), ChunkId(InodeId(7), index), version=2, chain_version=1)
    if is_reopened:
        engine.close()
        engine = open_on(disk)
    for index in range(1000, 1000 + 16 * (count // 2)):
        put(engine, index, 1, bytes(64 << 10))
    for index in range(1, count, 2):
        assert engine.read_whole(TargetId(1), ChunkId(InodeId(7), index)) == bytes(MIB)
    engine.sync()
    check_books(engine._meta)


def test_the_quarantine_is_bounded(monkeypatch) -> None:
    monkeypatch.setattr("fs.chunkengine.epochs.QUARANTINE_BYTES_MAX", 4 * MIB)
    engine = open_on(SimulatedDisk())
    for version in (1, 2):
        for index in range(20):
            put(engine, index, version, bytes(MIB))
        engine.sync()
    assert engine._books.ledger.allocator.reserved_bytes() <= 32 * MIB


def test_new_chunks_are_refused_before_the_disk_is_full() -> None:
    disk = SimulatedDisk(capacity_bytes=100 * MIB)
    engine = open_on(disk, StorageSection(reject_create_free_bytes_min=60 * MIB))
    assert 16 <= fill(engine) <= 40
    assert put(engine, 0, 2, b"y" * MIB).commit_ver == 2


def test_space_of_removed_chunks_goes_back_to_the_disk() -> None:
    disk = SimulatedDisk()
    section = StorageSection(checksum_block_bytes=65536, space_at_hand_bytes_max=0)
    engine = open_on(disk, section)
    for index in range(600):
        put(engine, index, 1, b"x" * 64)
    engine.sync()
    taken = disk.reserved_bytes()
    engine.remove_target(TargetId(1))
    engine.sync()
    assert disk.reserved_bytes() < taken
    for index in range(600):
        put(engine, index, 1, b"y" * 64)
    engine.close()
    again = open_on(disk)
    assert again.read_whole(TargetId(1), ChunkId(InodeId(7), 599)) == b"y" * 64
    again.remove_target(TargetId(1))
    again.close()
    open_on(disk).close()
    assert disk.reserved_bytes() == 0


def test_a_failed_flush_is_for_ever() -> None:
    disk = SimulatedDisk()
    engine = open_on(disk)
    put(engine, 0, 1, b"x")
    fail_on(disk, "flush", Status.IO_ERROR)
    with expect(Status.IO_ERROR):
        engine.sync()
    disk.on_step = None
    for call in (engine.sync, engine.space, lambda: put(engine, 1, 1, b"y")):
        with expect(Status.IO_ERROR):
            call()
    engine.close()


@pytest.mark.parametrize("status", [Status.IO_ERROR, Status.NO_SPACE])
def test_a_failed_metadata_write_is_for_ever(status) -> None:
    disk = SimulatedDisk()
    engine = open_on(disk)
    put(engine, 0, 1, b"x")
    fail_on(disk, "meta_write", status)
    with expect(Status.IO_ERROR):
        put(engine, 0, 2, b"y")
    disk.on_step = None
    with expect(Status.IO_ERROR):
        engine.get(*FIRST)
    disk.crash()
    assert open_on(disk).read_whole(*FIRST) == b"x"


@pytest.mark.parametrize("status", [Status.IO_ERROR, Status.NO_SPACE])
def test_a_failed_data_write_leaves_the_old_version(status) -> None:
    disk = SimulatedDisk()
    engine = open_on(disk)
    put(engine, 0, 1, b"x" * 1000)
    used = engine.space().used_bytes
    fail_on(disk, "write", status)
    with expect(status):
        put(engine, 0, 2, b"y" * 100_000)
    disk.on_step = None
    assert engine.space().used_bytes == used
    assert put(engine, 0, 2, b"z").length == 1000
    check_books(engine._meta)


def test_a_bad_sector_fails_its_read_alone() -> None:
    disk = SimulatedDisk()
    engine = open_on(disk)
    put(engine, 0, 1, b"x" * 1000)
    fail_on(disk, "read", Status.IO_ERROR)
    with expect(Status.IO_ERROR):
        engine.read_whole(*FIRST)
    disk.on_step = None
    assert engine.read_whole(*FIRST) == b"x" * 1000


def test_a_workload_on_a_small_disk_keeps_its_books() -> None:
    engine, workload, refused = open_on(SimulatedDisk(capacity_bytes=MIB)), Workload(3), 0
    for _ in range(300):
        try:
            workload.step(engine)
        except FsError as error:
            if error.status is not Status.NO_SPACE:
                raise
            refused += 1
    assert refused > 0
    workload.check_now(engine)
    check_books(engine._meta)


@pytest.mark.parametrize("is_dropped", [True, False])
def test_what_a_failed_flush_left_in_memory_alone_is_not_taken_for_durable(
    monkeypatch, is_dropped
) -> None:
    """The kernel takes pages that it could not write for clean:
    the next flush succeeds without them.
    """
    if not is_dropped:
        monkeypatch.setattr(SimulatedDataFiles, "drop_cache", lambda *_: None)
    disk = SimulatedDisk()
    engine = open_on(disk)
    put(engine, 0, 1, b"synced")
    engine.sync()
    put(engine, 0, 2, b"unkept")
    fail_on(disk, "flush", Status.IO_ERROR)
    with expect(Status.IO_ERROR):
        engine.sync()
    disk.crash()
    again = open_on(disk)
    found = again.read_whole(*FIRST)
    again.sync()
    disk.power_loss(random.Random(1))
    if is_dropped:
        assert found == b"synced" == open_on(disk).read_whole(*FIRST)
    else:
        assert found == b"unkept"
        with expect(Status.CHECKSUM_MISMATCH):
            open_on(disk).read_whole(*FIRST)
