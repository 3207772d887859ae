"""The `ember` command.  Each command imports what it needs when it runs, so that `ember status` is quick.

An operating error is one line on stderr, "ember: ...", and exit code 1; wrong usage is exit code 2.
"""

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from ..schema.status import FsError, Status
from .cluster_dir import ClusterDir, default_directory, default_mount_point
from .errors import check_interpreter, error_line, first_error
from .process_id import ProcessId, process_id

if TYPE_CHECKING:
    from .bring_up import UpOptions
    from .store_access import StoreChoice

app = typer.Typer(
    name="ember",
    help="EmberFS: a distributed file system for machine-learning clusters.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

DirOption = Annotated[
    Path | None,
    typer.Option("--dir", help="The cluster's directory.", show_default=str(default_directory())),
]
StoreOption = Annotated[
    str | None,
    typer.Option(metavar="STORE", help="rocksdb:PATH, remote:ADDRESS or foundationdb:CLUSTERFILE."),
]
ConfigOption = Annotated[Path, typer.Option("--config", help="Configuration file (TOML).")]
MountArgument = Annotated[Path, typer.Argument(metavar="MOUNT_POINT")]
PASS_ON = {"allow_extra_args": True, "ignore_unknown_options": True}


def _directory(given: Path | None) -> ClusterDir:
    return ClusterDir((given or default_directory()).absolute())


def _running(given: Path | None) -> ClusterDir:
    """Return the cluster to look at: without --dir, also the only one that runs elsewhere."""
    from .running import chosen_directory  # noqa: PLC0415

    return chosen_directory(given)


def _store(given: Path | None, kv: str | None, cluster_id: str) -> "StoreChoice":
    """Return the store that is meant: that of --kv, else that of the cluster."""
    from .store_access import StoreChoice, parse_store, store_of_cluster  # noqa: PLC0415

    if kv is None:
        return store_of_cluster(_running(given))
    if not cluster_id:
        raise FsError(Status.BAD_CONFIG, "--kv: whose store is it? say --cluster-id, too")
    return StoreChoice(parse_store(kv), cluster_id)


@app.command()
def up(  # noqa: PLR0917 - options, never passed by position
    directory: DirOption = None,
    mount: Annotated[
        Path | None,
        typer.Option(
            help="An empty directory to mount at.", show_default=str(default_mount_point())
        ),
    ] = None,
    nodes: Annotated[int | None, typer.Option(help="Storage processes.", show_default="3")] = None,
    replicas: Annotated[
        int | None, typer.Option(help="Copies of every chunk.", show_default="3")
    ] = None,
    chains: Annotated[
        int | None, typer.Option(help="Chains of targets.", show_default="2 to 4 per node")
    ] = None,
    mgmtds: Annotated[int | None, typer.Option(help="Managers.", show_default="1")] = None,
    metas: Annotated[int | None, typer.Option(help="Metadata services.", show_default="1")] = None,
    kv: Annotated[
        str | None,
        typer.Option(
            metavar="ENGINE",
            help="Where metadata is kept: rocksdb, or foundationdb:CLUSTERFILE.",
            show_default="rocksdb",
        ),
    ] = None,
    closed: Annotated[
        bool,
        typer.Option("--closed", help="Of a new cluster: serve who has its key, or a token."),
    ] = False,
    no_mount: Annotated[bool, typer.Option("--no-mount", help="Do not mount.")] = False,
    foreground: Annotated[
        bool, typer.Option("--foreground", help="Stay; stop the cluster on Ctrl-C.")
    ] = False,
    no_restart: Annotated[
        bool, typer.Option("--no-restart", help="Leave dead processes dead (for tests).")
    ] = False,
    until: Annotated[
        int | None,
        typer.Option(metavar="PID", help="Stop the cluster when this process ends (for tests)."),
    ] = None,
) -> None:
    """Start a cluster on this machine and mount it."""
    from .bring_up import UpOptions, bring_up  # noqa: PLC0415
    from .foundationdb import parse_kv  # noqa: PLC0415

    _end_like_ctrl_c()
    options = UpOptions(
        _directory(directory).path,
        mount.absolute() if mount else None,
        nodes,
        replicas,
        chains,
        mgmtds,
        metas,
        parse_kv(kv) if kv is not None else None,
        is_closed=closed,
        has_mount=not no_mount,
        restarts=not no_restart,
        until=_process(until) if until is not None else None,
    )
    if foreground:
        _run_in_foreground(options)
    else:
        bring_up(options, default_mount_point())


def _process(pid: int) -> ProcessId:
    """Return the process that --until names."""
    found = process_id(pid)
    if found is None:
        raise FsError(Status.BAD_CONFIG, f"--until {pid}: no such process")
    return found


def _end_like_ctrl_c() -> None:
    """Let whatever asks this process to end run the same clean-up as Ctrl-C, also in the background."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)


def _run_in_foreground(options: "UpOptions") -> None:
    """Bring a cluster up, wait until asked to end, stop it."""
    from . import supervisor_link  # noqa: PLC0415
    from .bring_down import bring_down, wait_end  # noqa: PLC0415
    from .bring_up import bring_up  # noqa: PLC0415

    directory = ClusterDir(options.directory)
    try:
        bring_up(options, default_mount_point())
        wait_end(directory)
    except KeyboardInterrupt:
        sys.stderr.write("ember: stopping\n")
        if supervisor_link.is_answering(directory):  # an interrupted start has stopped it already
            bring_down(directory, wipe=False)


@app.command()
def down(
    directory: DirOption = None,
    wipe: Annotated[bool, typer.Option("--wipe", help="Also remove the cluster's data.")] = False,
) -> None:
    """Stop the cluster; data stays unless --wipe is given."""
    from .bring_down import bring_down  # noqa: PLC0415

    bring_down(_directory(directory), wipe=wipe)


@app.command()
def status(
    directory: DirOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Show processes, chains, mounts and space."""
    from .status_view import show  # noqa: PLC0415

    show(_running(directory), as_json=as_json)


@app.command()
def mount(
    mount_point: MountArgument,
    directory: DirOption = None,
    *,
    recover: Annotated[
        bool,
        typer.Option(
            "--recover", help="Serve again a mount whose daemon has died; one that is served stays."
        ),
    ] = False,
) -> None:
    """Mount a running cluster at one more place."""
    from .bring_down import mount as mount_at  # noqa: PLC0415

    mount_at(_running(directory), mount_point.absolute(), recovers=recover)


@app.command()
def umount(mount_point: MountArgument, directory: DirOption = None) -> None:
    """Flush and end a mount, of whichever cluster is mounted there."""
    from .bring_down import unmount  # noqa: PLC0415

    unmount(_directory(directory) if directory else None, mount_point.absolute())


@app.command()
def control(config: ConfigOption) -> None:
    """Run the process that holds mgmtd, meta and the embedded key-value store."""
    from . import control as root  # noqa: PLC0415
    from .compose import run_process  # noqa: PLC0415

    run_process(root.run, config)


@app.command()
def mgmtd(config: ConfigOption) -> None:
    """Run a manager alone."""
    from . import mgmtd as root  # noqa: PLC0415
    from .compose import run_process  # noqa: PLC0415

    run_process(root.run, config)


@app.command()
def meta(config: ConfigOption) -> None:
    """Run a metadata service alone."""
    from . import meta as root  # noqa: PLC0415
    from .compose import run_process  # noqa: PLC0415

    run_process(root.run, config)


@app.command()
def kv(config: ConfigOption) -> None:
    """Run the process that serves its key-value store to managers and metadata services."""
    from . import kv as root  # noqa: PLC0415
    from .compose import run_process  # noqa: PLC0415

    run_process(root.run, config)


@app.command()
def storage(config: ConfigOption) -> None:
    """Run a storage process."""
    from . import storage as root  # noqa: PLC0415
    from .compose import run_process  # noqa: PLC0415

    run_process(root.run, config)


@app.command()
def mountd(config: ConfigOption) -> None:
    """Run a mount daemon."""
    from . import mountd as root  # noqa: PLC0415
    from .compose import run_process  # noqa: PLC0415

    run_process(root.run, config)


@app.command(context_settings=PASS_ON)
def test(
    context: typer.Context,
    fast: Annotated[
        bool, typer.Option("--fast", help="Leave out slow tests and those that mount.")
    ] = False,  # noqa: PT028 - a command, not a test
    kv: Annotated[
        str | None,
        typer.Option(
            metavar="ENGINE",
            help="Run what must hold on any key-value store, on this one: foundationdb:CLUSTERFILE,"
            " foundationdb-fake, rocksdb, remote or memory.",
        ),
    ] = None,  # noqa: PT028 - as above
) -> None:
    """Run every check and test; further arguments go to pytest."""
    from .develop import run_kv_tests, run_tests  # noqa: PLC0415

    if kv is not None:
        raise typer.Exit(run_kv_tests(kv, fast=fast, arguments=context.args))
    raise typer.Exit(run_tests(fast=fast, arguments=context.args))


@app.command()
def check() -> None:
    """Run every check and the fast tests: the gate before a commit."""
    from .develop import run_tests  # noqa: PLC0415

    raise typer.Exit(run_tests(fast=True, arguments=[]))


@app.command()
def fix() -> None:
    """Format, repair what can be repaired, regenerate code and documents."""
    from .develop import run_fix  # noqa: PLC0415

    raise typer.Exit(run_fix())


@app.command()
def generate() -> None:
    """Regenerate the code and documents that come from the schema."""
    from .develop import run_generate  # noqa: PLC0415

    raise typer.Exit(run_generate())


@app.command()
def lock() -> None:
    """Resolve dependencies anew and rewrite the requirements*.lock files."""
    from .develop import run_lock  # noqa: PLC0415

    raise typer.Exit(run_lock())


@app.command(context_settings=PASS_ON)
def bench(context: typer.Context) -> None:
    """Run benchmarks: all, or the named ones (rpc, kv, chunkengine ...)."""
    from .develop import run_bench  # noqa: PLC0415

    raise typer.Exit(run_bench(context.args))


@app.command(context_settings=PASS_ON)
def sim(context: typer.Context) -> None:
    """Replay simulated clusters by seed."""
    from .develop import run_sim  # noqa: PLC0415

    raise typer.Exit(run_sim(context.args))


@app.command()
def backup(  # noqa: PLR0917 - options, never passed by position
    file: Annotated[str, typer.Argument(metavar="FILE", help="Where to; - for a pipe.")],
    directory: DirOption = None,
    kv: StoreOption = None,
    cluster_id: Annotated[
        str, typer.Option("--cluster-id", help="Of the cluster in the store of --kv.")
    ] = "",
    pause: Annotated[
        bool,
        typer.Option(
            "--pause",
            help="Hold up changes of metadata meanwhile; a large store on FoundationDB needs it.",
        ),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Write all metadata into a file, at one state, while the cluster works."""
    from .backup import backup as run  # noqa: PLC0415

    run(file, _store(directory, kv, cluster_id), may_pause=pause, as_json=as_json)


@app.command()
def restore(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A backup; - for a pipe.")],
    directory: DirOption = None,
    kv: StoreOption = None,
    check: Annotated[bool, typer.Option("--check", help="Only verify the file.")] = False,
) -> None:
    """Write a backup into an empty store; with --dir and --kv, the stopped cluster moves there."""
    from .backup import restore as run  # noqa: PLC0415

    goal = _directory(directory) if directory is not None or kv is None else None
    run(file, goal, kv, is_check=check)


@app.command()
def fsck(  # noqa: PLR0917 - options, never passed by position
    directory: DirOption = None,
    kv: StoreOption = None,
    cluster_id: Annotated[
        str, typer.Option("--cluster-id", help="Of the cluster in the store of --kv.")
    ] = "",
    repair: Annotated[
        bool, typer.Option("--repair", help="Put right what can be, and check again.")
    ] = False,
    remove_chunks: Annotated[
        bool,
        typer.Option("--remove-chunks", help="Repair, and remove chunks that belong to no file."),
    ] = False,
    pause: Annotated[
        bool,
        typer.Option(
            "--pause",
            help="Hold up changes of metadata meanwhile; a large store on FoundationDB needs it.",
        ),
    ] = False,
    fast: Annotated[
        bool, typer.Option("--fast", help="Do not leave half of the time to others.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Check the namespace, usage and chunks of a cluster, while it works."""
    from .fsck import fsck as run  # noqa: PLC0415
    from .store_access import managers_of  # noqa: PLC0415

    code = run(
        _store(directory, kv, cluster_id),
        managers_of(_running(directory)) if kv is None else [],
        is_repair=repair,
        removes_chunks=remove_chunks,
        as_json=as_json,
        may_pause=pause,
        is_paced=not fast,
    )
    raise typer.Exit(code)


@app.command("fsck-disk")
def fsck_disk(
    path: Annotated[Path, typer.Argument(metavar="PATH", help="The disk's directory.")],
    repair: Annotated[
        bool,
        typer.Option("--repair", help="Put right what can be; mark chunks with bad bytes."),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
    no_data: Annotated[
        bool, typer.Option("--no-data", help="Compare the records only, read no data.")
    ] = False,
) -> None:
    """Check a disk that no process uses: every record, block and checksum."""
    from .fsck_disk import fsck_disk as run  # noqa: PLC0415

    raise typer.Exit(run(path, is_repair=repair, as_json=as_json, has_data=not no_data))


@app.command(context_settings=PASS_ON | {"help_option_names": []}, options_metavar="[ROW] ...")
def torture(context: typer.Context) -> None:
    """Kill, stop, cut and damage a real cluster under load, and check every byte."""
    from .develop import run_torture  # noqa: PLC0415

    run_torture(context.args)


GROUPS: Final[dict[str, Callable[[], typer.Typer]]] = {}
"""Commands with an application of their own, loaded when it is used."""


def _group(load: Callable[[], typer.Typer]) -> Callable[[], typer.Typer]:
    """Register a command that passes everything on to the application that `load` returns."""
    name = load.__name__.removeprefix("_")

    def run(context: typer.Context) -> None:
        load()(context.args, prog_name=f"ember {name}")

    metavar = "PATH ..." if name == "rm" else "COMMAND ..."
    settings: dict[str, Any] = PASS_ON | {"help_option_names": []}
    app.command(name, help=load.__doc__, context_settings=settings, options_metavar=metavar)(run)
    GROUPS[name] = load
    return load


@_group
def _admin() -> typer.Typer:
    """Look into a running cluster, and change it."""
    from .admin.commands import admin  # noqa: PLC0415

    return admin


@_group
def _cluster() -> typer.Typer:
    """Install, grow and upgrade a cluster of many machines."""
    from .deploy.commands import cluster  # noqa: PLC0415

    return cluster


@_group
def _metrics() -> typer.Typer:
    """Where processes show what they measure, for Prometheus."""
    from .metrics_commands import metrics  # noqa: PLC0415

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
    """Users of a closed cluster, and the tokens that let them in."""
    from .user_commands import user  # noqa: PLC0415

    return user


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


@app.command()
def path(
    inode: Annotated[int, typer.Argument(help="As `ls -i` and the event log show it.")],
    directory: DirOption = None,
) -> None:
    """Print the path of an inode: of a directory at once, of a file by listing the directory where it counts."""
    from .quota_commands import connected  # noqa: PLC0415

    with connected(directory) as fs:
        for found in fs.paths_of(inode):
            typer.echo(found)


@app.command()
def warmup(
    paths: Annotated[list[str], typer.Argument(metavar="PATH...", help="Files or directories.")],
    after: Annotated[
        str, typer.Option(help="Leave out what an interrupted run has finished, up to this path.")
    ] = "",
    directory: DirOption = None,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for programs.")] = False,
) -> None:
    """Have the storage nodes read files into their page caches, on every replica."""
    from .warmup_command import warm_up  # noqa: PLC0415

    warm_up(paths, directory=directory, after=after, as_json=as_json)


@app.command()
def top(
    directory: DirOption = None,
    interval: Annotated[float, typer.Option(min=0.1, help="Seconds between two readings.")] = 1.0,
    count: Annotated[int | None, typer.Option(min=1, help="End after so many.")] = None,
) -> None:
    """Show what every process of a cluster does, second by second."""
    from .top import run_top  # noqa: PLC0415

    run_top(_running(directory), interval_s=interval, count=count)


@app.command()
def stat(
    mount: MountArgument,
    interval: Annotated[float, typer.Option(min=0.1, help="Seconds between two lines.")] = 1.0,
    count: Annotated[int | None, typer.Option(min=1, help="End after so many lines.")] = None,
) -> None:
    """Print what a mount does, a line per second."""
    from .mount_stat import run_stat  # noqa: PLC0415

    run_stat(mount, interval_s=interval, count=count)


@app.command()
def profile(
    mount: MountArgument,
    interval: Annotated[
        float, typer.Option(min=0.1, max=10, help="Seconds between two readings.")
    ] = 1.0,
    count: Annotated[int | None, typer.Option(min=1, help="End after so many.")] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="For programs: an object per line.")
    ] = False,
) -> None:
    """Show what the programs on a mount do: calls, bytes and times per process, and the files used most."""
    from .profile import run_profile  # noqa: PLC0415

    run_profile(mount, interval_s=interval, count=count, as_json=as_json)


@app.command()
def probe(
    config: ConfigOption,
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds to wait for an answer.")] = 5.0,
    serving: Annotated[
        bool, typer.Option("--serving", help="Also ask the manager: do all targets of the node?")
    ] = False,
) -> None:
    """Ask the process of a configuration file, on its machine, whether it answers; exit code 1: no."""
    from .probe import probe as ask  # noqa: PLC0415

    typer.echo(ask(config, timeout_s=timeout, has_to_serve=serving))


@app.command()
def version() -> None:
    """Print the release."""
    from .release import RELEASE  # noqa: PLC0415

    typer.echo(RELEASE)


def main() -> None:
    """Entry point: run a command, turn errors into one line."""
    try:
        check_interpreter()
        app()
    except FsError as error:
        sys.exit(f"ember: {error_line(error)}")
    except BaseExceptionGroup as group:
        leaf = first_error(group)
        if not isinstance(leaf, FsError):
            raise
        sys.exit(f"ember: {error_line(leaf)}")
    except OSError as error:
        sys.exit(f"ember: {error.filename or 'error'}: {error.strerror}")
    except KeyboardInterrupt:
        sys.stderr.write("ember: interrupted\n")
        os._exit(130)


if __name__ == "__main__":
    main()
