"""Options that many commands of `ember` have, and what they mean."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from ...schema.status import FsError, Status
from ..machine.cluster_dir import ClusterDir, default_directory, default_mount_point

if TYPE_CHECKING:
    from ..stores.store_access import StoreChoice

DirOption = Annotated[
    Path | None,
    typer.Option("--dir", help="The cluster's directory.", show_default=str(default_directory())),
]
StoreOption = Annotated[
    str | None,
    typer.Option(metavar="STORE", help="rocksdb:PATH, remote:ADDRESS or foundationdb:CLUSTERFILE."),
]
StoreClusterOption = Annotated[
    str, typer.Option("--cluster-id", help="Of the cluster in the store of --kv.")
]
PauseOption = Annotated[
    bool,
    typer.Option(
        "--pause",
        help="Hold up changes of metadata meanwhile; a large store on FoundationDB needs it.",
    ),
]
HF3FS_TREE: Final = "Offer programs written for 3FS its 3fs-virt: a link in rm-rf deletes."
Hf3fsTreeOption = Annotated[bool, typer.Option("--hf3fs-tree", help=HF3FS_TREE)]
ClusterFileOption = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help="Of a process of a deployed cluster; it says where the manager is.",
    ),
]
ConfigOption = Annotated[Path, typer.Option("--config", help="Configuration file (TOML).")]
# Both are parsed by `Path`: typer would ask the file system for what is there, which waits for a
# cluster that hangs, and that is when somebody unmounts.
MountArgument = Annotated[
    Path,
    typer.Argument(
        parser=Path,
        metavar="MOUNT_POINT",
        help="Where a cluster is mounted, or is to be: an empty directory.",
    ),
]
MountOption = Annotated[
    Path | None,
    typer.Option(
        parser=Path,
        metavar="DIRECTORY",
        help="An empty directory to mount at.",
        show_default=str(default_mount_point()),
    ),
]
PASS_ON: Final[dict[str, Any]] = {"allow_extra_args": True, "ignore_unknown_options": True}


def directory_of(given: Path | None) -> ClusterDir:
    """Return the cluster of --dir, else the one of this machine."""
    return ClusterDir((given or default_directory()).absolute())


def running_cluster(given: Path | None) -> ClusterDir:
    """Return the cluster to look at: without --dir, also the only one that runs elsewhere.

    Raises:
        FsError: BAD_CLUSTER_DIR; NOT_SUPPORTED: this machine belongs to a deployed
            cluster, and has none of its own.
    """
    from .configured import configured_file, has_local_cluster  # noqa: PLC0415
    from .which_cluster import chosen_directory  # noqa: PLC0415

    file = None if given is not None or has_local_cluster() else configured_file()
    if file is not None:
        detail = (
            f"this is for clusters of `ember up`, and {file} is of a deployed one: ember status "
            "and ember admin doctor tell of it, and each process shows its metrics at "
            "process.metrics_address"
        )
        raise FsError(Status.NOT_SUPPORTED, detail)
    return chosen_directory(given)


def managers_here(given: Path | None, config: Path | None) -> list[str]:
    """Return where the managers of the cluster that is meant listen;
    nothing if it is a local one that does not run.
    """
    from .where import find  # noqa: PLC0415

    return list(find(given, config).addresses)


def store_of(
    given: Path | None, kv: str | None, cluster_id: str, config: Path | None = None
) -> "StoreChoice":
    """Return the store that is meant: that of --kv, else that of the cluster."""
    from ..stores.store_access import StoreChoice, parse_store, store_of_cluster  # noqa: PLC0415
    from .configured import configured_file  # noqa: PLC0415
    from .where import auth_of_file, find, store_of_file  # noqa: PLC0415

    if kv is not None and config is not None:
        named = find(None, config)
        return StoreChoice(parse_store(kv), named.cluster_id, named.auth)
    if config is not None:
        return store_of_file(config, find(None, config).auth)
    if kv is None:
        file = configured_file() if given is None else None
        if file is not None:
            return store_of_file(file, auth_of_file(file))
        return store_of_cluster(running_cluster(given))
    if not cluster_id:
        raise FsError(Status.BAD_CONFIG, "--kv: whose store is it? say --cluster-id, too")
    return StoreChoice(parse_store(kv), cluster_id)
