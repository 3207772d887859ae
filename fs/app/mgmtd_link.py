"""One-off calls of the command line to the manager of a local cluster."""

from collections.abc import Sequence
from functools import partial

import trio

from ..rpc.api import Channels, Identity
from ..rpc.channel import open_channels
from ..rpc.transport import SocketNetwork
from ..runtime.real import real_runtime
from ..schema import services
from ..schema.config import RpcSection
from ..schema.method import Method, ReqT, RspT
from ..schema.proto import common_pb2, mgmtd_pb2
from ..schema.routing import RoutingInfo, routing_info_from_pb
from ..schema.status import FsError, Retry, Status
from .cluster_dir import (
    CHAIN_TABLE_ID,
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

RETRY_PAUSE_S = 0.05


async def _ask(
    directory: ClusterDir,
    cluster_id: str,
    method: Method[ReqT, RspT],
    requests: Sequence[ReqT],
    timeout_s: float,
) -> list[RspT]:
    """Call one method with each request in turn, retrying until the manager serves."""
    runtime = real_runtime(SocketNetwork())
    client_id = runtime.random.randbytes(16).hex()
    identity = Identity(cluster_id=cluster_id, client_id=client_id, release=RELEASE)
    with trio.move_on_after(timeout_s):
        async with open_channels(runtime, identity, RpcSection()) as channels:
            return [await _retry(channels, directory, method, request) for request in requests]
    raise FsError(Status.RPC_TIMEOUT, f"{method}: no primary manager within {timeout_s:g} s")


async def _retry(
    channels: Channels, directory: ClusterDir, method: Method[ReqT, RspT], request: ReqT
) -> RspT:
    channel = channels.get(directory.address(CONTROL))
    while True:
        try:
            return (await channel.call(method, request)).message
        except FsError as error:
            if error.retry is Retry.NEVER:
                raise
        await trio.sleep(RETRY_PAUSE_S)


def call_mgmtd(
    directory: ClusterDir,
    cluster_id: str,
    method: Method[ReqT, RspT],
    requests: Sequence[ReqT],
    *,
    timeout_s: float,
) -> list[RspT]:
    """Call the manager from plain code; every method used here is idempotent.

    Raises:
        FsError: what the manager says, or RPC_TIMEOUT.
    """
    try:
        return trio.run(partial(_ask, directory, cluster_id, method, requests, timeout_s))
    except ExceptionGroup as group:  # what a nursery makes of an error inside it
        leaf = first_error(group)
        if isinstance(leaf, FsError):
            raise leaf from group
        raise


def fetch_routing(directory: ClusterDir, cluster_id: str, *, timeout_s: float) -> RoutingInfo:
    """Return the newest routing info."""
    request = mgmtd_pb2.GetRoutingInfoReq()
    (reply,) = call_mgmtd(
        directory, cluster_id, services.MGMTD_GET_ROUTING_INFO, [request], timeout_s=timeout_s
    )
    return routing_info_from_pb(reply.routing_info)


def initialise(
    directory: ClusterDir, record: ClusterRecord, chains: list[PlannedChain], *, timeout_s: float
) -> None:
    """Tell a manager about the nodes, chains and the chain table; repeating is harmless."""
    control = common_pb2.NodePb(
        node_id=CONTROL_NODE_ID,
        roles=[common_pb2.MGMTD, common_pb2.META],
        address=directory.address(CONTROL),
    )
    register = [mgmtd_pb2.RegisterNodeReq(node=control)]
    register += [
        mgmtd_pb2.RegisterNodeReq(
            node=common_pb2.NodePb(
                node_id=storage_node_id(name),
                roles=[common_pb2.STORAGE],
                address=directory.address(name),
            )
        )
        for name in storage_names(record)
    ]
    set_chains = mgmtd_pb2.SetChainsReq(
        chains=[
            mgmtd_pb2.NewChainPb(
                chain_id=chain.chain_id,
                targets=[
                    mgmtd_pb2.NewTargetPb(target_id=target, node_id=node, disk_index=0)
                    for target, node in chain.targets
                ],
            )
            for chain in chains
        ]
    )
    set_table = mgmtd_pb2.SetChainTableReq(
        table_id=CHAIN_TABLE_ID, chain_ids=[chain.chain_id for chain in chains]
    )
    call = partial(call_mgmtd, directory, record.cluster_id, timeout_s=timeout_s)
    call(services.MGMTD_REGISTER_NODE, register)
    call(services.MGMTD_SET_CHAINS, [set_chains])
    call(services.MGMTD_SET_CHAIN_TABLE, [set_table])
