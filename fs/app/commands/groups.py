"""Groups of commands with an application of their own, which is loaded when it is used."""

from collections.abc import Callable
from inspect import getdoc
from typing import Any, Final

import typer

from ..reach.options import PASS_ON

app = typer.Typer()

GROUPS: Final[dict[str, Callable[[], typer.Typer]]] = {}
"""Commands with an application of their own, loaded when it is used."""


def tell_whole_lines(group: typer.Typer) -> None:
    """Have lists of commands tell the whole summary of each, which may take two lines;
    else it is cut short with dots.
    """
    for command in group.registered_commands:
        said = command.help or getdoc(command.callback) or ""
        command.short_help = " ".join(said.partition("\n\n")[0].split()) or None
    for below in group.registered_groups:
        if below.typer_instance is not None:
            below.short_help = below.typer_instance.info.help
            tell_whole_lines(below.typer_instance)


def _group(load: Callable[[], typer.Typer]) -> Callable[[], typer.Typer]:
    """Register a command that passes everything on to the application that `load` returns."""
    name = load.__name__.removeprefix("_").replace("_", "-")

    def loaded() -> typer.Typer:
        found = load()
        # as `ember` itself, in one way everywhere: without frames, and a bug with a plain traceback
        found.rich_markup_mode, found.pretty_exceptions_enable = None, False
        tell_whole_lines(found)
        return found

    def run(context: typer.Context) -> None:
        loaded()(context.args, prog_name=f"ember {name}")

    metavar = "PATH ..." if name == "rm" else "COMMAND ..."
    settings: dict[str, Any] = PASS_ON | {"help_option_names": []}
    app.command(name, help=load.__doc__, context_settings=settings, options_metavar=metavar)(run)
    GROUPS[name] = loaded
    return load


@_group
def _admin() -> typer.Typer:
    """Look into a running cluster, and change it."""
    from .admin_commands import admin  # noqa: PLC0415

    return admin


@_group
def _cluster() -> typer.Typer:
    """Install, grow and upgrade a cluster of many machines."""
    from ..deploy.commands import cluster  # noqa: PLC0415

    return cluster


@_group
def _metrics() -> typer.Typer:
    """Show where processes say what they measure, for Prometheus."""
    from ..monitoring.metrics_commands import metrics  # noqa: PLC0415

    return metrics


@_group
def _placement() -> typer.Typer:
    """Make, check and simulate chain tables."""
    from .placement_commands import placement  # noqa: PLC0415

    return placement


@_group
def _quota() -> typer.Typer:
    """Limit bytes and inodes below directories, and show what lies there."""
    from .quota_commands import quota  # noqa: PLC0415

    return quota


@_group
def _key() -> typer.Typer:
    """Make the key that closes a cluster to strangers."""
    from .key_commands import key  # noqa: PLC0415

    return key


@_group
def _user() -> typer.Typer:
    """Let users into a closed cluster, and show and revoke their tokens."""
    from .user_commands import user  # noqa: PLC0415

    return user


@_group
def _mount_helper() -> typer.Typer:
    """Let mount(8) and /etc/fstab mount EmberFS."""
    from .helper_commands import helper  # noqa: PLC0415

    return helper


@_group
def _rm() -> typer.Typer:
    """Move files and, with -r, directories to the trash."""
    from .trash_commands import rm  # noqa: PLC0415

    return rm


@_group
def _trash() -> typer.Typer:
    """Show what is in one's trash, restore it, or empty it."""
    from .trash_commands import trash  # noqa: PLC0415

    return trash


@_group
def _dirlock() -> typer.Typer:
    """Let only one mount change names in a directory."""
    from .lock_commands import dirlock  # noqa: PLC0415

    return dirlock


def load_all(into: typer.Typer) -> None:
    """Put the groups themselves in the place of what loads them,
    so that a shell can complete what comes after.
    """
    whole = [name for name in GROUPS if name != "rm"]  # that one is a command
    app.registered_commands = [c for c in app.registered_commands if c.name not in whole]
    for name in whole:
        into.add_typer(GROUPS[name](), name=name)
