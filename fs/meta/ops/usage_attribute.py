"""Usage and quota of a directory as extended attributes:
decimal numbers that are read, never set or listed.
"""

from collections.abc import Callable
from typing import Final

from ...kv.api import Transaction
from ...schema.proto import common_pb2 as pb
from ...schema.proto import meta_pb2 as meta
from ...schema.status import FsError, Status
from ..context import OpContext
from ..inodes import load_inode
from .get_usage import describe, load_readable

_NUMBERS: Final[dict[bytes, Callable[[meta.DirectoryUsagePb], int]]] = {
    b"ember.usage.bytes": lambda d: d.usage.bytes,
    b"ember.usage.files": lambda d: d.usage.files,
    b"ember.usage.directories": lambda d: d.usage.directories,
    b"ember.quota.bytes": lambda d: d.quota.bytes_max,
    b"ember.quota.inodes": lambda d: d.quota.inodes_max,
}


async def usage_attribute(tr: Transaction, ctx: OpContext, request: meta.GetXattrReq) -> bytes:
    """Return a number of a directory.

    Raises:
        FsError: NO_ATTRIBUTE for other names, other objects, and a limit that is not set; STALE,
            ACCESS_DENIED, NOT_FOUND as `load_readable`.
    """
    number = _NUMBERS.get(request.name)
    inode = await load_inode(tr, request.inode_id, snapshot=True)
    missing = FsError(
        Status.NO_ATTRIBUTE, f"attribute {request.name!r} of inode {request.inode_id:#x}"
    )
    if number is None or inode.type != pb.DIRECTORY:
        raise missing
    found = number(await describe(tr, ctx, await load_readable(tr, ctx, request.inode_id)))
    if not found and request.name.startswith(b"ember.quota."):
        raise missing
    return b"%d" % found
