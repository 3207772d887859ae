"""One request of reads to one storage node, and what its reply is to those who asked.

Between processes of one machine large replies may be lent (fs/rpc/lent_replies.py), also as ranges
of the storage process's files: then the reply has the checksums that are stored with the bytes.
What does not match these, or cannot be had so any more, is asked for once again, and the storage
process has to read it itself: it knows what to do about a copy that is damaged.

Of a large reply that is lent the bytes are read and matched by a thread, while the event loop
serves others: nearly all of that is system calls and checksums, which need no interpreter.

Invariants:
    - No byte counts before it matches its checksum (client.verify_reads), and what is matched does
      not change any more: it has been copied.
    - A thread has the buffers of a call only while the call lasts, also where that is
      cancelled; but one that waits for a disk may have them for longer (direct_threads.py):
      they are lost to whoever asked then.
"""

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import trio
from xxhash import xxh3_64_intdigest

from ..kernels.batches import ROW, windows_of
from ..kernels.writes import block_checksums
from ..rpc.api import Lending, ReadApart
from ..rpc.frame import decode_error
from ..runtime.ports import RunBlocking
from ..schema import services
from ..schema.ids import NodeId
from ..schema.proto import storage_pb2 as pb
from ..schema.read_columns import ReadResult, check_lengths, read_results
from ..schema.status import FsError, Status
from .direct_threads import DirectThreads, LeftBehindError
from .node_calls import NodeCalls
from .read_plans import TableRequest
from .read_table import ReadTable
from .routing_math import Piece

log = logging.getLogger(__name__)

LENT_BYTES_MIN = 64 * 1024
"""Smaller ones are not worth the question whether their replies are to be lent,
which the storage node decides.
"""

LENT_PIECE_BYTES_MIN = 16 * 1024
"""Of a piece, on average: each is a system call if the reply is lent,
and together one if it is not.
"""

APART_BYTES_MIN: Final = 2 * 1024 * 1024
"""Smaller ones the event loop reads itself:
to wake a thread, and to be woken by it, takes as long as a few hundred KiB.
"""

APART_PIECE_BYTES_MIN: Final = 128 * 1024
"""Of a piece, on average: between two of them a thread needs the interpreter,
for which it may have to wait.
"""

BLOCK_BYTES_MAX = 1 << 30
"""Of checksums; what the kernel takes."""

Failures = list[tuple[Piece, FsError]]

Scatter = Callable[[Any, int], list[memoryview]]
"""Returns where the payload of a reply goes; as `fs.rpc.api.Into`."""


async def ask(
    nodes: NodeCalls,
    node_id: NodeId,
    request: pb.BatchReadReq | bytes,
    into: Scatter,
    *,
    lending: Lending,
    buffers_of: Callable[[], Sequence[memoryview]],
    run_blocking: RunBlocking | None = None,
    direct: DirectThreads | None = None,
) -> pb.BatchReadRsp | None:
    """Return the reply to a request; None: all that was asked for has come, and is verified.

    Args:
        nodes: the storage nodes.
        node_id: the one to ask.
        request: for checksums, too, if it may be lent.
        into: as of `NodeCalls.call`; may be called twice.
        lending: how the reply may come.
        buffers_of: returns where each of the reads has its bytes.
        run_blocking: has a thread read, and match, what is lent; None: this task does.
        direct: the threads for Lending.DIRECT, which needs both.

    Raises:
        LeftBehindError: of DIRECT: the buffers are lost.
        FsError: as `NodeCalls.call`; as `into`; RPC_BAD_FRAME: a reply with checksums of blocks,
            though nothing was to be lent.
    """
    method = services.STORAGE_BATCH_READ
    apart = None
    if run_blocking is not None and lending is not Lending.NOT:
        apart = _Apart(into, buffers_of, run_blocking, direct)
        into = apart.into
    if lending >= Lending.RANGES:
        try:
            received = await nodes.call(node_id, method, request, into=into, may_be_lent=lending)
            reply = received.message
            if apart is not None and apart.does_match:
                return None
            if not reply.block_bytes:
                return reply
            if (apart is None or apart.does_match is None) and _do_match(buffers_of(), reply):
                return None
            log.info("node %d: bytes that it has lent do not match, it is to read them", node_id)
        except FsError as error:
            if apart is not None and apart.is_left_behind:
                # Whatever it has become on its way: nothing may be read into those buffers.
                raise LeftBehindError(
                    Status.IO_ERROR, "a thread waits for a disk with the buffers of this read"
                ) from None
            if error.status is not Status.RPC_NOT_LENT:
                raise
            log.debug("node %d: %s", node_id, error)
        lending = Lending.MEMORY
    received = await nodes.call(node_id, method, request, into=into, may_be_lent=lending)
    if received.message.block_bytes:
        raise FsError(Status.RPC_BAD_FRAME, "BatchRead: checksums of blocks that nobody wanted")
    return None if apart is not None and apart.does_match else received.message


class _Apart:
    """Has a thread read what is lent, and match it."""

    def __init__(
        self,
        into: Scatter,
        buffers_of: Callable[[], Sequence[memoryview]],
        run_blocking: RunBlocking,
        direct: DirectThreads | None = None,
    ) -> None:
        self._into = into
        self._buffers_of = buffers_of
        self._run_blocking = run_blocking
        self._direct = direct
        self.is_left_behind = False
        """A thread has the buffers for good."""
        self.does_match: bool | None = None
        """Whether all that was asked for last has come, and is what its checksums say;
        None: it was not lent, or cannot be read.
        """

    def into(self, reply: pb.BatchReadRsp, payload_bytes: int) -> ReadApart:
        """Do as the `into` that it was made with."""
        self.does_match = None
        buffers = self._into(reply, payload_bytes)
        direct = None if self._direct is None else partial(self._have_read_direct, reply)
        return ReadApart(buffers, partial(self._have_read, reply), direct)

    async def _have_read(self, reply: pb.BatchReadRsp, read: Callable[[], None]) -> None:
        buffers = self._buffers_of()
        try:
            self.does_match = await self._run_blocking(self._read, reply, buffers, read)
        except (RuntimeError, MemoryError) as error:  # no thread is to be had
            log.debug("what is lent is read by the event loop: %s", error)
            self.does_match = self._read(reply, buffers, read)

    async def _have_read_direct(self, reply: pb.BatchReadRsp, read: Callable[[], None]) -> None:
        assert self._direct is not None
        buffers = self._buffers_of()
        try:
            self.does_match = await self._direct.run(partial(self._read, reply, buffers, read))
        except (LeftBehindError, trio.Cancelled):
            self.is_left_behind = True
            raise
        except (RuntimeError, MemoryError) as error:  # no thread is to be had: who lends reads it
            raise FsError(
                Status.RPC_NOT_LENT, f"no thread to wait for the disk: {error}"
            ) from error

    @staticmethod
    def _read(
        reply: pb.BatchReadRsp, buffers: Sequence[memoryview], read: Callable[[], None]
    ) -> bool:
        read()
        return _do_match(buffers, reply)


def _do_match(buffers: Sequence[memoryview], reply: pb.BatchReadRsp) -> bool:
    """Tell whether all that was asked for has come, and is what the checksums of a reply say."""
    block, lengths = reply.block_bytes, reply.lengths[:]
    if reply.failures or block > BLOCK_BYTES_MAX or lengths != list(map(len, buffers)):
        return False
    if not block:
        return reply.checksums[:] == list(map(xxh3_64_intdigest, buffers))
    return reply.block_checksums == b"".join([block_checksums(one, block) for one in buffers])


def lending_of(byte_count: int, piece_count: int) -> Lending:
    """Return how a reply of so many bytes for so many pieces may come, if it is verified."""
    is_large = byte_count >= max(LENT_BYTES_MIN, piece_count * LENT_PIECE_BYTES_MIN)
    return Lending.RANGES if is_large else Lending.NOT


def is_apart(byte_count: int, piece_count: int) -> bool:
    """Return whether a thread is to read so many bytes for so many pieces, where they are lent."""
    return byte_count >= max(APART_BYTES_MIN, piece_count * APART_PIECE_BYTES_MIN)


def windows(
    table: ReadTable, one: TableRequest, reply: pb.BatchReadRsp, payload_bytes: int
) -> list[memoryview]:
    """Do as `scatter`, with one window for neighbours."""
    found = windows_of(table.view, one.rows, reply.lengths[:], payload_bytes)
    return scatter(rows_of(table, one), reply, payload_bytes) if found is None else found


def finish(pieces: Sequence[Piece], reply: pb.BatchReadRsp, *, verifies: bool = True) -> Failures:
    """Check what has come and zero what was never written; return what is wrong with which piece.

    Raises:
        FsError: RPC_BAD_FRAME when the reply does not fit the request.
    """
    if not reply.failures:  # mostly all of them are there, whole and good
        buffers = [piece.buffer for piece in pieces]
        is_good = reply.lengths[:] == list(map(len, buffers))
        if is_good and verifies:
            is_good = reply.checksums[:] == list(map(xxh3_64_intdigest, buffers))
        if is_good:
            return []
    failures = []
    for piece, result in zip(pieces, read_results(reply, len(pieces)), strict=True):
        wrong = _finish_one(piece, result, verifies=verifies)
        if wrong is not None:
            failures.append((piece, wrong))
    return failures


def finish_rows(
    table: ReadTable, one: TableRequest, reply: pb.BatchReadRsp, *, verifies: bool
) -> tuple[Failures, list[Piece]]:
    """Do as `finish` for the rows of a table.

    Returns:
        What is wrong with which piece; and the pieces of rows that join several and are not good as
        a whole: which of them is at fault only asking for each by itself can tell, so nothing
        counts against their replica.

    Raises:
        FsError: as `finish`.
    """
    failures: Failures = []
    unjoined: list[Piece] = []
    rows = one.pieces_by_row(table)
    for pieces, whole, result in zip(
        rows, rows_of(table, one), read_results(reply, len(rows)), strict=True
    ):
        if len(pieces) == 1:
            wrong = _finish_one(pieces[0], result, verifies=verifies)
            if wrong is not None:
                failures.append((pieces[0], wrong))
        elif not _finish_joined(pieces, whole, result, verifies=verifies):
            unjoined += pieces
    return failures, unjoined


def _finish_joined(
    pieces: Sequence[Piece], whole: memoryview, result: ReadResult, *, verifies: bool
) -> bool:
    """Zero of pieces that are one row, with its bytes in `whole`, what was never written;
    False: something is wrong with one of them.
    """
    length = result.length
    if result.status:
        if result.status != Status.CHUNK_NOT_FOUND:
            return False
        length = 0
    if length and verifies and xxh3_64_intdigest(whole[:length]) != result.checksum:
        return False
    for piece in pieces:
        filled = min(length, len(piece.buffer))
        fill_hole(piece, filled)
        length -= filled
    return True


def _finish_one(piece: Piece, result: ReadResult, *, verifies: bool = True) -> FsError | None:
    """Check one result and zero what was never written; return what is wrong with it."""
    status, length, got = result.status, result.length, piece.buffer
    if status == Status.CHUNK_NOT_FOUND:
        fill_hole(piece, 0)
        return None
    if status:
        return decode_error(status, f"{piece.name}: {result.detail}".encode())
    if length != len(got):
        got = got[:length]
    if length and verifies and xxh3_64_intdigest(got) != result.checksum:
        return FsError(
            Status.CHECKSUM_MISMATCH,
            f"{piece.name} target {piece.target_id}: bytes changed on the way",
        )
    fill_hole(piece, length)
    return None


def rows_of(table: ReadTable, one: TableRequest) -> list[memoryview]:
    """Return where each row of a request has its bytes."""
    view = table.view
    return [view[place : place + length] for place, length, _ in ROW.iter_unpack(one.rows)]


def fill_hole(piece: Piece, filled: int) -> None:
    """Zero the part of a piece behind its first `filled` bytes: it was never written."""
    missing = len(piece.buffer) - filled
    if missing:
        piece.buffer[filled:] = bytes(missing)
        assert piece.owner is not None
        piece.owner.hole_bytes += missing


def scatter(
    buffers: list[memoryview], reply: pb.BatchReadRsp, payload_bytes: int
) -> list[memoryview]:
    """Return where the payload of a BatchRead reply goes: the filled start of each buffer.

    Raises:
        FsError: RPC_BAD_FRAME when the reply does not fit the request.
    """
    wanted = list(map(len, buffers))
    lengths = check_lengths(reply, wanted, payload_bytes)
    if lengths == wanted:
        return buffers
    return [b[:length] for b, length in zip(buffers, lengths, strict=True) if length]
