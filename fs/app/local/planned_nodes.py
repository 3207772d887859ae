"""What the manager of a local cluster is told of its nodes: at first, and when there are others."""

from ...admin.cluster import Plan
from ...node.mgmtd_link import MgmtdLink
from ...rpc.channel import ChannelPool
from ...schema import services
from ...schema.proto import common_pb2, mgmtd_pb2
from ...schema.routing import Node, Role, RoutingInfo
from ...schema.status import FsError, Status
from ..machine.cluster_dir import (
    ClusterDir,
    ClusterRecord,
    auth_of,
    meta_names,
    mgmtd_addresses,
    mgmtd_names,
    node_id_of,
    storage_names,
)
from ..reach.mgmtd_link import run_with_mgmtd
from .cluster_plan import PlannedChain


def planned_nodes(directory: ClusterDir, record: ClusterRecord) -> list[common_pb2.NodePb]:
    """Return the nodes that a local cluster consists of."""
    roles: dict[str, list[common_pb2.NodeRole.ValueType]] = {}
    for names, role in (
        (mgmtd_names(record), common_pb2.MGMTD),
        (meta_names(record), common_pb2.META),
        (storage_names(record), common_pb2.STORAGE),
    ):
        for name in names:
            roles.setdefault(name, []).append(role)
    return [
        common_pb2.NodePb(node_id=node_id_of(name), roles=found, address=directory.address(name))
        for name, found in roles.items()
    ]


def local_plan(directory: ClusterDir, record: ClusterRecord, chains: list[PlannedChain]) -> Plan:
    """Return what the manager of a new local cluster is told."""
    new_chains = [
        mgmtd_pb2.NewChainPb(
            chain_id=chain.chain_id,
            targets=[
                mgmtd_pb2.NewTargetPb(target_id=target, node_id=node_id, disk_index=0)
                for target, node_id in chain.targets
            ],
        )
        for chain in chains
    ]
    return Plan(planned_nodes(directory, record), new_chains)


async def _forget_node(mgmtd: MgmtdLink, node: Node, timeout_s: float) -> None:
    """Have the manager find out that a node is gone, then forget it."""
    report = mgmtd_pb2.ReportUnreachableReq(node_id=node.node_id, incarnation=node.incarnation)
    await mgmtd.call(services.MGMTD_REPORT_UNREACHABLE, report, timeout_s=timeout_s)
    request = mgmtd_pb2.UnregisterNodeReq(node_id=node.node_id)
    try:
        await mgmtd.call(services.MGMTD_UNREGISTER_NODE, request, timeout_s=timeout_s)
    except FsError as error:
        # A manager that could not prove it yet judges by silence; the next start asks again.
        if error.status is not Status.CONFLICTING_CHANGE:
            raise


def replace_nodes(
    directory: ClusterDir, record: ClusterRecord, info: RoutingInfo, *, timeout_s: float
) -> None:
    """Make managers and metadata services known that are new, and forget those that are no more.

    Args:
        directory: the cluster's.
        record: what it consists of now.
        info: what the manager knows.
        timeout_s: for all of it.

    Raises:
        FsError: what the manager says, or RPC_TIMEOUT.
    """
    wanted = {node.node_id: node for node in planned_nodes(directory, record)}
    added = [node for node_id, node in wanted.items() if node_id not in info.nodes]
    gone = [
        node
        for node in info.nodes.values()
        if node.node_id not in wanted and Role.STORAGE not in node.roles
    ]

    async def use(mgmtd: MgmtdLink, _channels: ChannelPool) -> None:
        for new in added:
            request = mgmtd_pb2.RegisterNodeReq(node=new)
            await mgmtd.call(services.MGMTD_REGISTER_NODE, request, timeout_s=timeout_s)
        for old in gone:
            await _forget_node(mgmtd, old, timeout_s)

    if added or gone:
        addresses = mgmtd_addresses(directory, record)
        run_with_mgmtd(
            addresses, record.cluster_id, use, timeout_s=timeout_s, auth=auth_of(directory, record)
        )
