"""Mount daemons that were killed, and cannot end.

A notice to the kernel waits, in a thread and beyond the reach of any signal, for the pages of
READs that are under way (fs/client/fuse/frontend.py).  With the main thread gone nobody answers
these any more, and the kernel ends a connection by itself only when the last thread has let go of
it: neither the process would ever end, nor whoever uses the mount.  So whoever finds such a
process has the kernel end the connection: all that waits gets an error, the process ends, and its
mount is a dead one like any other.

A thread may also wait for a disk that does not answer (fs/client/direct_threads.py), for as long as
that takes, whatever ends its process.  Then what is left of it has no mount and answers nobody, and
nobody waits for it any longer (`look_after`).

Invariants:
    - A connection is ended only once the main thread of the process that serves it is gone: what is
      left of that process answers nobody.
    - Where another daemon serves the mount point again, its connection is not
      taken for that of the one before.
    - What stands on the mount point stays there, dead, until the next daemon mounts: nobody
      writes to the directory beneath.

Needs /sys/fs/fuse/connections, or root, who may mount it elsewhere.  Finds nobody in
another namespace of processes.
"""

import ctypes
import errno
import logging
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import trio

from ...runtime.config_file import readable_config
from ...runtime.mount_table import MOUNTINFO, is_same_place, real_place, unescaped
from ..machine.process_id import real_user
from ..machine.running import PROC, mount_daemon_at, parse_command, servers_of

log = logging.getLogger(__name__)

CONNECTIONS: Final = Path("/sys/fs/fuse/connections")
LOOK_S: Final = 0.5
"""Between two looks at a process."""
LEFT_AFTER_S: Final = 5.0
"""What is left of a process for so long without its main thread is not waited for:
it ends with the disk's answer.
"""

_CONNECTION: Final = re.compile(r"^fuse_connection:\s*(\d+)$", re.MULTILINE)
_MNT_DETACH: Final = 2
_FLAGS: Final = 6
"""Of what /proc/PID/stat has behind the name."""
_EXIT_STATUS: Final = 49
"""There: as waitpid(2) tells it; 0 also where we may not know."""
_PF_EXITING: Final = 0x4


async def look_after(pid: int, mount_point: Path) -> None:
    """Look after a mount daemon, so that it ends when it is killed;
    return when it cannot, or until cancelled.
    """
    left_s = 0.0
    while left_s < LEFT_AFTER_S:
        await trio.sleep(LOOK_S)
        await trio.to_thread.run_sync(free, pid, mount_point)
        left_s = left_s + LOOK_S if is_stuck(pid) else 0.0
    log.error("%s: what is left of its daemon, process %d, waits in the kernel", mount_point, pid)


def free_all(mount_point: Path) -> None:
    """Let all daemons end that were killed while they served a mount point."""
    for pid in list(_stuck_at(mount_point)):
        free(pid, mount_point)


def free(pid: int, mount_point: Path) -> None:
    """Let a process end if it is a daemon of that mount point that was killed;
    does nothing to one that lives.
    """
    if not is_stuck(pid):
        return
    numbers = _held_by(pid)
    if not numbers and mount_daemon_at(mount_point) is None:
        numbers = _mounted_at(mount_point)
    for number in numbers:
        if _end_connection(number):
            log.error("%s: its daemon, process %d, was killed and could not end", mount_point, pid)


def is_stuck(pid: int) -> bool:
    """Tell whether the main thread of a process has ended, and others have not yet;
    or is at its end, and does not come to it.
    """
    try:
        fields = (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
        if fields[0] != "Z":
            return bool(int(fields[_FLAGS]) & _PF_EXITING)
        return any(True for _ in _others(pid))
    except OSError:  # it has ended
        return False


def exit_code_of(pid: int) -> int:
    """Return how the main thread of a process that is stuck has ended, as `subprocess` has it: 0:
    in order, as far as is known.
    """
    try:
        fields = (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return os.waitstatus_to_exitcode(int(fields[_EXIT_STATUS]))


def _others(pid: int) -> Iterator[Path]:
    """Yield what /proc has of each thread but the main one."""
    return (task for task in (PROC / str(pid) / "task").iterdir() if task.name != str(pid))


def _stuck_at(mount_point: Path) -> Iterator[int]:
    """Yield the processes of mount daemons that are stuck;
    only a thread still knows what the process was started with.
    """
    servers = servers_of(mount_point)
    for pid in [int(entry.name) for entry in PROC.iterdir() if entry.name.isdigit()]:
        if not is_stuck(pid):
            continue
        try:
            task = next(_others(pid))
            words = os.fsdecode((task / "cmdline").read_bytes()).split("\0")
            role, path = parse_command(words) or ("", "")
            if real_user(pid) not in servers:
                continue
            config = readable_config(Path(os.readlink(task / "cwd"), path))  # noqa: PTH115
        except (OSError, StopIteration):  # it has ended, or is another user's
            continue
        if (
            role == "mountd"
            and config is not None
            and is_same_place(config.client.mount_point, mount_point)
        ):
            yield pid


def _held_by(pid: int) -> list[int]:
    """Return the connections that its threads hold; empty also where the kernel does not tell."""
    try:
        infos = [info.read_text() for info in (next(_others(pid)) / "fdinfo").iterdir()]
    except (OSError, StopIteration):
        return []
    return sorted({int(number) for info in infos for number in _CONNECTION.findall(info)})


def _mounted_at(mount_point: Path) -> list[int]:
    """Return the connection of the mount that stands there; nobody is asked."""
    found = []
    real = str(real_place(mount_point))
    for line in MOUNTINFO.read_bytes().split(b"\n"):
        fields = line.split(b" ")
        if b" - fuse.ember " in line and unescaped(fields[4]) == real:
            found.append(int(fields[2].partition(b":")[2]))
    return found[-1:]


def _end_connection(number: int) -> bool:
    """Have the kernel end a connection; return whether it has."""
    try:
        (CONNECTIONS / str(number) / "abort").write_text("1")
    except FileNotFoundError:
        return os.geteuid() == 0 and _end_by_own_mount(number)
    except OSError as error:
        log.warning("FUSE connection %d cannot be ended: %s", number, error.strerror)
        return False
    return True


def _end_by_own_mount(number: int) -> bool:
    """Do the same where the kernel's files about connections are not mounted."""
    libc = ctypes.CDLL(None, use_errno=True)
    with tempfile.TemporaryDirectory() as folder:
        place = os.fsencode(folder)
        if libc.mount(b"fusectl", place, b"fusectl", 0, None) != 0:
            reason = os.strerror(ctypes.get_errno())
            log.warning("FUSE connection %d cannot be ended: fusectl: %s", number, reason)
            return False
        try:
            Path(folder, str(number), "abort").write_text("1")
        except OSError as error:
            if error.errno != errno.ENOENT:  # else it has ended by itself
                log.warning("FUSE connection %d cannot be ended: %s", number, error.strerror)
            return False
        finally:
            libc.umount2(place, _MNT_DETACH)
    return True
