"""`ember admin move`, `ember admin rebalance`: targets on their way from one disk to another.

Does not decide anything: fs/mgmtd does.
"""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Final

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from ...admin.facts import drain_rows
from ...schema import services
from ...schema.proto import mgmtd_pb2 as pb
from ...schema.routing import NodeState, Role, RoutingInfo
from ...schema.status import FsError, Status
from ..monitoring.status_view import move_row, move_text
from ..reach.where import ConfigOption, DirOption, Where, find
from ..terminal.listing import DryRunOption, JsonOption, YesOption, confirm

move = typer.Typer(help="Targets that are being moved, and why.", no_args_is_help=True)
rebalance = typer.Typer(help="Spread chains evenly over all disks.", no_args_is_help=True)

POLL_S: Final = 0.5


@move.command("list")
def list_moves(
    *, as_json: JsonOption = False, directory: DirOption = None, config: ConfigOption = None
) -> None:
    """List what moves, what is being drained, and what cannot go on.

    Example: ember admin move list
    """
    found = find(directory, config).ask(services.MGMTD_LIST_MOVES, pb.ListMovesReq())
    rows = [move_row(one) for one in found.moves]
    drains = drain_rows(found)
    if as_json:
        facts = {
            "moves": rows,
            "drains": drains,
            "is_rebalancing": found.is_rebalancing,
            "problems": list(found.problems),
        }
        typer.echo(json.dumps(facts, indent=2))
        return
    for row in rows:
        typer.echo(move_text(row))
    for drain in drains:
        disk = "" if drain["disk_index"] is None else f" disk {drain['disk_index']}"
        left = f"{drain['left']} targets left" if drain["left"] else "empty, may be taken away"
        typer.echo(f"drained: node {drain['node_id']}{disk}: {left}")
    if found.is_rebalancing:
        typer.echo("rebalancing")
    for problem in found.problems:
        typer.echo(f"problem: {problem}")
    if not (rows or drains or found.is_rebalancing or found.problems):
        typer.echo("nothing moves")


@move.command("cancel")
def cancel(
    move_id: Annotated[
        int, typer.Argument(metavar="MOVE", min=1, help="Its number, as `move list` says.")
    ],
    *,
    directory: DirOption = None,
    config: ConfigOption = None,
) -> None:
    """Give a move up; one that has begun to serve is finished.

    Example: ember admin move cancel 1
    """
    find(directory, config).ask(services.MGMTD_CANCEL_MOVE, pb.CancelMoveReq(move_id=move_id))


@rebalance.command("start")
def start(
    *,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    directory: DirOption = None,
    config: ConfigOption = None,
) -> None:
    """Move targets from the fullest disks to the emptiest, one at a time,
    until no move makes it more even.

    Example: ember admin rebalance start --dry-run
    """
    where = find(directory, config)
    confirm(spread_plan(where.routing()), dry_run=dry_run, yes=yes)
    where.ask(services.MGMTD_START_REBALANCE, pb.StartRebalanceReq())
    typer.echo("rebalancing; progress: ember admin move list")


def spread_plan(info: RoutingInfo) -> list[str]:
    """Say what rebalancing does, and where it can do nothing:
    two members of a chain are never on one node at the same time.
    """
    lines = ["targets are moved between disks, throttled, until all hold their share"]
    count = sum(
        Role.STORAGE in n.roles and n.state is NodeState.CONNECTED for n in info.nodes.values()
    )
    size = max((chain.replica_count for chain in info.chains.values()), default=0)
    if count <= size:
        lines.append(
            f"only {count} storage nodes are there for chains of {size}: nothing can be moved, not "
            "from disk to disk of one node either, until there is one more"
        )
    return lines


@rebalance.command("stop")
def stop(*, directory: DirOption = None, config: ConfigOption = None) -> None:
    """Begin no further moves.

    Example: ember admin rebalance stop
    """
    find(directory, config).ask(services.MGMTD_CANCEL_REBALANCE, pb.CancelRebalanceReq())


def wait_drained(where: Where, drain: pb.DrainPb, target_count: int) -> None:
    """Show how many targets have left, until none is left;
    an interrupt ends the waiting, not the drain.

    Raises:
        FsError: CONFLICTING_CHANGE when the drain is cancelled meanwhile; what the manager says.
    """
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns) as shown, _told_to_go_on():
        task = shown.add_task("targets moved", total=target_count)
        while left := _left(where, drain):
            shown.update(task, completed=target_count - left)
            time.sleep(POLL_S)
        if left is None:
            detail = f"node {drain.node_id} is not drained any more: somebody has cancelled it"
            raise FsError(Status.CONFLICTING_CHANGE, detail)
        shown.update(task, completed=target_count)


@contextmanager
def _told_to_go_on() -> Iterator[None]:
    """Say to whoever interrupts the block what goes on without him."""
    try:
        yield
    except KeyboardInterrupt:
        typer.echo(
            "the drain goes on: ember admin move list; the same command with --wait waits again, "
            "one with --cancel ends it",
            err=True,
        )
        raise


def _left(where: Where, drain: pb.DrainPb) -> int | None:
    """Return how many targets have to leave yet; None: the place is not being drained."""
    found = where.ask(services.MGMTD_LIST_MOVES, pb.ListMovesReq())
    return next((s.target_count for s in found.drains if s.drain == drain), None)
