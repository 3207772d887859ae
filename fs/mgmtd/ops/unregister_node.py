"""UnregisterNode: forgets a node that is gone."""

from dataclasses import replace

from ...schema.proto.mgmtd_pb2 import UnregisterNodeReq, UnregisterNodeRsp
from ...schema.routing import NodeState
from ...schema.status import FsError, Status
from ..primary import Primary
from ..store import BookChange, Change


async def unregister_node(primary: Primary, request: UnregisterNodeReq) -> UnregisterNodeRsp:
    """Forget the node, its drains and its targets, none of which is in a chain;
    its heartbeats are refused then.

    Raises:
        FsError: NODE_UNKNOWN, CONFLICTING_CHANGE (it lives, it holds targets of chains, or a
            move goes there), NOT_PRIMARY.
    """
    async with primary.lock:
        primary.check_acting()
        info = primary.info
        node = info.node(request.node_id)
        own = [t for t in info.targets.values() if t.node_id == node.node_id]
        name = f"node {node.node_id}"
        if node.incarnation and node.state not in {NodeState.FAILED, NodeState.DISABLED}:
            detail = f"{name} is {node.state.name.lower()}; stop or disable it first"
            raise FsError(Status.CONFLICTING_CHANGE, detail)
        members = sorted(t.target_id for t in own if t.chain_id)
        if members:
            detail = f"{name} holds targets {members[:8]} of chains; drain it first"
            raise FsError(Status.CONFLICTING_CHANGE, detail)
        for move in primary.state.book.moves.values():
            if move.node_id == node.node_id:
                detail = f"move {move.move_id} goes to {name}; cancel it first"
                raise FsError(Status.CONFLICTING_CHANGE, detail)
        gone = frozenset(t.target_id for t in own)
        book = primary.state.book
        left = frozenset(d for d in book.drains if d.node_id != node.node_id)
        change = Change(
            removed_nodes=frozenset({node.node_id}),
            removed_targets=gone,
            book=None if left == book.drains else BookChange(book, replace(book, drains=left)),
        )
        await primary.settle(change, why="asked for")
    return UnregisterNodeRsp()
