"""A picture of a chain table: who feeds whom, and how much harder each survivor works.

Needs `matplotlib` (the extra `plot`).

Draws into a file, without a screen.
"""

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import PurePath
from typing import Final

from .model import Chain, Disk
from .simulate import Aftermath, Loss, Simulation, kinds

MARKED_MAX: Final = 40
"""Up to so many points are marked."""


def is_there() -> bool:
    """Tell whether plots can be drawn."""
    return find_spec("matplotlib") is not None


def plot(
    table: Sequence[Chain],
    disks: Sequence[Disk],
    path: PurePath,
    title: str,
    *,
    losses: Sequence[Loss] = (),
) -> None:
    """Draw a table.

    Left: for each lost node (row) the targets that each other node (column) feeds.  Right, for each
    of some losses: the targets that each survivor feeds, most first, over the mean.

    Args:
        table: chains, head first.
        disks: all of them.
        path: of the picture; its ending says which format.
        title: above it.
        losses: shown on the right; none: the worst of each kind.
    """
    from matplotlib.figure import Figure  # noqa: PLC0415 - an extra; loading it takes a second

    nodes = sorted({disk.site.node_id for disk in disks})
    simulation = Simulation(table, disks)
    by_node = {one.loss.name: one.feeds for one in simulation.all_of("node")}
    rows = [[by_node[f"node {lost}"][node] for node in nodes] for lost in nodes]
    figure = Figure(figsize=(12, 5), layout="constrained")
    left, right = figure.subplots(1, 2)
    figure.suptitle(title)
    image = left.imshow(rows, cmap="viridis", interpolation="nearest", vmin=0)
    figure.colorbar(image, ax=left, label="targets fed")
    left.set(title="Who feeds whom", xlabel="node that feeds", ylabel="node that is lost")
    few = range(0, len(nodes), max(1, len(nodes) // 12))
    left.set_xticks(list(few), [str(nodes[i]) for i in few])
    left.set_yticks(list(few), [str(nodes[i]) for i in few])
    shown = [simulation.aftermath(loss) for loss in losses]
    shown = shown or [one for kind in kinds(disks) if (one := worst_of(simulation.all_of(kind)))]
    for number, worst in enumerate(shown):
        loads = sorted((worst.feeds[n] for n in worst.reads), reverse=True)
        mean = sum(loads) / len(loads)
        right.plot(
            range(1, len(loads) + 1),
            [load / mean for load in loads],
            label=f"{worst.loss.name} lost: {loads[0]} targets at most, {mean:.3g} on average",
            color=f"C{number}",
            marker="o" if len(loads) <= MARKED_MAX else None,
        )
    right.axhline(1.0, color="grey", linestyle=":", linewidth=1)
    right.xaxis.get_major_locator().set_params(integer=True)
    right.set(
        title="Survivors' load" if losses else "Survivors' load, worst loss of each kind",
        xlabel="surviving nodes that have lost nothing, busiest first",
        ylabel="targets fed / mean",
    )
    right.set_ylim(bottom=0)
    right.legend()
    figure.savefig(str(path), dpi=110)


def worst_of(found: Sequence[Aftermath]) -> Aftermath | None:
    """Return the loss that falls on the survivors most unevenly; None when none leaves any."""
    return max(
        (one for one in found if one.transfers), key=lambda one: one.feed_evenness, default=None
    )
