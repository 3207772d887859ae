"""What replicas tell each other of chunks and of updates: on the wire, and in memory.  Pure."""

from ..chunkengine.api import ChunkState
from ..schema.ids import ChunkId, InodeId
from ..schema.proto import storage_pb2
from .channels import Tag, UpdateResult


def state_to_pb(state: ChunkState) -> storage_pb2.ChunkMetaPb:
    """Return the wire form of a listed chunk."""
    return storage_pb2.ChunkMetaPb(
        inode_id=state.chunk_id.inode_id,
        chunk_index=state.chunk_id.index,
        chain_version=state.chain_version,
        commit_ver=state.commit_ver,
        pending_ver=state.pending_ver,
        length=state.length,
        checksum=state.checksum,
        chunk_size_bytes=state.chunk_size_bytes,
        is_damaged=state.is_damaged,
    )


def state_from_pb(message: storage_pb2.ChunkMetaPb) -> ChunkState:
    """Inverse of `state_to_pb`, as far as it goes: nothing of a pending version but its number."""
    return ChunkState(
        ChunkId(InodeId(message.inode_id), message.chunk_index),
        message.commit_ver,
        message.chain_version,
        message.length,
        message.checksum,
        message.chunk_size_bytes,
        message.pending_ver,
        is_damaged=message.is_damaged,
    )


def result_to_pb(tag: Tag, result: UpdateResult) -> storage_pb2.ChannelResultPb:
    """Return the wire form of what came of an update."""
    return storage_pb2.ChannelResultPb(
        tag=storage_pb2.TagPb(
            client_id=tag.client_id,
            channel_id=tag.channel_id,
            sequence=tag.sequence,
            request_id=tag.request_id,
        ),
        update_ver=result.update_ver,
        chunk_length=result.chunk_length,
        chunk_checksum=result.chunk_checksum,
        inode_id=result.chunk_id.inode_id if result.chunk_id else 0,
        chunk_index=result.chunk_id.index if result.chunk_id else 0,
        is_remove=result.is_remove,
    )


def result_from_pb(message: storage_pb2.ChannelResultPb) -> tuple[Tag, UpdateResult]:
    """Inverse of `result_to_pb`: whose update it was, and what came of it."""
    wire, chunk_id = message.tag, ChunkId(InodeId(message.inode_id), message.chunk_index)
    return Tag(wire.client_id, wire.channel_id, wire.sequence, wire.request_id), UpdateResult(
        message.update_ver,
        message.chunk_length,
        message.chunk_checksum,
        chunk_id if message.inode_id else None,
        message.is_remove,
    )
