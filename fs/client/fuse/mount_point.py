"""The place where a file system is mounted: checks, options, kernel settings, unmounting."""

import ctypes
import errno
import logging
import os
import shutil
import subprocess
from pathlib import Path

from emberfs.protocol import MOUNT_POINT_ATTRIBUTE

from ...runtime.mount_table import AUTOMOUNT, mount_at
from ...schema.status import FsError, Status

_log = logging.getLogger(__name__)

_MNT_DETACH = 2
_FUSE_CONF = Path("/etc/fuse.conf")
_UMOUNT_TIMEOUT_S = 30.0


def common_options() -> list[str]:
    """Return the mount options of every frontend for this user;
    allow_other where the system lets us.
    """
    options = ["default_permissions"]
    if os.geteuid() == 0 or _may_allow_other():
        options.append("allow_other")
    return options


def _may_allow_other() -> bool:
    try:
        lines = _FUSE_CONF.read_text().splitlines()
    except OSError:
        return False
    return any(line.strip() == "user_allow_other" for line in lines)


def check_mount_point(mount_point: Path) -> None:
    """Refuse what cannot be mounted on.

    Raises:
        FsError: BAD_MOUNT_POINT: missing, no directory, not empty, a mount already, or a dead
            mount; FUSE_MISSING: this system offers no /dev/fuse.
    """
    if not Path("/dev/fuse").exists():
        raise FsError(Status.FUSE_MISSING, "/dev/fuse does not exist; load the fuse kernel module")
    try:
        if not mount_point.is_dir():
            raise FsError(Status.BAD_MOUNT_POINT, f"{mount_point} is no existing directory")
        if mount_point.is_mount() and not _is_automount(mount_point):
            raise FsError(Status.BAD_MOUNT_POINT, f"{mount_point} is a mount already")
        names = sorted(entry.name for entry in mount_point.iterdir())
        if names:
            detail = (
                f"{mount_point} is not empty: {', '.join(names[:3])}{' ...' if names[3:] else ''}; "
                "it may have been written while nothing was mounted: move it elsewhere"
            )
            raise FsError(Status.BAD_MOUNT_POINT, detail)
    except OSError as error:
        hint = "; a dead mount? try: umount -l" if error.errno == errno.ENOTCONN else ""
        raise FsError(Status.BAD_MOUNT_POINT, f"{mount_point}: {error.strerror}{hint}") from error


def _is_automount(mount_point: Path) -> bool:
    mounted = mount_at(mount_point)
    return mounted is not None and mounted.kind == AUTOMOUNT


def is_dead_mount(mount_point: Path) -> bool:
    """True if an EmberFS mount stands here whose daemon has died;
    one that lives is asked, which takes as long as it needs.
    """
    mounted = mount_at(mount_point)
    return mounted is not None and mounted.kind == "fuse.ember" and is_disconnected(mount_point)


def is_disconnected(place: Path) -> bool:
    """True if nobody answers for the file system of a place any more: that of a mount whose daemon
    has died.  One that lives is asked, which takes as long as it needs.
    """
    try:
        os.statvfs(place)
    except OSError as error:
        return error.errno in {errno.ENOTCONN, errno.ECONNABORTED}
    return False


def detach(mount_point: Path) -> str:
    """Take the uppermost mount out of the tree, whatever is open there;
    return why that failed, empty: it did not.
    """
    if os.geteuid() == 0:
        libc = ctypes.CDLL(None, use_errno=True)
        done = libc.umount2(os.fsencode(mount_point), _MNT_DETACH)
        return "" if done == 0 else os.strerror(ctypes.get_errno())
    program = shutil.which("fusermount3")
    if program is None:
        return "fusermount3, which unmounts for users, is not installed"
    left = subprocess.run(  # noqa: S603 - a fixed program and our own mount point
        [program, "-u", "-z", "--", str(mount_point)],
        capture_output=True,
        text=True,
        check=False,
        timeout=_UMOUNT_TIMEOUT_S,
    )
    return "" if left.returncode == 0 else left.stderr.strip() or "fusermount3 failed"


def mark_mount_point(mount_point: Path, cluster_id: str) -> None:
    """Leave word on what will lie beneath the mount, for who comes while nothing is mounted;
    some file systems keep none.
    """
    try:
        os.setxattr(mount_point, MOUNT_POINT_ATTRIBUTE, cluster_id.encode())
    except OSError as error:
        _log.info("%s is not marked as a mount point: %s", mount_point, error.strerror)


def set_read_ahead(mount_point: Path, count: int) -> None:
    """Let the kernel read ahead so many bytes, not the 128 KiB of an ordinary FUSE mount;
    0: as it is.  Blocks until it is served.
    """
    device = mount_point.stat().st_dev
    setting = Path(f"/sys/class/bdi/{os.major(device)}:{os.minor(device)}/read_ahead_kb")
    if not count:
        return
    try:
        setting.write_text(str(count // 1024))
    except OSError as error:
        _log.info("kernel readahead stays as it is: %s: %s", setting, error.strerror)


def umount(mount_point: Path) -> bool:
    """Unmount while requests are served; return False when it had to be detached
    because it is busy.
    """
    if os.geteuid() == 0:
        libc = ctypes.CDLL(None, use_errno=True)
        target = os.fsencode(mount_point)
        if libc.umount2(target, 0) == 0:
            return True
        if ctypes.get_errno() == errno.EBUSY:
            libc.umount2(target, _MNT_DETACH)
        return False
    program = shutil.which("fusermount3") or shutil.which("fusermount")
    if program is None:
        return False
    arguments = [program, "-q", "-u"]
    for extra in ([], ["-z"]):
        done = subprocess.run(  # noqa: S603 - a fixed program and our own mount point
            [*arguments, *extra, "--", str(mount_point)],
            check=False,
            timeout=_UMOUNT_TIMEOUT_S,
        )
        if done.returncode == 0:
            return not extra
    return False
