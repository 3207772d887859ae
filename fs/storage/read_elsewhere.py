"""Reads whose copy here is bad, served from another replica within the same request.

The other target is asked with an ordinary read under the same chain version, so its answer is right
by its own rules, whatever has been committed meanwhile.  Such a question carries `is_passed_on`:
who gets one answers from its own copy or not at all, so no read goes round in circles.

Concurrency: one task per chain that has bad copies in the batch.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import trio
import xxhash

from ..chunkengine.read_values import ReadDone, ReadIo
from ..schema import services
from ..schema.ids import ChainId, TargetId
from ..schema.proto import storage_pb2
from ..schema.read_columns import WantedRead, check_lengths, read_request, read_results
from ..schema.status import FsError, Status
from .context import StorageContext
from .targets import Place

log = logging.getLogger(__name__)

TIMEOUT_S: Final = 3.0
"""For one other replica, and never more than half of what is left:
the client still hears of the result.
"""

DAMAGED: Final = frozenset({Status.CHECKSUM_MISMATCH, Status.IO_ERROR, Status.CHUNK_DAMAGED})
"""Of a single read: the copy is bad, the whole disk may be sound."""


@dataclass(slots=True)
class BadRead:
    """A read that found a bad copy here; `done` becomes what another replica answered."""

    place: Place
    io: ReadIo
    done: ReadDone


async def read_elsewhere(
    context: StorageContext, bad: Sequence[BadRead], *, is_relaxed: bool, deadline_s: float
) -> None:
    """Read from the other serving targets; the bytes go to the same buffers.

    A read stays as it is when somebody who may have the bytes did not answer; it becomes
    CHUNK_DAMAGED when every serving target has answered and none has them.
    """
    by_chain: dict[ChainId, list[BadRead]] = {}
    for read in bad:
        by_chain.setdefault(read.place.chain.chain_id, []).append(read)
    async with trio.open_nursery() as nursery:
        for reads in by_chain.values():
            nursery.start_soon(_read_chain, context, reads, is_relaxed, deadline_s)


async def _read_chain(
    context: StorageContext, reads: list[BadRead], is_relaxed: bool, deadline_s: float
) -> None:
    place, have_all_answered = reads[0].place, True
    left = reads
    for other in place.chain.serving:
        timeout_s = min(TIMEOUT_S, (deadline_s - trio.current_time()) / 2)
        if other == place.target.target_id or not left:
            continue
        if timeout_s <= 0:
            have_all_answered = False
            break
        try:
            answers = await _ask(context, other, left, is_relaxed, timeout_s)
        except FsError as error:
            log.warning("target %d: %d reads not passed on: %s", other, len(left), error)
            have_all_answered = False
            continue
        left, unanswered = _take(place, other, left, answers)
        have_all_answered &= not unanswered
    for read in left:
        if have_all_answered and place.can_read:
            detail = f"{read.io.chunk_id}: none of the targets {place.chain.serving} has its bytes"
            read.done = ReadDone(Status.CHUNK_DAMAGED, 0, 0, detail)


def _take(
    place: Place, other: TargetId, left: list[BadRead], answers: Sequence[ReadDone]
) -> tuple[list[BadRead], int]:
    """Keep the good answers; return the reads that are still bad,
    and how many the other said nothing of.
    """
    still, unanswered, good = [], 0, 0
    for read, answer in zip(left, answers, strict=True):
        if answer.status in {Status.OK, Status.CHUNK_NOT_FOUND}:
            read.done = answer
            good += 1
            continue
        still.append(read)
        unanswered += answer.status not in DAMAGED
    if good:
        place.target.read_elsewhere_count += good
        log.warning(
            "target %d: %d reads of bad copies served from target %d",
            place.target.target_id,
            good,
            other,
        )
    return still, unanswered


async def _ask(
    context: StorageContext,
    other: TargetId,
    reads: Sequence[BadRead],
    is_relaxed: bool,
    timeout_s: float,
) -> list[ReadDone]:
    """Read all at one target, into the reads' buffers; raises FsError when it does not answer."""
    wanted = [
        WantedRead(
            read.io.chunk_id.inode_id,
            read.io.chunk_id.index,
            read.place.chain.chain_id,
            read.place.chain.chain_version,
            read.io.offset,
            read.io.length,
        )
        for read in reads
    ]
    request = read_request(wanted, is_relaxed=is_relaxed, want_checksums=True, is_passed_on=True)
    received = await context.channel_to(other).call(
        services.STORAGE_BATCH_READ, request, into=partial(_buffers, reads), timeout_s=timeout_s
    )
    answers = []
    for read, result in zip(reads, read_results(received.message, len(reads)), strict=True):
        status, detail = result.status, result.detail
        piece = read.io.buffer[: result.length]
        if not status and piece and xxhash.xxh3_64_intdigest(piece) != result.checksum:
            status, detail = Status.CHECKSUM_MISMATCH, f"target {other}: changed on the way"
        answers.append(ReadDone(status, result.length, result.commit_ver, detail))
    return answers


def _buffers(
    reads: Sequence[BadRead], reply: storage_pb2.BatchReadRsp, payload_bytes: int
) -> list[memoryview]:
    """Return where the payload goes; raises FsError(RPC_BAD_FRAME) when the reply does not fit."""
    lengths = check_lengths(reply, [read.io.length for read in reads], payload_bytes)
    return [r.io.buffer[:n] for n, r in zip(lengths, reads, strict=True) if n]
