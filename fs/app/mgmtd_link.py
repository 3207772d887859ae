"""One-off calls of the command line to the manager of a cluster."""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TypeVar

import trio

from ..admin.cluster import Plan
from ..admin.cluster import initialise as initialise_cluster
from ..node.mgmtd_link import MgmtdLink
from ..rpc.api import Identity
from ..rpc.channel import ChannelPool, open_channels
from ..rpc.transport import SocketNetwork
from ..runtime.real import real_runtime
from ..schema import services
from ..schema.config import RpcSection
from ..schema.proto import common_pb2, mgmtd_pb2
from ..schema.routing import RoutingInfo, routing_info_from_pb
from ..schema.status import FsError, Status
from .cluster_dir import (
    CONTROL,
    CONTROL_NODE_ID,
    ClusterDir,
    ClusterRecord,
    storage_names,
    storage_node_id,
)
from .cluster_plan import PlannedChain
from .errors import first_error
from .release import RELEASE

T = TypeVar("T")


def run_with_mgmtd(
    addresses: Sequence[str],
    cluster_id: str,
    use: Callable[[MgmtdLink, ChannelPool], Awaitable[T]],
    *,
    timeout_s: float,
) -> T:
    """Run `use` from plain code, with a way to the manager and channels to everybody else.

    Raises:
        FsError: what `use` raises, or RPC_TIMEOUT.
    """

    async def run() -> T:
        runtime = real_runtime(SocketNetwork())
        client_id = runtime.random.randbytes(16).hex()
        identity = Identity(cluster_id=cluster_id, client_id=client_id, release=RELEASE)
        with trio.move_on_after(timeout_s):
            async with open_channels(runtime, identity, RpcSection()) as channels:
                return await use(MgmtdLink(channels, addresses, runtime), channels)
        at = ", ".join(addresses)
        raise FsError(Status.RPC_TIMEOUT, f"no primary manager at {at} within {timeout_s:g} s")

    try:
        return trio.run(run)
    except ExceptionGroup as group:  # what a nursery makes of an error inside it
        leaf = first_error(group)
        if isinstance(leaf, FsError):
            raise leaf from group
        raise


async def newest_routing(mgmtd: MgmtdLink, timeout_s: float) -> RoutingInfo:
    """Return the newest routing info."""
    request = mgmtd_pb2.GetRoutingInfoReq()
    reply = await mgmtd.call(services.MGMTD_GET_ROUTING_INFO, request, timeout_s=timeout_s)
    return routing_info_from_pb(reply.routing_info)


def fetch_routing(directory: ClusterDir, cluster_id: str, *, timeout_s: float) -> RoutingInfo:
    """Return the newest routing info of a local cluster; raises FsError(RPC_TIMEOUT)."""

    async def use(mgmtd: MgmtdLink, _channels: ChannelPool) -> RoutingInfo:
        return await newest_routing(mgmtd, timeout_s)

    return run_with_mgmtd([directory.address(CONTROL)], cluster_id, use, timeout_s=timeout_s)


def local_plan(directory: ClusterDir, record: ClusterRecord, chains: list[PlannedChain]) -> Plan:
    """Return what the manager of a new local cluster is told."""
    node = partial(_node, directory)
    nodes = [node(CONTROL, CONTROL_NODE_ID, [common_pb2.MGMTD, common_pb2.META])]
    nodes += [
        node(name, storage_node_id(name), [common_pb2.STORAGE]) for name in storage_names(record)
    ]
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
    return Plan(nodes, new_chains)


def _node(
    directory: ClusterDir, name: str, node_id: int, roles: Sequence[common_pb2.NodeRole.ValueType]
) -> common_pb2.NodePb:
    return common_pb2.NodePb(node_id=node_id, roles=roles, address=directory.address(name))


def initialise(addresses: Sequence[str], cluster_id: str, plan: Plan, *, timeout_s: float) -> None:
    """Make a planned cluster; repeating is harmless.

    Raises:
        FsError: what the manager says, or RPC_TIMEOUT.
    """

    async def use(mgmtd: MgmtdLink, _channels: ChannelPool) -> None:
        await initialise_cluster(mgmtd, plan, timeout_s)

    run_with_mgmtd(addresses, cluster_id, use, timeout_s=timeout_s)
