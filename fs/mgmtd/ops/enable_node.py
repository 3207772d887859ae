"""EnableNode: a disabled node may take part again."""

from dataclasses import replace

from ...schema.proto.mgmtd_pb2 import EnableNodeReq, EnableNodeRsp
from ...schema.routing import NodeState
from ..primary import Primary
from ..store import Change


async def enable_node(primary: Primary, request: EnableNodeReq) -> EnableNodeRsp:
    """Take the node's heartbeats again; raises FsError(NODE_UNKNOWN, NOT_PRIMARY)."""
    async with primary.lock:
        primary.check_acting()
        node = primary.info.node(request.node_id)
        if node.state is NodeState.DISABLED:
            is_judged = primary.state.health[node.node_id].is_judged
            state = NodeState.FAILED if is_judged else NodeState.UNKNOWN
            await primary.settle(
                Change(nodes={node.node_id: replace(node, state=state)}), why="asked for"
            )
    return EnableNodeRsp()
