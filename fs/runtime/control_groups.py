"""What the control groups of this process allow it of memory, and have:
its own, and those that these lie in.

Both versions of the kernel's interface are known.  A group that cannot be looked at, as in a
container that is shown its own alone, allows all that others do.

Does not: say what of the memory in use could be given back.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

_OWN: Final = Path("/proc/self/cgroup")
_MOUNTED_AT: Final = Path("/sys/fs/cgroup")
_UNLIMITED: Final = 1 << 62
"""What the first version calls no limit is a little less than 2**63."""


class GroupMemory(NamedTuple):
    """Of one group with a limit, in bytes."""

    limit: int
    used: int


def memory_limits(own: Path = _OWN, mounted_at: Path = _MOUNTED_AT) -> list[GroupMemory]:
    """Return what each group with a limit allows and has,
    as files of the kernel at these places tell.
    """
    try:
        lines = own.read_text().splitlines()
    except OSError:
        return []
    paths = {
        controller: path
        for _, controllers, path in (line.split(":", 2) for line in lines)
        for controller in controllers.split(",")
    }
    if "memory" in paths:
        top, path = mounted_at / "memory", paths["memory"]
        names = "memory.limit_in_bytes", "memory.usage_in_bytes"
    else:
        top, path, names = mounted_at, paths.get("", "/"), ("memory.max", "memory.current")
    return list(_told(top, path.strip("/"), *names))


def _told(top: Path, path: str, limit_name: str, used_name: str) -> Iterator[GroupMemory]:
    folder = top / path
    for group in (folder, *folder.parents):
        try:
            limit = (group / limit_name).read_text().strip()
            if limit != "max" and int(limit) < _UNLIMITED:
                yield GroupMemory(int(limit), int((group / used_name).read_text()))
        except (OSError, ValueError):  # not shown, or gone
            pass
        if group == top:
            return
