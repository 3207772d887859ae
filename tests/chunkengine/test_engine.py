"""One contract for the engine over a simulated and over a real disk."""

import random
import threading
import time

import pytest

from fs.chunkengine.api import ChunkCommit, ChunkWrite, CommitsAtOnce, Note
from fs.chunkengine.books import StuckError
from fs.chunkengine.format import FileId
from fs.chunkengine.read_values import ReadIo
from fs.schema.config import StorageSection
from fs.schema.ids import ChunkId, InodeId, TargetId
from fs.schema.status import FsError, Status

from .workload import CHUNK_SIZE_BYTES, Workload, check_books, place

A = (TargetId(1), ChunkId(InodeId(7), 0))
KIB = 1024


def prepare(engine, chunk, version, data, offset=0, **more):
    return engine.prepare_write(
        *chunk,
        version=version,
        chunk_size_bytes=CHUNK_SIZE_BYTES,
        offset=offset,
        data=data,
        **more,
    )


def put(engine, chunk, version, data, offset=0, **more):
    prepare(engine, chunk, version, data, offset, **more)
    return engine.commit(*chunk, version=version, chain_version=3)


def put_drawn(engine, chunks, lengths):
    """Put drawn bytes of these lengths into as many of the chunks; returns them."""
    generator = random.Random(1)
    found = [generator.randbytes(length) for length in lengths]
    for chunk, content in zip(chunks, found, strict=False):
        put(engine, chunk, 1, content)
    return found


def read(engine, chunk, offset, length, version=0):
    buffer = bytearray(b"\xee" * length)
    done = engine.read_batch([ReadIo(*chunk, offset, length, memoryview(buffer), version)])[0]
    return done, bytes(buffer[: done.length])


def expect(status: Status):
    return pytest.raises(FsError, match=status.name)


def test_a_prepared_version_is_not_readable_until_committed(lab) -> None:
    engine = lab.engine
    state = prepare(engine, A, 1, b"one")
    assert (state.commit_ver, state.pending_ver, state.pending_length) == (0, 1, 3)
    assert read(engine, A, 0, 3)[0].status == Status.CHUNK_NOT_FOUND
    assert read(engine, A, 0, 3, version=1)[1] == b"one"
    state = engine.commit(*A, version=1, chain_version=9)
    assert (state.commit_ver, state.chain_version, state.length) == (1, 9, 3)
    assert state == engine.get(*A)
    assert read(engine, A, 1, 100) == (
        engine.read_batch([ReadIo(*A, 1, 100, memoryview(bytearray(100)))])[0],
        b"ne",
    )
    assert engine.commit(*A, version=1, chain_version=9) == state


def test_a_version_is_committed_by_the_batch_that_makes_it(lab, monkeypatch) -> None:
    engine, batches = lab.engine, []
    put(engine, A, 1, b"old", tag=b"mine")
    prepare(engine, A, 2, b"dropped", tag=b"yours")
    write = engine._meta.write
    monkeypatch.setattr(engine._meta, "write", lambda b: (batches.append(b), write(b)))
    note = Note(b"who", b"what")
    told = []

    def note_of(state):
        told.append((state.commit_ver, state.pending_ver, state.pending_length, state.pending_tag))
        return note

    state = prepare(engine, A, 2, b"new", tag=b"his", commits=CommitsAtOnce(9, note_of))
    assert told == [(1, 2, 3, b"his")]
    assert (state.commit_ver, state.pending_ver, state.pending_length) == (1, 2, 3)
    assert len(batches) == 1
    found = engine.get(*A)
    assert (found.commit_ver, found.chain_version, found.length, found.pending_ver) == (2, 9, 3, 0)
    assert found.checksum == state.pending_checksum
    assert read(engine, A, 0, 9)[1] == b"new"
    assert engine.notes(A[0]) == [note]
    with expect(Status.COMMITTED_UPDATE):
        prepare(engine, A, 2, b"again", commits=CommitsAtOnce(9, note_of))
    monkeypatch.undo()
    engine = lab.reopen()
    assert read(engine, A, 0, 9)[1] == b"new"
    check_books(engine._meta)


def group_of(*writes):
    return [
        ChunkWrite(ChunkId(InodeId(7), index), version, CHUNK_SIZE_BYTES, offset, data, b"tag")
        for index, version, offset, data in writes
    ]


def test_writes_of_several_chunks_are_one_batch_and_so_are_their_commits(lab, monkeypatch) -> None:
    engine, batches = lab.engine, []
    put(engine, A, 1, b"old")
    write = engine._meta.write
    monkeypatch.setattr(engine._meta, "write", lambda b: (batches.append(b), write(b)))
    group = group_of((0, 2, 3, b"er"), (1, 1, 0, b"new"), (2, 1, 2, b"hole"))
    states = engine.prepare_writes(A[0], group)
    assert [(s.chunk_id.index, s.commit_ver, s.pending_ver, s.pending_length) for s in states] == [
        (0, 1, 2, 5),
        (1, 0, 1, 3),
        (2, 0, 1, 6),
    ]
    assert states == [engine.get(A[0], write.chunk_id) for write in group]
    assert len(batches) == 1
    notes = [Note(b"who %d" % n, b"what") for n in range(3)]
    commits = [
        ChunkCommit(w.chunk_id, w.version, note) for w, note in zip(group, notes, strict=True)
    ]
    engine.commit_writes(A[0], commits, chain_version=9)
    assert len(batches) == 2
    monkeypatch.undo()
    for open_ in (lambda: engine, lab.reopen):
        opened = open_()
        found = [opened.get(A[0], write.chunk_id) for write in group]
        assert [(s.commit_ver, s.chain_version, s.pending_ver) for s in found] == [
            (2, 9, 0),
            (1, 9, 0),
            (1, 9, 0),
        ]
        contents = [opened.read_whole(A[0], write.chunk_id) for write in group]
        assert contents == [b"older", b"new", b"\0\0hole"]
        assert opened.notes(A[0]) == notes
        check_books(opened._meta)


def test_of_several_writes_one_that_cannot_be_leaves_nothing_of_the_others(lab) -> None:
    engine = lab.engine
    put(engine, A, 1, b"old")
    space = engine.space().used_bytes
    group = group_of((1, 1, 0, b"x" * 9000), (0, 2, 3, b"er"), (2, 5, 0, b"not the next"))
    with expect(Status.MISSING_UPDATE):
        engine.prepare_writes(A[0], group)
    assert [engine.get(A[0], write.chunk_id) is None for write in group] == [True, False, True]
    assert engine.get(*A).pending_ver == 0
    assert engine.space().used_bytes == space
    assert engine.read_whole(*A) == b"old"
    engine.prepare_writes(A[0], group[:2])  # neither block nor base is held by the first try
    with expect(Status.MISSING_UPDATE):
        engine.commit_writes(
            A[0], [ChunkCommit(w.chunk_id, w.version) for w in group], chain_version=9
        )
    assert [engine.get(A[0], write.chunk_id).pending_ver for write in group[:2]] == [1, 2]
    engine.commit_writes(
        A[0], [ChunkCommit(w.chunk_id, w.version) for w in group[:2]], chain_version=9
    )
    assert engine.read_whole(*A) == b"older"
    check_books(engine._meta)


def test_pending_and_committed_are_both_readable_also_after_reopening(lab) -> None:
    put(lab.engine, A, 1, b"a" * 5000)
    prepare(lab.engine, A, 2, b"b" * 9000, 5000)
    for open_ in (lambda: lab.engine, lab.reopen):
        engine = open_()
        assert engine.read_whole(*A) == b"a" * 5000
        assert engine.read_whole(*A, version=2) == b"a" * 5000 + b"b" * 9000
        assert read(engine, A, 4990, 20, version=1)[1] == b"a" * 10
        assert read(engine, A, 4990, 20, version=2)[1] == b"a" * 10 + b"b" * 10
        assert read(engine, A, 0, 1, version=3)[0].status == Status.MISSING_UPDATE
        assert engine.get(*A).pending_ver == 2


def test_a_dropped_pending_version_leaves_nothing(lab) -> None:
    put(lab.engine, A, 1, b"a" * 5000)
    for data, offset in ((b"x" * 70_000, 0), (b"y" * 100, 5000)):
        used = lab.engine.used_bytes(A[0])
        prepare(lab.engine, A, 2, data, offset)
        lab.engine.drop_pending(*A)
        assert lab.engine.used_bytes(A[0]) == used
        assert lab.engine.get(*A).pending_ver == 0
    put(lab.engine, A, 2, b"z" * 100, 5000)
    assert lab.reopen().read_whole(*A) == b"a" * 5000 + b"z" * 100


def test_versions_must_follow_one_another(lab) -> None:
    put(lab.engine, A, 1, b"one")
    with expect(Status.MISSING_UPDATE):
        prepare(lab.engine, A, 3, b"x")
    with expect(Status.COMMITTED_UPDATE):
        prepare(lab.engine, A, 1, b"x")
    with expect(Status.MISSING_UPDATE):
        lab.engine.commit(*A, version=2, chain_version=1)
    with expect(Status.COMMITTED_UPDATE):
        lab.engine.prepare_remove(*A, version=1)
    with expect(Status.INVALID_ARGUMENT):
        prepare(lab.engine, A, 2, b"x", CHUNK_SIZE_BYTES)
    assert put(lab.engine, A, 9, b"nine", is_full_replace=True).commit_ver == 9


def test_a_full_replace_takes_any_version_and_replaces_a_pending_one(lab) -> None:
    put(lab.engine, A, 8, b"eight" * 1000, is_full_replace=True)
    prepare(lab.engine, A, 9, b"nine")
    assert prepare(lab.engine, A, 5, b"five", is_full_replace=True).pending_ver == 5
    assert lab.engine.commit(*A, version=5, chain_version=1).commit_ver == 5
    assert lab.engine.read_whole(*A) == b"five"


def test_removal_is_pending_first(lab) -> None:
    put(lab.engine, A, 1, b"one")
    state = lab.engine.prepare_remove(*A, version=2)
    assert state.pending_is_remove
    assert lab.engine.read_whole(*A) == b"one"
    engine = lab.reopen()
    assert engine.get(*A).pending_is_remove
    assert engine.commit(*A, version=2, chain_version=1) is None
    assert engine.commit(*A, version=2, chain_version=1) is None
    assert engine.get(*A) is None
    assert engine.used_bytes(A[0]) == 0


def test_a_removal_in_one_step_is_as_one_in_two(lab) -> None:
    put(lab.engine, A, 3, b"three", is_full_replace=True)
    prepare(lab.engine, A, 4, b"left over")
    with pytest.raises(FsError) as caught:
        lab.engine.remove(*A, version=3)
    assert caught.value.status is Status.COMMITTED_UPDATE
    state = lab.engine.remove(*A, version=4)
    put(lab.engine, A, 3, b"three", is_full_replace=True)
    assert state == lab.engine.prepare_remove(*A, version=4)
    lab.engine.remove(*A, version=5)
    assert lab.engine.get(*A) is None
    assert lab.engine.used_bytes(A[0]) == 0
    assert lab.engine.commit(*A, version=5, chain_version=1) is None
    assert lab.reopen().get(*A) is None


def test_equal_content_has_an_equal_digest_whatever_its_history(lab) -> None:
    content = random.Random(1).randbytes(200_000)
    whole = put(lab.engine, A, 1, content)
    other = (TargetId(2), A[1])
    at = 0
    for version, step in enumerate([1, 4095, 4096, 60_000, 3, 70_000, 200_000], 1):
        state = put(lab.engine, other, version, content[at : at + step], at)
        at = min(at + step, len(content))
    assert at == len(content)
    assert state.checksum == whole.checksum
    state = put(lab.engine, other, 8, b"?" * 10_000, 5_000)
    assert state.checksum != whole.checksum
    assert put(lab.engine, other, 9, content[5_000:15_000], 5_000).checksum == whole.checksum
    lab.engine.prepare_truncate(*other, version=10, chunk_size_bytes=CHUNK_SIZE_BYTES, length=99)
    cut = lab.engine.commit(*other, version=10, chain_version=1)
    third = (TargetId(3), A[1])
    assert put(lab.engine, third, 1, content[:99]).checksum == cut.checksum


def test_a_damaged_byte_is_never_returned(lab) -> None:
    content = random.Random(2).randbytes(100_000)
    put(lab.engine, A, 1, content)
    file_id, start = place(lab.engine, A)
    lab.flip(file_id, start + 50_000)
    done, _ = read(lab.engine, A, 49_000, 4096)
    assert done.status == Status.CHECKSUM_MISMATCH
    assert done.length == 0
    assert read(lab.engine, A, 0, 45_056)[1] == content[:45_056]
    assert read(lab.engine, A, 60_000, 100)[1] == content[60_000:60_100]
    with expect(Status.CHECKSUM_MISMATCH):
        lab.engine.read_whole(*A)
    with expect(Status.CHECKSUM_MISMATCH):
        prepare(lab.engine, A, 2, b"x", 10)
    with expect(Status.CHECKSUM_MISMATCH):
        lab.engine.prepare_truncate(*A, version=2, chunk_size_bytes=CHUNK_SIZE_BYTES, length=51_000)
    assert put(lab.engine, A, 2, content, is_full_replace=True).commit_ver == 2
    assert lab.engine.read_whole(*A) == content


@pytest.mark.parametrize("block", [4096, 16384, 65536])
def test_reads_of_any_range_match(lab, block) -> None:
    section = StorageSection(checksum_block_bytes=block)
    lab.engine.close()
    lab.path = lab.path / "other"
    lab.disk = type(lab.disk)()
    lab.engine = lab.open(section=section)
    rng = random.Random(block)
    content = rng.randbytes(250_001)
    put(lab.engine, A, 1, content)
    for _ in range(60):
        offset, length = rng.randint(0, 260_000), rng.choice((1, 4096, rng.randint(0, 250_001)))
        if rng.random() < 0.3:
            offset -= offset % block
        done, found = read(lab.engine, A, offset, length)
        assert (done.status, found) == (Status.OK, content[offset : offset + length])


def test_lists_are_in_order_paged_and_know_pending_chunks(lab) -> None:
    engine = lab.engine
    ids = [ChunkId(InodeId(i), n) for i in (3, 500, 7) for n in (0, 1, 70_000)]
    for chunk_id in ids:
        put(engine, (TargetId(1), chunk_id), 1, b"x")
    prepare(engine, (TargetId(1), ChunkId(InodeId(7), 5)), 1, b"pending")
    put(engine, (TargetId(2), ChunkId(InodeId(7), 0)), 1, b"other target")
    expected = sorted([*ids, ChunkId(InodeId(7), 5)])
    found, after = [], b""
    while page := engine.list_chunks(TargetId(1), after=after, limit=3):
        found += [state.chunk_id for state in page]
        after = page[-1].chunk_id.pack()
    assert found == expected
    indices = [s.chunk_id.index for s in engine.list_file(TargetId(1), 7)]
    assert indices == [0, 1, 5, 70_000]
    part = engine.list_file(TargetId(1), 7, first_index=1, end_index=70_000)
    assert [s.chunk_id.index for s in part] == [1, 5]
    assert engine.list_file(TargetId(1), 8) == []


def test_last_chunk_is_committed_and_not_empty(lab) -> None:
    engine, target = lab.engine, TargetId(1)
    assert engine.last_chunk(target, 7) is None
    for index in (0, 2, 9):
        put(engine, (target, ChunkId(InodeId(7), index)), 1, b"x")
    put(engine, (target, ChunkId(InodeId(8), 0)), 1, b"x")
    put(engine, (target, ChunkId(InodeId(6), 99)), 1, b"x")
    prepare(engine, (target, ChunkId(InodeId(7), 12)), 1, b"x")
    put(engine, (target, ChunkId(InodeId(7), 11)), 1, b"")
    last = engine.last_chunk(target, 7)
    assert last is not None
    assert last.chunk_id.index == 9


def test_removing_a_target_leaves_the_others(lab) -> None:
    for target in (1, 2):
        for index in range(100):
            put(lab.engine, (TargetId(target), ChunkId(InodeId(7), index)), 1, b"x")
    prepare(lab.engine, (TargetId(1), ChunkId(InodeId(9), 0)), 1, b"x")
    lab.engine.remove_target(TargetId(1))
    engine = lab.reopen()
    assert engine.list_chunks(TargetId(1)) == []
    assert engine.used_bytes(TargetId(1)) == 0
    assert engine.used_bytes(TargetId(2)) == 100 * 64 * KIB
    check_books(engine._meta)


def test_space_counts_blocks(lab) -> None:
    put(lab.engine, A, 1, b"x" * 70_000)
    space = lab.engine.space()
    assert space.used_bytes == 128 * KIB
    assert space.used_bytes <= space.allocated_bytes
    assert 0 < space.free_bytes <= space.capacity_bytes


def test_a_foreign_or_unknown_disk_is_refused(lab) -> None:
    lab.engine.close()
    with expect(Status.FOREIGN_DISK):
        lab.open(cluster_id="other")
    with expect(Status.FOREIGN_DISK):
        lab.open(node_id=2)
    engine = lab.open(section=StorageSection(checksum_block_bytes=65536))
    assert engine.disk_format.checksum_block_bytes == 4096
    newer = engine.disk_format.__class__(
        **{
            **{f: getattr(engine.disk_format, f) for f in engine.disk_format.__struct_fields__},
            "format_version": 99,
        }
    )
    engine._meta.write_synced([(b"\x08", newer.pack())])
    engine.close()
    with expect(Status.BAD_DISK_FORMAT):
        lab.open()
    lab.engine = engine


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(6))
def test_random_operations_match_the_model_across_restarts(lab, seed) -> None:
    workload = Workload(seed)
    for _ in range(3):
        for _ in range(40):
            workload.step(lab.engine)
        workload.check_now(lab.engine)
        lab.reopen()
        workload.check_now(lab.engine)
        check_books(lab.engine._meta)


def test_threads_on_different_chunks_beside_readers(lab) -> None:
    engine, failures = lab.engine, []
    stop = threading.Event()

    def write(target: int) -> None:
        workload = Workload(target, [(TargetId(target), ChunkId(InodeId(7), n)) for n in range(3)])
        for _ in range(30):
            workload.step(engine)
        workload.check_now(engine)

    def watch() -> None:
        chunks = [(TargetId(t), ChunkId(InodeId(7), n)) for t in (1, 2, 3) for n in range(3)]
        buffer = memoryview(bytearray(CHUNK_SIZE_BYTES))
        while not stop.is_set():
            for chunk in chunks:
                done = engine.read_batch([ReadIo(*chunk, 0, CHUNK_SIZE_BYTES, buffer)])[0]
                if done.status not in (Status.OK, Status.CHUNK_NOT_FOUND):
                    failures.append(done)

    def guarded(function, *args) -> None:
        try:
            function(*args)
        except BaseException as error:  # noqa: BLE001 - a thread's failure must reach the test
            failures.append(error)

    writers = [threading.Thread(target=guarded, args=(write, t)) for t in (1, 2, 3)]
    readers = [threading.Thread(target=guarded, args=(watch,)) for _ in range(2)]
    for thread in writers + readers:
        thread.start()
    for thread in writers:
        thread.join()
    stop.set()
    for thread in readers:
        thread.join()
    assert failures == []
    check_books(engine._meta)


def test_concurrent_syncs_share_flushes(lab, monkeypatch) -> None:
    engine, failures = lab.engine, []
    flush = engine._files.flush
    monkeypatch.setattr(engine._files, "flush", lambda ids: (time.sleep(0.01), flush(ids)))

    def work(target: int) -> None:
        try:
            for version in range(1, 16):
                put(engine, (TargetId(target), A[1]), version, b"x" * 100)
                engine.sync()
        except BaseException as error:  # noqa: BLE001 - a thread's failure must reach the test
            failures.append(error)

    threads = [threading.Thread(target=work, args=(t,)) for t in range(1, 7)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert failures == []
    assert not any(thread.is_alive() for thread in threads)
    assert 15 <= engine._epochs.ended <= 60
    assert not engine._books.ledger.epoch.has_batches


def test_a_repair_restores_exactly_the_committed_version(lab) -> None:
    target, chunk = TargetId(1), ChunkId(InodeId(9), 0)
    whole = bytes(range(256)) * 40
    lab.engine.prepare_write(
        target, chunk, version=1, chunk_size_bytes=1 << 20, offset=0, data=whole
    )
    lab.engine.commit(target, chunk, version=1, chain_version=3)
    before = lab.engine.get(target, chunk)
    lab.flip(FileId(0), 5000)
    with pytest.raises(FsError, match="CHECKSUM_MISMATCH"):
        lab.engine.read_whole(target, chunk)
    for version, data in ((1, whole[:-1]), (1, b"y" + whole[1:]), (2, whole)):
        assert not lab.engine.repair(target, chunk, version=version, data=data)
    assert lab.engine.repair(target, chunk, version=1, data=whole)
    assert lab.engine.read_whole(target, chunk) == whole
    assert lab.engine.get(target, chunk) == before
    lab.reopen()
    assert lab.engine.read_whole(target, chunk) == whole
    lab.engine.prepare_remove(target, chunk, version=2)
    assert not lab.engine.repair(target, chunk, version=1, data=whole)


def test_what_is_taken_at_once_waits_for_nothing(lab, monkeypatch) -> None:
    engine, rng, waits = lab.engine, random.Random(5), []

    def watch(owner, name):
        real = getattr(owner, name)

        def watched(*arguments):
            waits.append(name)
            return real(*arguments)

        monkeypatch.setattr(owner, name, watched)

    for name in ("read_at", "reserve", "flush", "punch", "set_spare"):
        watch(engine._files, name)
    watch(engine._meta, "write_synced")
    seen = {True: 0, False: 0}
    for step in range(120):
        chunk = (A[0], ChunkId(InodeId(rng.randint(1, 4)), rng.randint(0, 20)))
        old = engine.get(*chunk)
        offset = rng.choice((0, 0, 0, 0, 1, 5000))
        data = rng.randbytes(rng.choice((1, 5000, 70 * KIB, 200 * KIB)))
        waits.clear()
        at_once = engine.takes_at_once(*chunk, offset, len(data))
        assert not waits, "asking takes no time either"
        put(engine, chunk, (old.commit_ver if old else 0) + 1, data, offset)
        assert not (at_once and waits), (step, chunk, old, offset, len(data), waits)
        assert not at_once or old is None or (offset == 0 and len(data) >= old.length)
        seen[at_once] += 1
    assert min(seen.values()) > 20, seen


def test_a_new_chunk_is_looked_up_once(lab, monkeypatch) -> None:
    engine, looks, real = lab.engine, [], lab.engine._meta.get
    monkeypatch.setattr("fs.chunkengine.record_cache.ABSENT_COUNT_MAX", 3)
    monkeypatch.setattr(engine._meta, "get", lambda key: looks.append(key) or real(key))
    assert engine.get(*A) is None
    assert not engine.takes_at_once(*A, 0, 5)
    assert put(engine, A, 1, b"first").commit_ver == 1
    assert len(looks) == 1
    assert engine.get(*A).length == 5
    engine.remove(*A, version=2)
    assert engine.get(*A) is None
    assert put(engine, A, 1, b"again").length == 5
    others = [(A[0], ChunkId(InodeId(8), index)) for index in range(5)]
    for _ in range(2):
        looks.clear()
        assert [engine.get(*chunk) for chunk in others] == [None] * 5
        assert len(looks) == 5, "of many, the latest are remembered"
    assert engine.get(*A).length == 5


def test_nothing_is_taken_at_once_when_a_flush_is_due(lab, monkeypatch) -> None:
    put(lab.engine, A, 1, b"x" * 5000)
    assert lab.engine.takes_at_once(*A, 0, 5000)
    monkeypatch.setattr("fs.chunkengine.epochs.UNDO_COUNT_MAX", 0)
    assert not lab.engine.takes_at_once(*A, 0, 5000)


def test_only_updates_that_bring_most_of_what_they_write_are_written_back_at_once(
    lab, monkeypatch
) -> None:
    engine, begun = lab.engine, []
    monkeypatch.setattr(
        engine._files, "begin_write_back", lambda _file, at, length: begun.append((at, length))
    )

    def update(version, offset, size):
        begun.clear()
        engine.prepare_write(
            *A, version=version, chunk_size_bytes=KIB * KIB, offset=offset, data=b"x" * size
        )
        engine.commit(*A, version=version, chain_version=1)
        return [length for _, length in begun]

    assert update(1, 0, 127 * KIB) == []
    assert update(2, 0, 400 * KIB) == [400 * KIB]
    assert update(3, 4 * KIB, 4 * KIB) == []  # a copy of 400 KiB, for the sake of 4
    assert update(4, 0, 150 * KIB) == []
    assert update(5, 0, 250 * KIB) == [250 * KIB]
    assert update(6, 400 * KIB, 4 * KIB) == []
    at_most = KIB * KIB - 404 * KIB
    assert update(7, 404 * KIB, at_most) == [at_most]


def test_all_reads_of_a_batch_are_begun_before_the_first_is_waited_for(lab, monkeypatch) -> None:
    engine, events = lab.engine, []
    block = engine.disk_format.checksum_block_bytes
    put(engine, A, 1, b"x" * (3 * block))
    files = engine._files
    really_read = files.read_at

    def read_at(file_id, offset, buffers) -> int:
        events.append("read")
        return really_read(file_id, offset, buffers)

    monkeypatch.setattr(files, "begin_read", lambda *where: events.append(where))
    monkeypatch.setattr(files, "read_at", read_at)
    ios = [
        ReadIo(*A, offset, length, memoryview(bytearray(length)))
        for offset, length in ((0, 10), (block - 1, 2), (2 * block, 2 * block), (9 * block, 1))
    ]
    assert [done.length for done in engine.read_batch(ios)] == [10, 2, block, 0]
    begun, start = events[:3], events[0][1]
    assert [(at - start, length) for _, at, length in begun] == [
        (0, block),
        (0, 2 * block),
        (2 * block, block),
    ]
    assert events[3:] == ["read"] * 3
    events.clear()
    assert engine.read_batch(ios[:1])[0].length == 10
    assert events == ["read"]


@pytest.mark.parametrize("when", ["before the record", "behind it"])
def test_an_event_loop_whose_write_loses_the_books_waits_no_longer_than_once(
    lab, monkeypatch, when
) -> None:
    """A thread that a hung disk keeps may have them by then;
    what is left to be done is done by whoever has them next.
    """
    engine, held, may_end = lab.engine, threading.Event(), threading.Event()
    put(engine, A, 1, b"old")
    before = engine.space().used_bytes
    monkeypatch.setattr("fs.chunkengine.books.STUCK_S", 0.1)

    def hold() -> None:
        with engine._books.lock:
            held.set()
            may_end.wait(10)

    threads = []

    def hang() -> None:
        threads.append(threading.Thread(target=hold))
        threads[0].start()
        held.wait()

    updates = engine._updates
    name = "_record" if when == "before the record" else "_end"
    real = getattr(updates, name)
    monkeypatch.setattr(updates, name, lambda *args: (hang(), real(*args))[1])
    began_s = time.monotonic()
    if name == "_record":
        with pytest.raises(StuckError):
            prepare(engine, A, 2, b"x" * 9000)
    else:
        assert prepare(engine, A, 2, b"x" * 9000).pending_ver == 2
    took_s = time.monotonic() - began_s
    may_end.set()
    threads[0].join()
    assert took_s < 5
    monkeypatch.undo()
    state = engine.get(*A)
    assert state.pending_ver == (2 if name == "_end" else 0)
    assert not engine._books.ledger._updating
    if name == "_record":
        assert engine.space().used_bytes == before
    put(engine, A, 2, b"new")
    assert engine.read_whole(*A) == b"new"
    check_books(engine._meta)
