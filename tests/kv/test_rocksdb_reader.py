"""Reading the embedded store while its process serves it."""

import shutil
import tempfile
import time
from pathlib import Path

import pytest

from fs.kv.rocksdb_reader import RocksDbReader
from fs.kv.transact import snapshot_read
from fs.schema.status import FsError, Status
from tests.kv.harness import CLUSTER_ID, inline_runtime
from tests.kv.test_rocksdb import expect, open_at, put


def everything(engine):
    return snapshot_read(engine, lambda tr: tr.get_range(b"", b"\xff"))


def without_old_logs(path):
    """Wait until RocksDB has removed the log that a flush has made superfluous,
    which it does in the background.
    """
    end_s = time.monotonic() + 60
    while len(list(Path(path).glob("*.log"))) > 1:
        assert time.monotonic() < end_s, "an old log stays"
        time.sleep(0.001)


def files(directory):
    return {p.name: (p.stat().st_mtime_ns, p.stat().st_size) for p in Path(directory).iterdir()}


async def test_one_state_is_read_beside_the_owner_and_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    path = str(tmp_path / "kv")
    engine = await open_at(path)
    for index in range(50):
        await put(engine, b"%03d" % index, b"old")
    engine._db.flush()
    for index in range(50, 100):  # in the log only, and not synced
        await put(engine, b"%03d" % index, b"old")
    without_old_logs(path)
    before = files(path)
    reader = await RocksDbReader.open(path, inline_runtime(), cluster_id=CLUSTER_ID)
    assert files(path) == before
    expected = [(b"%03d" % index, b"old") for index in range(100)]
    assert reader.version == engine.version == 100
    for index in range(0, 100, 2):
        await put(engine, b"%03d" % index, b"new")
    engine._db.flush()
    engine._db.compact_range(None, None)
    assert await everything(reader) == expected
    await expect(Status.READ_ONLY, put(reader, b"1"))
    await reader.aclose()
    assert [one.name for one in tmp_path.iterdir()] == ["kv"]
    await put(engine, b"100", b"new")
    reader = await RocksDbReader.open(path, inline_runtime(), cluster_id=CLUSTER_ID)
    assert len(await everything(reader)) == 101
    await reader.aclose()
    await engine.aclose()


async def test_files_that_go_while_they_are_opened_are_looked_for_again(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    path = tmp_path / "kv"
    engine = await open_at(path)
    await put(engine, b"1")
    gone = path / "000999.sst"
    tries = []
    real = Path.symlink_to

    def link(self, target):
        tries.append(self.name)
        if self.name.startswith("MANIFEST") and tries.count(self.name) == 1:
            target = gone  # as if it had been replaced meanwhile
        real(self, target)

    monkeypatch.setattr(Path, "symlink_to", link)
    reader = await RocksDbReader.open(str(path), inline_runtime(), cluster_id=CLUSTER_ID)
    assert tries.count("CURRENT") == 2
    assert await everything(reader) == [(b"1", b"x")]
    await reader.aclose()
    await engine.aclose()


async def test_a_log_that_rocksdb_would_read_for_ever_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    engine = await open_at(str(tmp_path / "kv"))
    await put(engine, b"1")
    shutil.copytree(tmp_path / "kv", tmp_path / "rotten")
    await engine.aclose()
    (log,) = (tmp_path / "rotten").glob("*.log")
    data = bytearray(log.read_bytes())
    data[6] ^= 4
    log.write_bytes(data)
    with pytest.raises(FsError, match=f"{log} is damaged at byte 0") as caught:
        await RocksDbReader.open(str(log.parent), inline_runtime(), cluster_id=CLUSTER_ID)
    assert caught.value.status is Status.KV_DAMAGED
    assert sorted(one.name for one in tmp_path.iterdir()) == ["kv", "rotten"]


async def test_a_store_of_another_cluster_and_no_store_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    path = str(tmp_path / "kv")
    await (await open_at(path)).aclose()
    with pytest.raises(FsError, match="KV_BAD_FORMAT"):
        await RocksDbReader.open(path, inline_runtime(), cluster_id="another")
    (tmp_path / "empty").mkdir()
    with pytest.raises(FsError):
        await RocksDbReader.open(str(tmp_path / "empty"), inline_runtime(), cluster_id=CLUSTER_ID)
    assert sorted(one.name for one in tmp_path.iterdir()) == ["empty", "kv"]
