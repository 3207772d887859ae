"""A metadata log that lacks synced batches is refused, whatever made it shorter."""

import os
import shutil
import struct

import pytest
from xxhash import xxh3_64_hexdigest

from fs.chunkengine import meta_rocksdb
from fs.chunkengine.meta_rocksdb import RocksMetaStore
from fs.runtime.log_mark import MARK_NAME, LogMark, Mark, read_mark
from fs.runtime.rocksdb_log import _crc32c, _masked, trap
from fs.schema.status import FsError


@pytest.fixture
def killed(tmp_path):
    """A store as a killed process leaves it: ten synced batches, then ten that are not."""
    store = RocksMetaStore(tmp_path / "live")
    for n in range(10):
        store.write_synced([(bytes([n]), b"x" * 500)])
    for n in range(10, 20):
        store.write([(bytes([n]), b"x" * 500)])
    shutil.copytree(tmp_path / "live", tmp_path / "meta")
    store.close()
    return tmp_path / "meta"


def log_of(path):
    (log,) = path.glob("*.log")
    return log


def damage(path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 0x10
    path.write_bytes(data)


def keys(path) -> list[int]:
    store = RocksMetaStore(path)
    found = [key[0] for key, _ in store.scan(b"", b"\xff")]
    store.close()
    return found


def test_a_whole_log_is_taken(killed) -> None:
    assert keys(killed) == list(range(20))


def test_a_rotten_byte_before_the_last_sync_is_refused_and_nothing_is_written(killed) -> None:
    damage(log_of(killed), 2000)
    before = {path.name: path.read_bytes() for path in killed.iterdir()}
    for _ in range(2):
        with pytest.raises(FsError, match="synced changes 5 to 11 are missing"):
            RocksMetaStore(killed)
    assert {path.name: path.read_bytes() for path in killed.iterdir()} == before


def test_a_torn_end_after_the_last_sync_is_cut_off(killed) -> None:
    damage(log_of(killed), log_of(killed).stat().st_size - 1000)
    assert keys(killed) == list(range(18))


def test_a_lost_current_file_is_not_a_new_disk(killed) -> None:
    (killed / "CURRENT").unlink()
    with pytest.raises(FsError, match="are missing"):
        RocksMetaStore(killed)


def test_a_log_that_is_lost_before_another_is_missed(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(meta_rocksdb, "SEGMENT_COST_BYTES", 3000)
    live, copy = tmp_path / "live", tmp_path / "meta"
    store = RocksMetaStore(live)
    shutil.copytree(live, copy, ignore=shutil.ignore_patterns("*.log"))  # there are no tables yet
    store.write_synced([(b"a", b"x" * 2000)])
    first = log_of(live)
    os.link(first, copy / first.name)
    store.write([(b"b", b"x" * 2000)])  # ends the first log, which may be gone at once
    store.write_synced([(b"c", b"x" * 100)])
    shutil.copy(max(live.glob("*.log")), copy)
    shutil.copy(live / MARK_NAME, copy)
    store.close()
    whole = shutil.copytree(copy, tmp_path / "whole")
    assert keys(whole) == [97, 98, 99]
    (copy / first.name).unlink()
    with pytest.raises(FsError, match="has lost a log or a table: changes between 0 and 4"):
        RocksMetaStore(copy)


@pytest.mark.parametrize("is_lost", [False, True])
def test_a_list_of_files_that_is_cut_short(killed, is_lost) -> None:
    """Its last record names the table made of the log:
    harmless as long as the log is still there.
    """
    before = {path.name: path.read_bytes() for path in killed.glob("*.log")}
    store = RocksMetaStore(killed)
    store.write([(b"\x20", b"later, so that nothing is missing at the end")])
    crashed = shutil.copytree(killed, killed.parent / "crashed")
    store.close()
    manifest = crashed / (crashed / "CURRENT").read_text().strip()
    record = manifest.read_bytes().index(b"\xff/segment/")
    manifest.write_bytes(manifest.read_bytes()[:record])
    while is_lost is False and before:
        name, data = before.popitem()
        (crashed / name).write_bytes(data)
    if is_lost:
        with pytest.raises(FsError, match=f"{manifest.name} is damaged at byte .* are missing"):
            RocksMetaStore(crashed)
    else:
        assert keys(crashed) == [*range(20), 32]


@pytest.mark.parametrize("is_lost", [False, True])
def test_a_list_of_files_that_is_torn(killed, is_lost) -> None:
    """Only a part of its last record reached the disk when the power failed."""
    before = {path.name: path.read_bytes() for path in killed.glob("*.log")}
    store = RocksMetaStore(killed)
    crashed = shutil.copytree(killed, killed.parent / "crashed")
    store.close()
    manifest = crashed / (crashed / "CURRENT").read_text().strip()
    whole = manifest.read_bytes()
    record = whole.index(b"\xff/segment/")
    manifest.write_bytes(whole[:record] + bytes(len(whole) - record))
    if is_lost:
        with pytest.raises(FsError, match=r"Corruption.*fsck-disk.*an empty disk"):
            RocksMetaStore(crashed)
        return
    for name, data in before.items():
        (crashed / name).write_bytes(data)
    assert keys(crashed) == list(range(20))


def test_a_damaged_mark_demands_nothing_and_is_renewed(killed) -> None:
    damage(killed / MARK_NAME, 3)
    assert read_mark(killed) is None
    assert keys(killed) == list(range(20))
    assert read_mark(killed).change == 21


def test_the_mark_never_falls(tmp_path) -> None:
    mark = LogMark(tmp_path)
    mark.raise_to(7, 2)
    mark.raise_to(5, 3)
    mark.close()
    assert read_mark(tmp_path) == Mark(7, 3)
    assert read_mark(tmp_path / "nowhere") == Mark(0)


def test_a_mark_of_an_earlier_release_is_understood(tmp_path) -> None:
    number = b"%020d" % 7
    line = number + b" " + xxh3_64_hexdigest(number).encode() + b"\n"
    (tmp_path / MARK_NAME).write_bytes(line)
    assert read_mark(tmp_path) == Mark(7)


@pytest.mark.parametrize("name", ["*.log", "MANIFEST-*"])
@pytest.mark.parametrize("is_read_only", [False, True])
def test_a_record_at_which_rocksdb_would_read_for_ever_is_refused(
    killed, name, is_read_only
) -> None:
    (path,) = killed.glob(name)
    data = bytearray(path.read_bytes())
    data[6] ^= 4
    path.write_bytes(data)
    with pytest.raises(FsError, match="is damaged at byte 0, nothing behind it can be read"):
        RocksMetaStore(killed, is_read_only=is_read_only)


def record(payload: bytes, kind: int = 1, *, is_whole: bool = True) -> bytes:
    crc = _masked(_crc32c(bytes([kind]) + payload)) + (not is_whole)
    return struct.pack("<IHB", crc & 0xFFFFFFFF, len(payload), kind) + payload


def test_a_record_that_rocksdb_does_not_come_to_is_no_trap() -> None:
    good, bad, recycled = record(b"x" * 9), record(b"y" * 9, is_whole=False), record(b"z", 5)
    assert trap(good + good) is None
    assert trap(good + recycled) == len(good)
    assert trap(good + recycled[:8]) == len(good)
    assert trap(good + recycled[:6]) is None
    assert trap(bad + recycled) is None
    assert trap(bad + bytes(32768 - len(bad)) + good + recycled) == 32768 + len(good)
    assert trap(good + bytes(100)) is None
