"""One-off calls of the command line to the metadata services."""

import os

from ...client.entries import Identity
from ...rpc.channel import ChannelPool
from ...rpc.credential_files import configured_uid
from ...schema import services
from ...schema.method import Method, ReqT, RspT
from ...schema.proto import common_pb2, meta_pb2
from ...schema.routing import NodeState, Role, RoutingInfo
from ...schema.status import FsError, Status
from ..reach.where import TIMEOUT_S, Where
from ..terminal.errors import named
from .standing import absolute, shown, standing

NOWHERE = {Status.RPC_CONNECT_FAILED, Status.RPC_TIMEOUT, Status.NOT_PRIMARY}


async def ask_meta(
    channels: ChannelPool, info: RoutingInfo, method: Method[ReqT, RspT], request: ReqT
) -> RspT:
    """Ask the first metadata service that answers; raises FsError: what it says."""
    problem = FsError(Status.RPC_CONNECT_FAILED, "no metadata service is known to be there")
    for node in info.nodes_with_role(Role.META):
        if node.state in {NodeState.FAILED, NodeState.DISABLED}:
            continue
        try:
            channel = channels.get(node.address, node_id=node.node_id)
            return (await channel.call(method, request, timeout_s=TIMEOUT_S)).message
        except FsError as error:
            if error.status not in NOWHERE:
                raise
            problem = error
    raise problem


def caller(where: Where, channels: ChannelPool, who: Identity | None = None) -> common_pb2.CallerPb:
    """Return on whose behalf a command asks; None:
    of an administrator, who has no token, root's.
    """
    uid = configured_uid(where.auth) or 0
    who = who or standing().identity or Identity(uid, uid)
    return common_pb2.CallerPb(
        uid=who.uid,
        gid=who.gid,
        groups=who.groups,
        client_id=channels.identity.client_id,
        request_id=channels.runtime.random.randbytes(16),
    )


async def inode_of(
    where: Where,
    channels: ChannelPool,
    info: RoutingInfo,
    path: str,
    inode_id: int,
    *,
    who: Identity | None = None,
) -> common_pb2.InodePb:
    """Return an inode by path, or by id if that is not 0, as `caller` says; raises FsError."""
    asking = caller(where, channels, who)
    if inode_id:
        by_id = meta_pb2.GetAttrReq(caller=asking, inode_id=inode_id)
        return (await ask_meta(channels, info, services.META_GET_ATTR, by_id)).inode
    by_path = meta_pb2.ResolvePathReq(caller=asking, path=os.fsencode(absolute(path)))
    with named(shown(absolute(path)), is_inside=True):
        return (await ask_meta(channels, info, services.META_RESOLVE_PATH, by_path)).inode
