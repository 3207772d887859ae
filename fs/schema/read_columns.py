"""Requests and replies of BatchRead by rows: one tuple for each read instead of columns.  Pure.

For callers with few reads, who need not mind what an object for each costs.
"""

from collections.abc import Iterable
from typing import NamedTuple

from .proto.storage_pb2 import BatchReadReq, BatchReadRsp, ReadResultPb
from .status import FsError, Status


class WantedRead(NamedTuple):
    """One read of a request."""

    inode_id: int
    chunk_index: int
    chain_id: int
    chain_version: int
    offset: int
    """Bytes from the start of the chunk."""
    length: int


class ReadResult(NamedTuple):
    """What became of a read."""

    status: int
    """A fs.schema.status number, 0 = ok."""
    length: int
    """Bytes of the payload; it has those of all reads in their order, without gaps."""
    checksum: int
    """xxh3-64 of them, if the request asked for it."""
    commit_ver: int
    detail: str


def read_request(
    wanted: Iterable[WantedRead],
    *,
    is_relaxed: bool = False,
    want_checksums: bool = False,
    is_passed_on: bool = False,
    fills_cache: bool = False,
) -> BatchReadReq:
    """Return the request for some reads."""
    columns = list(zip(*wanted, strict=True)) or [()] * len(WantedRead._fields)
    inode_ids, chunk_indexes, chain_ids, chain_versions, offsets, lengths = columns
    return BatchReadReq(
        is_relaxed=is_relaxed,
        want_checksums=want_checksums,
        is_passed_on=is_passed_on,
        fills_cache=fills_cache,
        inode_ids=inode_ids,
        chunk_indexes=chunk_indexes,
        chain_ids=chain_ids,
        chain_versions=chain_versions,
        offsets=offsets,
        lengths=lengths,
    )


def check_lengths(reply: BatchReadRsp, wanted: list[int], payload_bytes: int) -> list[int]:
    """Return how many bytes of a reply's payload each read gets.

    Args:
        reply: of BatchRead.
        wanted: bytes that each read asked for.
        payload_bytes: of the reply's frame.

    Raises:
        FsError: RPC_BAD_FRAME when the reply does not fit the request.
    """
    lengths: list[int] = reply.lengths[:]
    fits = len(lengths) == len(wanted) and sum(lengths) == payload_bytes
    if not fits or (lengths != wanted and any(map(int.__gt__, lengths, wanted))):
        detail = f"{len(lengths)} results, {payload_bytes} bytes for {len(wanted)} reads"
        raise FsError(Status.RPC_BAD_FRAME, f"BatchRead: {detail}")
    return lengths


def read_results(reply: BatchReadRsp, count: int) -> list[ReadResult]:
    """Return the rows of the reply to `count` reads; checksums that nobody asked for are 0.

    Raises:
        FsError: RPC_BAD_FRAME when its columns do not fit.
    """
    checksums = reply.checksums[:] or [0] * count
    failed = {failure.position: failure for failure in reply.failures}
    sizes = {len(reply.lengths), len(reply.commit_vers), len(checksums)}
    if sizes != {count} or any(position >= count for position in failed):
        raise FsError(Status.RPC_BAD_FRAME, f"BatchRead: columns of {sizes} for {count} reads")
    rows = []
    columns = zip(reply.lengths, checksums, reply.commit_vers, strict=True)
    for position, (length, checksum, commit_ver) in enumerate(columns):
        failure = failed.get(position)
        status, detail = (failure.status, failure.detail) if failure is not None else (0, "")
        rows.append(ReadResult(status, length, checksum, commit_ver, detail))
    return rows


def from_rows(request: BatchReadReq) -> BatchReadReq:
    """Return by columns what a peer that does not know of them asks."""
    wanted = [
        WantedRead(io.inode_id, io.chunk_index, io.chain_id, io.chain_version, io.offset, io.length)
        for io in request.ios
    ]
    return read_request(
        wanted,
        is_relaxed=request.is_relaxed,
        want_checksums=request.want_checksums,
        is_passed_on=request.is_passed_on,
    )


def to_rows(reply: BatchReadRsp) -> BatchReadRsp:
    """Return a reply to such a peer."""
    rows = [ReadResultPb(**row._asdict()) for row in read_results(reply, len(reply.lengths))]
    return BatchReadRsp(results=rows)
