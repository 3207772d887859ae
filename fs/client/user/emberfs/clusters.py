"""Which cluster a URL or a folder means, and this process's connections,
one for each cluster and user.

Needs `fs`, the file system's own package.

Invariants:
    - A connection is shared by all threads of a process, opened at its first use and
      closed when the process ends.
    - The child of a fork opens connections of its own.
    - Before connections are closed, every file that is still open for writing is closed.
    - Credentials come from arguments or the environment, never from a URL, and are in no message.

What this module does not do: read or write anything.
"""

import atexit
import os
import re
import threading
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

from fs.app.machine.cluster_dir import ClusterDir, mgmtd_addresses, need_record, usual_key_file
from fs.app.reach.which_cluster import chosen_directory, directory_of_cluster
from fs.client.blocking import BlockingFs, connect_blocking
from fs.client.entries import Identity
from fs.rpc.credential_files import TOKEN_FILE_VARIABLE, read_token
from fs.rpc.credentials import TOKEN_MARK, Token
from fs.schema.status import FsError, Status

from .urls import PROTOCOLS, is_url

_SECRET_IN_URL: Final = re.compile(rf"^[^/]*:[^/]*@|{TOKEN_MARK}-\d+-[0-9a-f]{{16}}-")
"""In what follows the `://`: user and password, or a token anywhere."""
_HOST_MARKS: Final = frozenset("@:,")
"""What names of folders rarely have, and a cluster's id or hosts with ports always."""
_BY: Final = (
    "cluster=DIRECTORY, or by its id (`ember status --json`) in the URL, ember://CLUSTER_ID@/"
)


@dataclass(frozen=True, slots=True)
class Place:
    """A cluster, seen as one user."""

    addresses: tuple[str, ...]
    """Of its managers."""
    cluster_id: str
    identity: Identity
    token: Token | None = field(default=None, repr=False)
    token_file: str = ""
    """Read anew for every connection, so that its token can be replaced."""
    key_file: str = ""
    """Of the cluster, when no token is named; empty: the environment says what to prove."""


def split_url(url: str) -> tuple[str, str, str]:
    """Return (cluster id, hosts, path) of `ember://[CLUSTER_ID@][HOST:PORT,...]/PATH`,
    or of just a path.

    Without hosts a cluster of this machine is meant: the one of that id, or the only one.

    The path begins with a slash, and ends with none.

    Raises:
        ValueError: what stands before the path is no list of hosts with ports; the
            URL holds a password or token.
    """
    authority, path = _authority_and_path(url)
    cluster_id, _, hosts = authority.rpartition("@")
    is_by_id = bool(cluster_id) and not hosts
    if authority and not (
        is_by_id or all(host.rpartition(":")[2].isdigit() for host in hosts.split(","))
    ):
        raise not_hosts(url, hosts)
    return cluster_id, hosts, path


def split_short_url(url: str) -> tuple[str, str]:
    """Return (name, path) of a URL whose third slash may be missing;
    name: the path's first, if it stands where hosts would.

    Some programs take URLs for paths and clean those: of `ember:///data/f` they
    leave `ember://data/f`.  Only who knows the cluster by other means can tell
    that from hosts without ports.

    Raises:
        ValueError: as of `split_url`.
    """
    authority, path = _authority_and_path(url)
    if not authority or _HOST_MARKS & set(authority):
        return "", split_url(url)[2]
    return authority, f"/{authority}{path}".rstrip("/")


def not_hosts(url: str, hosts: str) -> ValueError:
    """Return the error of a URL that says no hosts where they would stand."""
    return ValueError(
        f"{url!r}: {hosts!r} is no HOST:PORT; a path begins with a third slash, as in ember:///data"
        " (fsspec takes less where cluster= or hosts= is given: some programs lose that slash)"
    )


def _authority_and_path(url: str) -> tuple[str, str]:
    path, authority = url, ""
    for protocol in PROTOCOLS:
        if url.startswith(f"{protocol}://"):
            rest = url[len(protocol) + 3 :]
            if _SECRET_IN_URL.search(rest):
                raise ValueError(
                    "this URL holds a password or token, and URLs end in logs: give token= or "
                    "token_file= as a storage option, or name the token's file in "
                    f"{TOKEN_FILE_VARIABLE}"
                )
            authority, _, path = rest.partition("/")
    return authority, "/" + "/".join(part for part in path.split("/") if part)


def find_place(
    *,
    cluster: str | os.PathLike[str] | None = None,
    hosts: str | Sequence[str] = (),
    cluster_id: str = "",
    identity: Identity | None = None,
    token: str = "",
    token_file: str = "",
) -> Place:
    """Return the cluster that is meant.

    Args:
        cluster: folder of a cluster that `ember up` started.
        hosts: addresses of managers, `HOST:PORT` or `unix:/PATH`, as a list or separated by commas.
            Without these two: the cluster that `ember` commands would find on this machine.
        cluster_id: of the cluster that is expected there; without hosts and folder, of
            one that runs on this machine.
        identity: on whose behalf; default: the token's user, without a token this process's.
        token: what lets a user into a closed cluster.
        token_file: where it stands; default: what EMBERFS_TOKEN_FILE says.  Without
            both: what the environment says.

    Raises:
        OSError: there is no such cluster, or no such file of a token.
        ValueError: arguments that do not go together.
    """
    if cluster is not None and is_url(cluster):
        raise ValueError(
            f"cluster={os.fspath(cluster)!r}: is a URL, not the folder of a cluster: "
            "open_client(URL) of emberfs.opening, or cluster_id=... and hosts=..."
        )
    given = _given_token(token, token_file)
    if not token:
        token_file = token_file or os.environ.get(TOKEN_FILE_VARIABLE, "")
    with os_errors(token_file):
        known = given or (read_token(Path(token_file)) if token_file else None)
    own = Identity.of_process()
    if known is not None and known.uid != own.uid:
        own = Identity(known.uid, own.gid)
    addresses, cluster_id, key_file = _managers(cluster, hosts, cluster_id)
    return Place(
        addresses,
        cluster_id,
        identity or own,
        token=given,
        token_file=token_file,
        key_file=key_file,
    )


def _given_token(token: str, token_file: str) -> Token | None:
    if token and token_file:
        raise ValueError("say token=... or token_file=..., not both")
    given = Token.parse(token)
    if token and given is None:
        raise ValueError("token=... is no token; `ember user token new` makes one")
    return given


def _managers(
    cluster: str | os.PathLike[str] | None, hosts: str | Sequence[str], cluster_id: str
) -> tuple[tuple[str, ...], str, str]:
    """Return the addresses of managers, the id of their cluster and its key file;
    raises as `find_place`.
    """
    if hosts:
        listed = hosts.split(",") if isinstance(hosts, str) else hosts
        if cluster is not None or not cluster_id:
            raise ValueError("with hosts, say cluster_id=..., and not cluster=...")
        addresses = [h if h.startswith(("unix:", "tcp:")) else f"tcp:{h}" for h in listed]
        with os_errors(f"ember://{cluster_id}@{','.join(listed)}/"):
            _check_reachable(addresses)
        return tuple(addresses), cluster_id, ""
    with os_errors(str(cluster or f"ember://{cluster_id}{'@' * bool(cluster_id)}/")):
        if cluster is not None:
            directory = ClusterDir(Path(cluster).absolute())
        elif cluster_id:
            directory = _directory_of(cluster_id)
        else:
            directory = chosen_directory(None, by=_BY)
        record = need_record(directory)
        if cluster_id and record.cluster_id != cluster_id:
            what = f"{directory.path} holds the cluster {record.cluster_id}, not {cluster_id}"
            raise FsError(Status.RPC_WRONG_CLUSTER, what)
        key_file = usual_key_file(directory, record)
        addresses = mgmtd_addresses(directory, record)
        _check_reachable(addresses)
        return tuple(addresses), record.cluster_id, key_file


def _check_reachable(addresses: Sequence[str]) -> None:
    """Refuse sockets that stand where this user may not look: to a client they are managers that do
    not answer yet, and it would try for minutes.

    Raises:
        FsError: ACCESS_DENIED.
    """
    for address in addresses:
        kind, _, path = address.partition(":")
        if kind != "unix":
            return
        try:
            os.stat(path)  # noqa: PTH116 - one that a program is given is no Path
        except PermissionError:
            continue
        except OSError:
            return
        return
    if addresses:
        what = f"{addresses[0]} is for the owner of the cluster alone; others go by a mount"
        raise FsError(Status.ACCESS_DENIED, what)


def _directory_of(cluster_id: str) -> ClusterDir:
    directory = directory_of_cluster(cluster_id)
    if directory is None:
        what = f"no cluster {cluster_id} runs on this machine; of another one name the managers: ember://{cluster_id}@HOST:PORT,.../"
        raise FsError(Status.BAD_CLUSTER_DIR, what)
    return directory


# ---- connections of this process -----------------------------------------------------------------


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
        FsError: the cluster does not answer, is another one, or does not accept the token.
    """
    own = _process
    with own.lock:
        found = own.connections.get(place)
        if found is None or not found.is_usable:
            token = place.token or (
                read_token(Path(place.token_file)) if place.token_file else None
            )
            found = connect_blocking(
                place.addresses,
                place.cluster_id,
                identity=place.identity,
                token=token,
                key_file=place.key_file,
            )
            own.connections[place] = found.__enter__()
        return found


def close_at_exit(file: Closable) -> None:
    """Have a file closed before the connections are, unless nothing refers to it by then."""
    _process.writing.add(file)


@atexit.register
def disconnect() -> None:
    """Close all files that are open for writing, and all connections of this process.

    They are opened again on use.

    Raises:
        OSError: the first failure of closing a file; everything is closed all the same.
    """
    own = _process
    failures: list[OSError] = []
    for file in list(own.writing):
        try:
            file.close()
        except OSError as error:  # the others are to be written all the same
            failures.append(error)
    with own.lock:
        for found in own.connections.values():
            found.close()
        own.connections.clear()
    if failures:
        raise failures[0]


def _forget() -> None:
    global _process  # noqa: PLW0603 - the parent's lock may be held, and its connections are not ours
    _process = _Process()


os.register_at_fork(after_in_child=_forget)


# ---- errors --------------------------------------------------------------------------------------


def os_error(error: FsError, path: str, second_path: str | None = None) -> OSError:
    """Return what a mount would have shown, of the class
    that its errno has (FileNotFoundError ...).
    """
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
