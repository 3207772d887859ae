"""StatFs: space and inodes as a user of one object may still take them."""

from ...kv.api import Transaction
from ...schema.proto import common_pb2 as pb
from ...schema.proto import meta_pb2 as meta
from .. import records
from ..context import OpContext
from ..damage import count, inode_record
from ..usage import load_usage


async def stat_fs(tr: Transaction, ctx: OpContext, request: meta.StatFsReq) -> meta.StatFsRsp:
    """Return the number of inodes, and the bytes of inline files;
    and where quotas lie above the object, the narrowest of them.

    The caller has filled in nothing yet: `capacity_bytes` 0 means that
    no quota of bytes lies above.
    """
    keys = [records.INODE_COUNT_KEY, records.INLINE_BYTES_KEY]
    inodes, inline = await tr.get_many(keys, snapshot=True)
    reply = meta.StatFsRsp(
        inode_count=max(0, count(keys[0], inodes)),
        inline_bytes=max(0, count(keys[1], inline)),
    )
    stored = None
    if request.inode_id:
        stored = await tr.get(records.inode_key(request.inode_id), snapshot=True)
    if stored is None:
        return reply
    inode = inode_record(request.inode_id, stored)
    home_id = inode.inode_id if inode.type == pb.DIRECTORY else inode.home_inode_id
    if not home_id:
        return reply
    for ancestor in await ctx.lineages.above(tr, home_id):
        if not ancestor.bytes_max and not ancestor.inodes_max:
            continue
        used = await load_usage(tr, ancestor.directory_id, snapshot=True)
        byte_count, inode_count = max(0, used.byte_count), max(0, used.inode_count)
        if ancestor.bytes_max:
            left = max(0, ancestor.bytes_max - byte_count)
            if not reply.capacity_bytes or left < reply.free_bytes:
                reply.capacity_bytes, reply.free_bytes = ancestor.bytes_max, left
        if ancestor.inodes_max:
            left = max(0, ancestor.inodes_max - inode_count)
            if not reply.HasField("free_inodes") or left < reply.free_inodes:
                reply.inode_count, reply.free_inodes = inode_count, left
    return reply
