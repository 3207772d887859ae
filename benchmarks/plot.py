"""A picture of a table: each figure that has a limit as its share of it, and the goal.

Needs `matplotlib` (the extra `plot`).
"""

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .table import Row, number

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDTH_INCHES = 13.0
BAR_INCHES = 0.34
AROUND_INCHES = 1.7
"""Title, axis and legend."""
RATIO_MAX = 2.0
"""Longer bars are cut, so that one of them does not make all others unreadable;
what they come to stands beside them.
"""

RATIO_POINTS = 30
"""Room for the ratio beside a bar."""

REACHED = "#2f7fb8"
MISSED = "#d9622b"
NO_GOAL = "#9a9a9a"
"""Told apart also by who sees no red or no green."""
BY_FIO: dict[str, Any] = {
    "marker": "D",
    "markersize": 6,
    "color": "white",
    "markeredgecolor": "black",
    "zorder": 4,
}


def is_there() -> bool:
    """Tell whether pictures can be drawn."""
    return find_spec("matplotlib") is not None


def colour_of(row: Row) -> str:
    """Return the colour of a row's bar: by whether its goal is reached."""
    if row.goal is None or row.ratio is None:
        return NO_GOAL
    return REACHED if row.ratio >= row.goal else MISSED


def words_of(row: Row) -> str:
    """Return what stands beside a row's bar: value, limit, unit, goal."""
    words = f"{number(row.value)} of {number(row.limit or 0)} {row.unit}"
    if row.is_smaller_better:
        words += " (less is better)"
    if row.goal is not None:
        words += f", goal {row.goal:g}"
    return words if row.of_fio is None else f"{words}; {row.of_fio:.2f} of fio"


def plot_rows(title: str, rows: Sequence[Row], path: Path) -> None:
    """Draw rows, the first at the top, into a file whose ending says which format."""
    from matplotlib.figure import Figure  # noqa: PLC0415 - an extra; loading it takes a second

    drawn = [(row, row.ratio) for row in rows if row.ratio is not None]
    height = AROUND_INCHES + BAR_INCHES * max(1, len(drawn))
    figure = Figure(figsize=(WIDTH_INCHES, height), layout="constrained")
    axes = figure.subplots()
    shares = [share for row, ratio in drawn for share in (ratio, row.goal, row.of_fio) if share]
    longest = max([1.0, *shares])
    end = min(RATIO_MAX, longest) * 1.02
    for place, (row, ratio) in enumerate(drawn):
        _draw_bar(axes, place, row, ratio, end)
    if not drawn:
        axes.text(0.5, 0, "nothing here is measured next to the machine", ha="center", va="center")
    names = [row.name.strip() for row, _ in drawn]
    axes.set_yticks(range(len(drawn)), names, fontsize=9)
    axes.set_ylim(max(1, len(drawn)) - 0.5, -0.5)
    axes.set_xlim(0, end)
    axes.tick_params(axis="y", length=0)
    axes.set_axisbelow(True)
    axes.grid(axis="x", color="#e4e4e4")
    axes.axvline(1, color="#555555", linewidth=1)
    axes.set_xlabel("share of what the machine itself does in the same run; 1 = all of it")
    name, _, about = f"ember bench {title}".partition("; ")
    figure.suptitle(name, x=0.01, ha="left", fontsize=12, fontweight="bold")
    axes.set_title(about, loc="center", fontsize=8)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    _draw_legend(axes, [row for row, _ in drawn])
    figure.savefig(path, dpi=130)


def _draw_bar(axes: "Axes", place: int, row: Row, ratio: float, end: float) -> None:
    """Draw one row: bar, goal, the share of what fio does, and beside them what it comes to."""
    axes.barh(place, min(ratio, end), height=0.66, color=colour_of(row))
    if ratio > end:
        axes.text(end, place, "\u25b6 ", ha="right", va="center", color="white")
    if row.goal is not None:
        axes.vlines(row.goal, place - 0.42, place + 0.42, color="black", linewidth=2.5, zorder=3)
    if row.of_fio is not None:
        axes.plot(min(row.of_fio, end), place, clip_on=False, **BY_FIO)
    transform = axes.get_yaxis_transform()
    beside = (1.01, place)
    axes.text(
        *beside, f"{ratio:.2f}", transform=transform, va="center", fontsize=9, fontweight="bold"
    )
    # So many points behind, however wide the bars are.
    axes.annotate(
        words_of(row),
        beside,
        (RATIO_POINTS, 0),
        transform,
        "offset points",
        va="center",
        fontsize=9,
    )


def _draw_legend(axes: "Axes", rows: Sequence[Row]) -> None:
    """Say below the bars what their colours and the marks mean, where there are goals."""
    from matplotlib.lines import Line2D  # noqa: PLC0415 - see plot_rows
    from matplotlib.patches import Patch  # noqa: PLC0415

    meanings = {REACHED: "goal reached", MISSED: "goal missed", NO_GOAL: "no goal"}
    found = {colour_of(row) for row in rows}
    if not found - {NO_GOAL}:
        return
    parts: list[Patch | Line2D] = [
        Patch(color=colour, label=words) for colour, words in meanings.items() if colour in found
    ]
    parts.append(Line2D([], [], color="black", linewidth=2.5, label="goal"))
    if any(row.of_fio is not None for row in rows):
        parts.append(Line2D([], [], linewidth=0, label="share of what fio does", **BY_FIO))
    axes.figure.legend(
        handles=parts, loc="outside lower center", ncols=len(parts), fontsize=9, frameon=False
    )
