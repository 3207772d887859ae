"""Good bytes for a version whose copy here is bad, from whoever has them;
and what to do when nobody has.

A version is named by its length and digest, so the state of the target that hands the bytes over
does not matter: a waiting, syncing or offline one, or one that left the chain's service long ago,
may have the last good copy.  Bytes are taken only if they match the digest of our own record, so a
repair can only ever restore what was there.

Concurrency: the caller holds the chunk's lock on our target, so the version cannot move meanwhile.
"""

import logging
from enum import Enum
from typing import Final

from ..chunkengine.api import ChunkState
from ..schema import services
from ..schema.ids import ChunkId, InodeId, TargetId
from ..schema.proto import storage_pb2
from ..schema.status import FsError, Status
from .context import StorageContext
from .target import LocalTarget
from .targets import Place

log = logging.getLogger(__name__)

FETCH_TIMEOUT_S: Final = 10.0


class Repaired(Enum):
    """What came of trying to repair a copy."""

    YES = "yes"
    LATER = "later"  # somebody who may have the bytes did not answer
    NOBODY_HAS_IT = "nobody has it"


async def repair_copy(context: StorageContext, place: Place, state: ChunkState) -> Repaired:
    """Write the committed version's bytes anew from another target of the chain.

    Raises:
        FsError: of our own disk.
    """
    target = place.target
    data, have_all_answered = await find_bytes(
        context, place, state.chunk_id, state.length, state.checksum
    )
    if data is not None and await target.disk.run(
        lambda: target.disk.engine.repair(
            target.target_id, state.chunk_id, version=state.commit_ver, data=data
        )
    ):
        target.repaired_count += 1
        return Repaired.YES
    return Repaired.NOBODY_HAS_IT if have_all_answered else Repaired.LATER


async def find_bytes(
    context: StorageContext, place: Place, chunk_id: ChunkId, length: int, checksum: int
) -> tuple[memoryview | None, bool]:
    """Return (the content of this length and digest from any member of the chain,
    whether all have answered).

    Whoever answers that he has it, has verified it; the caller's engine compares it once more.
    """
    have_all_answered = True
    for member in place.chain.targets:
        if member.target_id == place.target.target_id:
            continue
        try:
            data = await _fetch(context, member.target_id, chunk_id, length, checksum)
        except FsError as error:
            if error.status not in {Status.CHUNK_NOT_FOUND, Status.CHECKSUM_MISMATCH}:
                log.info("target %d chunk %s: not asked: %s", member.target_id, chunk_id, error)
                have_all_answered = False
            continue
        log.warning(
            "target %d chunk %s: good bytes found at target %d",
            place.target.target_id,
            chunk_id,
            member.target_id,
        )
        return data, True
    return None, have_all_answered


async def _fetch(
    context: StorageContext, other: TargetId, chunk_id: ChunkId, length: int, checksum: int
) -> memoryview:
    received = await context.channel_to(other).call(
        services.STORAGE_FETCH_COPY,
        storage_pb2.FetchCopyReq(
            target_id=other,
            inode_id=chunk_id.inode_id,
            chunk_index=chunk_id.index,
            length=length,
            checksum=checksum,
        ),
        timeout_s=FETCH_TIMEOUT_S,
    )
    if received.payload_bytes != length:
        raise FsError(Status.RPC_BAD_FRAME, f"target {other}: {received.payload_bytes} bytes")
    return received.payload


async def read_copy(target: LocalTarget, request: storage_pb2.FetchCopyReq) -> bytes:
    """Return a version's whole content if it is here and whole, committed or pending,
    whatever our state.

    Raises:
        FsError: CHUNK_NOT_FOUND for another version, CHECKSUM_MISMATCH for damaged bytes; IO_ERROR.
    """
    engine, chunk_id = target.disk.engine, ChunkId(InodeId(request.inode_id), request.chunk_index)
    state = target.disk.run_inline(engine.get, target.target_id, chunk_id)
    wanted, version = (request.length, request.checksum), 0
    if state is not None and state.commit_ver and (state.length, state.checksum) == wanted:
        version = state.commit_ver
    elif state is not None and (state.pending_length, state.pending_checksum) == wanted:
        version = state.pending_ver if not state.pending_is_remove else 0
    if not version:
        raise FsError(Status.CHUNK_NOT_FOUND, f"target {target.target_id} {chunk_id}: not this one")
    async with target.disk.read_limiter:
        data: bytes = await target.disk.run(
            lambda: engine.read_whole(target.target_id, chunk_id, version=version)
        )
    if len(data) != request.length:  # updated between the two looks
        raise FsError(Status.CHUNK_NOT_FOUND, f"target {target.target_id} {chunk_id}: moved on")
    return data
