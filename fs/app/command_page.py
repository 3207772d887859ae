"""specs/commands.md: what every command does, from the commands themselves."""

from collections.abc import Iterator
from typing import Any

import typer
from typer.core import TyperArgument, TyperGroup, TyperOption

from .main import GROUPS, app

HEAD = """# Commands

Generated from the command line by `ember generate`; do not edit.

Exit codes: 0 done; 1 an operating error, told in one line that begins with `ember:`; 2 wrong usage; 3 something was
found (differences, findings); 4 a question was answered with no, or nobody was there to ask; 130 interrupted."""


def commands_page() -> str:
    """Return specs/commands.md."""
    parts = [HEAD]
    for name, command in _named(typer.main.get_command(app)):
        if name in GROUPS:
            command = typer.main.get_command(GROUPS[name]())  # noqa: PLW2901 - what stands behind it
        for path, leaf in _leaves(f"ember {name}", command):
            parts.append(_section(path, leaf))
    return "\n\n".join(parts) + "\n"


def _named(command: Any) -> Iterator[tuple[str, Any]]:
    assert isinstance(command, TyperGroup), command.name
    yield from command.commands.items()


def _leaves(path: str, command: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(command, TyperGroup):
        for name, found in _named(command):
            yield from _leaves(f"{path} {name}", found)
    else:
        yield path, command


def _section(path: str, command: Any) -> str:
    arguments = [p for p in command.params if isinstance(p, TyperArgument)]
    options = [p for p in command.params if isinstance(p, TyperOption)]
    usage = " ".join([path, *(_metavar(a) for a in arguments), *(["[OPTIONS]"] if options else [])])
    lines = [f"## {path}", "", f"    {usage}", "", _words(command.help)]
    records = [(f"`{_metavar(a)}`", _words(getattr(a, "help", ""))) for a in arguments]
    records += [(_option(o), _words(o.help)) for o in options]
    if records:
        lines += ["", "| | |", "|---|---|", *(f"| {name} | {text} |" for name, text in records)]
    return "\n".join(lines)


def _metavar(argument: TyperArgument) -> str:
    name = argument.metavar or str(argument.name).upper()
    many = "..." if argument.nargs != 1 and not name.endswith("...") else ""
    return f"{name}{many}" if argument.required else f"[{name}{many}]"


def _option(option: TyperOption) -> str:
    names = ", ".join(f"`{name}`" for name in option.opts)
    if option.is_flag:
        return names
    return f"{names} {option.metavar or str(option.name).upper()}"


def _words(text: str | None) -> str:
    """Return a help text as one line, safe in a table."""
    return " ".join((text or "").split()).replace("|", "\\|")
