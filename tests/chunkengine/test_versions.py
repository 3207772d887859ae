"""Which version a caller gets to read, and what is said of a chunk
with one version, two, or none.
"""

from types import SimpleNamespace

import pytest
from msgspec.structs import replace

from fs.chunkengine.format import ChunkRecord, PendingRecord, Position, chunk_key
from fs.chunkengine.versions import find_version, state_of
from fs.schema.ids import ChunkId, InodeId, TargetId
from fs.schema.status import FsError, Status

TARGET, CHUNK = TargetId(1), ChunkId(InodeId(7), 0)
KEY = chunk_key(TARGET, CHUNK)
COMMITTED = ChunkRecord(4, 3, Position(9), 11, 65536, 100, b"")
PENDING = PendingRecord(ChunkRecord(5, 0, Position(10), 12, 131072, 200, b""), False, b"tag")
REMOVAL = replace(PENDING, is_remove=True)


def find(record, pending, version):
    ledger = SimpleNamespace(
        record=lambda _: record, pendings={} if pending is None else {KEY: pending}
    )
    return find_version(ledger, TARGET, CHUNK, version)


@pytest.mark.parametrize("version", [0, 1, 4])
@pytest.mark.parametrize("pending", [None, PENDING, REMOVAL])
def test_a_committed_version_as_new_as_asked_for_is_read(pending, version):
    assert find(COMMITTED, pending, version) is COMMITTED


@pytest.mark.parametrize("record", [None, COMMITTED])
def test_a_pending_version_is_read_only_by_its_number(record):
    assert find(record, PENDING, 5) is PENDING.record


@pytest.mark.parametrize(
    ("record", "pending", "version", "status"),
    [
        (None, None, 0, Status.CHUNK_NOT_FOUND),
        (None, None, 1, Status.CHUNK_NOT_FOUND),
        (None, PENDING, 0, Status.CHUNK_NOT_FOUND),
        (None, PENDING, 4, Status.CHUNK_NOT_FOUND),
        (COMMITTED, None, 5, Status.MISSING_UPDATE),
        (COMMITTED, PENDING, 6, Status.MISSING_UPDATE),
        (COMMITTED, REMOVAL, 5, Status.CHUNK_NOT_FOUND),
    ],
)
def test_what_is_not_there_is_told_apart(record, pending, version, status):
    found = find(record, pending, version)
    assert isinstance(found, FsError)
    assert found.status is status


def test_the_state_of_a_chunk_names_both_versions():
    assert state_of(KEY, None, None) is None
    both = state_of(KEY, COMMITTED, PENDING)
    assert (both.commit_ver, both.chain_version, both.length, both.checksum) == (4, 3, 100, 11)
    assert (both.pending_ver, both.pending_length, both.pending_checksum) == (5, 200, 12)
    assert (both.chunk_size_bytes, both.pending_is_remove, both.pending_tag) == (
        65536,
        False,
        b"tag",
    )


def test_the_state_of_a_chunk_without_a_version_of_one_kind_says_zero():
    new = state_of(KEY, None, PENDING)
    assert (new.commit_ver, new.chain_version, new.length, new.checksum) == (0, 0, 0, 0)
    assert (new.chunk_size_bytes, new.is_damaged) == (131072, False)
    old = state_of(KEY, replace(COMMITTED, is_damaged=True), None)
    assert (old.pending_ver, old.pending_length, old.pending_checksum) == (0, 0, 0)
    assert (old.is_damaged, old.pending_is_remove, old.pending_tag) == (True, False, b"")
