"""`ember admin chain`, `target`, `table`: the chains, by hand.

Does not decide anything: fs/mgmtd/ops refuses what is unsafe.
"""

from typing import Annotated, Any

import typer

from ...admin.facts import chain_row, chain_rows, table_rows, target_rows
from ...node.mgmtd_link import MgmtdLink
from ...rpc.channel import ChannelPool
from ...schema import services
from ...schema.ids import TargetId
from ...schema.proto import mgmtd_pb2 as pb
from ...schema.proto.mgmtd_pb2 import ADD_MEMBER, REMOVE_MEMBER, ChainUpdatePb
from ...schema.status import FsError, Status
from ..reach.mgmtd_link import newest_routing
from ..reach.where import TIMEOUT_S, ConfigOption, DirOption, Where, find
from ..terminal.amounts import bytes_text
from ..terminal.listing import (
    DryRunOption,
    JsonOption,
    YesOption,
    confirm,
    print_facts,
    print_rows,
    time_text,
)
from .completion import ChainArgument, TargetArgument
from .meta_calls import inode_of

chain = typer.Typer(help="Chains and their members.", no_args_is_help=True)
target = typer.Typer(help="Targets, in chains or not.", no_args_is_help=True)
table = typer.Typer(help="Chain tables, which layouts of files refer to.", no_args_is_help=True)


def _members(targets: list[dict[str, Any]]) -> str:
    return ", ".join(f"{t['target_id']}@{t['node_id']} {t['state']}" for t in targets)


@chain.command("list")
def list_chains(
    *, as_json: JsonOption = False, directory: DirOption = None, config: ConfigOption = None
) -> None:
    """List all chains, the head of each first; 11001@11 is target 11001 on node 11.

    Example: ember admin chain list
    """
    columns = {
        "chain_id": None,
        "chain_version": None,
        "replicas": None,
        "serving": None,
        "loss_count": None,
        "targets": _members,
    }
    print_rows(chain_rows(find(directory, config).routing()), columns, as_json=as_json)


@chain.command("show")
def show(
    chain_id: ChainArgument,
    *,
    as_json: JsonOption = False,
    directory: DirOption = None,
    config: ConfigOption = None,
) -> None:
    """Show one chain and its members; JSON tells more of each.

    Example: ember admin chain show 1
    """
    info = find(directory, config).routing()
    found = info.chain(chain_id)
    facts = chain_row(info, found)
    facts["preferred_order"] = list(found.preferred_order)
    facts["targets"] = [row for row in target_rows(info) if row["chain_id"] == chain_id]
    if as_json:
        print_facts(facts, as_json=True)
        return
    members = {row["target_id"]: row for row in facts.pop("targets")}
    facts["preferred_order"] = ", ".join(map(str, found.preferred_order))
    print_facts(facts, as_json=False)
    columns = {
        "target_id": None,
        "node_id": None,
        "disk_index": None,
        "state": None,
        "local_state": None,
        "used_bytes": bytes_text,
        "trouble": None,
    }
    in_order = [members[member.target_id] for member in found.targets]
    print_rows(in_order, columns, as_json=False)


def _update(
    where_options: tuple[Any, Any], chain_id: int, target_id: int, update: ChainUpdatePb.ValueType,
    *, accept_fewer: bool = False,
) -> None:  # fmt: skip
    request = pb.UpdateChainReq(
        chain_id=chain_id,
        target_id=target_id,
        update=update,
        accept_fewer_replicas=accept_fewer,
    )
    reply = find(*where_options).ask(services.MGMTD_UPDATE_CHAIN, request)
    typer.echo(f"chain {chain_id} has version {reply.chain_version}")


@chain.command("add-target")
def add_target(
    chain_id: ChainArgument,
    target_id: TargetArgument,
    *,
    directory: DirOption = None,
    config: ConfigOption = None,
) -> None:
    """Add a target that is in no chain to the end of one; it is brought up to date, then serves.

    Example: ember admin chain add-target 1 11001
    """
    _update((directory, config), chain_id, target_id, ADD_MEMBER)


@chain.command("remove-target")
def remove_target(
    chain_id: ChainArgument,
    target_id: TargetArgument,
    *,
    accept_fewer: Annotated[
        bool, typer.Option("--accept-fewer", help="Even if it serves, as long as another one does.")
    ] = False,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    directory: DirOption = None,
    config: ConfigOption = None,
) -> None:
    """Take a target out of its chain; what it holds is not used any more.

    Example: ember admin chain remove-target 1 11001 --dry-run
    """
    info = find(directory, config).routing()
    state = info.chain(chain_id).state_of(TargetId(target_id))
    plan = [
        (
            f"chain {chain_id} loses target {target_id} "
            f"({state.name.lower() if state else 'no member'})"
        )
    ]
    confirm(plan, dry_run=dry_run, yes=yes)
    _update((directory, config), chain_id, target_id, REMOVE_MEMBER, accept_fewer=accept_fewer)


@chain.command("order")
def order(
    chain_id: ChainArgument,
    target_ids: Annotated[
        list[int], typer.Argument(metavar="TARGET...", help="All members, head first.")
    ],
    *,
    directory: DirOption = None,
    config: ConfigOption = None,
) -> None:
    """Set the order that a chain returns to.

    Example: ember admin chain order 1 13001 12001 11001
    """
    request = pb.SetPreferredOrderReq(chain_id=chain_id, target_ids=target_ids)
    find(directory, config).ask(services.MGMTD_SET_PREFERRED_ORDER, request)


@chain.command("rotate")
def rotate(
    chain_id: ChainArgument, *, directory: DirOption = None, config: ConfigOption = None
) -> None:
    """Bring a chain one step nearer to its preferred order; for that time it has one replica fewer.

    Example: ember admin chain rotate 1
    """
    request = pb.RotateAsPreferredOrderReq(chain_id=chain_id)
    reply = find(directory, config).ask(services.MGMTD_ROTATE_AS_PREFERRED_ORDER, request)
    moved = f"target {reply.target_id} went to the end" if reply.target_id else "is in its order"
    typer.echo(f"chain {chain_id}: {moved}")


@chain.command("rotate-lost")
def rotate_lost(
    chain_id: ChainArgument,
    lost_target_id: TargetArgument,
    *,
    chosen_target_id: Annotated[
        int, typer.Option("--chosen", help="What becomes the truth.", show_default="who is alive")
    ] = 0,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    directory: DirOption = None,
    config: ConfigOption = None,
) -> None:
    """Give up the only target with the newest data, whose disk is lost for good:
    LOSES WHAT WAS WRITTEN LAST.

    Example: ember admin chain rotate-lost 1 11001 --dry-run
    """
    plan = [
        (
            f"DATA LOSS: chain {chain_id} gives up target {lost_target_id}, the only one with its "
            "newest data"
        ),
        (
            "what was written since the others left the chain is gone, synced or not; never do "
            "this while its disk can be read"
        ),
    ]
    confirm(plan, dry_run=dry_run, yes=yes)
    request = pb.RotateLastServingReq(
        chain_id=chain_id,
        lost_target_id=lost_target_id,
        chosen_target_id=chosen_target_id,
        accept_data_loss=True,
    )
    reply = find(directory, config).ask(services.MGMTD_ROTATE_LAST_SERVING, request)
    typer.echo(f"chain {chain_id}: target {reply.chosen_target_id} has the truth now")


@chain.command("accept-old")
def accept_old(
    chain_id: ChainArgument,
    target_id: TargetArgument,
    *,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    directory: DirOption = None,
    config: ConfigOption = None,
) -> None:
    """Let the last server of a chain serve from an older image of its disk:
    LOSES WHAT WAS WRITTEN SINCE.

    Example: ember admin chain accept-old 1 11001 --dry-run
    """
    where = find(directory, config)
    plan = [
        f"DATA LOSS: chain {chain_id} goes on from target {target_id} as its disk is now",
        where.routing().target(TargetId(target_id)).trouble or "it is not known as an older image",
        (
            "what was written since is gone, synced or not; never do this while the right disk can "
            "be brought back"
        ),
    ]
    confirm(plan, dry_run=dry_run, yes=yes)
    request = pb.AcceptOldImageReq(chain_id=chain_id, target_id=target_id, accept_data_loss=True)
    reply = where.ask(services.MGMTD_ACCEPT_OLD_IMAGE, request)
    typer.echo(
        f"chain {chain_id} has version {reply.chain_version}: target {target_id} has the truth now"
    )


@chain.command("accept-disks")
def accept_disks(
    *,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    directory: DirOption = None,
    config: ConfigOption = None,
) -> None:
    """Take disks of a managers' store that is lost into chains that were made anew:
    ONLY WHERE THE NAMES ARE THOSE OF BEFORE.

    Example: ember admin chain accept-disks --dry-run
    """
    where = find(directory, config)
    birth_ns = where.run(lambda mgmtd, channels: _root_birth(where, mgmtd, channels))
    found = where.ask(services.MGMTD_ACCEPT_DISKS, pb.AcceptDisksReq(namespace_birth_ns=birth_ns))
    for disk in found.disks:
        typer.echo(
            f"target {disk.target_id} on node {disk.node_id}, chain {disk.chain_id}: served until"
            f" {time_text(disk.watermark * 10**9)}, version {disk.chain_version} of chains made "
            f"{time_text(disk.birth_ns)}"
        )
    if found.obstacles:
        raise FsError(Status.UNSAFE_CHANGE, "; ".join(found.obstacles))
    plan = [
        (
            f"these {len(found.disks)} targets are believed as after a restore: each chain serves "
            "once those are heard who can know its newest data"
        ),
        (
            f"the file system was made {time_text(birth_ns)}; files get the chunks that their "
            "numbers name: never do this with another one"
        ),
        (
            "lost: users, tokens, kept settings, moves and the history of the managers; what new "
            "chains have been written meanwhile"
        ),
    ]
    confirm(plan, dry_run=dry_run, yes=yes)
    request = pb.AcceptDisksReq(namespace_birth_ns=birth_ns, accept=True)
    reply = where.ask(services.MGMTD_ACCEPT_DISKS, request)
    typer.echo(
        f"{len(reply.disks)} targets are accepted; ember admin doctor tells of what is waited for"
    )


async def _root_birth(where: Where, mgmtd: MgmtdLink, channels: ChannelPool) -> int:
    """Return when the root directory was made, as wall time in ns; raises FsError."""
    info = await newest_routing(mgmtd, TIMEOUT_S)
    return (await inode_of(where, channels, info, "/", 0)).btime_ns


@target.command("list")
def list_targets(
    *,
    orphans: Annotated[bool, typer.Option("--orphans", help="Only those in no chain.")] = False,
    as_json: JsonOption = False,
    directory: DirOption = None,
    config: ConfigOption = None,
) -> None:
    """List all targets and what their nodes say of them.

    Example: ember admin target list --orphans
    """
    rows = target_rows(find(directory, config).routing())
    if orphans:
        rows = [row for row in rows if not row["chain_id"]]
    columns = {
        "target_id": None,
        "chain_id": None,
        "node_id": None,
        "disk_index": None,
        "state": None,
        "local_state": None,
        "used_bytes": bytes_text,
        "is_slow": None,
        "trouble": None,
    }
    print_rows(rows, columns, as_json=as_json)


@table.command("list")
def list_tables(
    *, as_json: JsonOption = False, directory: DirOption = None, config: ConfigOption = None
) -> None:
    """List every version of every chain table that is in use.

    Example: ember admin table list
    """
    columns = dict.fromkeys(("table_id", "table_version", "chain_ids"))
    print_rows(table_rows(find(directory, config).routing()), columns, as_json=as_json)
