"""Committed content of whole chunks, as it is sent to a syncing successor.

Concurrency: the caller holds the chunk's lock on our target.
"""

import xxhash

from ..chunkengine.api import ChunkState
from ..runtime.ports import Buffer
from .context import StorageContext
from .forward import forward
from .outgoing import Outgoing
from .replica import UpdateType
from .target import LocalTarget


async def transfer(
    context: StorageContext,
    target: LocalTarget,
    chain_id: int,
    state: ChunkState,
    *,
    chain_version: int,
    deadline_s: float,
    is_damaged: bool = False,
) -> int:
    """Send the committed content of a chunk to the syncing successor; return the number of bytes.

    With `is_damaged` no bytes are sent: the successor takes the version
    as one whose bytes nobody has.

    Raises:
        FsError: as `forward`; CHECKSUM_MISMATCH if our copy is damaged: it is no source.
    """
    engine, content = target.disk.engine, b""
    if not is_damaged:
        content = await target.disk.run(engine.read_whole, target.target_id, state.chunk_id)
    checksum = xxhash.xxh3_64_intdigest(content)
    await forward(
        context,
        target,
        chain_id,
        outgoing(state, content, checksum, is_damaged=is_damaged),
        as_prepared(state),
        deadline_s=deadline_s,
        only_version=chain_version,
    )
    return len(content)


def outgoing(
    state: ChunkState, content: Buffer, checksum: int, *, is_damaged: bool = False
) -> Outgoing:
    """Return the update that brings a committed version over, whole.

    Args:
        state: of the version.
        content: all of its bytes; none with `is_damaged`.
        checksum: of `content`.
        is_damaged: nobody has its bytes.
    """
    return Outgoing(
        state.chunk_id,
        UpdateType.WRITE,
        state.commit_ver,
        state.chunk_size_bytes,
        length=state.length,
        payload=content,
        payload_checksum=checksum,
        is_whole=True,
        commit_chain_version=state.chain_version,
        chunk_checksum=state.checksum,
        is_damaged=is_damaged,
    )


def as_prepared(state: ChunkState) -> ChunkState:
    """Return a state by which the successor's answer is compared with the committed digest."""
    return ChunkState(
        state.chunk_id,
        state.commit_ver,
        state.chain_version,
        state.length,
        state.checksum,
        state.chunk_size_bytes,
        state.commit_ver,
        False,
        state.length,
        state.checksum,
    )
