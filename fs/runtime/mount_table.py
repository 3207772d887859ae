"""The kernel's list of mounts, as this process sees it.

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

AUTOMOUNT: Final = "autofs"
"""The type of a place where the first use has something mounted.  Until that is done all wait who
come there, but for the process group of whoever mounts.
"""

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


def mount_at(place: str) -> Mounted | None:
    """Return the uppermost mount of a place; None: nothing is mounted there."""
    return next((mounted for mounted in reversed(read_mounts()) if mounted.place == place), None)
