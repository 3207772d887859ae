"""The kernel's list of mounts, as this process sees it, and what an administrator wants to be
mounted.

Others choose the names in it: a user can mount at any directory of his own.  To the kernel they
are bytes, of which it escapes blanks, tabs, ends of lines and backslashes, and in sources also
`#`.  Nothing else parts fields and lines, whatever Unicode takes for a blank, and what is no UTF-8
keeps nobody from reading on.
"""

import os
import re
from pathlib import Path
from typing import Final, NamedTuple

TABLE: Final = Path("/proc/self/mounts")
MOUNTINFO: Final = Path("/proc/self/mountinfo")
PLANNED: Final = Path("/etc/fstab")

AUTOMOUNT: Final = "autofs"
"""The type of a place where the first use has something mounted.  Until that is done all wait who
come there, but for the process group of whoever mounts.
"""

_LINKS_MAX: Final = 40
"""As the kernel follows."""
_ESCAPE: Final = re.compile(rb"\\([0-7]{3})")


class Mounted(NamedTuple):
    """A mount; of several at one place the last one is uppermost."""

    source: str
    place: str
    kind: str
    options: tuple[str, ...]


def unescaped(field: bytes) -> str:
    """Return what a field says."""
    return os.fsdecode(_ESCAPE.sub(lambda code: bytes([int(code[1], 8)]), field))


def read_mounts() -> list[Mounted]:
    """Return all mounts, in the order in which they were made."""
    found = []
    for line in TABLE.read_bytes().split(b"\n"):
        if line:
            source, place, kind, options, *_ = map(unescaped, line.split(b" "))
            found.append(Mounted(source, place, kind, tuple(options.split(","))))
    return found


def mount_at(place: Path) -> Mounted | None:
    """Return the uppermost mount of a place; None: nothing is mounted there."""
    real = str(real_place(place))
    return next((mounted for mounted in reversed(read_mounts()) if mounted.place == real), None)


def awaited_mount(directory: Path) -> str | None:
    """Return the place, of those that /etc/fstab names, whose file system a directory is to be in
    although nothing is mounted there; None: there is no such place.
    """
    real = real_place(directory)
    above = {str(place) for place in (real, *real.parents)} - {"/"}
    try:
        lines = PLANNED.read_bytes().splitlines()
    except FileNotFoundError:
        return None
    fields = [line.split() for line in lines if not line.lstrip().startswith(b"#")]
    planned = above & {unescaped(field[1]).rstrip("/") for field in fields if len(field) > 1}
    place = max(planned, key=len, default=None)
    if place is None:
        return None
    is_mounted = any(
        mounted.place in above and len(mounted.place) >= len(place) for mounted in read_mounts()
    )
    return None if is_mounted else place


def real_place(place: Path) -> Path:
    """Return a mount point as the list of mounts has it, without links.

    Nobody is asked who serves what is mounted there: he may be dead, or hang.
    """
    place = place.absolute()
    for _ in range(_LINKS_MAX):
        if place.name in {"", ".."}:
            return Path(os.path.realpath(place))
        place = Path(os.path.realpath(place.parent), place.name)
        try:
            place = place.parent / os.readlink(place)  # noqa: PTH115 - of a mount it asks nobody
        except OSError:
            break
    return place


def is_same_place(one: str, other: Path) -> bool:
    """Return whether two paths lead to one mount point, by whatever links above it."""
    if one == str(other):
        return True
    return Path(one).name == other.name and real_place(Path(one)) == real_place(other)
