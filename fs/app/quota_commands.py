"""`ember quota ...`: limits on the bytes and inodes below directories, and what lies there.

A path is one of a mounted EmberFS, or, when it is not below a mount, one of the file system itself.  Does not decide
anything: fs/meta/quota.py does.
"""

import json
import os
import re
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Final

import typer

from ..client.blocking import BlockingFs, connect_blocking
from ..client.entries import DirectoryUsage
from ..schema.status import FsError, Status
from . import supervisor_link
from .cells import cell, console, table
from .cluster_dir import mgmtd_addresses, need_record, usual_key_file
from .entry import NO_ENTRY, current_entry
from .errors import named
from .mount_point import is_mounted
from .options import PauseOption
from .status_view import bytes_text
from .which_cluster import chosen_directory

quota = typer.Typer(help="Limits on what lies below directories.", no_args_is_help=True)

DirOption = Annotated[Path | None, typer.Option("--dir", help="The cluster's directory.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
PathArgument = Annotated[str, typer.Argument(metavar="PATH", help="A directory.")]

_UNITS: Final[dict[str, int]] = {"": 1} | {
    f"{letter}{suffix}": base**power
    for power, letter in enumerate("KMGTP", 1)
    for suffix, base in (("", 1024), ("iB", 1024), ("B", 1000))
}


def parse_number(text: str) -> int:
    """Return a number such as 500, 10G (binary), 10GiB (binary), 10GB (decimal).

    Raises:
        FsError: INVALID_ARGUMENT.
    """
    match = re.fullmatch(r"(\d+)([A-Za-z]*)", text.strip())
    if match is None or match[2] not in _UNITS:
        raise FsError(Status.INVALID_ARGUMENT, f"{text!r}: say for example 500, 10G or 10GB")
    return int(match[1]) * _UNITS[match[2]]


def path_inside(path: str) -> str:
    """Return what a path is called in the file system: relative to its mount, if it is below one."""
    absolute = Path(os.path.abspath(path))  # noqa: PTH100 - symbolic links are for the file system to follow
    for above in (absolute, *absolute.parents):
        if is_mounted(above):
            return "/" + str(absolute.relative_to(above)).removeprefix(".")
    return str(absolute)


def connected(given: Path | None) -> BlockingFs:
    """Return a client of the chosen cluster, to be used in a `with` block; raises FsError: NOT_RUNNING."""
    if current_entry() != NO_ENTRY:
        return _connected_elsewhere()
    directory = chosen_directory(given)
    record = need_record(directory)
    if not (supervisor_link.is_answering(directory) or supervisor_link.has_orphans(directory)):
        detail = f"no cluster runs in {directory.path}; start it: ember up"
        raise FsError(Status.NOT_RUNNING, detail)
    key_file = usual_key_file(directory, record)
    return connect_blocking(
        mgmtd_addresses(directory, record), record.cluster_id, key_file=key_file
    )


def _connected_elsewhere() -> BlockingFs:
    """Return a client of the cluster of `ember admin --at`, whose credentials are in the environment."""
    from .where import find  # noqa: PLC0415 - loads managers and stores, which `ember rm` does not need

    where = find(None, None)
    if where.is_down:
        raise FsError(Status.NOT_RUNNING, "--kv reads a store without services, which this needs")
    return connect_blocking(where.addresses, where.cluster_id)


def _show(entries: list[DirectoryUsage], *, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps([asdict(entry) for entry in entries], indent=2))
        return
    rich = table("directory", "bytes", "limit", "inodes", "limit")
    for entry in entries:
        inode_count = entry.file_count + entry.directory_count
        rich.add_row(
            cell(entry.path or "(too deep)"),
            bytes_text(entry.byte_count),
            bytes_text(entry.bytes_max) if entry.bytes_max else "-",
            str(inode_count),
            str(entry.inodes_max or "-"),
        )
    console().print(rich)


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
    with connected(directory) as fs, named(path):
        before, _ = fs.usage(inside)
        fs.set_quota(
            inside,
            bytes_max=before.bytes_max if bytes_max is None else parse_number(bytes_max),
            inodes_max=before.inodes_max if inodes_max is None else parse_number(inodes_max),
        )


@quota.command("get")
def get(path: PathArgument, directory: DirOption = None, *, as_json: JsonOption = False) -> None:
    """Show what lies below a directory, and the limits set there and above."""
    with connected(directory) as fs, named(path):
        found, limiting = fs.usage(path_inside(path))
    _show([found, *(entry for entry in limiting if entry != found)], as_json=as_json)


@quota.command("rm")
def rm(path: PathArgument, directory: DirOption = None) -> None:
    """Remove both limits of a directory."""
    with connected(directory) as fs, named(path):
        fs.set_quota(path_inside(path), bytes_max=0, inodes_max=0)


@quota.command("ls")
def ls(directory: DirOption = None, *, as_json: JsonOption = False) -> None:
    """List all directories that have limits."""
    with connected(directory) as fs:
        found = fs.quotas()
    _show(found, as_json=as_json)


@quota.command("recount")
def recount(
    path: Annotated[str, typer.Argument(metavar="[PATH]", help="A directory; left out: all.")] = "",
    directory: DirOption = None,
    check: Annotated[bool, typer.Option("--check", help="Only compare.")] = False,
    pause: PauseOption = False,
    *,
    as_json: JsonOption = False,
) -> None:
    """Count what lies below each directory, compare, and put the counters right, while the cluster works."""
    from .recount import recount as run  # noqa: PLC0415
    from .store_access import store_of_cluster  # noqa: PLC0415

    choice = store_of_cluster(chosen_directory(directory))
    inside = path_inside(path) if path else "/"
    raise typer.Exit(run(choice, inside, is_repair=not check, may_pause=pause, as_json=as_json))
