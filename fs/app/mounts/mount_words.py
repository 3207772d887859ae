"""Command lines with which mount(8) and umount(8) call their helpers, read word by word.  Pure.

Words that are for mount(8) itself, for systemd or for whoever reads /etc/fstab are passed over;
what means nothing to EmberFS is refused, as it would be forgotten otherwise.
"""

import getopt
from dataclasses import dataclass, field
from typing import Final

from ...client.fuse.mount_options import FLAGS
from ...schema.status import FsError, Status

MOUNT_USAGE: Final = "mount.fuse.ember SOURCE DIRECTORY [-sfnv] [-o OPTIONS] [-t TYPE]"
UMOUNT_USAGE: Final = "umount.fuse.ember DIRECTORY [-flnrv] [-t TYPE]"

SETTINGS: Final = ("cluster_id", "key_file", "token_file")
"""Options with a value: what a SOURCE of addresses does not say."""

TREE_OF_3FS: Final = "hf3fs_tree"

_FOR_OTHERS: Final = frozenset(
    (
        *("defaults", "auto", "noauto", "nofail", "_netdev"),
        *("user", "nouser", "users", "nousers", "owner", "noowner", "group", "nogroup"),
    )
)
_FOR_OTHERS_BEGIN: Final = ("x-", "X-", "comment=", "user=", "helper=", "uhelper=")
_AS_ALWAYS: Final = frozenset(("default_permissions", "allow_other", "seclabel"))
_OF_FUSE_BEGIN: Final = ("user_id=", "group_id=", "max_read=", "blksize=", "rootmode=", "fd=")
"""What the list of mounts says of a mount, which comes back with a remount; SELinux adds a word."""


class UsageError(Exception):
    """The command line is wrong: exit code 1."""


@dataclass(slots=True)
class MountWords:
    """What mount(8) asks for."""

    source: str
    mount_point: str
    options: list[str] = field(default_factory=list)
    """Those of any file system."""
    settings: dict[str, str] = field(default_factory=dict)
    has_hf3fs_tree: bool = False
    is_remount: bool = False
    is_fake: bool = False
    """All is checked, and nothing mounted."""


@dataclass(frozen=True, slots=True)
class UmountWords:
    """What umount(8) asks for."""

    mount_point: str
    is_lazy: bool
    is_forced: bool


def read_mount_words(words: list[str]) -> MountWords:
    """Return what a command line asks for; raises UsageError."""
    given, places = _parsed(words, "sfnvN:o:t:", MOUNT_USAGE)
    if len(places) != 2:  # noqa: PLR2004 - where from, and where to
        raise UsageError(f"usage: {MOUNT_USAGE}")
    flags = {flag for flag, _ in given}
    if "-N" in flags:
        raise UsageError("-N: run mount(8) in the other namespace instead (nsenter)")
    source, mount_point = places
    found = MountWords(source, mount_point, is_fake="-f" in flags)
    for flag, value in given:
        if flag == "-o":
            for option in value.split(","):
                _take(found, option, is_sloppy="-s" in flags)
    return found


def read_umount_words(words: list[str]) -> UmountWords:
    """Return what a command line asks for; raises UsageError."""
    given, places = _parsed(words, "flnrvN:t:", UMOUNT_USAGE)
    if len(places) != 1:
        raise UsageError(f"usage: {UMOUNT_USAGE}")
    flags = {flag for flag, _ in given}
    return UmountWords(places[0], "-l" in flags, "-f" in flags)


def _parsed(words: list[str], letters: str, usage: str) -> tuple[list[tuple[str, str]], list[str]]:
    # Not `gnu_getopt`: that heeds POSIXLY_CORRECT, and mount(8) names options last in any case.
    given: list[tuple[str, str]] = []
    places: list[str] = []
    try:
        while words:
            found, words = getopt.getopt(words, letters)
            given += found
            places += words[:1]
            words = words[1:]
    except getopt.GetoptError as error:
        raise UsageError(f"{error}; usage: {usage}") from error
    return given, places


def _take(found: MountWords, option: str, *, is_sloppy: bool) -> None:
    """Note one option."""
    name, _, value = option.partition("=")
    if option in FLAGS:
        found.options.append(option)
    elif option == "remount":
        found.is_remount = True
    elif option == TREE_OF_3FS:
        found.has_hf3fs_tree = True
    elif name in SETTINGS and value:
        found.settings[name] = value
    elif not (_is_for_others(option) or option.startswith(_OF_FUSE_BEGIN) or is_sloppy):
        raise UsageError(f"-o {option}: EmberFS knows no such option")


def _is_for_others(option: str) -> bool:
    return (
        not option
        or option in _FOR_OTHERS
        or option in _AS_ALWAYS
        or option.startswith(_FOR_OTHERS_BEGIN)
    )


def check_settings(words: MountWords, *, has_addresses: bool) -> None:
    """Refuse what a SOURCE says by itself; raises FsError(BAD_CONFIG)."""
    if words.settings and not has_addresses:
        names = ", ".join(words.settings)
        raise FsError(Status.BAD_CONFIG, f"-o {names}: {words.source} says that by itself")
