"""A cluster that has been made, and whose metadata store holds nothing:
it was removed, its disk is not mounted, or another was given.

Purpose: no empty namespace is ever made over disks that hold files.  Nothing would show that the
names are gone, a restore would find the store taken, and new inodes would get the numbers, and
with them the chunks, of old ones.

Invariant: the mark stands in a cluster's directory from when its first chains are in its store on;
only `ember down --wipe` takes it away.

What this module does not do: clusters that are deployed process by
process, which have no such directory.
"""

from pathlib import Path
from typing import Final

from ...kv.rocksdb_store import holds_nothing
from ...runtime.config_file import readable_config
from ...runtime.durable_file import write_durable
from ...schema.status import FsError, Status
from ..machine.cluster_dir import CONTROL, KV, ClusterDir

_MARK: Final = "Chains of this cluster are in its metadata store: without them it does not start.\n"


def note_made(directory: ClusterDir) -> None:
    """Remember that the store knows chains; raises FsError(BAD_CLUSTER_DIR)."""
    if directory.made_path.exists():
        return
    try:
        write_durable(directory.made_path, _MARK)
    except OSError as error:
        raise FsError(Status.BAD_CLUSTER_DIR, f"{directory.made_path}: {error.strerror}") from error


def check_files(directory: ClusterDir) -> None:
    """Look for the files of the embedded store before anybody opens it, and so makes it anew.

    Raises:
        FsError: KV_EMPTY.
    """
    if not directory.made_path.exists():
        return
    for name in (CONTROL, KV):
        config = readable_config(directory.config_path(name))
        if config is not None and config.kv.engine == "rocksdb" and holds_nothing(config.kv.path):
            raise _is_empty(directory, config.kv.path, "it is not there: is its disk mounted?")


def check_chains(directory: ClusterDir, *, has_chains: bool) -> None:
    """Look at what managers found in their store, whichever that is.

    Raises:
        FsError: KV_EMPTY.
    """
    if has_chains or not directory.made_path.exists():
        return
    raise _is_empty(
        directory,
        "the store",
        "it knows no chain: another one, or emptied. Move it away before a restore",
    )


def _is_empty(directory: ClusterDir, what: Path | str, why: str) -> FsError:
    return FsError(
        Status.KV_EMPTY,
        f"{what}: {why}; bring it back, or restore a backup of it: "
        f"{directory.command('restore FILE')}; only to begin anew, without the files: "
        f"{directory.command('down --wipe')}",
    )
