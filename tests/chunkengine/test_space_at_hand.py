"""Space of removed chunks that is kept for new ones:
how much, who gets it, and that it is free to whoever asks.
"""

import random

import pytest

from fs.chunkengine.data_files import LocalDataFiles
from fs.chunkengine.factory import memory_engine
from fs.chunkengine.format import PENDING_PREFIX, chunk_key
from fs.chunkengine.simulated_disk import SimulatedDisk, SimulatedMetaStore
from fs.runtime.real import real_runtime
from fs.schema.config import StorageSection
from fs.schema.ids import ChunkId, InodeId, TargetId
from fs.schema.status import FsError
from fs.storage.disk import Disk

from .workload import check_books

MIB = 1 << 20
T = TargetId(1)
BLOCK = 64 << 10
BYTES = bytes(BLOCK)
BLOCKS_PER_GROUP = 16
EACH_KEPT_BYTES = BLOCKS_PER_GROUP * BLOCK
GROUP = BLOCKS_PER_GROUP * BLOCK
COUNT = 40
"""Chunks of a file: of two whole groups and a part of a third."""


@pytest.fixture(autouse=True)
def _small_groups(monkeypatch):
    monkeypatch.setattr("fs.chunkengine.allocator.BLOCKS_PER_GROUP", BLOCKS_PER_GROUP)
    monkeypatch.setattr("fs.chunkengine.space.EACH_KEPT_BYTES", EACH_KEPT_BYTES)


def open_on(disk: SimulatedDisk, **changes):
    section = StorageSection(checksum_block_bytes=65536, reject_create_free_bytes_min=0, **changes)
    return memory_engine(disk, cluster_id="c", node_id=1, section=section)


def chunk(index: int, inode: int = 7) -> tuple[TargetId, ChunkId]:
    return T, ChunkId(InodeId(inode), index)


def save(engine, inode: int, count: int, data: bytes = BYTES) -> None:
    """Write a file of so many chunks, durably."""
    for index in range(count):
        engine.prepare_write(
            *chunk(index, inode), version=1, chunk_size_bytes=4 * MIB, offset=0, data=data
        )
        engine.commit(*chunk(index, inode), version=1, chain_version=1)
    engine.sync()


def remove(engine, inode: int, count: int) -> None:
    for index in range(count):
        engine.remove(*chunk(index, inode), version=2)
    engine.sync()


def all_compacted(engine) -> None:
    while not engine.compact(1 << 40).is_finished:
        pass


def held(disk: SimulatedDisk) -> set[tuple[int, int]]:
    """Return what data files hold of the disk, piece by piece."""
    return {(number, at) for number, file in disk.files.items() for at in file.reserved}


@pytest.mark.parametrize("at_hand", [0, 64 * MIB])
def test_a_file_saved_after_the_removal_of_another_takes_its_space(at_hand) -> None:
    disk = SimulatedDisk()
    engine = open_on(disk, space_at_hand_bytes_max=at_hand)
    save(engine, 7, COUNT)
    before, free = held(disk), engine.space().free_bytes
    remove(engine, 7, COUNT)
    all_compacted(engine)
    assert engine.space().free_bytes == free + COUNT * BLOCK, "kept or not, it is free"
    save(engine, 8, COUNT)
    assert engine.space().free_bytes == free
    if at_hand:
        assert held(disk) == before
        assert disk.step_counts["punch"] == 0
    else:
        assert disk.step_counts["punch"]
    check_books(engine._meta)


def test_what_is_more_than_the_setting_goes_back() -> None:
    disk = SimulatedDisk()
    engine = open_on(disk, space_at_hand_bytes_max=3 * GROUP)
    save(engine, 7, 10 * BLOCKS_PER_GROUP)
    remove(engine, 7, 10 * BLOCKS_PER_GROUP)
    assert len(held(disk)) * BLOCK == 3 * GROUP, "whole groups, by the flush"
    assert engine.space().used_bytes == 0
    save(engine, 8, 3 * BLOCKS_PER_GROUP)
    assert len(held(disk)) * BLOCK == 3 * GROUP


def test_free_blocks_of_groups_in_use_go_before_new_space() -> None:
    """Of blocks of 2 MiB eight are claimed at a time;
    a fuller group with none of them left has to wait.
    """
    disk, data = SimulatedDisk(), bytes(MIB + 1)
    engine = open_on(disk, space_at_hand_bytes_max=64 * MIB)
    save(engine, 7, BLOCKS_PER_GROUP, data)
    save(engine, 8, 6, data)
    for index in range(12):
        engine.remove(*chunk(index, 7), version=2)
    engine.sync()
    before = held(disk)
    save(engine, 9, 14, data)
    assert held(disk) == before
    save(engine, 10, 1, data)
    assert len(held(disk)) * BLOCK == len(before) * BLOCK + 16 * MIB


def test_nothing_is_moved_while_all_that_is_free_is_kept() -> None:
    disk = SimulatedDisk()
    engine = open_on(disk, space_at_hand_bytes_max=4 * GROUP)
    save(engine, 7, 2 * BLOCKS_PER_GROUP)
    for index in range(2 * BLOCKS_PER_GROUP):
        if index % 8:
            engine.remove(*chunk(index, 7), version=2)
    engine.sync()
    assert engine.compact(1 << 40).moved_count == 0
    engine.close()
    engine = open_on(disk, space_at_hand_bytes_max=0)
    assert engine.compact(1 << 40).moved_count


def test_others_who_fill_the_disk_get_it() -> None:
    disk = SimulatedDisk(capacity_bytes=40 * GROUP)
    engine = open_on(disk, space_at_hand_bytes_max=1 << 40)
    save(engine, 7, 12 * BLOCKS_PER_GROUP)
    remove(engine, 7, 12 * BLOCKS_PER_GROUP)
    kept = len(held(disk)) * BLOCK
    assert kept == 10 * GROUP, "a quarter of what is free"
    engine.make_way()
    assert len(held(disk)) * BLOCK == kept, "little less is free than that is measured by"
    for left in (12, 6, 3, 0):
        disk.capacity_bytes = disk.reserved_bytes() + left * GROUP
        engine.make_way()
        kept = len(held(disk)) * BLOCK
        assert kept <= max((kept + left * GROUP) // 3, EACH_KEPT_BYTES) + GROUP
    assert kept == EACH_KEPT_BYTES
    save(engine, 8, EACH_KEPT_BYTES // BLOCK)


async def test_a_storage_process_looks_after_that_while_it_measures_its_disk() -> None:
    disk = SimulatedDisk(capacity_bytes=400 * GROUP)
    engine = open_on(disk, space_at_hand_bytes_max=1 << 40)
    save(engine, 7, 4 * BLOCKS_PER_GROUP)
    remove(engine, 7, 4 * BLOCKS_PER_GROUP)
    measured = Disk(0, "/0", engine, real_runtime(None), StorageSection())
    await measured.measure()
    assert measured.free_bytes == 400 * GROUP
    assert measured.allocated_bytes == 4 * GROUP
    disk.capacity_bytes = 5 * GROUP
    await measured.measure()
    assert measured.free_bytes == 5 * GROUP
    assert measured.allocated_bytes < 2 * GROUP


def test_a_full_disk_gives_all_of_it_to_blocks_of_other_sizes_and_to_the_metadata_store() -> None:
    disk = SimulatedDisk(capacity_bytes=1024 * GROUP)
    section = StorageSection(checksum_block_bytes=65536, reject_create_free_bytes_min=16 * MIB)
    engine = memory_engine(disk, cluster_id="c", node_id=1, section=section)
    save(engine, 7, 40 * BLOCKS_PER_GROUP)
    remove(engine, 7, 40 * BLOCKS_PER_GROUP)
    spare, kept = disk.spare_bytes, len(held(disk)) * BLOCK
    assert kept == 40 * GROUP
    disk.capacity_bytes = disk.reserved_bytes()
    engine.prepare_write(*chunk(0, 9), version=1, chunk_size_bytes=4 * MIB, offset=0, data=BYTES)
    assert len(held(disk)) * BLOCK == EACH_KEPT_BYTES, "below what the store may need"
    engine.commit(*chunk(0, 9), version=1, chain_version=1)
    engine.sync()
    assert disk.spare_bytes == spare, "that comes later"
    save(engine, 8, 4, bytes(4 * MIB))
    with pytest.raises(FsError, match="NO_SPACE"):
        save(engine, 10, 12, bytes(4 * MIB))


def test_a_disk_opened_again_has_nothing_at_hand_and_loses_nothing() -> None:
    disk = SimulatedDisk()
    engine = open_on(disk, space_at_hand_bytes_max=64 * MIB)
    save(engine, 7, COUNT)
    save(engine, 8, 10)
    remove(engine, 7, COUNT)
    engine.close()
    engine = open_on(disk, space_at_hand_bytes_max=64 * MIB)
    assert engine.space().allocated_bytes == len(held(disk)) * BLOCK == 10 * BLOCK
    save(engine, 9, COUNT)
    assert engine.space().allocated_bytes == len(held(disk)) * BLOCK


def test_a_block_that_opening_has_freed_is_not_at_hand() -> None:
    """It holds no space any more; a write that counts on it could meet a full disk."""
    dropped_count = 0
    for seed in range(40):
        disk = SimulatedDisk()
        engine = open_on(disk, space_at_hand_bytes_max=64 * MIB)
        save(engine, 7, 3)
        engine.prepare_write(
            *chunk(3), version=1, chunk_size_bytes=4 * MIB, offset=0, data=b"torn" * (BLOCK // 4)
        )
        disk.power_loss(random.Random(seed))
        is_kept = SimulatedMetaStore(disk).get(PENDING_PREFIX + chunk_key(*chunk(3))) is not None
        engine = open_on(disk, space_at_hand_bytes_max=64 * MIB)
        dropped_count += is_kept and engine.get(*chunk(3)) is None
        space = engine.space()
        assert space.allocated_bytes == space.used_bytes == len(held(disk)) * BLOCK, seed
    assert dropped_count


@pytest.mark.parametrize(
    ("kind", "expected"), [(0xEF53, True), (0x58465342, True), (0x01021994, False)]
)
def test_only_file_systems_that_write_in_place_keep_any(
    monkeypatch, tmp_path, kind, expected
) -> None:
    """In a file system in memory it would be memory that others want;
    others write elsewhere anyway.
    """
    monkeypatch.setattr("fs.chunkengine.direct_write._kind", lambda *_: kind)
    files = LocalDataFiles(tmp_path)
    assert files.writes_in_place() is expected
    files.close()


def test_a_missing_directory_is_an_error_of_the_disk(tmp_path) -> None:
    files = LocalDataFiles(tmp_path / "missing")
    with pytest.raises(FsError, match="IO_ERROR"):
        files.writes_in_place()
    files.close()


def test_an_engine_that_has_failed_gives_nothing_back(monkeypatch) -> None:
    """What its books have freed since may be named by the store."""
    disk = SimulatedDisk()
    engine = open_on(disk, space_at_hand_bytes_max=0)
    save(engine, 7, COUNT)
    for index in range(COUNT):
        engine.remove(*chunk(index), version=2)
    end_flush = engine._books.ledger.end_flush

    def failing(closing):
        emptied = end_flush(closing)
        engine._books.failure = "another thread's batch was refused"
        return emptied

    monkeypatch.setattr(engine._books.ledger, "end_flush", failing)
    engine.sync()
    for call in (engine.make_way, lambda: engine.compact(1 << 40)):
        with pytest.raises(FsError, match="IO_ERROR"):
            call()
    assert disk.step_counts["punch"] == 0


def test_a_write_finds_what_is_at_hand_for_other_sizes_while_others_overwrite(monkeypatch) -> None:
    """There is something quarantined whenever one looks,
    and what a flush frees of it others have taken.
    """
    disk = SimulatedDisk(capacity_bytes=100 * GROUP)
    engine = open_on(disk, space_at_hand_bytes_max=1 << 40)
    save(engine, 7, 12 * BLOCKS_PER_GROUP)
    remove(engine, 7, 12 * BLOCKS_PER_GROUP)
    assert len(held(disk)) * BLOCK == 12 * GROUP
    disk.capacity_bytes = disk.reserved_bytes()
    space, take_back = engine._space, engine._space._take_back
    monkeypatch.setattr(space, "_take_back", lambda *about: bool(take_back(*about) or True))
    engine.prepare_write(
        *chunk(0, 8), version=1, chunk_size_bytes=4 * MIB, offset=0, data=bytes(4 * MIB)
    )
    engine.commit(*chunk(0, 8), version=1, chain_version=1)
    check_books(engine._meta)


def test_no_space_is_given_back_where_only_what_takes_no_time_is_done() -> None:
    disk = SimulatedDisk(capacity_bytes=1024 * GROUP)
    section = StorageSection(checksum_block_bytes=65536, reject_create_free_bytes_min=16 * MIB)
    engine = memory_engine(disk, cluster_id="c", node_id=1, section=section)
    save(engine, 7, 40)
    remove(engine, 7, 40)
    assert engine.takes_at_once(*chunk(0, 8), 0, BLOCK)
    assert engine.removes_at_once()
    disk.capacity_bytes = disk.reserved_bytes()
    assert not engine.takes_at_once(*chunk(0, 8), 0, BLOCK)
    assert not engine.removes_at_once()
