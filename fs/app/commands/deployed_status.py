"""`ember status` of a cluster of many machines:
what its manager knows of nodes, chains, moves, mounts and space.

Of a cluster of this machine: monitoring/status_view.py, which also knows its processes.
"""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import typer

from ...admin.facts import Spaces, node_rows
from ...node.mgmtd_link import MgmtdLink
from ...rpc.channel import ChannelPool
from ...schema import services
from ...schema.method import Method, ReqT, RspT
from ...schema.proto import mgmtd_pb2
from ...schema.routing import RoutingInfo
from ...schema.status import FsError, Status
from ..admin.disks import spaces_of
from ..monitoring.status_view import chain_lines, overview
from ..reach.mgmtd_link import newest_routing
from ..reach.where import TIMEOUT_S, find
from ..terminal.amounts import bytes_text


def show_deployed(config: Path | None, *, as_json: bool) -> None:
    """Print the status of the cluster of a configuration file.

    Args:
        config: the file; None: that of this machine.
        as_json: for programs.

    Raises:
        FsError: no manager answers, or it refuses.
    """
    where = find(None, config)

    async def use(mgmtd: MgmtdLink, channels: ChannelPool) -> dict[str, Any]:
        info = await newest_routing(mgmtd, TIMEOUT_S)
        moves = await _if_allowed(mgmtd, services.MGMTD_LIST_MOVES, mgmtd_pb2.ListMovesReq())
        sessions = await _if_allowed(
            mgmtd, services.MGMTD_LIST_CLIENT_SESSIONS, mgmtd_pb2.ListClientSessionsReq()
        )
        return gathered(
            info,
            moves or mgmtd_pb2.ListMovesRsp(),
            sessions or mgmtd_pb2.ListClientSessionsRsp(),
            await spaces_of(channels, info),
        )

    status = where.run(use)
    typer.echo(json.dumps(status, indent=2) if as_json else render_deployed(status))


async def _if_allowed(mgmtd: MgmtdLink, method: Method[ReqT, RspT], request: ReqT) -> RspT | None:
    """Return the manager's answer; None: it is for administrators,
    and others are shown the rest.
    """
    try:
        return await mgmtd.call(method, request, timeout_s=TIMEOUT_S)
    except FsError as error:
        if error.status is not Status.RPC_NOT_ALLOWED:
            raise
        return None


def gathered(
    info: RoutingInfo,
    moves: mgmtd_pb2.ListMovesRsp,
    sessions: mgmtd_pb2.ListClientSessionsRsp,
    spaces: Spaces,
) -> dict[str, Any]:
    """Return everything that is shown of a deployed cluster."""
    told = overview(info, moves)
    members = Counter(
        info.target(m.target_id).node_id for chain in info.chains.values() for m in chain.targets
    )
    nodes = [row | {"members": members[row["node_id"]]} for row in node_rows(info)]
    disks = [disk for space in spaces.values() for disk in space.disks]
    mounts = [
        {"mount_point": s.mount_point, "host": s.host_name}
        for s in sessions.sessions
        if s.mount_point
    ]
    is_whole = bool(told["chains"]) and all(chain["is_complete"] for chain in told["chains"])
    return {
        "cluster_id": info.cluster_id,
        "nodes": nodes,
        **told,
        "mounts": mounts,
        "manager_problem": "",
        "space": {
            "capacity_bytes": sum(disk.capacity_bytes for disk in disks),
            "free_bytes": sum(disk.free_bytes for disk in disks),
        },
        "is_healthy": is_whole and all(node["state"] == "connected" for node in nodes),
    }


def render_deployed(status: dict[str, Any]) -> str:
    """Return the status of a deployed cluster as text for people."""
    space = status["space"]
    return "\n".join(
        [
            f"cluster {status['cluster_id']}",
            "",
            f"{'node':>10} {'roles':<12} {'state':<10} {'serving':>8}  {'host':<16} address",
            *(
                f"{n['node_id']:>10} {'+'.join(n['roles']):<12} {n['state']:<10}"
                f" {_serving(n):>8}  {n['host']:<16} {n['address']}"
                for n in status["nodes"]
            ),
            "",
            *chain_lines(status, has_nodes=True),
            *(f"mount: {m['mount_point']} on {m['host']}" for m in status["mounts"]),
            (
                f"disks: {bytes_text(space['free_bytes'])} of "
                f"{bytes_text(space['capacity_bytes'])} free, all copies counted"
            ),
            "what is wrong, and what to do: ember admin doctor",
        ]
    )


def _serving(node: dict[str, Any]) -> str:
    """Return how many of a node's members of chains serve; one that stores nothing has none."""
    return f"{node['serving']}/{node['members']}" if node["members"] else "-"
