"""Changing and ending mounts by the system's own calls,
as mount(8) and umount(8) would where they know no helper.

Does not look at who serves the mount.
"""

import ctypes
import os
import subprocess
from pathlib import Path
from typing import Final

from ...client.fuse.mount_options import REMOUNT, flags_of
from ...schema.status import FsError, Status
from .mount_point import is_mounted

_MNT_FORCE: Final = 1
_MNT_DETACH: Final = 2
_UMOUNT_NOFOLLOW: Final = 8


def remount(place: str, options: list[str]) -> int:
    """Give a mount the flags of these options alone, and return them:
    mount(8) names those, too, that are to stay.

    Raises:
        FsError: NOT_PERMITTED: for root only; BAD_MOUNT_POINT: no EmberFS is mounted
            there, or the kernel refuses.
    """
    if not is_mounted(Path(place)):
        raise FsError(Status.BAD_MOUNT_POINT, f"{place}: no EmberFS is mounted there")
    if os.geteuid() != 0:
        raise FsError(Status.NOT_PERMITTED, f"{place}: only root may remount")
    flags = flags_of(options, 0)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(None, os.fsencode(place), None, ctypes.c_ulong(REMOUNT | flags), None) != 0:
        raise _refused(place)
    return flags


def unmount(place: str, *, is_lazy: bool, is_forced: bool) -> None:
    """Take a mount out of the tree; raises FsError(BAD_MOUNT_POINT)
    when it is in use, or not there.
    """
    if os.geteuid() != 0:
        _unmount_as_user(place, is_lazy=is_lazy)
        return
    libc = ctypes.CDLL(None, use_errno=True)
    # Links were followed by umount(8); one that somebody puts there now leads elsewhere.
    flags = _UMOUNT_NOFOLLOW | _MNT_DETACH * is_lazy | _MNT_FORCE * is_forced
    if libc.umount2(os.fsencode(place), flags) != 0:
        raise _refused(place)


def _refused(place: str) -> FsError:
    return FsError(Status.BAD_MOUNT_POINT, f"{place}: {os.strerror(ctypes.get_errno())}")


def _unmount_as_user(place: str, *, is_lazy: bool) -> None:
    lazily = ["-z"] if is_lazy else []
    done = subprocess.run(  # noqa: S603 - fixed program
        ["fusermount3", "-u", *lazily, "--", place],  # noqa: S607 - found as the system finds it
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise FsError(Status.BAD_MOUNT_POINT, done.stderr.strip() or place)
