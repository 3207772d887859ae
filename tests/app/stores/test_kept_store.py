"""A store that was there is not made anew in an empty place."""

import os
import subprocess
import sys
import time
from functools import partial

import pytest
import trio

from fs.app.stores import kept_store
from fs.app.stores.kept_store import check_there, mark_path, note_there
from fs.rpc.transport import SocketNetwork
from fs.runtime.config_file import write_config
from fs.runtime.real import real_runtime
from fs.schema.config import KvSection, ProcessConfig, ProcessSection
from fs.schema.status import FsError, Status

RUNTIME = real_runtime(SocketNetwork())


def _config(tmp_path, directory=""):
    process = ProcessSection(
        cluster_id="c",
        listen=f"unix:{tmp_path}/kv.sock",
        directory=directory,
        mgmtd_addresses=["unix:/none"],
    )
    return ProcessConfig(process=process, kv=KvSection(path=str(tmp_path / "disk" / "kv")))


@pytest.mark.parametrize("directory", ["", "node"])
async def test_an_empty_place_is_refused_once_a_store_was_there(tmp_path, directory):
    config = _config(tmp_path, str(tmp_path / directory) if directory else "")
    check_there(config)
    file = tmp_path / "disk" / "kv" / "000004.log"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"records")
    await note_there(config, RUNTIME)
    check_there(config)
    file.unlink()
    with pytest.raises(FsError, match="mount its disk") as caught:
        check_there(config)
    assert caught.value.status is Status.KV_EMPTY
    file.write_bytes(b"restored")
    check_there(config)


async def test_a_store_that_holds_nothing_yet_leaves_no_mark(tmp_path, monkeypatch):
    monkeypatch.setattr(kept_store, "LOOK_INTERVAL_S", 0.01)
    config = _config(tmp_path)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(note_there, config, RUNTIME))
        await trio.sleep(0.1)
        assert not mark_path(config).exists()
        path = tmp_path / "disk" / "kv" / "000004.log"
        path.parent.mkdir(parents=True)
        path.write_bytes(b"records")
    assert mark_path(config).exists()


async def test_a_store_elsewhere_needs_no_mark(tmp_path):
    config = ProcessConfig(kv=KvSection(engine="memory"))
    check_there(config)
    await note_there(config, RUNTIME)
    assert not any(tmp_path.iterdir())


async def test_a_store_serves_also_where_its_mark_cannot_be_written(tmp_path, monkeypatch, caplog):
    """A release that left none ran there, too; the mark comes once it can be written."""
    monkeypatch.setattr(kept_store, "RETRY_S", 0.01)
    config = _config(tmp_path, str(tmp_path / "file" / "below"))
    (tmp_path / "file").write_text("")
    path = tmp_path / "disk" / "kv" / "000004.log"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"records")
    check_there(config)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(note_there, config, RUNTIME)
        await trio.sleep(0.2)
        told = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
        assert len(told) == 1
        assert str(mark_path(config)) in told[0]
        (tmp_path / "file").unlink()
    assert mark_path(config).exists()


def test_a_store_that_is_there_needs_no_look_at_its_mark(tmp_path, monkeypatch):
    config = _config(tmp_path)
    path = tmp_path / "disk" / "kv" / "000004.log"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"records")

    def refuse(_path):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(kept_store.Path, "exists", refuse)
    check_there(config)
    path.unlink()
    with pytest.raises(FsError) as caught:
        check_there(config)
    assert caught.value.status is Status.IO_ERROR


@pytest.mark.slow
def test_a_kv_process_ends_where_its_store_was(tmp_path):
    config, file = _config(tmp_path), tmp_path / "kv.toml"
    write_config(file, config)
    line = [sys.executable, "-P", "-m", "fs.app.kv", str(file)]
    with subprocess.Popen(line, env=os.environ) as first:
        deadline_s = time.monotonic() + 60
        while not (tmp_path / "kv.sock").exists():
            assert time.monotonic() < deadline_s
            time.sleep(0.05)
        first.terminate()
    mark_path(config).touch()
    (tmp_path / "disk" / "kv").rename(tmp_path / "aside")
    refused = subprocess.run(line, capture_output=True, text=True, check=False, timeout=60)
    assert refused.returncode != 0
    assert "KV_EMPTY" in refused.stderr
    assert not (tmp_path / "disk" / "kv").exists()
