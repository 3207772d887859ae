"""What one replica does with one update of one chunk: the rules of CRAQ, as a pure function.

The caller holds the chunk lock, so a pending version found here is a
leftover: nobody is working on it.

Invariants:
    - Versions of a chunk grow by one; the head assigns committed + 1; a removal ends the count.
    - The tail commits first.  So a serving replica's committed version is never above its
      successor's, and a pending version may already be committed, and read, further down: it is
      completed, never rolled back.
    - A syncing replica takes every version its predecessor gives: its own content is not trusted.

Source: deepseek-ai/3FS src/storage/store/ChunkReplica.cc and the CRAQ paper, section
3; changed where a head finds a leftover pending version: 3FS refuses the update, here
the leftover is completed first.
"""

from enum import Enum, IntEnum

import msgspec

from ..chunkengine.api import ChunkState
from ..schema.status import FsError, Status


class UpdateType(IntEnum):
    """Kinds of update; numbers as on the wire."""

    WRITE = 1
    REMOVE = 2
    TRUNCATE = 3
    EXTEND = 4


class Position(Enum):
    """Where in its chain the replica stands, as seen by this update."""

    HEAD = "head"  # the update comes from a client
    INNER = "inner"  # serving; the update comes from the predecessor
    SYNCING = "syncing"


class Action(Enum):
    """What is to be done."""

    EXECUTE = "execute"  # prepare `version`, forward, commit
    RESUME = "resume"  # the very update is pending: forward again, commit
    SETTLE_FIRST = "settle first"  # complete the leftover pending version, then decide again
    DONE = "done"  # it is in effect already: answer success


class UpdateFacts(msgspec.Struct, frozen=True):
    """What of a request matters for the decision."""

    type: UpdateType
    chain_version: int
    version: int = 0
    """0 from a client."""
    is_full_replace: bool = False
    length: int = 0
    """TRUNCATE and EXTEND: the new length in bytes."""
    is_cut: bool = False
    """TRUNCATE: only ever makes the chunk shorter."""
    is_pending_request: bool = False
    """The request is known to be the one that made the pending version."""


class Decision(msgspec.Struct, frozen=True):
    """What to do, and the version it is about."""

    action: Action
    version: int


def decide_update(state: ChunkState | None, facts: UpdateFacts, position: Position) -> Decision:
    """Decide what to do with an update, given what the engine knows of the chunk.

    Raises:
        FsError: ROUTING_MISMATCH if the chunk was committed under a newer chain version;
            MISSING_UPDATE if versions are missing in between; CHUNK_DIVERGED if the
            replicas contradict each other.
    """
    committed = state.commit_ver if state else 0
    if state and facts.chain_version < state.chain_version:
        raise FsError(
            Status.ROUTING_MISMATCH,
            f"chunk committed at chain version {state.chain_version}, update at "
            f"{facts.chain_version}",
        )
    if position is Position.HEAD:
        assert facts.version == 0 and not facts.is_full_replace, facts
        return _decide_at_head(state, facts)
    assert facts.version > 0, facts
    if position is Position.SYNCING:
        return _decide_at_syncing(state, facts)
    if facts.type is UpdateType.REMOVE:
        return _decide_inner_remove(state, facts)
    if facts.version <= committed:
        return Decision(Action.DONE, committed)
    if facts.is_full_replace:
        return Decision(Action.EXECUTE, facts.version)
    return _decide_next(state, facts)


def _decide_at_head(state: ChunkState | None, facts: UpdateFacts) -> Decision:
    committed = state.commit_ver if state else 0
    if state and state.pending_ver:
        return Decision(Action.SETTLE_FIRST, state.pending_ver)
    length = state.length if state else 0
    is_in_effect = {
        UpdateType.WRITE: False,
        UpdateType.REMOVE: state is None,
        UpdateType.TRUNCATE: length == facts.length or (facts.is_cut and length < facts.length),
        UpdateType.EXTEND: length >= facts.length,
    }[facts.type]
    if is_in_effect:
        return Decision(Action.DONE, committed)
    return Decision(Action.EXECUTE, committed + 1)


def _decide_at_syncing(state: ChunkState | None, facts: UpdateFacts) -> Decision:
    if facts.type is UpdateType.REMOVE:
        if state is None:
            return Decision(Action.DONE, 0)
        # The chunk disappears, so the number only has to be one that the engine takes.
        return Decision(Action.EXECUTE, state.commit_ver + 1)
    if not facts.is_full_replace:
        raise FsError(Status.SYNC_REFUSED, "a syncing target takes whole chunks only")
    return Decision(Action.EXECUTE, facts.version)


def _decide_inner_remove(state: ChunkState | None, facts: UpdateFacts) -> Decision:
    if state is None:
        return Decision(Action.DONE, 0)
    if facts.version <= state.commit_ver:
        # Had the removal been executed here, no chunk would be left.
        raise FsError(
            Status.CHUNK_DIVERGED, f"remove {facts.version}, but {state.commit_ver} is committed"
        )
    return _decide_next(state, facts)


def _decide_next(state: ChunkState | None, facts: UpdateFacts) -> Decision:
    committed = state.commit_ver if state else 0
    if facts.version > committed + 1:
        raise FsError(
            Status.MISSING_UPDATE, f"update {facts.version}, but {committed} is committed"
        )
    is_pending = state is not None and state.pending_ver == facts.version
    if is_pending and facts.is_pending_request:
        return Decision(Action.RESUME, facts.version)
    # A pending version of this number by another request was superseded by the predecessor, which
    # only happens after nobody below could have it (write_path, step 9): it is replaced.
    return Decision(Action.EXECUTE, facts.version)
