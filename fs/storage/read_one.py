"""The commonest read of all by itself: one, small, of a committed version that nobody doubts,
out of the page cache.

It does what read_at_once.py does for many, without a list, a row and a lease of a buffer, which
cost more than such a read: a process that has slept does everything for the first time.  Whatever
is not just so is left, and read_path.py does all of it anew.

Concurrency: no checkpoint between the look at our place in the chain and the
bytes, so nothing can come in.
"""

from typing import Final

from google.protobuf.descriptor import Descriptor

from ..chunkengine.format import ChunkKey
from ..kernels.read_messages import one_reply, one_row
from ..schema.ids import ChunkId
from ..schema.layout import CHUNK_SIZE_BYTES_MAX
from ..schema.proto import storage_pb2
from ..schema.status import FsError
from .context import StorageContext

ONE_BYTES_MAX: Final = 4 * 1024
"""Memory for so much is not counted, as that for messages is not:
of a connection few requests are under way.
"""

_PACKED: Final = 2
"""The wire type of a column."""


def _tags(message: Descriptor, wire_type: int, *names: str) -> bytes:
    return bytes(message.fields_by_name[name].number << 3 | wire_type for name in names)


_REQUEST: Final = storage_pb2.BatchReadReq.DESCRIPTOR
COLUMNS: Final = _tags(
    _REQUEST,
    _PACKED,
    "inode_ids",
    "chunk_indexes",
    "chain_ids",
    "chain_versions",
    "offsets",
    "lengths",
)
_FLAGS: Final = _tags(_REQUEST, 0, "is_relaxed", "want_checksums", "is_passed_on")
MANY_FLAGS: Final = _FLAGS + _tags(_REQUEST, 0, "fills_cache")
IS_RELAXED: Final = 1
WANTS_CHECKSUMS: Final = 2
FILLS_CACHE: Final = 8
REPLY_COLUMNS: Final = _tags(
    storage_pb2.BatchReadRsp.DESCRIPTOR, _PACKED, "lengths", "commit_vers", "checksums"
)


def read_one(context: StorageContext, request: bytes) -> tuple[bytes, memoryview] | None:
    """Return the reply to a request for one read, and its payload;
    None: it is to be done the ordinary way, and nothing is done.

    Args:
        context: of the process.
        request: the message of a BatchRead, as it came.

    Raises:
        BlockingIOError: so, too, and the disk has to be waited for.
    """
    row = one_row(request, COLUMNS, _FLAGS)
    if row is None:
        return None
    chunk, chain_id, chain_version, offset, length, flags = row
    if not 0 < length <= ONE_BYTES_MAX or offset + length > CHUNK_SIZE_BYTES_MAX:
        return None
    target = context.targets.readable(chain_id, chain_version)
    if target is None:
        return None
    unsettled = target.unsettled
    if unsettled and not flags & IS_RELAXED and ChunkId.unpack(chunk) in unsettled:
        return None
    view = memoryview(bytearray(length))
    key = ChunkKey(target.key_prefix + chunk)
    try:
        read = target.disk.engine.read_cached_row(key, offset, view)
    except FsError:  # the ordinary way meets it, too, and says so
        return None
    # The lease is looked at behind the read: that covers the time before it.
    if read is None or not context.lease.is_valid():
        return None
    target.read_bytes += length
    version, checksum = read
    wants_checksums = bool(flags & WANTS_CHECKSUMS)
    return one_reply(REPLY_COLUMNS, length, version, checksum, wants_checksums), view
