"""Options of a mount as mount(8) knows them, and the flags of the system call that they stand for.

Pure.

Invariants:
    - An option changes the flags that it names, and leaves all others.
    - Without `suid` and `dev` a mount honours neither set-id bits nor device files:
      another cluster's root made them.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple

from ...schema.config import ClientSection
from ...schema.status import FsError, Status

RDONLY: Final = 1
NOSUID: Final = 2
NODEV: Final = 4
_NOEXEC: Final = 8
SYNCHRONOUS: Final = 16
REMOUNT: Final = 32
DIRSYNC: Final = 128
_NOSYMFOLLOW: Final = 256
_NOATIME: Final = 1024
_NODIRATIME: Final = 2048
_RELATIME: Final = 1 << 21
_STRICTATIME: Final = 1 << 24
LAZYTIME: Final = 1 << 25
_OF_ATIME: Final = _NOATIME | _RELATIME | _STRICTATIME

DEFAULT_FLAGS: Final = NOSUID | NODEV

FLAGS: Final[dict[str, tuple[int, int]]] = {
    "ro": (RDONLY, 0),
    "rw": (0, RDONLY),
    "nosuid": (NOSUID, 0),
    "suid": (0, NOSUID),
    "nodev": (NODEV, 0),
    "dev": (0, NODEV),
    "noexec": (_NOEXEC, 0),
    "exec": (0, _NOEXEC),
    "sync": (SYNCHRONOUS, 0),
    "async": (0, SYNCHRONOUS),
    "dirsync": (DIRSYNC, 0),
    "nosymfollow": (_NOSYMFOLLOW, 0),
    "symfollow": (0, _NOSYMFOLLOW),
    "noatime": (_NOATIME, _OF_ATIME),
    "atime": (0, _NOATIME),
    "relatime": (_RELATIME, _OF_ATIME),
    "norelatime": (0, _RELATIME),
    "strictatime": (_STRICTATIME, _OF_ATIME),
    "nostrictatime": (0, _STRICTATIME),
    "nodiratime": (_NODIRATIME, 0),
    "diratime": (0, _NODIRATIME),
    "lazytime": (LAZYTIME, 0),
    "nolazytime": (0, LAZYTIME),
}
"""What each option sets and clears."""

_ATTRIBUTES: Final = {
    RDONLY: 0x1,
    NOSUID: 0x2,
    NODEV: 0x4,
    _NOEXEC: 0x8,
    _NOATIME: 0x10,
    _STRICTATIME: 0x20,
    _NODIRATIME: 0x80,
    _NOSYMFOLLOW: 0x200000,
}


class CountedReads(NamedTuple):
    """Which reads set times of access."""

    of_files: bool
    of_directories: bool


def generic_options(section: ClientSection) -> list[str]:
    """Return what the kernel is told of a mount as of one of any type,
    and shows in lists of mounts.
    """
    return [*section.mount_options, *(["noatime"] if section.atime == "noatime" else [])]


def counted_reads(section: ClientSection) -> CountedReads:
    """Return which reads of a mount may count, by the options that it was made with."""
    flags = flags_of(generic_options(section))
    of_files = not flags & (RDONLY | _NOATIME)
    return CountedReads(of_files, of_files and not flags & _NODIRATIME)


def flags_of(options: Iterable[str], flags: int = DEFAULT_FLAGS) -> int:
    """Return flags of mount(2) with what the options change; a later one counts.

    Raises:
        FsError: BAD_CONFIG: an option is none of FLAGS.
    """
    for option in options:
        if option not in FLAGS:
            raise FsError(Status.BAD_CONFIG, f"mount option {option}: none that EmberFS knows")
        to_set, to_clear = FLAGS[option]
        flags = flags & ~to_clear | to_set
    return flags


def attributes_of(flags: int) -> int:
    """Return what fsmount(2) has for flags of mount(2) that are the mount's own."""
    return sum(attribute for flag, attribute in _ATTRIBUTES.items() if flags & flag)


def options_of(flags: int) -> list[str]:
    """Return options that make these flags of the default ones."""
    found = [name for name, (to_set, _) in FLAGS.items() if to_set & flags]
    return found + [name for name in ("suid", "dev") if not FLAGS[name][1] & flags]
