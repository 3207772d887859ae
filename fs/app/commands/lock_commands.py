"""`ember dirlock ...`: a mount alone may change names in a directory.

The lock belongs to the mount that the path is on, so it goes through that mount, as the
extended attribute `ember.lock`.
"""

import errno
import os
from typing import Annotated

import typer

from ...schema.status import FsError, Status

dirlock = typer.Typer(
    help="Let only one mount change names in a directory.",
    no_args_is_help=True,
    add_completion=False,
)

PathArgument = Annotated[str, typer.Argument(metavar="PATH", help="A directory on a mount.")]
ATTRIBUTE = "ember.lock"


def _write(path: str, action: bytes) -> None:
    try:
        os.setxattr(path, ATTRIBUTE, action)
    except OSError as error:
        raise _told(path, error) from error


def _told(path: str, error: OSError) -> FsError:
    if error.errno == errno.ENOLCK:
        return FsError(Status.NO_LOCK, f"{path}: `ember dirlock show` says which")
    if error.errno == errno.EOPNOTSUPP:
        return FsError(Status.NOT_SUPPORTED, f"{path} is not on a mounted EmberFS")
    if error.errno == errno.ENOENT:
        return FsError(Status.NOT_FOUND, path)
    return FsError(Status.INVALID_ARGUMENT, f"{path}: {error.strerror}")


@dirlock.command("lock")
def lock(
    path: PathArgument,
    *,
    preempt: Annotated[
        bool, typer.Option("--preempt", help="Also if another mount holds it (owner or root).")
    ] = False,
) -> None:
    """Lock a directory for the mount that the path is on."""
    _write(path, b"preempt" if preempt else b"lock")


@dirlock.command("unlock")
def unlock(
    path: PathArgument,
    *,
    clear: Annotated[
        bool, typer.Option("--clear", help="Whoever holds it (owner or root).")
    ] = False,
) -> None:
    """Unlock a directory."""
    _write(path, b"clear" if clear else b"unlock")


@dirlock.command("show")
def show(path: PathArgument) -> None:
    """Print the client that holds a directory; nothing when nobody does."""
    try:
        holder = os.getxattr(path, ATTRIBUTE)
    except OSError as error:
        if error.errno != errno.ENODATA:
            raise _told(path, error) from error
    else:
        typer.echo(holder.decode())
