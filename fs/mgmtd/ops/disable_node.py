"""DisableNode: takes a node out of service, whatever its process does."""

from dataclasses import replace

from ...schema.proto.mgmtd_pb2 import DisableNodeReq, DisableNodeRsp
from ...schema.routing import NodeState, Role
from ...schema.status import FsError, Status
from ..primary import Primary
from ..store import Change
from .set_maintenance import chains_only_on


async def disable_node(primary: Primary, request: DisableNodeReq) -> DisableNodeRsp:
    """Take no heartbeats of the node any more:
    its lease runs out, then it is judged as if it were silent.

    A drain before costs nothing; without one its chains pause for as long as the lease.

    Raises:
        FsError: NODE_UNKNOWN, NOT_SUPPORTED (a manager), UNSAFE_CHANGE (a chain has its newest data
            only there, and that is not accepted), NOT_PRIMARY.
    """
    async with primary.lock:
        primary.check_acting()
        node = primary.info.node(request.node_id)
        if Role.MGMTD in node.roles:
            detail = f"node {node.node_id} is a manager; stop its process instead"
            raise FsError(Status.NOT_SUPPORTED, detail)
        if node.state is NodeState.DISABLED:
            return DisableNodeRsp()
        only_here = chains_only_on(primary.info, node.node_id)
        if only_here and not request.accept_unavailable_chains:
            detail = f"chains {only_here[:8]} have their newest data on node {node.node_id} only"
            raise FsError(Status.UNSAFE_CHANGE, f"{detail}; drain it first, or accept it")
        disabled = replace(node, state=NodeState.DISABLED)
        await primary.settle(Change(nodes={node.node_id: disabled}), why="asked for")
    return DisableNodeRsp()
