"""Compaction: what it chooses, that it moves chunks unharmed and beside everything else,
and any crash in it.
"""

import os
import random
import threading
import time
from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fs.chunkengine.allocator import runs_of
from fs.chunkengine.compaction_plan import SPARSE_SHARE, GroupUse, groups_to_empty
from fs.chunkengine.factory import memory_engine
from fs.chunkengine.format import chunk_key, make_position
from fs.chunkengine.ledger import Ledger
from fs.chunkengine.read_values import ReadIo
from fs.chunkengine.simulated_disk import SimulatedCrash, SimulatedDisk, SimulatedMetaStore
from fs.schema.config import StorageSection
from fs.schema.ids import ChunkId, InodeId, TargetId
from fs.schema.status import FsError, Status

from .workload import CHUNK_SIZE_BYTES, Model, Workload, check_books

pytestmark = pytest.mark.thorough

SEEDS = int(os.environ.get("EMBERFS_COMPACTION_SEEDS", "60"))
SECTION = StorageSection(
    checksum_block_bytes=4096, reject_create_free_bytes_min=0, space_at_hand_bytes_max=0
)
T = TargetId(1)
KIB = 1024
ALL = 1 << 40

BLOCKS = 16
groups = st.lists(
    st.integers(0, BLOCKS).flatmap(
        lambda used: st.tuples(st.just(used), st.integers(used, BLOCKS))
    ),
    max_size=30,
).map(lambda pairs: [GroupUse(n, used, busy) for n, (used, busy) in enumerate(pairs)])


@given(groups)
def test_what_is_chosen_is_sparse_and_fits_elsewhere(given_groups) -> None:
    chosen = groups_to_empty(given_groups, blocks_per_group=BLOCKS)
    by_number = {g.number: g for g in given_groups}
    assert len(set(chosen)) == len(chosen)
    for number in chosen:
        assert 0 < by_number[number].used_count <= BLOCKS // SPARSE_SHARE
    kept = [g for g in given_groups if g.used_count and g.number not in chosen]
    assert sum(by_number[n].used_count for n in chosen) <= sum(BLOCKS - g.busy_count for g in kept)
    assert [by_number[n].used_count for n in chosen] == sorted(
        by_number[n].used_count for n in chosen
    )


@given(groups)
def test_a_plan_carried_out_leaves_nothing_to_plan(given_groups) -> None:
    chosen = groups_to_empty(given_groups, blocks_per_group=BLOCKS)
    left = {g.number: [g.used_count, g.busy_count] for g in given_groups}
    for number in chosen:
        for _ in range(left[number][0]):
            room = [n for n, (u, b) in left.items() if u and b < BLOCKS and n not in chosen]
            fullest = max(room, key=lambda n: left[n][1])
            left[fullest][0] += 1
            left[fullest][1] += 1
        left[number] = [0, 0]
    after = [GroupUse(n, used, busy) for n, (used, busy) in left.items()]
    assert groups_to_empty(after, blocks_per_group=BLOCKS) == []


@given(st.sets(st.tuples(st.integers(0, 2), st.integers(0, 3), st.integers(0, 255))))
def test_runs_cover_exactly_their_blocks_and_stay_in_a_group(parts) -> None:
    positions = {make_position(*part) for part in parts}
    runs = list(runs_of(positions))
    covered = [first + n for first, count in runs for n in range(count)]
    assert sorted(covered) == sorted(positions)
    for first, count in runs:
        assert (first & 0xFF) + count <= 256
        assert first + count not in positions or (first + count) & 0xFF == 0


# ---- engine --------------------------------------------------------------------------------------


def chunk(index: int) -> tuple[TargetId, ChunkId]:
    return T, ChunkId(InodeId(7), index)


def content(index: int, length: int = 5000) -> bytes:
    return random.Random(index).randbytes(length)


def put(engine, index: int, data: bytes, version: int = 1) -> None:
    engine.prepare_write(
        *chunk(index),
        version=version,
        chunk_size_bytes=1 << 20,
        offset=0,
        data=data,
        is_full_replace=True,
    )
    engine.commit(*chunk(index), version=version, chain_version=1)


def remove(engine, index: int) -> None:
    engine.prepare_remove(*chunk(index), version=2)
    engine.commit(*chunk(index), version=2, chain_version=1)


def make_sparse(engine, count: int = 1000, every: int = 20) -> list[int]:
    """Fill some groups and empty them again but for one chunk in so many; return those."""
    for index in range(count):
        put(engine, index, content(index))
    engine.sync()
    for index in range(count):
        if index % every:
            remove(engine, index)
    engine.sync()
    return list(range(0, count, every))


def groups_in_use(engine) -> int:
    return sum(bool(g.persisted) for g in engine._books.ledger.allocator.classes[0].groups.values())


def place(engine, index: int) -> int:
    return engine._books.ledger.record(chunk_key(*chunk(index))).position


def compact_all(engine) -> list:
    steps = [engine.compact(64 * KIB)]
    while not steps[-1].is_finished:
        steps.append(engine.compact(64 * KIB))
        assert len(steps) < 1000
    return steps


def test_sparse_groups_are_emptied_and_their_space_returned(lab) -> None:
    lab.section = SECTION
    kept = make_sparse(lab.reopen())
    held = sum(lab.engine._files.held_bytes(n) for n in range(4))
    used = lab.engine.used_bytes(T)
    assert groups_in_use(lab.engine) == 4
    steps = compact_all(lab.engine)
    assert len(steps) > 1
    assert sum(s.moved_count for s in steps) >= len(kept) // 2
    assert sum(s.moved_bytes for s in steps) == 5000 * sum(s.moved_count for s in steps)
    assert sum(s.freed_bytes for s in steps) > 0
    assert groups_in_use(lab.engine) == 1
    assert lab.engine.used_bytes(T) == used
    now = sum(lab.engine._files.held_bytes(n) for n in range(4))
    assert now <= held - 900 * 64 * KIB + (16 << 20)
    check_books(lab.engine._meta)
    for open_ in (lambda: lab.engine, lab.reopen):
        engine = open_()
        for index in kept:
            assert engine.read_whole(*chunk(index)) == content(index)
            assert engine.get(*chunk(index)).commit_ver == 1
    assert compact_all(lab.engine)[0].moved_count == 0
    for index in range(2000, 2300):
        put(lab.engine, index, content(index))
    assert lab.engine.read_whole(*chunk(2299)) == content(2299)


def test_large_chunks_move_piece_by_piece(monkeypatch) -> None:
    monkeypatch.setattr("fs.chunkengine.compaction.COPY_BYTES", 8192)
    monkeypatch.setattr("fs.chunkengine.allocator.BLOCKS_PER_GROUP", 4)
    engine = open_on(SimulatedDisk())
    for index in range(8):
        put(engine, index, content(index, 60_000))
    for index in (1, 5, 6, 7):
        remove(engine, index)
    engine.sync()
    step = engine.compact(ALL)
    assert (step.moved_count, step.moved_bytes, step.is_finished) == (1, 60_000, True)
    assert engine.read_whole(*chunk(4)) == content(4, 60_000)


def open_on(disk: SimulatedDisk):
    return memory_engine(disk, cluster_id="c", node_id=1, section=SECTION)


def in_the_middle(disk: SimulatedDisk, step: str, action) -> None:
    """Do something once, just before the next operation of that kind."""

    def hook(name: str) -> None:
        if name == step:
            disk.on_step = None
            action()

    disk.on_step = hook


@pytest.fixture
def sparse(monkeypatch):
    """Groups of four blocks: chunks 0, 1, 2 in the first, 4 alone in the second."""
    monkeypatch.setattr("fs.chunkengine.allocator.BLOCKS_PER_GROUP", 4)
    disk = SimulatedDisk()
    engine = open_on(disk)
    for index in range(8):
        put(engine, index, content(index))
    for index in (3, 5, 6, 7):
        remove(engine, index)
    engine.sync()
    return disk, engine


def append(engine, index: int, data: bytes, version: int = 2, *, is_committed: bool = True) -> None:
    engine.prepare_write(
        *chunk(index), version=version, chunk_size_bytes=1 << 20, offset=5000, data=data
    )
    if is_committed:
        engine.commit(*chunk(index), version=version, chain_version=1)


@pytest.mark.parametrize("step", ["read", "write"])
@pytest.mark.parametrize("is_committed", [True, False])
def test_an_update_that_comes_in_between_wins(sparse, step, is_committed) -> None:
    disk, engine = sparse
    before = place(engine, 4)
    in_the_middle(disk, step, lambda: append(engine, 4, b"new", is_committed=is_committed))
    assert engine.compact(ALL).moved_count == 0
    assert place(engine, 4) == before
    if not is_committed:
        assert engine.compact(ALL).skipped_count == 1
        engine.commit(*chunk(4), version=2, chain_version=1)
    assert engine.compact(ALL).moved_count == 1
    assert engine.read_whole(*chunk(4)) == content(4) + b"new"
    check_books(engine._meta)


@pytest.mark.parametrize("kind", ["append", "truncate"])
def test_a_chunk_being_prepared_is_left_alone(sparse, kind) -> None:
    """The other way round: the whole compaction happens while an update is at work."""
    disk, engine = sparse
    steps = []
    in_the_middle(
        disk, "write" if kind == "append" else "read", lambda: steps.append(engine.compact(ALL))
    )
    if kind == "append":
        append(engine, 4, b"new")
    else:
        engine.prepare_truncate(*chunk(4), version=2, chunk_size_bytes=1 << 20, length=100)
        engine.commit(*chunk(4), version=2, chain_version=1)
    assert [s.moved_count for s in steps] == [0]
    expected = content(4) + b"new" if kind == "append" else content(4)[:100]
    assert engine.read_whole(*chunk(4)) == expected
    check_books(engine._meta)
    assert engine.compact(ALL).moved_count == (kind == "append")
    assert engine.read_whole(*chunk(4)) == expected


def test_removal_in_between_wins(sparse) -> None:
    disk, engine = sparse
    in_the_middle(disk, "write", lambda: remove(engine, 4))
    assert engine.compact(ALL).moved_count == 0
    assert engine.get(*chunk(4)) is None
    put(engine, 8, content(8))
    check_books(engine._meta)


def test_a_reader_in_flight_keeps_the_old_block(sparse) -> None:
    _, engine = sparse
    ledger = engine._books.ledger
    record = ledger.record(chunk_key(*chunk(4)))
    ledger.readers.pin(record)
    assert engine.compact(ALL).moved_count == 1
    for index in range(20, 40):
        put(engine, index, content(index))
    engine.sync()
    assert bytes(engine._reader.read(record, 0, 5000)) == content(4)
    ledger.readers.unpin(record)
    assert place(engine, 4) != record.position
    check_books(engine._meta)


def test_a_bad_copy_is_reported_and_stays(sparse) -> None:
    disk, engine = sparse
    before = place(engine, 4)
    disk.flip_bit(1, 100)
    for bytes_max in (ALL, 1):
        step = engine.compact(bytes_max)
        assert (step.damaged, step.moved_count, place(engine, 4)) == ((chunk(4),), 0, before)
        assert step.is_finished
    engine.mark_damaged(*chunk(4))
    step = engine.compact(ALL)
    assert (step.damaged, step.skipped_count, step.is_finished) == ((), 1, True)


def test_a_chunk_that_cannot_be_read_for_want_of_a_descriptor_is_not_bad(sparse) -> None:
    disk, engine = sparse

    def refuse(name) -> None:
        if name == "read":
            raise FsError(Status.OUT_OF_RESOURCES, "injected")

    disk.on_step = refuse
    step = engine.compact(ALL)
    disk.on_step = None
    assert (step.damaged, step.moved_count) == ((), 0)
    assert engine.compact(ALL).moved_count == 1


@pytest.mark.parametrize("step", ["reserve", "write"])
def test_no_room_is_no_error(sparse, step) -> None:
    disk, engine = sparse
    engine.close()
    engine = open_on(disk)
    before = place(engine, 4)

    def hook(name: str) -> None:
        if name == step:
            raise FsError(Status.NO_SPACE, name)

    disk.on_step = hook
    assert engine.compact(ALL).moved_count == 0
    disk.on_step = None
    assert place(engine, 4) == before
    assert engine.compact(ALL).moved_count == 1
    check_books(engine._meta)


def test_threads_update_and_read_while_chunks_move(lab, monkeypatch) -> None:
    monkeypatch.setattr("fs.chunkengine.allocator.BLOCKS_PER_GROUP", 4)
    lab.section = SECTION
    lab.reopen()
    engine, failures, moved = lab.engine, [], []
    stop = threading.Event()

    def write(inode: int) -> None:
        workload = CompactingWorkload(inode)
        workload.chunks = [(T, ChunkId(InodeId(inode), n)) for n in range(8)]
        workload.models = {chunk: Model() for chunk in workload.chunks}
        for step in range(5000):  # until something has been moved, however threads take turns
            if step >= 60 and any(moved):
                break
            Workload.step(workload, engine)
        workload.check_now(engine)

    def compact() -> None:
        while not stop.is_set():
            moved.append(engine.compact(ALL).moved_count)
            time.sleep(0.002)

    def watch() -> None:
        buffer = memoryview(bytearray(CHUNK_SIZE_BYTES))
        while not stop.is_set():
            for inode in (1, 2, 3):
                ios = [
                    ReadIo(T, ChunkId(InodeId(inode), n), 0, CHUNK_SIZE_BYTES, buffer)
                    for n in range(8)
                ]
                done = engine.read_batch(ios)
                failures.extend(
                    d for d in done if d.status not in {Status.OK, Status.CHUNK_NOT_FOUND}
                )

    def guarded(function, *args) -> None:
        try:
            function(*args)
        except BaseException as error:  # noqa: BLE001 - a thread's failure must reach the test
            failures.append(error)

    writers = [threading.Thread(target=guarded, args=(write, inode)) for inode in (1, 2, 3)]
    others = [threading.Thread(target=guarded, args=(f,)) for f in (compact, watch)]
    for thread in writers + others:
        thread.start()
    for thread in writers:
        thread.join()
    stop.set()
    for thread in others:
        thread.join()
    assert failures == []
    assert sum(moved) > 0
    check_books(engine._meta)


# ---- crashes -------------------------------------------------------------------------------------


class CompactingWorkload(Workload):
    """Many small chunks, now and then a compaction."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed, [(T, ChunkId(InodeId(7), n)) for n in range(14)])
        self.moved_count = 0

    def data(self, length_max: int = 9000) -> bytes:
        return self.rng.randbytes(min(self.rng.randint(1, 9000), length_max))

    def step(self, engine) -> None:
        if self.rng.random() < 0.15:
            self.moved_count += engine.compact(self.rng.choice((1, 20_000, ALL))).moved_count
        elif self.rng.random() < 0.3:
            self.remove(engine, self.rng.choice(self.chunks))
        else:
            super().step(engine)


def crash_again_and_again(seed: int) -> int:
    """Six lives of one disk, each cut at a random operation; return how many chunks moved."""
    rng = random.Random(seed)
    disk, workload = SimulatedDisk(), CompactingWorkload(seed)
    is_power = False
    for _ in range(6):
        left = [rng.randint(1, 250)]

        def hook(name: str, left=left) -> None:
            left[0] -= name != "read"
            if left[0] <= 0:
                raise SimulatedCrash(name)

        is_checked = False
        try:
            disk.on_step = hook
            engine = open_on(disk)
            disk.on_step = None
            workload.check_after_crash(engine, is_power_loss=is_power)
            check_books(SimulatedMetaStore(disk))
            is_checked = True
            disk.on_step = hook
            while True:
                workload.step(engine)
        except SimulatedCrash:
            is_loss = rng.random() < 0.7
            _ = disk.power_loss(rng) if is_loss else disk.crash()
            is_power = is_loss or (is_power and not is_checked)
    workload.check_after_crash(open_on(disk), is_power_loss=is_power)
    return workload.moved_count


@pytest.mark.parametrize("lot", range(2))
def test_no_crash_in_a_compaction_harms_a_chunk(monkeypatch, lot) -> None:
    monkeypatch.setattr("fs.chunkengine.allocator.BLOCKS_PER_GROUP", 4)
    moved = [crash_again_and_again(seed) for seed in range(lot, SEEDS, 2)]
    assert sum(moved) > len(moved)


def reuse_at_once(self, position) -> None:
    self.epoch.fresh.discard(position)
    self.readers.leave(position)


def keep_no_undo(_self, _key, _old, _batch) -> None:
    """Of a move, the old place is not remembered."""


def see_no_update(_self, _key) -> bool:
    return False


@pytest.mark.parametrize(
    ("name", "broken"),
    [("_free", reuse_at_once), ("_stage_undo", keep_no_undo), ("is_changing", see_no_update)],
)
def test_a_broken_rule_is_noticed(monkeypatch, name, broken) -> None:
    monkeypatch.setattr("fs.chunkengine.allocator.BLOCKS_PER_GROUP", 4)
    monkeypatch.setattr(Ledger, name, broken)
    with pytest.raises((AssertionError, FsError, KeyError)):
        deque(map(crash_again_and_again, range(200)), maxlen=0)
