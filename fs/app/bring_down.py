"""`ember down` and `ember umount`: orderly stops.

With a supervisor, it does the work.  Without one (it was killed), this process takes its place just long
enough to adopt what still runs and stop it.
"""

import os
import shutil
import time
from pathlib import Path
from typing import Any, Final

import trio

from ..schema.status import FsError, Status
from . import supervisor_link
from .bring_up import add_mount
from .cluster_dir import ClusterDir, need_record
from .errors import first_error
from .mount_point import check_fuse, check_mount_point, clear_dead_mount
from .supervisor import Supervisor, read_state, take_lock

FOREGROUND_POLL_S: Final = 0.5


async def _stop_orphans(directory: ClusterDir) -> bool:
    """Stop services whose supervisor has died; return whether there were any."""
    supervisor = Supervisor(directory)
    async with trio.open_nursery() as nursery:
        await nursery.start(supervisor.run)
        found = bool(supervisor.status()["services"])
        await supervisor.stop()
    return found


def _stop(directory: ClusterDir) -> bool:
    """Stop everything; return whether anything ran."""
    if supervisor_link.is_answering(directory):
        supervisor_link.ask(directory, command="stop")
        return True
    directory.make_folders()
    lock = take_lock(directory)
    try:
        return trio.run(_stop_orphans, directory)
    except ExceptionGroup as group:
        raise first_error(group) from group
    finally:
        os.close(lock)


def bring_down(directory: ClusterDir, *, wipe: bool) -> None:
    """Stop a cluster; with `wipe`, remove it and all its data.

    Raises:
        FsError: BAD_CLUSTER_DIR; NOT_RUNNING when there was nothing to stop (and nothing to wipe).
    """
    need_record(directory)
    did_run = _stop(directory)
    for service in read_state(directory).values():
        if service["role"] == "mountd":
            clear_dead_mount(Path(service["mount_point"]))
    if wipe:
        shutil.rmtree(directory.path)
        if directory.run_path.exists():
            shutil.rmtree(directory.run_path)
    elif not did_run:
        raise FsError(Status.NOT_RUNNING, f"no cluster runs in {directory.path}")


def _mounts(directory: ClusterDir) -> list[dict[str, Any]]:
    services = supervisor_link.ask(directory, command="status")["services"]
    return [service for service in services if service["role"] == "mountd"]


def mount(directory: ClusterDir, mount_point: Path) -> None:
    """Mount a running cluster at one more place.

    Raises:
        FsError: NOT_RUNNING, BAD_MOUNT_POINT, FUSE_MISSING, START_FAILED.
    """
    record = need_record(directory)
    taken = {service["name"] for service in _mounts(directory)}
    check_fuse()
    check_mount_point(mount_point)
    name = next(f"mount-{i}" for i in range(1, len(taken) + 2) if f"mount-{i}" not in taken)
    try:
        add_mount(directory, record, name, mount_point)
    except FsError:
        supervisor_link.ask(directory, command="remove", name=name)
        raise


def unmount(directory: ClusterDir, mount_point: Path) -> None:
    """Flush and end one mount.

    Raises:
        FsError: NOT_RUNNING, BAD_MOUNT_POINT when this cluster is not mounted there.
    """
    for service in _mounts(directory):
        if service["mount_point"] == str(mount_point):
            supervisor_link.ask(directory, command="remove", name=service["name"])
            return
    raise FsError(Status.BAD_MOUNT_POINT, f"this cluster is not mounted at {mount_point}")


def wait_end(directory: ClusterDir) -> None:
    """Wait until the cluster's supervisor has ended; used by `ember up --foreground`."""
    while supervisor_link.is_answering(directory):
        time.sleep(FOREGROUND_POLL_S)
