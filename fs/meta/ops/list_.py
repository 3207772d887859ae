"""List: the names of a directory, page by page, with attributes if wanted.

The cursor is the last name seen: entries that stay are neither missed nor doubled, whatever else
changes between two pages, and a directory of any size takes the memory of one page.
"""

from collections.abc import Sequence

from google.protobuf.message import DecodeError

from ...kv.api import Transaction
from ...schema.proto import common_pb2 as pb
from ...schema.proto import meta_pb2 as meta
from ...schema.proto.record_pb2 import DentryRecordPb
from ...schema.status import FsError, Status
from .. import permissions, records
from ..context import OpContext
from ..inodes import complete, load_inode
from ..read_ahead import directory_keys

ENTRY_COUNT_DEFAULT = 512
ENTRY_COUNT_MAX = 4096


async def _join_inodes(
    tr: Transaction, entries: Sequence[meta.DentryPb], inode_ids: Sequence[int]
) -> None:
    """Add what the names lead to; without a damaged record the others are listed all the same,
    and whoever looks its name up is told.
    """
    values = await tr.get_many(list(map(records.inode_key, inode_ids)), snapshot=True)
    directories = [entry for entry in entries if entry.type == pb.DIRECTORY]
    await tr.prefetch(key for entry in directories for key in directory_keys(entry.inode_id))
    for entry, inode_id, value in zip(entries, inode_ids, values, strict=True):
        if value is not None:
            inode = entry.inode
            try:
                inode.ParseFromString(value)
            except DecodeError:
                entry.ClearField("inode")
            else:
                if inode.inode_id != inode_id or not inode.type:
                    entry.ClearField("inode")
    for entry in directories:
        if entry.HasField("inode"):
            try:
                await complete(tr, entry.inode, snapshot=True)
            except FsError as error:
                if error.status is not Status.METADATA_DAMAGED:
                    raise
                entry.ClearField("inode")


def _name(value: bytes) -> DentryRecordPb:
    """Return what a name leads to; a damaged one is listed, too, and leads to nothing (0):
    whoever looks it up is told.
    """
    try:
        return DentryRecordPb.FromString(value)
    except DecodeError:
        return DentryRecordPb()


async def list_(tr: Transaction, ctx: OpContext, request: meta.ListReq) -> meta.ListRsp:
    """Return names after `after` in byte order, all of one snapshot; not `.` and `..`.

    Attributes are left out for a caller who may read but not search the directory.

    Raises:
        FsError: NOT_DIRECTORY, ACCESS_DENIED, STALE; METADATA_DAMAGED: its own inode.
    """
    directory_id = request.inode_id
    directory = await load_inode(tr, directory_id, snapshot=True)
    if directory.type != pb.DIRECTORY:
        raise FsError(Status.NOT_DIRECTORY, f"inode {directory_id:#x}")
    permissions.require(ctx.caller, directory, permissions.READ)
    limit = min(request.entry_count_max or ENTRY_COUNT_DEFAULT, ENTRY_COUNT_MAX)
    begin = records.dentry_key(directory_id, request.after)
    if request.after:
        begin += b"\x00"
    end = records.dentry_end(directory_id)
    pairs = await tr.get_range(begin, end, limit=limit + 1, snapshot=True)
    reply = meta.ListRsp(
        has_more=len(pairs) > limit, parent_inode_id=directory.directory.parent_inode_id
    )
    joins = (request.with_inodes or request.with_directories) and permissions.is_allowed(
        ctx.caller, directory, permissions.SEARCH
    )
    add, inode_ids = reply.entries.add, []
    for key, value in pairs[:limit]:
        record = _name(value)
        inode_id = record.inode_id
        inode_ids.append(inode_id)
        entry = add(name=records.dentry_name(key), inode_id=inode_id, type=record.type)
        if record.HasField("trash"):
            entry.trash.CopyFrom(record.trash)
    if joins and request.with_inodes:
        await _join_inodes(tr, reply.entries, inode_ids)
    elif joins:
        directories = [entry for entry in reply.entries if entry.type == pb.DIRECTORY]
        if directories:
            await _join_inodes(tr, directories, [entry.inode_id for entry in directories])
    if request.wants_directory:
        reply.directory.CopyFrom(await complete(tr, directory, snapshot=True))
    return reply
