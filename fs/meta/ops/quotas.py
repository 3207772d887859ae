"""SetQuota and ListQuotas: limits on what may lie below a directory; see fs/meta/quota.py."""

from ...kv.api import Transaction, prefix_end
from ...schema.proto import meta_pb2 as meta
from ...schema.proto.record_pb2 import QuotaRecordPb
from ...schema.services import META_SET_QUOTA
from ...schema.status import FsError, Status
from .. import permissions, records
from ..context import OpContext
from ..damage import inode_record
from ..idempotency import once
from ..inodes import load_directory
from ..lineage import begin_epoch
from .get_usage import describe

ENTRY_COUNT_DEFAULT = 256
ENTRY_COUNT_MAX = 1024
LIMIT_MAX = 2**62


@once(META_SET_QUOTA)
async def set_quota(tr: Transaction, ctx: OpContext, request: meta.SetQuotaReq) -> meta.SetQuotaRsp:
    """Set both limits of a directory, 0 for none; root only.

    What is there already may be more: then nothing may grow below until it is less.

    Raises:
        FsError: NOT_PERMITTED, NOT_DIRECTORY, NOT_FOUND (it was removed), STALE, INVALID_ARGUMENT.
    """
    permissions.require_root(ctx.caller, "changing a quota")
    directory = await load_directory(tr, ctx, request.inode_id)
    quota = request.quota
    if max(quota.bytes_max, quota.inodes_max) > LIMIT_MAX:
        raise FsError(Status.INVALID_ARGUMENT, f"a limit beyond {LIMIT_MAX}")
    key = records.quota_key(directory.inode_id)
    if quota.bytes_max or quota.inodes_max:
        record = QuotaRecordPb(bytes_max=quota.bytes_max, inodes_max=quota.inodes_max)
        tr.set(key, record.SerializeToString())
    else:
        tr.clear(key)
    for kind in (records.KIND_BYTES, records.KIND_INODES):
        tr.clear(records.quota_near_key(directory.inode_id, kind))
    begin_epoch(tr, ctx.caller.request_id, ctx.now_ns)
    return meta.SetQuotaRsp()


async def _describe_if_there(
    tr: Transaction, ctx: OpContext, inode_id: int
) -> meta.DirectoryUsagePb | None:
    stored = await tr.get(records.inode_key(inode_id), snapshot=True)
    if stored is None:
        return None
    try:
        return await describe(tr, ctx, inode_record(inode_id, stored))
    except FsError as error:
        if error.status is Status.METADATA_DAMAGED:
            return meta.DirectoryUsagePb(inode_id=inode_id, damage=str(error))
        if error.status is not Status.NOT_FOUND:
            raise
        return None  # removed; garbage collection takes the quota away


async def list_quotas(
    tr: Transaction, ctx: OpContext, request: meta.ListQuotasReq
) -> meta.ListQuotasRsp:
    """Return the directories that have quotas, by inode id after `after_inode_id`; root only.

    Raises:
        FsError: NOT_PERMITTED.
    """
    permissions.require_root(ctx.caller, "listing all quotas")
    limit = min(request.entry_count_max or ENTRY_COUNT_DEFAULT, ENTRY_COUNT_MAX)
    begin = records.quota_key(request.after_inode_id) + b"\x00"
    pairs = await tr.get_range(begin, prefix_end(records.QUOTA), limit=limit + 1, snapshot=True)
    reply = meta.ListQuotasRsp(has_more=len(pairs) > limit)
    for key, _ in pairs[:limit]:
        reply.last_inode_id = records.quota_directory(key)
        found = await _describe_if_there(tr, ctx, records.quota_directory(key))
        if found is not None:
            reply.entries.append(found)
    return reply
