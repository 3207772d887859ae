"""Command lines of documents and manifests, parsed by our own parser without being run."""

import typer
from typer.core import TyperGroup

from fs.app.commands.groups import GROUPS
from fs.app.main import app


def parsed(arguments):
    """Parse what follows `ember`, without running it;
    return the command's name and its parameters.
    """
    words, command, name = list(arguments), typer.main.get_command(app), ""
    while isinstance(command, TyperGroup):
        name = words.pop(0)
        is_group = not isinstance(command.commands.get(name), TyperGroup) and name in GROUPS
        command = typer.main.get_command(GROUPS[name]()) if is_group else command.commands[name]
    return name, command.make_context(name, words).params
