"""Small file systems in files, mounted by a loop device, whose power can be cut.

A cut is the file system's own shutdown call (what xfstests' `godown` makes): from then on it writes
nothing any more; what it had not written is lost when it is unmounted, and its journal is replayed
at the next mount. Needs root, loop devices and mkfs; `missing` says what is not there.
"""

import fcntl
import os
import shutil
import struct
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

SHUTDOWN = 0x8004587D
"""FS_IOC_SHUTDOWN, _IOR('X', 125, __u32), of XFS and ext4 alike."""

FLUSH_LOG, KEEP_LOG = 1, 2
"""Write the journal out first; do not."""

IMAGE_BYTES = {"ext4": 128 << 20, "xfs": 320 << 20}


def missing(kind: str) -> str:
    """Return why images of this kind cannot be used here, empty if they can."""
    if os.geteuid() != 0:
        return "needs root"
    if shutil.which(f"mkfs.{kind}") is None:
        return f"mkfs.{kind} is not installed"
    if not os.path.exists("/dev/loop-control"):
        return "no loop devices"
    return ""


def run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)


@contextmanager
def image(kind: str, directory: Path) -> Iterator["Image"]:
    """Make one, mounted; unmount it at the end."""
    made = Image(kind, directory / f"{kind}.img", directory / "mount")
    made.mount_point.mkdir()
    with made.path.open("wb") as file:
        file.truncate(IMAGE_BYTES[kind])
    run(f"mkfs.{kind}", "-q", str(made.path))
    made.mount()
    try:
        yield made
    finally:
        made.unmount()


class Image:
    def __init__(self, kind: str, path: Path, mount_point: Path) -> None:
        self.kind = kind
        self.path = path
        self.mount_point = mount_point

    def mount(self) -> None:
        run("mount", "-o", "loop", str(self.path), str(self.mount_point))

    def unmount(self) -> None:
        """Unmount; whoever still has a file open is given some seconds."""
        for _ in range(100):
            with suppress(subprocess.CalledProcessError):
                run("umount", str(self.mount_point))
                return
            time.sleep(0.1)
        run("umount", "-l", str(self.mount_point))

    def cut(self, flags: int) -> None:
        """Cut its power; it stays mounted, and every call fails."""
        fd = os.open(self.mount_point, os.O_RDONLY)
        try:
            fcntl.ioctl(fd, SHUTDOWN, struct.pack("I", flags))
        finally:
            os.close(fd)
