"""`ember probe`: does the process of a configuration file answer?

For health checks of containers and for scripts.

A server is asked who it is, at its own address and as its own cluster; of a mount the kernel is
asked, which asks the daemon.  A process that answers is healthy, also while it waits for its
manager.  Whoever takes down one storage node after the other asks the stricter question, whether
all targets of a node serve: so no chain loses a second member meanwhile.

Does not look beyond the one process: `ember admin doctor` does.
"""

from pathlib import Path

from ...node.mgmtd_link import MgmtdLink
from ...rpc.channel import ChannelPool
from ...runtime.config_file import read_config
from ...schema import services
from ...schema.config import ProcessConfig
from ...schema.proto.core_pb2 import GetInfoReq, GetInfoRsp
from ...schema.routing import PublicState, RoutingInfo
from ...schema.status import FsError, Status
from ..mounts.mount_point import is_dead, is_mounted
from ..reach.where import find


def probe(path: Path, *, timeout_s: float, has_to_serve: bool = False) -> str:
    """Return a line about the process that answers.

    Args:
        path: the configuration file that it was started with.
        timeout_s: for its answer; that of a mount is waited for as long as it takes.
        has_to_serve: ask the manager, too, whether all targets of this node serve.

    Raises:
        FsError: BAD_CONFIG; NOT_RUNNING for a mount that is not there or dead; NOT_SERVING; what a
            connection or the call fails with.
    """
    config = read_config(path)
    if config.client.mount_point:
        return _mount(Path(config.client.mount_point))
    line = _server(path, config, timeout_s)
    if has_to_serve:
        check_serving(find(None, path).routing(), config.process.node_id)
    return line


def check_serving(routing: RoutingInfo, node_id: int) -> None:
    """Raise FsError(NOT_SERVING) unless the node has targets in chains and all of them serve."""
    members = [
        (chain.chain_id, member)
        for chain in routing.chains.values()
        for member in chain.targets
        if routing.target(member.target_id).node_id == node_id
    ]
    if not members:
        raise FsError(Status.NOT_SERVING, f"node {node_id} has no target in any chain")
    for chain_id, member in members:
        if member.public_state is not PublicState.SERVING:
            state = member.public_state.name.lower()
            detail = f"target {member.target_id} of chain {chain_id} is {state}"
            raise FsError(Status.NOT_SERVING, detail)


def _mount(mount_point: Path) -> str:
    if not is_mounted(mount_point) or is_dead(mount_point):
        raise FsError(Status.NOT_RUNNING, f"{mount_point}: no mount, or its daemon has died")
    return f"mounted at {mount_point}"


def _server(path: Path, config: ProcessConfig, timeout_s: float) -> str:
    address, node_id = config.process.listen, config.process.node_id

    async def use(_mgmtd: MgmtdLink, channels: ChannelPool) -> GetInfoRsp:
        channel = channels.get(address, node_id=node_id)
        answer = await channel.call(services.CORE_GET_INFO, GetInfoReq(), timeout_s=timeout_s)
        return answer.message

    found = find(None, path).run(use)
    return (
        f"cluster {found.cluster_id}, node {found.node_id}, release {found.release},"
        f" serves {', '.join(found.services)} since {found.uptime_s:.0f} s"
    )
