"""A picture of a table: each figure that has a limit as its share of it.  Needs `matplotlib` (the extra `plot`)."""

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from .table import Row, number

BAR_INCHES = 0.42
HEAD_INCHES = 1.4
RATIO_MAX = 2.0
"""Longer bars are cut, so that one of them does not make all others unreadable; what they come to stands beside them."""


def is_there() -> bool:
    """Tell whether pictures can be drawn."""
    return find_spec("matplotlib") is not None


def plot_rows(title: str, rows: Sequence[Row], path: Path) -> None:
    """Draw rows, the first at the top, into a file whose ending says which format."""
    from matplotlib.figure import Figure  # noqa: PLC0415 - an extra; loading it takes a second

    drawn = [(row, row.ratio) for row in rows if row.ratio is not None]
    figure = Figure(
        figsize=(12, HEAD_INCHES + BAR_INCHES * max(1, len(drawn))), layout="constrained"
    )
    axes = figure.subplots()
    end = min(RATIO_MAX, max([1.0, *(ratio for _, ratio in drawn)])) * 1.02
    axes.barh(range(len(drawn)), [min(ratio, end) for _, ratio in drawn], color="#d9622b")
    for place, (row, ratio) in enumerate(drawn):
        if ratio > end:
            axes.text(end, place, "\u25b6 ", ha="right", va="center", color="white")
        beside = {"transform": axes.get_yaxis_transform(), "va": "center", "fontsize": 8}
        axes.text(1.01, place, f"{ratio:.2f}", fontweight="bold", **beside)
        axes.text(1.07, place, _words(row), **beside)
    axes.set_yticks(range(len(drawn)), [row.name.strip() for row, _ in drawn], fontsize=8)
    axes.invert_yaxis()
    axes.set_axisbelow(True)
    axes.grid(axis="x", color="#dddddd")
    axes.axvline(1, color="#555555", linewidth=1)
    axes.set_xlim(0, end)
    axes.set_xlabel("share of what the machine does; 1: all of it", fontsize=8)
    axes.set_title(f"{title}: next to the machine in the same run", loc="left", fontsize=11)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    figure.savefig(path, dpi=130)


def _words(row: Row) -> str:
    """Return what stands beside a bar."""
    words = f"{number(row.value)} of {number(row.limit or 0)} {row.unit}"
    return f"{words}; {row.used.total:.1f} s/GB" if row.used else words
