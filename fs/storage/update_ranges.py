"""Writes of several ranges of one chunk, as they come and go on the wire.  Pure.

The columns `range_offsets` and `range_lengths` say where the payload goes piece by piece.  `offset`
and `length` span all of it, from the first byte of the first range to the last byte of the last.
So a receiver that knows no ranges never writes wrong bytes: it counts fewer than `length`, and
refuses them.  Or there is nothing between the ranges, and it makes no difference.
"""

from collections.abc import Sequence

from ..chunkengine.ranges import Range, fault_of
from ..schema.proto import storage_pb2
from ..schema.status import FsError, Status


def ranges_of(request: storage_pb2.UpdateReq, byte_count: int) -> Sequence[Range]:
    """Return the ranges that a request is about, () if it knows none.

    Args:
        request: an update.
        byte_count: of its payload.

    Raises:
        FsError: RPC_BAD_REQUEST: they are none, or not those of a write that
            keeps what is between them.
    """
    if not (request.range_offsets or request.range_lengths):
        return ()
    where = f"inode {request.inode_id} chunk {request.chunk_index}"
    is_write = request.type == storage_pb2.UpdateTypePb.WRITE
    if not is_write or request.is_full_replace or request.is_damaged:
        raise FsError(Status.RPC_BAD_REQUEST, f"{where}: ranges of what is no write of some")
    if len(request.range_offsets) != len(request.range_lengths):
        raise FsError(Status.RPC_BAD_REQUEST, f"{where}: columns of different length")
    ranges = tuple(zip(request.range_offsets, request.range_lengths, strict=True))
    fault = fault_of(ranges, byte_count, request.chunk_size_bytes)
    if not fault and (ranges[0][0], sum(ranges[-1])) != (
        request.offset,
        request.offset + request.length,
    ):
        fault = f"ranges of {request.offset} + {request.length}"
    if fault:
        raise FsError(Status.RPC_BAD_REQUEST, f"{where}: {fault}")
    return ranges


def put_ranges(request: storage_pb2.UpdateReq, ranges: Sequence[Range]) -> None:
    """Have a request say its ranges; none are none."""
    if ranges:
        request.range_offsets.extend(offset for offset, _ in ranges)
        request.range_lengths.extend(length for _, length in ranges)
