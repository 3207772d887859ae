"""Listing the chunks of a file: what was removed of others is not passed over,
since all others wait meanwhile.
"""

import pytest
from rocksdict import ReadOptions

from fs.chunkengine.factory import open_engine
from fs.schema.config import StorageSection
from fs.schema.ids import ChunkId, InodeId, TargetId
from fs.schema.status import FsError

from .workload import CHUNK_SIZE_BYTES

T = TargetId(1)
SKIPPED_MAX = 8


class FewSkips:
    """A store in which a cursor fails that passes over more than a few deleted rows."""

    def __init__(self, db) -> None:
        self._db = db

    def iter(self, options=None):
        options = options or ReadOptions()
        options.set_max_skippable_internal_keys(SKIPPED_MAX)
        return self._db.iter(options)

    def __getattr__(self, name):
        return getattr(self._db, name)


@pytest.fixture
def engine(tmp_path):
    engine = open_engine(tmp_path / "disk", cluster_id="c", node_id=1, section=StorageSection())
    yield engine
    engine.close()


def put(engine, inode_id, index=0):
    chunk = T, ChunkId(InodeId(inode_id), index)
    engine.prepare_write(
        *chunk, version=1, chunk_size_bytes=CHUNK_SIZE_BYTES, offset=0, data=b"bytes"
    )
    engine.commit(*chunk, version=1, chain_version=3)


def remove(engine, inode_id):
    chunk = T, ChunkId(InodeId(inode_id), 0)
    engine.prepare_remove(*chunk, version=2)
    engine.commit(*chunk, version=2, chain_version=3)


def test_chunks_of_other_files_that_were_removed_are_not_passed_over(engine, monkeypatch):
    for inode_id in range(1, 80):
        put(engine, inode_id)
    put(engine, 40, 3)
    for inode_id in range(1, 80):
        if inode_id != 40:
            remove(engine, inode_id)
    assert [state.chunk_id.inode_id for state in engine.list_chunks(T)] == [40, 40]
    meta = engine._meta
    monkeypatch.setattr(meta, "_db", FewSkips(meta._db))
    assert [state.chunk_id.index for state in engine.list_file(T, 40)] == [0, 3]
    assert engine.last_chunk(T, 40).chunk_id.index == 3
    for gone in (20, 60):
        assert engine.list_file(T, gone) == [] and engine.last_chunk(T, gone) is None
    with pytest.raises(FsError, match="skipped"):  # which ends the use of this disk
        engine.list_chunks(T)
