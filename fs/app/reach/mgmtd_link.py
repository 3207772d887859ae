"""One-off calls of the command line to the manager of a cluster."""

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import trio

from ...admin.cluster import Plan
from ...admin.cluster import initialise as initialise_cluster
from ...node.mgmtd_link import MgmtdLink
from ...rpc.api import Identity
from ...rpc.channel import ChannelPool, open_channels
from ...rpc.credential_files import caller_secrets
from ...rpc.credentials import new_client_id
from ...rpc.transport import SocketNetwork
from ...runtime.real import real_runtime
from ...schema import services
from ...schema.config import AuthSection, RpcSection
from ...schema.proto import mgmtd_pb2
from ...schema.routing import RoutingInfo, routing_info_from_pb
from ...schema.status import FsError, Status
from ..machine.cluster_dir import (
    ClusterDir,
    ClusterRecord,
    auth_of,
    mgmtd_addresses,
)
from ..process.release import RELEASE
from ..terminal.command_trace import begin_command
from ..terminal.errors import unwrapped

T = TypeVar("T")


def run_with_mgmtd(
    addresses: Sequence[str],
    cluster_id: str,
    use: Callable[[MgmtdLink, ChannelPool], Awaitable[T]],
    *,
    timeout_s: float,
    auth: AuthSection | None = None,
) -> T:
    """Run `use` from plain code, with a way to the manager and channels to everybody else.

    Args:
        addresses: of managers.
        cluster_id: expected there.
        use: gets the way to the manager, and the channels.
        timeout_s: for all of it.
        auth: what proves who we are; default: as the environment says.

    Raises:
        FsError: what `use` raises, BAD_CONFIG, or RPC_TIMEOUT.
    """
    secrets = caller_secrets(auth or AuthSection())

    async def run() -> T:
        runtime = real_runtime(SocketNetwork())
        client_id = new_client_id(runtime.random.randbytes, secrets)
        identity = Identity(cluster_id=cluster_id, client_id=client_id, release=RELEASE)
        with trio.move_on_after(timeout_s):
            async with open_channels(runtime, identity, RpcSection(), secrets=secrets) as channels:
                with begin_command(runtime):
                    return await use(MgmtdLink(channels, addresses, runtime), channels)
        at = ", ".join(addresses)
        raise FsError(Status.RPC_TIMEOUT, f"no primary manager at {at} within {timeout_s:g} s")

    with unwrapped():
        return trio.run(run)


async def newest_routing(mgmtd: MgmtdLink, timeout_s: float) -> RoutingInfo:
    """Return the newest routing info."""
    request = mgmtd_pb2.GetRoutingInfoReq()
    reply = await mgmtd.call(services.MGMTD_GET_ROUTING_INFO, request, timeout_s=timeout_s)
    return routing_info_from_pb(reply.routing_info)


def fetch_routing(directory: ClusterDir, record: ClusterRecord, *, timeout_s: float) -> RoutingInfo:
    """Return the newest routing info of a local cluster; raises FsError(RPC_TIMEOUT)."""

    async def use(mgmtd: MgmtdLink, _channels: ChannelPool) -> RoutingInfo:
        return await newest_routing(mgmtd, timeout_s)

    addresses = mgmtd_addresses(directory, record)
    return run_with_mgmtd(
        addresses, record.cluster_id, use, timeout_s=timeout_s, auth=auth_of(directory, record)
    )


def fetch_overview(
    directory: ClusterDir, record: ClusterRecord, *, timeout_s: float
) -> tuple[RoutingInfo, int, mgmtd_pb2.ListMovesRsp]:
    """Return the newest routing info, the node id of the primary, the moves;
    raises FsError(RPC_TIMEOUT).
    """

    async def use(
        mgmtd: MgmtdLink, _channels: ChannelPool
    ) -> tuple[RoutingInfo, int, mgmtd_pb2.ListMovesRsp]:
        info = await newest_routing(mgmtd, timeout_s)
        request = mgmtd_pb2.GetPrimaryReq()
        primary = await mgmtd.call(services.MGMTD_GET_PRIMARY, request, timeout_s=timeout_s)
        request_moves = mgmtd_pb2.ListMovesReq()
        moves = await mgmtd.call(services.MGMTD_LIST_MOVES, request_moves, timeout_s=timeout_s)
        return info, primary.node_id, moves

    addresses = mgmtd_addresses(directory, record)
    return run_with_mgmtd(
        addresses, record.cluster_id, use, timeout_s=timeout_s, auth=auth_of(directory, record)
    )


def initialise(
    addresses: Sequence[str],
    cluster_id: str,
    plan: Plan,
    *,
    timeout_s: float,
    auth: AuthSection | None = None,
) -> None:
    """Make a planned cluster; repeating is harmless.  Arguments as of `run_with_mgmtd`.

    Raises:
        FsError: what the manager says, or RPC_TIMEOUT.
    """

    async def use(mgmtd: MgmtdLink, _channels: ChannelPool) -> None:
        await initialise_cluster(mgmtd, plan, timeout_s)

    run_with_mgmtd(addresses, cluster_id, use, timeout_s=timeout_s, auth=auth)
