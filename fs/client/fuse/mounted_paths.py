"""Which place of a mount a path means to a process:
by the mounts that this process sees, which may be others than those of the daemon.

A process may see the mount elsewhere (in a container), only a part of it (a directory that is
mounted by itself), or something else on top of it. The kernel tells by the device: each mount has a
number of its own, wherever it is seen.

Not here: symbolic links; a path that leads to the mount through one leads
elsewhere for all that is known here.
"""

import os
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final, NamedTuple

import trio

from ...schema.ids import InodeId
from ...schema.lacks import is_lack
from ...schema.status import FsError, Status

_REMOVED: Final = b"//deleted"
"""Behind the directory that is seen there, once it has been removed."""


class SeenMount(NamedTuple):
    """A mount, as a process sees it."""

    mount_id: int
    parent_id: int
    """Of the mount that it is mounted on."""
    device: str
    """major:minor"""
    root: bytes
    """Which directory of its file system is seen there."""
    place: bytes
    """Its mount point without a slash at the end."""


def _unescaped(field: bytes) -> bytes:
    return re.sub(rb"\\([0-7]{3})", lambda code: bytes([int(code[1], 8)]), field)


def seen_mounts(mountinfo: bytes) -> list[SeenMount]:
    """Return what a file `mountinfo` tells, see proc_pid_mountinfo(5)."""
    found = []
    for line in mountinfo.split(b"\n"):
        if not line:
            continue
        mount_id, parent_id, device, root, place, *_ = line.split(b" ")
        place = _unescaped(place).rstrip(b"/")
        found.append(
            SeenMount(int(mount_id), int(parent_id), device.decode(), _unescaped(root), place)
        )
    return found


def path_inside(path: bytes, mounts: list[SeenMount], device: str) -> bytes:
    """Return where on the mount of a device an absolute path without `.` and `..` leads.

    Raises:
        FsError: INVALID_ARGUMENT: elsewhere; or to the very place where the
            mount, or part of it, is seen.
    """
    path = b"/" + b"/".join(name for name in path.split(b"/") if name)
    known = {mount.mount_id for mount in mounts if mount.parent_id != mount.mount_id}
    at: SeenMount | None = None
    # The outermost one is on a mount that the process does not see.
    ahead: list[SeenMount] = []
    on_top: dict[int, list[SeenMount]] = {}
    for mount in mounts:
        if not (path + b"/").startswith(mount.place + b"/"):
            continue
        if mount.parent_id not in known:
            ahead.append(mount)
        if mount.parent_id != mount.mount_id:
            on_top.setdefault(mount.parent_id, []).append(mount)
    while ahead:
        # As the kernel walks: of what is mounted on this one, what the path comes to first.
        at = min(ahead, key=lambda mount: len(mount.place))
        ahead = on_top.get(at.mount_id, [])
    if at is None or at.device != device or at.root.endswith(_REMOVED):
        raise FsError(Status.INVALID_ARGUMENT, f"{path!r} is not on this mount")
    rest = path[len(at.place) :]
    if not rest.strip(b"/"):
        raise FsError(Status.INVALID_ARGUMENT, f"{path!r} is where it is mounted")
    return at.root.rstrip(b"/") + rest


class MountedPaths:
    """Of one mount; see module head and `MountPlaces`."""

    def __init__(
        self, device: int, forget_name: Callable[[InodeId, bytes], Awaitable[None]]
    ) -> None:
        """`device` is what stat(2) says of all on the mount."""
        self._device = f"{os.major(device)}:{os.minor(device)}"
        self._forget_name = forget_name

    async def path_inside(self, path: bytes, thread_id: int) -> bytes:
        """See MountPlaces."""
        # A program may see a hundred thousand mounts of its own making: all
        # others are served meanwhile.
        return await trio.to_thread.run_sync(self._look, path, thread_id)

    def _look(self, path: bytes, thread_id: int) -> bytes:
        seen = Path(f"/proc/{thread_id}/mountinfo")
        try:
            mountinfo = seen.read_bytes()
        except OSError as error:
            if is_lack(error):
                raise
            what = f"{path!r}: what thread {thread_id} sees is not to be seen: {error.strerror}"
            raise FsError(Status.INVALID_ARGUMENT, what) from error
        return path_inside(path, seen_mounts(mountinfo), self._device)

    async def forget_name(self, parent: InodeId, name: bytes) -> None:
        """See MountPlaces."""
        await self._forget_name(parent, name)
