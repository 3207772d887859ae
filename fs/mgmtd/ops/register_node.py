"""RegisterNode: a node id becomes part of the cluster; only then its heartbeats are taken."""

from dataclasses import replace

from ...schema.proto.mgmtd_pb2 import RegisterNodeReq, RegisterNodeRsp
from ...schema.routing import Node, NodeState, node_from_pb
from ...schema.status import FsError, Status
from ..primary import Primary
from ..store import Change


async def register_node(primary: Primary, request: RegisterNodeReq) -> RegisterNodeRsp:
    """Add a node, or change the roles of one and add tags to it;
    what a running node said of itself stays.

    Raises:
        FsError: RPC_BAD_REQUEST without node id or roles, NOT_PRIMARY.
    """
    if not request.node.node_id or not request.node.roles:
        raise FsError(Status.RPC_BAD_REQUEST, "a node has an id and at least one role")
    asked = node_from_pb(request.node)
    async with primary.lock:
        primary.check_acting()
        known = primary.info.nodes.get(asked.node_id)
        node = _new(asked) if known is None else _changed(known, asked)
        if node != known:
            primary.state.add_node(node.node_id, primary.now_s)
            await primary.settle(Change(nodes={node.node_id: node}), why="asked for")
    return RegisterNodeRsp()


def _new(asked: Node) -> Node:
    return replace(asked, state=NodeState.STARTING, incarnation="")


def _changed(known: Node, asked: Node) -> Node:
    address = known.address if known.incarnation else asked.address
    return replace(known, roles=asked.roles, tags={**known.tags, **asked.tags}, address=address)
