"""SetMaintenance: a node may be away for a while without its targets being replaced."""

from dataclasses import replace

from ...schema.proto.mgmtd_pb2 import SetMaintenanceReq, SetMaintenanceRsp
from ...schema.routing import RoutingInfo
from ...schema.status import FsError, Status
from ..primary import Primary
from ..store import Change

FOR_S_MAX = 30 * 86_400.0


async def set_maintenance(primary: Primary, request: SetMaintenanceReq) -> SetMaintenanceRsp:
    """Begin or prolong it, or end it; what the node does is judged as ever,
    only nothing is replaced.

    Asked again it counts anew from now.

    Raises:
        FsError: NODE_UNKNOWN, RPC_BAD_REQUEST (longer than 30 days), UNSAFE_CHANGE (chains would
            have no replica while the node is away, and that is not accepted), NOT_PRIMARY.
    """
    if not 0 <= request.for_s <= FOR_S_MAX:
        raise FsError(Status.RPC_BAD_REQUEST, f"maintenance for {request.for_s:g} s: 0 to 30 days")
    async with primary.lock:
        primary.check_acting()
        node = primary.info.node(request.node_id)
        until_ns = primary.wall_ns + int(request.for_s * 1e9) if request.for_s else 0
        only_here = chains_only_on(primary.info, node.node_id)
        if until_ns and only_here and not request.accept_unavailable_chains:
            detail = f"chains {only_here[:8]} have their newest data on node {node.node_id} only"
            raise FsError(Status.UNSAFE_CHANGE, f"{detail}; wait for the others, or accept it")
        if until_ns != node.maintenance_until_ns:
            changed = replace(node, maintenance_until_ns=until_ns)
            await primary.settle(Change(nodes={node.node_id: changed}), why="asked for")
    return SetMaintenanceRsp(until_ns=until_ns)


def chains_only_on(info: RoutingInfo, node_id: int) -> list[int]:
    """Return the chains whose newest data no other node holds."""
    return [
        chain.chain_id
        for chain in info.chains.values()
        if {info.target(t).node_id for t in chain.keepers} == {node_id}
    ]
