"""The bytes of inline files: what a report may bring, what a reply tells,
and the record beside the inode.

Invariants:
    - `is_inline` of an inode and its INLN record exist together, and the record has
      `length` bytes, at least one.
    - An inline file has no chunk, and its `dyn_stripe` is 0; nobody writes a chunk of it before the
      bytes have been moved (content.require_chunks), but for the move itself.
    - `inline-bytes` is the sum over all records.
    - Only a store of format INLINE_FORMAT holds any: services of earlier releases do not serve it.

Does not: move the bytes to a chunk; that is fs/meta/content_driver.py.

Source: decision 0149.
"""

from collections.abc import Iterable
from functools import lru_cache
from typing import Final

from google.protobuf.message import DecodeError
from xxhash import xxh3_64_intdigest

from ..kv.api import Transaction
from ..runtime.ports import Buffer
from ..schema.proto import common_pb2 as pb
from ..schema.proto import meta_pb2 as meta
from ..schema.proto.record_pb2 import FileSessionRecordPb, FormatRecordPb, InlineRecordPb
from ..schema.status import FsError, Status
from . import permissions, records
from .context import OpContext, StillInlineError
from .damage import count, damaged, decoded

REPLY_BYTES_MAX: Final = 4 * 1024 * 1024
"""Of inline bytes in one reply about many files; those of further files are asked for again."""

_CHECKSUM_TAG: Final = 0x11
_CHECKSUM_BYTES: Final = 9
"""With its tag, behind the bytes."""


async def length_max(tr: Transaction, ctx: OpContext) -> int:
    """Return how long a file may be to be made inline now; 0: none is."""
    if not ctx.config.inline_bytes_max:
        return 0
    keys = [records.FORMAT_KEY, records.INLINE_BYTES_KEY]
    stored, total = await tr.get_many(keys, snapshot=True)
    if stored is None or not _may_hold_inline(stored):
        return 0
    try:
        left = ctx.config.inline_total_bytes_max - count(records.INLINE_BYTES_KEY, total)
    except FsError:  # fs/meta/meta.py tells; meanwhile files are written as larger ones are
        return 0
    return max(0, min(ctx.config.inline_bytes_max, left))


@lru_cache(maxsize=8)
def _may_hold_inline(stored: bytes) -> bool:
    """Return whether a store with this format record may hold inline files."""
    record = decoded(FormatRecordPb, records.FORMAT_KEY, stored)
    return record.format_version >= records.INLINE_FORMAT


# ---- the record ----------------------------------------------------------------------------------


def no_bytes(inode: pb.InodePb) -> FsError:
    """Return the error that says that the record of an inline file is missing."""
    key = records.inline_key(inode.inode_id)
    return damaged(key, f"inode {inode.inode_id:#x} is inline and has none")


async def load(tr: Transaction, inode: pb.InodePb, *, snapshot: bool = False) -> InlineRecordPb:
    """Return the bytes of an inline file and their checksum, which is not compared here.

    Raises:
        FsError: METADATA_DAMAGED; STALE: the file is gone, of which a remembered reply told.
    """
    key = records.inline_key(inode.inode_id)
    value = await tr.get(key, snapshot=snapshot)
    if value is None:
        if await tr.get(records.inode_key(inode.inode_id), snapshot=snapshot) is None:
            raise FsError(Status.STALE, f"inode {inode.inode_id:#x}")
        raise no_bytes(inode)
    record = decoded(InlineRecordPb, key, value)
    if len(record.data) != inode.file.length:
        raise damaged(key, f"{len(record.data)} bytes, the inode says {inode.file.length}")
    return record


@lru_cache(maxsize=1024)
def _data_head(length: int) -> bytes:
    """Return what stands in a record before so many bytes."""
    record = InlineRecordPb(data=bytes(length)).SerializeToString()
    return record[: len(record) - length]


def parts_of(inode: pb.InodePb, value: bytes) -> tuple[Buffer, int] | None:
    """Return the bytes of an inline file where they lie in its record, and their checksum;
    None: it is no record of this inode.
    """
    length = inode.file.length
    head = _data_head(length)
    end = len(head) + length
    if (
        len(value) == end + _CHECKSUM_BYTES
        and value.startswith(head)
        and value[end] == _CHECKSUM_TAG
    ):
        checksum = int.from_bytes(value[end + 1 :], "little")
        return memoryview(value)[len(head) : end], checksum
    try:
        record = InlineRecordPb.FromString(value)
    except DecodeError:
        return None
    return (record.data, record.checksum) if len(record.data) == length else None


def check_bytes(inode_id: int, record: InlineRecordPb) -> bytes:
    """Return the bytes of a record; raises FsError(METADATA_DAMAGED)
    unless they match their checksum.
    """
    if xxh3_64_intdigest(record.data) != record.checksum:
        raise damaged(records.inline_key(inode_id), "its bytes do not match their checksum")
    return record.data


def become_inline(inode: pb.InodePb, length: int) -> None:
    """Say in an inode that its bytes are in a record; see `put`."""
    part = inode.file
    part.is_inline = True
    part.dyn_stripe = 0
    part.length = inode.used_bytes = length
    part.has_holes = False


def put(tr: Transaction, stored: pb.InodePb, record: InlineRecordPb) -> None:
    """Store the bytes of a file that is `stored` so far,
    without any or with others that are inline.
    """
    more = len(record.data) - stored.file.length
    if more:
        tr.atomic_add(records.INLINE_BYTES_KEY, more)
    tr.set(records.inline_key(stored.inode_id), record.SerializeToString())


def drop(tr: Transaction, inode: pb.InodePb) -> None:
    """Remove the bytes of an inline file; the caller says where they are now,
    and stores the inode.
    """
    part = inode.file
    assert part.is_inline, inode.inode_id
    tr.atomic_add(records.INLINE_BYTES_KEY, -part.length)
    tr.clear(records.inline_key(inode.inode_id))
    part.is_inline = False


def empty(tr: Transaction, inode: pb.InodePb) -> None:
    """Truncate an inline file to no bytes; the caller stores the inode.

    There are no chunks to be cut.
    """
    drop(tr, inode)
    part = inode.file
    part.length = inode.used_bytes = 0
    part.truncate_ver += 1
    part.cut_ver = part.truncate_ver
    part.charged_length = 0


def is_emptied_inline(part: pb.FilePartPb) -> bool:
    """Return whether a truncation to 0 may have been `empty`:
    other files that hold nothing have a stripe.
    """
    return not (part.length or part.dyn_stripe)


# ---- reports that bring all bytes ----------------------------------------------------------------


def check_report(inode: pb.InodePb, report: meta.SyncReq) -> None:
    """Raise FsError unless a report with inline data says one thing:
    NOT_REGULAR, INVALID_ARGUMENT.
    """
    if inode.type != pb.FILE:
        raise FsError(Status.NOT_REGULAR, f"inode {inode.inode_id:#x}")
    data = report.inline_data
    if not (report.has_new_data and report.HasField("length_hint")):
        raise FsError(Status.INVALID_ARGUMENT, "inline data without a length, or not as new data")
    if report.length_hint.length != len(data) or report.counts_space:
        what = f"{len(data)} inline bytes as all of {report.length_hint.length}"
        raise FsError(Status.INVALID_ARGUMENT, what)
    if xxh3_64_intdigest(data) != report.inline_checksum:
        raise FsError(Status.INVALID_ARGUMENT, "inline data does not match its checksum")


async def may_take(
    tr: Transaction, ctx: OpContext, inode: pb.InodePb, report: meta.SyncReq
) -> bool:
    """Return whether the bytes of a report may become those of the file,
    as far as quotas do not matter.

    Whoever opens the file for writing meanwhile conflicts with this transaction.
    """
    part = inode.file
    if part.truncate_pending or part.is_end_refused or not (part.is_inline or part.length == 0):
        return False
    if part.has_lost_writer:
        return False
    is_known = part.data_ver == report.inline_data_ver
    if not is_known or part.truncate_ver != report.length_hint.truncate_ver:
        return False
    # What an inline file has already counts in the total, and may be replaced.
    length = len(report.inline_data)
    more = max(0, length - part.length)
    room = await length_max(tr, ctx)
    if not (0 < length <= ctx.config.inline_bytes_max and more <= room and room):
        return False
    return await _is_only_client(tr, ctx, inode.inode_id)


async def _is_only_client(tr: Transaction, ctx: OpContext, inode_id: int) -> bool:
    prefix = records.file_session_prefix(inode_id)
    found = await tr.get_range(prefix, prefix + b"\xff")
    sessions = (decoded(FileSessionRecordPb, key, value) for key, value in found)
    writers = {session.client_id for session in sessions if session.is_write}
    return writers == {ctx.caller.client_id}


# ---- replies -------------------------------------------------------------------------------------


async def tell(
    tr: Transaction,
    ctx: OpContext,
    request: meta.OpenReq | meta.CreateReq,
    reply: meta.InodeRsp | meta.CreateRsp,
) -> None:
    """Put into the reply to who opens a file its bytes, if they are inline,
    and how long it may be to become so.

    Raises:
        StillInlineError: the caller knows of no inline files, and is about to read or write.
        FsError: as `load`.
    """
    inode = reply.inode
    if not request.takes_inline:
        if inode.file.is_inline and (request.wants_read or request.wants_write):
            raise StillInlineError(inode)
        return
    if request.wants_write and not inode.file.has_lost_writer:
        reply.inline_bytes_max = await length_max(tr, ctx)
    # Who may only write gets none, and has to write to chunks.
    if inode.file.is_inline and (
        request.wants_read or permissions.is_allowed(ctx.caller, inode, permissions.READ)
    ):
        await give(tr, inode, reply)


async def give(
    tr: Transaction,
    inode: pb.InodePb,
    reply: meta.InodeRsp | meta.CreateRsp | meta.ResolvedPathPb,
) -> None:
    """Put the bytes of an inline file into a reply; raises as `load`."""
    record = await load(tr, inode, snapshot=True)
    reply.inline_data, reply.inline_checksum = record.data, record.checksum


async def pack(
    tr: Transaction,
    ctx: OpContext,
    replies: Iterable[meta.InodeRsp | meta.ResolvedPathPb],
    bytes_max: int,
) -> list[Buffer]:
    """Return the bytes of many inline files, one after the other, as a payload,
    and say in each of their replies that they are there.

    Left out are those beyond `bytes_max` or REPLY_BYTES_MAX, and what is damaged:
    who asks for that alone is told.
    """
    room = left = min(bytes_max, REPLY_BYTES_MAX)
    packed = []
    for reply in replies:
        if reply.inode.file.length > left:
            break
        left -= reply.inode.file.length
        packed.append((reply, records.inline_key(reply.inode.inode_id)))
    if not packed:
        return []
    await tr.prefetch(key for _, key in packed)
    # One after the other, each in the memory that the one before has left: fresh
    # pages cost more than the copy.
    payload, end = ctx.memory.take(room - left), 0
    for reply, key in packed:
        value = await tr.get(key, snapshot=True)
        parts = None if value is None else parts_of(reply.inode, value)
        if parts is not None:
            data, reply.inline_checksum = parts
            reply.is_in_payload = True
            payload[end : end + len(data)] = data
            end += len(data)
    return [payload[:end]] if end else []
