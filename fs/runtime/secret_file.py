"""Files that hold secrets: readable by their owner alone, written whole or not at all.

    # a comment
    LINE            one secret per line

Invariant: a file that others can read is refused, not used: what it holds is no secret.
"""

import os
import stat
from pathlib import Path
from typing import Final

from ..schema.status import FsError, Status
from .durable_file import sync_directory

SIZE_BYTES_MAX: Final = 16 * 1024
PRIVATE_MODE: Final = 0o600


def _bad(path: Path, problem: str) -> FsError:
    return FsError(Status.BAD_CONFIG, f"{path}: {problem}")


def _check_private(path: Path, found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise _bad(path, "is no regular file")
    if found.st_uid not in {0, os.geteuid()}:
        raise _bad(path, f"belongs to user {found.st_uid}; it must be root's or ours")
    if found.st_mode & 0o077:
        mode = stat.S_IMODE(found.st_mode)
        raise _bad(path, f"others may read it (mode {mode:o}); remedy: chmod 600 {path}")


def read_secret_lines(path: Path) -> list[str]:
    """Return the lines of a file of secrets, without comments and empty ones; at least one.

    Raises:
        FsError: BAD_CONFIG when it cannot be read, is not ours alone, or holds nothing.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise _bad(path, f"cannot be read: {error.strerror}") from error
    try:
        _check_private(path, os.fstat(descriptor))
        text = os.read(descriptor, SIZE_BYTES_MAX + 1)
    finally:
        os.close(descriptor)
    if len(text) > SIZE_BYTES_MAX:
        raise _bad(path, f"is longer than {SIZE_BYTES_MAX} bytes")
    lines = [line.strip() for line in text.decode("ascii", errors="replace").splitlines()]
    kept = [line for line in lines if line and not line.startswith("#")]
    if not kept:
        raise _bad(path, "holds no secret")
    return kept


def write_secret_file(path: Path, text: str) -> None:
    """Write a new file with mode 0600; raises FsError(BAD_CONFIG),
    also when there is one already.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags, PRIVATE_MODE)
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(text)
            file.flush()
            os.fsync(descriptor)
    except FileExistsError as error:
        raise _bad(path, "is there already, and is not replaced: name another file") from error
    except OSError as error:
        raise _bad(path, f"cannot be written: {error.strerror}") from error


def replace_secret_file(path: Path, text: str) -> None:
    """Write a file with mode 0600 in place of the one that is there, whole or not at all, durably;
    raises FsError(BAD_CONFIG).
    """
    temporary = path.with_name(f".{path.name}.new")
    try:
        temporary.unlink(missing_ok=True)  # of a run that was killed
        write_secret_file(temporary, text)
        temporary.replace(path)
        sync_directory(path.parent)
    except OSError as error:
        raise _bad(path, f"cannot be written: {error.strerror}") from error
