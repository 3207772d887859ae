"""The `ember` command.  Each command imports what it needs when it runs,
so that `ember status` is quick.

An operating error is one line on stderr, "ember: ...", and exit code 1; wrong usage is exit code 2.
"""

from .terminal import early_interrupt  # isort: skip # noqa: F401 - before all others
import json
import os
import signal
import sys
from typing import TYPE_CHECKING, Annotated, Final, NoReturn

import typer

from ..schema.status import FsError, Status
from .commands import developer_commands, groups, service_commands, store_commands
from .commands.sections import SectionedGroup
from .machine.cluster_dir import ClusterDir, default_mount_point
from .machine.process_id import ProcessId, process_id
from .reach.options import (
    HF3FS_TREE,
    ClusterFileOption,
    ConfigOption,
    DirOption,
    Hf3fsTreeOption,
    MountArgument,
    MountOption,
    directory_of,
    running_cluster,
)
from .terminal.errors import check_interpreter, error_line, first_error, make_streams_usable

if TYPE_CHECKING:
    from .local.bring_up import UpOptions

COMPLETE_VARIABLE: Final = "_EMBER_COMPLETE"
"""In the environment when a shell asks what may follow."""

app = typer.Typer(
    name="ember",
    cls=SectionedGroup,
    help="EmberFS: a distributed file system for machine-learning clusters.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _print_release(wanted: bool) -> None:
    if wanted:
        version()
        raise typer.Exit


@app.callback()
def entry(
    _release: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_release, is_eager=True, help="Print the release."
        ),
    ] = False,
) -> None:
    """EmberFS: a distributed file system for machine-learning clusters."""


@app.command()
def up(  # noqa: PLR0917 - options, never passed by position
    directory: DirOption = None,
    mount: MountOption = None,
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
    hf3fs_tree: Annotated[
        bool | None,
        typer.Option(
            "--hf3fs-tree/--no-hf3fs-tree", help=HF3FS_TREE, show_default="as before, at first not"
        ),
    ] = None,
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
    from .local.bring_up import UpOptions, bring_up  # noqa: PLC0415
    from .stores.foundationdb import parse_kv  # noqa: PLC0415

    _end_like_ctrl_c()
    options = UpOptions(
        directory_of(directory).path,
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
        has_hf3fs_tree=hf3fs_tree,
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
    """Let whatever asks this process to end run the same clean-up as Ctrl-C,
    also in the background; who began it with `nohup` has said that a closed terminal does not.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if number is not signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler)


def _run_in_foreground(options: "UpOptions") -> None:
    """Bring a cluster up, wait until asked to end, stop it."""
    from .local.bring_down import bring_down, wait_end  # noqa: PLC0415
    from .local.bring_up import bring_up  # noqa: PLC0415
    from .supervision import supervisor_link  # noqa: PLC0415

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
    from .local.bring_down import bring_down  # noqa: PLC0415

    bring_down(directory_of(directory), wipe=wipe)


@app.command()
def status(
    directory: DirOption = None,
    config: ClusterFileOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for programs.")] = False,
) -> None:
    """Show processes, chains, mounts and space; of a deployed cluster what its manager knows."""
    from .monitoring.status_view import show  # noqa: PLC0415
    from .reach.configured import configured_file  # noqa: PLC0415

    if config is None and (directory is not None or configured_file() is None):
        show(running_cluster(directory), as_json=as_json)
        return
    from .commands.deployed_status import show_deployed  # noqa: PLC0415

    show_deployed(config, as_json=as_json)


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
    hf3fs_tree: Hf3fsTreeOption = False,
    subdir: Annotated[
        str,
        typer.Option(
            metavar="PATH", help="Mount this directory of the file system alone.", show_default=""
        ),
    ] = "",
) -> None:
    """Mount a running cluster at one more place."""
    from .local.bring_down import mount as mount_at  # noqa: PLC0415
    from .local.cluster_plan import MountWishes  # noqa: PLC0415
    from .mounts.mount_source import tidy_subdir  # noqa: PLC0415

    mount_at(
        running_cluster(directory),
        mount_point.absolute(),
        MountWishes(has_hf3fs_tree=hf3fs_tree, subdir=tidy_subdir(subdir)),
        recovers=recover,
    )


@app.command()
def umount(mount_point: MountArgument, directory: DirOption = None) -> None:
    """Flush and end a mount, of whichever cluster is mounted there."""
    from .local.bring_down import unmount  # noqa: PLC0415

    unmount(directory_of(directory) if directory else None, mount_point.absolute())


for part in (service_commands, store_commands, groups, developer_commands):
    app.add_typer(part.app)


@app.command()
def path(
    inode: Annotated[
        int,
        typer.Argument(
            metavar="INODE", min=0, max=2**64 - 1, help="As `ls -i` and the event log show it."
        ),
    ],
    directory: DirOption = None,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for programs.")] = False,
) -> None:
    """Print the path of an inode: of a directory at once,
    of a file by listing the directory where it counts.
    """
    from .reach.meant_cluster import connected  # noqa: PLC0415
    from .terminal.cells import say_name  # noqa: PLC0415

    with connected(directory) as fs:
        try:
            found = fs.paths_of(inode)
        except FsError as error:
            if error.status is not Status.STALE:
                raise
            raise FsError(Status.NOT_FOUND, f"inode {inode}: removed, or never made") from error
    for line in [json.dumps(found)] if as_json else found:
        say_name(line)


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
    from .commands.warmup_command import warm_up  # noqa: PLC0415

    _end_like_ctrl_c()  # who bounds its time is told, too, how to go on
    warm_up(paths, directory=directory, after=after, as_json=as_json)


@app.command()
def top(
    directory: DirOption = None,
    interval: Annotated[float, typer.Option(min=0.1, help="Seconds between two readings.")] = 1.0,
    count: Annotated[int | None, typer.Option(min=1, help="End after so many readings.")] = None,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="For programs: a list per line.")] = False,
) -> None:
    """Show what every process of a cluster does, second by second."""
    from .monitoring.top import run_top  # noqa: PLC0415

    run_top(running_cluster(directory), interval_s=interval, count=count, as_json=as_json)


@app.command()
def stat(
    mount: MountArgument,
    interval: Annotated[float, typer.Option(min=0.1, help="Seconds between two lines.")] = 1.0,
    count: Annotated[int | None, typer.Option(min=1, help="End after so many lines.")] = None,
) -> None:
    """Print what a mount does, a line per second."""
    from .monitoring.mount_stat import run_stat  # noqa: PLC0415

    run_stat(mount, interval_s=interval, count=count)


@app.command()
def profile(
    mount: MountArgument,
    interval: Annotated[
        float, typer.Option(min=0.1, max=10, help="Seconds between two readings.")
    ] = 1.0,
    count: Annotated[int | None, typer.Option(min=1, help="End after so many readings.")] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="For programs: an object per line.")
    ] = False,
) -> None:
    """Show what the programs on a mount do: calls, bytes and times per process,
    and the files used most.
    """
    from .monitoring.profile import run_profile  # noqa: PLC0415

    run_profile(mount, interval_s=interval, count=count, as_json=as_json)


@app.command()
def probe(
    config: ConfigOption,
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds to wait for an answer.")] = 5.0,
    serving: Annotated[
        bool, typer.Option("--serving", help="Also ask the manager: do all targets of the node?")
    ] = False,
) -> None:
    """Ask the process of a configuration file, on its machine, whether it answers;
    exit code 1: no.
    """
    from .monitoring.probe import probe as ask  # noqa: PLC0415

    typer.echo(ask(config, timeout_s=timeout, has_to_serve=serving))


@app.command()
def version(
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for programs.")] = False,
) -> None:
    """Print the release, and which of its kernels are compiled on this machine."""
    from ..kernels.in_use import kernel_facts, kernels_in_use  # noqa: PLC0415
    from .process.release import RELEASE  # noqa: PLC0415

    if as_json:
        typer.echo(json.dumps({"release": RELEASE, "kernels": kernel_facts()}))
    else:
        typer.echo(f"{RELEASE}\nkernels: {kernels_in_use()}")


groups.tell_whole_lines(app)  # behind the last command


def main() -> None:
    """Entry point: run a command, turn errors into one line."""
    try:
        make_streams_usable()
        check_interpreter()
        if COMPLETE_VARIABLE in os.environ:
            groups.load_all(app)
        app()
    except (FsError, OSError, KeyboardInterrupt, BaseExceptionGroup) as error:
        leaf = first_error(error)
        if isinstance(leaf, FsError | OSError):
            sys.exit(f"ember: {error_line(leaf)}")
        if not isinstance(leaf, KeyboardInterrupt):
            raise
        _end_interrupted()
    except SystemExit as ended:
        # Typer ends an interrupted command without a word.
        if not isinstance(getattr(ended.__context__, "__cause__", None), KeyboardInterrupt):
            raise
        _end_interrupted()


def _end_interrupted() -> NoReturn:
    """Say that the command was interrupted, and end at once: no thread is waited for."""
    sys.stderr.write("ember: interrupted\n")
    os._exit(130)


if __name__ == "__main__":
    main()
