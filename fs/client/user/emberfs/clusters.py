"""Which cluster a URL or a folder means, and this process's connections, one for each cluster and user.

Needs `fs`, the file system's own package.

Invariants:
    - A connection is shared by all threads of a process, opened at its first use and closed when the process ends.
    - The child of a fork opens connections of its own.
    - Before connections are closed, every file that is still open for writing is closed.

What this module does not do: read or write anything.
"""

import atexit
import os
import threading
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from fs.app.cluster_dir import ClusterDir, mgmtd_addresses, need_record
from fs.app.running import chosen_directory
from fs.client.blocking import BlockingFs, connect_blocking
from fs.client.entries import Identity
from fs.schema.status import FsError, Status

PROTOCOLS: Final = ("ember", "hf3fs")


@dataclass(frozen=True, slots=True)
class Place:
    """A cluster, seen as one user."""

    addresses: tuple[str, ...]
    """Of its managers."""
    cluster_id: str
    identity: Identity


def split_url(url: str) -> tuple[str, str, str]:
    """Return (cluster id, hosts, path) of `ember://[CLUSTER_ID@][HOST:PORT,...]/PATH`, or of just a path.

    The path begins with a slash, and ends with none.

    Raises:
        ValueError: what stands before the path is no list of hosts with ports.
    """
    path, authority = url, ""
    for protocol in PROTOCOLS:
        if url.startswith(f"{protocol}://"):
            authority, _, path = url[len(protocol) + 3 :].partition("/")
    cluster_id, _, hosts = authority.rpartition("@")
    if authority and not all(host.rpartition(":")[2].isdigit() for host in hosts.split(",")):
        raise ValueError(
            f"{url!r}: {hosts!r} is no HOST:PORT; a path begins with a third slash, as in ember:///data"
        )
    return cluster_id, hosts, "/" + "/".join(part for part in path.split("/") if part)


def find_place(
    *,
    cluster: str | os.PathLike[str] | None = None,
    hosts: str | Sequence[str] = (),
    cluster_id: str = "",
    identity: Identity | None = None,
) -> Place:
    """Return the cluster that is meant.

    Args:
        cluster: folder of a cluster that `ember up` started.
        hosts: addresses of managers, `HOST:PORT` or `unix:/PATH`, as a list or separated by commas.  Without these
            two: the cluster that `ember` commands would find on this machine.
        cluster_id: of the cluster that is expected at the hosts.
        identity: on whose behalf; default: this process's user.

    Raises:
        OSError: there is no such cluster.
        ValueError: arguments that do not go together.
    """
    identity = identity or Identity.of_process()
    if hosts:
        listed = hosts.split(",") if isinstance(hosts, str) else hosts
        if cluster is not None or not cluster_id:
            raise ValueError("with hosts, say cluster_id=..., and not cluster=...")
        addresses = [h if h.startswith(("unix:", "tcp:")) else f"tcp:{h}" for h in listed]
        return Place(tuple(addresses), cluster_id, identity)
    with os_errors(str(cluster or "")):
        directory = (
            chosen_directory(None) if cluster is None else ClusterDir(Path(cluster).absolute())
        )
        record = need_record(directory)
        return Place(tuple(mgmtd_addresses(directory, record)), record.cluster_id, identity)


# ---- connections of this process ------------------------------------------------------------------


class Closable(Protocol):
    """An open file."""

    def close(self) -> None:
        """Write what is buffered, and give it up."""
        ...


class _Process:
    """What belongs to one process: a fork leaves the child with a new one."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.connections: dict[Place, BlockingFs] = {}
        self.writing: weakref.WeakSet[Closable] = weakref.WeakSet()


_process = _Process()


def connection(place: Place) -> BlockingFs:
    """Return this process's connection to a cluster, made if there is none that works.

    Raises:
        FsError: the cluster does not answer, or is another one.
    """
    own = _process
    with own.lock:
        found = own.connections.get(place)
        if found is None or not found.is_usable:
            found = connect_blocking(place.addresses, place.cluster_id, identity=place.identity)
            own.connections[place] = found.__enter__()
        return found


def close_at_exit(file: Closable) -> None:
    """Have a file closed before the connections are, unless nothing refers to it by then."""
    _process.writing.add(file)


@atexit.register
def disconnect() -> None:
    """Close all files that are open for writing, and all connections of this process.  They are opened again on use."""
    own = _process
    for file in list(own.writing):
        file.close()
    with own.lock:
        for found in own.connections.values():
            found.close()
        own.connections.clear()


def _forget() -> None:
    global _process  # noqa: PLW0603 - the parent's lock may be held, and its connections are not ours
    _process = _Process()


os.register_at_fork(after_in_child=_forget)


# ---- errors ---------------------------------------------------------------------------------------


def os_error(error: FsError, path: str, second_path: str | None = None) -> OSError:
    """Return what a mount would have shown, of the class that its errno has (FileNotFoundError ...)."""
    names = (path, None, second_path) if second_path is not None else (path,)
    return OSError(error.errno, str(error), *names)


@contextmanager
def os_errors(path: str, second_path: str | None = None) -> Iterator[None]:
    """Turn the FsErrors of a block into OSErrors that name a path."""
    try:
        yield
    except FsError as error:
        raise os_error(error, path, second_path) from error


def is_missing(error: FsError) -> bool:
    """Return whether an error says that a path names nothing."""
    return error.status in {Status.NOT_FOUND, Status.NOT_DIRECTORY}
