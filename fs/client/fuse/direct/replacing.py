"""Mounting in the place of a mount whose daemon has died, with no moment in between.

The new mount is put beneath the dead one, which is then taken away.  Detached first, it would leave
the bare directory to programs that go on: they would write there, out of everybody's sight, and
nothing could be mounted on it any more.

For root, on Linux 6.5 and later (`move_mount` with MOVE_MOUNT_BENEATH).
"""

import ctypes
import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NoReturn

from ..mount_options import DIRSYNC, LAZYTIME, RDONLY, SYNCHRONOUS, attributes_of
from ..mount_point import detach

_log = logging.getLogger(__name__)

_MOVE_MOUNT, _FSOPEN, _FSCONFIG, _FSMOUNT = 429, 430, 431, 432
"""Numbers of system calls, the same on all machines that we know."""
_FSOPEN_CLOEXEC: Final = 1
_FSMOUNT_CLOEXEC: Final = 1
_SET_FLAG, _SET_STRING, _CREATE = 0, 1, 6
_FROM_DESCRIPTOR: Final = 0x4
_BENEATH: Final = 0x200
_AT_FDCWD: Final = -100

_OF_FILE_SYSTEM: Final = {
    RDONLY: "ro",
    SYNCHRONOUS: "sync",
    DIRSYNC: "dirsync",
    LAZYTIME: "lazytime",
}
"""Flags of mount(2) that are the file system's, not the mount's."""


def replace_dead(mount_point: Path, device: int, options: Sequence[str], flags: int) -> bool:
    """Mount an open /dev/fuse where a dead mount stands, and take that away.

    Args:
        mount_point: where.
        device: the descriptor.
        options: what FUSE is told, the source too.
        flags: those of mount(2).

    Returns:
        False: this kernel cannot do so, or not here; all is as it was.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    try:
        mounted = _new_mount(libc, [*options, f"fd={device}", "subtype=ember"], flags)
        try:
            place = os.fsencode(mount_point)
            how = _FROM_DESCRIPTOR | _BENEATH
            _call(libc, _MOVE_MOUNT, mounted, b"", _AT_FDCWD, place, how)
        finally:
            os.close(mounted)
    except OSError as error:
        _log.info("%s: a dead mount cannot be replaced: %s", mount_point, error.strerror)
        return False
    if failure := detach(mount_point):
        _log.error("%s: a dead mount is left above: %s", mount_point, failure)
    return True


def _new_mount(libc: ctypes.CDLL, options: Sequence[str], flags: int) -> int:
    """Return the descriptor of a mount that is nowhere yet."""
    context = _call(libc, _FSOPEN, b"fuse", _FSOPEN_CLOEXEC)
    try:
        named = [name for flag, name in _OF_FILE_SYSTEM.items() if flags & flag]
        for option in [*options, *named]:
            key, has_value, value = option.partition("=")
            kind = _SET_STRING if has_value else _SET_FLAG
            told = os.fsencode(value) if has_value else None
            _call(libc, _FSCONFIG, context, kind, os.fsencode(key), told, 0)
        _call(libc, _FSCONFIG, context, _CREATE, None, None, 0)
        return _call(libc, _FSMOUNT, context, _FSMOUNT_CLOEXEC, attributes_of(flags))
    finally:
        os.close(context)


def _call(libc: ctypes.CDLL, number: int, *arguments: int | bytes | None) -> int:
    done: int = libc.syscall(number, *arguments)
    return done if done >= 0 else _fail()


def _fail() -> NoReturn:
    code = ctypes.get_errno()
    raise OSError(code, os.strerror(code))
