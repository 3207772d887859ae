"""`ember admin upgrade`: whether processes may be started anew, and in which order."""

from dataclasses import asdict
from json import dumps

import typer

from ...admin.doctor import Snapshot
from ...admin.upgrade import obstacles, steps
from ...node.mgmtd_link import MgmtdLink
from ...rpc.channel import ChannelPool
from ...schema import services
from ...schema.proto import mgmtd_pb2
from ..reach.where import TIMEOUT_S, ConfigOption, DirOption, find
from ..terminal.listing import EXIT_FOUND, JsonOption, print_rows
from .doctor import look, print_findings

upgrade = typer.Typer(help="Before and during a rolling upgrade.", no_args_is_help=True)


@upgrade.command("check")
def check(
    *, as_json: JsonOption = False, directory: DirOption = None, config: ConfigOption = None
) -> None:
    """Say whether a process may be started anew now, and in which order to go.

    To be asked before each of them.  Exit code 0: go on; 3: something is to be put right first.

    Example: ember admin upgrade check
    """

    async def use(mgmtd: MgmtdLink, channels: ChannelPool) -> tuple[Snapshot, int]:
        request = mgmtd_pb2.GetPrimaryReq()
        primary = await mgmtd.call(services.MGMTD_GET_PRIMARY, request, timeout_s=TIMEOUT_S)
        return await look(mgmtd, channels), primary.node_id

    now, primary = find(directory, config).run(use)
    found, order = obstacles(now), [asdict(step) for step in steps(now.routing, primary)]
    if as_json:
        rows = [asdict(one) | {"severity": one.severity.name.lower()} for one in found]
        typer.echo(dumps({"is_ready": not found, "obstacles": rows, "order": order}, indent=2))
    else:
        print_findings(found)
        typer.echo("order:")
        print_rows(order, dict.fromkeys(("node_id", "roles", "release", "effect")), as_json=False)
    if found:
        raise typer.Exit(EXIT_FOUND)
