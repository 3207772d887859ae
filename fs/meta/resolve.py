"""Path walk: a path from the root to an inode, following symbolic links.

Serves ResolvePath and BatchResolvePath; mounts walk by Lookup instead.  Reads are
snapshot reads of one transaction.

Source: path_resolution(7).
"""

from functools import partial

from ..kv.api import Transaction
from ..runtime.ports import Buffer
from ..schema.ids import ROOT_INODE_ID
from ..schema.inode import PATH_BYTES_MAX
from ..schema.proto import common_pb2 as pb
from ..schema.proto import meta_pb2 as meta
from ..schema.status import FsError, Retry, Status
from . import inline, records
from .context import OpContext, StillInlineError
from .damage import require_spread
from .dentries import check_name, load_dentry, told
from .inodes import complete, load_directory, load_inode
from .permissions import require_openable

SYMLINK_COUNT_MAX = 40

PATH_COUNT_MAX = 1024
"""Of one BatchResolvePath."""

Seen = dict[int | tuple[int, bytes], pb.InodePb]
"""Directories that walks of one transaction have passed, by inode id,
where the caller may search them, and by (inode id, name), where they are below it.
"""


def _split(path: bytes) -> list[bytes]:
    """Return the components in reverse, with a final `.` for a trailing slash."""
    if len(path) > PATH_BYTES_MAX:
        raise FsError(Status.NAME_TOO_LONG, f"path of {len(path)} bytes")
    parts = [part for part in path.split(b"/") if part]
    if path.endswith(b"/"):
        parts.append(b".")
    return parts[::-1]


async def _step(
    tr: Transaction, ctx: OpContext, here: pb.InodePb, name: bytes, seen: Seen
) -> pb.InodePb:
    place = here.inode_id, name
    child = seen.get(place)
    if child is not None:
        return child
    check_name(name)
    directory = seen.get(here.inode_id)
    if directory is None:
        directory = await load_directory(tr, ctx, here.inode_id, snapshot=True)
        seen[here.inode_id] = directory
    if name == b".":
        return directory
    if name == b"..":
        return await load_inode(tr, directory.directory.parent_inode_id, snapshot=True)
    dentry = await load_dentry(tr, here.inode_id, name, snapshot=True)
    child = await load_inode(tr, dentry.inode_id, snapshot=True)
    if child.type == pb.DIRECTORY:
        seen[place] = child
    return child


async def walk(
    tr: Transaction,
    ctx: OpContext,
    start: pb.InodePb,
    path: bytes,
    *,
    follow_last: bool = True,
    seen: Seen | None = None,
) -> tuple[pb.InodePb, list[bytes]]:
    """Walk as far as the path exists; return the last inode there is,
    and the names that are missing.

    Several walks of one snapshot for one caller may share what they have `seen`: then the inodes
    of directories may be complete.

    Raises:
        FsError: NOT_FOUND (a symbolic link on the way leads nowhere), NOT_DIRECTORY, ACCESS_DENIED,
            TOO_MANY_SYMLINKS, NAME_TOO_LONG, INVALID_ARGUMENT.
    """
    seen = {} if seen is None else seen
    rest, here, link_count = _split(path), start, 0
    own_count = len(rest)  # names at the bottom of the stack that are not those of a link
    while rest:
        name = rest.pop()
        is_own = len(rest) < own_count
        own_count = min(own_count, len(rest))
        try:
            child = await _step(tr, ctx, here, name, seen)
        except FsError as error:
            if error.status is not Status.NOT_FOUND or not is_own:
                raise
            return here, [name, *reversed(rest)]
        if child.type != pb.SYMLINK or not (rest or follow_last):
            here = child
            continue
        link_count += 1
        if link_count > SYMLINK_COUNT_MAX:
            raise FsError(Status.TOO_MANY_SYMLINKS, f"{path!r}")
        target = child.symlink_target
        rest.extend(_split(target))
        if target.startswith(b"/"):
            here = await load_inode(tr, ROOT_INODE_ID, snapshot=True)
    return here, []


async def _resolve(
    tr: Transaction,
    ctx: OpContext,
    path: bytes,
    *,
    follow_last: bool,
    wants_read: bool,
    seen: Seen | None = None,
) -> pb.InodePb:
    if not path:
        raise FsError(Status.NOT_FOUND, "the empty path")
    root = None if seen is None else seen.get(ROOT_INODE_ID)
    if root is None:
        root = await load_inode(tr, ROOT_INODE_ID, snapshot=True)
    here, missing = await walk(tr, ctx, root, path, follow_last=follow_last, seen=seen)
    if missing:
        raise FsError(Status.NOT_FOUND, told(missing[0], here.inode_id))
    inode = await complete(tr, here, snapshot=True)
    if wants_read:
        require_openable(ctx.caller, inode, reads=True, writes=False)
        if inode.type == pb.FILE:
            require_spread(inode)
    return inode


async def resolve_path(
    tr: Transaction, ctx: OpContext, request: meta.ResolvePathReq
) -> meta.InodeRsp:
    """Return the inode of a path taken from the root;
    with `wants_read`, open it for reading, which leaves no trace.

    Raises:
        FsError: NOT_FOUND, NOT_DIRECTORY, ACCESS_DENIED, TOO_MANY_SYMLINKS,
            NAME_TOO_LONG, METADATA_DAMAGED.
        StillInlineError: with `wants_read`, to who knows of no inline files.
    """
    wants_read = request.wants_read
    inode = await _resolve(
        tr, ctx, request.path, follow_last=request.follow_last, wants_read=wants_read
    )
    reply = meta.InodeRsp(inode=inode, may_read=wants_read)
    if wants_read and inode.file.is_inline:
        if not request.takes_inline:
            raise StillInlineError(inode)
        await inline.give(tr, inode, reply)
    return reply


async def batch_resolve_path(
    tr: Transaction, ctx: OpContext, request: meta.BatchResolvePathReq
) -> tuple[meta.BatchResolvePathRsp, list[Buffer]]:
    """Return for each path, in order and of one snapshot, its inode,
    or what `resolve_path` would raise, and what is the payload.

    Of inline files the bytes come along, in the payload or else in the message, until there are
    `inline.REPLY_BYTES_MAX` of them; those of others are asked for again.

    Raises:
        FsError: RPC_BAD_REQUEST for more than PATH_COUNT_MAX paths.
        StillInlineError: as `resolve_path`.
    """
    if len(request.paths) > PATH_COUNT_MAX:
        what = f"{len(request.paths)} paths, at most {PATH_COUNT_MAX}"
        raise FsError(Status.RPC_BAD_REQUEST, what)
    reply = meta.BatchResolvePathRsp()
    follow_last, wants_read = request.follow_last, request.wants_read
    resolve = partial(_resolve, follow_last=follow_last, wants_read=wants_read, seen=Seen())
    for path in request.paths:
        slot = reply.resolved.add()
        try:
            inode = await resolve(tr, ctx, path)
        except FsError as error:
            _refuse(slot, error)
        else:
            slot.inode.CopyFrom(inode)
            slot.may_read = request.wants_read
    payload = await _tell_inline(tr, ctx, request, reply) if request.wants_read else []
    return reply, payload


async def _tell_inline(
    tr: Transaction,
    ctx: OpContext,
    request: meta.BatchResolvePathReq,
    reply: meta.BatchResolvePathRsp,
) -> list[Buffer]:
    slots = [slot for slot in reply.resolved if slot.inode.file.is_inline]
    if slots and not request.takes_inline:
        raise StillInlineError(*(slot.inode for slot in slots))
    if request.HasField("payload_bytes_max"):
        return await inline.pack(tr, ctx, slots, request.payload_bytes_max)
    brought, length = [], 0
    for slot in slots:
        length += slot.inode.file.length
        if length <= inline.REPLY_BYTES_MAX:
            brought.append(slot)
    await tr.prefetch(records.inline_key(slot.inode.inode_id) for slot in brought)
    for slot in brought:
        try:
            await inline.give(tr, slot.inode, slot)
        except FsError as error:
            _refuse(slot, error)
    return []


def _refuse(slot: meta.ResolvedPathPb, error: FsError) -> None:
    """Say of one path why it was not found, instead of all else;
    raises what another try may find otherwise.
    """
    if error.retry is not Retry.NEVER:
        raise error
    slot.Clear()
    slot.status, slot.detail = int(error.status), error.detail
