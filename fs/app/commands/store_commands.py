"""`ember backup`, `restore`, `fsck`, `fsck-disk`:
metadata as a whole, and disks that no process uses.
"""

from pathlib import Path
from typing import Annotated

import typer

from ...schema.status import FsError, Status
from ..reach.options import (
    ClusterFileOption,
    DirOption,
    PauseOption,
    StoreClusterOption,
    StoreOption,
    directory_of,
    managers_here,
    store_of,
)

app = typer.Typer()


@app.command()
def backup(  # noqa: PLR0917 - options, never passed by position
    file: Annotated[str, typer.Argument(metavar="FILE", help="Where to; - for a pipe.")],
    directory: DirOption = None,
    kv: StoreOption = None,
    cluster_id: StoreClusterOption = "",
    config: ClusterFileOption = None,
    pause: PauseOption = False,
    force: Annotated[
        bool, typer.Option("--force", help="Replace FILE where it is there already.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for programs.")] = False,
) -> None:
    """Write all metadata into a new file, at one state, while the cluster works."""
    from ..upkeep.backup import backup as run  # noqa: PLC0415

    store = store_of(directory, kv, cluster_id, config)
    run(file, store, may_pause=pause, may_replace=force, as_json=as_json)


@app.command()
def restore(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A backup; - for a pipe.")],
    directory: DirOption = None,
    kv: StoreOption = None,
    check: Annotated[bool, typer.Option("--check", help="Only verify the file.")] = False,
) -> None:
    """Write a backup into an empty store; with --dir and --kv, the stopped cluster moves there."""
    from ..upkeep.backup import restore as run  # noqa: PLC0415

    goal = directory_of(directory) if directory is not None or kv is None else None
    if goal is not None and directory is None and not check and not goal.record_path.exists():
        detail = (
            f"{goal.path} holds no cluster of `ember up`: say where the backup goes by --kv "
            "rocksdb:PATH, or by --dir"
        )
        raise FsError(Status.BAD_CONFIG, detail)
    run(file, goal, kv, is_check=check)


@app.command()
def fsck(  # noqa: PLR0917 - options, never passed by position
    directory: DirOption = None,
    kv: StoreOption = None,
    cluster_id: StoreClusterOption = "",
    config: ClusterFileOption = None,
    repair: Annotated[
        bool, typer.Option("--repair", help="Put right what can be, and check again.")
    ] = False,
    remove_chunks: Annotated[
        bool,
        typer.Option("--remove-chunks", help="Repair, and remove chunks that belong to no file."),
    ] = False,
    remove_damaged: Annotated[
        bool,
        typer.Option(
            "--remove-damaged",
            help="Repair, and remove inodes that cannot be read, with their names.",
        ),
    ] = False,
    pause: PauseOption = False,
    fast: Annotated[
        bool, typer.Option("--fast", help="Do not leave half of the time to others.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for programs.")] = False,
) -> None:
    """Check the namespace, usage and chunks of a cluster, while it works."""
    from ..upkeep.fsck import fsck as run  # noqa: PLC0415

    is_alone = kv is not None and config is None
    code = run(
        store_of(directory, kv, cluster_id, config),
        None if is_alone else managers_here(directory, config),
        is_repair=repair,
        removes_chunks=remove_chunks,
        removes_damaged=remove_damaged,
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
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for programs.")] = False,
    no_data: Annotated[
        bool, typer.Option("--no-data", help="Compare the records only, read no data.")
    ] = False,
) -> None:
    """Check a disk that no process uses: every record, block and checksum."""
    from ..upkeep.fsck_disk import fsck_disk as run  # noqa: PLC0415

    raise typer.Exit(run(path, is_repair=repair, as_json=as_json, has_data=not no_data))
