"""Judging and cleaning mount points: may something be mounted here,
and what is left of a dead mount.

Does not mount anything (fs/client/fuse/mount.py does).
"""

import os
from pathlib import Path
from typing import Final

from ...client.fuse.mount_point import detach, is_disconnected
from ...client.vfs.mounted_tree import (
    TREE_ATTRIBUTE,
    MountedTree,
    parse_tree,
    tree_of_source,
)
from ...runtime.mount_table import AUTOMOUNT, mount_at, read_mounts
from ...schema.status import FsError, Status
from ..machine.running import mount_daemon_at
from .stuck_daemon import free_all

FUSE_DEVICE: Final = Path("/dev/fuse")


def is_dead(path: Path) -> bool:
    """True if a FUSE mount stands here whose daemon has died;
    one that lives is asked, which takes as long as the cluster needs.
    """
    if is_mounted(path):
        free_all(path)  # else nobody would ever answer
    return is_disconnected(path)


def mounted_type(path: Path) -> str:
    """Return the type of the file system that is mounted exactly here; empty: none is."""
    mounted = mount_at(path)
    return "" if mounted is None else mounted.kind


def mounted_sources() -> dict[str, str]:
    """Return what stands for the file system of every EmberFS mount in the list of mounts,
    by mount point.
    """
    uppermost = {mounted.place: mounted for mounted in read_mounts()}
    return {
        place: mounted.source
        for place, mounted in uppermost.items()
        if mounted.kind == "fuse.ember"
    }


def mounted_tree(place: str, source: str) -> MountedTree:
    """Return which tree is mounted at a mount point, of which the list of mounts says `source`.

    A mount with a name of its own is asked, and so is one of a directory, which may have been
    moved: that takes as long as its daemon needs.  An empty cluster id: it does not say it.

    Raises:
        FsError: BAD_MOUNT_POINT: it does not tell; the directory was removed, for one.
    """
    said = tree_of_source(source)
    if said is not None:
        return said
    try:
        return parse_tree(os.fsdecode(os.getxattr(place, TREE_ATTRIBUTE)))
    except OSError as error:
        raise FsError(Status.BAD_MOUNT_POINT, f"{place}: {error.strerror}") from error


def is_automount(path: Path) -> bool:
    """True if the first use of this place is what has something mounted there."""
    return mounted_type(path) == AUTOMOUNT


def is_mounted(path: Path) -> bool:
    """True if an EmberFS mount stands exactly here, dead or alive."""
    return mounted_type(path) == "fuse.ember"


def clear_dead_mount(path: Path) -> None:
    """Detach what a killed mount daemon left behind; harmless when there is nothing.

    Raises:
        FsError: BAD_MOUNT_POINT when the dead mount cannot be detached.
    """
    if not is_dead(path):
        return
    failure = detach(path)
    if failure and is_dead(path):
        raise FsError(Status.BAD_MOUNT_POINT, f"{path}: a dead mount: {failure}")


def check_fuse() -> None:
    """Raise FsError(FUSE_MISSING) unless this machine lets this user mount."""
    if os.access(FUSE_DEVICE, os.R_OK | os.W_OK):
        return
    if FUSE_DEVICE.exists():
        problem = f"this user may not open {FUSE_DEVICE}; chmod 666 it as root"
    else:
        problem = f"{FUSE_DEVICE} does not exist; load it as root: modprobe fuse"
    raise FsError(Status.FUSE_MISSING, f"{problem}, or start with --no-mount")


def check_mount_point(path: Path) -> None:
    """Check that a mount may be made here.

    A dead mount of EmberFS stays: until the next one is there, programs that go on are to meet it,
    and not the bare directory.

    Raises:
        FsError: BAD_MOUNT_POINT (missing, no directory, in use, not empty).
    """
    # Not asked: it may have to wait itself.
    if is_mounted(path) and mount_daemon_at(path) is not None:
        raise FsError(Status.BAD_MOUNT_POINT, f"{path}: something is mounted there already")
    if is_mounted(path) and is_dead(path):
        return  # left to the daemon, which puts the new one in its place
    clear_dead_mount(path)
    try:
        names = os.listdir(path)  # noqa: PTH208 - only whether it is empty matters
    except FileNotFoundError as error:
        raise FsError(
            Status.BAD_MOUNT_POINT, f"{path} does not exist; make it: mkdir -p {path}"
        ) from error
    except OSError as error:
        raise FsError(Status.BAD_MOUNT_POINT, f"{path}: {error.strerror}") from error
    if mounted_type(path) not in {"", AUTOMOUNT}:
        raise FsError(Status.BAD_MOUNT_POINT, f"{path}: something is mounted there already")
    if names:
        raise FsError(Status.BAD_MOUNT_POINT, f"{path} is not empty; choose an empty directory")
