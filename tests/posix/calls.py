"""System calls by table: each check runs the same calls in a fresh directory
and notes every outcome.

A check is a function over a `Probe`.  It runs in a child process whose working
directory is the fresh directory, on the mount once and on a local file system once; the
two lists of outcomes must be equal.
"""

import ctypes
import errno
import json
import os
import stat
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

LIBC = ctypes.CDLL(None, use_errno=True)
AT_FDCWD = -100
RENAME_NOREPLACE, RENAME_EXCHANGE = 1, 2
USER, OTHER, GROUP, OTHER_GROUP = 65533, 65532, 65531, 65530
CHECKS: dict[str, Callable[["Probe"], None]] = {}


def check(function: Callable[["Probe"], None]) -> Callable[["Probe"], None]:
    """Put a check into the table."""
    CHECKS[function.__name__] = function
    return function


def renameat2(old: str, new: str, flags: int) -> None:
    """renameat2(2), which Python does not offer."""
    if LIBC.renameat2(AT_FDCWD, old.encode(), AT_FDCWD, new.encode(), flags):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


class Probe:
    """Calls functions and notes what came of it."""

    def __init__(self) -> None:
        self.notes: list[list[object]] = []
        self.was_refused = False
        """Whether the last call by `t` failed."""

    def note(self, label: str, value: object) -> None:
        """Note a value."""
        self.notes.append([label, repr(value)])

    def t(self, label: str, function: Callable[..., object], *args: object, **kwargs: object):
        """Call, note the result or the errno's name, and return the result."""
        self.was_refused = False
        try:
            result = function(*args, **kwargs)
        except OSError as error:
            self.was_refused = True
            self.note(label, errno.errorcode.get(error.errno or 0, error.errno))
            return None
        is_plain = isinstance(result, (int, str, bytes, list, tuple, type(None)))
        is_fd = function in {os.open, os.dup}
        self.note(label, "fd" if is_fd else result if is_plain else type(result).__name__)
        return result

    def stat(self, path: str | int, *, label: str = "") -> None:
        """Note type, mode, links, owner, group, and the length of what is no directory."""
        label = label or f"stat {path}"
        try:
            found = os.fstat(path) if isinstance(path, int) else os.lstat(path)
        except OSError as error:
            self.note(label, errno.errorcode[error.errno])
            return
        size = None if stat.S_ISDIR(found.st_mode) else found.st_size
        value = (oct(found.st_mode), found.st_nlink, found.st_uid, found.st_gid, size)
        self.note(label, value)

    def touch(self, path: str, mode: int = 0o644, content: bytes = b"") -> None:
        """Make a file with exactly this mode."""
        fd = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600)
        if content:
            os.write(fd, content)
        os.fchmod(fd, mode)
        os.close(fd)

    def mkdir(self, path: str, mode: int = 0o755) -> None:
        """Make a directory with exactly this mode."""
        os.mkdir(path)
        os.chmod(path, mode)

    def as_user(
        self,
        function: Callable[["Probe"], None],
        uid: int = USER,
        gid: int = GROUP,
        groups: tuple[int, ...] = (),
    ) -> None:
        """Run calls in a child of another user and take over its notes."""
        self.notes.extend(run_child(function, Path.cwd(), (uid, gid, groups)))

    def changes(self, label: str, path: str, function: Callable[[], object]) -> None:
        """Note which times of a path a call moves."""
        before = os.lstat(path)
        self.t(label, function)
        after = os.lstat(path)
        moved = [
            kind
            for kind in ("st_mtime_ns", "st_ctime_ns")
            if getattr(after, kind) > getattr(before, kind)
        ]
        self.note(f"{label} moves", moved)


def run_child(
    function: Callable[[Probe], None],
    directory: Path,
    who: tuple[int, int, tuple[int, ...]] | None = None,
) -> list[list[object]]:
    """Fork, go to a directory, become somebody, run, and return the notes."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.fchdir(descriptor)
            os.umask(0o022)
            if who is not None:
                os.setgroups(who[2])
                os.setresgid(who[1], who[1], who[1])
                os.setresuid(who[0], who[0], who[0])
            probe = Probe()
            function(probe)
            with os.fdopen(write_end, "w") as pipe:
                json.dump(probe.notes, pipe)
            code = 0
        except BaseException:  # noqa: BLE001 - a child of fork must not return
            traceback.print_exc()
            sys.stderr.flush()
        finally:
            os._exit(code)
    os.close(write_end)
    os.close(descriptor)
    with os.fdopen(read_end) as pipe:
        text = pipe.read()
    _, status = os.waitpid(pid, 0)
    assert status == 0, f"{function} ended with status {status}"
    return json.loads(text)
