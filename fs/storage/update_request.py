"""One request for an update, checked as far as that needs no state.  Pure."""

from collections.abc import Sequence
from typing import Final

import msgspec
import xxhash

from ..chunkengine.api import ChunkState
from ..chunkengine.ranges import Range
from ..schema.ids import ChunkId, InodeId
from ..schema.layout import CHUNK_SIZE_BYTES_MAX, CHUNK_SIZE_BYTES_MIN
from ..schema.proto import storage_pb2
from ..schema.status import FsError, Status
from .channels import Tag
from .replica import UpdateFacts, UpdateType
from .update_notes import CLIENT_ID_BYTES_MAX, REQUEST_ID_BYTES_MAX, pack_tag
from .update_ranges import ranges_of

_UPDATE_TYPES: Final = {int(kind): kind for kind in UpdateType}


class Update(msgspec.Struct, frozen=True):
    """A checked request."""

    request: storage_pb2.UpdateReq
    payload: memoryview
    kind: UpdateType
    chunk_id: ChunkId
    tag: Tag | None
    packed_tag: bytes
    is_from_client: bool
    deadline_s: float
    ranges: Sequence[Range] = ()
    """Not empty: the payload goes there, piece by piece."""

    @property
    def is_whole(self) -> bool:
        """The payload is the chunk's whole new content: nothing of what it holds is kept."""
        return self.request.is_full_replace or self.request.is_fill

    @property
    def first_end(self) -> int:
        """End of the bytes that are written from the request's offset on without a gap,
        or of some of them.
        """
        return sum(self.ranges[0]) if self.ranges else self.request.offset + self.request.length


def check(
    request: storage_pb2.UpdateReq,
    payload: memoryview,
    *,
    is_from_client: bool,
    deadline_s: float,
) -> Update:
    """Return the request, and its payload, as an update;
    raises FsError(RPC_BAD_REQUEST or CHECKSUM_MISMATCH).
    """
    size, length = request.chunk_size_bytes, request.length
    where = f"inode {request.inode_id} chunk {request.chunk_index}"
    kind = _UPDATE_TYPES.get(request.type)
    if kind is None or request.inode_id == 0:
        raise FsError(Status.RPC_BAD_REQUEST, f"{where}: update type {request.type}")
    if kind is not UpdateType.REMOVE:
        if not CHUNK_SIZE_BYTES_MIN <= size <= CHUNK_SIZE_BYTES_MAX or size & (size - 1):
            raise FsError(Status.RPC_BAD_REQUEST, f"{where}: chunk size {size}")
        if request.offset + length > size:
            raise FsError(Status.RPC_BAD_REQUEST, f"{where}: {request.offset} + {length} > {size}")
    if request.truncate_ver and kind is UpdateType.EXTEND:
        raise FsError(Status.RPC_BAD_REQUEST, f"{where}: not of a truncation")
    if request.is_fill and not (
        kind is UpdateType.WRITE
        and request.truncate_ver
        and is_from_client
        and not request.offset
        and not request.range_offsets
    ):
        raise FsError(Status.RPC_BAD_REQUEST, f"{where}: no fill")
    if request.is_damaged and not (request.is_full_replace and request.commit_chain_version):
        raise FsError(Status.RPC_BAD_REQUEST, f"{where}: only resync hands over damaged chunks")
    if is_from_client and (request.update_ver or request.is_full_replace):
        raise FsError(Status.RPC_BAD_REQUEST, f"{where}: clients do not choose versions")
    if not is_from_client and not request.update_ver:
        raise FsError(Status.RPC_BAD_REQUEST, f"{where}: a forwarded update has a version")
    if request.is_full_replace and (request.offset or kind is not UpdateType.WRITE):
        raise FsError(Status.RPC_BAD_REQUEST, f"{where}: no whole chunk")
    ranges = ranges_of(request, len(payload))
    if kind is UpdateType.WRITE:
        is_wrong = not ranges and len(payload) != (0 if request.is_damaged else length)
        if is_wrong or (length == 0 and is_from_client):
            raise FsError(Status.RPC_BAD_REQUEST, f"{where}: {len(payload)} bytes for {length}")
        if xxhash.xxh3_64_intdigest(payload) != request.payload_checksum:
            raise FsError(Status.CHECKSUM_MISMATCH, f"{where}: payload changed on its way")
    tag = None
    if request.tag.client_id:
        if not request.tag.channel_id:
            raise FsError(Status.RPC_BAD_REQUEST, f"{where}: channel 0")
        wire = request.tag
        tag = Tag(wire.client_id, wire.channel_id, wire.sequence, wire.request_id)
        if len(tag.client_id.encode()) > CLIENT_ID_BYTES_MAX:
            raise FsError(Status.RPC_BAD_REQUEST, f"{where}: client id {tag.client_id[:80]}...")
        if len(tag.request_id) > REQUEST_ID_BYTES_MAX:
            raise FsError(Status.RPC_BAD_REQUEST, f"{where}: request id too long")
    packed = pack_tag(tag) if tag is not None else b""
    chunk_id = ChunkId(InodeId(request.inode_id), request.chunk_index)
    return Update(request, payload, kind, chunk_id, tag, packed, is_from_client, deadline_s, ranges)


def facts(update: Update, state: ChunkState | None) -> UpdateFacts:
    """Return what decides about the update, at a replica that finds `state`."""
    request = update.request
    return UpdateFacts(
        update.kind,
        request.chain_version,
        request.update_ver,
        request.is_full_replace,
        request.length,
        is_cut=update.kind is UpdateType.TRUNCATE and bool(request.truncate_ver),
        is_pending_request=update.tag is not None
        and state is not None
        and state.pending_tag == update.packed_tag,
    )
