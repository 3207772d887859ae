"""How commands print rows, plans and questions: tables for people, JSON for programs.

Exit codes of all commands: 0 done; 1 an operating error, told in one line; 2 wrong usage; 3 something was found
(differences, findings); 4 the question was answered with no.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Final

import typer
from rich.console import Console
from rich.table import Table

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
    table = Table(*(key.removesuffix("_bytes").replace("_", " ") for key in columns))
    for row in rows:
        table.add_row(*(_cell(row[key], form) for key, form in columns.items()))
    Console().print(table)


def _cell(value: object, form: Callable[[Any], str] | None) -> str:
    if form is not None:
        return form(value)
    if isinstance(value, bool):
        return "yes" if value else ""
    if isinstance(value, (list, tuple)):
        return " ".join(map(str, value))
    return "" if value is None else str(value)


def confirm(plan: Sequence[str], *, dry_run: bool, yes: bool) -> None:
    """Show what is going to happen, and ask, unless told not to.

    Raises:
        typer.Exit: 0 after a dry run; EXIT_DECLINED after a no, or when there is nobody to ask.
    """
    for line in plan:
        typer.echo(line)
    if dry_run:
        raise typer.Exit(0)
    if yes:
        return
    try:
        is_wanted = typer.confirm("Go on?")
    except typer.Abort:
        is_wanted = False
        typer.echo("nobody to ask: say --yes", err=True)
    if not is_wanted:
        raise typer.Exit(EXIT_DECLINED)
