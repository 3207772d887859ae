"""GetUsage: what lies below a directory, and the limits on it; a few reads, whatever is there."""

from ...kv.api import Transaction
from ...schema.proto import common_pb2 as pb
from ...schema.proto import meta_pb2 as meta
from ...schema.status import FsError, Status
from .. import permissions, records
from ..context import OpContext
from ..damage import quota_record
from ..inodes import load_directory, load_inode
from ..usage import load_usage
from .get_real_path import path_of


async def describe(tr: Transaction, ctx: OpContext, directory: pb.InodePb) -> meta.DirectoryUsagePb:
    """Return usage, quota and path of a directory;
    the path is empty when it is too long, or not for the caller to know.
    """
    usage = await load_usage(tr, directory.inode_id, snapshot=True)
    reply = meta.DirectoryUsagePb(inode_id=directory.inode_id)
    reply.usage.bytes = max(0, usage.byte_count)
    reply.usage.files = max(0, usage.file_count)
    reply.usage.directories = max(0, usage.directory_count)
    key = records.quota_key(directory.inode_id)
    stored = await tr.get(key, snapshot=True)
    if stored is not None:
        quota = quota_record(key, stored)
        reply.quota.bytes_max, reply.quota.inodes_max = quota.bytes_max, quota.inodes_max
    try:
        reply.path = await path_of(tr, directory.inode_id, caller=ctx.caller)
    except FsError as error:
        if error.status not in {Status.NAME_TOO_LONG, Status.ACCESS_DENIED}:
            raise
    return reply


async def load_readable(tr: Transaction, ctx: OpContext, inode_id: int) -> pb.InodePb:
    """Return a directory with a name whose names the caller may list;
    raises as `load_directory`.
    """
    return await load_directory(tr, ctx, inode_id, right=permissions.READ, snapshot=True)


async def get_usage(tr: Transaction, ctx: OpContext, request: meta.GetUsageReq) -> meta.GetUsageRsp:
    """Return the usage of a directory, and of those at or above it that have a quota,
    of one snapshot.

    Raises:
        FsError: as `load_readable`; NOT_FOUND in a removed tree.
    """
    directory = await load_readable(tr, ctx, request.inode_id)
    reply = meta.GetUsageRsp(directory=await describe(tr, ctx, directory))
    for ancestor in await ctx.lineages.above(tr, directory.inode_id):
        if ancestor.bytes_max or ancestor.inodes_max:
            above = await load_inode(tr, ancestor.directory_id, snapshot=True)
            reply.limiting.append(await describe(tr, ctx, above))
    return reply
