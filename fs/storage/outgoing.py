"""An update on its way to the successor, as a part of its chunk
or as the chunk's whole new content.
"""

from collections.abc import Sequence

import msgspec
import xxhash

from ..chunkengine.api import ChunkState
from ..chunkengine.ranges import Range
from ..runtime.ports import Buffer
from ..schema.ids import ChunkId
from ..schema.proto import storage_pb2
from .channels import Tag
from .replica import UpdateType
from .target import LocalTarget
from .targets import Place
from .update_ranges import put_ranges
from .update_request import Update


class Outgoing(msgspec.Struct):
    """An update as its sender knows it."""

    chunk_id: ChunkId
    type: UpdateType
    version: int
    chunk_size_bytes: int
    offset: int = 0
    length: int = 0
    payload: Buffer = b""
    payload_checksum: int = 0
    tag: Tag | None = None
    is_whole: bool = False
    """The payload is the chunk's whole new content."""
    commit_chain_version: int = 0
    """0: the chain version under which it is committed."""
    chunk_checksum: int = 0
    """With is_damaged: the digest of the content that nobody has; `length` is its length."""
    is_damaged: bool = False
    is_durable: bool = False
    """Everybody below is to flush it before the answer, if that is quick."""
    is_found: bool = False
    """The payload comes from another target, since our own copy is bad."""
    ranges: Sequence[Range] = ()
    """Not empty: the payload goes there, piece by piece."""


def outgoing_of(update: Update, version: int) -> Outgoing:
    """Return an update of a client or of the predecessor as it is passed on."""
    request = update.request
    return Outgoing(
        update.chunk_id,
        update.kind,
        version,
        request.chunk_size_bytes,
        request.offset,
        request.length,
        update.payload,
        request.payload_checksum,
        update.tag,
        update.is_whole,
        is_durable=request.is_durable,
        ranges=update.ranges,
    )


async def whole(target: LocalTarget, update: Outgoing, state: ChunkState | None) -> Outgoing:
    """Return the update as one that carries the whole new content."""
    if update.type is UpdateType.REMOVE or update.is_whole:
        return update
    assert state is not None, update
    covers_all = (
        update.type is UpdateType.WRITE
        and not update.ranges
        and update.offset == 0
        and update.payload
        and update.length == state.pending_length
    )
    content: Buffer = update.payload
    if not covers_all:
        engine = target.disk.engine
        content = await target.disk.run(
            lambda: engine.read_whole(target.target_id, update.chunk_id, version=state.pending_ver)
        )
    return made_whole(update, state, content)


def made_whole(update: Outgoing, state: ChunkState, content: Buffer) -> Outgoing:
    """Return the update as one that carries `content`, the chunk's whole new content."""
    return Outgoing(
        update.chunk_id,
        UpdateType.WRITE,
        update.version,
        update.chunk_size_bytes or state.chunk_size_bytes,
        length=len(content),
        payload=content,
        payload_checksum=xxhash.xxh3_64_intdigest(content),
        tag=update.tag,
        is_whole=True,
        is_durable=update.is_durable,
    )


def request_of(place: Place, update: Outgoing) -> storage_pb2.UpdateReq:
    """Return the request that brings an update to our successor in this place of the chain."""
    request = storage_pb2.UpdateReq(
        inode_id=update.chunk_id.inode_id,
        chunk_index=update.chunk_id.index,
        chain_id=place.chain.chain_id,
        chain_version=place.chain.chain_version,
        type=storage_pb2.UpdateTypePb.ValueType(update.type),
        offset=update.offset,
        length=update.length,
        chunk_size_bytes=update.chunk_size_bytes,
        update_ver=update.version,
        is_full_replace=update.is_whole,
        payload_checksum=update.payload_checksum,
        commit_chain_version=update.commit_chain_version,
        sender_epoch=place.target.epoch,
        is_damaged=update.is_damaged,
        chunk_checksum=update.chunk_checksum,
        is_durable=update.is_durable,
        checksum_block_bytes=place.target.disk.engine.checksum_block_bytes,
    )
    put_ranges(request, update.ranges)
    if update.tag is not None:
        request.tag.client_id = update.tag.client_id
        request.tag.channel_id = update.tag.channel_id
        request.tag.sequence = update.tag.sequence
        request.tag.request_id = update.tag.request_id
    return request
