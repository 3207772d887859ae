"""Files that say by a lock who is at work:
the kernel frees it when its holder ends, however that ends.

The file stays, empty; only the lock counts.  Source: flock(2).
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..schema.status import FsError, Status


def take_file(path: Path, detail: str, *, is_shared: bool = False) -> int:
    """Lock a file, made with mode 0600 if need be, without waiting;
    return the descriptor that holds it until it is closed.

    Args:
        path: of the file.
        detail: says who else holds it, in the error.
        is_shared: beside others that share it.

    Raises:
        FsError: ALREADY_RUNNING when somebody holds it; BAD_CONFIG when it cannot be opened.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise FsError(Status.BAD_CONFIG, f"{path}: {error.strerror}") from error
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if is_shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(descriptor)
        raise FsError(Status.ALREADY_RUNNING, detail) from error
    return descriptor


@contextmanager
def held_file(path: Path, detail: str, *, is_shared: bool = False) -> Iterator[None]:
    """Hold a file while the body runs; see `take_file`."""
    descriptor = take_file(path, detail, is_shared=is_shared)
    try:
        yield
    finally:
        os.close(descriptor)
