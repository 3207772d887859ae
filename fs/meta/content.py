"""Length, truncation and file sessions of regular files, within a transaction.

Rules:
    - A length hint counts when it was taken under the file's present truncate version; every writer
      reports the end of its own acknowledged writes, so the largest hint is the precise length.
    - A hint from before a truncation is void: the bytes may be gone or not, so the chains are asked
      (LengthUnknownError).  The chains never shorten a file: its end may be a hole.
    - While `truncate_pending`, nobody may write or lengthen the file (TruncationUnfinishedError).
    - Whoever changes length or chunks of an inline file has its bytes moved to a
      chunk first (StillInlineError), but to drop them all, or for others that come
      with the report (fs/meta/inline.py).
    - data_ver grows with every report of new content and every change of length by a user.
"""

import re

from ..kv.api import Transaction
from ..schema.inode import APPEND_ONLY, IMMUTABLE
from ..schema.layout import MAX_FILE_LENGTH_BYTES
from ..schema.proto import common_pb2 as pb
from ..schema.proto.meta_pb2 import FileSessionPb, LengthHintPb
from ..schema.proto.record_pb2 import FileSessionRecordPb
from ..schema.status import FsError, Status
from . import inline, permissions, records
from .context import (
    LengthUnknownError,
    OpContext,
    PreciseLength,
    StillInlineError,
    TruncationUnfinishedError,
)
from .damage import decoded, require_spread
from .inodes import advance_ctime, set_ctime

_SESSION_ID = re.compile("[0-9a-f]{32}")


def check_length(length: int) -> None:
    """Raise FsError(FILE_TOO_LARGE) for a length no file can have."""
    if length > MAX_FILE_LENGTH_BYTES:
        raise FsError(Status.FILE_TOO_LARGE, f"length {length}, at most {MAX_FILE_LENGTH_BYTES}")


def require_truncated(inode: pb.InodePb) -> None:
    """Raise TruncationUnfinishedError while chunks beyond the length are to be removed;
    FsError(METADATA_DAMAGED) where nobody can say which these are.
    """
    require_spread(inode)
    if inode.file.truncate_pending:
        raise TruncationUnfinishedError(inode)


def require_chunks(inode: pb.InodePb) -> None:
    """Raise StillInlineError while the bytes are in the metadata store."""
    if inode.file.is_inline:
        raise StillInlineError(inode)


def widen_stripe(part: pb.FilePartPb, slot_count: int) -> bool:
    """Double dyn_stripe until it covers so many slots, at most all; return whether it grew."""
    before, all_slots = part.dyn_stripe, part.layout.stripe_size
    while part.dyn_stripe < min(slot_count, all_slots):
        part.dyn_stripe = min(max(part.dyn_stripe * 2, 1), all_slots)
    return part.dyn_stripe != before


def lengthen(inode: pb.InodePb, length: int) -> None:
    """Let a file reach at least to `length` because bytes were, or will be, written there.

    The stripe that the writer has asked for before may have been lost with the power since.
    """
    part = inode.file
    assert not part.is_inline, inode.inode_id
    widen_stripe(part, -(-length // part.layout.chunk_size_bytes))
    if length > part.length:
        inode.used_bytes += length - part.length
        part.length = length


def _known(ctx: OpContext, inode: pb.InodePb) -> PreciseLength:
    """Return what the chains said; not of an earlier content:
    who has reported since may have counted more than this answer does.
    """
    known, part = ctx.precise_length, inode.file
    is_of_it = known is not None and known.inode_id == inode.inode_id
    if known is None or not is_of_it or known.truncate_ver != part.truncate_ver:
        raise LengthUnknownError(inode)
    if known.data_ver not in (None, part.data_ver):
        raise LengthUnknownError(inode)
    return known


def note_used(inode: pb.InodePb, used_bytes: int) -> None:
    """Take over what the chains said of the space that a file takes."""
    part = inode.file
    part.has_holes = used_bytes < part.length
    inode.used_bytes = min(used_bytes, part.length)


def apply_precise_length(ctx: OpContext, inode: pb.InodePb) -> None:
    """Take over what the chains said about the file;
    raises LengthUnknownError to have them asked.
    """
    known = _known(ctx, inode)
    inode.file.length = max(inode.file.length, known.length)
    note_used(inode, known.used_bytes)


def apply_used(ctx: OpContext, inode: pb.InodePb) -> None:
    """Take over what the chains said of the space that a file takes;
    raises LengthUnknownError to have them asked.
    """
    note_used(inode, _known(ctx, inode).used_bytes)


def apply_length_hint(ctx: OpContext, inode: pb.InodePb, hint: LengthHintPb) -> None:
    """Take over what a writer knows about the length.

    Raises:
        FsError: FILE_TOO_LARGE.
        LengthUnknownError: the hint is void.
        StillInlineError: it knows of bytes behind the inline ones.
    """
    check_length(hint.length)
    is_valid = hint.truncate_ver == inode.file.truncate_ver
    if inode.file.is_inline:
        if is_valid and hint.length > inode.file.length:
            raise StillInlineError(inode)
    elif is_valid:
        lengthen(inode, hint.length)
    else:
        apply_precise_length(ctx, inode)


def cut_behind_end(tr: Transaction, ctx: OpContext, inode: pb.InodePb) -> None:
    """Begin a truncation to the present length:
    whatever lies behind it goes, all promises are void.
    """
    part = inode.file
    part.truncate_ver += 1
    part.truncate_pending = True
    part.charged_length = 0
    part.is_end_refused = False
    tr.set(records.truncation_key(inode.inode_id), records.pack_u64(ctx.now_ns))


def set_length(tr: Transaction, ctx: OpContext, inode: pb.InodePb, length: int) -> None:
    """Truncate or extend a file that has no truncation pending; the caller stores the inode.

    Shortening leaves `truncate_pending` set: the service cuts the chunks after the commit.  An
    inline file can only be emptied.

    Raises:
        FsError: FILE_TOO_LARGE.
        StillInlineError: any other length of an inline file.
    """
    check_length(length)
    part = inode.file
    assert not part.truncate_pending, inode.inode_id
    if part.is_inline:
        if length:
            raise StillInlineError(inode)
        tr.mark_freeing()
        inline.empty(tr, inode)
    elif length < part.length:
        tr.mark_freeing()
        inode.used_bytes = min(inode.used_bytes, length)
        part.length = length
        cut_behind_end(tr, ctx, inode)
    elif length > part.length:
        inode.used_bytes = inode.used_bytes if part.has_holes else part.length
        part.has_holes = True
    part.has_holes = part.has_holes and length > 0
    part.length = length
    part.data_ver += 1
    inode.mtime_ns = ctx.now_ns
    advance_ctime(ctx, inode)
    if not ctx.caller.is_root:
        inode.mode = permissions.mode_after_write(ctx.caller, inode)


def note_written(ctx: OpContext, inode: pb.InodePb, written_ns: int) -> None:
    """Let ctime be the time of a write, which its writer has seen already,
    where both clocks allow it.

    It may then lie behind that of other reports, never behind the inode's own; data_ver
    tells which is the newer one.
    """
    if inode.ctime_ns < written_ns <= ctx.now_ns:
        set_ctime(inode, written_ns)
    else:
        advance_ctime(ctx, inode)


def check_session_id(session_id: str) -> None:
    """Raise FsError(INVALID_ARGUMENT) unless the id of a file session
    is 32 lower-case hexadecimal digits.
    """
    if _SESSION_ID.fullmatch(session_id) is None:
        raise FsError(Status.INVALID_ARGUMENT, f"file session {session_id!r}")


def store_session(tr: Transaction, ctx: OpContext, inode_id: int, session: FileSessionPb) -> None:
    """Keep an inode alive for a client that has it open."""
    session_id = session.session_id
    check_session_id(session_id)
    record = FileSessionRecordPb(
        session_id=session_id,
        client_id=ctx.caller.client_id,
        is_write=session.is_write,
        created_ns=ctx.now_ns,
    )
    tr.set(records.file_session_key(inode_id, session_id), record.SerializeToString())


def _belongs_to_writer(ctx: OpContext, key: bytes, value: bytes) -> bool:
    record = decoded(FileSessionRecordPb, key, value)
    return record.is_write and record.client_id == ctx.caller.client_id


async def may_write(tr: Transaction, ctx: OpContext, inode: pb.InodePb) -> bool:
    """Return whether the caller may change the content of a file.

    The owner may (mode bits were checked when he opened it, and he could change them), as does
    whoever has write access now, or whose client holds a write session that an open granted.  Of an
    immutable file, or an append-only one, only such a session gives the right: it is from before,
    or was opened for appending.
    """
    caller = ctx.caller
    is_permitted = caller.uid == inode.uid or permissions.is_allowed(
        caller, inode, permissions.WRITE
    )
    if is_permitted and not inode.iflags & (IMMUTABLE | APPEND_ONLY):
        return True
    prefix = records.file_session_prefix(inode.inode_id)
    end = records.file_session_prefix(inode.inode_id) + b"\xff"
    sessions = await tr.get_range(prefix, end, snapshot=True)
    return any(_belongs_to_writer(ctx, key, value) for key, value in sessions)


async def require_may_write(tr: Transaction, ctx: OpContext, inode: pb.InodePb) -> None:
    """Raise FsError(ACCESS_DENIED) unless `may_write`."""
    if not await may_write(tr, ctx, inode):
        raise FsError(
            Status.ACCESS_DENIED,
            f"uid {ctx.caller.uid} has not opened inode {inode.inode_id:#x} for writing",
        )


async def end_own_session(tr: Transaction, ctx: OpContext, session_key: bytes) -> bool:
    """Drop the session under a key if it is of the caller's client;
    return whether it was for writing.
    """
    value = await tr.get(session_key)
    if value is None:
        return False
    record = decoded(FileSessionRecordPb, session_key, value)
    if record.client_id != ctx.caller.client_id:
        return False
    tr.mark_freeing()  # what was removed meanwhile is collected from then on
    tr.clear(session_key)
    return record.is_write
