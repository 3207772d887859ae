"""`ember down` and `ember umount`: orderly stops.

With a supervisor, it does the work.  Without one (it was killed), this process takes its place just
long enough to adopt what still runs and stop it.
"""

import os
import select
import shutil
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import trio

from ...runtime.mount_table import is_same_place
from ...schema.status import FsError, Status
from ..machine.cluster_dir import ClusterDir, need_record
from ..machine.process_id import open_pidfd, send_signal
from ..machine.running import (
    Command,
    left_running,
    mount_daemon_at,
    read_state,
    refuse_others_mount,
    supervisor_of,
)
from ..mounts.mount_point import (
    check_fuse,
    check_mount_point,
    clear_dead_mount,
    is_dead,
    is_mounted,
)
from ..mounts.stuck_daemon import LEFT_AFTER_S, is_stuck
from ..stores.foundationdb import empty_store
from ..supervision import supervisor_link
from ..supervision.one_start import in_turn
from ..supervisor import Supervisor, take_over
from ..terminal.errors import unwrapped
from .bring_up import begin_mount
from .cluster_plan import USUAL_MOUNT, MountWishes
from .waits import wait_running

FOREGROUND_POLL_S: Final = 0.5
UNMOUNT_TIMEOUT_S: Final = 60.0
"""As long as a supervisor waits for a mount daemon."""


async def _stop_orphans(directory: ClusterDir) -> bool:
    """Stop services whose supervisor has died; return whether there were any."""
    supervisor = Supervisor(directory)
    async with trio.open_nursery() as nursery:
        await nursery.start(supervisor.run)
        found = bool(supervisor.status()["services"])
        await supervisor.stop()
    return found


def _stop(directory: ClusterDir, *, did_answer: bool) -> bool:
    """Stop services that have lost their supervisor; return whether anything ran."""
    with unwrapped():
        return trio.run(_stop_orphans, directory) or did_answer


def _end_unheard(directory: ClusterDir) -> bool:
    """End a supervisor whose socket is gone, which stops its services first;
    return whether there was one.

    Raises:
        FsError: ALREADY_RUNNING when it does not end.
    """
    supervisor = supervisor_of(directory)
    pidfd = open_pidfd(supervisor) if supervisor is not None else None
    if pidfd is None:
        return False
    try:
        send_signal(pidfd, signal.SIGTERM)
        if not select.select([pidfd], [], [], supervisor_link.ANSWER_TIMEOUT_S)[0]:
            raise FsError(Status.ALREADY_RUNNING, f"the supervisor, {supervisor}, does not end")
    finally:
        os.close(pidfd)
    return True


def bring_down(directory: ClusterDir, *, wipe: bool) -> None:
    """Stop a cluster; with `wipe`, remove it and all its data.

    Raises:
        FsError: BAD_CLUSTER_DIR; NOT_RUNNING when there was nothing to stop (and nothing to wipe);
            NOT_FLUSHED: all has stopped, and a mount could not write everything that was buffered.
    """
    if wipe and directory.wiping_path.exists():  # an earlier one was interrupted
        _remove(directory)
        return
    record = need_record(directory)
    directory.make_folders()
    did_answer = supervisor_link.is_answering(directory)
    complaints: list[str] = []
    if did_answer:
        complaints = supervisor_link.ask(directory, command="stop").get("complaints", [])
    else:
        did_answer = _end_unheard(directory)
    lock = take_over(directory)
    try:
        known = {**read_state(directory), **left_running(directory)}
        mount_points = [s["mount_point"] for s in known.values() if s["mount_point"]]
        did_run = _stop(directory, did_answer=did_answer)  # which writes the state anew
        for mount_point in mount_points:
            clear_dead_mount(Path(mount_point))
        if wipe:
            if record.kv:  # first: without the record nobody knows which keys are its own
                empty_store(record.kv, record.cluster_id)
            _wipe(directory)
        elif not did_run:
            raise FsError(Status.NOT_RUNNING, f"no cluster runs in {directory.path}")
    finally:
        os.close(lock)
    if complaints:
        raise FsError(Status.NOT_FLUSHED, "; ".join(complaints))


def _wipe(directory: ClusterDir) -> None:
    """Remove the cluster; its record goes first, so that half a cluster is never taken for one."""
    directory.record_path.rename(directory.wiping_path)
    _remove(directory)


def _remove(directory: ClusterDir) -> None:
    """Remove all files, last the one that says that this is under way."""
    if directory.run_path.exists():
        shutil.rmtree(directory.run_path)
    for entry in directory.path.iterdir():
        if entry == directory.wiping_path:
            continue
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()
    directory.wiping_path.unlink()
    directory.path.rmdir()


def _mounts(directory: ClusterDir) -> list[dict[str, Any]]:
    services = supervisor_link.ask(directory, command="status")["services"]
    return [service for service in services if service["role"] == "mountd"]


def mount(
    directory: ClusterDir,
    mount_point: Path,
    wishes: MountWishes = USUAL_MOUNT,
    *,
    recovers: bool = False,
) -> None:
    """Mount a running cluster at one more place;
    with `recovers` also where a mount stands, which is to be served again, as it was.

    Raises:
        FsError: NOT_RUNNING, BAD_MOUNT_POINT, FUSE_MISSING, START_FAILED.
    """
    record = need_record(directory)
    if recovers and _recover(directory, mount_point):
        return
    name = ""
    try:
        with in_turn(directory.path):
            free = _free_name(directory, mount_point)
            check_fuse()
            check_mount_point(mount_point)
            name = free
            begin_mount(directory, record, name, mount_point, wishes)
        wait_running(directory, name)
    except BaseException:  # also Ctrl-C: it would go on by itself, and mount later
        if name:
            with suppress(FsError):  # the first error is the one to tell
                supervisor_link.ask(directory, command="remove", name=name)
        raise


def _free_name(directory: ClusterDir, mount_point: Path) -> str:
    """Return the name of one more mount; raises FsError(BAD_MOUNT_POINT)
    where another one comes or goes.
    """
    going = [s for s in _mounts(directory) if s["state"] != "stopped"]
    for service in going:
        if is_same_place(service["mount_point"], mount_point) and service["state"] != "running":
            detail = (
                f"{mount_point}: {service['name']} is {service['state']} there; see: ember status"
            )
            raise FsError(Status.BAD_MOUNT_POINT, detail)
    taken = {service["name"] for service in going}
    return next(f"mount-{i}" for i in range(1, len(taken) + 2) if f"mount-{i}" not in taken)


def _recover(directory: ClusterDir, mount_point: Path) -> bool:
    """Return True once a mount of this cluster serves there that had not been ended;
    False: it may be made anew.

    Raises:
        FsError: START_FAILED: its daemon does not come back.
    """
    deadline_s = time.monotonic() + UNMOUNT_TIMEOUT_S
    while True:
        found = [s for s in _mounts(directory) if is_same_place(s["mount_point"], mount_point)]
        going = [s for s in found if s["state"] not in {"stopping", "stopped"}]
        if not going:
            return False
        if going[0]["state"] == "running" and not is_dead(mount_point):
            return True
        if time.monotonic() > deadline_s:
            log_path = directory.log_path(going[0]["name"])
            raise FsError(
                Status.START_FAILED, f"{mount_point} is not served again (log: {log_path})"
            )
        time.sleep(FOREGROUND_POLL_S)


def unmount(given: ClusterDir | None, mount_point: Path) -> None:
    """Flush and end one mount, of the given cluster or of whichever is mounted there.

    Raises:
        FsError: NOT_RUNNING, BAD_MOUNT_POINT when no cluster, or not the given one,
            is mounted there; NOT_PERMITTED: it is another user's mount; NOT_FLUSHED: it is
            unmounted, and not everything that was buffered could be written.
    """
    found = mount_daemon_at(mount_point) if given is None else None
    daemon = found[0] if found is not None else None
    owner = ClusterDir(daemon.directory) if daemon and daemon.directory else None
    if given is not None:
        _unmount_supervised(given, mount_point)
    elif owner is not None and supervisor_link.is_answering(owner):
        _unmount_supervised(owner, mount_point)
    elif daemon is not None:
        _end(daemon, mount_point)
    elif is_dead(mount_point) and is_mounted(mount_point):
        clear_dead_mount(mount_point)
    else:
        refuse_others_mount(mount_point)
        raise FsError(Status.BAD_MOUNT_POINT, f"no cluster is mounted at {mount_point}")


def _unmount_supervised(directory: ClusterDir, mount_point: Path) -> None:
    for service in _mounts(directory):
        if is_same_place(service["mount_point"], mount_point) and service["state"] != "stopped":
            supervisor_link.ask(directory, command="remove", name=service["name"])
            return
    raise FsError(Status.BAD_MOUNT_POINT, f"this cluster is not mounted at {mount_point}")


def _end(daemon: Command, mount_point: Path) -> None:
    """Have a mount daemon without a supervisor flush and end."""
    wait_daemon_end(daemon, mount_point, asks_first=True)


def wait_daemon_end(daemon: Command, mount_point: Path, *, asks_first: bool = False) -> None:
    """Wait until a mount daemon without a supervisor has written everything and ended,
    after asking it to do so with `asks_first`.

    Raises:
        FsError: BAD_MOUNT_POINT: it takes too long.
    """
    pidfd = open_pidfd(daemon.identity)
    if pidfd is None:
        return
    try:
        if asks_first:
            send_signal(pidfd, signal.SIGTERM)
        if not _has_ended(pidfd, daemon.identity.pid):
            raise FsError(
                Status.BAD_MOUNT_POINT,
                f"{mount_point}: the mount daemon (pid {daemon.identity.pid}) is still flushing"
                f" after {UNMOUNT_TIMEOUT_S:g} s",
            )
    finally:
        os.close(pidfd)


def wait_place_left(mount_point: Path) -> None:
    """Wait for mount daemons of a place where nothing is mounted any more:
    they may still be writing what the next mount is to see.

    One that is about to mount there is not waited for any longer once it has,
    and one that hangs not for ever.
    """
    until_s = time.monotonic() + UNMOUNT_TIMEOUT_S
    while not is_mounted(mount_point) and time.monotonic() < until_s:
        found = mount_daemon_at(mount_point)
        pidfd = open_pidfd(found[0].identity) if found is not None else None
        if pidfd is None:
            return
        try:
            select.select([pidfd], [], [], FOREGROUND_POLL_S)
        finally:
            os.close(pidfd)


def _has_ended(pidfd: int, pid: int) -> bool:
    """Wait for the end of a mount daemon; True also when what is left of it, which serves nothing,
    waits for a disk that does not answer.
    """
    now_s = stuck_since_s = time.monotonic()
    until_s = now_s + UNMOUNT_TIMEOUT_S
    while now_s < until_s and now_s - stuck_since_s < LEFT_AFTER_S:
        if select.select([pidfd], [], [], FOREGROUND_POLL_S)[0]:
            return True
        now_s = time.monotonic()
        if not is_stuck(pid):
            stuck_since_s = now_s
    return now_s < until_s


def wait_end(directory: ClusterDir) -> None:
    """Wait until the cluster's supervisor has ended; used by `ember up --foreground`."""
    while supervisor_link.is_answering(directory):
        time.sleep(FOREGROUND_POLL_S)
