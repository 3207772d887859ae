"""The way of one batch of reads through one replica, top to bottom (CRAQ reads).

A read may return the committed version here unless an update of its chunk is inside
(`LocalTarget.unsettled`).  Then the tail may already have committed, and shown, a newer one.  So:
    - Not the tail: ask the tail which version is committed, and serve that
      one, committed or pending here.
    - The tail: wait for the update inside.  A leftover pending version is completed before the
      read, since a former tail may have shown it.
If the version named by the tail is not here (updates went on meanwhile), the read is repeated under
the chunk lock, where nothing moves.

Concurrency: no lock on the usual way.  What the page cache holds is read right here
(read_at_once.py), since handing a small read to a thread costs more than the read.  For the rest
there is one blocking call per disk and batch.
"""

from collections.abc import Coroutine
from functools import partial
from operator import add
from typing import Any

from ..chunkengine.read_values import ReadDone, RowsRead
from ..kernels.read_messages import rows_reply
from ..rpc.api import LATER, Call, Later, Reply
from ..rpc.buffer_pool import Lease
from ..schema.layout import CHUNK_SIZE_BYTES_MAX
from ..schema.proto import storage_pb2
from ..schema.status import FsError, Status
from .context import StorageContext
from .read_at_once import IO_COUNT_MAX, RowsWanted, find_rows, read_at_once, read_the_rest
from .read_elsewhere import BadRead, read_elsewhere
from .read_ios import INLINE_BYTES_MAX, Batch, begin, make_reply, read_disks, take_read, take_result
from .read_lent import lend_rows, may_leave_matching
from .read_one import REPLY_COLUMNS
from .read_versions import NOT_HERE, ask_tails, read_locked
from .targets import Place


def read_packed(
    context: StorageContext, call: Call, message: bytes, *, is_cold: bool
) -> (
    Reply[storage_pb2.BatchReadRsp]
    | Coroutine[Any, Any, Reply[storage_pb2.BatchReadRsp]]
    | Later
    | None
):
    """Read a batch as `read_batch` does, but without making an object of its message,
    if the batch is usual.

    Args:
        context: of the process.
        call: says when its sender gives up, and whether what it wants may be lent.
        message: a request by columns, as it came.
        is_cold: it has been tried without waiting, and the disk has to be waited for.

    Returns:
        The reply, if nothing had to be waited for.  Else what waits for it, which has to be
        awaited, or LATER.  None: nothing is done, and `read_batch` has to do it.

    Raises:
        FsError: LEASE_EXPIRED.
    """
    context.check_lease()
    rows = find_rows(context, message)
    if rows is None:
        return None
    if call.takes_ranges is not None and not is_cold:
        lent = lend_rows(context, call, rows)
        if lent is not None:
            return lent
    buffers, deadline_s = context.buffers, call.deadline_s
    lease = buffers.acquire_now(rows.size)
    if lease is None:
        return None
    is_given = False
    try:
        is_untried = _is_untried(call, rows, is_cold=is_cold)
        may_pay = is_cold or is_untried or read_at_once(rows, lease.view)
        if rows.done.left:
            is_given = True
            if may_pay:
                if not is_untried and _is_begun(context, call, message, lease, rows):
                    return LATER
                return _read_rows(
                    context,
                    message,
                    lease,
                    rows,
                    may_pass_cache=is_untried and not rows.fills_cache,
                    leaves_matching=may_leave_matching(call, rows),
                    deadline_s=deadline_s,
                )
            request = storage_pb2.BatchReadReq.FromString(message)
            return _read_batch(context, request, lease, rows.done, deadline_s=deadline_s)
        reply = _reply_of(context, rows, lease)
        is_given = True
        return reply
    finally:
        if not is_given:
            buffers.release(lease)


def _is_untried(call: Call, rows: RowsWanted, *, is_cold: bool) -> bool:
    """Return whether the page cache is not asked for rows on the event loop,
    which would have it begin to read them.

    It is not asked where the rows are many bytes.  Nor is it where a lone large read was to be lent
    and is not: mostly it is not in there.
    """
    size, (lengths, offsets) = rows.size, (rows.rows.lengths, rows.rows.offsets)
    if size != INLINE_BYTES_MAX or is_cold or call.takes_ranges is None:
        return size > INLINE_BYTES_MAX
    return len(lengths) == 1 and not offsets[0] % size


def _reply_of(
    context: StorageContext, rows: RowsWanted, lease: Lease
) -> Reply[storage_pb2.BatchReadRsp]:
    """Return the reply when all has been read;
    `lease` is taken over unless this raises LEASE_EXPIRED.
    """
    context.check_lease()
    rows.count_bytes()
    done, lengths = rows.done, rows.rows.lengths
    message: bytes | storage_pb2.BatchReadRsp
    if done.block_bytes:
        message = storage_pb2.BatchReadRsp(
            lengths=lengths,
            commit_vers=done.versions,
            block_bytes=done.block_bytes,
            block_checksums=done.blocks,
        )
    else:
        message = rows_reply(REPLY_COLUMNS, lengths, done.versions, done.checksums)
    return Reply(message, [lease.view], partial(context.buffers.release, lease))


def _is_begun(
    context: StorageContext, call: Call, message: bytes, lease: Lease, rows: RowsWanted
) -> bool:
    """Have a thread read what has to wait for the disk, and answer without a task.

    Returns:
        True: it is begun, and `lease` is taken over.  False: nothing is done.
    """
    by_disk = rows.by_disk(rows.done.left)
    answer = call.answer
    if answer is None or len(by_disk) > 1 or rows.size > INLINE_BYTES_MAX:
        return False
    ((disk, positions),) = by_disk.items()
    some, deadline_s = rows.rows.some(positions), call.deadline_s
    read = partial(
        disk.engine.read_rows,
        rows.keys,
        some,
        lease.view,
        want_checksums=rows.want_checksums,
        may_pass_cache=False,
        leaves_matching=False,
    )

    def result_of(done: RowsRead | None, error: BaseException | None) -> Any:
        is_given = False
        try:
            if done is not None:
                rows.done.left = []
                rows.done.take(positions, done)
                if not rows.done.left:
                    reply = _reply_of(context, rows, lease)
                    is_given = True
                    return reply
            if error is None or isinstance(error, FsError):
                # All of it anew: what is left cannot be read whole, or the disk
                # refuses, which it says then.
                request = storage_pb2.BatchReadReq.FromString(message)
                return _read_batch(context, request, None, None, deadline_s=deadline_s)
        except Exception as failure:  # noqa: BLE001 - no task would end with it, but the event loop
            return failure
        finally:
            if not is_given:
                context.buffers.release(lease)
        return error

    def end(done: RowsRead | None, error: BaseException | None) -> None:
        answer(result_of(done, error))

    return disk.begin_read(sum(some.lengths), read, end)


async def _read_rows(
    context: StorageContext,
    message: bytes,
    lease: Lease,
    rows: RowsWanted,
    *,
    may_pass_cache: bool,
    leaves_matching: bool,
    deadline_s: float,
) -> Reply[storage_pb2.BatchReadRsp]:
    """Read what has to wait for the disk, and then what is unusual; `lease` is taken over.

    With `leaves_matching` the caller compares bytes with the stored checksums, whichever way they
    come, and asks again if they differ.
    """
    is_given = False
    try:
        await read_the_rest(
            rows,
            lease.view,
            may_pass_cache=may_pass_cache,
            leaves_matching=leaves_matching and may_pass_cache,
        )
        if not rows.done.left:
            reply = _reply_of(context, rows, lease)
            is_given = True
            return reply
        request = storage_pb2.BatchReadReq.FromString(message)
        is_given = True
        return await _read_batch(context, request, lease, rows.done, deadline_s=deadline_s)
    finally:
        if not is_given:
            context.buffers.release(lease)


def read_batch(
    context: StorageContext, request: storage_pb2.BatchReadReq, *, deadline_s: float
) -> Coroutine[Any, Any, Reply[storage_pb2.BatchReadRsp]]:
    """Return what reads a batch.

    Each I/O has its own status; the reply's payload holds the bytes of all in order.

    Args:
        context: of the process.
        request: by columns.
        deadline_s: when its sender gives up, in trio's time.

    Raises:
        FsError: LEASE_EXPIRED; RPC_BAD_REQUEST or RPC_TOO_LARGE for the whole batch.
    """
    context.check_lease()
    _check_request(context, request)
    return _read_batch(context, request, None, None, deadline_s=deadline_s)


async def _read_batch(
    context: StorageContext,
    request: storage_pb2.BatchReadReq,
    lease: Lease | None,
    read: RowsRead | None,
    *,
    deadline_s: float,
) -> Reply[storage_pb2.BatchReadRsp]:
    """Read a batch, or what is left of it; `lease` is taken over."""
    # 1. Room, and the limits.
    wanted = request.lengths[:]
    if lease is None:
        lease = await context.buffers.acquire(sum(wanted))
    is_given = False
    try:
        # 2. Our place in each chain, at the sender's version; a trouble concerns its I/Os only.
        columns = (request.chain_ids, request.chain_versions)
        pairs = dict.fromkeys(zip(*columns, strict=True))
        known = {pair: await _place_of(context, *pair) for pair in pairs}
        # 3. Which of them want a chunk whose committed version here is in doubt?
        keys = list(zip(*columns, request.inode_ids, request.chunk_indexes, strict=True))
        batch, unsettled = begin(request, keys, known, lease.view)
        if read is not None:
            take_read(batch, wanted, read)
            unsettled = [n for n in unsettled if batch.done[n] is None]
        # 4. Find out which version is the committed one.
        if unsettled:
            await ask_tails(context, batch, unsettled, deadline_s)
        # 5. Read and verify, one blocking call per disk.
        await read_disks(batch, may_be_cached=read is None or not read.is_cold)
        # 6. Versions that moved on meanwhile: again, under the chunk lock.
        for index in unsettled:
            done, asked = batch.done[index], batch.ios[index]
            if asked and asked.version and done is not None and done.status in NOT_HERE:
                done = await read_locked(context, batch.places[index], asked, deadline_s)
                take_result(batch, index, done)
        # 7. Copies that are bad here: from another replica.
        if batch.bad and not request.is_passed_on:
            await _read_bad_elsewhere(context, batch, request.is_relaxed, deadline_s)
        # 8. What was read counts only if the lease held until now.
        context.check_lease()
        message, payload = make_reply(
            batch, wanted, lease.view, want_checksums=request.want_checksums
        )
        is_given = True
        return Reply(message, payload, partial(context.buffers.release, lease))
    finally:
        if not is_given:
            context.buffers.release(lease)


def _check_request(context: StorageContext, request: storage_pb2.BatchReadReq) -> None:
    lengths = request.lengths[:]
    count = len(lengths)
    if not 0 < count <= IO_COUNT_MAX:
        raise FsError(Status.RPC_BAD_REQUEST, f"{count} reads in a batch")
    columns = (request.inode_ids, request.chunk_indexes, request.chain_ids, request.chain_versions)
    if set(map(len, (*columns, request.offsets))) != {count}:
        raise FsError(Status.RPC_BAD_REQUEST, f"{count} lengths, and other columns of other sizes")
    if not all(lengths) or max(map(add, request.offsets[:], lengths)) > CHUNK_SIZE_BYTES_MAX:
        raise FsError(Status.RPC_BAD_REQUEST, "a read of 0 bytes, or beyond any chunk")
    size = sum(lengths)
    if size > context.payload_bytes_max:
        raise FsError(Status.RPC_TOO_LARGE, f"{size} bytes in a batch of reads")


async def _place_of(
    context: StorageContext, chain_id: int, chain_version: int
) -> tuple[Place | None, ReadDone | None]:
    """Return our place in a chain and None, or why it cannot be read there."""
    try:
        place = await context.place_at(chain_id, chain_version)
    except FsError as error:
        return None, ReadDone(error.status, 0, 0, error.detail)
    if place.can_read:
        return place, None
    return place, ReadDone(
        Status.NOT_SERVING,
        0,
        0,
        f"target {place.target.target_id} is {place.public_state.name},"
        f" here {place.target.local_state.name}",
    )


async def _read_bad_elsewhere(
    context: StorageContext, batch: Batch, is_relaxed: bool, deadline_s: float
) -> None:
    reads = []
    for index in batch.bad:
        place, io, done = batch.places[index], batch.ios[index], batch.done[index]
        assert place is not None and io is not None and done is not None
        reads.append(BadRead(place, io, done))
    await read_elsewhere(context, reads, is_relaxed=is_relaxed, deadline_s=deadline_s)
    for index, read in zip(batch.bad, reads, strict=True):
        batch.done[index] = read.done
