"""GetAttr and BatchGetAttr: attributes by inode id, also of what was removed but is still open."""

from google.protobuf.message import DecodeError

from ...kv.api import Transaction
from ...runtime.ports import Buffer
from ...schema.proto import common_pb2 as pb
from ...schema.proto import meta_pb2 as meta
from ...schema.status import FsError, Status
from .. import inline, records
from ..context import OpContext
from ..damage import damaged, require_inode
from ..inodes import complete, load_complete
from ..read_ahead import directory_keys

BATCH_COUNT_MAX = 4096


async def get_attr(tr: Transaction, _ctx: OpContext, request: meta.GetAttrReq) -> meta.InodeRsp:
    """Return an inode, and the bytes of an inline file to who takes them;
    raises FsError(STALE, METADATA_DAMAGED).

    Who asks by inode id has it open: as storage does, this gives him the bytes
    whatever the mode says by now.
    """
    reply = meta.InodeRsp(inode=await load_complete(tr, request.inode_id, snapshot=True))
    if request.takes_inline and reply.inode.file.is_inline:
        await inline.give(tr, reply.inode, reply)
    return reply


async def batch_get_attr(
    tr: Transaction, ctx: OpContext, request: meta.BatchGetAttrReq
) -> tuple[meta.BatchGetAttrRsp, list[Buffer]]:
    """Return the inodes that exist, in the order asked, and what is the payload;
    others are left unset.

    The payload is the bytes of those that are inline, as for `get_attr`, to
    who takes it; see `inline.pack`.

    Raises:
        FsError: RPC_BAD_REQUEST for more than BATCH_COUNT_MAX ids; METADATA_DAMAGED.
    """
    if len(request.inode_ids) > BATCH_COUNT_MAX:
        raise FsError(
            Status.RPC_BAD_REQUEST, f"{len(request.inode_ids)} ids, at most {BATCH_COUNT_MAX}"
        )
    reply = meta.BatchGetAttrRsp()
    keys = [records.inode_key(inode_id) for inode_id in request.inode_ids]
    values = await tr.get_many(keys, snapshot=True)
    for inode_id, key, value in zip(request.inode_ids, keys, values, strict=True):
        slot = reply.inodes.add()
        if value is not None:
            try:
                slot.inode.ParseFromString(value)
            except DecodeError as error:
                raise damaged(key, f"no inode: {error}") from error
            require_inode(slot.inode, inode_id)
    inodes = [slot.inode for slot in reply.inodes if slot.HasField("inode")]
    directories = (inode.inode_id for inode in inodes if inode.type == pb.DIRECTORY)
    await tr.prefetch(key for inode_id in directories for key in directory_keys(inode_id))
    for inode in inodes:
        await complete(tr, inode, snapshot=True)
    if not request.payload_bytes_max:
        return reply, []
    replies = [slot for slot in reply.inodes if slot.inode.file.is_inline]
    return reply, await inline.pack(tr, ctx, replies, request.payload_bytes_max)
