"""`ember admin disk`: the disks of storage nodes.

Does not decide anything: fs/mgmtd/ops does.
"""

from typing import Annotated

import trio
import typer

from ...admin.facts import Spaces, disk_rows
from ...node.mgmtd_link import MgmtdLink
from ...rpc.channel import ChannelPool
from ...schema import services
from ...schema.ids import NodeId
from ...schema.proto import mgmtd_pb2 as pb
from ...schema.proto import storage_pb2
from ...schema.routing import Role, RoutingInfo
from ...schema.status import FsError, Status
from ..reach.mgmtd_link import newest_routing
from ..reach.where import TIMEOUT_S, ConfigOption, DirOption, Where, find
from ..terminal.amounts import bytes_text, ids_text
from ..terminal.listing import DryRunOption, JsonOption, YesOption, confirm, print_rows
from .completion import DiskArgument, NodeArgument
from .drains import CancelOption, WaitOption, chains_of, drain, drain_plan, start_drain
from .settings import configs_of

disk = typer.Typer(help="The disks of storage nodes.", no_args_is_help=True)


@disk.command("drain")
def drain_disk(
    node_id: NodeArgument,
    disk_index: DiskArgument,
    *,
    cancel: CancelOption = False,
    wait: WaitOption = False,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    directory: DirOption = None,
    config: ConfigOption = None,
) -> None:
    """Move everything that a disk stores to others;
    at no moment has a chain fewer replicas than before.

    Example: ember admin disk drain 12 0 --dry-run
    """
    where = find(directory, config)
    place = pb.DrainPb(node_id=node_id, is_one_disk=True, disk_index=disk_index)
    drain(where, place, cancel=cancel, wait=wait, dry_run=dry_run, yes=yes)


@disk.command("replace")
def replace(
    node_id: NodeArgument,
    disk_index: DiskArgument,
    *,
    done: Annotated[bool, typer.Option("--done", help="The new disk is in: use it.")] = False,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    directory: DirOption = None,
    config: ConfigOption = None,
) -> None:
    """Replace a disk: empty it and wait, have it exchanged, and then, with --done, use the new one.

    In between a person takes the disk out, mounts a new one at the same path, and removes that path
    from the node's disks.json; the process takes it into use by itself.  While the disk is being
    emptied no chain has fewer replicas than before; one that is dead already is replaced as well.

    Example: ember admin disk replace 12 0 --dry-run

    Example: ember admin disk replace 12 0 --done --dry-run
    """
    where = find(directory, config)
    info = where.routing()
    place = pb.DrainPb(node_id=node_id, is_one_disk=True, disk_index=disk_index)
    name = f"node {node_id} disk {disk_index}"
    info.node(node_id)
    if done:
        check_used(where, node_id, disk_index)
        left = chains_of(info, node_id, disk_index)
        if left:
            typer.echo(f"{name} still holds members of chains {ids_text(left)}", err=True)
        confirm(
            [f"{name} is used again", "chains are spread over all disks"], dry_run=dry_run, yes=yes
        )
        where.ask(services.MGMTD_CANCEL_DRAIN, pb.CancelDrainReq(drain=place))
        where.ask(services.MGMTD_START_REBALANCE, pb.StartRebalanceReq())
        typer.echo(f"{name} is used again; progress: ember admin move list")
        return
    exchange = (
        "exchange the disk: mount an empty file system at its path, and remove the path from "
        f"disks.json in the directory of node {node_id}, which takes it into use by itself, or at "
        f"once when its process is restarted; then: ember admin disk replace {node_id} "
        f"{disk_index} --done"
    )
    confirm([*drain_plan(info, place), f"then {exchange}"], dry_run=dry_run, yes=yes)
    start_drain(where, place, wait=True)
    typer.echo(f"{name} is empty: {exchange}")


def check_used(where: Where, node_id: int, disk_index: int) -> None:
    """Raise FsError(CONFLICTING_CHANGE) unless a disk is in use:
    nothing should be moved to one that is not.
    """
    for row in disk_rows(*where.run(_look)):
        if (row["node_id"], row["disk_index"]) == (node_id, disk_index) and not row["trouble"]:
            return
    detail = (
        f"node {node_id} does not use its disk {disk_index} yet: ember admin disk list says why, "
        "as does the node's log"
    )
    raise FsError(Status.CONFLICTING_CHANGE, detail)


async def spaces_of(channels: ChannelPool, info: RoutingInfo) -> Spaces:
    """Ask every storage node for its disks, side by side; who does not answer is left out."""
    found: dict[NodeId, storage_pb2.SpaceInfoRsp] = {}

    async def one(node_id: NodeId, address: str) -> None:
        channel = channels.get(address, node_id=node_id)
        try:
            received = await channel.call(
                services.STORAGE_SPACE_INFO, storage_pb2.SpaceInfoReq(), timeout_s=TIMEOUT_S / 4
            )
        except FsError as error:
            typer.echo(f"node {node_id} does not tell its disks: {error}", err=True)
        else:
            found[node_id] = received.message

    async with trio.open_nursery() as nursery:
        for each in info.nodes.values():
            if Role.STORAGE in each.roles:
                nursery.start_soon(one, each.node_id, each.address)
    return found


async def _look(
    mgmtd: MgmtdLink, channels: ChannelPool
) -> tuple[RoutingInfo, Spaces, dict[NodeId, str]]:
    info = await newest_routing(mgmtd, TIMEOUT_S)
    configs, _ = await configs_of(channels, info)
    return info, await spaces_of(channels, info), configs


@disk.command("list")
def list_disks(
    *, as_json: JsonOption = False, directory: DirOption = None, config: ConfigOption = None
) -> None:
    """List the disks of all storage nodes that answer, with their space and targets,
    and what keeps one out of use.

    Example: ember admin disk list
    """
    rows = disk_rows(*find(directory, config).run(_look))
    columns = {
        "node_id": None,
        "disk_index": None,
        "path": None,
        "capacity_bytes": bytes_text,
        "free_bytes": bytes_text,
        "used_bytes": bytes_text,
        "targets": None,
        "is_slow": None,
        "trouble": None,
    }
    print_rows(rows, columns, as_json=as_json)
