"""Which cluster a command about paths means, and a client of it.

It is that of `--dir`, else that whose mount a path is on, else the one that `ember admin --at` or a
file of this machine names, else the one that runs here.

What a path is called within the file system: mounts/paths_on_mounts.py.
"""

import os
from collections.abc import Sequence
from pathlib import Path

from ...client.blocking import BlockingFs, connect_blocking
from ...rpc.credential_files import TOKEN_FILE_VARIABLE, read_token
from ...schema.status import FsError, Status
from ..machine.cluster_dir import (
    ClusterDir,
    load_record,
    mgmtd_addresses,
    need_record,
    usual_key_file,
)
from ..machine.running import mount_daemon_at
from ..mounts.paths_on_mounts import OnMount, mount_of
from ..supervision import supervisor_link
from .configured import configured_file
from .entry import NO_ENTRY, current_entry
from .which_cluster import chosen_directory, directory_of_cluster


def connected(given: Path | None, paths: Sequence[str] = (), *, follow: bool = False) -> BlockingFs:
    """Return a client of the cluster that is meant, to be used in a `with` block.

    Args:
        given: its directory; None: that whose mount `paths` are on, else the one that runs here.
        paths: what it is about.
        follow: links are what they lead to.

    Raises:
        FsError: NOT_RUNNING; INVALID_ARGUMENT: a path is on a mount of another cluster.
    """
    where = mount_of(paths, follow=follow)
    is_elsewhere = current_entry() != NO_ENTRY
    if is_elsewhere or (given is None and where is None and configured_file() is not None):
        check_not_here(paths)
        return _connected_elsewhere(where)
    directory = meant_directory(given, where)
    if directory is None:
        assert where is not None
        return _connected_as_daemon(where)
    record = need_record(directory)
    if not (supervisor_link.is_answering(directory) or supervisor_link.has_orphans(directory)):
        detail = f"no cluster runs in {directory.path}; start it: {directory.command('up')}"
        raise FsError(Status.NOT_RUNNING, detail)
    key_file = usual_key_file(directory, record)
    return connect_blocking(
        mgmtd_addresses(directory, record), record.cluster_id, key_file=key_file
    )


def check_not_here(paths: Sequence[str]) -> None:
    """Refuse paths of this machine that are on no mount:
    within a file system which nobody has named they would mean other files.

    Raises:
        FsError: INVALID_ARGUMENT.
    """
    for path in paths:
        if os.path.abspath(path) != "/" and os.path.lexists(path):  # noqa: PTH100 - links are for the file system
            detail = (
                f"{path} is a path of this machine, on no mount of EmberFS: name one on a mount"
            )
            raise FsError(Status.INVALID_ARGUMENT, detail)


def meant_directory(given: Path | None, where: OnMount | None) -> ClusterDir | None:
    """Return the directory of the cluster that is given, or whose mount a path is on;
    None: it is of another machine.

    Raises:
        FsError: BAD_CLUSTER_DIR; INVALID_ARGUMENT: that mount is of another
            cluster than the one given.
    """
    if given is None and where is not None and where.cluster_id:
        return directory_of_cluster(where.cluster_id)
    directory = chosen_directory(given)
    record = load_record(directory)
    if record is not None:
        check_same_cluster(where, record.cluster_id)
    return directory


def check_same_cluster(where: OnMount | None, cluster_id: str) -> None:
    """Raise FsError(INVALID_ARGUMENT) for a path on a mount of another cluster:
    there its name means something else.
    """
    if where is not None and where.cluster_id not in {"", cluster_id}:
        detail = (
            f"{where.mount_point} is a mount of {where.cluster_id}, and the command is for "
            f"{cluster_id}"
        )
        raise FsError(Status.INVALID_ARGUMENT, detail)


def _connected_as_daemon(where: OnMount) -> BlockingFs:
    """Return a client that reaches the cluster as the daemon of its mount does,
    for machines that have the mount only.
    """
    found = mount_daemon_at(where.mount_point)
    if found is None:
        detail = (
            f"{where.mount_point} is a mount of {where.cluster_id}, of which no process runs here "
            "that you may ask: be its owner, or name a directory by --dir"
        )
        raise FsError(Status.NOT_RUNNING, detail)
    process, auth = found[1].process, found[1].auth
    if os.environ.get(TOKEN_FILE_VARIABLE):  # who names one wants to be its user
        return connect_blocking(process.mgmtd_addresses, process.cluster_id)
    token = read_token(Path(auth.token_file)) if auth.token_file else None
    return connect_blocking(
        process.mgmtd_addresses, process.cluster_id, token=token, key_file=auth.key_file
    )


def _connected_elsewhere(on: OnMount | None) -> BlockingFs:
    """Return a client of the cluster of `ember admin --at`,
    or of the configuration file of this machine.
    """
    from .where import find  # noqa: PLC0415 - loads managers and stores, which `ember rm` does not need

    where = find(None, None)
    if where.is_down:
        raise FsError(Status.NOT_RUNNING, "--kv reads a store without services, which this needs")
    check_same_cluster(on, where.cluster_id)
    token = read_token(Path(where.auth.token_file)) if where.auth.token_file else None
    return connect_blocking(
        where.addresses, where.cluster_id, token=token, key_file=where.auth.key_file
    )
