"""Where mount daemons leave what is of use until the machine starts again:
a folder that is its owner's alone.
"""

import os
from pathlib import Path

from ...schema.status import FsError, Status


def runtime_folder() -> Path:
    """Return the folder of what is known of such daemons; worthless after a reboot."""
    uid = os.geteuid()
    return Path("/run/emberfs/mounts") if uid == 0 else Path(f"/tmp/emberfs-mounts-{uid}")  # noqa: S108 - checked when it is made


def made_folder(folder: Path) -> Path:
    """Return a folder, made where it was missing;
    raises FsError(BAD_CONFIG) where it is somebody else's.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.lstat()
    if found.st_uid != os.geteuid() or folder.is_symlink():
        raise FsError(Status.BAD_CONFIG, f"{folder} belongs to somebody else")
    return folder
