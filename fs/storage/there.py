"""What other targets say they hold."""

from ..chunkengine.api import ChunkState
from ..schema import services
from ..schema.ids import ChunkId, TargetId
from ..schema.proto import storage_pb2
from ..schema.routing import Chain
from .chunk_messages import state_from_pb
from .context import StorageContext

CALL_TIMEOUT_S = 10.0


async def list_there(
    context: StorageContext,
    target_id: TargetId,
    after: bytes,
    limit: int,
    *,
    inode_id: int = 0,
    serving_in: Chain | None = None,
    sender_epoch: int = 0,
) -> list[ChunkState]:
    """Return up to `limit` chunks after a packed id, in their order.

    Args:
        context: whose channels are used.
        target_id: whose chunks.
        after: b"": from the first.
        limit: at least 1.
        inode_id: if not 0, of that file only.
        serving_in: the caller serves in this version of this chain, as the target's predecessor.
        sender_epoch: then, the caller's epoch; its earlier updates of the first
            chunk are void after the answer.

    Raises:
        FsError: the target does not answer; ROUTING_MISMATCH, NOT_SERVING, LEASE_EXPIRED:
            it is not in service there.
    """
    received = await context.channel_to(target_id).call(
        services.STORAGE_LIST_CHUNKS,
        storage_pb2.ListChunksReq(
            target_id=target_id,
            after=after,
            chunk_count_max=limit,
            inode_id=inode_id,
            serving_in=_ref(serving_in) if serving_in is not None else None,
            sender_epoch=sender_epoch,
        ),
        timeout_s=CALL_TIMEOUT_S,
    )
    return [state_from_pb(chunk) for chunk in received.message.chunks]


async def state_there(
    context: StorageContext,
    target_id: TargetId,
    chunk_id: ChunkId,
    *,
    serving_in: Chain | None = None,
    sender_epoch: int = 0,
) -> ChunkState | None:
    """Return what a target holds of one chunk; raises as `list_there`."""
    before = chunk_id.index - 1
    after = ChunkId(chunk_id.inode_id, before).pack() if before >= 0 else b""
    listed = await list_there(
        context,
        target_id,
        after,
        1,
        inode_id=chunk_id.inode_id,
        serving_in=serving_in,
        sender_epoch=sender_epoch,
    )
    return next((state for state in listed if state.chunk_id == chunk_id), None)


def _ref(chain: Chain) -> storage_pb2.ChainRefPb:
    return storage_pb2.ChainRefPb(chain_id=chain.chain_id, chain_version=chain.chain_version)
