"""`ember admin node`: take machines in and out, and work on them.

Does not decide anything: fs/mgmtd/ops does.
"""

from typing import Annotated, Any, Final

import typer

from ...admin.facts import node_rows
from ...admin.settings import newest_versions, state_text
from ...schema import services
from ...schema.proto import common_pb2
from ...schema.proto import mgmtd_pb2 as pb
from ...schema.routing import NodeState, Role, RoutingInfo
from ..reach.where import ConfigOption, DirOption, Where, find
from ..terminal.amounts import ids_text, parse_time_s
from ..terminal.listing import DryRunOption, JsonOption, YesOption, confirm, print_rows, time_text
from .cluster import ControlOption, MetaOption, MgmtdOption, StorageOption, read_servers
from .completion import NodeArgument
from .drains import CancelOption, WaitOption, chains_of, drain, drain_plan, start_drain
from .settings import kept_settings
from .tags import has_tags, tag, tags_text

MAINTENANCE_DAYS_MAX: Final = 30
"""As the manager has it (fs/mgmtd/ops/set_maintenance.py)."""

node = typer.Typer(help="The machines and their processes.", no_args_is_help=True)
maintenance = typer.Typer(help="Work on a machine.", no_args_is_help=True)
node.add_typer(maintenance, name="maintenance")
node.add_typer(tag, name="tag")


@node.command("list")
def list_nodes(
    *,
    tags: Annotated[
        list[str] | None,
        typer.Option("--tag", metavar="KEY[=VALUE]", help="Only those that have it; repeatable."),
    ] = None,
    as_json: JsonOption = False,
    directory: DirOption = None,
    config: ConfigOption = None,
) -> None:
    """List the processes of the cluster, their state, release, targets, settings and tags.

    Example: ember admin node list

    Example: ember admin node list --tag rack=r1
    """
    columns: dict[str, Any] = dict.fromkeys(
        (
            "node_id",
            "roles",
            "state",
            "host",
            "address",
            "release",
            "targets",
            "serving",
            "settings",
        )
    )
    columns |= {"tags": tags_text, "maintenance_until_ns": time_text}
    where = find(directory, config)
    rows = [row for row in node_rows(where.routing()) if has_tags(row["tags"], tags or [])]
    states = {} if where.is_down else _settings_states(where)
    for row in rows:
        row["settings"] = states.get(row["node_id"], "")
    print_rows(rows, columns, as_json=as_json)


def _settings_states(where: Where) -> dict[int, str]:
    """Return how far nodes are with their settings, as `ember admin config status` says it."""
    listed = where.run(lambda mgmtd, _channels: kept_settings(mgmtd))
    newest = newest_versions(listed)
    return {one.node_id: state_text(one.settings, newest) for one in listed.nodes}


@node.command("add")
def add(
    mgmtd: MgmtdOption = None,
    meta: MetaOption = None,
    control: ControlOption = None,
    storage: StorageOption = None,
) -> None:
    """Make new processes known to the cluster that their configuration files name;
    repeating is harmless.

    Start them before or after.  Storage nodes hold nothing until targets are
    moved to them: `rebalance start`.

    Example: ember admin node add --storage storage-1.toml
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
        typer.Option(
            "--accept-unavailable", help="Even if chains have their newest data only there."
        ),
    ] = False,
    directory: DirOption = None,
    config: ConfigOption = None,
) -> None:
    """Take a node out of service for maintenance:
    its targets go offline and stay so until it is enabled.

    Example: ember admin node disable 12 --dry-run
    """
    where = find(directory, config)
    confirm(_disable_plan(where.routing(), node_id), dry_run=dry_run, yes=yes)
    request = pb.DisableNodeReq(node_id=node_id, accept_unavailable_chains=accept_unavailable)
    where.ask(services.MGMTD_DISABLE_NODE, request)
    typer.echo(f"node {node_id} is out of service: ember admin node enable {node_id}")


def _disable_plan(info: RoutingInfo, node_id: int) -> list[str]:
    found = info.node(node_id)
    chains = chains_of(info, node_id)
    lines = [f"node {node_id} ({found.host_name or found.address}) gets no lease any more"]
    if chains:
        lines.append(
            "these chains lose a replica until it is enabled, and are resynced then: "
            f"{ids_text(chains)}"
        )
    return lines


@node.command("enable")
def enable(
    node_id: NodeArgument, *, directory: DirOption = None, config: ConfigOption = None
) -> None:
    """Put a node back into service.

    Example: ember admin node enable 12
    """
    find(directory, config).ask(services.MGMTD_ENABLE_NODE, pb.EnableNodeReq(node_id=node_id))
    typer.echo(f"node {node_id} may serve again; its targets are resynced first")


@node.command("remove")
def remove(
    node_id: NodeArgument,
    *,
    drain_first: Annotated[
        bool,
        typer.Option(
            "--drain",
            help="The whole job: move everything away, take it out of service, forget it.",
        ),
    ] = False,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    directory: DirOption = None,
    config: ConfigOption = None,
) -> None:
    """Forget a node that has failed or is disabled and holds no target of any chain.

    With --drain it may serve still: it is drained first, which takes as long as copying what it
    holds.  An interrupted one is repeated with the same command.

    Example: ember admin node remove 12 --dry-run

    Example: ember admin node remove 12 --drain --dry-run
    """
    where = find(directory, config)
    info = where.routing()
    found = info.node(node_id)
    name = f"node {node_id} ({found.host_name or found.address})"
    plan = [f"{name} is forgotten"]
    place = pb.DrainPb(node_id=node_id)
    if drain_first:
        steps = drain_plan(info, place) if Role.STORAGE in found.roles else []
        plan = [
            *steps,
            f"then {name} is taken out of service and forgotten; stop its process afterwards",
        ]
    elif chains := chains_of(info, node_id):
        plan.append(
            f"refused as long as it is in chains {ids_text(chains)}: say --drain, or drain it first"
        )
    confirm(plan, dry_run=dry_run, yes=yes)
    if drain_first:
        if Role.STORAGE in found.roles:
            start_drain(where, place, wait=True)
        if found.state is not NodeState.FAILED:
            where.ask(services.MGMTD_DISABLE_NODE, pb.DisableNodeReq(node_id=node_id))
    where.ask(services.MGMTD_UNREGISTER_NODE, pb.UnregisterNodeReq(node_id=node_id))
    typer.echo(f"node {node_id} is forgotten")


@maintenance.command("on")
def maintenance_on(
    node_id: NodeArgument,
    *,
    for_: Annotated[
        str,
        typer.Option(
            "--for", metavar="TIME", help="30m, 4h, 2d, at most 30d: then it is over by itself."
        ),
    ] = "4h",
    accept_unavailable: Annotated[
        bool,
        typer.Option(
            "--accept-unavailable", help="Even if chains have their newest data only there."
        ),
    ] = False,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    directory: DirOption = None,
    config: ConfigOption = None,
) -> None:
    """Say that somebody works on a machine: it may be away for so long
    without its targets being replaced.

    It goes on serving until its process is stopped, and is brought up to
    date when that is started again.

    Example: ember admin node maintenance on 12 --for 30m --yes
    """
    where, seconds = (
        find(directory, config),
        parse_time_s(for_, "--for", days_max=MAINTENANCE_DAYS_MAX),
    )
    info = where.routing()
    chains = chains_of(info, node_id)
    plan = [
        f"node {node_id}: its targets are not replaced for {for_}, however long it is away",
        f"chains with a replica fewer while it is away: {len(chains)}",
    ]
    if weak := [c for c in chains if len(info.chain(c).serving) < info.chain(c).replica_count]:
        plan.append(f"CAREFUL: chains {ids_text(weak)} lack a replica already")
    confirm(plan, dry_run=dry_run, yes=yes)
    request = pb.SetMaintenanceReq(
        node_id=node_id, for_s=seconds, accept_unavailable_chains=accept_unavailable
    )
    reply = where.ask(services.MGMTD_SET_MAINTENANCE, request)
    typer.echo(
        f"node {node_id} may be away until {time_text(reply.until_ns)} UTC: ember admin node "
        f"maintenance off {node_id}"
    )


@maintenance.command("off")
def maintenance_off(
    node_id: NodeArgument, *, directory: DirOption = None, config: ConfigOption = None
) -> None:
    """Say that the work on a machine is over: what is away now is replaced after the usual time.

    Example: ember admin node maintenance off 12
    """
    request = pb.SetMaintenanceReq(node_id=node_id)
    find(directory, config).ask(services.MGMTD_SET_MAINTENANCE, request)
    typer.echo(f"node {node_id}: maintenance is over")


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
    """Move everything that a node stores to others;
    at no moment has a chain fewer replicas than before.

    Example: ember admin node drain 12 --dry-run

    Example: ember admin node drain 12 --cancel
    """
    where = find(directory, config)
    drain(where, pb.DrainPb(node_id=node_id), cancel=cancel, wait=wait, dry_run=dry_run, yes=yes)
