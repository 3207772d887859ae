"""`ember mount-helper ...`: lets mount(8), umount(8) and /etc/fstab mount EmberFS,
as type fuse.ember.
"""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from ...runtime.durable_file import write_durable
from ...schema.status import FsError, Status
from ..mounts.helper_script import DEEDS, FOLDER, MARK, helper_path, helper_text

helper = typer.Typer(
    help="Let mount(8) and /etc/fstab mount EmberFS.", no_args_is_help=True, add_completion=False
)

FolderOption = Annotated[Path, typer.Option("--folder", help="Where mount(8) looks for helpers.")]


def _places(folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield what each program does, and where it belongs;
    raises FsError for who may not write there, and at files of others.
    """
    if os.geteuid() != 0:
        raise FsError(Status.NOT_PERMITTED, f"{folder}: run this as root")
    for deed in DEEDS:
        place = Path(helper_path(deed, str(folder)))
        if place.exists() and MARK not in place.read_text(errors="replace"):
            raise FsError(Status.EXISTS, f"{place} is somebody else's: move it away")
        yield deed, place


@helper.command("install")
def install(folder: FolderOption = Path(FOLDER)) -> None:
    """Write mount.fuse.ember and umount.fuse.ember, which run this installation; as root."""
    for deed, place in list(_places(folder)):
        write_durable(place, helper_text(deed, sys.executable))
        place.chmod(0o755)
        typer.echo(place)


@helper.command("remove")
def remove(folder: FolderOption = Path(FOLDER)) -> None:
    """Remove both; what is mounted stays mounted; as root."""
    for _, place in list(_places(folder)):
        place.unlink(missing_ok=True)
