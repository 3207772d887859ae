"""Which batch client fits where files lie:
`open_client` for one path or URL, `connect_for` for those of a loader.
"""

import errno
import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from .batch import BatchClient
from .posix import PosixClient
from .ring import RingClient
from .urls import is_url

PATHS_LOOKED_AT_MAX = 64
"""Of more, one in each folder."""
_CLUSTER_FILE = "cluster.json"
"""What the folder of a local cluster has."""

Connect = Callable[[], BatchClient]
"""Makes a client; can be pickled if what holds it is to be."""


def open_client(path_or_url: str | os.PathLike[str]) -> BatchClient:
    """Return a batch client for where files lie.

    Args:
        path_or_url: `ember://...`, or the folder of a cluster that `ember up` started: a client
            inside the process, whose paths are those of the file system.  A path on an EmberFS
            mount: one over rings of its daemon.  Any other path: one by plain system calls.

    Raises:
        OSError: there is nothing by this name, or nobody answers.
        ImportError: a cluster, and the file system's own package is not
            installed beside this library.
    """
    path = os.fspath(path_or_url)
    if is_url(path) or (Path(path) / _CLUSTER_FILE).exists():
        try:
            from .native import NativeClient  # noqa: PLC0415 - needs the file system's own package
        except ModuleNotFoundError as error:
            said = f"{path}: without a mount this needs the package emberfs, not emberfs-user alone"
            raise ImportError(said) from error
        return NativeClient.of_url(path) if is_url(path) else NativeClient(path)
    try:
        return RingClient(path)
    except OSError as error:
        if error.errno != errno.EOPNOTSUPP:
            raise
        return PosixClient()


def connect_for(paths: Sequence[str | os.PathLike[str]]) -> Connect:
    """Return what makes the client for files, which need not exist yet.

    Of `ember://` URLs one inside the process; on one EmberFS mount one over rings of its daemon;
    else, also where the daemon is out of reach, one by plain system calls.

    Raises:
        ValueError: URLs of several clusters, or URLs and paths.
    """
    urls = {_authority(path) for path in paths if is_url(path)}
    if urls:
        if len(urls) > 1 or not all(is_url(path) for path in paths):
            raise ValueError("one client reaches the files of one cluster, or those of paths")
        return partial(open_client, urls.pop())
    absolute = [os.path.abspath(path) for path in paths]  # noqa: PTH100 - there may be millions
    if len(absolute) > PATHS_LOOKED_AT_MAX:
        absolute = list({os.path.dirname(path): path for path in absolute}.values())  # noqa: PTH120
    return partial(_client_of_paths, absolute)


def _authority(url: str | os.PathLike[str]) -> str:
    """Return a URL without its path."""
    protocol, _, rest = os.fspath(url).partition("://")
    return f"{protocol}://{rest.partition('/')[0]}/"


def _client_of_paths(paths: Sequence[str]) -> BatchClient:
    try:
        folders = sorted({Path(path).resolve().parent for path in paths})
        if len({folder.stat().st_dev for folder in folders}) == 1:
            return RingClient(folders[0])
    except OSError:
        # no such folder, no such mount, or its daemon is out of reach:
        # files tell when they are opened
        return PosixClient()
    return PosixClient()
