"""Versions whose bytes are known to be bad:
never served, never built upon, replaced or repaired.
"""

import random

import pytest

from fs.chunkengine.factory import memory_engine
from fs.chunkengine.format import chunk_key, place_of
from fs.chunkengine.read_values import ReadIo
from fs.chunkengine.simulated_disk import SimulatedDisk
from fs.schema.config import StorageSection
from fs.schema.ids import ChunkId, InodeId, TargetId
from fs.schema.status import FsError, Status

from .workload import check_books

pytestmark = pytest.mark.thorough

A = (TargetId(1), ChunkId(InodeId(7), 0))
SIZE = 1 << 20
WHOLE = bytes(range(256)) * 40


def expect(status: Status):
    return pytest.raises(FsError, match=status.name)


def prepare(engine, version, data, offset=0, **more):
    return engine.prepare_write(
        *A, version=version, chunk_size_bytes=SIZE, offset=offset, data=data, **more
    )


def put(engine, version, data, offset=0, **more):
    prepare(engine, version, data, offset, **more)
    return engine.commit(*A, version=version, chain_version=3)


def put_damaged(engine, like, **more):
    known = {
        "version": like.commit_ver,
        "chain_version": 4,
        "length": like.length,
        "checksum": like.checksum,
        "chunk_size_bytes": SIZE,
    }
    return engine.put_damaged(*A, **(known | more))


def read_status(engine, length=1) -> int:
    return engine.read_batch([ReadIo(*A, 0, length, memoryview(bytearray(length)))])[0].status


@pytest.fixture
def digest():
    """State of `WHOLE` as another replica would report it."""
    engine = memory_engine(
        SimulatedDisk(),
        cluster_id="c",
        node_id=2,
        section=StorageSection(checksum_block_bytes=4096),
    )
    return put(engine, 9, WHOLE, is_full_replace=True)


@pytest.fixture(params=["marked", "put"])
def damaged(request, lab, digest):
    """A damaged version 9 of `WHOLE`: marked here, or known from elsewhere."""
    if request.param == "put":
        put(lab.engine, 3, b"older", is_full_replace=True)
        prepare(lab.engine, 4, b"pending")
        assert put_damaged(lab.engine, digest).is_damaged
    else:
        put(lab.engine, 9, WHOLE, is_full_replace=True)
        assert lab.engine.mark_damaged(*A, version=9)
    return lab


def test_it_is_known_and_never_read_also_after_reopening(damaged, digest) -> None:
    for open_ in (lambda: damaged.engine, damaged.reopen):
        engine = open_()
        state = engine.get(*A)
        assert state.is_damaged
        assert (state.commit_ver, state.length, state.checksum) == (9, len(WHOLE), digest.checksum)
        assert state.pending_ver == 0
        assert engine.list_chunks(A[0]) == [state]
        assert read_status(engine) == Status.CHECKSUM_MISMATCH
        assert engine.read_cached([ReadIo(*A, 0, 0, memoryview(b""))])[0].status
        with expect(Status.CHECKSUM_MISMATCH):
            engine.read_whole(*A)
        check_books(engine._meta)


def test_nothing_is_built_upon_it(damaged) -> None:
    for call in (
        lambda: prepare(damaged.engine, 10, b"x" * (len(WHOLE) - 1)),
        lambda: prepare(damaged.engine, 10, b"x", len(WHOLE)),
        lambda: prepare(damaged.engine, 10, b"x" * len(WHOLE), 1),
        lambda: damaged.engine.prepare_truncate(*A, version=10, chunk_size_bytes=SIZE, length=1),
        lambda: damaged.engine.prepare_truncate(
            *A, version=10, chunk_size_bytes=SIZE, length=len(WHOLE) + 1
        ),
    ):
        with expect(Status.CHECKSUM_MISMATCH):
            call()
    assert damaged.engine.get(*A).pending_ver == 0
    check_books(damaged.engine._meta)


@pytest.mark.parametrize("kind", ["cover", "replace", "empty", "remove", "repair"])
def test_it_ends_with_bytes_that_owe_nothing_to_it(damaged, kind) -> None:
    engine, expected = damaged.engine, b"n" * len(WHOLE)
    if kind == "cover":
        put(engine, 10, expected)
    elif kind == "replace":
        expected = b"short"
        put(engine, 12, expected, is_full_replace=True)
    elif kind == "empty":
        expected = b""
        engine.prepare_truncate(*A, version=10, chunk_size_bytes=SIZE, length=0)
        engine.commit(*A, version=10, chain_version=3)
    elif kind == "remove":
        engine.prepare_remove(*A, version=10)
        assert engine.commit(*A, version=10, chain_version=3) is None
        return
    else:
        expected = WHOLE
        assert not engine.repair(*A, version=9, data=WHOLE[:-1] + b"?")
        assert engine.repair(*A, version=9, data=WHOLE)
    for open_ in (lambda: engine, damaged.reopen):
        again = open_()
        assert not again.get(*A).is_damaged
        assert again.read_whole(*A) == expected
        check_books(again._meta)


def test_a_pending_version_does_not_mend_it(damaged) -> None:
    prepare(damaged.engine, 10, b"n" * len(WHOLE))
    assert damaged.reopen().get(*A).is_damaged
    assert read_status(damaged.engine) == Status.CHECKSUM_MISMATCH
    damaged.engine.drop_pending(*A)
    assert damaged.engine.get(*A).is_damaged


def test_only_what_is_there_can_be_marked(lab) -> None:
    assert not lab.engine.mark_damaged(*A)
    put(lab.engine, 1, b"x")
    assert not lab.engine.mark_damaged(*A, version=2)
    assert not lab.engine.get(*A).is_damaged
    prepare(lab.engine, 2, b"")
    assert lab.engine.mark_damaged(*A)
    assert lab.engine.mark_damaged(*A)
    assert lab.engine.get(*A).pending_ver == 2


def test_an_empty_version_is_never_damaged(lab) -> None:
    state = put(lab.engine, 1, b"")
    assert not lab.engine.mark_damaged(*A)
    assert not put_damaged(lab.engine, state, version=5).is_damaged
    assert lab.reopen().read_whole(*A) == b""


def test_a_whole_copy_of_that_version_stays(lab, digest) -> None:
    put(lab.engine, 9, WHOLE, is_full_replace=True)
    state = put_damaged(lab.engine, digest)
    assert (state.is_damaged, state.chain_version) == (False, 4)
    assert lab.engine.read_whole(*A) == WHOLE
    with expect(Status.INVALID_ARGUMENT):
        put_damaged(lab.engine, digest, length=SIZE + 1)


def test_a_power_loss_gives_the_whole_or_the_damaged_version(digest) -> None:
    seen = set()
    section = StorageSection(checksum_block_bytes=4096)
    for seed in range(40):
        disk = SimulatedDisk()

        def open_on(disk=disk):
            return memory_engine(disk, cluster_id="c", node_id=1, section=section)

        engine = open_on()
        put(engine, 1, b"synced" * 1000)
        engine.sync()
        put(engine, 2, b"not synced" * 1000)
        put_damaged(engine, digest)
        if seed % 2:
            engine.sync()
        disk.power_loss(random.Random(seed))
        again = open_on()
        state = again.get(*A)
        seen.add(state.commit_ver)
        assert state.is_damaged == (state.commit_ver == 9)
        assert state.is_damaged or seed % 2 == 0
        if not state.is_damaged:
            assert again.read_whole(*A) in (b"synced" * 1000, b"not synced" * 1000)
        check_books(again._meta)
    assert {1, 9} <= seen


def test_a_mark_ends_when_the_bytes_can_be_read_again(lab) -> None:
    put(lab.engine, 1, WHOLE)
    lab.engine.sync()
    assert lab.engine.end_damage(*A, version=1), "it is not marked"
    assert lab.engine.mark_damaged(*A)
    prepare(lab.engine, 2, b"new", is_full_replace=True)
    assert not lab.engine.end_damage(*A, version=2), "not the committed one"
    assert lab.engine.end_damage(*A, version=1)
    assert lab.engine.get(*A).pending_ver == 2
    assert lab.engine.read_whole(*A) == WHOLE
    assert lab.reopen().read_whole(*A) == WHOLE
    check_books(lab.engine._meta)


def test_a_mark_stays_while_the_bytes_are_bad_or_the_disk_gives_errors(lab, monkeypatch) -> None:
    put(lab.engine, 1, WHOLE)
    assert lab.engine.mark_damaged(*A)
    with lab.engine._books as ledger:
        file_id, start = place_of(ledger.record(chunk_key(*A)).position)
    files = lab.engine._files
    files.write_at(file_id, start, [b"?"])
    assert not lab.engine.end_damage(*A, version=1)
    files.write_at(file_id, start, [WHOLE[:1]])

    def read_at(*_: object) -> int:
        raise FsError(Status.IO_ERROR, "a bad sector")

    with monkeypatch.context() as patch:
        patch.setattr(files, "read_at", read_at)
        assert not lab.engine.end_damage(*A, version=1)
    assert lab.engine.get(*A).is_damaged
    assert lab.engine.end_damage(*A, version=1)


def test_a_mark_of_what_has_no_bytes_stays(lab, digest) -> None:
    assert put_damaged(lab.engine, digest).is_damaged
    assert not lab.engine.end_damage(*A, version=digest.commit_ver)
    assert not lab.engine.end_damage(A[0], ChunkId(InodeId(8), 0), version=1)
