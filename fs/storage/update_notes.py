"""What the disk remembers of clients' updates,
so that repeats are known after a restart of all replicas.  Pure.

A pending version carries the tag of its update; the batch that commits it holds a note
with the result, one per client channel.  So "executed" and "known to be executed" are
one atomic fact on each replica.

A note is believed only as long as the chunk bears it out (`is_borne_out`): opening a
disk after a power loss may have gone back to an older version of the chunk, and its
client has to repeat the update then.

Keys and values (big-endian):
    "c" channel u32, client id          -> 1 u8, flags u8 (1: removal), inode u64, index
                                           u32, version u64, length u32, digest u64,
                                           sequence u64, request id
"""

import struct
from dataclasses import dataclass
from typing import Final

from ..chunkengine.api import NOTE_KEY_BYTES_MAX, ChunkState, Note
from ..schema.ids import ChunkId, InodeId
from .channels import Tag, UpdateResult

_PREFIX: Final = b"c"
_CHANNEL: Final = struct.Struct(">I")
_VALUE: Final = struct.Struct(">BBQIQIQQ")
_TAG: Final = struct.Struct(">IQB")
_FORMAT: Final = 1
_IS_REMOVE: Final = 1

CLIENT_ID_BYTES_MAX: Final = NOTE_KEY_BYTES_MAX - len(_PREFIX) - _CHANNEL.size
REQUEST_ID_BYTES_MAX: Final = 64


@dataclass(frozen=True, slots=True)
class UpdateNote:
    """One client channel's last update that was committed here."""

    tag: Tag
    result: UpdateResult


def pack_tag(tag: Tag) -> bytes:
    """Return what a pending version carries; client and request id are within the limits above."""
    client = tag.client_id.encode()
    return _TAG.pack(tag.channel_id, tag.sequence, len(client)) + client + tag.request_id


def unpack_tag(packed: bytes) -> Tag:
    """Inverse of `pack_tag`."""
    channel_id, sequence, length = _TAG.unpack_from(packed)
    client_end = _TAG.size + length
    return Tag(packed[_TAG.size : client_end].decode(), channel_id, sequence, packed[client_end:])


def note_key(client_id: str, channel_id: int) -> bytes:
    """Return the key of a channel's note."""
    return _PREFIX + _CHANNEL.pack(channel_id) + client_id.encode()


def note_of(tag: Tag, result: UpdateResult) -> Note:
    """Return the stored form; `result` names its chunk."""
    chunk_id = result.chunk_id
    assert chunk_id is not None, result
    value = _VALUE.pack(
        _FORMAT,
        _IS_REMOVE if result.is_remove else 0,
        chunk_id.inode_id,
        chunk_id.index,
        result.update_ver,
        result.chunk_length,
        result.chunk_checksum,
        tag.sequence,
    )
    return Note(note_key(tag.client_id, tag.channel_id), value + tag.request_id)


def read_note(note: Note) -> UpdateNote | None:
    """Inverse of `note_of`; None for notes about something else, or of another format."""
    if not note.key.startswith(_PREFIX) or note.value[:1] != bytes((_FORMAT,)):
        return None
    (channel_id,) = _CHANNEL.unpack_from(note.key, len(_PREFIX))
    client_id = note.key[len(_PREFIX) + _CHANNEL.size :].decode()
    _, flags, inode_id, index, version, length, checksum, sequence = _VALUE.unpack_from(note.value)
    return UpdateNote(
        Tag(client_id, channel_id, sequence, note.value[_VALUE.size :]),
        UpdateResult(
            version,
            length,
            checksum,
            ChunkId(InodeId(inode_id), index),
            bool(flags & _IS_REMOVE),
        ),
    )


def is_borne_out(result: UpdateResult, state: ChunkState | None) -> bool:
    """True unless the chunk shows that the version of this result has been taken back
    by a power loss.

    Args:
        result: of the update, naming the chunk.
        state: the chunk as it is after opening the disk, before any new update.
    """
    committed = state.commit_ver if state else 0
    if result.is_remove:
        return committed != result.update_ver - 1 or committed == 0
    if state is None or committed != result.update_ver:
        return committed > result.update_ver
    return (state.length, state.checksum) == (result.chunk_length, result.chunk_checksum)
