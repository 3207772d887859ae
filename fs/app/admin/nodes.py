"""`ember admin node`, `ember admin disk`: take machines and disks in and out.

Does not decide anything: fs/mgmtd/ops does.
"""

from typing import Annotated

import trio
import typer

from ...admin.facts import Spaces, disk_rows, node_rows
from ...node.mgmtd_link import MgmtdLink
from ...rpc.channel import ChannelPool
from ...schema import services
from ...schema.ids import NodeId
from ...schema.proto import common_pb2, storage_pb2
from ...schema.proto import mgmtd_pb2 as pb
from ...schema.routing import NodeState, Role, RoutingInfo
from ...schema.status import FsError
from ..mgmtd_link import newest_routing
from ..status_view import bytes_text
from ..where import TIMEOUT_S, ConfigOption, DirOption, Where, find
from .cluster import ControlOption, MetaOption, MgmtdOption, StorageOption, read_servers
from .listing import DryRunOption, JsonOption, YesOption, confirm, print_rows
from .moves import wait_drained

node = typer.Typer(help="The machines and their processes.", no_args_is_help=True)
disk = typer.Typer(help="The disks of storage nodes.", no_args_is_help=True)

NodeArgument = Annotated[int, typer.Argument(metavar="NODE", min=1, help="As `ember admin node list` shows it.")]  # fmt: skip
DiskArgument = Annotated[int, typer.Argument(metavar="DISK", min=0, help="As `ember admin disk list` shows it.")]  # fmt: skip
WaitOption = Annotated[bool, typer.Option("--wait", help="Until nothing is left there; Ctrl-C stops waiting only.")]  # fmt: skip
CancelOption = Annotated[bool, typer.Option("--cancel", help="Use it again; moves that have begun to serve are finished.")]  # fmt: skip


@node.command("list")
def list_nodes(
    *, as_json: JsonOption = False, directory: DirOption = None, config: ConfigOption = None
) -> None:
    """List the processes of the cluster, their state, release and targets."""
    columns = dict.fromkeys(("node_id", "roles", "state", "host", "address", "release", "targets", "serving"))  # fmt: skip
    print_rows(node_rows(find(directory, config).routing()), columns, as_json=as_json)


@node.command("add")
def add(
    mgmtd: MgmtdOption = None,
    meta: MetaOption = None,
    control: ControlOption = None,
    storage: StorageOption = None,
) -> None:
    """Make new processes known to the cluster that their configuration files name; repeating is harmless.

    Start them before or after.  Storage nodes hold nothing until targets are moved to them: `rebalance start`.
    """
    for server in read_servers(mgmtd, meta, control, storage):
        process = server.config.process
        made = common_pb2.NodePb(
            node_id=process.node_id, roles=server.roles, address=process.listen
        )
        where = Where(tuple(process.mgmtd_addresses), process.cluster_id, server.config.auth)
        where.ask(services.MGMTD_REGISTER_NODE, pb.RegisterNodeReq(node=made))
        typer.echo(f"{server.name}: node {process.node_id} at {process.listen} may join")


@node.command("disable")
def disable(
    node_id: NodeArgument,
    *,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    accept_unavailable: Annotated[
        bool,
        typer.Option("--accept-unavailable", help="Even if chains have their newest data only there."),
    ] = False,
    directory: DirOption = None,
    config: ConfigOption = None,
) -> None:  # fmt: skip
    """Take a node out of service for maintenance: its targets go offline and stay so until it is enabled."""
    where = find(directory, config)
    confirm(_disable_plan(where.routing(), node_id), dry_run=dry_run, yes=yes)
    request = pb.DisableNodeReq(node_id=node_id, accept_unavailable_chains=accept_unavailable)
    where.ask(services.MGMTD_DISABLE_NODE, request)
    typer.echo(f"node {node_id} is out of service: ember admin node enable {node_id}")


def _disable_plan(info: RoutingInfo, node_id: int) -> list[str]:
    found = info.node(node_id)
    chains = _chains_of(info, node_id)
    lines = [f"node {node_id} ({found.host_name or found.address}) gets no lease any more"]
    if chains:
        lines.append(
            f"{len(chains)} chains lose a replica until it is enabled, and are resynced then: {chains[:12]}"
        )
    return lines


def _chains_of(info: RoutingInfo, node_id: int, disk_index: int | None = None) -> list[int]:
    """Return the chains that have a member on the node, or on one of its disks."""
    return sorted(
        chain.chain_id
        for chain in info.chains.values()
        if any(
            target.node_id == node_id and disk_index in {None, target.disk_index}
            for target in (info.target(member.target_id) for member in chain.targets)
        )
    )


@node.command("enable")
def enable(
    node_id: NodeArgument, *, directory: DirOption = None, config: ConfigOption = None
) -> None:
    """Put a node back into service."""
    find(directory, config).ask(services.MGMTD_ENABLE_NODE, pb.EnableNodeReq(node_id=node_id))
    typer.echo(f"node {node_id} may serve again; its targets are resynced first")


@node.command("remove")
def remove(
    node_id: NodeArgument,
    *,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    directory: DirOption = None,
    config: ConfigOption = None,
) -> None:
    """Forget a node that has failed or is disabled and holds no target of any chain (drain it before)."""
    where = find(directory, config)
    info = where.routing()
    found = info.node(node_id)
    plan = [f"node {node_id} ({found.host_name or found.address}) is forgotten"]
    if chains := _chains_of(info, node_id):
        plan.append(f"refused as long as it is in chains {chains[:12]}: drain it first")
    confirm(plan, dry_run=dry_run, yes=yes)
    where.ask(services.MGMTD_UNREGISTER_NODE, pb.UnregisterNodeReq(node_id=node_id))


@node.command("drain")
def drain_node(
    node_id: NodeArgument,
    *,
    cancel: CancelOption = False,
    wait: WaitOption = False,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    directory: DirOption = None,
    config: ConfigOption = None,
) -> None:
    """Move everything that a node stores to others; at no moment has a chain fewer replicas than before."""
    where = find(directory, config)
    _drain(where, pb.DrainPb(node_id=node_id), cancel=cancel, wait=wait, dry_run=dry_run, yes=yes)


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
    """Move everything that a disk stores to others; at no moment has a chain fewer replicas than before."""
    where = find(directory, config)
    drain = pb.DrainPb(node_id=node_id, is_one_disk=True, disk_index=disk_index)
    _drain(where, drain, cancel=cancel, wait=wait, dry_run=dry_run, yes=yes)


def _drain(
    where: Where, drain: pb.DrainPb, *, cancel: bool, wait: bool, dry_run: bool, yes: bool
) -> None:
    """Begin to empty a place, or end that."""
    name = f"node {drain.node_id}" + (f" disk {drain.disk_index}" if drain.is_one_disk else "")
    info = where.routing()
    info.node(drain.node_id)
    if cancel:
        confirm([f"{name} is used again"], dry_run=dry_run, yes=True)
        where.ask(services.MGMTD_CANCEL_DRAIN, pb.CancelDrainReq(drain=drain))
        return
    confirm(_drain_plan(info, drain, name), dry_run=dry_run, yes=yes)
    reply = where.ask(services.MGMTD_START_DRAIN, pb.StartDrainReq(drain=drain))
    typer.echo(
        f"{name}: {reply.target_count} targets have to leave; progress: ember admin move list"
    )
    if wait:
        wait_drained(where, drain, reply.target_count)


def _drain_plan(info: RoutingInfo, drain: pb.DrainPb, name: str) -> list[str]:
    chains = _chains_of(info, drain.node_id, drain.disk_index if drain.is_one_disk else None)
    others = [
        n.node_id
        for n in info.nodes.values()
        if Role.STORAGE in n.roles and n.node_id != drain.node_id and n.state is NodeState.CONNECTED
    ]
    lines = [f"{name}: a member of each of {len(chains)} chains is replaced by one elsewhere"]
    size = max((info.chain(chain_id).replica_count for chain_id in chains), default=0)
    if not drain.is_one_disk and len(others) < size:
        lines.append(
            f"only {len(others)} other storage nodes are there for chains of {size}: it waits until there are more"
        )
    return lines


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


@disk.command("list")
def list_disks(
    *, as_json: JsonOption = False, directory: DirOption = None, config: ConfigOption = None
) -> None:
    """List the disks of all storage nodes that answer, with their space and targets."""

    async def use(mgmtd: MgmtdLink, channels: ChannelPool) -> tuple[RoutingInfo, Spaces]:
        info = await newest_routing(mgmtd, TIMEOUT_S)
        return info, await spaces_of(channels, info)

    rows = disk_rows(*find(directory, config).run(use))
    columns = {
        "node_id": None,
        "disk_index": None,
        "path": None,
        "capacity_bytes": bytes_text,
        "free_bytes": bytes_text,
        "used_bytes": bytes_text,
        "targets": None,
        "is_slow": None,
    }
    print_rows(rows, columns, as_json=as_json)
