"""`ember admin config`: the settings that processes run with, and where they differ.

Settings are changed in the file of a process, which is then started anew: a running process takes over no setting but the
key of a closed cluster (SIGHUP).
"""

import json
from typing import Annotated, Any

import trio
import typer

from ...admin.settings import differences, flattened
from ...node.mgmtd_link import MgmtdLink
from ...rpc.channel import ChannelPool
from ...schema import services
from ...schema.ids import NodeId
from ...schema.proto import core_pb2
from ...schema.routing import NodeState, RoutingInfo
from ...schema.status import FsError
from ..mgmtd_link import newest_routing
from ..where import TIMEOUT_S, ConfigOption, DirOption, find
from .completion import NodeArgument
from .listing import EXIT_FOUND, JsonOption, print_rows

config_group = typer.Typer(help="Settings of running processes.", no_args_is_help=True)

ASK_TIMEOUT_S = 5.0


async def configs_of(
    channels: ChannelPool, info: RoutingInfo
) -> tuple[dict[NodeId, str], dict[NodeId, str]]:
    """Ask every process that is there for its settings, side by side; return the answers, and why others gave none."""
    found: dict[NodeId, str] = {}
    silent: dict[NodeId, str] = {}

    async def one(node_id: NodeId, address: str) -> None:
        try:
            found[node_id] = await config_of(channels, address, node_id)
        except FsError as error:
            silent[node_id] = str(error)

    async with trio.open_nursery() as nursery:
        for node in info.nodes.values():
            if node.state not in {NodeState.FAILED, NodeState.STARTING}:
                nursery.start_soon(one, node.node_id, node.address)
    return found, silent


async def config_of(channels: ChannelPool, address: str, node_id: int) -> str:
    """Return the settings of one process, as JSON; raises FsError as it answers."""
    received = await channels.get(address, node_id=node_id).call(
        services.CORE_GET_CONFIG, core_pb2.GetConfigReq(), timeout_s=ASK_TIMEOUT_S
    )
    return received.message.json


@config_group.command("get")
def get(
    node_id: NodeArgument,
    *,
    key: Annotated[
        str, typer.Option("--key", help="Only this setting or section: mgmtd, meta.gc_delay_s.")
    ] = "",
    as_json: JsonOption = False,
    directory: DirOption = None,
    config: ConfigOption = None,
) -> None:
    """Show the settings that a process runs with, defaults included.

    Example: ember admin config get 1

    Example: ember admin config get 11 --key storage --json
    """

    async def use(mgmtd: MgmtdLink, channels: ChannelPool) -> str:
        info = await newest_routing(mgmtd, TIMEOUT_S)
        return await config_of(channels, info.node(node_id).address, node_id)

    settings = flattened(find(directory, config).run(use))
    rows = [
        {"key": name, "value": value}
        for name, value in settings.items()
        if not key or name == key or name.startswith(key + ".")
    ]
    print_rows(rows, {"key": None, "value": json.dumps}, as_json=as_json)


@config_group.command("diff")
def diff(
    *, as_json: JsonOption = False, directory: DirOption = None, config: ConfigOption = None
) -> None:
    """Show the settings in which processes differ that should have the same.

    Left out is what makes a process itself: its id, addresses, paths, disks.  Exit code 0: none; 3: some.

    Example: ember admin config diff
    """

    async def use(mgmtd: MgmtdLink, channels: ChannelPool) -> list[dict[str, Any]]:
        info = await newest_routing(mgmtd, TIMEOUT_S)
        found, silent = await configs_of(channels, info)
        for node_id, why in silent.items():
            typer.echo(f"node {node_id} does not tell its settings: {why}", err=True)
        return [
            {"key": one.key, "value": json.loads(value), "nodes": list(node_ids)}
            for one in differences(info, found)
            for value, node_ids in one.values.items()
        ]

    rows = find(directory, config).run(use)
    print_rows(rows, {"key": None, "value": json.dumps, "nodes": None}, as_json=as_json)
    if rows:
        raise typer.Exit(EXIT_FOUND)
