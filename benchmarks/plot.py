"""A picture of a table: each figure that has a limit as its share of it.  Needs `matplotlib` (the extra `plot`)."""

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from .table import Row, number

BAR_INCHES = 0.42
HEAD_INCHES = 1.4


def is_there() -> bool:
    """Tell whether pictures can be drawn."""
    return find_spec("matplotlib") is not None


def plot_rows(title: str, rows: Sequence[Row], path: Path) -> None:
    """Draw rows, the first at the top, into a file whose ending says which format."""
    from matplotlib.figure import Figure  # noqa: PLC0415 - an extra; loading it takes a second

    drawn = [(row, row.ratio) for row in rows if row.ratio is not None]
    figure = Figure(
        figsize=(10, HEAD_INCHES + BAR_INCHES * max(1, len(drawn))), layout="constrained"
    )
    axes = figure.subplots()
    names = [row.name.strip() for row, _ in drawn]
    bars = axes.barh(range(len(drawn)), [ratio for _, ratio in drawn], color="#d9622b")
    axes.bar_label(
        bars,
        [f"{number(row.value)} {row.unit}, machine {number(row.limit or 0)}" for row, _ in drawn],
        padding=4,
        fontsize=8,
    )
    axes.set_yticks(range(len(drawn)), names, fontsize=8)
    axes.invert_yaxis()
    axes.axvline(1, color="#555555", linewidth=1)
    axes.set_xlim(0, 1.6 * max([1.0, *(ratio for _, ratio in drawn)]))
    axes.set(title=f"{title}: share of what the machine does in the same run")
    figure.savefig(path)
