"""Targets of a disk by its own record, notes beside commits, and disks of the older format."""

import random

import pytest

from fs.chunkengine import format as f
from fs.chunkengine.api import DISK_LOSS_KEY, Note
from fs.chunkengine.factory import memory_engine
from fs.chunkengine.simulated_disk import SimulatedCrash, SimulatedDisk, SimulatedMetaStore
from fs.schema.config import StorageSection
from fs.schema.ids import ChunkId, InodeId, TargetId
from fs.schema.status import FsError, Status

from .workload import check_books

pytestmark = pytest.mark.thorough

T, U = TargetId(1), TargetId(2)
SECTION = StorageSection(checksum_block_bytes=4096)


def open_on(disk: SimulatedDisk, **more):
    return memory_engine(disk, cluster_id="c", node_id=1, section=SECTION, **more)


def chunk(index: int) -> ChunkId:
    return ChunkId(InodeId(7), index)


def prepare(engine, target, index, version, data) -> None:
    engine.prepare_write(
        target, chunk(index), version=version, chunk_size_bytes=1 << 20, offset=0, data=data
    )


def put(engine, target, index, version=1, data=b"x", *, note=None):
    prepare(engine, target, index, version, data)
    return engine.commit(target, chunk(index), version=version, chain_version=1, note=note)


def expect(status: Status):
    return pytest.raises(FsError, match=status.name)


def test_a_target_is_held_from_its_first_chunk_or_when_added(lab) -> None:
    assert lab.engine.target_ids() == []
    lab.engine.add_target(U)
    lab.engine.add_target(U)
    put(lab.engine, T, 0)
    assert lab.engine.target_ids() == [T, U]
    assert lab.reopen().target_ids() == [T, U]


def test_an_added_target_survives_a_power_loss_at_once() -> None:
    for seed in range(10):
        disk = SimulatedDisk()
        engine = open_on(disk, target_ids=[2])
        put(engine, T, 0)
        engine.add_target(TargetId(3))
        disk.power_loss(random.Random(seed))
        assert open_on(disk).target_ids()[-2:] == [U, TargetId(3)]


@pytest.mark.parametrize("ending", [SimulatedDisk.crash, lambda d: d.power_loss(random.Random(1))])
def test_a_removed_target_stays_removed_though_it_is_configured(ending) -> None:
    disk = SimulatedDisk()
    engine = open_on(disk, target_ids=[1, 2])
    put(engine, T, 0)
    engine.remove_target(T)
    assert engine.target_ids() == [U]
    ending(disk)
    engine = open_on(disk, target_ids=[1, 2, 3])
    assert engine.target_ids() == [U, TargetId(3)]
    engine.add_target(T)  # as a manager asks for
    ending(disk)
    assert open_on(disk, target_ids=[1, 2, 3]).target_ids() == [T, U, TargetId(3)]


def test_a_removal_is_forgotten_when_the_target_is_configured_no_more() -> None:
    disk = SimulatedDisk()
    engine = open_on(disk, target_ids=[1, 2])
    engine.remove_target(T)
    open_on(disk, target_ids=[2]).close()
    assert f.target_key(T) not in disk.records
    assert open_on(disk, target_ids=[1, 2]).target_ids() == [T, U]


def test_a_removed_target_is_gone_with_all_it_had(lab) -> None:
    for target in (T, U):
        for index in range(300):
            put(lab.engine, target, index, note=Note(b"n%d" % index, b"v"))
        prepare(lab.engine, target, 900, 1, b"pending")
    lab.engine.remove_target(T)
    for open_ in (lambda: lab.engine, lab.reopen):
        engine = open_()
        assert engine.target_ids() == [U]
        assert engine.list_chunks(T) == []
        assert engine.notes(T) == []
        assert len(engine.notes(U)) == 300
        assert engine.used_bytes(T) == 0
        check_books(engine._meta)
    lab.engine.remove_target(T)
    put(lab.engine, T, 1, data=b"anew")
    assert lab.engine.target_ids() == [T, U]
    assert lab.engine.used_bytes(T) == 64 << 10


def test_a_removal_cut_short_anywhere_goes_on_at_open(monkeypatch) -> None:
    monkeypatch.setattr("fs.chunkengine.registry.LOT_COUNT_MAX", 2)
    rng = random.Random(3)
    seen_half_removed = 0
    for is_power in (False, True):
        step_count = 0
        while True:
            step_count += 1
            disk = SimulatedDisk()
            engine = open_on(disk)
            for index in range(7):
                put(engine, T, index, note=Note(b"%d" % index, b""))
                put(engine, U, index)
            prepare(engine, T, 50, 1, b"pending")
            engine.sync()
            left = [step_count]

            def hook(name: str, left=left) -> None:
                left[0] -= 1
                if not left[0]:
                    raise SimulatedCrash(name)

            disk.on_step = hook
            try:
                engine.remove_target(T)
                is_done = True
            except SimulatedCrash:
                is_done = False
            _ = disk.power_loss(rng) if is_power else disk.crash()
            meta = SimulatedMetaStore(disk)
            state = meta.get(f.target_key(T))
            seen_half_removed += state == f.TARGET_REMOVING
            again = open_on(disk)
            check_books(meta)
            count = len(again.list_chunks(T))
            assert (count, len(again.notes(T))) == ((8, 7) if T in again.target_ids() else (0, 0))
            assert not (is_done and count)
            assert state != f.TARGET_REMOVING or not count
            assert len(again.list_chunks(U)) == 7
            if is_done:
                break
        assert step_count > 8
    assert seen_half_removed > 8


def test_a_target_being_removed_takes_no_updates() -> None:
    engine = open_on(SimulatedDisk())
    put(engine, T, 0)
    engine._books.ledger.targets[T] = True
    calls = [
        lambda: prepare(engine, T, 1, 1, b"x"),
        lambda: engine.prepare_truncate(T, chunk(0), version=2, chunk_size_bytes=1 << 20, length=0),
        lambda: engine.prepare_remove(T, chunk(0), version=2),
        lambda: engine.put_notes(T, [Note(b"a", b"b")]),
        lambda: engine.add_target(T),
        lambda: engine.put_damaged(
            T, chunk(0), version=2, chain_version=1, length=1, checksum=1, chunk_size_bytes=1 << 20
        ),
    ]
    for call in calls:
        with expect(Status.TARGET_UNKNOWN):
            call()
    assert engine.target_ids() == []


def test_a_big_removal_flushes_in_between(monkeypatch) -> None:
    monkeypatch.setattr("fs.chunkengine.epochs.UNDO_COUNT_MAX", 500)
    disk = SimulatedDisk()
    engine = open_on(disk)
    for index in range(3000):
        put(engine, T, index, data=b"")
    engine.sync()
    flushed = engine._epochs.ended
    engine.remove_target(T)
    assert engine._epochs.ended - flushed >= 4


def test_a_removal_may_be_made_of_many_calls() -> None:
    disk = SimulatedDisk()
    engine = open_on(disk)
    for index in range(1000):
        put(engine, T, index, data=b"")
    put(engine, U, 0)
    assert not engine.remove_target(T, lot_count_max=1)
    assert 0 < len(engine.list_chunks(T)) < 1000
    with expect(Status.TARGET_UNKNOWN):
        put(engine, T, 5000)
    count = 1
    while not engine.remove_target(T, lot_count_max=1):
        count += 1
    assert count == 4
    assert engine.target_ids() == [U]
    assert engine.remove_target(T, lot_count_max=1)
    disk.power_loss(random.Random(1))
    assert open_on(disk).target_ids() == [U]


def test_a_note_comes_with_its_commit_also_after_reopening(lab) -> None:
    put(lab.engine, T, 0, 1, note=Note(b"a", b"1"))
    put(lab.engine, T, 0, 2, note=Note(b"a", b"2"))
    put(lab.engine, T, 1, 1, note=Note(b"b", b"3"))
    put(lab.engine, U, 1, 1, note=Note(b"a", b"other"))
    prepare(lab.engine, T, 2, 1, b"x")
    lab.engine.prepare_remove(T, chunk(1), version=2)
    lab.engine.commit(T, chunk(1), version=2, chain_version=1, note=Note(b"c", b"gone"))
    expected = [Note(b"a", b"2"), Note(b"b", b"3"), Note(b"c", b"gone")]
    assert lab.engine.notes(T) == expected
    engine = lab.reopen()
    assert engine.notes(T) == expected
    engine.forget_notes(T, [b"a", b"c", b"never"])
    assert engine.notes(T) == [Note(b"b", b"3")]
    assert engine.notes(U) == [Note(b"a", b"other")]
    engine.put_notes(T, [Note(b"d%d" % n, b"x" * 512) for n in range(50)])
    assert len(lab.reopen().notes(T)) == 51


def test_a_repeated_commit_puts_its_note_again() -> None:
    engine = open_on(SimulatedDisk())
    put(engine, T, 0)
    engine.commit(T, chunk(0), version=1, chain_version=1, note=Note(b"a", b"1"))
    assert engine.notes(T) == [Note(b"a", b"1")]


def test_a_note_and_its_commit_are_lost_or_kept_together() -> None:
    """A note without its commit names a version that the chunk does not have."""
    kept = lost = 0
    for seed in range(60):
        disk = SimulatedDisk()
        engine = open_on(disk)
        put(engine, T, 0, 1, b"a" * 3000, note=Note(b"a", b"1"))
        engine.sync()
        for version in range(2, 6):
            put(engine, T, 0, version, b"%d" % version * 3000, note=Note(b"a", b"%d" % version))
        disk.power_loss(random.Random(seed))
        again = open_on(disk)
        notes = {note.key: note for note in again.notes(T)}
        note, committed = notes[b"a"], again.get(T, chunk(0)).commit_ver
        assert int(note.value) >= committed
        assert (DISK_LOSS_KEY in notes) == (int(note.value) > committed)
        kept += int(note.value) == committed
        lost += int(note.value) > committed
    assert kept
    assert lost


def test_synced_notes_survive() -> None:
    for seed in range(10):
        disk = SimulatedDisk()
        engine = open_on(disk)
        engine.put_notes(T, [Note(b"a", b"1"), Note(b"b", b"2")])
        engine.sync()
        engine.forget_notes(T, [b"b"])
        disk.power_loss(random.Random(seed))
        assert open_on(disk).notes(T)[0] == Note(b"a", b"1")


def test_durable_notes_survive_and_wait_for_no_data(lab) -> None:
    put(lab.engine, T, 0)
    lab.engine.put_notes(T, [Note(b"a", b"1")], is_durable=True)
    assert lab.reopen().notes(T) == [Note(b"a", b"1")]
    for seed in range(10):
        disk, steps = SimulatedDisk(), list[str]()
        engine = open_on(disk)
        put(engine, T, 0)
        disk.on_step = steps.append
        engine.put_notes(T, [Note(b"a", b"1")], is_durable=True)
        disk.on_step = None
        assert steps.count("meta_sync") == 1
        assert "flush" not in steps
        disk.power_loss(random.Random(seed))
        assert Note(b"a", b"1") in open_on(disk).notes(T)


def test_notes_have_bounds() -> None:
    for key, value in ((b"", b""), (b"k" * 65, b""), (b"k", b"v" * 513)):
        with pytest.raises(AssertionError):
            Note(key, value)


def make_format_1(disk: SimulatedDisk) -> None:
    """Turn a closed disk into what the older format would have left."""
    meta = SimulatedMetaStore(disk)
    for key, _ in list(meta.scan(f.TARGET_PREFIX, b"\x0b")):
        meta.write([(key, None)])
    stored = meta.get(f.FORMAT_KEY)
    assert stored is not None
    meta.write_synced(
        [(f.FORMAT_KEY, stored.replace(b'"format_version":2', b'"format_version":1'))]
    )


def test_format_1_is_upgraded_in_place() -> None:
    disk = SimulatedDisk()
    engine = open_on(disk)
    for target in (T, TargetId(2**63 - 1)):
        put(engine, target, 3, data=b"old")
    prepare(engine, U, 0, 1, b"pending alone")
    engine.close()
    make_format_1(disk)
    meta = SimulatedMetaStore(disk)
    disk.on_step = lambda name: (_ for _ in ()).throw(SimulatedCrash(name))
    with pytest.raises(SimulatedCrash):
        open_on(disk)
    disk.power_loss(random.Random(1))
    assert b'"format_version":1' in (meta.get(f.FORMAT_KEY) or b"")
    assert meta.get(f.target_key(T)) is None
    again = open_on(disk, target_ids=[9])
    assert again.target_ids() == [T, U, TargetId(9), TargetId(2**63 - 1)]
    assert again.disk_format.format_version == f.FORMAT_VERSION
    assert again.read_whole(T, chunk(3)) == b"old"
    again.close()
    assert open_on(disk).disk_format == again.disk_format
