"""`ember rm` and `ember trash ...`: removals that can be taken back.

A path is one of a mounted EmberFS, or, when it is not below a mount, one of the file system itself.
Does not decide anything: fs/meta/ops/trash.py does.
"""

import json
import os
from dataclasses import asdict
from datetime import UTC, datetime
from enum import Enum
from typing import Annotated, Final

import typer

from ...client.entries import TrashEntry
from ...schema.status import FsError, Status
from ..mounts.paths_on_mounts import path_inside
from ..reach.meant_cluster import connected
from ..terminal.amounts import count_text
from ..terminal.cells import cell, print_table, say_name, table
from ..terminal.errors import named
from ..terminal.listing import confirm
from .quota_commands import DirOption, JsonOption

rm = typer.Typer(add_completion=False)
trash = typer.Typer(
    help="What was removed and can be restored.", no_args_is_help=True, add_completion=False
)

NamesArgument = Annotated[
    list[str] | None, typer.Argument(metavar="[NAME]...", help="As `ember trash ls` shows them.")
]


class Expiry(Enum):
    """How long something can be restored."""

    HOUR = "1h"
    HOURS_3 = "3h"
    HOURS_8 = "8h"
    DAY = "1d"
    DAYS_3 = "3d"
    DAYS_7 = "7d"


_UNIT_S: Final = {"h": 3600, "d": 86_400}


def expiry_s(expiry: Expiry) -> int:
    """Return the seconds of an expiry class."""
    return int(expiry.value[:-1]) * _UNIT_S[expiry.value[-1]]


def _removed(path: str) -> str:
    """Return what the file system calls a path that is to go.

    Of a name that ends in a slash only a directory is meant, and of one that says `.`
    or `..` hardly what it comes to.

    Raises:
        FsError: INVALID_ARGUMENT; and as `path_inside`.
    """
    if os.path.basename(path.rstrip("/")) in {".", ".."}:  # noqa: PTH119 - not of this machine
        raise FsError(Status.INVALID_ARGUMENT, "name it without `.` or `..` at its end")
    inside = path_inside(path)
    if inside == "/":
        raise FsError(Status.INVALID_ARGUMENT, "the root of the file system is not removed")
    return f"{inside}/" if path.endswith("/") else inside


@rm.command()
def _rm(
    paths: Annotated[
        list[str], typer.Argument(metavar="PATH...", help="Files or directories on a mount.")
    ],
    expire: Annotated[
        Expiry | None,
        typer.Option(help="How long it can be restored; default: as the cluster is configured."),
    ] = None,
    recursive: Annotated[
        bool, typer.Option("-r", "--recursive", help="Directories, too, with all below them.")
    ] = False,
    directory: DirOption = None,
) -> None:
    """Move files and, with -r, directories to the trash;
    what lies in the trash is removed for good.
    """
    with connected(directory, paths) as fs:
        for path in paths:
            with named(path):
                inside = _removed(path)
                if not recursive and fs.stat(inside, follow=False).is_dir:
                    raise FsError(Status.IS_DIRECTORY, "say -r to remove a directory")
                fs.move_to_trash(inside, expiry_s(expire) if expire else 0)


def _when(time_ns: int) -> str:
    moment = datetime.fromtimestamp(time_ns / 1e9, UTC).astimezone()
    return f"{moment:%Y-%m-%d %H:%M}" if time_ns else "-"


def _as_json(entry: TrashEntry) -> dict[str, object]:
    fields = asdict(entry)
    del fields["place"], fields["origin"]
    return fields


@trash.command("ls")
def ls(directory: DirOption = None, *, as_json: JsonOption = False) -> None:
    """List what is in one's trash."""
    with connected(directory) as fs:
        found = fs.trash()
    if as_json:
        typer.echo(json.dumps([_as_json(entry) for entry in found], indent=2))
        return
    rich = table("name", "was", "removed", "kept until")
    for entry in sorted(found, key=lambda e: e.removed_ns):
        name = entry.name + "/" * entry.is_dir
        where = cell(entry.path or "-")
        rich.add_row(cell(name), where, _when(entry.removed_ns), _when(entry.due_ns))
    print_table(rich)


def _chosen(found: list[TrashEntry], names: list[str]) -> list[TrashEntry]:
    by_name = {entry.name: entry for entry in found}
    chosen = []
    for name in names:
        entry = by_name.get(name.removesuffix("/"))  # which `ls` shows behind directories
        if entry is None:
            raise FsError(Status.NOT_FOUND, f"{name} is not in the trash: see `ember trash ls`")
        chosen.append(entry)
    return chosen


@trash.command("restore")
def restore(
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="As `ls` shows them.")],
    to: Annotated[
        str, typer.Option(metavar="PATH", help="New path of a single name; default: where it was.")
    ] = "",
    directory: DirOption = None,
) -> None:
    """Bring names back to where they were; nothing is replaced."""
    if to and len(names) > 1:
        raise FsError(Status.INVALID_ARGUMENT, "--to takes a single name")
    with connected(directory, [to] if to else ()) as fs:
        for entry in _chosen(fs.trash(), names):
            try:
                say_name(fs.restore(entry, path_inside(to) if to else ""))
            except FsError as error:
                if error.status is not Status.EXISTS:
                    raise
                detail = (
                    f"{to or entry.path}; nothing is replaced: restore it under another name by "
                    "--to PATH"
                )
                raise FsError(Status.EXISTS, detail) from error


@trash.command("empty")
def empty(
    names: NamesArgument = None,
    directory: DirOption = None,
    *,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Remove names in one's trash for good; all, if none is named."""
    with connected(directory) as fs:
        found = fs.trash()
        chosen = _chosen(found, names) if names else found
        confirm([f"removed for good: {count_text(len(chosen), 'name')}"], dry_run=False, yes=yes)
        for entry in chosen:
            fs.remove_for_good(entry)
