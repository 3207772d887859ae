"""specs/commands.md: what every command does, from the commands themselves."""

from collections.abc import Iterator
from enum import Enum
from typing import Any

import typer
from typer.core import TyperArgument, TyperGroup, TyperOption

from ..commands.groups import GROUPS
from ..machine.cluster_dir import default_directory, default_mount_point
from ..main import app

HEAD = """# Commands

Generated from the command line by `ember generate`; do not edit.

Exit codes: 0 done; 1 an operating error, told in one line that begins with `ember:`;
2 wrong usage; 3 something was found (differences, findings); 4 a question was answered with no, or
nobody was there to ask; 130 interrupted."""


def commands_page() -> str:
    """Return specs/commands.md."""
    parts = [HEAD]
    for name, command in _named(typer.main.get_command(app)):
        if name in GROUPS:
            command = typer.main.get_command(GROUPS[name]())  # noqa: PLW2901 - what stands behind it
        if name == "admin":
            command = _without_also(command)  # noqa: PLW2901 - said once
            parts.append(_admin_section(command))
        for path, leaf in leaves(f"ember {name}", command):
            parts.append(_section(path, leaf))
    return "\n\n".join(parts) + "\n"


def _without_also(admin: Any) -> Any:
    """Return `ember admin` without what is described below names of its own."""
    from ..commands.admin_commands import ALSO  # noqa: PLC0415 - loads all that it needs

    admin.commands = {name: found for name, found in admin.commands.items() if name not in ALSO}
    return admin


def _admin_section(admin: Any) -> str:
    from ..commands.admin_commands import ALSO  # noqa: PLC0415

    options = [p for p in admin.params if isinstance(p, TyperOption)]
    rows = [f"| {_option(o)} | {_meaning(o)} |" for o in options if "--help" not in o.opts]
    listed = ", ".join(f"`{name}`" for name in sorted(ALSO))
    return "\n".join(
        [
            "## ember admin", "", "    ember admin [OPTIONS] COMMAND ...", "",
            "Look into a running cluster, and change it.  Before the command:", "",
            "| | |", "|---|---|", *rows, "",
            f"The groups {listed} are commands of `ember admin` as well as of `ember`.",
        ]
    )  # fmt: skip


def _named(command: Any) -> Iterator[tuple[str, Any]]:
    assert isinstance(command, TyperGroup), command.name
    yield from command.commands.items()


def leaves(path: str, command: Any) -> Iterator[tuple[str, Any]]:
    """Yield the commands below one, each with the words that name it."""
    if isinstance(command, TyperGroup):
        for name, found in _named(command):
            yield from leaves(f"{path} {name}", found)
    else:
        yield path, command


def _section(path: str, command: Any) -> str:
    arguments = [p for p in command.params if isinstance(p, TyperArgument)]
    options = [p for p in command.params if isinstance(p, TyperOption)]
    usage = " ".join([path, *(_metavar(a) for a in arguments), *(["[OPTIONS]"] if options else [])])
    text, examples = _split(command.help or "")
    lines = [f"## {path}", "", f"    {usage}", "", _words(text)]
    records = [(f"`{_metavar(a)}`", _words(getattr(a, "help", ""))) for a in arguments]
    records += [(_option(o), _meaning(o)) for o in options]
    if records:
        lines += ["", "| | |", "|---|---|", *(f"| {name} | {text} |" for name, text in records)]
    lines += ["", *(f"    {example}" for example in examples)] if examples else []
    return "\n".join(lines)


def examples_of(command: Any) -> list[str]:
    """Return the example lines of a command, as they may be typed."""
    return _split(command.help or "")[1]


def _split(text: str) -> tuple[str, list[str]]:
    """Return a help text without its examples, and these."""
    mark = "Example: "
    lines = text.splitlines()
    examples = [line.strip().removeprefix(mark) for line in lines if line.strip().startswith(mark)]
    return "\n".join(line for line in lines if not line.strip().startswith(mark)), examples


def _metavar(argument: TyperArgument) -> str:
    name = argument.metavar or str(argument.name).upper()
    many = "..." if argument.nargs != 1 and not name.endswith("...") else ""
    return f"{name}{many}" if argument.required else f"[{name}{many}]"


def _option(option: TyperOption) -> str:
    names = ", ".join(f"`{name}`" for name in (*option.opts, *option.secondary_opts))
    if option.is_flag:
        return names
    if choices := getattr(option.type, "choices", ()):
        return f"{names} {' or '.join(f'`{_value(choice)}`' for choice in choices)}"
    return f"{names} {option.metavar or str(option.name).upper()}"


def _meaning(option: TyperOption) -> str:
    """Return what an option means, and its default, unless each user has one of his own."""
    told = option.show_default if isinstance(option.show_default, str) else ""
    if not told and option.show_default and not option.is_flag and option.default:
        told = str(_value(option.default))
    is_of_user = told in {str(default_directory()), str(default_mount_point())}
    return _words(option.help) + (f" Default: {_words(told)}." if told and not is_of_user else "")


def _value(given: Any) -> Any:
    """Return a default or choice as it is typed."""
    return given.value if isinstance(given, Enum) else given


def _words(text: str | None) -> str:
    """Return a help text as one line, safe in a table."""
    return " ".join((text or "").split()).replace("|", "\\|")
