"""What mount(8) and umount(8) run for file systems of type `fuse.ember`;
`ember mount-helper install` puts it where they look.

    python -m fs.app.mount_helper mount SOURCE DIRECTORY [-sfnv] [-o OPTIONS] [-t TYPE]
    python -m fs.app.mount_helper umount DIRECTORY [-flnrv] [-t TYPE]

Returns when the mount answers; or when the daemon of what was unmounted has written everything and
ended, so that whoever mounts next sees it.  `umount DIRECTORY` of util-linux asks for no helper (it
takes the type from statfs, which is plain `fuse`), so a mount also waits for daemons of its place
that still write.  Exit codes are those of mount(8).
"""

from .terminal import early_interrupt  # isort: skip # noqa: F401 - before all others
import os
import signal
import sys
from collections.abc import Callable
from enum import IntEnum
from pathlib import Path
from typing import Final

from msgspec import structs

from ..client.fuse.mount_options import options_of
from ..runtime.config_file import write_config
from ..schema.status import FsError, Status
from .local import lone_mount
from .local.bring_down import mount as mount_cluster
from .local.bring_down import wait_daemon_end, wait_place_left
from .local.cluster_plan import MountWishes
from .machine.cluster_dir import ClusterDir
from .machine.running import Command, mount_daemons_at
from .mounts import mount_calls
from .mounts.mount_point import is_automount
from .mounts.mount_source import parse_source
from .mounts.mount_words import (
    MountWords,
    UsageError,
    check_settings,
    read_mount_words,
    read_umount_words,
)
from .supervision import supervisor_link
from .terminal.errors import check_interpreter, error_line, first_error, make_streams_usable


class Exit(IntEnum):
    """As mount(8) documents them."""

    DONE = 0
    USAGE = 1
    """Or a lack of permission."""
    SYSTEM = 2
    INTERRUPTED = 8
    FAILED = 32


_EXITS: Final = {
    Status.NOT_PERMITTED: Exit.USAGE,
    Status.FUSE_MISSING: Exit.SYSTEM,
    Status.OUT_OF_RESOURCES: Exit.SYSTEM,
}


_UNSAID: Final = ("suid", "dev")
"""What mount(8) means where it does not say `nosuid` and `nodev`: it leaves out what is usual.

Of plain users it says these.
"""


def mount(arguments: list[str]) -> None:
    """Mount, or mount differently, as the system asks.

    Raises:
        UsageError: the command line is wrong.
        FsError: what stood in the way; nothing is mounted then.
    """
    words = read_mount_words(arguments)
    _check_text(words.source, words.mount_point, *words.settings.values())
    place = os.path.abspath(words.mount_point)  # noqa: PTH100 - links are followed by mount(8)
    if words.is_remount:
        if not words.is_fake:
            _remount(place, words.options)
        return
    source = parse_source(words.source)
    check_settings(words, has_addresses=bool(source.addresses))
    if not words.is_fake:
        _mount_anew(words, Path(place))


def _check_text(*names: str) -> None:
    """Refuse what no configuration file can hold; raises FsError(INVALID_ARGUMENT)."""
    for name in names:
        try:
            name.encode()
        except UnicodeEncodeError as error:
            raise FsError(Status.INVALID_ARGUMENT, f"{name!r} is not UTF-8 text") from error


def _mount_anew(words: MountWords, place: Path) -> None:
    source = parse_source(words.source)
    wishes = MountWishes(
        has_hf3fs_tree=words.has_hf3fs_tree,
        subdir=source.subdir,
        source=words.source,
        options=(*_UNSAID, *words.options) if os.geteuid() == 0 else tuple(words.options),
    )
    if source.place and not Path(source.place).exists():
        detail = f"{source.place} does not exist: neither a cluster's directory nor a configuration"
        raise FsError(Status.BAD_CLUSTER_DIR, detail)
    wait_place_left(place)
    is_watched = Path(source.place).is_dir() and not is_automount(place)
    if source.place and is_watched:
        mount_cluster(ClusterDir(Path(source.place)), place, wishes)
    else:
        lone_mount.start(source, words.settings, place, wishes)


def _remount(place: str, options: list[str]) -> None:
    """Change the flags of a mount, also for the next start of its daemon."""
    flags = mount_calls.remount(place, options)
    for command, config in mount_daemons_at(Path(place)):
        # Nothing is written where others may decide which file that is.
        if command.uid == os.geteuid():
            client = structs.replace(config.client, mount_options=options_of(flags))
            write_config(command.path, structs.replace(config, client=client))


def umount(arguments: list[str]) -> None:
    """Unmount as the system asks, and wait for the daemon unless that is to be done lazily.

    Raises:
        UsageError: the command line is wrong.
        FsError: BAD_MOUNT_POINT: it stays mounted; NOT_FLUSHED: it is unmounted,
            and not all could be written.
    """
    words = read_umount_words(arguments)
    place = os.path.abspath(words.mount_point)  # noqa: PTH100 - as above
    daemons = mount_daemons_at(Path(place))
    mount_calls.unmount(place, is_lazy=words.is_lazy, is_forced=words.is_forced)
    for command, _ in daemons if not words.is_lazy else []:
        _wait_end(command, place)


def _wait_end(command: Command, place: str) -> None:
    """Wait until a daemon has written everything, and see to it that nobody starts it again."""
    owner = ClusterDir(command.directory) if command.directory else None
    log_path = command.path.with_suffix(".log")
    if owner is not None:
        log_path = owner.log_path(command.path.stem)
    # Unasked: it ends by itself, and a signal would kill it at its very end.
    wait_daemon_end(command, Path(place))
    if owner is not None and supervisor_link.is_answering(owner):
        try:
            supervisor_link.ask(owner, command="remove", name=command.path.stem)
        except FsError as error:
            if error.status is not Status.NOT_RUNNING:  # else nobody knows of it any more
                raise
    _, _, lost = supervisor_link.last_line(log_path).partition(f"{Status.NOT_FLUSHED.name}: ")
    if lost:
        raise FsError(Status.NOT_FLUSHED, f"{place}: {lost}")


_DEEDS: Final[dict[str, Callable[[list[str]], None]]] = {"mount": mount, "umount": umount}


def run(name: str, arguments: list[str]) -> int:
    """Do what is asked for, say on stderr what stood in the way, and return the exit code."""
    try:
        check_interpreter()
        _DEEDS[name](arguments)
    except UsageError as error:
        return _told(name, str(error), Exit.USAGE)
    except (FsError, OSError, KeyboardInterrupt, BaseExceptionGroup) as error:
        leaf = first_error(error)
        if isinstance(leaf, KeyboardInterrupt):
            return _told(name, "interrupted", Exit.INTERRUPTED)
        if isinstance(leaf, FsError):
            return _told(name, error_line(leaf), _EXITS.get(leaf.status, Exit.FAILED))
        if isinstance(leaf, OSError):
            return _told(name, error_line(leaf), Exit.SYSTEM)
        raise
    return Exit.DONE


def _told(name: str, line: str, code: Exit) -> Exit:
    sys.stderr.write(f"{name}.fuse.ember: {line}\n")
    return code


def main(words: list[str]) -> int:
    """Do as the system asks, in a process of its own; return the exit code."""
    make_streams_usable()
    # As Ctrl-C: who is told to end, as by timeout(1), leaves nothing that mounts later.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if not words or words[0] not in _DEEDS:
        sys.stderr.write(f"usage: python -m {__package__}.mount_helper mount|umount ...\n")
        return Exit.USAGE
    return run(words[0], words[1:])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
