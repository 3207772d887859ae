"""A store whose disk does not answer: noticed by a thread,
also while the event loop waits for that disk.
"""

import os
import threading
import time
from types import SimpleNamespace

import pytest
import trio

from fs.kv import disk_watch
from fs.kv.disk_watch import DiskWatch
from fs.kv.rocksdb import RocksDbEngine
from fs.runtime.disk_hang import HANG_FACTOR
from fs.runtime.real import real_runtime
from fs.schema.config import KvSection
from tests.kv.harness import CLUSTER_ID

HANG_S = 0.4


@pytest.fixture
def told(monkeypatch):
    monkeypatch.setattr(disk_watch, "LOOK_INTERVAL_S", 0.02)
    return []


@pytest.fixture
def watch(tmp_path, told):
    """Watched by a thread, as if no device were known: only time counts."""
    made = DiskWatch(str(tmp_path), HANG_S)
    made.open()
    made._judge._stat_paths = []
    thread = threading.Thread(target=made.run, args=(told.append,))
    thread.start()
    yield made
    made.end()
    thread.join(20)
    assert not thread.is_alive()


@pytest.fixture
def hanging(monkeypatch):
    """Writes of probes wait until this is set, as calls to a disk do:
    without the interpreter's lock.
    """
    may_end = threading.Event()

    def pwrite(*args):
        assert may_end.wait(60)
        return os.pwrite(*args)

    monkeypatch.setattr(disk_watch, "os", SimpleNamespace(pwrite=pwrite, close=os.close))
    return may_end


def wait_for(told):
    deadline = time.monotonic() + 20
    while not told:
        assert time.monotonic() < deadline
        time.sleep(0.01)


async def test_a_commit_that_waits_for_its_disk_is_noticed(tmp_path, watch, told, hanging):
    """The event loop stands still meanwhile: only another thread can see it."""
    runtime = real_runtime(None)
    engine = await RocksDbEngine.open(
        str(tmp_path / "kv"), KvSection(), runtime, cluster_id=CLUSTER_ID
    )
    engine.watch = watch
    seen = []

    def free():
        wait_for(told)
        seen.append(engine.version)
        hanging.set()

    freeing = threading.Thread(target=free)
    freeing.start()
    tr = engine.transaction()
    tr.set(b"a", b"1")
    await tr.commit()
    freeing.join()
    assert seen == [0] and HANG_S <= told[0] < 20
    hanging.set()
    await engine.aclose()


def test_a_flush_that_does_not_return_is_noticed(watch, told):
    with watch.under_way("flush"):
        wait_for(told)


@pytest.mark.thorough
async def test_a_flush_hangs_also_while_the_event_loop_serves_reads(
    tmp_path, watch, told, monkeypatch
):
    """What the loop's thread does says nothing of that which flushes;
    the hang was noticed after twelve times the limit.
    """
    may_end = threading.Event()
    engine = await RocksDbEngine.open(
        str(tmp_path / "kv"), KvSection(), real_runtime(None), cluster_id=CLUSTER_ID
    )
    engine.watch = watch
    tr = engine.transaction()
    tr.set(b"a", b"1")
    await tr.commit()
    with monkeypatch.context() as patch:
        patch.setattr(engine._mark, "raise_to", lambda *_args: may_end.wait(60))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(engine.sync)
            with trio.fail_after(60):
                while not told:
                    await trio.lowlevel.checkpoint()  # runs all the time, as if it served
            may_end.set()
    assert HANG_S <= told[0] < HANG_FACTOR * HANG_S / 2
    await engine.aclose()


def test_calls_that_return_are_left_in_peace(watch, told):
    while watch._judge.now_s < 1.5 * HANG_S:
        watch.probe()
        with watch.under_way("flush"):
            time.sleep(0.001)
    assert not told


def test_a_disk_that_refuses_writes_does_not_hang(watch, monkeypatch, told):
    def refuse(*_args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(disk_watch, "os", SimpleNamespace(pwrite=refuse, close=os.close))
    watch.probe()
    assert not watch._began and not told


def test_where_no_probe_can_be_made_there_is_none(tmp_path, hanging):
    watch = DiskWatch(str(tmp_path), HANG_S)
    watch.probe()
    assert not hanging.is_set()
    watch.end()


async def test_every_wait_of_the_engine_for_its_disk_is_looked_after(tmp_path, monkeypatch):
    """Opening is: tests/app/test_store.py."""
    kinds = []
    watch = DiskWatch(str(tmp_path), HANG_S)
    watch.open()
    under_way = watch.under_way
    monkeypatch.setattr(watch, "under_way", lambda what: kinds.append(what) or under_way(what))
    monkeypatch.setattr(watch, "probe", lambda: kinds.append("probe"))
    runtime = real_runtime(None)
    engine = await RocksDbEngine.open(
        str(tmp_path / "kv"), KvSection(), runtime, cluster_id=CLUSTER_ID
    )
    engine.watch = watch
    tr = engine.transaction()
    tr.set(b"a", b"1")
    await tr.commit()
    await engine.sync()
    engine._rotate()
    await engine.aclose()
    assert kinds == ["setting room aside", "probe", "flush", "rotation", "close"]
    watch.end()
