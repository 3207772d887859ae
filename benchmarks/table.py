"""The table every benchmark prints: a figure, the machine's own limit in the same run, their ratio, its goal, processor time.

Processor time is told of what moves bytes: seconds for each GB, the sum and its parts (used.py).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from .used import Used

USED_HEADING = "s/GB = program + mount + storage + others"
FILE_COLUMNS = 200


@dataclass(frozen=True, slots=True)
class Row:
    """One figure."""

    name: str
    value: float
    unit: str
    limit: float | None = None
    """What the bare machine does, in the same unit; None where there is nothing to compare with."""
    is_smaller_better: bool = False
    goal: float | None = None
    """The ratio that is wanted (specs/performance.md); None where nobody asks for one."""
    used: Used | None = None
    """For each GB that was moved."""

    @property
    def ratio(self) -> float | None:
        """How much of the machine's limit is reached: 1 is all of it."""
        if not self.limit or not self.value:
            return None
        return self.limit / self.value if self.is_smaller_better else self.value / self.limit


def print_rows(title: str, rows: Sequence[Row]) -> None:
    """Print rows for people."""
    table = Table(title=title)
    table.add_column("what")
    for heading in ("value", "unit", "machine", "ratio", "goal"):
        table.add_column(heading, justify="right")
    if any(row.used for row in rows):
        table.add_column(USED_HEADING, justify="right")
    for row in rows:
        limit = "" if row.limit is None else number(row.limit)
        ratio = "" if row.ratio is None else f"{row.ratio:.2f}"
        goal = "" if row.goal is None else f"{row.goal:g}"
        used = [str(row.used)] if row.used else []
        table.add_row(row.name, number(row.value), row.unit, limit, ratio, goal, *used)
    console = Console()
    if not console.is_terminal:  # a file: lines are not folded
        console.width = max(console.width, FILE_COLUMNS)
    console.print(table)


def number(value: float) -> str:
    """Return a number for people: three digits, or all before the point."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"  # noqa: PLR2004 - three digits
