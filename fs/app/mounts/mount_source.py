"""What `mount -t fuse.ember` and /etc/fstab call the file system: SOURCE.  Pure.

    /var/lib/emberfs               a cluster of this machine, by its directory
    /etc/emberfs/mountd.toml       a cluster, by the configuration file of a mount daemon
    10.0.0.1:7001,10.0.0.2:7001    a cluster, by the addresses of its managers

Each may be followed by `:/DIRECTORY`: then that directory of the file system is mounted
alone, as NFS and CephFS have it.
"""

import posixpath
import re
from typing import Final, NamedTuple

from ...schema.status import FsError, Status

FORMS: Final = "DIRECTORY, FILE or HOST:PORT[,HOST:PORT...], then :/SUBDIR or nothing"
_ADDRESS: Final = re.compile(r"([^\s:/]+|\[[0-9a-fA-F:.]+\]):[0-9]{1,5}")


class MountSource(NamedTuple):
    """Which cluster, and what of it."""

    place: str = ""
    """An absolute path, of a cluster's directory or of a configuration file;
    empty: there are addresses.
    """
    addresses: tuple[str, ...] = ()
    """Of managers."""
    subdir: str = ""
    """Empty: the whole file system."""


def tidy_subdir(path: str) -> str:
    """Return a directory of the file system as `client.subdir` has it; empty for its root.

    Raises:
        FsError: INVALID_ARGUMENT: it is not absolute.
    """
    if not path:
        return ""
    if not path.startswith("/"):
        raise FsError(
            Status.INVALID_ARGUMENT, f"{path}: a directory of the file system begins with /"
        )
    tidy = "/" + posixpath.normpath(path).strip("/")
    return "" if tidy == "/" else tidy


def parse_source(source: str) -> MountSource:
    """Return what a SOURCE means.

    Raises:
        FsError: INVALID_ARGUMENT: it is none.
    """
    where, colon, below = source.rpartition(":/")
    if not colon:
        where, below = source, ""
    subdir = tidy_subdir(f"/{below}")
    if where.startswith("/"):
        return MountSource(place=where, subdir=subdir)
    addresses = where.split(",")
    if not all(map(_ADDRESS.fullmatch, addresses)):
        raise FsError(Status.INVALID_ARGUMENT, f"{source!r} names no cluster; allowed is: {FORMS}")
    return MountSource(addresses=tuple(f"tcp:{one}" for one in addresses), subdir=subdir)
