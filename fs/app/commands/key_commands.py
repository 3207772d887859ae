"""`ember key ...`: the key that closes a cluster to strangers (specs/authentication.md)."""

import random
from pathlib import Path
from typing import Annotated

import typer

from ...rpc.credential_files import read_keys, write_new_key

key = typer.Typer(help="The key of a cluster.", no_args_is_help=True, add_completion=False)

FileArgument = Annotated[
    Path, typer.Argument(metavar="FILE", help="auth.key_file of every process.")
]


@key.command("new")
def new(file: FileArgument) -> None:
    """Make a key in a new file that only its owner can read."""
    write_new_key(file, random.SystemRandom())


@key.command("ids")
def ids(file: FileArgument) -> None:
    """Check a file, and print what its keys are called in the log: not the keys."""
    for secret in read_keys(file):
        typer.echo(secret.key_id[1:].hex())
