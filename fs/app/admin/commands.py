"""All groups of `ember admin`, and the shell that runs many commands."""

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from ...schema.status import FsError
from ..errors import first_error
from .chains import chain, table, target
from .chunks import chunks
from .cluster import cluster, session
from .doctor import doctor
from .moves import move, rebalance
from .nodes import disk, node
from .remote_calls import rpc

admin = typer.Typer(help="Look into a running cluster, and change it.", no_args_is_help=True)
for name, group in (
    ("chain", chain),
    ("chunks", chunks),
    ("cluster", cluster),
    ("disk", disk),
    ("move", move),
    ("node", node),
    ("rebalance", rebalance),
    ("rpc", rpc),
    ("session", session),
    ("table", table),
    ("target", target),
):
    admin.add_typer(group, name=name)
admin.command("doctor")(doctor)


@admin.command("shell")
def shell(
    file: Annotated[Path | None, typer.Option(help="Run the commands of a file, one per line; stop at the first that fails.")] = None,
    directory: Annotated[Path | None, typer.Option("--dir", help="For every command that names none.")] = None,
) -> None:  # fmt: skip
    """Run commands one after the other, without `ember admin` before each: `chain list`; end with Ctrl-D."""
    always = ["--dir", str(directory)] if directory else []
    if file is not None:
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
            if code := run_line(line, always):
                sys.stderr.write(f"ember: {file}:{number}: {line.strip()}: exit code {code}\n")
                raise typer.Exit(code)
        return
    import readline  # noqa: F401, PLC0415 - gives `input` a history

    while True:
        try:
            line = input("ember admin> " if sys.stdin.isatty() else "")
        except EOFError:
            return
        run_line(line, always)


def run_line(line: str, always: list[str]) -> int:
    """Run one line; print what is wrong with it; return the exit code.  Empty lines and comments do nothing.

    Args:
        line: `chain list --json`.
        always: options added to commands that do not say `--dir` or `--config`.
    """
    try:
        words = shlex.split(line, comments=True)
    except ValueError as error:
        sys.stderr.write(f"ember: {error}\n")
        return 2
    if not words:
        return 0
    if words[0] != "rpc" or "call" in words:
        words += [] if {"--dir", "--config", "--help"} & set(words) else always
    try:
        admin(words, prog_name="ember admin")
    except SystemExit as ended:  # how the command line says that it is done
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except (FsError, ExceptionGroup) as error:
        leaf = first_error(error)
        if not isinstance(leaf, FsError):
            raise
        sys.stderr.write(f"ember: {leaf}\n")
        return 1
    return 0
