"""Which cluster of this machine a command is about when no --dir is given.

Asks supervisors whether they answer, and /proc what else runs (running.py).  Starts and stops nothing.
"""

from pathlib import Path

from ..schema.status import FsError, Status
from . import supervisor_link
from .cluster_dir import ClusterDir, default_directory
from .running import cluster_directories


def chosen_directory(given: Path | None) -> ClusterDir:
    """Return the cluster that is meant: --dir, else the default one, else the only one that runs.

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
            f"{default.path} does not run, and there are several others; choose with --dir: {listed}",
        )
    return ClusterDir(found[0]) if found else default
