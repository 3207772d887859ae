r"""Text of others on a terminal: names of files, hosts and programs are chosen by users,
and are not to speak to it.

Control characters are shown as `\x1b`, as in logs; what looks like
markup of tables is shown as it is.
"""

import sys
from typing import Final

import typer
from rich.console import Console
from rich.measure import Measurement
from rich.table import Column, Table
from rich.text import Text

WIDTH: Final = 200
"""Of tables that no terminal shows."""
COLUMNS_FOLDED_MAX: Final = 2
"""A table of names and values is folded where it does not fit."""
_UNBOUNDED: Final = 1 << 20

_CONTROLS: Final = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160))}


def printable(text: str) -> str:
    """Return a line as it can be printed."""
    return text.translate(_CONTROLS)


def say_name(name: str) -> None:
    """Print a line that users chose: to programs exactly, on a terminal as it can be printed."""
    typer.echo(printable(name) if sys.stdout.isatty() else name, color=True)


def cell(text: str) -> Text:
    """Return a cell of a table that shows exactly this text, which may have several lines."""
    return Text("\n".join(map(printable, text.split("\n"))))


def table(*headers: str, title: str | None = None) -> Table:
    """Return a table whose cells are folded where they do not fit, never cut off:
    names in it are typed elsewhere.
    """
    return Table(*(Column(header, overflow="fold") for header in headers), title=title)


def facts_table() -> Table:
    """Return a table of names and values without a head, as `table` folds them."""
    return Table(Column(), Column(overflow="fold"), show_header=False)


def console() -> Console:
    """Return where tables go: as wide as the terminal,
    and wide enough for programs that read text.
    """
    return Console(width=None if sys.stdout.isatty() else WIDTH)


def print_table(rich: Table) -> None:
    """Print a table; on a terminal that is too narrow for it, row below row: of many columns each
    would be some letters wide, and could not be read.
    """
    out = console()
    has_rows = rich.row_count and len(rich.columns) > COLUMNS_FOLDED_MAX
    if not (sys.stdout.isatty() and has_rows) or _natural_width(out, rich) <= out.width:
        out.print(rich)
        return
    if rich.title:
        out.print(rich.title)
    headers = [column.header for column in rich.columns]
    for values in zip(*(column.cells for column in rich.columns), strict=True):
        record = facts_table()
        for header, value in zip(headers, values, strict=True):
            if str(value):
                record.add_row(header, value)
        out.print(record)


def _natural_width(out: Console, rich: Table) -> int:
    """Return how wide a table is of which no cell is folded."""
    return Measurement.get(out, out.options.update(max_width=_UNBOUNDED), rich).maximum
