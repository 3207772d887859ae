"""MakeDirectories: a directory and all that are missing above it, all or none of them,
as of one moment.

What exists of the path is walked as by ResolvePath.  From the first missing name on everything
is new, so only that name and the directory it goes into can be what somebody else changes too:
they are read with a conflict.

Source: mkdir(1), -p, for the mode of directories on the way.
"""

from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Final

from ...kv.api import Transaction
from ...schema.proto import common_pb2 as pb
from ...schema.proto import meta_pb2 as meta
from ...schema.services import META_MAKE_DIRECTORIES
from ...schema.status import FsError, Status
from .. import permissions, records
from ..context import OpContext
from ..dentries import check_name
from ..idempotency import once
from ..inodes import load_complete, load_directory
from ..making import find_place, put_uncounted
from ..resolve import walk
from ..usage import charge
from ..usage_sum import Usage
from .mkdir import new_directory

NEW_COUNT_MAX: Final = 256
"""Of one request, so that it is a transaction of moderate size."""

_ON_THE_WAY: Final = 0o300
"""Rights of the owner of a directory in which another one is made at once."""


def _check_new(names: Sequence[bytes]) -> None:
    for name in names:
        check_name(name)
        if name == b"..":
            raise FsError(Status.NOT_FOUND, "`..` of a directory that does not exist")
    if len(names) > NEW_COUNT_MAX:
        what = f"{len(names)} directories to be made at once, at most {NEW_COUNT_MAX}"
        raise FsError(Status.ARGUMENT_TOO_LARGE, what)


def _chain(
    ctx: OpContext,
    top: pb.InodePb,
    new: Sequence[tuple[bytes, int]],
    request: meta.MakeDirectoriesReq,
) -> Iterator[pb.InodePb]:
    """Yield the new directories, of these names and ids, from the top down; nothing is stored.

    Raises:
        FsError: ACCESS_DENIED: a default access control list lets the caller
            not write into one of them.
    """
    parent = top
    for number, (name, inode_id) in enumerate(new, 1):
        made_by = ctx._replace(new_inode_id=inode_id)
        mode, umask = request.mode, request.umask
        if number < len(new):
            mode, umask = mode | _ON_THE_WAY, umask & ~_ON_THE_WAY
        if parent is not top:
            permissions.require(ctx.caller, parent, permissions.WRITE | permissions.SEARCH)
        parent = new_directory(made_by, parent, name, mode, umask=umask)
        yield parent


async def _store(
    tr: Transaction, ctx: OpContext, top: pb.InodePb, made: Sequence[pb.InodePb]
) -> None:
    parent = top
    for number, inode in enumerate(made, 1):
        await put_uncounted(tr, ctx, parent, inode.directory.name, inode)
        if number < len(made):  # what lies below it
            key = records.usage_key(inode.inode_id, records.KIND_DIRECTORIES)
            tr.atomic_add(key, len(made) - number)
        parent = inode


def new_count_max(path: bytes) -> int:
    """Return how many directories a request for this path may make."""
    return min(len([name for name in path.split(b"/") if name]), NEW_COUNT_MAX)


def make_directories(
    inode_ids: Sequence[int],
) -> Callable[
    [Transaction, OpContext, meta.MakeDirectoriesReq], Awaitable[meta.MakeDirectoriesRsp]
]:
    """Return the operation that gives these ids, `new_count_max` of them, to what it makes.

    It makes what is missing of a path; that nothing is missing is no error.

    Raises, when it is called:
        FsError: EXISTS (the last name is there, and no directory), NOT_DIRECTORY (another one is),
        NOT_FOUND (a link that leads
            nowhere, or `..` of what is missing), ARGUMENT_TOO_LARGE (NEW_COUNT_MAX), and
            as `find_place` and `walk`.
    """

    @once(META_MAKE_DIRECTORIES)
    async def run(
        tr: Transaction, ctx: OpContext, request: meta.MakeDirectoriesReq
    ) -> meta.MakeDirectoriesRsp:
        return await _make(tr, ctx, request, inode_ids)

    return run


async def _make(
    tr: Transaction, ctx: OpContext, request: meta.MakeDirectoriesReq, inode_ids: Sequence[int]
) -> meta.MakeDirectoriesRsp:
    start = await load_directory(tr, ctx, request.parent_inode_id)
    found, rest = await walk(tr, ctx, start, request.path)
    names = [name for name in rest if name != b"."]
    if not names:
        if found.type != pb.DIRECTORY:
            raise FsError(Status.EXISTS, f"{request.path!r} is no directory")
        return meta.MakeDirectoriesRsp(inode=await load_complete(tr, found.inode_id))
    _check_new(names)
    top = await find_place(tr, ctx, found.inode_id, names[0])
    made = list(_chain(ctx, top, list(zip(names, inode_ids, strict=False)), request))
    await charge(tr, ctx, (top.inode_id, Usage(directory_count=len(made))))
    await _store(tr, ctx, top, made)
    last = made[-1]
    return meta.MakeDirectoriesRsp(inode=last, made_inode_ids=[i.inode_id for i in made])
