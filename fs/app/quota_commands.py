"""`ember quota ...`: limits on the bytes and inodes below directories, and what lies there.

What a path is: paths_on_mounts.py.  Does not decide anything: fs/meta/quota.py does.
"""

import json
import os
import re
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from ..client.blocking import BlockingFs, connect_blocking
from ..client.entries import DirectoryUsage
from ..rpc.credential_files import TOKEN_FILE_VARIABLE, read_token
from ..schema.status import FsError, Status
from . import supervisor_link
from .amounts import bytes_text
from .cells import cell, print_table, table
from .cluster_dir import ClusterDir, load_record, mgmtd_addresses, need_record, usual_key_file
from .configured import CONFIG_VARIABLE, configured_file
from .entry import NO_ENTRY, current_entry
from .errors import named
from .options import PauseOption
from .paths_on_mounts import OnMount, mount_of, path_inside
from .running import mount_daemon_at
from .which_cluster import chosen_directory, directory_of_cluster

if TYPE_CHECKING:
    from .store_access import StoreChoice

quota = typer.Typer(
    help="Limits on what lies below directories.", no_args_is_help=True, add_completion=False
)

DirOption = Annotated[Path | None, typer.Option("--dir", help="The cluster's directory.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
PathArgument = Annotated[str, typer.Argument(metavar="PATH", help="A directory.")]

NUMBER_MAX: Final = 2**64 - 1
"""What a message can carry."""
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
    number = int(match[1]) * _UNITS[match[2]]
    if number > NUMBER_MAX:
        raise FsError(Status.INVALID_ARGUMENT, f"{text!r}: at most {NUMBER_MAX}")
    return number


def connected(given: Path | None, paths: Sequence[str] = (), *, follow: bool = False) -> BlockingFs:
    """Return a client of the cluster that is meant, to be used in a `with` block.

    Args:
        given: its directory; None: that whose mount `paths` are on, else the one that runs here.
        paths: what it is about.
        follow: links are what they lead to.

    Raises:
        FsError: NOT_RUNNING; INVALID_ARGUMENT: a path is on a mount of another cluster.
    """
    where = mount_of(paths, follow=follow)
    is_elsewhere = current_entry() != NO_ENTRY
    if is_elsewhere or (given is None and where is None and configured_file() is not None):
        check_not_here(paths)
        return _connected_elsewhere(where)
    directory = meant_directory(given, where)
    if directory is None:
        assert where is not None
        return _connected_as_daemon(where)
    record = need_record(directory)
    if not (supervisor_link.is_answering(directory) or supervisor_link.has_orphans(directory)):
        detail = f"no cluster runs in {directory.path}; start it: {directory.command('up')}"
        raise FsError(Status.NOT_RUNNING, detail)
    key_file = usual_key_file(directory, record)
    return connect_blocking(
        mgmtd_addresses(directory, record), record.cluster_id, key_file=key_file
    )


def check_not_here(paths: Sequence[str]) -> None:
    """Refuse paths of this machine that are on no mount:
    within a file system which nobody has named they would mean other files.

    Raises:
        FsError: INVALID_ARGUMENT.
    """
    for path in paths:
        if os.path.abspath(path) != "/" and os.path.lexists(path):  # noqa: PTH100 - links are for the file system
            detail = (
                f"{path} is a path of this machine, on no mount of EmberFS: name one on a mount"
            )
            raise FsError(Status.INVALID_ARGUMENT, detail)


def meant_directory(given: Path | None, where: OnMount | None) -> ClusterDir | None:
    """Return the directory of the cluster that is given, or whose mount a path is on;
    None: it is of another machine.

    Raises:
        FsError: BAD_CLUSTER_DIR; INVALID_ARGUMENT: that mount is of another
            cluster than the one given.
    """
    if given is None and where is not None and where.cluster_id:
        return directory_of_cluster(where.cluster_id)
    directory = chosen_directory(given)
    record = load_record(directory)
    if record is not None:
        check_same_cluster(where, record.cluster_id)
    return directory


def check_same_cluster(where: OnMount | None, cluster_id: str) -> None:
    """Raise FsError(INVALID_ARGUMENT) for a path on a mount of another cluster:
    there its name means something else.
    """
    if where is not None and where.cluster_id not in {"", cluster_id}:
        detail = (
            f"{where.mount_point} is a mount of {where.cluster_id}, and the command is for "
            f"{cluster_id}"
        )
        raise FsError(Status.INVALID_ARGUMENT, detail)


def _connected_as_daemon(where: OnMount) -> BlockingFs:
    """Return a client that reaches the cluster as the daemon of its mount does,
    for machines that have the mount only.
    """
    found = mount_daemon_at(where.mount_point)
    if found is None:
        detail = (
            f"{where.mount_point} is a mount of {where.cluster_id}, of which no process runs here "
            "that you may ask: "
            "be its owner, or name a directory by --dir"
        )
        raise FsError(Status.NOT_RUNNING, detail)
    process, auth = found[1].process, found[1].auth
    if os.environ.get(TOKEN_FILE_VARIABLE):  # who names one wants to be its user
        return connect_blocking(process.mgmtd_addresses, process.cluster_id)
    token = read_token(Path(auth.token_file)) if auth.token_file else None
    return connect_blocking(
        process.mgmtd_addresses, process.cluster_id, token=token, key_file=auth.key_file
    )


def _connected_elsewhere(on: OnMount | None) -> BlockingFs:
    """Return a client of the cluster of `ember admin --at`,
    or of the configuration file of this machine.
    """
    from .where import find  # noqa: PLC0415 - loads managers and stores, which `ember rm` does not need

    where = find(None, None)
    if where.is_down:
        raise FsError(Status.NOT_RUNNING, "--kv reads a store without services, which this needs")
    check_same_cluster(on, where.cluster_id)
    token = read_token(Path(where.auth.token_file)) if where.auth.token_file else None
    return connect_blocking(
        where.addresses, where.cluster_id, token=token, key_file=where.auth.key_file
    )


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
    from .options import store_of  # noqa: PLC0415
    from .store_access import store_of_cluster  # noqa: PLC0415

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
    from .recount import recount as run  # noqa: PLC0415

    where = mount_of([path] if path else [])
    choice = _store_to_count(directory, where, path)
    inside = path_inside(path) if path else "/"
    raise typer.Exit(run(choice, inside, is_repair=not check, may_pause=pause, as_json=as_json))
