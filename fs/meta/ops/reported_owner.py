"""Mode, owner and group that come with the report of a file, as a SetAttr would have set them.

Pure.

A program that has just written a file mostly sets them before it closes it.  Its client has them go
with what the close tells anyway.

Invariants:
    - Only what a SetAttr of the same caller would be allowed is taken, all of it or nothing.  What
      is not taken the client asks for by a SetAttr, which says why it is refused.
    - What somebody has set since stays.  Then the report's is no longer
      wanted, and is not asked for again.

Does not: advance ctime, or remember that it was done; `sync` does both.
"""

from ...schema.proto import common_pb2 as pb
from ...schema.proto import meta_pb2 as meta
from ...schema.status import FsError, Status
from .. import permissions
from ..context import Caller, OpContext
from .set_attr import set_owner_and_mode


def _is_permitted(caller: Caller, inode: pb.InodePb, report: meta.OwnerReportPb) -> bool:
    uid = report.uid if report.HasField("uid") else None
    gid = report.gid if report.HasField("gid") else None
    try:
        permissions.require_unflagged(inode)
        if uid is not None or gid is not None:
            permissions.require_chown(caller, inode, uid, gid)
        if report.HasField("mode"):
            permissions.require_owner(caller, inode)
    except FsError as error:
        if error.status is not Status.NOT_PERMITTED:
            raise
        return False
    return True


def take(
    ctx: OpContext, inode: pb.InodePb, report: meta.OwnerReportPb
) -> "meta.OwnerOutcomePb.ValueType":
    """Set what a report says of mode and owner into an inode that is as it was before the report;
    return what became of it.
    """
    if inode.type != pb.FILE or not _is_permitted(ctx.caller, inode, report):
        return meta.OWNER_NOT_SET
    seen = report.mode_seen, report.uid_seen, report.gid_seen
    is_other = (inode.mode, inode.uid, inode.gid) != seen
    if is_other and inode.ctime_ns > report.set_ns:
        return meta.OWNER_SUPERSEDED
    set_owner_and_mode(ctx, inode, report)
    return meta.OWNER_SET
