"""Which configuration file says what cluster is meant, when a command was told nothing:
on a machine of a deployed cluster.

    EMBERFS_CONFIG           a file, as of --config
    /etc/emberfs/*.toml      where the servers and mounts of a deployed cluster have theirs

A cluster of `ember up` that is on this machine comes before
/etc/emberfs: who made it there means it.

Does not choose between clusters of this machine (which_cluster.py).  Decision:
specs/decisions/0202-which-cluster-on-a-server.md.
"""

import os
from pathlib import Path
from typing import Final

from ...runtime.config_file import readable_config
from ...schema.config import ProcessConfig
from ...schema.status import FsError, Status
from ..machine.cluster_dir import ClusterDir, default_directory
from ..machine.running import cluster_directories

CONFIG_VARIABLE: Final = "EMBERFS_CONFIG"
FOLDER: Final = Path("/etc/emberfs")


def configured_file() -> Path | None:
    """Return the file that names the cluster of this machine;
    None: a cluster of `ember up` is meant, or none is known.

    Raises:
        FsError: BAD_CONFIG when the files are of several clusters.
    """
    named = os.environ.get(CONFIG_VARIABLE)
    if named:
        return Path(named)
    if has_local_cluster():
        return None
    return file_in(FOLDER)


def has_local_cluster() -> bool:
    """True if a cluster of `ember up` is where it usually is, or runs elsewhere on this machine."""
    usual = ClusterDir(default_directory())
    is_there = usual.record_path.exists() or usual.wiping_path.exists()
    return is_there or bool(cluster_directories())


def file_in(folder: Path) -> Path | None:
    """Return the file of a folder that proves most: one with a key, else one with a token;
    None if none names managers.

    Raises:
        FsError: BAD_CONFIG when the files are of several clusters.
    """
    try:
        found = {path: readable_config(path) for path in sorted(folder.glob("*.toml"))}
    except OSError:  # a folder that we may not read names nothing to us
        return None
    known = {p: c for p, c in found.items() if c is not None and c.process.mgmtd_addresses}
    names = sorted({config.process.cluster_id for config in known.values()})
    if len(names) > 1:
        detail = (
            f"the files in {folder} are of several clusters ({', '.join(names)}); choose with "
            f"--config or {CONFIG_VARIABLE}"
        )
        raise FsError(Status.BAD_CONFIG, detail)
    return min(known, key=lambda path: (_rank(known[path]), path), default=None)


def _rank(config: ProcessConfig) -> int:
    if config.auth.key_file:
        return 0
    return 1 if config.auth.token_file else 2
