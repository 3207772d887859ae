"""What an earlier release wrote can be opened, and holds what was put in; see `make.py`."""

import tarfile

import pytest

from fs.chunkengine.factory import open_engine
from fs.chunkengine.format import FORMAT_VERSION
from fs.chunkengine.fsck_disk import check_path
from fs.kv import rocksdb_store
from fs.kv.transact import snapshot_read
from fs.schema.status import FsError
from tests.kv.harness import int_value

from . import make


def unpacked(name, directory):
    safely = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}  # Python 3.11.2 has none
    with tarfile.open(make.HERE / f"{name}.tar.xz") as archive:
        archive.extractall(directory / name, **safely)
    return directory / name


def open_disk(path):
    return open_engine(path, cluster_id=make.CLUSTER_ID, node_id=make.NODE_ID, section=make.SECTION)


def check_chunks(engine):
    for index, length in enumerate(make.LENGTHS):
        state = engine.get(make.T, make.chunk(index))
        assert (state.commit_ver, state.chain_version, state.length) == (2, 3, length)
        assert engine.read_whole(make.T, make.chunk(index)) == make.content(index, length)
    last = len(make.LENGTHS) - 1
    assert engine.read_whole(make.U, make.chunk(last)) == make.content(last, make.LENGTHS[-1])
    assert engine.get(make.T, make.chunk(make.REMOVED)) is None
    pending = engine.get(make.T, make.chunk(make.PENDING))
    assert (pending.commit_ver, pending.pending_ver, pending.pending_tag) == (1, 2, b"who")
    damaged = engine.get(make.T, make.chunk(make.DAMAGED))
    assert damaged.is_damaged
    with pytest.raises(FsError, match="CHECKSUM_MISMATCH"):
        engine.read_whole(make.T, make.chunk(make.DAMAGED))
    assert engine.target_ids() == [make.T, make.U]


@pytest.mark.parametrize("version", range(1, FORMAT_VERSION + 1))
def test_a_disk_of_each_format_is_opened_and_used(version, tmp_path):
    path = unpacked(f"disk-{version}", tmp_path)
    engine = open_disk(path)
    check_chunks(engine)
    assert engine.notes(make.T) == ([make.NOTE] if version > 1 else [])
    assert engine.disk_format.format_version == FORMAT_VERSION
    make.put(engine, make.U, 0, 5000)
    engine.close()
    assert not [f.line() for f in check_path(path) if not f.is_notice]
    engine = open_disk(path)
    check_chunks(engine)
    assert engine.read_whole(make.U, make.chunk(0)) == make.content(0, 5000)
    engine.close()


@pytest.mark.parametrize("version", range(1, rocksdb_store.FORMAT_VERSION + 1))
async def test_a_key_value_store_of_each_format_is_opened_and_used(version, tmp_path):
    path = unpacked(f"kv-{version}", tmp_path)
    wanted = dict(make.row(n) for n in range(make.ROW_COUNT) if not 10 <= n < 20)
    for life in range(2):
        engine = await make.open_kv(path)
        assert engine.version == make.KV_VERSION + life
        rows = await snapshot_read(engine, lambda tr: tr.get_range(b"row/", b"row0"))
        assert dict(rows) == wanted
        count = await snapshot_read(engine, lambda tr: tr.get(b"count"))
        stamp = await snapshot_read(engine, lambda tr: tr.get(b"stamp"))
        assert int_value(count) == make.ROW_COUNT
        assert int.from_bytes(stamp[:8], "big") == make.KV_VERSION
        tr = engine.transaction()
        tr.set(b"later", b"")
        await tr.commit()
        await engine.aclose()


def test_there_is_one_of_each_format_and_they_are_small():
    assert sorted(f"{name}.tar.xz" for name in make.MADE) == sorted(
        path.name for path in make.HERE.glob("*.tar.xz")
    )
    assert sum(path.stat().st_size for path in make.HERE.glob("*.tar.xz")) < 200_000
