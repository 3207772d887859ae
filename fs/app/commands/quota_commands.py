"""`ember quota ...`: limits on the bytes and inodes below directories, and what lies there.

What a path is: mounts/paths_on_mounts.py.  Does not decide anything: fs/meta/quota.py does.
"""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ...client.entries import DirectoryUsage
from ...schema.status import FsError, Status
from ..mounts.paths_on_mounts import OnMount, mount_of, path_inside
from ..reach.configured import CONFIG_VARIABLE, configured_file
from ..reach.meant_cluster import check_same_cluster, connected, meant_directory
from ..reach.options import PauseOption
from ..terminal.amounts import bytes_text, parse_number
from ..terminal.cells import cell, print_table, table
from ..terminal.errors import named

if TYPE_CHECKING:
    from ..stores.store_access import StoreChoice

quota = typer.Typer(
    help="Limits on what lies below directories.", no_args_is_help=True, add_completion=False
)

DirOption = Annotated[Path | None, typer.Option("--dir", help="The cluster's directory.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
PathArgument = Annotated[str, typer.Argument(metavar="PATH", help="A directory.")]


def _show(entries: list[DirectoryUsage], *, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps([asdict(entry) for entry in entries], indent=2))
        return
    rich = table("directory", "bytes", "limit", "inodes", "limit")
    for entry in entries:
        inode_count = entry.file_count + entry.directory_count
        rich.add_row(
            cell(entry.damage or entry.path or "(too deep)"),
            bytes_text(entry.byte_count),
            bytes_text(entry.bytes_max) if entry.bytes_max else "-",
            str(inode_count),
            str(entry.inodes_max or "-"),
        )
    print_table(rich)


@quota.command("set")
def set_(
    path: PathArgument,
    bytes_max: Annotated[
        str | None, typer.Option("--bytes", help="For example 500G; 0: no limit.")
    ] = None,
    inodes_max: Annotated[
        str | None, typer.Option("--inodes", help="Files and directories; 0: no limit.")
    ] = None,
    directory: DirOption = None,
) -> None:
    """Limit what may lie below a directory; what is not given stays as it is."""
    if bytes_max is None and inodes_max is None:
        raise FsError(Status.INVALID_ARGUMENT, "say --bytes, --inodes or both")
    inside = path_inside(path)
    with connected(directory, [path]) as fs, named(path):
        before, _ = fs.usage(inside)
        fs.set_quota(
            inside,
            bytes_max=before.bytes_max if bytes_max is None else parse_number(bytes_max),
            inodes_max=before.inodes_max if inodes_max is None else parse_number(inodes_max),
        )


@quota.command("get")
def get(path: PathArgument, directory: DirOption = None, *, as_json: JsonOption = False) -> None:
    """Show what lies below a directory, and the limits set there and above."""
    with connected(directory, [path]) as fs, named(path):
        found, limiting = fs.usage(path_inside(path))
    _show([found, *(entry for entry in limiting if entry != found)], as_json=as_json)


@quota.command("rm")
def rm(path: PathArgument, directory: DirOption = None) -> None:
    """Remove both limits of a directory."""
    with connected(directory, [path]) as fs, named(path):
        fs.set_quota(path_inside(path), bytes_max=0, inodes_max=0)


@quota.command("ls")
def ls(directory: DirOption = None, *, as_json: JsonOption = False) -> None:
    """List all directories that have limits."""
    with connected(directory) as fs:
        found = fs.quotas()
    _show(found, as_json=as_json)


def _store_to_count(given: Path | None, where: OnMount | None, path: str) -> "StoreChoice":
    from ..reach.options import store_of  # noqa: PLC0415
    from ..stores.store_access import store_of_cluster  # noqa: PLC0415

    meant = None if where is None and given is None else meant_directory(given, where)
    if meant is not None:
        return store_of_cluster(meant)
    if where is not None and configured_file() is None:
        detail = (
            f"{path} is on a mount of a cluster of other machines: name the file of any of its "
            f"servers by {CONFIG_VARIABLE}"
        )
        raise FsError(Status.NOT_RUNNING, detail)
    choice = store_of(None, None, "")
    check_same_cluster(where, choice.cluster_id)
    return choice


@quota.command("recount")
def recount(
    path: Annotated[str, typer.Argument(metavar="[PATH]", help="A directory; left out: all.")] = "",
    directory: DirOption = None,
    check: Annotated[bool, typer.Option("--check", help="Only compare.")] = False,
    pause: PauseOption = False,
    *,
    as_json: JsonOption = False,
) -> None:
    """Count what lies below each directory, compare, and put the counters right,
    while the cluster works.
    """
    from ..upkeep.recount import recount as run  # noqa: PLC0415

    where = mount_of([path] if path else [])
    choice = _store_to_count(directory, where, path)
    inside = path_inside(path) if path else "/"
    raise typer.Exit(run(choice, inside, is_repair=not check, may_pause=pause, as_json=as_json))
