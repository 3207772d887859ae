"""`open_client`: the batch client that fits a path or a URL."""

import errno
import os
from pathlib import Path

from .batch import BatchClient
from .posix import PosixClient
from .ring import RingClient

_URL = "ember://"
_CLUSTER_FILE = "cluster.json"
"""What the folder of a local cluster has."""


def open_client(path_or_url: str | os.PathLike[str]) -> BatchClient:
    """Return a batch client for where files lie.

    Args:
        path_or_url: `ember://...`, or the folder of a cluster that `ember up` started: a client inside the process, whose
            paths are those of the file system.  A path on an EmberFS mount: one over rings of its daemon.  Any other
            path: one by plain system calls.

    Raises:
        OSError: there is nothing by this name, or nobody answers.
    """
    path = os.fspath(path_or_url)
    is_url = path.startswith(_URL)
    if is_url or (Path(path) / _CLUSTER_FILE).exists():
        from .native import NativeClient  # noqa: PLC0415 - needs the file system's own package

        return NativeClient.of_url(path) if is_url else NativeClient(path)
    try:
        return RingClient(path)
    except OSError as error:
        if error.errno != errno.EOPNOTSUPP:
            raise
        return PosixClient()
