"""Who may start a cluster: one `ember up` at a time, and only where no complete cluster runs.

Two at once would each make a record, with another identity, and each stop what the
other has started.  One that was killed leaves a part of a cluster, with its supervisor:
the next one goes on with that.

Invariant: `starting` stands in the folder of the sockets from before the first process starts until
all serve.  It says nothing unless a supervisor answers.
"""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from ...schema.status import FsError, Status
from ..machine.cluster_dir import ClusterDir
from ..machine.running import supervisor_of
from . import supervisor_link

SILENT_S_MAX: Final = 3.0
"""A supervisor that starts, or ends, is there for so long without a socket."""
POLL_S: Final = 0.05


@contextmanager
def in_turn(path: Path) -> Iterator[None]:
    """Wait for every `ember up` and `ember mount` that is choosing names and places in a directory,
    and keep others waiting.

    Raises:
        FsError: BAD_CLUSTER_DIR.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise FsError(Status.BAD_CLUSTER_DIR, f"{path}: {error.strerror}") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def only_start(path: Path) -> Iterator[None]:
    """Keep every other `ember up` away from a directory, which is made for it,
    and removed again if it is left empty.

    The lock is that of the directory itself: a refused start leaves no file behind.

    Raises:
        FsError: ALREADY_RUNNING; BAD_CLUSTER_DIR.
    """
    try:
        missing = [place for place in (path, *path.parents) if not place.exists()]
        path.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise FsError(Status.BAD_CLUSTER_DIR, f"{path}: {error.strerror}") from error
    try:
        _lock(descriptor, path)
        yield
    finally:
        with suppress(OSError):  # it is in use, or gone with `ember down --wipe`
            for made in missing:
                made.rmdir()
        os.close(descriptor)


def _lock(descriptor: int, path: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise FsError(Status.ALREADY_RUNNING, f"another `ember up` is starting {path}") from error
    except OSError as error:
        detail = f"{path} cannot be locked: {error.strerror}; choose a local disk with --dir"
        raise FsError(Status.BAD_CLUSTER_DIR, detail) from error


def check_stopped(directory: ClusterDir) -> None:
    """Refuse a cluster that runs, unless its start was killed halfway.

    Raises:
        FsError: ALREADY_RUNNING.
    """
    deadline_s = time.monotonic() + SILENT_S_MAX
    while not supervisor_link.is_answering(directory):
        if supervisor_of(directory) is None:
            return
        if time.monotonic() > deadline_s:
            raise FsError(
                Status.ALREADY_RUNNING,
                f"the supervisor of {directory.path} runs, but nobody can ask it: was "
                f"{directory.run_path} emptied? stop it: {directory.command('down')}",
            )
        time.sleep(POLL_S)
    if not directory.starting_path.exists():
        raise FsError(
            Status.ALREADY_RUNNING,
            f"a cluster in {directory.path}; see: {directory.command('status')}, stop it: "
            f"{directory.command('down')}",
        )


def note_start(directory: ClusterDir) -> None:
    """Say that a start is under way; raises FsError(BAD_CLUSTER_DIR)."""
    try:
        directory.starting_path.touch()
    except OSError as error:
        detail = f"{directory.starting_path}: {error.strerror}"
        raise FsError(Status.BAD_CLUSTER_DIR, detail) from error
