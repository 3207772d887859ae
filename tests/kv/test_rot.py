"""A store that lost synced commits is refused, with nothing written;
and a short form of `rot.py`.
"""

import contextlib
import os
import shutil
import sys

import pytest
import trio

from fs.kv import rocksdb as engine_module
from fs.kv import rocksdb_store
from fs.runtime import rocksdb_log
from fs.runtime.log_mark import MARK_NAME, read_mark
from fs.runtime.log_segments import NOTHING_HELD
from fs.runtime.manifest_end import cut_torn_manifest
from fs.schema.status import FsError, Status
from tests.kv import rot

pytestmark = pytest.mark.thorough

CUT = """
import fcntl, sys; from pathlib import Path
from fs.runtime.manifest_end import cut_torn_manifest
path = Path(sys.argv[1])
print(cut_torn_manifest(path, lambda path: 1 / 0))
fcntl.lockf((path / "LOCK").open("ab"), fcntl.LOCK_EX | fcntl.LOCK_NB)
"""


def copy_live(source, target, **options):
    """Copy the folder of an open store, which deletes files that it needs no more meanwhile."""

    def copy(old, new):
        with contextlib.suppress(FileNotFoundError):
            shutil.copy2(old, new)

    shutil.copytree(source, target, copy_function=copy, **options)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    path = tmp_path_factory.mktemp("rot") / "saved"
    rot.make_store(path, is_killed=True)
    return path


@pytest.fixture
def without_compaction(monkeypatch):
    """The store keeps every table that it wrote: what is copied while it is open fits together."""
    make_options = rocksdb_store._options

    def options():
        made = make_options()
        made.set_disable_auto_compactions(True)
        return made

    monkeypatch.setattr(rocksdb_store, "_options", options)


@pytest.fixture
def killed(saved, tmp_path):
    """A store of three lives, the last one killed; its last 20 commits are not synced."""
    shutil.copytree(saved, tmp_path / "kv")
    return tmp_path / "kv"


def live_log(path):
    return max(path.glob("*.log"))


def damage(path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 0x10
    path.write_bytes(data)


def version_of(path) -> int:
    async def look() -> int:
        engine = await rot.open_at(path)
        await engine.aclose()
        return engine.version

    return trio.run(look)


def refusal(path) -> str:
    before = {entry.name: entry.read_bytes() for entry in path.iterdir()}
    with pytest.raises(FsError) as caught:
        version_of(path)
    assert caught.value.status is Status.KV_DAMAGED, caught.value
    assert {entry.name: entry.read_bytes() for entry in path.iterdir()} == before
    return caught.value.detail


def test_the_mark_follows_the_syncs(killed):
    assert read_mark(killed).change == rot.SYNCED_COUNT
    assert version_of(killed) == rot.COMMIT_COUNT
    assert read_mark(killed).change == rot.COMMIT_COUNT


def test_a_rotten_byte_among_synced_commits_is_refused(killed):
    log = live_log(killed)
    damage(log, 500)
    for _ in range(2):
        detail = refusal(killed)
        assert f"{log} is damaged at byte" in detail
        assert f"to {rot.SYNCED_COUNT} are missing" in detail
        assert f"remove {killed / MARK_NAME}" in detail
    (killed / MARK_NAME).unlink()  # the remedy
    version = version_of(killed)
    assert version < rot.SYNCED_COUNT
    assert version_of(killed) == version


def test_a_rotten_byte_after_the_last_sync_cuts_off_the_end(killed):
    log = live_log(killed)
    damage(log, log.stat().st_size - 10)
    assert version_of(killed) == rot.COMMIT_COUNT - 1


@pytest.mark.parametrize("has_logs", [True, False])
def test_a_lost_current_is_not_a_new_store(killed, has_logs):
    (killed / "CURRENT").unlink()
    if not has_logs:
        for log in killed.glob("*.log"):
            log.unlink()
    detail = refusal(killed)
    assert f"{killed / 'CURRENT'} is lost" in detail
    assert f"1 to {rot.SYNCED_COUNT} are missing" in detail


def _within_record(manifest: bytes, place: int) -> int:
    """Return an offset that a record lies across, of the one at `place`:
    a list that ends where a record does looks whole.
    """
    start = 0
    while True:  # each begins with a checksum, its length, its type
        end = start + 7 + int.from_bytes(manifest[start + 4 : start + 6], "little")
        if end > place:
            return start + 8
        start = end


def test_a_torn_list_of_files_is_refused(killed):
    (manifest,) = killed.glob("MANIFEST-*")
    # Not the last record alone: it may be of a compaction that was under
    # way, which nothing synced needs.
    with manifest.open("r+b") as file:
        file.truncate(_within_record(manifest.read_bytes(), manifest.stat().st_size // 3))
    assert f"{manifest} is damaged at byte" in refusal(killed)


@pytest.mark.parametrize("is_lost", [False, True])
@pytest.mark.usefixtures("without_compaction")
def test_a_list_of_files_cut_short_in_the_record_of_a_new_table(killed, is_lost):
    """As a power loss may leave it, and as it must not be:
    the logs that the table was made of are deleted.
    """
    crashed = killed.parent / "crashed"
    logs = {path.name: path.read_bytes() for path in killed.glob("*.log")}

    async def write() -> None:
        engine = await rot.open_at(killed)
        tr = engine.transaction()
        tr.set(*rot.row(rot.COMMIT_COUNT + 1))
        await tr.commit()
        copy_live(killed, crashed)
        await engine.aclose()

    trio.run(write)
    manifest = crashed / (crashed / "CURRENT").read_text().strip()
    data = manifest.read_bytes()
    manifest.write_bytes(data[: data.rindex(b"\xff/version") - 20])
    if is_lost:
        assert f"{manifest} is damaged at byte" in refusal(crashed)
        return
    for name, log in logs.items():
        (crashed / name).write_bytes(log)
    assert version_of(crashed) == rot.COMMIT_COUNT + 1


@pytest.mark.usefixtures("without_compaction")
@pytest.mark.parametrize("is_lost", [False, True])
def test_a_list_of_files_torn_within_the_record_of_a_new_table(killed, is_lost):
    """A power loss wrote a part of the record, which RocksDB refuses;
    it is cut off, if the logs are there.
    """
    crashed = killed.parent / "crashed"
    logs = {path.name: path.read_bytes() for path in killed.glob("*.log")}

    async def write() -> None:
        engine = await rot.open_at(killed)
        copy_live(killed, crashed)
        await engine.aclose()

    trio.run(write)
    manifest = crashed / (crashed / "CURRENT").read_text().strip()
    data = manifest.read_bytes()
    at = data.rindex(b"\xff/version")
    manifest.write_bytes(data[:at] + bytes(len(data) - at))
    if is_lost:
        assert f"{manifest} is damaged at byte" in refusal(crashed)
        return
    for name, log in logs.items():
        (crashed / name).write_bytes(log)
    assert version_of(crashed) == rot.COMMIT_COUNT
    assert (crashed / f"torn-{manifest.name}").stat().st_size == len(data)
    assert version_of(crashed) == rot.COMMIT_COUNT


@pytest.mark.usefixtures("without_compaction")
def test_a_rotten_end_of_the_list_of_files_is_not_taken_for_a_torn_one(killed):
    """The mark may be from before the power loss (log_mark.py):
    only bytes that were never written tell of a torn record.
    """
    assert version_of(killed) == rot.COMMIT_COUNT
    manifest = killed / (killed / "CURRENT").read_text().strip()
    (killed / MARK_NAME).write_bytes(b"")
    data = manifest.read_bytes()
    last = rocksdb_log.first_bad_byte(data[:-1])  # that no log is needed any more
    manifest.write_bytes(data[:last])
    damage(manifest, data.rindex(b"\xff/version"))
    with pytest.raises(FsError, match=f"{manifest} may be corrupted"):
        version_of(killed)
    assert manifest.stat().st_size == last


@pytest.mark.usefixtures("without_compaction")
def test_a_damaged_list_of_files_with_whole_records_behind_is_refused(killed):
    (manifest,) = killed.glob("MANIFEST-*")
    damage(manifest, 30)
    assert f"{manifest} is damaged at byte 0" in refusal(killed)


def test_the_list_of_files_of_an_open_store_is_not_cut(killed):
    """Neither by another process nor by its own,
    which would also lose RocksDB's lock if it closed that file.
    """

    async def look() -> None:
        engine = await rot.open_at(killed)
        (manifest,) = killed.glob("MANIFEST-*")
        size = manifest.stat().st_size
        with manifest.open("ab") as file:
            file.write(b"\x01" * 100 + bytes(1024))
        assert not cut_torn_manifest(killed, lambda _path: NOTHING_HELD)
        command = [sys.executable, "-c", CUT, str(killed)]
        tried = await trio.run_process(
            command, check=False, capture_stdout=True, capture_stderr=True
        )
        assert tried.stdout == b"False\n"
        assert b"BlockingIOError" in tried.stderr, "RocksDB's lock is gone"
        os.truncate(manifest, size)
        await engine.aclose()

    trio.run(look)


@pytest.mark.parametrize("name", ["*.log", "MANIFEST-*"])
def test_a_record_at_which_rocksdb_would_read_for_ever_is_refused(killed, name):
    """One changed bit makes it one of a recycled log."""
    path = max(killed.glob(name))
    data = bytearray(path.read_bytes())
    assert data[6] == 1
    data[6] ^= 4
    path.write_bytes(data)
    assert f"{path} is damaged at byte 0" in refusal(killed)


def test_a_lost_list_of_files_is_refused(killed):
    (manifest,) = killed.glob("MANIFEST-*")
    manifest.unlink()
    assert manifest.name in refusal(killed)


@pytest.mark.usefixtures("without_compaction")
@pytest.mark.parametrize("kept", [1, 2])
def test_a_log_lost_before_others_is_missed(tmp_path, monkeypatch, kept):
    """The list of files is as it was before the first rotation; only the newest logs are there."""
    monkeypatch.setattr(engine_module, "ROTATE_COST_BYTES", 5000)
    path, copy = tmp_path / "kv", tmp_path / "copy"

    async def write() -> None:
        engine = await rot.open_at(path)
        copy_live(path, copy, ignore=shutil.ignore_patterns("*.log"))
        logs = {}
        for number in range(1, 11):
            tr = engine.transaction()
            tr.set(*rot.row(number))
            await tr.commit()
            if number in {7, 10}:
                logs[live_log(path).name] = live_log(path).read_bytes()
        await engine.sync()
        assert len(logs) == 2
        for name in sorted(logs)[-kept:]:
            (copy / name).write_bytes(logs[name])
        shutil.copy(path / MARK_NAME, copy)
        await engine.aclose()

    trio.run(write)
    assert f"{copy} has lost a log or a table: changes between 0 and" in refusal(copy)
    (copy / MARK_NAME).unlink()
    with pytest.raises(FsError, match="no format record"):
        version_of(copy)


def test_a_damaged_mark_demands_nothing_and_is_renewed(killed):
    damage(killed / MARK_NAME, 3)
    assert version_of(killed) == rot.COMMIT_COUNT
    assert read_mark(killed).change == rot.COMMIT_COUNT


@pytest.mark.slow
def test_rot_loses_nothing_silently(tmp_path):
    outcome = rot.run_seed(1, 1, tmp_path)
    assert outcome["flip"] == outcome["remove"] == outcome["halve"] >= 8


@pytest.mark.slow
def test_without_the_mark_rot_loses_silently(monkeypatch, saved, tmp_path):
    shutil.copytree(saved, tmp_path / "kv")
    damage(live_log(tmp_path / "kv"), 500)
    monkeypatch.setattr(rocksdb_store, "missing_changes", lambda *_: None)
    with pytest.raises(AssertionError, match="silently lost"):
        trio.run(rot.judge, tmp_path / "kv", rot.SYNCED_COUNT)
