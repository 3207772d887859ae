from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fs.chunkengine.api import ChunkState
from fs.schema.ids import ChunkId, InodeId
from fs.schema.status import FsError, Status
from fs.storage.replica import (
    Action,
    Decision,
    Position,
    UpdateFacts,
    UpdateType,
    decide_update,
)

ID = ChunkId(InodeId(5), 0)


def chunk(commit_ver, pending_ver=0, chain_version=3, length=100):
    return ChunkState(ID, commit_ver, chain_version, length, 1, 65536, pending_ver)


def facts(version=0, kind=UpdateType.WRITE, **more):
    return UpdateFacts(kind, more.pop("chain_version", 4), version, **more)


TABLE = [
    # state, facts, position, outcome
    (None, facts(), Position.HEAD, (Action.EXECUTE, 1)),
    (chunk(4), facts(), Position.HEAD, (Action.EXECUTE, 5)),
    (chunk(4, 5), facts(), Position.HEAD, (Action.SETTLE_FIRST, 5)),
    (chunk(0, 1, 0, 0), facts(), Position.HEAD, (Action.SETTLE_FIRST, 1)),
    (None, facts(kind=UpdateType.REMOVE), Position.HEAD, (Action.DONE, 0)),
    (chunk(4), facts(kind=UpdateType.REMOVE), Position.HEAD, (Action.EXECUTE, 5)),
    (chunk(4), facts(kind=UpdateType.TRUNCATE, length=100), Position.HEAD, (Action.DONE, 4)),
    (chunk(4), facts(kind=UpdateType.TRUNCATE, length=99), Position.HEAD, (Action.EXECUTE, 5)),
    (None, facts(kind=UpdateType.TRUNCATE), Position.HEAD, (Action.DONE, 0)),
    (chunk(4), facts(kind=UpdateType.EXTEND, length=7), Position.HEAD, (Action.DONE, 4)),
    (chunk(4), facts(kind=UpdateType.EXTEND, length=100), Position.HEAD, (Action.DONE, 4)),
    (chunk(4), facts(kind=UpdateType.EXTEND, length=101), Position.HEAD, (Action.EXECUTE, 5)),
    (chunk(4), facts(chain_version=2), Position.HEAD, Status.ROUTING_MISMATCH),
    (None, facts(1), Position.INNER, (Action.EXECUTE, 1)),
    (None, facts(2), Position.INNER, Status.MISSING_UPDATE),
    (chunk(4), facts(3), Position.INNER, (Action.DONE, 4)),
    (chunk(4), facts(4), Position.INNER, (Action.DONE, 4)),
    (chunk(4), facts(5), Position.INNER, (Action.EXECUTE, 5)),
    (chunk(4, 5), facts(5), Position.INNER, (Action.EXECUTE, 5)),
    (chunk(4, 5), facts(5, is_pending_request=True), Position.INNER, (Action.RESUME, 5)),
    (chunk(4, 5), facts(6), Position.INNER, Status.MISSING_UPDATE),
    (chunk(4), facts(6), Position.INNER, Status.MISSING_UPDATE),
    (chunk(4), facts(4, is_full_replace=True), Position.INNER, (Action.DONE, 4)),
    (chunk(4, 5), facts(5, is_full_replace=True), Position.INNER, (Action.EXECUTE, 5)),
    (None, facts(5, UpdateType.REMOVE), Position.INNER, (Action.DONE, 0)),
    (chunk(4), facts(5, UpdateType.REMOVE), Position.INNER, (Action.EXECUTE, 5)),
    (chunk(5), facts(5, UpdateType.REMOVE), Position.INNER, Status.CHUNK_DIVERGED),
    (chunk(9, 10), facts(2, is_full_replace=True), Position.SYNCING, (Action.EXECUTE, 2)),
    (None, facts(9, is_full_replace=True), Position.SYNCING, (Action.EXECUTE, 9)),
    (chunk(4), facts(5), Position.SYNCING, Status.SYNC_REFUSED),
    (chunk(4), facts(1, UpdateType.REMOVE), Position.SYNCING, (Action.EXECUTE, 5)),
    (None, facts(1, UpdateType.REMOVE), Position.SYNCING, (Action.DONE, 0)),
]


@pytest.mark.parametrize(("state", "request_facts", "position", "expected"), TABLE)
def test_the_rules(state, request_facts, position, expected):
    if isinstance(expected, Status):
        with pytest.raises(FsError) as caught:
            decide_update(state, request_facts, position)
        assert caught.value.status is expected
    else:
        assert decide_update(state, request_facts, position) == Decision(*expected)


def outcome(state, request_facts, position):
    try:
        return decide_update(state, request_facts, position)
    except FsError as error:
        return error.status


@given(
    commit_ver=st.integers(0, 6),
    has_pending=st.booleans(),
    version=st.integers(1, 8),
    kind=st.sampled_from(UpdateType),
    is_full=st.booleans(),
)
def test_a_serving_replica_advances_by_one_and_never_goes_back(
    commit_ver, has_pending, version, kind, is_full
):
    state = chunk(commit_ver, commit_ver + 1 if has_pending else 0)
    if commit_ver == 0 and not has_pending:
        state = None
    is_full = is_full and kind is UpdateType.WRITE
    found = outcome(state, facts(version, kind, is_full_replace=is_full), Position.INNER)
    if isinstance(found, Decision) and found.action in {Action.EXECUTE, Action.RESUME}:
        assert found.version == version > commit_ver
        assert is_full or found.version == commit_ver + 1
    if isinstance(found, Decision) and found.action is Action.DONE:
        assert version <= commit_ver or kind is UpdateType.REMOVE


def test_a_head_touches_no_chunk_with_a_leftover():
    for commit_ver, kind in product(range(4), UpdateType):
        state = chunk(commit_ver, commit_ver + 1)
        found = outcome(state, facts(kind=kind), Position.HEAD)
        assert found == Decision(Action.SETTLE_FIRST, commit_ver + 1)
