"""Which cluster of this machine a command is about:
that of --dir, that whose mount a path is on, or the one that runs.

Asks supervisors whether they answer, and /proc what else runs
(machine/running.py).  Starts and stops nothing.
"""

from pathlib import Path

from ...schema.status import FsError, Status
from ..machine.cluster_dir import ClusterDir, default_directory, load_record
from ..machine.running import cluster_directories
from ..supervision import supervisor_link


def chosen_directory(given: Path | None, *, by: str = "--dir") -> ClusterDir:
    """Return the cluster that is meant: --dir, else the default one, else the only one that runs.

    Args:
        given: its directory, if one was given.
        by: how who asks can give it.

    Raises:
        FsError: BAD_CLUSTER_DIR when none is given and several others run.
    """
    default = ClusterDir((given or default_directory()).absolute())
    if given is not None or supervisor_link.is_answering(default):
        return default
    found = [path for path in cluster_directories() if path != default.path]
    if len(found) > 1:
        listed = ", ".join(map(str, found))
        raise FsError(
            Status.BAD_CLUSTER_DIR,
            f"{default.path} does not run, and there are several others; choose with {by}: "
            f"{listed}",
        )
    return ClusterDir(found[0]) if found else default


def directory_of_cluster(cluster_id: str) -> ClusterDir | None:
    """Return the directory of a cluster that runs on this machine
    and that the caller may look into, None if there is none.
    """
    for path in dict.fromkeys([default_directory().absolute(), *cluster_directories()]):
        directory = ClusterDir(path)
        try:
            record = load_record(directory)
            if record is None or record.cluster_id != cluster_id:
                continue
            if supervisor_link.is_answering(directory):
                return directory
        except FsError:
            # Somebody else's, or damaged: not the one that is meant, as far as can be known.
            continue
    return None
