"""What the metadata service does with mode and owner that come with a report."""

from fs.schema.inode import inode_from_pb, inode_to_pb
from fs.schema.proto import meta_pb2


def with_owner(cluster, request, before, told):
    """Return the reply to a report that was taken, as `told`, of a file that was `before`,
    and set its mode and owner.
    """
    reply = told if isinstance(told, meta_pb2.InodeRsp) else None
    inode = inode_from_pb(reply.inode) if reply is not None else told
    if reply is None:
        reply = meta_pb2.InodeRsp(inode=inode_to_pb(inode))
    caller, owner = request.caller, request.owner
    is_allowed = caller.uid in (0, before.uid) and not before.iflags
    if not cluster.knows_owners or reply.is_inline_refused or not is_allowed:
        return reply
    seen = owner.mode_seen, owner.uid_seen, owner.gid_seen
    if (before.mode, before.uid, before.gid) != seen and before.ctime_ns > owner.set_ns:
        reply.owner_outcome = meta_pb2.OWNER_SUPERSEDED
        return reply
    changes = {k: getattr(owner, k) for k in ("mode", "uid", "gid") if owner.HasField(k)}
    inode = cluster.put(inode, **changes)
    if request.is_durable:
        cluster.durable_inodes[inode.inode_id] = inode
    reply.inode.CopyFrom(inode_to_pb(inode))
    reply.owner_outcome = meta_pb2.OWNER_SET
    return reply
