"""What only the embedded engine does: format, lock, shared flushes, failures of the disk."""

# ruff: noqa: ARG001 - a test that sleeps names the clock it wants
import errno
import gc
import os
import subprocess
import weakref

import pytest
import trio
from rocksdict import Options, Rdict

from fs.kv import rocksdb as engine_module
from fs.kv import rocksdb_store
from fs.kv.local import LocalEngine
from fs.kv.log_room import LogRoom
from fs.kv.rocksdb import RocksDbEngine
from fs.kv.rocksdb_store import FORMAT_KEY, check_format, open_store
from fs.kv.transact import snapshot_read, transact
from fs.runtime.figures import Figures
from fs.runtime.ports import Runtime
from fs.runtime.real import ThreadRunBlocking
from fs.runtime.until_wait import begin_without_task
from fs.schema import metrics
from fs.schema.config import KvSection
from fs.schema.layout import KIB
from fs.schema.proto import record_pb2
from fs.schema.status import FsError, Status
from tests.kv.harness import CLUSTER_ID, inline_runtime, mounted_tmpfs
from tests.meta.harness import outside_any_task


class FailingDb:
    """The real store with one method that fails."""

    def __init__(self, inner: Rdict, name: str, message: str) -> None:
        self._inner, self._name, self._message = inner, name, message
        self.call_count = 0

    def __getattr__(self, name: str):
        if name != self._name:
            return getattr(self._inner, name)

        def fail(*_: object, **__: object):
            self.call_count += 1
            raise Exception(self._message)  # noqa: TRY002 - as the binding does

        return fail


async def open_at(path, runtime: Runtime | None = None, **section) -> RocksDbEngine:
    return await RocksDbEngine.open(
        str(path), KvSection(**section), runtime or inline_runtime(), cluster_id=CLUSTER_ID
    )


async def put(engine, key: bytes, value: bytes = b"x") -> None:
    tr = engine.transaction()
    tr.set(key, value)
    await tr.commit()


async def expect(status: Status, act) -> FsError:
    with pytest.raises(FsError) as caught:
        await act
    assert caught.value.status is status, caught.value
    return caught.value


async def test_only_one_opener(tmp_path):
    engine = await open_at(tmp_path / "kv")
    await expect(Status.ALREADY_RUNNING, open_at(tmp_path / "kv"))
    await engine.aclose()
    await (await open_at(tmp_path / "kv")).aclose()


@pytest.mark.parametrize(
    ("record", "problem"),
    [
        (record_pb2.FormatRecordPb(format_version=2, cluster_id=CLUSTER_ID, what="kv"), "format 2"),
        (record_pb2.FormatRecordPb(format_version=1, cluster_id="other", what="kv"), "'other'"),
        (record_pb2.FormatRecordPb(format_version=1, cluster_id=CLUSTER_ID, what="disk"), "'disk'"),
        (None, "no format record"),
    ],
)
async def test_foreign_stores_are_refused(tmp_path, record, problem):
    engine = await open_at(tmp_path / "kv")
    await put(engine, b"a")
    await engine.aclose()
    db = Rdict(str(tmp_path / "kv"), options=Options(raw_mode=True))
    if record is None:
        del db[FORMAT_KEY]
    else:
        db[FORMAT_KEY] = record.SerializeToString()
    db.close()
    error = await expect(Status.KV_BAD_FORMAT, open_at(tmp_path / "kv"))
    assert problem in error.detail
    # A refusal leaves the lock free and the store as it was.
    db = open_store(str(tmp_path / "kv"))
    assert db.get(b"a") == b"x"
    db.close()


async def test_a_store_that_exists_has_the_options_of_today(tmp_path, monkeypatch):
    for buffer_bytes in (1 << 20, 3 << 20):
        monkeypatch.setattr(rocksdb_store, "WRITE_BUFFER_BYTES", buffer_bytes)
        engine = await open_at(tmp_path / "kv")
        await engine.aclose()
        newest = max((tmp_path / "kv").glob("OPTIONS-*"))
        assert f"write_buffer_size={buffer_bytes}\n" in newest.read_text()


def test_format_record_bytes(tmp_path):
    db = open_store(str(tmp_path / "kv"))
    assert check_format(db, "kv", "c1") == 0
    assert dict(db.items()) == {
        b"\xff/format": b"\x08\x01\x12\x02c1\x1a\x02kv",
        b"\xff/version": bytes(8),
    }
    db.close()


async def test_reserved_keys_are_invisible(tmp_path):
    engine = await open_at(tmp_path / "kv")
    tr = engine.transaction()
    assert await tr.get_range(b"", b"\xff") == []
    assert await tr.get_range(b"", b"\xff", reverse=True) == []
    with pytest.raises(AssertionError):
        await tr.get(b"\xff/version")
    with pytest.raises(AssertionError):
        tr.set(b"\xff", b"")
    tr.close()
    await engine.aclose()


async def test_concurrent_syncs_share_flushes(tmp_path, monkeypatch, autojump_clock):
    async def in_a_thread(function, /, *args):
        await trio.lowlevel.checkpoint()  # others go on meanwhile
        return function(*args)

    inline = inline_runtime()
    runtime = Runtime(inline.clock, inline.network, in_a_thread, inline.random)
    engine = await open_at(tmp_path / "kv", runtime)
    flushes = []
    inner = engine._flush_log
    monkeypatch.setattr(engine, "_flush_log", lambda *upto: (flushes.append(1), inner(*upto)))

    async def commit_and_sync(index: int) -> None:
        await put(engine, b"%d" % index)
        mine = engine.version
        await engine.sync()
        assert engine._synced_version >= mine

    async with trio.open_nursery() as nursery:
        for index in range(50):
            nursery.start_soon(commit_and_sync, index)
    # One that finds another under way waits for the next, with all that came meanwhile.
    assert 1 <= len(flushes) <= 5
    count = len(flushes)
    await engine.sync()
    assert len(flushes) == count
    await engine.aclose()


async def test_what_has_no_task_commits_and_gets_one_for_a_flush(tmp_path, autojump_clock):
    engine = await open_at(tmp_path / "kv")

    async def commit_and_sync():
        for index in range(2 * RocksDbEngine.COMMITS_PER_TURN):
            await put(engine, b"%d" % index)
        await engine.sync()
        return trio.lowlevel.in_trio_task()

    rest = outside_any_task(begin_without_task, commit_and_sync())
    assert engine.version == 2 * RocksDbEngine.COMMITS_PER_TURN
    assert engine._synced_version < engine.version
    assert await rest
    assert engine._synced_version == engine.version
    with pytest.raises(StopIteration):  # there is nothing to flush
        outside_any_task(begin_without_task, engine.sync())
    await engine.aclose()


async def test_cancelled_leader_hands_over(tmp_path, autojump_clock):
    async def slow(function, /, *args):
        await trio.sleep(1)
        return function(*args)

    inline = inline_runtime()
    runtime = Runtime(inline.clock, inline.network, slow, inline.random)
    engine = await open_at(tmp_path / "kv", runtime)
    await put(engine, b"a")
    async with trio.open_nursery() as nursery:
        scope = await nursery.start(_sync_in_scope, engine)
        await trio.sleep(0.1)
        nursery.start_soon(engine.sync)
        await trio.sleep(0.1)
        scope.cancel()
    assert engine._synced_version == 1
    await engine.aclose()


async def _sync_in_scope(engine, task_status) -> None:
    with trio.CancelScope() as scope:
        task_status.started(scope)
        await engine.sync()


async def test_background_flush_covers_commits_within_the_interval(tmp_path, autojump_clock):
    engine = await open_at(tmp_path / "kv", group_sync_interval_s=0.005)
    async with trio.open_nursery() as nursery:
        await nursery.start(engine.run)
        for index in range(10):
            await put(engine, b"%d" % index)
            await trio.sleep(0.006)
            assert engine._synced_version == engine.version
        nursery.cancel_scope.cancel()
    await engine.aclose()


async def test_background_flush_is_spared_by_those_that_are_waited_for(tmp_path, autojump_clock):
    def flush_count():
        figures = Figures()
        engine.say(figures)
        return figures.histograms[metrics.KV_STORE_FLUSHES][()].count

    engine = await open_at(tmp_path / "kv", group_sync_interval_s=0.05)
    async with trio.open_nursery() as nursery:
        await nursery.start(engine.run)
        for index in range(20):
            await put(engine, b"a%d" % index)
            await trio.sleep(0.02)
            await put(engine, b"b%d" % index)
            await engine.sync()
            await put(engine, b"c%d" % index)
            await trio.sleep(0.02)
        assert flush_count() == 20
        await trio.sleep(0.04)
        assert flush_count() == 21
        assert engine._synced_version == engine.version
        nursery.cancel_scope.cancel()
    await engine.aclose()


async def test_failed_flush_poisons_for_ever(tmp_path):
    engine = await open_at(tmp_path / "kv")
    await put(engine, b"a")
    db = engine._db
    failing = FailingDb(db, "flush_wal", "IO error: fdatasync: Input/output error")
    engine._db = failing
    await expect(Status.IO_ERROR, engine.sync())
    engine._db = db  # the disk "works" again: too late
    await expect(Status.IO_ERROR, engine.sync())
    await expect(Status.IO_ERROR, put(engine, b"b"))
    await expect(Status.IO_ERROR, snapshot_read(engine, lambda tr: tr.get(b"a")))
    await expect(Status.IO_ERROR, engine.aclose())
    assert failing.call_count == 1
    await (await open_at(tmp_path / "kv")).aclose()  # and yet the store was released


async def test_background_flush_failure_ends_run(tmp_path):
    engine = await open_at(tmp_path / "kv")
    engine._db = FailingDb(engine._db, "flush_wal", "IO error")
    await put(engine, b"a")
    await expect(Status.IO_ERROR, engine.run())
    await expect(Status.IO_ERROR, engine.aclose())


async def test_commit_failure_that_proves_nothing_is_unknown_and_poisons(tmp_path):
    engine = await open_at(tmp_path / "kv")
    db = engine._db
    engine._db = FailingDb(db, "write", "IO error: While appending to file: Input/output error")
    error = await expect(Status.KV_COMMIT_UNKNOWN, put(engine, b"a"))
    assert not error.definite
    engine._db = db
    await expect(Status.IO_ERROR, put(engine, b"b"))
    await engine.aclose()


async def test_a_commit_without_memory_ends_the_use_of_the_store(tmp_path, monkeypatch):
    """It is stored, and whoever read before it and commits later would not be refused."""
    engine = await open_at(tmp_path / "kv")
    await put(engine, b"a")
    await engine.sync()
    with monkeypatch.context() as patch:
        patch.setattr(type(engine._window), "add", no_memory)
        error = await expect(Status.KV_COMMIT_UNKNOWN, put(engine, b"b"))
    assert not error.definite
    await expect(Status.IO_ERROR, put(engine, b"c"))
    await expect(Status.IO_ERROR, engine.run())
    await expect(Status.IO_ERROR, engine.aclose())
    engine = await open_at(tmp_path / "kv")
    assert await snapshot_read(engine, lambda tr: tr.get(b"b")) is not None
    assert await snapshot_read(engine, lambda tr: tr.get(b"c")) is None
    await engine.aclose()


@pytest.mark.parametrize("is_sync_under_way", [False, True])
async def test_a_write_without_memory_ends_the_process_though_all_is_synced(
    tmp_path, monkeypatch, autojump_clock, is_sync_under_way
):
    async def commits() -> None:
        await put(engine, b"a")
        await trio.sleep(0.001 if is_sync_under_way else 1)  # `run` waits for its time, or is done
        await engine.sync()
        monkeypatch.setattr(FailingDb, "write", no_memory, raising=False)
        engine._db = FailingDb(engine._db, "", "")
        error = await expect(Status.KV_COMMIT_UNKNOWN, put(engine, b"b"))
        assert not error.definite

    engine = await open_at(tmp_path / "kv", group_sync_interval_s=0.05)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(commits)
        with trio.fail_after(5):
            await expect(Status.IO_ERROR, engine.run())
    await engine.aclose()


async def test_a_commit_that_lacks_memory_twice_is_followed_by_no_other(tmp_path, monkeypatch):
    """The second time for the error that says so."""
    engine = await open_at(tmp_path / "kv")
    await put(engine, b"a")
    with monkeypatch.context() as patch:
        patch.setattr(type(engine._known), "follow", no_memory)  # once it is stored
        patch.setattr(LocalEngine, "doubt", no_memory)
        patch.setattr(engine_module.log, "error", no_memory)
        with pytest.raises(MemoryError):
            await put(engine, b"b")
    await expect(Status.IO_ERROR, put(engine, b"c"))
    with trio.fail_after(5):
        await expect(Status.IO_ERROR, engine.run())
    await expect(Status.IO_ERROR, engine.aclose())


@pytest.mark.parametrize("step", ["open_store", "stored_version"])
async def test_a_full_store_that_cannot_be_opened_anew_ends_the_process(
    tmp_path, monkeypatch, autojump_clock, step
):
    engine = await open_at(tmp_path / "kv")
    engine._full_since_s = engine.now_s() - engine_module.REOPEN_INTERVAL_S
    with monkeypatch.context() as patch:
        patch.setattr(engine_module, step, no_memory if step == "open_store" else lambda _db: 7)
        await expect(Status.IO_ERROR, put(engine, b"a"))
    with trio.fail_after(5):
        await expect(Status.IO_ERROR, engine.run())
    await engine.aclose()


async def test_a_full_store_whose_disk_does_not_tell_its_space_stays_full(
    tmp_path, monkeypatch, autojump_clock
):
    """It was a bug, by all that showed."""

    def broken(_path):
        raise OSError(errno.EIO, "Input/output error")

    engine = await open_at(tmp_path / "kv")
    engine._full_since_s = engine.now_s() - engine_module.REOPEN_INTERVAL_S
    with monkeypatch.context() as patch:
        patch.setattr(engine_module.shutil, "disk_usage", broken)
        await expect(Status.NO_SPACE, put(engine, b"a"))
        assert "Input/output error" in engine.trouble
    await trio.sleep(engine_module.REOPEN_INTERVAL_S)
    await expect(Status.KV_TOO_OLD, put(engine, b"a"))  # opened anew: whoever asked tries again
    await put(engine, b"a")
    assert not engine.trouble
    await engine.aclose()


def no_memory(*_args):
    raise MemoryError


@pytest.mark.slow
@pytest.mark.parametrize("is_set_aside", [True, False])
async def test_full_disk_refuses_commits_only_and_recovers(
    tmp_path, monkeypatch, autojump_clock, is_set_aside
):
    """With room set aside behind the log commits are refused before RocksDB meets the end
    of the disk, else by it.
    """
    if not is_set_aside:
        monkeypatch.setattr(LogRoom, "follow", lambda room: setattr(room, "_is_offered", False))
    disk = tmp_path / "disk"
    if not mounted_tmpfs(disk, 100):
        pytest.skip("needs the right to mount a tmpfs")
    try:
        engine = await open_at(disk / "kv")
        ballast = disk / "ballast"
        ballast.write_bytes(bytes(72 << 20))
        committed = 0
        error = None
        while error is None:
            try:
                await put(engine, b"%05d" % committed, os.urandom(50_000))
                committed += 1
            except FsError as caught:
                error = caught
        assert error.status is Status.NO_SPACE
        assert error.definite
        assert committed > 50
        await engine.sync()
        assert len(await snapshot_read(engine, lambda tr: tr.get_range(b"", b"\xff"))) == committed
        await trio.sleep(2)
        error = await expect(Status.NO_SPACE, put(engine, b"still full"))
        assert "bytes are free, changes go on with" in str(error)
        old = engine.transaction()
        await old.get(b"00000")
        ballast.unlink()
        await trio.sleep(2)

        async def write(tr):
            tr.set(b"%05d" % committed, b"after")

        await transact(engine, write, runtime=inline_runtime())
        if is_set_aside:
            assert await old.get(b"00001")
        else:
            await expect(Status.KV_TOO_OLD, old.get(b"00001"))
        await engine.aclose()
        engine = await open_at(disk / "kv")
        found = await snapshot_read(engine, lambda tr: tr.get_range(b"", b"\xff"))
        assert [key for key, _ in found] == [b"%05d" % i for i in range(committed + 1)]
        await engine.aclose()
    finally:
        subprocess.run(["umount", str(disk)], check=True)  # noqa: ASYNC221


async def test_a_store_is_closed_that_finds_no_room_for_its_last_tables(tmp_path, caplog):
    """Nothing is lost: all of it is in the log, and synced."""
    engine = await open_at(tmp_path / "kv")
    await put(engine, b"k")
    db = engine._db
    engine._db = FailingDb(
        db, "close", "IO error: No space left on device: While appending to file"
    )
    await engine.aclose()
    assert "closing the full store" in caplog.text
    db.close()
    engine = await open_at(tmp_path / "kv")
    assert await snapshot_read(engine, lambda tr: tr.get(b"k")) == b"x"
    engine._db = FailingDb(engine._db, "close", "IO error: Input/output error")
    await expect(Status.IO_ERROR, engine.aclose())


async def test_log_is_rotated_right_after_a_sync(tmp_path, monkeypatch):
    monkeypatch.setattr(engine_module, "ROTATE_COST_BYTES", 1 << 20)
    engine = await open_at(tmp_path / "kv")
    logs = set()
    for index in range(60):
        await put(engine, b"%d" % index, os.urandom(50_000))
        logs.update(path.name for path in (tmp_path / "kv").glob("*.log"))
    assert len(logs) >= 3
    assert engine._synced_version >= 40
    await engine.aclose()
    engine = await open_at(tmp_path / "kv")
    assert len(await snapshot_read(engine, lambda tr: tr.get_range(b"", b"\xff"))) == 60
    assert engine.version == 60
    await engine.aclose()


async def test_snapshots_survive_flush_and_compaction(tmp_path):
    engine = await open_at(tmp_path / "kv")
    for index in range(100):
        await put(engine, b"%03d" % index, b"old")
    tr = engine.transaction()
    assert await tr.get(b"000") == b"old"
    for index in range(0, 100, 2):
        await put(engine, b"%03d" % index, b"new")
    engine._db.flush()
    engine._db.compact_range(None, None)
    expected = [(b"%03d" % index, b"old") for index in range(100)]
    assert await tr.get_range(b"", b"\xff") == expected
    assert await tr.get_range(b"", b"\xff", reverse=True) == expected[::-1]
    tr.close()
    await engine.aclose()


async def test_views_are_released(tmp_path):
    engine = await open_at(tmp_path / "kv")
    await put(engine, b"a")
    gc.disable()  # reference counts alone must do it
    try:
        views = []
        for end in ("close", "commit", "drop"):
            tr = engine.transaction()
            await tr.get(b"a")
            views.append(weakref.ref(tr._view))
            if end == "close":
                tr.close()
            elif end == "commit":
                tr.set(b"b", b"x")
                await tr.commit()
            del tr
            await put(engine, b"c")
        assert [view() for view in views] == [None] * 3
    finally:
        gc.enable()
    forgotten = engine.transaction()
    await forgotten.get(b"a")
    await engine.aclose()
    await (await open_at(tmp_path / "kv")).aclose()  # an open transaction does not hold the lock


async def test_commits_go_on_while_a_flush_runs_in_its_thread(tmp_path):
    inline = inline_runtime()
    runtime = Runtime(inline.clock, inline.network, ThreadRunBlocking(), inline.random)
    engine = await open_at(tmp_path / "kv", runtime, group_sync_interval_s=0.001)
    async with trio.open_nursery() as nursery:
        await nursery.start(engine.run)
        for index in range(500):
            await put(engine, b"%d" % index)
        await engine.sync()
        nursery.cancel_scope.cancel()
    assert engine._synced_version == 500
    await engine.aclose()


async def test_a_store_says_how_its_commits_went_and_what_it_takes(tmp_path):
    engine = await open_at(tmp_path / "kv")
    for number in range(3):
        await put(engine, b"a", b"%d" % number)
    one, other = engine.transaction(), engine.transaction()
    for transaction in (one, other):
        await transaction.get(b"a")
        transaction.set(b"a", b"x")
    await one.commit()
    await expect(Status.KV_CONFLICT, other.commit())
    await engine.sync()
    figures = Figures()
    engine.say(figures)
    await engine.aclose()
    said = figures.numbers
    assert said[metrics.KV_STORE_COMMITS][()] == 4
    assert said[metrics.KV_STORE_REFUSED] == {("KV_CONFLICT",): 1}
    assert figures.histograms[metrics.KV_STORE_FLUSHES][()].count >= 1
    assert said[metrics.KV_STORE_BYTES][()] >= said[metrics.KV_STORE_LOG_BYTES][()] > 0


def _rows(*numbers: int) -> list[tuple[bytes, bytes]]:
    return [(b"row-%06d" % i, (b"%06d" % i) * 20) for i in numbers]


def _write_table(db: Rdict, rows: list[tuple[bytes, bytes]]) -> int:
    """Write rows to a table of their own; return the bytes of a block of all tables,
    as they are in memory, on average.
    """
    for key, value in rows:
        db[key] = value
    db.flush()
    properties = db.property_value("rocksdb.aggregated-table-properties")
    found = dict(part.strip().split("=", 1) for part in properties.split(";") if "=" in part)
    raw_bytes = int(found["raw key size"]) + int(found["raw value size"])
    return raw_bytes // int(found["# data blocks"])


async def test_tables_of_larger_blocks_stay_readable(tmp_path, monkeypatch):
    old, new = _rows(*range(0, 2000, 2)), _rows(*range(1, 2000, 2))
    engine = await open_at(tmp_path / "kv")
    await engine.aclose()
    with monkeypatch.context() as patch:
        patch.setattr(rocksdb_store, "BLOCK_BYTES", 8 * KIB)
        db = open_store(str(tmp_path / "kv"))
        assert _write_table(db, old) > 4 * KIB
        db.close()
    db = open_store(str(tmp_path / "kv"))
    assert _write_table(db, new) < 6 * KIB  # half of them of 8 KiB
    db.compact_range(None, None)
    assert _write_table(db, _rows(2000)) < 3 * KIB  # also what was there, by and by
    db.close()
    engine = await open_at(tmp_path / "kv")
    found = await snapshot_read(engine, lambda tr: tr.get_range(b"row-", b"row."))
    assert found == sorted(old + new + _rows(2000))
    await engine.aclose()


async def test_a_commit_is_refused_when_an_open_snapshot_could_not_be_kept(tmp_path):
    """Else the transaction that holds it would see rows of before and after."""
    engine = await open_at(tmp_path / "kv")
    await put(engine, b"a", b"old")
    reader, real_db = engine.transaction(), engine._db
    assert await reader.get(b"a") == b"old"
    reader_view = engine._newest_view
    reader_view._db = FailingDb(real_db, "snapshot", "no memory")
    await expect(Status.IO_ERROR, put(engine, b"a", b"new"))
    assert await reader.get(b"a") == b"old"
    reader_view._db = real_db
    await put(engine, b"a", b"new")
    await put(engine, b"b", b"new")
    assert (await reader.get(b"a"), await reader.get(b"b")) == (b"old", None)
    await engine.aclose()
