"""The table every benchmark prints: a figure, the machine's own limit in the same run, their ratio,
its goal, processor time.

Large blocks stand beside two yardsticks, the disk as fast as it goes and as fio moves it
(fio.py); the goal is meant of either.

Processor time is told of what moves bytes: seconds for each GB, the sum and its parts (used.py).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from .fio import LEGEND
from .used import Used

USED_HEADING = "s/GB = program + mount + storage + others"
FILE_COLUMNS = 220


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
    fio: float | None = None
    """What fio does of large blocks on the local disk, in the same unit;
    None where it does not stand beside this, or there is none.
    """

    @property
    def ratio(self) -> float | None:
        """How much of the machine's limit is reached: 1 is all of it."""
        if not self.limit or not self.value:
            return None
        return self.limit / self.value if self.is_smaller_better else self.value / self.limit

    @property
    def of_fio(self) -> float | None:
        """Which share of fio's figure is reached."""
        return self.value / self.fio if self.fio and self.value else None


def print_rows(title: str, rows: Sequence[Row]) -> None:
    """Print rows for people; a sentence below says what the two yardsticks of large blocks are,
    where both stand.
    """
    has_fio, has_used = any(row.fio for row in rows), any(row.used for row in rows)
    headings = ["value", "unit", "machine", "ratio", "goal"]
    headings += ["fio", "of fio"] if has_fio else []
    headings += [USED_HEADING] if has_used else []
    table = Table(title=title, caption=LEGEND if has_fio else None, caption_justify="left")
    table.add_column("what")
    for heading in headings:
        table.add_column(heading, justify="right")
    for row in rows:
        words = [row.name, number(row.value), row.unit, *_compared(row.limit, row.ratio)]
        words.append("" if row.goal is None else f"{row.goal:g}")
        words += _compared(row.fio, row.of_fio) if has_fio else []
        table.add_row(*words, *([str(row.used)] if row.used else []))
    console = Console()
    if not console.is_terminal:  # a file: lines are not folded
        console.width = max(console.width, FILE_COLUMNS)
    console.print(table)


def _compared(limit: float | None, ratio: float | None) -> tuple[str, str]:
    """Return the words for a limit, and for what is reached of it."""
    return "" if limit is None else number(limit), "" if ratio is None else f"{ratio:.2f}"


def number(value: float) -> str:
    """Return a number for people: three digits, or all before the point."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"  # noqa: PLR2004 - three digits
