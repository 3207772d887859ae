"""What one transaction has read and written, as the message that commits it elsewhere.

Pure; no I/O.

Invariants:
    - `unpack_commit(pack_commit(buffer))` commits exactly as `buffer` does.
    - Whatever a peer sends, `unpack_commit` returns a buffer within all limits, or raises FsError.
"""

from collections.abc import Iterable
from typing import Final

from ..schema.proto import kv_pb2
from ..schema.status import FsError, Status
from .buffer import KEY_END, Added, Raised, Stamped, WriteBuffer
from .conflicts import KeyRange

KEYS_PER_READ_MAX: Final = 64
"""Of the largest values they fill 7 MB of a reply."""

ENDED_COUNT_MAX: Final = 4096
"""Ended transactions told with one request; what is not told expires."""

_HALF: Final = 1 << 63
_MASK: Final = (1 << 64) - 1


def pack_commit(buffer: WriteBuffer) -> kv_pb2.KvCommitReq:
    """Return the request, without snapshot and ended transactions."""
    return kv_pb2.KvCommitReq(
        read_keys=buffer.read_keys,
        read_ranges=_ranges(buffer.read_ranges),
        cleared=_ranges(buffer.cleared),
        writes=[_pack_write(key, write) for key, write in buffer.points.items()],
        stamped_keys=[
            kv_pb2.KvStampedKeyPb(prefix=prefix, suffix=suffix, value=value)
            for prefix, suffix, value in buffer.stamped_keys
        ],
        conflict_keys=buffer.extra_conflict_keys,
        is_freeing=buffer.is_freeing,
    )


def _ranges(ranges: Iterable[KeyRange]) -> list[kv_pb2.KvRangePb]:
    return [kv_pb2.KvRangePb(begin=begin, end=end) for begin, end in ranges]


def _pack_write(key: bytes, write: bytes | Added | Raised | Stamped | None) -> kv_pb2.KvWritePb:
    match write:
        case None:
            return kv_pb2.KvWritePb(key=key)
        case Added(delta):  # several adds of one transaction may have left the 64 bits
            return kv_pb2.KvWritePb(key=key, added=((delta + _HALF) & _MASK) - _HALF)
        case Raised(value):
            return kv_pb2.KvWritePb(key=key, value=value, is_max=True)
        case Stamped(prefix, suffix):
            around = kv_pb2.KvStampedValuePb(prefix=prefix, suffix=suffix)
            return kv_pb2.KvWritePb(key=key, stamped=around)
        case value:
            return kv_pb2.KvWritePb(key=key, value=value)


def unpack_commit(request: kv_pb2.KvCommitReq) -> WriteBuffer:
    """Return the buffer of a request.

    Raises:
        FsError: RPC_BAD_REQUEST for keys outside of the user's space; KV_KEY_TOO_LARGE,
            KV_VALUE_TOO_LARGE, KV_TRANSACTION_TOO_LARGE.
    """
    buffer = WriteBuffer()
    buffer.is_freeing = request.is_freeing
    for cleared in request.cleared:
        check_user_range(cleared)
        buffer.clear_range(cleared.begin, cleared.end)
    for write in request.writes:
        check_user_key(write.key)
        _unpack_write(buffer, write)
    for stamped in request.stamped_keys:
        check_user_key(stamped.prefix)
        buffer.set_versionstamped_key(stamped.prefix, stamped.suffix, stamped.value)
    for key in request.conflict_keys:
        check_user_key(key)
        buffer.add_write_conflict_key(key)
    for key in request.read_keys:
        check_user_key(key)
        buffer.add_read_key(key)
    for read in request.read_ranges:
        check_user_range(read)
        buffer.add_read_range(read.begin, read.end)
    return buffer


def _unpack_write(buffer: WriteBuffer, write: kv_pb2.KvWritePb) -> None:
    key = write.key
    match write.WhichOneof("write"):
        case "value" if write.is_max:
            _check_unwritten(buffer, key)
            buffer.atomic_max(key, write.value)
        case "value":
            buffer.set(key, write.value)
        case "added":
            _check_unwritten(buffer, key)
            buffer.atomic_add(key, write.added)
        case "stamped":
            buffer.set_versionstamped_value(key, write.stamped.prefix, write.stamped.suffix)
        case _:
            buffer.clear(key)


def _check_unwritten(buffer: WriteBuffer, key: bytes) -> None:
    if key in buffer.points:
        raise FsError(Status.RPC_BAD_REQUEST, f"key {key[:32]!r} is written twice")


def check_user_key(key: bytes) -> None:
    """Refuse a key of the engine's own space, which no honest peer asks for."""
    if key >= KEY_END:
        raise FsError(Status.RPC_BAD_REQUEST, f"reserved key {key[:32]!r}")


def check_user_range(given: kv_pb2.KvRangePb) -> None:
    """Refuse a range that reaches into the engine's own space."""
    if given.end > KEY_END or given.begin > KEY_END:
        raise FsError(
            Status.RPC_BAD_REQUEST, f"reserved range {given.begin[:32]!r}..{given.end[:32]!r}"
        )
