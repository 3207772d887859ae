"""How a load outlives the death of the mount daemon below it:
telling it from other errors, waiting for the next mount.

What was acknowledged through the dead mount must be found through the next one: names at
once, bytes when they were synced.
"""

import os
import time
from pathlib import Path
from typing import Final

from .fleet import DEAD_ERRNOS, is_dead

AGAIN_TIMEOUT_S: Final = 60.0
POLL_S: Final = 0.05


class MountDiedError(Exception):
    """The mount that a load works through has died; whatever it had open there is dead for ever."""


class MountWatch:
    """Watches one mount through an open descriptor of a directory in it."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)

    def require_alive(self) -> None:
        """Raise MountDiedError if the mount is dead:
        to be called after any error, before that is judged.
        """
        if is_dead(self._fd):
            raise MountDiedError

    def wait_next(self) -> None:
        """Wait until a new mount shows the directory; raises TimeoutError."""
        close_dead(self._fd)
        deadline = time.monotonic() + AGAIN_TIMEOUT_S
        while not self._is_there():
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self._directory} did not come back")
            time.sleep(POLL_S)

    def _is_there(self) -> bool:
        """Open the directory, unless the dead mount, or the folder below it, is all there is."""
        try:
            self._fd = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:
            return False
        except OSError as error:
            if error.errno not in DEAD_ERRNOS:
                raise
            return False
        return True


def close_dead(descriptor: int) -> None:
    """Close what was open on a mount that may be dead: that it is dead is known."""
    try:
        os.close(descriptor)
    except OSError as error:
        if error.errno not in DEAD_ERRNOS:
            raise
