"""`ember placement ...`: making, checking, growing, simulating and drawing chain tables;
but for `export` without any cluster.

Does not decide anything: the mathematics is in placement/ (specs/placement.md);
this is its wiring and output.
"""

import json
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from placement import plot as picture
from placement.check import Evenness, Figures, Spread, check
from placement.exact import is_there as has_solver
from placement.fatal import fatal
from placement.make import Effort, Made, make
from placement.model import Disk, PlacementError, Site
from placement.moves import plan_moves
from placement.plot import worst_of
from placement.simulate import Loss, Simulation, Speeds, kinds, named_loss, time_to_full_s
from placement.table_file import TableFile, from_json, to_json

from ...admin.placement_table import table_of
from ...runtime.extras import install_command
from ...schema.status import FsError, Status
from ..reach.where import ConfigOption, DirOption, find
from ..terminal.cells import print_table, table

placement = typer.Typer(
    help="Chain tables: which disks form which chains.", no_args_is_help=True, add_completion=False
)

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
FileArgument = Annotated[Path, typer.Argument(metavar="TABLE", help="A file made by `make`.")]
TimeOption = Annotated[
    float, typer.Option("--time", help="Seconds to look for something better.", min=0.0)
]
LostOption = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME", help="node 3, node 3 disk 0, rack-1: what is lost; all at once."),
]


def _refuse(detail: str) -> NoReturn:
    raise FsError(Status.BAD_CONFIG, detail)


def _read(path: Path) -> TableFile:
    try:
        return from_json(path.read_text(), str(path))
    except (PlacementError, UnicodeDecodeError) as error:
        raise FsError(Status.BAD_CONFIG, str(error)) from error


def _grid(nodes: int, disks: int, racks: int, zones: int) -> list[Disk]:
    """Return equal disks; node 1 is in the first rack, node 2 in the second, and so on,
    racks in zones alike.
    """
    if zones and racks % zones:
        _refuse(f"--racks {racks}: a multiple of --zones {zones}")
    return [
        Disk(
            Site(node + 1, disk),
            1.0,
            tuple(
                f"{kind}-{node % count + 1}"
                for kind, count in (("zone", zones), ("rack", racks))
                if count
            ),
        )
        for node in range(nodes)
        for disk in range(disks)
    ]


@placement.command("make")
def make_table(
    *,
    nodes: Annotated[int, typer.Option(help="Storage nodes.", min=1)] = 5,
    disks: Annotated[int, typer.Option(help="Disks of each node.", min=1)] = 1,
    targets: Annotated[int, typer.Option(help="Targets on each disk.", min=1)] = 12,
    replicas: Annotated[int, typer.Option(help="Targets of each chain.", min=1, max=5)] = 3,
    racks: Annotated[int, typer.Option(help="Racks of equal size.", min=0)] = 0,
    zones: Annotated[int, typer.Option(help="Zones of equal size.", min=0)] = 0,
    disk_file: Annotated[
        Path | None, typer.Option("--disk-file", help="Disks, weights, domains (JSON) instead.")
    ] = None,
    beside: Annotated[
        list[Path] | None, typer.Option(help="Another table, to be balanced with.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Where the table goes; - prints it.")] = None,
    time_s: TimeOption = 60.0,
    seed: Annotated[int, typer.Option(help="Another one gives another table.")] = 0,
    as_json: JsonOption = False,
) -> None:
    """Make a chain table, and say how good it is and how good it could be.

    Example: ember placement make --nodes 5 --disks 16 --targets 6 --out table.json
    """
    found = _read(disk_file).disks if disk_file else _grid(nodes, disks, racks, zones)
    chain_count = len(found) * targets // replicas
    end_s = time.monotonic() + time_s
    effort = Effort(solver_s=time_s, seed=seed, is_late=lambda: time.monotonic() > end_s)
    others = [chain for path in beside or [] for chain in _read(path).table]
    try:
        made = make(found, chain_count, replicas, beside=others, effort=effort)
    except PlacementError as error:
        raise FsError(Status.BAD_CONFIG, str(error)) from error
    if out is not None:
        text = to_json(found, made.table)
        if str(out) == "-":
            sys.stdout.write(text)
            return
        out.write_text(text)
    figures = check(made.table, found)
    if as_json:
        typer.echo(json.dumps(_made_facts(made) | asdict(figures)))
        return
    _print_figures(figures)
    typer.echo(_judgement(made))


def _made_facts(made: Made) -> dict[str, Any]:
    return {
        "method": made.method,
        "cost": made.cost,
        "bound": made.bound,
        "is_optimal": made.is_optimal,
        "limits": made.shape.limits,
    }


def _judgement(made: Made) -> str:
    ways = {"turned": "by turning base chains", "searched": "by search", "solved": "by the solver"}
    start = f"made {ways[made.method]}: cost {made.cost:.6g}"
    if made.is_optimal:
        return f"{start}, and none is better"
    hint = "" if has_solver() else f"; there is no solver: {install_command('placement')}"
    return f"{start}, at least {made.bound:.6g} whatever is done{hint}"


@placement.command("check")
def check_table(path: FileArgument, *, as_json: JsonOption = False) -> None:
    """Check a chain table and show how evenly work falls."""
    found = _read(path)
    figures = _figures(found)
    if as_json:
        typer.echo(json.dumps(asdict(figures)))
    else:
        _print_figures(figures)


def _figures(found: TableFile) -> Figures:
    try:
        return check(found.table, found.disks)
    except PlacementError as error:
        raise FsError(Status.BAD_CONFIG, str(error)) from error


def _print_figures(figures: Figures) -> None:
    rich = table("figure", "value", title=f"{figures.chain_count} chains")
    for name, value in asdict(figures).items():
        shown = getattr(figures, name)
        if isinstance(shown, Spread):
            value = f"{shown.smallest} to {shown.largest}"  # noqa: PLW2901
        elif isinstance(shown, Evenness):
            value = f"{shown.worst:.3f} x the fair share (at best {shown.floor:.3f})"  # noqa: PLW2901
        elif isinstance(shown, tuple):
            value = ", ".join(map(str, shown))  # noqa: PLW2901
        rich.add_row(name.replace("_", " "), str(value))
    print_table(rich)


@placement.command("simulate")
def simulate_losses(
    path: FileArgument,
    kind: Annotated[
        str | None, typer.Option(help="disk, node, domain 1 (the widest) ...; all unless given.")
    ] = None,
    target_mb: Annotated[float, typer.Option(help="What a target holds, MB.", min=0.0)] = 1e6,
    disk_mb_s: Annotated[float, typer.Option(help="Of each disk.", min=1e-3)] = 1000.0,
    node_mb_s: Annotated[float, typer.Option(help="Of each node's network.", min=1e-3)] = 5000.0,
    *,
    lost: LostOption = None,
    beside: Annotated[
        list[Path] | None, typer.Option(help="Another table on these disks, lost together with it.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Lose each disk, node and failure domain in turn, and show the worst of each kind;
    or what --lost names.

    Example: ember placement simulate table.json --lost "node 3" --lost "node 5 disk 0"
    """
    found = _together([_read(one) for one in [path, *(beside or [])]])
    _figures(found)
    speeds = Speeds(disk_mb_s, node_mb_s)
    if lost:
        _print_loss(found, lost, target_mb, speeds, as_json=as_json)
        return
    try:
        rows = [
            _worst_facts(found, one, target_mb, speeds)
            for one in ([kind] if kind else kinds(found.disks))
        ]
    except ValueError as error:
        raise FsError(Status.BAD_CONFIG, str(error)) from error
    if as_json:
        typer.echo(json.dumps(rows))
        return
    rich = table("worst loss of each kind", *(str(row["kind"]) for row in rows))
    for name in list(rows[0])[1:]:
        values = [row[name] for row in rows]
        shown = [f"{v:.4g}" if isinstance(v, float) else str(v) for v in values]
        rich.add_row(name.replace("_", " "), *shown)
    print_table(rich)


def _together(files: list[TableFile]) -> TableFile:
    """Return the chains of several tables, and all disks of theirs."""
    disks: dict[Site, Disk] = {}
    for disk in (disk for file in files for disk in file.disks):
        if disks.setdefault(disk.site, disk).domains != disk.domains:
            _refuse(f"node {disk.site.node_id}: the tables say different failure domains of it")
    return TableFile(list(disks.values()), [chain for file in files for chain in file.table])


def _print_loss(
    found: TableFile, names: list[str], target_mb: float, speeds: Speeds, *, as_json: bool
) -> None:
    """Show what one loss puts on every survivor, and how long it lasts."""
    simulation = Simulation(found.table, found.disks)
    loss = _loss(found, names)
    returned, replaced = (simulation.aftermath(loss, is_replaced=way) for way in (False, True))
    busiest: dict[int, int] = {}
    for site, feeds in returned.feeds_by_disk.items():
        busiest[site.node_id] = max(busiest.get(site.node_id, 0), feeds)
    survivors = sorted({d.site.node_id for d in found.disks if d.site not in loss.sites})
    rows = [
        {
            "node": node,
            "feeds": returned.feeds[node],
            "busiest_disk_feeds": busiest.get(node, 0),
            "reads_factor": returned.reads.get(node),
        }
        for node in survivors
    ]
    facts = {
        "lost": loss.name,
        "targets_lost": returned.targets_lost,
        "chains_lost": returned.chains_lost,
        "returned_after_s": time_to_full_s(returned.transfers, target_mb, speeds),
        "replaced_after_s": time_to_full_s(replaced.transfers, target_mb, speeds),
        "unplaced": replaced.unplaced,
    }
    if as_json:
        typer.echo(json.dumps(facts | {"survivors": rows}))
        return
    rich = table(*(name.replace("_", " ") for name in rows[0]), title=f"{loss.name} lost")
    for row in rows:
        rich.add_row(*("-" if v is None else f"{v:.4g}" for v in row.values()))
    print_table(rich)
    for name, value in list(facts.items())[1:]:
        typer.echo(f"{name.replace('_', ' ')}: {value:.6g}")


def _loss(found: TableFile, names: list[str]) -> Loss:
    try:
        return named_loss(found.disks, names)
    except ValueError as error:
        raise FsError(Status.BAD_CONFIG, str(error)) from error


def _worst_facts(found: TableFile, kind: str, target_mb: float, speeds: Speeds) -> dict[str, Any]:
    """Return the largest of each figure over all losses of a kind;
    times are of the most uneven loss.
    """
    simulation = Simulation(found.table, found.disks)
    all_ = simulation.all_of(kind)
    worst = worst_of(all_) or all_[0]
    replaced = simulation.aftermath(worst.loss, is_replaced=True)
    return {
        "kind": kind,
        "losses": len(all_),
        "targets_lost": max(one.targets_lost for one in all_),
        "chains_lost": max(one.chains_lost for one in all_),
        "feeds_by_node_max": max(max(one.feeds.values(), default=0) for one in all_),
        "feeds_by_disk_max": max(max(one.feeds_by_disk.values(), default=0) for one in all_),
        "feeds_largest_to_mean": worst.feed_evenness,
        "reads_factor_max": max(max(one.reads.values(), default=0.0) for one in all_),
        "returned_after_s": time_to_full_s(worst.transfers, target_mb, speeds),
        "replaced_after_s": time_to_full_s(replaced.transfers, target_mb, speeds),
        "unplaced": replaced.unplaced,
        **_fatal_facts(found, kind),
    }


def _fatal_facts(found: TableFile, kind: str) -> dict[str, Any]:
    counted = fatal(found.table, found.disks, kind)
    return {
        "smallest_fatal_set": counted.size,
        "fatal_sets": f"{counted.fatal} of {counted.sets}",
        "chains_lost_then": counted.chains_worst,
    }


@placement.command("export")
def export(
    *,
    out: Annotated[Path, typer.Option(help="Where the table goes; - prints it.")] = Path("-"),
    table_id: Annotated[int, typer.Option("--table", help="Which chain table.", min=1)] = 1,
    directory: DirOption = None,
    config: ConfigOption = None,
) -> None:
    """Write the chains of a running cluster as a table: to be checked, simulated, drawn.

    Example: ember placement export --out t.json && ember placement simulate t.json --lost "node 3"
    """
    found = table_of(find(directory, config).routing(), table_id)
    text = to_json(found.disks, found.table)
    if str(out) == "-":
        sys.stdout.write(text)
    else:
        out.write_text(text)


@placement.command("grow")
def grow(
    path: FileArgument,
    disk_file: Annotated[
        Path, typer.Argument(metavar="DISKS", help="The disks that there are to be (JSON).")
    ],
    out: Annotated[Path | None, typer.Option(help="Where the table afterwards goes.")] = None,
    *,
    as_json: JsonOption = False,
) -> None:
    """Plan the fewest moves that give added disks their share, or empty those that are to go."""
    found = _read(path)
    _figures(found)
    disks = _read(disk_file).disks
    try:
        plan = plan_moves(found.table, disks)
    except PlacementError as error:
        raise FsError(Status.BAD_CONFIG, str(error)) from error
    if out is not None:
        out.write_text(to_json(disks, plan.table))
    if as_json:
        typer.echo(json.dumps({"moves": plan.moves, "least": plan.least, "left": plan.left}))
        return
    for move in plan.moves:
        typer.echo(
            f"chain {move.chain + 1}: node {move.leaving.node_id} disk {move.leaving.disk_index}"
            f" -> node {move.joining.node_id} disk {move.joining.disk_index}"
        )
    typer.echo(f"{len(plan.moves)} moves, at least {plan.least}; {plan.left} targets cannot move")


@placement.command("plot")
def plot_table(
    path: FileArgument,
    out: Annotated[Path, typer.Option(help="The picture.")] = Path("placement.png"),
    *,
    lost: LostOption = None,
) -> None:
    """Draw who feeds whom, and the survivors' load after the worst losses,
    or after what --lost names.
    """
    found = _read(path)
    figures = _figures(found)
    if not picture.is_there():
        detail = f"plots need matplotlib: {install_command('plot')}"
        raise FsError(Status.NOT_SUPPORTED, detail)
    title = f"{path.name}: {figures.chain_count} chains of {figures.replica_count}"
    losses = [_loss(found, [name]) for name in lost or []]
    picture.plot(found.table, found.disks, out, title, losses=losses)
    typer.echo(f"drawn: {out}")
