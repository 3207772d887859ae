"""Mount points."""

import errno
import os
import re
from pathlib import Path

_TYPE = b"fuse.ember"


def get_mount_point(path: str | os.PathLike[str]) -> str:
    """Return the mount point of the EmberFS mount that a path is on, which need not exist yet.

    Raises:
        OSError: EOPNOTSUPP: it is on none.
    """
    real = os.path.realpath(path)
    found = ""
    # Bytes: others mount at places of their own, with any names.
    for line in Path("/proc/self/mountinfo").read_bytes().split(b"\n"):
        # Fields are fixed up to the mount point, the fifth; the type follows a lone dash.
        fields, _, rest = line.partition(b" - ")
        if rest.split(b" ")[0] != _TYPE:
            continue
        mount_point = _unescaped(fields.split(b" ")[4])
        is_below = os.path.commonpath([mount_point, real]) == mount_point
        if is_below and len(mount_point) > len(found):
            found = mount_point
    if not found:
        raise OSError(errno.EOPNOTSUPP, "not on an EmberFS mount", os.fspath(path))
    return found


def _unescaped(field: bytes) -> str:
    return os.fsdecode(re.sub(rb"\\([0-7]{3})", lambda code: bytes([int(code[1], 8)]), field))
