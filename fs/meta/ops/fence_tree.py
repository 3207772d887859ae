"""FenceTree: keep the usage below a directory still until it has been moved or removed.

A move reads the counters of what it moves, so every change below makes it run again;
where much is changed it would never come to an end.  The fence makes those changes wait
instead.  It is a courtesy: a fence that ends too early, by time or by a clock, costs the
move another run, never a wrong counter.
"""

from collections.abc import Sequence
from typing import Final

from ...kv.api import Transaction
from ...schema.proto import common_pb2 as pb
from ...schema.proto.record_pb2 import UsageFenceRecordPb
from .. import records
from ..context import OpContext
from ..dentries import find_dentry
from ..lineage import begin_epoch

FENCE_S: Final = 1.0
"""Should the service die meanwhile, changes below wait this long."""


async def fence_tree(tr: Transaction, ctx: OpContext, places: Sequence[tuple[int, bytes]]) -> None:
    """Fence the directories that (parent, name) lead to; whatever is no directory is left out."""
    until_ns = ctx.now_ns + int(FENCE_S * 1e9)
    record = UsageFenceRecordPb(owner_request_id=ctx.caller.request_id, until_ns=until_ns)
    for parent_id, name in places:
        dentry = await find_dentry(tr, parent_id, name)
        if dentry is not None and dentry.type == pb.DIRECTORY:
            tr.set(records.usage_fence_key(dentry.inode_id), record.SerializeToString())
    begin_epoch(tr, ctx.caller.request_id, ctx.now_ns)
