"""How commands print rows, plans and questions: tables for people, JSON for programs.

Exit codes of all commands: 0 done; 1 an operating error, told in one line; 2 wrong usage; 3
something was found (differences, findings); 4 the question was answered with no.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Annotated, Any, Final

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from .cells import cell, facts_table, print_table, printable, table

EXIT_FOUND: Final = 3
EXIT_DECLINED: Final = 4

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
YesOption = Annotated[bool, typer.Option("--yes", help="Do not ask.")]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Show the plan only.")]

Columns = Mapping[str, Callable[[Any], str] | None]
"""Which keys of a row are shown, in this order, and how a value is written; None: as it is."""


def print_rows(rows: Sequence[Mapping[str, Any]], columns: Columns, *, as_json: bool) -> None:
    """Print rows, all of them: JSON holds every key, the table the columns."""
    if as_json:
        typer.echo(json.dumps(list(rows), indent=2))
        return
    rich = table(*(_header(key, has_form=form is not None) for key, form in columns.items()))
    for row in rows:
        rich.add_row(*(cell(_cell(row[key], form)) for key, form in columns.items()))
    print_table(rich)


def print_facts(facts: Mapping[str, Any], *, as_json: bool) -> None:
    """Print what there is to say about one thing."""
    if as_json:
        typer.echo(json.dumps(facts, indent=2))
        return
    rich = facts_table()
    for key, value in facts.items():
        shown = (
            ", ".join(f"{k} {v}" for k, v in value.items()) if isinstance(value, dict) else value
        )
        text = "no" if value is False else _cell(shown, None)
        rich.add_row(_header(key, has_form=isinstance(value, str)), cell(text))
    print_table(rich)


@contextmanager
def progress_bar(what: str, total: int | None = None) -> Iterator[Callable[[int], None]]:
    """Show on a terminal, on stderr, how far something has come;
    the block is given what says how many are done.
    """
    stderr = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=stderr, transient=True, disable=not stderr.is_terminal) as bar:
        task = bar.add_task(what, total=total)
        yield lambda count: bar.update(task, completed=count)


def time_text(wall_ns: int) -> str:
    """Return a wall time as people read it, in UTC; empty for 0."""
    return f"{datetime.fromtimestamp(wall_ns / 1e9, UTC):%F %T}" if wall_ns else ""


def _header(key: str, *, has_form: bool) -> str:
    """Return a key as people read it, without the unit that a value with a form tells itself."""
    unit = r"_ns$|(?<!_per)_(s|bytes)$" if has_form else "_ns$"
    return re.sub(unit, "", key).replace("_", " ")


def _cell(value: object, form: Callable[[Any], str] | None) -> str:
    if form is not None:
        return form(value)
    if isinstance(value, bool):
        return "yes" if value else ""
    if isinstance(value, (list, tuple)):
        return " ".join(map(str, value))
    return "" if value is None else str(value)


def confirm(plan: Sequence[str], *, dry_run: bool, yes: bool, as_json: bool = False) -> None:
    """Show what is going to happen, and ask, unless told not to;
    on stderr when what is printed is for programs.

    Raises:
        typer.Exit: 0 after a dry run; EXIT_DECLINED after a no, or when there is nobody to ask.
    """
    for line in plan:
        typer.echo(printable(line), err=as_json)
    if dry_run:
        raise typer.Exit(0)
    if yes:
        return
    try:
        is_wanted = typer.confirm("Go on?", err=as_json)
    except typer.Abort as abort:
        if isinstance(abort.__context__, KeyboardInterrupt):
            raise KeyboardInterrupt from abort
        is_wanted = False
        typer.echo(err=as_json)  # the line of the question
        typer.echo("nobody to ask: say --yes", err=True)
    if not is_wanted:
        raise typer.Exit(EXIT_DECLINED)
