"""A metadata log that lacks synced batches is refused, whatever made it shorter."""

import shutil

import pytest

from fs.chunkengine.meta_rocksdb import RocksMetaStore
from fs.runtime.log_mark import MARK_NAME, LogMark, read_mark
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
        with pytest.raises(FsError, match="synced changes 4 to 10 are missing"):
            RocksMetaStore(killed)
    assert {path.name: path.read_bytes() for path in killed.iterdir()} == before


def test_a_torn_end_after_the_last_sync_is_cut_off(killed) -> None:
    damage(log_of(killed), log_of(killed).stat().st_size - 1000)
    assert keys(killed) == list(range(18))


def test_a_lost_current_file_is_not_a_new_disk(killed) -> None:
    (killed / "CURRENT").unlink()
    with pytest.raises(FsError, match="are missing"):
        RocksMetaStore(killed)


def test_a_damaged_mark_demands_nothing_and_is_renewed(killed) -> None:
    damage(killed / MARK_NAME, 3)
    assert read_mark(killed) is None
    assert keys(killed) == list(range(20))
    assert read_mark(killed) == 20


def test_the_mark_never_falls(tmp_path) -> None:
    mark = LogMark(tmp_path)
    mark.raise_to(7)
    mark.raise_to(5)
    mark.close()
    assert read_mark(tmp_path) == 7
    assert read_mark(tmp_path / "nowhere") == 0
